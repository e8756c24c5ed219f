"""The MQTT front end: listener, sessions and subscriptions of the devices connected to this process."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from iotmq.client.ports import GatewayPort
from iotmq.client.session_ports import (
    CloseRequest,
    OpenedSession,
    OpenRequest,
    Refused,
    SessionPort,
    SessionSubscription,
    SubscribeRequest,
    UnsubscribeRequest,
    Will,
)
from iotmq.clock import Clock, SystemClock
from iotmq.message.properties import MQTT_CLIENT_ID, encode_properties
from iotmq.metrics import Metric
from iotmq.mqtt import packets, reason_codes
from iotmq.mqtt.connection_settings import ConnectionSettings
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt_front.deadlines import Deadlines
from iotmq.mqtt_front.device import Device, DeviceGroup
from iotmq.mqtt_front.durable import DurableEgress, DurableSession
from iotmq.mqtt_front.egress import Egress
from iotmq.mqtt_front.ingress import Ingress
from iotmq.mqtt_front.retained_egress import RetainedEgress
from iotmq.mqtt_front.routes import Router
from iotmq.mqtt_front.settings import MqttSettings

_log = logging.getLogger("iotmq.mqtt")

_TICK_S = 1.0
# A stop has these, one after the other, and the gateway's own; the process allows 1.5 s for all of it.
_DRAIN_TIMEOUT_S = 0.8
_HANG_UP_TIMEOUT_S = 0.3
_WILLS_TIMEOUT_S = 0.1
_BACKLOG = 4096
_GRANTED_QOS_MAX = 2


class MqttFront:
    """One process's MQTT listener over a gateway to the brokers. A role: `start()`, `stop()`, `metrics()`.

    `port` is the gateway (client.ports). `start` raises OSError when the address cannot be listened on, and
    what the gateway raises when its brokers do not answer.
    """

    def __init__(
        self,
        settings: MqttSettings,
        port: GatewayPort,
        *,
        sessions: SessionPort | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Without `sessions` every session ends with its connection, and is known to this process only."""
        self._settings = settings
        self._gateway = port
        self._session_port = sessions
        self._durable: DurableEgress | None = None
        self._retained: RetainedEgress | None = None
        self._clock = clock if clock is not None else SystemClock()
        self._router = Router(settings.routes, default_topic=settings.default_topic)
        self._connection_settings = ConnectionSettings(
            packet_bytes_max=settings.packet_bytes_max,
            in_flight_max=settings.in_flight_max,
            queued_bytes_max=settings.queued_bytes_max,
            connect_timeout_s=settings.connect_timeout_s,
        )
        self._sessions: dict[str, Device] = {}
        # Connections that have not opened a session yet, or lost theirs to another connection.
        self._without_session: set[Device] = set()
        self._connections = 0
        self._accepted_total = 0
        self._refused_total = 0
        self._closed_total: Counter[str] = Counter()
        self._subscriptions = 0
        self._deadlines = Deadlines(self._clock.monotonic_s())
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._all_gone: asyncio.Event = asyncio.Event()
        # Made in `start`, which is the first to know the loop.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ingress: Ingress | None = None
        self._egress: Egress | None = None
        self._group: DeviceGroup | None = None

    # Role

    async def start(self) -> None:
        """Start the gateway, then listen."""
        loop = self._loop = asyncio.get_running_loop()
        ingress = self._ingress = Ingress(
            self._router,
            self._gateway,
            loop,
            batch_bytes_max=self._settings.batch_bytes_max,
            pending_bytes_max=self._settings.pending_bytes_max,
            retry_interval_s=self._settings.retry_interval_s,
        )
        group = self._group = DeviceGroup(loop, ingress, self, now_s=self._clock.monotonic_s() + _TICK_S)
        ingress.group = group
        self._egress = Egress(group)
        try:
            await self._gateway.start(self._router.broker_topics, self._egress, ingress.forget_routes)
            if self._session_port is not None:
                self._durable = DurableEgress(group, self._session_port, self)
                self._retained = RetainedEgress(self._session_port, loop)
                await self._session_port.start(self._durable)
            self._server = await loop.create_server(
                lambda: Device(group, self._connection_settings),
                sock=_listen(self._settings.listen_host, self._settings.listen_port),
                backlog=_BACKLOG,
            )
        except BaseException:  # a start that waits for a broker may be cancelled
            await self._stop_ports()
            raise
        self._ticker = loop.call_later(_TICK_S, self._tick)

    async def stop(self) -> None:
        """Stop listening, hand over what devices were told to wait for, acknowledge it, and hang up."""
        self._is_stopping = True
        if self._server is not None:
            self._server.close()
        if self._ticker is not None:
            self._ticker.cancel()
        ingress, group = self._ingress, self._group
        if ingress is not None and group is not None:
            group.is_congested = group.is_ending = True  # nothing more is read while the rest goes out
            await self._drain(ingress, _DRAIN_TIMEOUT_S)
            if self._connections:
                await self._hang_up()
                await self._drain(ingress, _WILLS_TIMEOUT_S)
            ingress.close()
        await self._stop_ports()

    async def _stop_ports(self) -> None:
        if self._durable is not None:
            self._durable.stop()
        if self._session_port is not None:
            await self._session_port.stop()
        await self._gateway.stop()

    async def _drain(self, ingress: Ingress, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            ingress.flush()
            if ingress.is_idle or loop.time() >= deadline_s:
                return
            await asyncio.sleep(0.01)

    async def _hang_up(self) -> None:
        self._all_gone.clear()
        for device in [*self._sessions.values(), *self._without_session]:
            device.close(reason_codes.SERVER_SHUTTING_DOWN)
            device.finish()
        try:
            async with asyncio.timeout(_HANG_UP_TIMEOUT_S):
                await self._all_gone.wait()
        except TimeoutError:
            for device in [*self._sessions.values(), *self._without_session]:
                device.abort()
            await asyncio.sleep(0)  # their ends are reported in the next turn

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None, "start() was not called"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        """host:port that is listened on."""
        return f"{self._settings.listen_host}:{self.port}"

    @property
    def not_ready_reason(self) -> str | None:
        """None while devices are served, else why not."""
        if self._server is None or self._is_stopping:
            return "the MQTT listener is not open"
        return self._gateway.not_ready_reason

    def _tick(self) -> None:
        loop, group = self._loop, self._group
        assert loop is not None
        assert group is not None
        now_s = self._clock.monotonic_s()
        # Devices are stamped with the time of the next tick, because all but a tick may pass until then and
        # 1.5 keep-alive times are the least they have. A tick that comes late means that the loop was busy,
        # and what devices sent meanwhile is read first.
        is_late = now_s > group.now_s + _TICK_S
        group.now_s = now_s + _TICK_S
        for device in () if is_late else self._deadlines.late(now_s):
            if device.close_reason is not None:
                device.abort()  # it was told to go a while ago
                continue
            is_open = device.client_id is not None
            device.close(reason_codes.KEEP_ALIVE_TIMEOUT if is_open else reason_codes.CONNECT_TIMEOUT)
            device.finish()
            self._deadlines.watch(device, now_s)
        self._ticker = loop.call_later(_TICK_S, self._tick)

    # Connections (device.DeviceHandler)

    def device_connected(self, device: Device) -> None:
        """A transport was accepted."""
        self._connections += 1
        self._accepted_total += 1
        if self._connections > self._settings.connections_max or self._is_stopping:
            self._refused_total += 1
            device.close(
                reason_codes.SERVER_BUSY, f"mqtt.connections_max is {self._settings.connections_max}"
            )
            device.abort()
            return
        self._without_session.add(device)
        self._deadlines.watch_connecting(device)

    def device_events(self, device: Device, events: Sequence[packets.Event]) -> None:
        """CONNECT, SUBSCRIBE, UNSUBSCRIBE or DISCONNECT arrived."""
        for event in events:
            if isinstance(event, packets.Connect):
                self._open_session(device, event)
            elif isinstance(event, packets.Subscribe):
                self._subscribe(device, event)
            elif isinstance(event, packets.Unsubscribe):
                self._unsubscribe(device, event)
            else:
                device.will = None

    def device_lost(self, device: Device) -> None:
        """The transport is gone: the will is due unless it was dropped, the session ends."""
        self._connections -= 1
        reason = device.close_reason
        assert reason is not None, "a lost connection always has a reason"
        self._closed_total[reason.name] += 1
        if reason.is_peer_fault:
            _log.warning(
                "connection closed for bad input",
                extra={"reason": reason.name, "detail": device.close_detail, "client": device.client_id},
            )
        will, device.will = device.will, None
        if will is not None and self._ingress is not None:
            self._ingress.publish_will(device, will)
        if device.subscriptions:
            self._drop_subscriptions(device, tuple(device.subscriptions))
        self._without_session.discard(device)
        self._leave_session(device)
        if self._retained is not None:
            self._retained.forget(device)
        if device.client_id is not None and self._sessions.get(device.client_id) is device:
            del self._sessions[device.client_id]
        if not self._connections:
            self._all_gone.set()

    def _open_session(self, device: Device, connect: packets.Connect) -> None:
        if self._is_stopping:
            device.refuse(reason_codes.SERVER_UNAVAILABLE)
            return
        client_id = connect.client_id or f"iotmq-{secrets.token_hex(8)}"
        former = self._sessions.get(client_id)
        self._without_session.discard(device)
        if former is not None:  # [MQTT-3.1.4-2]
            self._hang_up_former(former, reason_codes.SESSION_TAKEN_OVER)
        self._sessions[client_id] = device
        device.client_id = client_id
        device.properties = encode_properties({MQTT_CLIENT_ID: client_id})
        device.will = connect.will
        keep_alive_s_max = self._settings.keep_alive_s_max
        if keep_alive_s_max and not 0 < connect.keep_alive_s <= keep_alive_s_max:
            device.keep_alive_s = keep_alive_s_max
        if self._session_port is None:
            device.open_session(session_present=False)
            self._deadlines.watch(device, self._clock.monotonic_s())
            return
        self._session_port.open_session(
            OpenRequest(
                client_id=client_id,
                is_clean=connect.clean_session,
                expiry_s=0 if connect.clean_session else self._settings.session_expiry_s_max,
                will=self._kept_will(device),
            ),
            partial(self._session_opened, device, client_id, is_kept=not connect.clean_session),
        )

    def _kept_will(self, device: Device) -> Will | None:
        """The device's will for its broker, which publishes it when this process dies."""
        assert self._ingress is not None
        if device.will is None:
            return None
        try:
            return self._ingress.encode_will(device, device.will)
        except MqttProtocolError as error:
            _log.warning("will not stored", extra={"client": device.client_id, "detail": str(error)})
            return None

    def _session_opened(
        self, device: Device, client_id: str, opened: OpenedSession | Refused, *, is_kept: bool
    ) -> None:
        """The broker has answered a CONNECT, or will not."""
        assert self._session_port is not None
        if isinstance(opened, Refused):
            if device.close_reason is None:
                _log.warning("no session", extra={"client": client_id, "detail": opened.remark})
                device.refuse(reason_codes.SERVER_UNAVAILABLE)
                device.finish()
            return
        if device.close_reason is not None:
            # It went meanwhile, and its will with it.
            expiry_s = self._settings.session_expiry_s_max if is_kept else 0
            self._session_port.close_session(
                CloseRequest(client_id=client_id, epoch=opened.epoch, expiry_s=expiry_s, drops_will=True)
            )
            return
        device.epoch = opened.epoch
        device.has_session = True
        session = None
        if is_kept and self._settings.session_expiry_s_max:
            assert self._durable is not None
            session = self._durable.open(device, client_id, opened)
            granted = {entry.topic_filter: entry.options & 3 for entry in opened.subscriptions}
            device.subscriptions = granted
            self._subscriptions += len(granted)
        device.open(session_present=opened.is_present)
        self._deadlines.watch(device, self._clock.monotonic_s())
        if session is not None:
            session.start(opened)
        device.after_answer()

    def _leave_session(self, device: Device) -> None:
        """Tell the broker, once, that the device has gone and how far it came. Its will is this process's."""
        if self._session_port is None or not device.has_session or device.client_id is None:
            return
        device.has_session = False
        expiry_s = 0
        if isinstance(device.session, DurableSession):
            expiry_s = self._settings.session_expiry_s_max
            progress = device.session.end()
            if progress is not None:
                self._session_port.progress([progress], _ignore)
        self._session_port.close_session(
            CloseRequest(client_id=device.client_id, epoch=device.epoch, expiry_s=expiry_s, drops_will=True)
        )

    def _hang_up_former(self, former: Device, reason: reason_codes.Reason) -> None:
        """Somebody else has the session of a connected device now."""
        self._without_session.add(former)
        self._leave_session(former)
        former.close(reason)
        former.finish()

    def session_fenced(self, client_id: str, epoch: int, reason: str) -> None:
        """The session is for another front end, or an operator ends it (durable.SessionHandler)."""
        device = self._sessions.get(client_id)
        if device is not None and device.has_session and device.epoch == epoch:
            del self._sessions[client_id]
            _log.debug("session lost", extra={"client": client_id, "detail": reason})
            self._hang_up_former(device, reason_codes.SESSION_TAKEN_OVER)

    # Subscriptions

    def _subscribe(self, device: Device, event: packets.Subscribe) -> None:
        egress = self._egress
        assert egress is not None
        if device.subscriptions is None:
            device.subscriptions = {}
        codes: list[int] = []
        new_filters: list[tuple[int, str]] = []
        if isinstance(device.session, DurableSession):
            self._subscribe_durably(device, device.session, event)
            return
        for topic_filter, qos in event.subscriptions:
            is_known = topic_filter in device.subscriptions
            if not is_known and len(device.subscriptions) >= self._settings.subscriptions_max:
                codes.append(reason_codes.SUBACK_FAILURE)
                continue
            granted = min(qos, _GRANTED_QOS_MAX)
            filter_id = egress.subscribe(topic_filter, device, granted)
            if filter_id is not None:
                new_filters.append((filter_id, topic_filter))
            device.subscriptions[topic_filter] = granted
            self._subscriptions += not is_known
            codes.append(granted)
        if not new_filters:
            device.send_suback(event.packet_id, codes)
            self._send_retained(device, _granted(event, codes))
            return

        def attached(is_attached: bool) -> None:
            if not is_attached:
                refused = {topic_filter for _, topic_filter in new_filters}
                self._drop_subscriptions(device, tuple(refused & (device.subscriptions or {}).keys()))
                for place, (topic_filter, _) in enumerate(event.subscriptions):
                    if topic_filter in refused:
                        codes[place] = reason_codes.SUBACK_FAILURE
            device.send_suback(event.packet_id, codes)
            self._send_retained(device, _granted(event, codes))
            device.after_answer()

        self._gateway.attach(new_filters, attached)

    def _send_retained(self, device: Device, subscriptions: Iterable[tuple[str, int]]) -> None:
        if self._retained is not None:
            self._retained.send(device, subscriptions)

    def _subscribe_durably(self, device: Device, session: DurableSession, event: packets.Subscribe) -> None:
        """As `_subscribe`, but the broker keeps the filters and what comes for them."""
        assert self._session_port is not None
        assert device.subscriptions is not None
        known = device.subscriptions
        wanted: dict[str, int] = {}
        codes: list[int] = []
        for topic_filter, qos in event.subscriptions:
            if topic_filter not in known and len(known) + len(wanted) >= self._settings.subscriptions_max:
                codes.append(reason_codes.SUBACK_FAILURE)
                continue
            wanted[topic_filter] = min(qos, _GRANTED_QOS_MAX)
            codes.append(wanted[topic_filter])

        def subscribed(found: list[SessionSubscription] | Refused) -> None:
            if isinstance(found, Refused):
                _log.warning("no subscription", extra={"client": device.client_id, "detail": found.remark})
                device.send_suback(event.packet_id, [reason_codes.SUBACK_FAILURE] * len(codes))
            else:
                device.send_suback(event.packet_id, codes)
                if not session.is_ended:
                    self._subscriptions += len(wanted.keys() - known.keys())
                    known.update(wanted)
                    session.add(found)
                    self._send_retained(device, wanted.items())
            device.after_answer()

        if wanted:
            self._session_port.subscribe(
                SubscribeRequest(
                    client_id=session.client_id, epoch=session.epoch, subscriptions=list(wanted.items())
                ),
                subscribed,
            )
        else:
            device.send_suback(event.packet_id, codes)

    def _unsubscribe_durably(
        self, device: Device, session: DurableSession, event: packets.Unsubscribe
    ) -> None:
        assert self._session_port is not None
        assert device.subscriptions is not None
        for topic_filter in event.filters:
            if device.subscriptions.pop(topic_filter, None) is not None:
                self._subscriptions -= 1
        session.remove(event.filters)

        def unsubscribed(refused: Refused | None) -> None:
            if refused is None:
                device.send_unsuback(event.packet_id)
            else:
                # There is no UNSUBACK that says no before MQTT 5.
                device.close(reason_codes.SERVER_UNAVAILABLE, refused.remark)
            device.after_answer()

        self._session_port.unsubscribe(
            UnsubscribeRequest(client_id=session.client_id, epoch=session.epoch, filters=list(event.filters)),
            unsubscribed,
        )

    def _unsubscribe(self, device: Device, event: packets.Unsubscribe) -> None:
        if isinstance(device.session, DurableSession):
            self._unsubscribe_durably(device, device.session, event)
            return
        self._drop_subscriptions(
            device, [name for name in event.filters if name in (device.subscriptions or {})]
        )
        device.send_unsuback(event.packet_id)  # also when nothing was subscribed [MQTT-3.10.4-5]

    def _drop_subscriptions(self, device: Device, filters: Iterable[str]) -> None:
        egress, subscriptions = self._egress, device.subscriptions
        assert egress is not None
        if subscriptions is None:  # nothing was ever subscribed
            return
        if device.session is not None:  # the broker has them
            self._subscriptions -= len(subscriptions)
            subscriptions.clear()
            return
        unused = []
        for topic_filter in dict.fromkeys(filters):
            del subscriptions[topic_filter]
            self._subscriptions -= 1
            filter_id = egress.unsubscribe(topic_filter, device)
            if filter_id is not None:
                unused.append(filter_id)
        if unused:
            self._gateway.detach(unused)

    # Numbers

    def metrics(self) -> Iterable[Metric]:
        """Connections, messages and bytes of this front end and of its way to the brokers."""
        yield from self._gateway.metrics()
        yield Metric("iotmq_mqtt_connections", "gauge", "Open MQTT connections.", self._connections)
        yield Metric("iotmq_mqtt_sessions", "gauge", "Connected sessions.", len(self._sessions))
        yield Metric(
            "iotmq_mqtt_subscriptions", "gauge", "Subscriptions of connected sessions.", self._subscriptions
        )
        yield Metric(
            "iotmq_mqtt_accepted_total", "counter", "MQTT connections accepted.", self._accepted_total
        )
        yield Metric(
            "iotmq_mqtt_refused_total",
            "counter",
            "Connections closed past mqtt.connections_max.",
            self._refused_total,
        )
        for reason, count in sorted(self._closed_total.items()):
            yield Metric(
                "iotmq_mqtt_closed_total",
                "counter",
                "MQTT connections ended, by reason.",
                count,
                (("reason", reason),),
            )
        if self._ingress is None or self._egress is None or self._group is None:
            return
        ingress, egress, group = self._ingress, self._egress, self._group
        if self._durable is not None:
            yield from _durable_metrics(self._durable)
        yield Metric(
            "iotmq_mqtt_received_bytes_total", "counter", "Bytes read from devices.", group.received_bytes
        )
        yield Metric("iotmq_mqtt_sent_bytes_total", "counter", "Bytes written to devices.", group.sent_bytes)
        yield Metric("iotmq_mqtt_paused_connections", "gauge", "Devices not being read.", group.paused_count)
        yield Metric(
            "iotmq_mqtt_published_total", "counter", "Messages published by devices.", ingress.messages
        )
        yield Metric(
            "iotmq_mqtt_published_bytes_total",
            "counter",
            "Payload bytes published by devices.",
            ingress.message_bytes,
        )
        yield Metric(
            "iotmq_mqtt_batches_total", "counter", "Batches the broker answered for good.", ingress.batches
        )
        yield Metric(
            "iotmq_mqtt_batch_retries_total",
            "counter",
            "Times a batch was not taken and is offered again.",
            ingress.retries,
        )
        yield Metric(
            "iotmq_mqtt_not_stored_total",
            "counter",
            "Messages the broker refused for good.",
            ingress.not_stored,
        )
        yield Metric(
            "iotmq_mqtt_pending_bytes",
            "gauge",
            "Bytes of messages that wait for the broker.",
            ingress.pending_bytes,
        )
        yield Metric(
            "iotmq_mqtt_filters", "gauge", "Topic filters with local subscribers.", egress.filter_count
        )
        yield Metric(
            "iotmq_mqtt_delivered_total", "counter", "Messages written to subscribers.", egress.delivered
        )
        yield Metric(
            "iotmq_mqtt_dropped_total", "counter", "Messages dropped for slow subscribers.", egress.dropped
        )
        yield Metric(
            "iotmq_mqtt_undeliverable_total",
            "counter",
            "Pushed records that could not be read.",
            egress.malformed,
        )


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket whose connections have the kernel look for peers that vanished.

    Connections inherit SO_KEEPALIVE from their listener, which saves a call and an object for each.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port} for MQTT: {error.strerror}") from error
    return listener


def _granted(event: packets.Subscribe, codes: Sequence[int]) -> list[tuple[str, int]]:
    """The filters of a SUBSCRIBE that were not refused."""
    return [
        (topic_filter, code)
        for (topic_filter, _), code in zip(event.subscriptions, codes, strict=True)
        if code != reason_codes.SUBACK_FAILURE
    ]


def _ignore(refused: Refused | None) -> None:
    """A session that cannot say how far it came gets some messages again."""
    if refused is not None:
        _log.warning("the progress of a session is not stored", extra={"detail": refused.remark})


def _durable_metrics(durable: DurableEgress) -> Iterable[Metric]:
    yield Metric(
        "iotmq_mqtt_light_queues", "gauge", "Light queues that local sessions subscribe.", durable.queue_count
    )
    yield Metric(
        "iotmq_mqtt_durable_delivered_total",
        "counter",
        "Messages written to sessions that are kept.",
        durable.delivered,
    )
    yield Metric(
        "iotmq_mqtt_durable_read_total",
        "counter",
        "Records read for sessions that had fallen behind or came back.",
        durable.read_records,
    )
    yield Metric(
        "iotmq_mqtt_durable_dropped_total",
        "counter",
        "Messages of routes that do not store, which a session could not take at once.",
        durable.dropped,
    )
    yield Metric(
        "iotmq_mqtt_durable_malformed_total",
        "counter",
        "Records of light queues that are no messages.",
        durable.malformed,
    )
    yield Metric(
        "iotmq_mqtt_refused_progress_total",
        "counter",
        "Times the broker did not take how far sessions came; it is told again.",
        durable.refused_progress,
    )
