"""Telling the registries about this broker and its topics.

Every registry has its own connection and its own pace: a dead or slow one costs the others nothing. What they
are told is encoded once for each version of the topics, off the loop when it is long.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from iotmq.addresses import address_text, parse_address
from iotmq.backoff import Backoff
from iotmq.broker.broker_role import NOT_CURRENT, BrokerRole
from iotmq.broker.registration.body import RegistrationBody, encode_registration
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.config_files import DataVersion
from iotmq.broker.tables.topics import TopicConfig
from iotmq.client.transport.routes import parse_route
from iotmq.errors import BrokerError, ConnectionClosedError, IotmqError, RequestError
from iotmq.event_loop import happens_within
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.supervised import end, supervise

logger = logging.getLogger(__name__)

_RETRY_FIRST_S = 0.5
_UNREGISTER_S = 0.5
# So many topics are encoded in less than a millisecond; more in a thread.
_TOPICS_ON_LOOP_MAX: Final = 1_000
# So long the answer to a request that changed a topic waits for registries at most.
_TOLD_S = 1.0

QueueName = tuple[str, int]
"""A broker and a queue id."""

QueuesFound = Callable[[list[QueueName] | RequestError], None]
"""Told the queues of a topic at all brokers, or why they are not known."""


class RegistryLink:
    """One registry: registers on `start`, on `wake`, and every interval. Failures are retried and counted."""

    def __init__(
        self,
        registry: tuple[str, int],
        settings: BrokerSettings,
        tls: ssl.SSLContext | None,
        *,
        registration: Callable[[], Awaitable[Command]],
        unregistration: Callable[[], Command],
        registered: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._host, self._port = registry
        self._interval_s = settings.registration_interval_s
        self._timeout_s = settings.registration_timeout_s
        self._credentials = settings.registry_credentials
        self._registration = registration
        self._unregistration = unregistration
        self._registered = registered
        self._tls = tls
        self._connection: ClientConnection | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # Told after the next registration that begins from here on, or its failure. A few at most: changes
        # share one until a registration begins.
        self._awaiting: list[Telling] = []
        self.registrations_count = 0
        self.failures_count = 0
        # True from a successful registration until the next failure.
        self.is_registered = False

    @property
    def address(self) -> str:
        return address_text(self._host, self._port)

    def start(self) -> None:
        self._task = supervise("registration", self._run)

    def wake(self) -> None:
        """Register as soon as possible: topics changed. Many calls before that make one registration."""
        self._changed.set()

    def tell(self, telling: Telling) -> None:
        """Register as soon as possible; `telling` hears when that is done, or has failed."""
        self._awaiting.append(telling)
        self._changed.set()

    def forget(self, telling: Telling) -> None:
        """Forget a caller that waits for the registry."""
        if telling in self._awaiting:
            self._awaiting.remove(telling)

    async def find_queues(self, topic: str) -> list[QueueName]:
        """Ask the registry for the queues of a topic that consumers may read, at all brokers."""
        if self._connection is None:
            raise ConnectionClosedError(f"no connection to registry {self.address}")
        request = Command.request(RequestCode.GET_ROUTE_INFO_BY_TOPIC, {"topic": topic})
        response = await self._connection.request(request, timeout_s=self._timeout_s)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return []
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark or "the registry gave no reason")
        route = parse_route(topic, response.body_bytes())
        return [(queue.broker_name, queue.queue_id) for queue in route.readable]

    async def stop(self) -> None:
        """Say goodbye, for at most half a second."""
        if self._task is not None:
            await end([self._task])
        for telling in self._begin():
            telling.told()
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
        # Brokers that lost one registry together do not come back together.
        backoff = Backoff(min_s=_RETRY_FIRST_S, max_s=self._interval_s)
        while True:
            self._changed.clear()
            begun_s = time.monotonic()
            tellings = self._begin()
            try:
                error = await self._try_to_register()
            finally:
                for telling in tellings:
                    telling.told()
            if error is not None:
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            # Changes that come one by one must not keep broker and registry busy with whole tables.
            await asyncio.sleep(min(time.monotonic() - begun_s, self._interval_s))
            await happens_within(self._changed, self._interval_s)

    def _begin(self) -> list[Telling]:
        """Return those who wait for what is told from here on."""
        tellings, self._awaiting = self._awaiting, []
        for telling in tellings:
            telling.is_begun = True
        return tellings

    async def _try_to_register(self) -> Exception | None:
        try:
            ext = await self._register()
        except Exception as error:
            # Whatever it is, the next try may succeed: without one the registry forgets this broker for good.
            self.failures_count += 1
            if self.is_registered or self.failures_count == 1:
                is_expected = isinstance(error, IotmqError | OSError)
                logger.warning(
                    "not registered with registry %s: %s",
                    self.address,
                    error,
                    exc_info=None if is_expected else error,
                )
            self.is_registered = False
            return error
        if not self.is_registered:
            logger.info("registered with registry %s", self.address)
        self.is_registered = True
        self.registrations_count += 1
        self._registered(ext)
        return None

    async def _register(self) -> Mapping[str, str]:
        connection = self._connection
        if connection is None or connection.is_closed:
            connection = self._connection = await ClientConnection.connect(
                self._host,
                self._port,
                on_lost=self._on_lost,
                timeout_s=self._timeout_s,
                credentials=self._credentials,
                tls=self._tls,
            )
        response = await connection.request(await self._registration(), timeout_s=self._timeout_s)
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark or "the registry gave no reason")
        return response.ext

    def _on_lost(self, connection: ClientConnection) -> None:
        # The registry forgets a broker whose connection ends: come back before the interval is over.
        if self._connection is connection:
            self._changed.set()


class Telling:
    """Several registries that are told the same, and who waits for that."""

    def __init__(self, links: list[RegistryLink]) -> None:
        self._links = links
        self._left = len(links)
        self._calls: list[Callable[[], None]] = []
        # True once a registry is being told: what changes from then on is for the next.
        self.is_begun = False
        self._timer = asyncio.get_running_loop().call_later(_TOLD_S, self._end)
        for link in links:
            link.tell(self)

    def add(self, call: Callable[[], None]) -> None:
        self._calls.append(call)

    def told(self) -> None:
        """Note that one more registry has been told of the change, or cannot be reached."""
        self._left -= 1
        if not self._left:
            self._end()

    def _end(self) -> None:
        """Call those who wait: every registry was told, or it takes too long."""
        self._timer.cancel()
        self.is_begun = True
        for link in self._links:
            link.forget(self)
        calls, self._calls = self._calls, []
        for call in calls:
            call()


class ToldTopics(NamedTuple):
    """Hold the topics to register; the same `version` and `perm_mask` mean the same topics."""

    version: DataVersion
    perm_mask: int
    configs: Callable[[], list[TopicConfig]]


class Registration:
    """Keeps this broker registered with all registries."""

    def __init__(
        self,
        settings: BrokerSettings,
        topics: Callable[[], ToldTopics],
        *,
        broker_address: str,
        epoch: int = 0,
        role: BrokerRole | None = None,
    ) -> None:
        """`epoch` is that of the master of a replicated broker name, 0 where there is no replication."""
        role = role or BrokerRole()
        self._epoch = epoch
        # Where slaves copy from.
        port = role.ha_port
        self._ha_address = "" if port is None else address_text(settings.advertised_host, port)
        self._heard = role.registered
        self._is_current = role.is_current
        self._identity = {
            "brokerName": settings.name,
            "brokerAddr": broker_address,
            "clusterName": settings.cluster,
            "brokerId": str(role.broker_id),
        }
        self._topics = topics
        # The version and permissions that were encoded last, or are just now, and how that came out.
        self._encoded: tuple[DataVersion, int, asyncio.Future[RegistrationBody]] | None = None
        # The change that no registry has been told yet.
        self._telling: Telling | None = None
        # Set once a registry has taken a registration.
        self._first = asyncio.Event()
        self._asking: set[asyncio.Task[None]] = set()
        tls = settings.registry_tls()
        self.links = [
            RegistryLink(
                parse_address(address),
                settings,
                tls,
                registration=self._registration,
                unregistration=self._unregistration,
                registered=self._registered,
            )
            for address in settings.registries
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
        if self._telling is None or self._telling.is_begun:
            links = [link for link in self.links if link.is_registered]
            if not links:
                call()
                return
            self._telling = Telling(links)
        self._telling.add(call)

    def find_queues(self, topic: str, found: QueuesFound) -> None:
        """Ask the registries for the queues of a topic at all brokers; none without registries."""
        if not self.links:
            found([])
            return
        task = asyncio.ensure_future(self._find_queues(topic, found))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _find_queues(self, topic: str, found: QueuesFound) -> None:
        errors = []
        for link in self.links:
            try:
                queues = await link.find_queues(topic)
            except (IotmqError, OSError) as error:
                errors.append(f"{link.address}: {error}")
            else:
                found(queues)
                return
        remark = f"no registry has said which brokers have topic {topic}: {'; '.join(errors)}"
        found(RequestError(ResponseCode.SYSTEM_ERROR, remark))

    async def wait_registered(self, timeout_s: float) -> None:
        """Return once a registry knows this broker; TimeoutError when none does in time."""
        if self.links:
            async with asyncio.timeout(timeout_s):
                await self._first.wait()

    @property
    def not_ready_reason(self) -> str | None:
        """Return None while a registry knows this broker, or none is to be told; else what is missing."""
        if not self.links or any(link.is_registered for link in self.links):
            return None
        return f"not registered with any registry ({', '.join(link.address for link in self.links)})"

    async def stop(self) -> None:
        await end(self._asking)
        await asyncio.gather(*(link.stop() for link in self.links))

    def metrics(self) -> Iterable[Metric]:
        for link in self.links:
            labels = (("registry", link.address),)
            yield from samples(
                ("iotmq_broker_registered", "1 while registered.", float(link.is_registered)),
                (
                    "iotmq_broker_registrations_total",
                    "Registrations that succeeded.",
                    link.registrations_count,
                ),
                (
                    "iotmq_broker_failed_registrations_total",
                    "Registrations that failed.",
                    link.failures_count,
                ),
                labels=labels,
            )

    def _registered(self, ext: Mapping[str, str]) -> None:
        self._first.set()
        self._heard(ext)

    async def _registration(self) -> Command:
        # Several links may wait for it, and one that stops must not take it from the others.
        body = await asyncio.shield(self._body())
        if not self._is_current():
            # A registry that knows no epochs believes who comes last.
            raise BrokerError(ResponseCode.SYSTEM_BUSY, NOT_CURRENT)
        # bodyCrc32 0: not checked, the connection already does.
        ext = {
            **self._identity,
            "haServerAddr": self._ha_address,
            "compressed": "true" if body.is_compressed else "false",
            "bodyCrc32": "0",
            # Topics that are not in it are deleted. Those that Java brokers leave out are not.
            "isWhole": "true",
        }
        return Command.request(RequestCode.REGISTER_BROKER, ext, body.data)

    def _body(self) -> asyncio.Future[RegistrationBody]:
        """Return the topics as they are now, encoded once for all links."""
        told = self._topics()
        if self._encoded is None or self._encoded[:2] != (told.version, told.perm_mask):
            configs = told.configs()
            encode = partial(
                encode_registration, told.version, configs, perm_mask=told.perm_mask, epoch=self._epoch
            )
            loop = asyncio.get_running_loop()
            if len(configs) > _TOPICS_ON_LOOP_MAX:
                future = loop.run_in_executor(None, encode)
            else:
                future = loop.create_future()
                future.set_result(encode())
            self._encoded = (told.version, told.perm_mask, future)
        elif self._encoded[2].done() and self._encoded[2].exception() is not None:
            # The same topics again; the memory or the thread there was none for may be there now.
            self._encoded = None
            return self._body()
        return self._encoded[2]

    def _unregistration(self) -> Command:
        return Command.request(RequestCode.UNREGISTER_BROKER, self._identity)
