"""Telling the registries about this broker and its topics.

Every registry has its own connection and its own pace: a dead or slow one costs the others nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable, Iterable

from iotmq.errors import BrokerError, IotmqError
from iotmq.metrics import Metric
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.supervised import supervise

logger = logging.getLogger(__name__)

_RETRY_FIRST_S = 0.5
_UNREGISTER_S = 0.5
# So long the answer to a request that changed a topic waits for registries at most.
_TOLD_S = 1.0


class RegistryLink:
    """One registry: registers on `start`, on `wake`, and every interval. Failures are retried and counted."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        interval_s: float,
        timeout_s: float,
        registration: Callable[[], Command],
        unregistration: Callable[[], Command],
        registered: Callable[[], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host = host
        self._port = port
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._registration = registration
        self._unregistration = unregistration
        self._registered = registered
        self._tls = tls
        self._connection: ClientConnection | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # Called after the next registration that begins from here on, or its failure.
        self._awaiting: list[Callable[[], None]] = []
        self.registrations_count = 0
        self.failures_count = 0
        # True from a successful registration until the next failure.
        self.is_registered = False

    @property
    def address(self) -> str:
        return f"{self._host}:{self._port}"

    def start(self) -> None:
        self._task = supervise("registration", self._run)

    def wake(self) -> None:
        """Register as soon as possible: topics changed. Many calls before that make one registration."""
        self._changed.set()

    def tell(self, told: Callable[[], None]) -> None:
        """Register as soon as possible; `told` is called when that is done, or has failed."""
        self._awaiting.append(told)
        self._changed.set()

    async def stop(self) -> None:
        """Say goodbye, for at most half a second."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        awaiting, self._awaiting = self._awaiting, []
        for told in awaiting:
            told()
        connection = self._connection
        if connection is None:
            return
        if self.is_registered and not connection.is_closed:
            try:
                await connection.request(self._unregistration(), timeout_s=_UNREGISTER_S)
            except IotmqError:
                pass
        await connection.close()

    async def _run(self) -> None:
        retry_s = _RETRY_FIRST_S
        while True:
            self._changed.clear()
            awaiting, self._awaiting = self._awaiting, []
            try:
                error = await self._try_to_register()
            finally:
                for told in awaiting:
                    told()
            if error is not None:
                # Brokers that lost one registry together do not come back together.
                await asyncio.sleep(retry_s * random.uniform(0.75, 1.25))
                retry_s = min(retry_s * 2, self._interval_s)
                continue
            retry_s = _RETRY_FIRST_S
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _try_to_register(self) -> Exception | None:
        try:
            await self._register()
        except (IotmqError, OSError) as error:
            self.failures_count += 1
            if self.is_registered or self.failures_count == 1:
                logger.warning("not registered with registry %s: %s", self.address, error)
            self.is_registered = False
            return error
        if not self.is_registered:
            logger.info("registered with registry %s", self.address)
        self.is_registered = True
        self.registrations_count += 1
        self._registered()
        return None

    async def _register(self) -> None:
        connection = self._connection
        if connection is None or connection.is_closed:
            connection = self._connection = await ClientConnection.connect(
                self._host, self._port, on_lost=self._on_lost, timeout_s=self._timeout_s, tls=self._tls
            )
        response = await connection.request(self._registration(), timeout_s=self._timeout_s)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark or "the registry gave no reason")

    def _on_lost(self, connection: ClientConnection) -> None:
        # The registry forgets a broker whose connection ends: come back before the interval is over.
        if self._connection is connection:
            self._changed.set()


class _Telling:
    """Several registries that are told the same."""

    def __init__(self, links: list[RegistryLink], call: Callable[[], None]) -> None:
        self._left = len(links)
        self._call = call
        self._timer = asyncio.get_running_loop().call_later(_TOLD_S, self._end)
        for link in links:
            link.tell(self._one_told)

    def _one_told(self) -> None:
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        """All know it, or it takes too long."""
        self._timer.cancel()
        call, self._call = self._call, _nothing
        call()


class Registration:
    """Keeps this broker registered with all registries."""

    def __init__(
        self,
        registries: Iterable[tuple[str, int]],
        *,
        cluster: str,
        broker_name: str,
        broker_id: int,
        broker_address: str,
        ha_address: str,
        encode_topics: Callable[[], bytes],
        interval_s: float,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`encode_topics` gives the JSON of the topic table: DataVersion and all topics."""
        self._identity = {
            "brokerName": broker_name,
            "brokerAddr": broker_address,
            "clusterName": cluster,
            "brokerId": str(broker_id),
        }
        self._ha_address = ha_address
        self._encode_topics = encode_topics
        # Set once a registry has taken a registration.
        self._first = asyncio.Event()
        self.links = [
            RegistryLink(
                host,
                port,
                interval_s=interval_s,
                timeout_s=timeout_s,
                tls=tls,
                registration=self._registration,
                unregistration=self._unregistration,
                registered=self._first.set,
            )
            for host, port in registries
        ]

    def start(self) -> None:
        for link in self.links:
            link.start()

    def wake(self) -> None:
        """Register again at once, everywhere."""
        for link in self.links:
            link.wake()

    def when_told(self, call: Callable[[], None]) -> None:
        """Call once every registry that knows this broker has been told what holds now; at once without any.

        One that is slow is waited for a second at most.
        """
        links = [link for link in self.links if link.is_registered]
        if links:
            _Telling(links, call)
        else:
            call()

    async def wait_registered(self, timeout_s: float) -> None:
        """Return once a registry knows this broker; TimeoutError when none does in time."""
        if self.links:
            async with asyncio.timeout(timeout_s):
                await self._first.wait()

    @property
    def not_ready_reason(self) -> str | None:
        """None while a registry knows this broker, or none is to be told; else what is missing."""
        if not self.links or any(link.is_registered for link in self.links):
            return None
        return f"not registered with any registry ({', '.join(link.address for link in self.links)})"

    async def stop(self) -> None:
        await asyncio.gather(*(link.stop() for link in self.links))

    def metrics(self) -> Iterable[Metric]:
        for link in self.links:
            labels = (("registry", link.address),)
            yield Metric(
                "iotmq_broker_registered", "gauge", "1 while registered.", float(link.is_registered), labels
            )
            yield Metric(
                "iotmq_broker_registrations_total",
                "counter",
                "Registrations that succeeded.",
                link.registrations_count,
                labels,
            )
            yield Metric(
                "iotmq_broker_failed_registrations_total",
                "counter",
                "Registrations that failed.",
                link.failures_count,
                labels,
            )

    def _registration(self) -> Command:
        body = b'{"filterServerList":[],"topicConfigSerializeWrapper":%s}' % self._encode_topics()
        # bodyCrc32 0: not checked, the connection already does.
        ext = {**self._identity, "haServerAddr": self._ha_address, "compressed": "false", "bodyCrc32": "0"}
        return Command.request(RequestCode.REGISTER_BROKER, ext, body)

    def _unregistration(self) -> Command:
        return Command.request(RequestCode.UNREGISTER_BROKER, self._identity)


def _nothing() -> None:
    pass


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[ipv6]:port`."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
