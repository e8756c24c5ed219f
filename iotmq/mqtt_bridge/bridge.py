"""One bridge: its connections to the other broker, the queues that each of them sends, and what it tells of
it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from iotmq.backoff import Backoff
from iotmq.client.transport.client import IotmqClient
from iotmq.client.transport.routes import MessageQueue
from iotmq.clock import Clock
from iotmq.errors import ConfigError, IotmqError
from iotmq.metrics import Metric, samples
from iotmq.mqtt.client.server_packets import Answers, Connack, Receipt, ServerDisconnect
from iotmq.mqtt.codec import bridge_names
from iotmq.mqtt.codec.packets import PROTOCOL_LEVEL_3_1_1, PROTOCOL_LEVEL_5, Connect
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.codec.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED, SEND_RETAINED_WHEN_NEW
from iotmq.mqtt.reason_codes import FIRST_ERROR, KEEP_ALIVE_TIMEOUT, reason_text
from iotmq.mqtt.server.connection_settings import ConnectionSettings
from iotmq.mqtt.topics.topics import is_shared
from iotmq.mqtt_bridge.connection import (
    BridgeConnection,
    BridgeCounts,
    BridgeIngress,
    RefusingSink,
    SentTopics,
)
from iotmq.mqtt_bridge.identity import BridgeIdentity
from iotmq.mqtt_bridge.queue_feed import QueueFeed
from iotmq.mqtt_bridge.settings import BridgeSettings
from iotmq.mqtt_bridge.topic_maps import ReceiveMap, SendMap
from iotmq.mqtt_client.address import Address, parse_url
from iotmq.mqtt_client.links import open_link
from iotmq.mqtt_client.tls import TlsOptions, tls_context
from iotmq.mqtt_front.connection.device import Device, DeviceGroup
from iotmq.mqtt_front.connection.replay_pace import PaceLimits
from iotmq.supervised import end, supervise, surviving

_log: Final = logging.getLogger("iotmq.bridges")

_TICK_S: Final = 1.0
_COMMIT_S: Final = 1.0
_ROUTES_S: Final = 5.0
_STOP_S: Final = 0.5
# Records that are looked at before another queue has its turn, and before the loop has.
_RECORDS_AT_ONCE: Final = 512
_RECORDS_PER_TURN: Final = 4_096
# Refusals that have a line in the log, in a minute.
_REFUSALS_TOLD: Final = 10
_REFUSED_VERSION: Final = 1
# With these the other broker says that a PUBLISH of ours was wrong, and that it would be so again: its topic,
# size, format, retain flag or QoS. Other reasons may be about other packets, or be over soon.
_PACKET_FAULTS: Final = frozenset((0x90, 0x95, 0x99, 0x9A, 0x9B))
# Connections in a row that end so, without an acknowledgement, before messages go one at a time; and before
# the one that goes then is given up.
_FAULTS_BEFORE_ONE: Final = 2
_FAULTS_BEFORE_NONE: Final = 4


class _Lost(NamedTuple):
    why: str


class _Way:
    """One connection, made again and again, and the queues it sends."""

    def __init__(self, bridge: Bridge, number: int) -> None:
        self.bridge = bridge
        self.number = number
        self.feeds: list[QueueFeed] = []
        self.connection: BridgeConnection | None = None
        """None until CONNACK has come, and from the end of the connection on."""
        self.opening: BridgeConnection | None = None
        self.ended = asyncio.Event()
        self.answer: asyncio.Future[Connack] | None = None
        self.uses_bridge_bit = bridge.settings.bridge_bit and bridge.settings.version == "3.1.1"
        self.pinged_s: float | None = None
        """When the other broker was asked whether it is there, and has not answered; None when it was not."""
        self.said_s = 0.0
        self.is_at_fault = False
        """The other broker has ended the connection because of a packet of ours."""
        self.faults = 0
        """Connections in a row that ended so, and on which nothing was acknowledged."""
        self.is_pumping = False
        self.is_pump_due = False
        self.why = "is not connected yet"

    @property
    def client_id(self) -> str:
        return self.bridge.client_id + (f"-{self.number + 1}" if self.number else "")

    @property
    def receives(self) -> bool:
        return self.number == 0 and bool(self.bridge.settings.receive)


class Bridge:
    """A bridge between this gateway and another broker; `start` and `stop`."""

    def __init__(
        self,
        settings: BridgeSettings,
        client: IotmqClient,
        topics: Callable[[], Sequence[str]],
        *,
        gateway: str,
        sink: tuple[BridgeIngress | RefusingSink, BridgeCounts],
        clock: Clock,
    ) -> None:
        """`topics` returns the broker topics to send; `sink` takes what is received, counted there.

        Raises ConfigError, and ClientError for files of TLS that cannot be used.
        """
        self.settings = settings
        self.name = settings.name
        self.client_id = settings.client_id or f"{gateway}-{settings.name}"
        self.group_name = f"BRIDGE_{settings.name}"
        self._client = client
        self._clock = clock
        self._topics = topics
        self._gateway = gateway
        where = f"bridges[{settings.name}]"
        self._sent_topics = SentTopics(SendMap(settings.send, gateway=gateway, where=where).find)
        self._address, self._user_name, self._password = _address(settings, where)
        self._context = tls_context(_tls(settings)) if self._address.is_secure else None
        self._identity = BridgeIdentity(
            gateway=gateway,
            mark=f"bridge:{settings.name}",
            adds_properties=settings.properties,
            forwards_bridged=settings.forwards_bridged,
            drops_qos0_offline=settings.drops_qos0_offline,
            takes_any_record=bool(settings.broker_topics),
        )
        self._connection_settings = ConnectionSettings(
            packet_bytes_max=settings.packet_bytes_max, in_flight_max=settings.in_flight_max
        )
        self._one_at_a_time = ConnectionSettings(packet_bytes_max=settings.packet_bytes_max, in_flight_max=1)
        self._pace = PaceLimits(settings.messages_per_s, settings.bytes_per_s).begin()
        self._sink, self.counts = sink
        self._group: DeviceGroup | None = None
        self._feeds: dict[MessageQueue, QueueFeed] = {}
        self._ways: list[_Way] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._reconnects = 0
        self._refusals_told = 0

    # The role ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to connect; it is no error when the other broker is not there."""
        loop = asyncio.get_running_loop()
        self._group = DeviceGroup(
            loop, self._sink, self, now_s=self._clock.monotonic_s() + _TICK_S, clock=self._clock
        )
        if isinstance(self._sink, BridgeIngress):
            self._sink.group = self._group
        count = self.settings.connections if self.settings.send else 1
        self._ways = [_Way(self, number) for number in range(count)]
        self._tasks = [
            supervise("the connection of a bridge", partial(self._keep, way)) for way in self._ways
        ]
        self._tasks.append(supervise("the time of bridges", self._tick_forever))
        if self.settings.send:
            self._tasks.append(supervise("the queues of a bridge", self._look_for_queues))
            self._tasks.append(supervise("the offsets of a bridge", self._commit_forever))

    async def stop(self) -> None:
        """Say good-bye, and have the broker keep how far the other one is."""
        self._is_stopping = True
        await end(self._tasks)
        for way in self._ways:
            connection = way.connection or way.opening
            if connection is not None:
                connection.leave()
        for feed in self._feeds.values():
            await feed.stop()
        with surviving("the last offsets of a bridge"):
            try:
                async with asyncio.timeout(_STOP_S):
                    await self._commit()
            except TimeoutError:
                _log.warning(
                    "the offsets of a bridge are not kept: messages come twice", extra={"bridge": self.name}
                )
        for way in self._ways:
            connection = way.connection or way.opening
            if connection is not None:
                connection.abort()

    # The connections --------------------------------------------------------------------------------------

    async def _keep(self, way: _Way) -> None:
        """Connect, and again whenever the connection is lost."""
        settings = self.settings
        pauses = Backoff(min_s=settings.reconnect_min_s, max_s=settings.reconnect_max_s)
        while True:
            before = self.counts.acknowledged + self.counts.received
            lost = await self._connect(way)
            if lost is None:
                if way.number == 0:
                    _log.info("bridge connected", extra={"bridge": self.name, "address": str(self._address)})
                await way.ended.wait()
                lost = _Lost(way.why)
                self._reconnects += 1
            self._learn(way)
            self._gone(way)
            for feed in way.feeds:
                await feed.rewind()
            if self.counts.acknowledged + self.counts.received != before:
                pauses.reset()
            pause_s = pauses.next_s()
            _log.warning(
                "bridge is not connected",
                extra={
                    "bridge": self.name,
                    "connection": way.number + 1,
                    "address": str(self._address),
                    "detail": lost.why,
                    "again_in_s": round(pause_s, 1),
                },
            )
            await asyncio.sleep(pause_s)

    def _learn(self, way: _Way) -> None:
        """Find the message that the other broker ends every connection for, and give it up."""
        connection = way.connection
        if connection is None:
            return
        if connection.acknowledged or not way.is_at_fault:
            way.faults = 0
        else:
            way.faults += 1
        way.is_at_fault = False
        if way.faults >= _FAULTS_BEFORE_NONE:
            way.faults = 0
            place = connection.give_up_oldest()
            _log.error(
                "a message is left out, because the other broker ends the connection for it",
                extra={"bridge": self.name, "place": place, "detail": way.why},
            )

    def _gone(self, way: _Way) -> None:
        connection = way.connection or way.opening
        way.connection = way.opening = way.answer = None
        if connection is not None:
            connection.abort()

    async def _connect(self, way: _Way) -> _Lost | None:
        """Connect once; None when the other broker has accepted."""
        assert self._group is not None
        way.ended.clear()
        way.pinged_s = None
        settings = self._connection_settings if way.faults < _FAULTS_BEFORE_ONE else self._one_at_a_time
        connection = way.opening = BridgeConnection(
            self._group, settings, self._identity, self._sent_topics, self.counts
        )
        way.answer = asyncio.get_running_loop().create_future()
        connection.client_id = self._identity.mark
        try:
            async with asyncio.timeout(self.settings.connect_timeout_s):
                await open_link(self._address, connection, self._context)
                connack = await way.answer
        except TimeoutError:
            return _Lost(f"no CONNACK within {self.settings.connect_timeout_s:g} s")
        except OSError as error:
            return _Lost(error.strerror or str(error) or type(error).__name__)
        except IotmqError as error:
            return _Lost(str(error))
        if connack.code:
            if way.uses_bridge_bit and connack.code == _REFUSED_VERSION:
                way.uses_bridge_bit = False
                return await self._connect_plainly(way)
            return _Lost(f"refused: {_connack_text(connack.code, self.settings.version)}")
        if connack.properties.qos_max == 0 and any(rule.qos_max for rule in self.settings.send):
            return _Lost("the other broker takes no QoS 1")
        self._opened(way, connection)
        return None

    async def _connect_plainly(self, way: _Way) -> _Lost | None:
        """Connect as any client, because the other broker does not know the bit of bridges."""
        self._gone(way)
        return await self._connect(way)

    def _opened(self, way: _Way, connection: BridgeConnection) -> None:
        way.connection, way.opening = connection, None
        way.why = ""
        way.said_s = self._clock.monotonic_s()
        if way.receives:
            options = SEND_RETAINED_WHEN_NEW << 4 | RETAIN_AS_PUBLISHED
            is_v5 = self.settings.version == "5"
            connection.subscribe(
                [
                    (
                        rule.filter,
                        rule.qos | (options | (0 if is_shared(rule.filter) else NO_LOCAL) if is_v5 else 0),
                    )
                    for rule in self.settings.receive
                ]
            )
        self._pump(way)

    def _connect_packet(self, way: _Way) -> Connect:
        settings = self.settings
        is_v5 = settings.version == "5"
        properties = NO_PROPERTIES
        if is_v5:
            given = self._connection_settings
            properties = Properties(
                session_expiry_s=settings.session_expiry_s if way.receives else None,
                receive_max=given.receive_max,
                packet_bytes_max=given.packet_bytes_max,
                topic_alias_max=given.topic_aliases_max or None,
                user_properties=((bridge_names.GATEWAY_PROPERTY, self._gateway),),
            )
        return Connect(
            way.client_id,
            not way.receives,
            settings.keep_alive_s,
            None,
            self._user_name,
            self._password,
            PROTOCOL_LEVEL_5 if is_v5 else PROTOCOL_LEVEL_3_1_1,
            properties,
            is_bridge=way.uses_bridge_bit,
        )

    # What connections say (device.DeviceHandler) ----------------------------------------------------------

    def device_connected(self, device: Device) -> None:
        """The transport is there."""
        way = self._way_of(device)
        if way is not None and way.opening is not None:
            way.opening.begin(self._connect_packet(way))

    def device_events(self, device: Device, events: Sequence[object]) -> None:
        """CONNACK, SUBACK, DISCONNECT, or a PUBACK that refuses has come."""
        way = self._way_of(device)
        if way is None:
            return
        for event in events:
            if isinstance(event, Connack):
                if way.answer is not None and not way.answer.done():
                    way.answer.set_result(event)
            elif isinstance(event, Answers):
                self._subscribed(way, event)
            elif isinstance(event, ServerDisconnect):
                way.is_at_fault = event.code in _PACKET_FAULTS
                way.why = f"the other broker ends it: {reason_text(event.code)}"
                if event.properties.reason_string:
                    way.why += f" ({event.properties.reason_string})"
            elif isinstance(event, Receipt):
                self._refused(event)

    def device_lost(self, device: Device) -> None:
        """The transport is gone."""
        way = self._way_of(device)
        if way is None:
            return
        way.why = way.why or device.close_detail or "the other broker has closed it"
        if way.answer is not None and not way.answer.done():
            way.answer.set_exception(IotmqError(way.why))
        way.ended.set()

    def _way_of(self, device: Device) -> _Way | None:
        return next((way for way in self._ways if device in (way.connection, way.opening)), None)

    def _subscribed(self, way: _Way, answers: Answers) -> None:
        for rule, code in zip(self.settings.receive, answers.codes, strict=False):
            if code >= FIRST_ERROR:
                _log.error(
                    "a bridge may not subscribe",
                    extra={"bridge": self.name, "filter": rule.filter, "detail": reason_text(code)},
                )

    def _refused(self, receipt: Receipt) -> None:
        self._refusals_told += 1
        if self._refusals_told <= _REFUSALS_TOLD:
            _log.warning(
                "a message of a bridge is refused, and left out when that is final",
                extra={
                    "bridge": self.name,
                    "detail": reason_text(receipt.code),
                    "reason": receipt.properties.reason_string or "",
                },
            )

    # Sending ----------------------------------------------------------------------------------------------

    def _wake(self, way: _Way, feed: QueueFeed) -> None:
        if way.connection is not None and not way.is_pump_due:
            self._pump(way)

    def _pump(self, way: _Way) -> None:
        """Send what there is and what there is room for, for a part of a turn."""
        connection = way.connection
        if connection is None or way.is_pumping:
            return
        way.is_pumping = True
        try:
            pause_s = self._send(way, connection)
        finally:
            way.is_pumping = False
        if pause_s is not None and not way.is_pump_due:
            way.is_pump_due = True
            loop = asyncio.get_running_loop()
            if pause_s:
                loop.call_later(pause_s, self._pump_again, way)
            else:
                loop.call_soon(self._pump_again, way)

    def _pump_again(self, way: _Way) -> None:
        way.is_pump_due = False
        if not self._is_stopping:
            self._pump(way)

    def _send(self, way: _Way, connection: BridgeConnection) -> float | None:
        """Send; returns after which time to go on, None when that is told by others."""
        left = _RECORDS_PER_TURN
        pace = self._pace
        while left > 0:
            feeds = [feed for feed in way.feeds if feed.has_records]
            if not feeds:
                return None
            for feed in feeds:
                if not connection.can_send:
                    connection.call_when_room(partial(self._pump, way))
                    return None
                count_max = _RECORDS_AT_ONCE
                if pace is not None:
                    pause_s = pace.pause_s(self._clock.monotonic_s())
                    if pause_s:
                        return pause_s
                    count_max = min(count_max, max(1, self.settings.messages_per_s // 100 or count_max))
                records, at = feed.waiting
                assert feed.progress is not None
                sent, sent_bytes = self.counts.sent, self.counts.sent_bytes
                feed.sent_up_to(connection.send_records(feed.progress, records, at, count_max))
                if pace is not None:
                    count, size = self.counts.sent - sent, self.counts.sent_bytes - sent_bytes
                    pace.count(size, self._clock.monotonic_s(), count=count)
                left -= count_max
        return 0.0

    async def _look_for_queues(self) -> None:
        """Find the queues of the topics, now and when they change."""
        # Topic -> when its queues were looked for before; None for those known from the beginning.
        since: dict[str, int | None] = {}
        before_ms: int | None = None
        while True:
            now_ms = self._clock.now_ms()
            for topic in self._topics():
                since_ms = since.setdefault(topic, before_ms)
                try:
                    route = await self._client.routes.find_for_reading(topic, timeout_s=1.0)
                except IotmqError as error:
                    _log.debug("a bridge waits for a topic", extra={"topic": topic, "detail": str(error)})
                    since[topic] = now_ms if since_ms is None else since_ms
                    continue
                for queue in route.readable:
                    if queue not in self._feeds:
                        self._add_queue(queue, since_ms)
                # A queue that the topic gets from now on is a new one.
                since[topic] = now_ms
            for feed in self._feeds.values():
                try:
                    await feed.look_at_end()
                except IotmqError as error:
                    _log.debug("the end of a queue is not known", extra={"detail": str(error)})
            before_ms = now_ms
            await asyncio.sleep(_ROUTES_S)

    def _add_queue(self, queue: MessageQueue, since_ms: int | None) -> None:
        # A queue stays with its connection, so that its messages keep their order.
        way = self._ways[len(self._feeds) % len(self._ways)]
        feed = QueueFeed(
            self._client,
            self.group_name,
            queue,
            begins_first=self.settings.begin == "first",
            since_ms=since_ms,
            wake=partial(self._wake, way),
        )
        self._feeds[queue] = feed
        way.feeds.append(feed)

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(_COMMIT_S)
            await self._commit()

    async def _commit(self) -> None:
        for feed in tuple(self._feeds.values()):
            try:
                await feed.commit()
            except IotmqError as error:
                _log.debug("an offset of a bridge is not kept yet", extra={"detail": str(error)})

    # Time -------------------------------------------------------------------------------------------------

    async def _tick_forever(self) -> None:
        seconds = 0
        while True:
            await asyncio.sleep(_TICK_S)
            assert self._group is not None
            now_s = self._clock.monotonic_s()
            self._group.now_s = now_s + _TICK_S
            seconds += 1
            if seconds % 60 == 0:
                self._refusals_told = 0
            for way in self._ways:
                if way.connection is not None:
                    self._look_after(way, way.connection, now_s)

    def _look_after(self, way: _Way, connection: BridgeConnection, now_s: float) -> None:
        """Ask a silent broker whether it is there, and give it up when it does not say so."""
        assert self._group is not None
        if self._group.is_congested:
            # It is us who do not read: its answer waits, and what was not stored would come once more.
            way.pinged_s = None
        is_heard = way.pinged_s is not None and connection.last_received_s > way.pinged_s + _TICK_S
        if way.pinged_s is None or is_heard:
            way.pinged_s = None
            if now_s - way.said_s >= connection.keep_alive_s / 2:
                way.said_s = way.pinged_s = now_s
                connection.ping()
        elif now_s - way.pinged_s > self.settings.connect_timeout_s + _TICK_S:
            way.why = "the other broker does not answer"
            connection.close(KEEP_ALIVE_TIMEOUT)
            connection.abort()

    # Numbers ----------------------------------------------------------------------------------------------

    @property
    def connected_count(self) -> int:
        return sum(way.connection is not None for way in self._ways)

    @property
    def lag(self) -> int:
        """Messages that are not at the other broker."""
        return sum(feed.lag for feed in self._feeds.values())

    @property
    def age_s(self) -> float:
        """Age of the oldest of them."""
        found = [
            oldest_ms
            for way in self._ways
            if way.connection is not None and (oldest_ms := way.connection.oldest_ms) is not None
        ]
        found += [oldest_ms for feed in self._feeds.values() if (oldest_ms := feed.oldest_ms) is not None]
        return max((self._clock.now_ms() - min(found)) / 1000, 0.0) if found else 0.0

    @property
    def not_ready_reason(self) -> str | None:
        """Return why the alarm is on; None when it is off."""
        alarm_s = self.settings.alarm_age_s
        if not alarm_s or (age_s := self.age_s) < alarm_s:
            return None
        return f"{self.lag} messages of bridge {self.name} wait, the oldest for {age_s:.0f} s"

    def metrics(self) -> Iterable[Metric]:
        counts = self.counts
        yield from samples(
            ("connections", "Connections to the other broker that are open.", self.connected_count),
            ("connections_wanted", "Connections to the other broker that there should be.", len(self._ways)),
            ("reconnects_total", "Connections to the other broker that were lost.", self._reconnects),
            ("lag_messages", "Messages of the log that the other broker has not acknowledged.", self.lag),
            ("lag_seconds", "Age of the oldest of these messages.", self.age_s),
            (
                "alarm",
                "1 while the oldest is older than alarm_age_s.",
                float(self.not_ready_reason is not None),
            ),
            ("sent_total", "Messages sent to the other broker, repeats included.", counts.sent),
            ("sent_bytes_total", "Bytes of their records.", counts.sent_bytes),
            ("acknowledged_total", "Messages that the other broker has acknowledged.", counts.acknowledged),
            ("refused_total", "Of these, messages that it has refused for good.", counts.refused),
            ("received_total", "Messages received from the other broker.", counts.received),
            ("looped_total", "Messages left out, or not taken, because they have been there.", counts.looped),
            ("skipped_total", "Records that no rule of send is for.", counts.skipped),
            ("expired_total", "Messages whose time was over before they were sent.", counts.expired),
            ("dropped_total", "Messages of QoS 0 left out after an outage.", counts.dropped),
            (
                "too_large_total",
                "Messages left out that the other broker takes no packet for.",
                counts.too_large,
            ),
            (
                "lost_total",
                "Messages that the log had deleted before they were sent.",
                sum(feed.lost for feed in self._feeds.values()),
            ),
            prefix="iotmq_bridge_",
            labels=(("bridge", self.name),),
        )


def check_bridge(settings: BridgeSettings) -> None:
    """Raise ConfigError for settings that no bridge can have."""
    where = f"bridges[{settings.name}]"
    _address(settings, where)
    SendMap(settings.send, gateway="gateway", where=where)
    ReceiveMap(settings.receive, gateway="gateway", where=where)


def _address(settings: BridgeSettings, where: str) -> tuple[Address, str | None, bytes | None]:
    try:
        parsed = parse_url(settings.address)
    except IotmqError as error:
        raise ConfigError(
            f"{where}.address: {error}; a bridge takes mqtt, mqtts and unix, without a topic"
        ) from None
    if parsed.user_name or parsed.password or parsed.topic:
        raise ConfigError(
            f"{where}.address: user_name and password are settings of their own, and there is no topic"
        )
    if parsed.address.scheme in ("ws", "wss"):
        raise ConfigError(f"{where}.address: a bridge connects by mqtt, mqtts or unix")
    if not settings.send and not settings.receive:
        raise ConfigError(f"{where}: a bridge has send, receive or both")
    if settings.version == "3.1.1" and settings.password and not settings.user_name:
        raise ConfigError(f"{where}.password: before MQTT 5 a password needs a user_name")
    if settings.version == "3.1.1" and settings.receive and settings.send and settings.connections > 1:
        raise ConfigError(
            f"{where}.connections: with MQTT 3.1.1, send and receive need one connection, because the "
            "other broker would send back on the first what comes on the others"
        )
    return (
        parsed.address,
        settings.user_name or None,
        settings.password.encode() if settings.password else None,
    )


def _tls(settings: BridgeSettings) -> TlsOptions:
    return TlsOptions(
        ca_file=settings.tls_ca_file or None,
        certificate_file=settings.tls_certificate_file or None,
        key_file=settings.tls_key_file or None,
        is_unverified=not settings.tls_is_verified,
    )


def _connack_text(code: int, version: str) -> str:
    return reason_text(code) if version == "5" else f"return code {code}"
