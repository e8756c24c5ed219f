"""One bridge: its connections to the other broker, the queues that each of them sends, and what it tells of
it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from iotmq.backoff import Backoff
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MessageQueue
from iotmq.clock import Clock
from iotmq.errors import IotmqError
from iotmq.metrics import Metric, samples
from iotmq.mqtt.client.server_packets import Answers, Connack, ServerDisconnect
from iotmq.mqtt.codec import bridge_names
from iotmq.mqtt.codec.packets import PROTOCOL_LEVEL_3_1_1, PROTOCOL_LEVEL_5, Connect
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.codec.subscription_options import NO_LOCAL, RETAIN_AS_PUBLISHED, SEND_RETAINED_WHEN_NEW
from iotmq.mqtt.reason_codes import CONNECTION_LOST, FIRST_ERROR, KEEP_ALIVE_TIMEOUT, reason_text
from iotmq.mqtt.server.connection_settings import ConnectionSettings
from iotmq.mqtt.topics.topics import is_shared
from iotmq.mqtt_bridge.checks import address_of, check_bridge, echo_of, tls_of
from iotmq.mqtt_bridge.connection import (
    BridgeConnection,
    BridgeCounts,
    BridgeIngress,
    RefusingSink,
    SentTopics,
)
from iotmq.mqtt_bridge.count_metrics import count_metrics
from iotmq.mqtt_bridge.identity import BridgeIdentity
from iotmq.mqtt_bridge.queue_feed import QueueFeed
from iotmq.mqtt_bridge.refusals import Refusal
from iotmq.mqtt_bridge.settings import BridgeSettings, ReceiveRuleSettings
from iotmq.mqtt_bridge.topic_maps import SendMap
from iotmq.mqtt_bridge.wakes import Wakes
from iotmq.mqtt_client.links import open_link
from iotmq.mqtt_client.tls import tls_context
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
# Messages that are refused or left out, and have a line in the log, in a minute; all are counted.
_LEFT_OUT_TOLD: Final = 10
_REFUSED_VERSION: Final = 1
# With these the other broker says that a PUBLISH of ours was wrong, and that it would be so again: its topic,
# size, format, retain flag or QoS.
_PACKET_FAULTS: Final = frozenset((0x90, 0x95, 0x99, 0x9A, 0x9B))
# With these it may mean a message, or something else. Other reasons are about time, load or other packets.
_MAYBE_FAULTS: Final = frozenset((0x80, 0x81, 0x82, 0x83, 0x87))
# Connections in a row that end with the same message on its way before it is left out: when the other
# broker has said that it is the message, and when it has just closed them.
_TRIES_TOLD: Final = 4
_TRIES_CLOSED: Final = 8
# The tries double with each message that is left out while none is acknowledged, so often at most: then it
# may be the other broker that is not well.
_DOUBLED_MAX: Final = 2
# A filter that was refused is asked for again after so long: permissions change.
_SUBSCRIBE_AGAIN_S: Final = 60


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
        self.wakes: Wakes | None = None
        self.ended = asyncio.Event()
        self.answer: asyncio.Future[Connack] | None = None
        self.uses_bridge_bit = bridge.settings.bridge_bit and bridge.settings.version == "3.1.1"
        self.pinged_s: float | None = None
        """When the other broker was asked whether it is there, and has not answered; None when it was not."""
        self.said_s = 0.0
        self.tries_max = 0
        """How often a message may end the connection so before it is left out; 0: it was no message."""
        self.left_out_in_row = 0
        """Messages that were, while none was acknowledged."""
        self.received: list[int] = []
        """Packet ids of QoS 2 that the connection before has stored, and the other broker not released."""
        self.asked: list[ReceiveRuleSettings] = []
        """Rules whose filters wait for SUBACK."""
        self.refused: dict[str, str] = {}
        """Filters that the other broker has refused, with its reason."""
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
        client: ClientTransport,
        topics: Callable[[], Sequence[str]],
        *,
        gateway: str,
        sink: tuple[BridgeIngress | RefusingSink, BridgeCounts],
        clock: Clock,
    ) -> None:
        """`topics` returns the broker topics to send; `sink` takes what is received, counted there.

        Raises ConfigError, and ClientError for files of TLS that cannot be used.
        """
        check_bridge(settings)
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
        self._address, self._user_name, self._password = address_of(settings, where)
        self._context = tls_context(tls_of(settings)) if self._address.is_secure else None
        self._forwards_bridged = settings.version == "5"
        if settings.forwards_bridged is not None:
            self._forwards_bridged = settings.forwards_bridged
        self._identity = BridgeIdentity(
            gateway=gateway,
            mark=f"bridge:{settings.name}",
            adds_properties=settings.properties,
            forwards_bridged=self._forwards_bridged,
            drops_qos0_offline=settings.drops_qos0_offline,
            takes_any_record=bool(settings.broker_topics),
        )
        self._connection_settings = ConnectionSettings(
            packet_bytes_max=settings.packet_bytes_max, in_flight_max=settings.in_flight_max
        )
        self._pace = PaceLimits(settings.messages_per_s, settings.bytes_per_s).begin()
        self._sink, self.counts = sink
        self._group: DeviceGroup | None = None
        self._feeds: dict[MessageQueue, QueueFeed] = {}
        self._ways: list[_Way] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._reconnects = 0
        self._left_out_told = 0
        self._tells_not_forwarded = settings.forwards_bridged is None

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
            await self._settle(way)
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
        """Find the message that the other broker ends every connection for, and leave it out."""
        connection = way.connection
        if connection is None:
            return
        if connection.acknowledged:
            way.left_out_in_row = 0
        tries_max, way.tries_max = way.tries_max, 0
        if not tries_max:
            return
        place = connection.blame(tries_max << min(way.left_out_in_row, _DOUBLED_MAX))
        if place is not None:
            way.left_out_in_row += 1
            _log.error(
                "a message is left out, because the other broker does not take it",
                extra={"bridge": self.name, "place": place, "detail": way.why},
            )

    async def _settle(self, way: _Way) -> None:
        """Wait until what the connection has received is stored: the next one is not to store it again."""
        connection = way.connection
        if connection is None or not isinstance(self._sink, BridgeIngress):
            return
        settled = asyncio.Event()
        if not self._sink.when_settled(connection, settled.set):
            await settled.wait()
        way.received = connection.received

    def _gone(self, way: _Way) -> None:
        connection = way.connection or way.opening
        way.connection = way.opening = way.answer = None
        if way.wakes is not None:
            way.wakes.end()
            way.wakes = None
        if connection is not None:
            connection.abort()

    async def _connect(self, way: _Way) -> _Lost | None:
        """Connect once; None when the other broker has accepted."""
        assert self._group is not None
        way.ended.clear()
        way.pinged_s = None
        connection = way.opening = BridgeConnection(
            self._group, self._connection_settings, self._identity, self._sent_topics, self.counts
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
                echo = echo_of(self.settings, gateway=self._gateway)
                if echo is not None:
                    return _Lost(f"the other broker does not know the bit of bridges, and {echo}")
                way.uses_bridge_bit = False
                return await self._connect_plainly(way)
            return _Lost(f"refused: {_connack_text(connack.code, self.settings.version)}")
        qos_max = connack.properties.qos_max
        if qos_max is not None and any(rule.qos_max > qos_max for rule in self.settings.send):
            # It was a connection: the session is another one now, or has brought something already.
            way.connection, way.opening = connection, None
            connection.leave()
            return _Lost(f"the other broker takes no QoS above {qos_max}; see qos_max of send")
        self._opened(way, connection)
        return None

    async def _connect_plainly(self, way: _Way) -> _Lost | None:
        """Connect as any client, because the other broker does not know the bit of bridges."""
        self._gone(way)
        return await self._connect(way)

    def _opened(self, way: _Way, connection: BridgeConnection) -> None:
        way.connection, way.opening = connection, None
        way.why = ""
        if connection.transport is not None:
            way.wakes = Wakes(connection.transport, asyncio.get_running_loop())
        way.said_s = self._clock.monotonic_s()
        if way.receives:
            self._subscribe(way, connection, self.settings.receive)
        self._pump(way)

    def _subscribe(
        self, way: _Way, connection: BridgeConnection, rules: Iterable[ReceiveRuleSettings]
    ) -> None:
        options = SEND_RETAINED_WHEN_NEW << 4 | RETAIN_AS_PUBLISHED
        is_v5 = self.settings.version == "5"
        way.asked = list(rules)
        connection.subscribe(
            [
                (
                    rule.filter,
                    rule.qos | (options | (0 if is_shared(rule.filter) else NO_LOCAL) if is_v5 else 0),
                )
                for rule in way.asked
            ]
        )

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
            is_careful = any(feed.progress is not None and feed.progress.is_suspect for feed in way.feeds)
            way.opening.begin(self._connect_packet(way), way.received, is_careful)

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
                if event.code in _PACKET_FAULTS:
                    way.tries_max = _TRIES_TOLD
                elif event.code in _MAYBE_FAULTS:
                    way.tries_max = _TRIES_CLOSED
                way.why = f"the other broker ends it: {reason_text(event.code)}"
                if event.properties.reason_string:
                    way.why += f" ({event.properties.reason_string})"
            elif isinstance(event, Refusal):
                way.tries_max = 0 if event.is_final or event.is_later else _TRIES_TOLD
                self._left_out(event.place, f"refused: {reason_text(event.code)} {event.reason}".rstrip())

    def device_lost(self, device: Device) -> None:
        """The transport is gone."""
        way = self._way_of(device)
        if way is None:
            return
        if not way.why and device.close_reason is CONNECTION_LOST and not self._is_stopping:
            way.tries_max = _TRIES_CLOSED
        way.why = way.why or device.close_detail or "the other broker has closed it"
        if way.answer is not None and not way.answer.done():
            way.answer.set_exception(IotmqError(way.why))
        way.ended.set()

    def _way_of(self, device: Device) -> _Way | None:
        return next((way for way in self._ways if device in (way.connection, way.opening)), None)

    def _subscribed(self, way: _Way, answers: Answers) -> None:
        for rule, code in zip(way.asked, answers.codes, strict=False):
            if code < FIRST_ERROR:
                way.refused.pop(rule.filter, None)
                continue
            if rule.filter not in way.refused:
                _log.error(
                    "a bridge may not subscribe",
                    extra={"bridge": self.name, "filter": rule.filter, "detail": reason_text(code)},
                )
            way.refused[rule.filter] = reason_text(code)
        way.asked = []

    def _left_out(self, place: str, why: str) -> None:
        self._left_out_told += 1
        if self._left_out_told <= _LEFT_OUT_TOLD:
            _log.warning(
                "the other broker does not get a message",
                extra={"bridge": self.name, "place": place, "detail": why},
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
                if way.wakes is not None:
                    way.wakes.end()
                return None
            if connection.is_careful:
                # First the message that may end the connection, alone, so that it is known whether it does.
                feeds.sort(key=lambda feed: feed.progress is None or not feed.progress.is_suspect)
            for feed in feeds:
                if not connection.can_send:
                    connection.call_when_room(partial(self._pump, way))
                    if way.wakes is not None:
                        way.wakes.begin(connection.in_flight_count)
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
                if connection.left_out:
                    for each in connection.left_out:
                        self._left_out(*each)
                    connection.left_out = []
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
                self._left_out_told = 0
            if self.counts.not_forwarded and self._tells_not_forwarded:
                self._tells_not_forwarded = False
                _log.warning(
                    "what came here over another bridge is left out: see forwards_bridged",
                    extra={"bridge": self.name},
                )
            for way in self._ways:
                connection = way.connection
                if connection is None:
                    continue
                self._look_after(way, connection, now_s)
                if way.refused and not way.asked and seconds % _SUBSCRIBE_AGAIN_S == 0:
                    rules = [rule for rule in self.settings.receive if rule.filter in way.refused]
                    self._subscribe(way, connection, rules)

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
    def filters_refused(self) -> dict[str, str]:
        """Return the filters that the other broker has refused, with its reasons."""
        return {topic_filter: why for way in self._ways for topic_filter, why in way.refused.items()}

    @property
    def not_ready_reason(self) -> str | None:
        """Return why the gateway is not ready; None while it is, and without alarm_age_s."""
        return self.alarm if self.settings.alarm_age_s else None

    @property
    def alarm(self) -> str | None:
        """Return why the alarm is on; None when it is off."""
        for topic_filter, why in self.filters_refused.items():
            return f"bridge {self.name} may not subscribe {topic_filter}: {why}"
        alarm_s = self.settings.alarm_age_s
        if not alarm_s or (age_s := self.age_s) < alarm_s:
            return None
        return f"{self.lag} messages of bridge {self.name} wait, the oldest for {age_s:.0f} s"

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("connections", "Connections to the other broker that are open.", self.connected_count),
            ("connections_wanted", "Connections to the other broker that there should be.", len(self._ways)),
            ("reconnects_total", "Connections to the other broker that were lost.", self._reconnects),
            ("lag_messages", "Messages of the log that the other broker has not acknowledged.", self.lag),
            ("lag_seconds", "Age of the oldest of these messages.", self.age_s),
            (
                "alarm",
                "1 while the oldest is older than alarm_age_s, or a filter of receive is refused.",
                float(self.alarm is not None),
            ),
            (
                "filters_refused",
                "Filters of receive that the other broker refuses; they are asked for again each minute.",
                len(self.filters_refused),
            ),
            (
                "lost_total",
                "Messages that the log had deleted before they were sent.",
                sum(feed.lost for feed in self._feeds.values()),
            ),
            prefix="iotmq_bridge_",
            labels=(("bridge", self.name),),
        )
        yield from count_metrics(self.name, self.counts)


def _connack_text(code: int, version: str) -> str:
    return reason_text(code) if version == "5" else f"return code {code}"
