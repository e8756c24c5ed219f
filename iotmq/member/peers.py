"""Reach the other members by their native ports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from iotmq.addresses import address_text, parse_address
from iotmq.errors import BrokerError, ConnectionClosedError
from iotmq.member.wire import Introduction
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection, OnLost, OnRequest
from iotmq.remoting.signature import Credentials, sign
from iotmq.replication.cluster_state import MemberAddress
from iotmq.replication.settings import ReplicationSettings

CONNECT_S: Final = 1.0
"""So long a connection may take to be made, where nothing else is said."""


class PeerConnector:
    """Makes connections to members by their numbers."""

    def __init__(self, settings: ReplicationSettings, introduction: Introduction) -> None:
        """`introduction` is this member's. ConfigError for a file of certificates that cannot be used."""
        self.introduction = introduction
        self.members: Mapping[int, tuple[str, int]] = settings.addresses
        """All members: those of the settings, until it is known which ones are recorded."""
        self._tls = settings.tls()
        self._credentials = (
            Credentials(settings.access_key, settings.secret_key) if settings.access_key else None
        )

    def know(self, members: Iterable[MemberAddress]) -> None:
        """Use these members from now on: they are the recorded ones."""
        self.members = {member: parse_address(address) for member, address in members}

    async def connect(
        self,
        number: int,
        *,
        timeout_s: float,
        on_request: OnRequest | None = None,
        on_lost: OnLost | None = None,
    ) -> ClientConnection:
        """Connect to a member. ConnectionClosedError, with the system's error as its cause."""
        return await ClientConnection.connect(
            *self._address_of(number),
            on_request=on_request,
            on_lost=on_lost,
            timeout_s=timeout_s,
            credentials=self._credentials,
            tls=self._tls,
        )

    async def connect_for_client(
        self,
        number: int,
        host: str,
        port: int,
        *,
        on_request: OnRequest,
        on_lost: OnLost,
        timeout_s: float,
    ) -> ClientConnection:
        """Connect to the master in the name of a client, whose requests are sent as they come.

        ConnectionClosedError, RequestTimeoutError; BrokerError when the member is not master.
        """
        connection = await ClientConnection.connect(
            *self._address_of(number),
            on_request=on_request,
            on_lost=on_lost,
            timeout_s=timeout_s,
            tls=self._tls,
        )
        introduction = Command.request(RequestCode.RELAY_CLIENT, {"host": host, "port": str(port)})
        if self._credentials is not None:
            sign(introduction, self._credentials)
        try:
            answer = await connection.request(introduction, timeout_s=timeout_s)
            if answer.code != ResponseCode.SUCCESS:
                raise BrokerError(answer.code, answer.remark or f"no reason, by {self.address(number)}")
        except BaseException:
            connection.abort("not taken")
            raise
        return connection

    async def is_refused(self, number: int, *, timeout_s: float) -> bool:
        """Return whether the host of a member is there and nothing listens on its port."""
        try:
            connection = await self.connect(number, timeout_s=timeout_s)
        except ConnectionClosedError as error:
            return isinstance(error.__cause__, ConnectionRefusedError)
        connection.abort("probed")
        return False

    async def request(
        self, number: int, code: int, fields: Mapping[str, str] | None = None, *, timeout_s: float
    ) -> Command:
        """Ask a member on its own connection. ConnectionClosedError, RequestTimeoutError, BrokerError."""
        connection = await self.connect(number, timeout_s=timeout_s)
        try:
            answer = await connection.request(Command.request(code, fields), timeout_s=timeout_s)
        finally:
            connection.abort("asked")
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError(answer.code, answer.remark or f"no reason, by {self.address(number)}")
        return answer

    async def status(self, number: int, *, timeout_s: float) -> dict[str, Any]:
        """Return what a member says of itself; the errors of `request`."""
        answer = await self.request(number, RequestCode.GET_MEMBER_STATUS, timeout_s=timeout_s)
        try:
            return msgspec.json.decode(answer.body_bytes(), type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"the status of {self.address(number)} cannot be read: {error}"
            ) from None

    def address(self, number: int) -> str:
        """Return HOST:PORT of a member, or what is to be said of one that is not known here."""
        address = self.members.get(number)
        return "whose address is not known here" if address is None else address_text(*address)

    def _address_of(self, number: int) -> tuple[str, int]:
        """Return where a member is. ConnectionClosedError for one that is not known here."""
        address = self.members.get(number)
        if address is None:
            raise ConnectionClosedError(f"the address of member {number} is not known here")
        return address
