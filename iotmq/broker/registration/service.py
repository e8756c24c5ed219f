"""Register the broker, and check the address that clients are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from iotmq.addresses import address_text
from iotmq.broker.parts import BrokerParts
from iotmq.broker.registration.advertised_address import AdvertisedAddress
from iotmq.broker.registration.registration import QueuesFound, Registration, ToldTopics
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.topics import PERMISSION_READ, PERMISSION_WRITE
from iotmq.metrics import Metric


class RegistrationService:
    """One broker's. `port()` is the port listened on, once it is."""

    def __init__(
        self,
        parts: BrokerParts,
        *,
        port: Callable[[], int],
        takes_strangers: bool,
        runtime_info: Callable[[], dict[str, str]],
    ) -> None:
        """`takes_strangers`: unsigned requests over plain connections are answered.

        `runtime_info()` is the answer to code 28.
        """
        self._parts = parts
        self._permissions = self._permission_settings
        self._port = port
        self._takes_strangers = takes_strangers
        self._runtime_info = runtime_info
        # Both are set by start(); they need the port that is really listened on.
        self._advertised: AdvertisedAddress | None = None
        self._registration: Registration | None = None
        parts.changed_settings.add_listener(self._settings_changed)

    @property
    def _settings(self) -> BrokerSettings:
        return self._parts.settings

    @property
    def _permission_settings(self) -> tuple[bool, bool]:
        return self._settings.is_readable, self._settings.is_writable

    @property
    def address(self) -> str:
        """host:port that registries and clients are told."""
        port = self._settings.advertised_port or self._port()
        return address_text(self._settings.advertised_host, port)

    @property
    def not_ready_reason(self) -> str | None:
        """Return None while clients can find this broker, else why they cannot."""
        if self._registration is None:
            return "the broker has not started"
        return self._registration.not_ready_reason

    async def wait_registered(self, timeout_s: float) -> None:
        """Return once clients can find this broker; TimeoutError when no registry answers in time."""
        assert self._registration is not None, "start() was not called"
        await self._registration.wait_registered(timeout_s)

    def start(self, *, epoch: int = 0) -> None:
        """Register, as the master of that epoch, and go on doing so; the port is listened on."""
        self._registration = Registration(
            self._settings,
            self.told_topics,
            broker_address=self.address,
            epoch=epoch,
            role=self._parts.role,
        )
        self._registration.start()

    async def stop(self) -> None:
        """Take leave of the registries."""
        if self._registration is not None:
            await self._registration.stop()

    async def check_address(self) -> None:
        """See whether clients can have use for the address they are told."""
        settings = self._settings
        self._advertised = AdvertisedAddress(
            settings.advertised_host,
            settings.advertised_port or self._port(),
            listen_host=settings.listen_host,
            listen_port=self._port(),
            runtime_info=self._runtime_info if self._takes_strangers else None,
        )
        await self._advertised.check()

    def topics_changed(self) -> None:
        """Tell the registries as soon as possible."""
        if self._registration is not None:
            self._registration.wake()

    def when_told(self, call: Callable[[], None]) -> None:
        """Call once the registries know what holds now; at once while there are none."""
        if self._registration is None:
            call()
        else:
            self._registration.when_told(call)

    def find_queues(self, topic: str, found: QueuesFound) -> None:
        """Tell the queues of a topic at all brokers, as the registries know them."""
        if self._registration is None:
            found([])
        else:
            self._registration.find_queues(topic, found)

    def _settings_changed(self) -> None:
        before, self._permissions = self._permissions, self._permission_settings
        if before != self._permissions:
            # Registries take topics again only with another version.
            self._parts.topics.count_up()

    def told_topics(self) -> ToldTopics:
        """Return the topics as registries are told them: none allows what the broker does not."""
        mask = -1
        if not self._settings.is_readable:
            mask &= ~PERMISSION_READ
        if not self._settings.is_writable:
            mask &= ~PERMISSION_WRITE
        return ToldTopics(self._parts.topics.version, mask, self._parts.topics.configs)

    def metrics(self) -> Iterable[Metric]:
        if self._advertised is not None:
            yield from self._advertised.metrics()
        if self._registration is not None:
            yield from self._registration.metrics()
