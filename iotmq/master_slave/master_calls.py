"""Ask the master what is not in its log: its tables, its settings, and where its log begins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec

from iotmq.addresses import address_text, parse_address
from iotmq.broker.settings import BrokerSettings
from iotmq.errors import BrokerError, ConnectionClosedError, IotmqError
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.properties_text import parse_properties
from iotmq.remoting.signature import Credentials
from iotmq.replication.settings import ReplicationSettings

logger = logging.getLogger("iotmq.replication")

T = TypeVar("T")

_TIMEOUT_S: Final = 3.0
_MASTER_ID: Final = "0"
_RANGE_NAMES: Final = ("commitLogMinOffset", "commitLogMaxOffset")
# The setting of RocketMQ 4.9, and of brokers before it.
_SEGMENT_BYTES_NAMES: Final = ("mappedFileSizeCommitLog", "mapedFileSizeCommitLog")


class MasterCalls:
    """Calls a master by its native port, on one connection that is kept."""

    def __init__(self, settings: ReplicationSettings) -> None:
        """ConfigError for a file of certificates that cannot be used."""
        self._tls = settings.tls()
        self._credentials = (
            Credentials(settings.access_key, settings.secret_key) if settings.access_key else None
        )
        # Set by `call_at`.
        self._address: tuple[str, int] | None = None
        self._connection: ClientConnection | None = None

    @property
    def has_address(self) -> bool:
        """Return whether it is known where the master is."""
        return self._address is not None

    def call_at(self, address: tuple[str, int]) -> None:
        """Call there from now on."""
        if address != self._address:
            self._address = address
            self.stop()

    def stop(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.abort("not needed any more")
            self._connection = None

    async def body(self, code: int) -> bytes:
        """Return the body of the master's answer to a request without fields. IotmqError without one."""
        address = self._address
        assert address is not None, "call_at comes first"
        connection = self._connection
        if connection is None or connection.is_closed:
            connection = await ClientConnection.connect(
                *address, timeout_s=_TIMEOUT_S, credentials=self._credentials, tls=self._tls
            )
            if address != self._address:
                connection.abort("not needed any more")
                raise ConnectionClosedError("the master has another address")
            self._connection = connection
        answer = await connection.request(Command.request(code), timeout_s=_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(
                answer.code, answer.remark or f"no reason, by the master {address_text(*address)}"
            )
        return bytes(answer.body_bytes())

    async def table(self, code: int, shape: type[T]) -> T:
        """Return the body of an answer as `shape`. IotmqError when there is none, or another."""
        body = await self.body(code)
        # In a thread: what Java brokers write may have to be put right first.
        return await asyncio.to_thread(lenient_json.decode, body, shape, lenient_bytes_max=len(body))

    async def log_range(self) -> tuple[int, int]:
        """Return where the master's log begins and ends. IotmqError."""
        facts = await self.table(RequestCode.GET_BROKER_RUNTIME_INFO, _RuntimeInfo)
        try:
            oldest, end_position = (int(facts.table[name]) for name in _RANGE_NAMES)
        except (KeyError, ValueError) as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"the master does not say where its log begins and ends: {error}"
            ) from None
        # An empty log of a Java broker may say -1.
        return max(0, oldest), max(0, end_position)

    async def segment_bytes(self) -> int:
        """Return the size of the files of the master's log. IotmqError."""
        facts = parse_properties(await self.body(RequestCode.GET_BROKER_CONFIG))
        for name in _SEGMENT_BYTES_NAMES:
            if facts.get(name, "").isdecimal():
                return int(facts[name])
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR, "the master does not say how large the files of its log are"
        )


class _RuntimeInfo(msgspec.Struct):
    table: dict[str, str]


class _Group(msgspec.Struct, rename="camel"):
    broker_addrs: dict[str, str] = {}


class _ClusterInfo(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, _Group] = {}


async def find_master(settings: BrokerSettings) -> tuple[str, int] | None:
    """Return the native address of this broker name's master as registries know it; None when none does."""
    tls = settings.registry_tls()
    for registry in settings.registries:
        try:
            connection = await ClientConnection.connect(
                *parse_address(registry),
                timeout_s=_TIMEOUT_S,
                credentials=settings.registry_credentials,
                tls=tls,
            )
            try:
                answer = await connection.request(
                    Command.request(RequestCode.GET_BROKER_CLUSTER_INFO), timeout_s=_TIMEOUT_S
                )
            finally:
                connection.abort("asked")
            if answer.code != ResponseCode.SUCCESS:
                raise BrokerError(answer.code, answer.remark or "no reason")
            found = await asyncio.to_thread(lenient_json.decode, answer.body, _ClusterInfo)
        except IotmqError as error:
            logger.debug("registry %s does not say who is master: %s", registry, error)
            continue
        address = told_address(found.broker_addr_table.get(settings.name, _Group()).broker_addrs, _MASTER_ID)
        if address is not None:
            return address
    return None


def told_address(ext: Mapping[str, str], field: str) -> tuple[str, int] | None:
    """Return an address among those in a registry's answer; None when it has none that can be one."""
    text = ext.get(field, "")
    if not text:
        return None
    try:
        return parse_address(text)
    except ValueError as error:
        logger.warning("a registry tells of the master (%s): %s", field, error)
        return None
