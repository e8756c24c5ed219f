"""The MQTT front end: its listeners, their connections, and what is made of their packets."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from iotmq.addresses import parse_address
from iotmq.clock import Clock, SystemClock
from iotmq.event_loop import happens_within
from iotmq.message.properties import MQTT_CLIENT_ID, encode_properties
from iotmq.metrics import Metric, samples, samples_by
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.server.connection_settings import ConnectionSettings
from iotmq.mqtt_front.access import authentication as access
from iotmq.mqtt_front.access.authentication import AccessEvents, open_authentication
from iotmq.mqtt_front.audit import Audit, facts_of
from iotmq.mqtt_front.connection.deadlines import Deadlines
from iotmq.mqtt_front.connection.device import Device, DeviceGroup
from iotmq.mqtt_front.connection.late_ends import LateEnds
from iotmq.mqtt_front.connection.peer import Peer
from iotmq.mqtt_front.connection.replay_pace import PaceLimits
from iotmq.mqtt_front.deliver.egress import Egress
from iotmq.mqtt_front.deliver.retained_egress import RetainedEgress
from iotmq.mqtt_front.deliver.sys_topics import FrontEndTotals, SysTopics
from iotmq.mqtt_front.front_parts import FrontEndParts
from iotmq.mqtt_front.limiting.guard import Guard, GuardedFront
from iotmq.mqtt_front.limiting.limiter import Refusal
from iotmq.mqtt_front.limiting.shared_bans import BrokerPorts
from iotmq.mqtt_front.listen.admission import Admission
from iotmq.mqtt_front.listen.listeners import Doors, Listeners
from iotmq.mqtt_front.metrics import durable_metrics, topic_metrics, traffic_metrics
from iotmq.mqtt_front.permissions.permissions import Permissions
from iotmq.mqtt_front.permissions.questions import Decider
from iotmq.mqtt_front.publish.guard import PublishGuard
from iotmq.mqtt_front.publish.ingress import Ingress
from iotmq.mqtt_front.routing.route_file import RouteReloads
from iotmq.mqtt_front.routing.topic_rewrite import TopicRewrites
from iotmq.mqtt_front.sessions.auto_subscriptions import AutoSubscriptions
from iotmq.mqtt_front.sessions.bridge_clients import BridgeClients
from iotmq.mqtt_front.sessions.drain import Drain
from iotmq.mqtt_front.sessions.durable_egress import DurableEgress
from iotmq.mqtt_front.sessions.session_events import SessionEvents
from iotmq.mqtt_front.sessions.session_rights import SessionRights
from iotmq.mqtt_front.sessions.sessions import ConnectedSessions
from iotmq.mqtt_front.sessions.shared_subscriptions import SharedSubscriptions
from iotmq.mqtt_front.sessions.subscriptions import BrokerSessions, Subscriptions
from iotmq.mqtt_front.settings.listeners import TCP_NAME
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.tracing.decisions import Decisions
from iotmq.mqtt_front.tracing.traces import Traces
from iotmq.mqtt_front.views.connections import ConnectionViews
from iotmq.ports.client_pages import REFUSED
from iotmq.ports.gateway import GatewayPort
from iotmq.ports.inspections import TRACE_CHANGES, TRACES, Inspections
from iotmq.ports.sessions import SessionPort
from iotmq.supervised import surviving

if TYPE_CHECKING:
    from iotmq.mqtt_front.plugins.front_plugins import FrontPlugins

_log = logging.getLogger("iotmq.mqtt")

_TICK_S = 1.0
# A stop has these, one after the other, and the gateway's own; the process allows 1.5 s for all of it.
_DRAIN_TIMEOUT_S = 0.8
_HANG_UP_TIMEOUT_S = 0.3
_WILLS_TIMEOUT_S = 0.1


class MqttFront:
    """One process's MQTT listeners over a gateway to the brokers. A role: `start()`, `stop()`, `metrics()`.

    `port` is the gateway (ports.gateway). `start` raises OSError when the address cannot be listened on, and
    what the gateway raises when its brokers do not answer.
    """

    def __init__(
        self,
        settings: MqttSettings,
        port: GatewayPort,
        *,
        sessions: SessionPort | None = None,
        clock: Clock | None = None,
        shares_port: bool = False,
        deciders: Sequence[Decider] = (),
    ) -> None:
        """Without `sessions` every session ends with its connection, and is known to this process only.

        With `shares_port` other processes may listen on the same port, and each gets some of the connections.
        `deciders` are asked about topics before the rules are.
        """
        self._settings = settings
        self._shares_port = shares_port
        self._deciders = deciders
        self._gateway = port
        self._session_port = sessions
        self._clock = clock if clock is not None else SystemClock()
        self._routes = RouteReloads(settings)
        self._rewrites = TopicRewrites(settings.rewrites)
        self._auto_subscriptions = AutoSubscriptions(settings.auto_subscriptions)
        self._connection_settings = ConnectionSettings(
            packet_bytes_max=settings.packet_bytes_max,
            in_flight_max=settings.in_flight_max,
            queued_bytes_max=settings.queued_bytes_max,
            queued_messages_max=settings.queued_messages_max,
            drops_oldest=settings.queued_policy == "drop-oldest",
            receive_max=settings.receive_max,
            topic_aliases_max=settings.topic_aliases_max,
            checks_payload_format=settings.payload_format_checked,
            connect_timeout_s=settings.connect_timeout_s,
            authentication_methods=settings.authentication.methods,
        )
        self._audit = Audit(settings, port, self._clock, source=settings.name or socket.gethostname())
        self._connections = 0
        self._accepted_total = 0
        self._refused_total = 0
        self._closed_total: Counter[str] = Counter()
        self._deadlines = Deadlines(self._clock.monotonic_s())
        self._ticker: asyncio.TimerHandle | None = None
        self._late_ends = LateEnds(self._deadlines)
        self._is_listening = False
        self._is_stopping = False
        self._all_gone: asyncio.Event = asyncio.Event()
        # Publishes what plug-ins do; made with their first message.
        self._plugin_device: Device | None = None
        self.inspections = Inspections()
        """The questions of operators; parts of the process add what they have to show."""
        self.inspections.add(REFUSED, self._audit.refusals.answer)
        # Made in `start`, which is the first to know the loop.
        self._parts: FrontEndParts | None = None

    @property
    def parts(self) -> FrontEndParts:
        """Return the parts, which are made by `start`."""
        assert self._parts is not None, "start() was not called"
        return self._parts

    # Role

    async def start(self) -> None:
        """Start the gateway, then listen."""
        loop = asyncio.get_running_loop()
        parts = self._parts = self._assembled(loop)
        self.inspections.add(TRACES, parts.traces.answer)
        self.inspections.add(TRACE_CHANGES, parts.traces.change)
        try:
            await self._gateway.start(
                self._routes.router.broker_topics,
                parts.egress,
                parts.ingress.forget_routes,
                route_of=self._routes.router.route_of,
            )
            if self._session_port is not None and parts.durable is not None:
                await self._session_port.start(SessionEvents(parts.durable, parts.drain, self.inspections))
            if parts.plugins is not None:
                await parts.plugins.start()
            ConnectionViews(parts.sessions, self._clock).add_to(self.inspections)
            parts.authentication.start()
            parts.permissions.start(parts.sessions.rules_changed)
            self._routes.start(self._gateway.add_topics, parts.ingress.forget_routes)
            await parts.guard.start(parts.egress)
            if parts.hooks is not None:
                await parts.hooks.start()
            await parts.listeners.open()
            self._is_listening = True
        except BaseException:  # a start that waits for a broker may be cancelled
            parts.listeners.close()
            parts.authentication.stop()
            parts.permissions.close()
            await parts.guard.stop()
            if parts.hooks is not None:
                await parts.hooks.stop()
            await self._stop_ports()
            raise
        if parts.plugins is not None:
            await parts.plugins.started()
        if parts.sys_topics is not None:
            parts.sys_topics.tick(self._clock.monotonic_s())
        self._ticker = loop.call_later(_TICK_S, self._tick)

    def _assembled(self, loop: asyncio.AbstractEventLoop) -> FrontEndParts:
        settings, port = self._settings, self._session_port
        plugins = self._plugins_of(loop)
        topics = None if plugins is None else plugins.topics
        permissions = Permissions(
            settings.permissions,
            loop,
            self._clock,
            are_client_ids_proved=settings.authentication.client_ids != "any",
            deciders=self._deciders if topics is None else (*self._deciders, topics),
            audit=self._audit.record,
        )
        sys_topics = None
        if settings.sys_interval_s:
            now_s = self._clock.monotonic_s()
            sys_topics = SysTopics(self._totals, interval_s=settings.sys_interval_s, now_s=now_s)
        bridges = BridgeClients(
            settings.bridge_clients, sys_topics, gateway_name=settings.gateway_name or socket.gethostname()
        )
        ingress = Ingress(
            self._routes.router,
            self._gateway,
            loop,
            settings,
            rewrites=self._rewrites,
            guard=PublishGuard(permissions),
        )
        ingress.bridges = bridges
        hooks = None
        if settings.hooks:
            from iotmq.mqtt_front.hooks.hook_parts import open_hooks

            hooks = open_hooks(settings, loop, ingress)
        sink = hooks.sink if hooks is not None and hooks.sink is not None else ingress
        group = DeviceGroup(loop, sink, self, now_s=self._clock.monotonic_s() + _TICK_S, clock=self._clock)
        ingress.group = group
        if hooks is not None:
            hooks.connect(group)
        egress = Egress(group)
        pace = PaceLimits(settings.replay_messages_per_s, settings.replay_bytes_per_s)
        at_brokers = None
        if port is not None:
            at_brokers = BrokerSessions(
                port,
                DurableEgress(group, port, self, pace=pace),
                RetainedEgress(port, loop, pace=pace),
                SharedSubscriptions(group, port, credit=settings.shared_credit),
            )
        subscriptions = Subscriptions(
            settings,
            egress,
            self._gateway,
            rights=SessionRights(
                permissions,
                ingress,
                loop,
                self._clock,
                rewrites=self._rewrites,
                auto_subscriptions=self._auto_subscriptions,
            ),
            sys_topics=sys_topics,
            at_brokers=at_brokers,
        )
        sessions = ConnectedSessions(
            settings, ingress, subscriptions, self._auto_subscriptions, self._deadlines, self._clock
        )
        sessions.audit = self._audit.record
        guard = Guard(
            settings.device_limits,
            GuardedFront(
                sessions.ended_by_bans, lambda: ingress.waited_s, self._overload_changed, self._audit.record
            ),
            BrokerPorts(self._gateway, port),
            loop,
            self._clock,
        )
        listeners = Listeners(
            settings.all_listeners,
            partial(Device, group, self._connection_settings),
            is_shared=self._shares_port,
            doors=Doors(
                self._has_room_beside, guard.refusal_at_door, self._is_turned_away, guard.overload_refusal
            ),
            ticket_secret=settings.tls_ticket_secret,
        )
        drain = Drain(loop, sessions.devices, self._drain_changed, server_reference=settings.server_reference)
        admission = Admission(
            drain, connections_max=settings.connections_max, server_reference=settings.server_reference
        )
        if plugins is not None:
            group.listeners = (*group.listeners, plugins)
        decisions = Decisions(ingress, permissions.refusals, self._audit)
        traces = Traces(group, self._clock, sessions.devices, decisions)
        events = AccessEvents(traces.opening(self._open_session), self._identity_renewed, self._audit.record)
        authentication = open_authentication(
            settings,
            loop,
            self._clock,
            self._deadlines,
            events,
            None if plugins is None else plugins.link,
        )
        group.unfinished_bytes_max = settings.device_limits.unfinished_bytes_max
        group.packet_timeout_s = settings.device_limits.packet_timeout_s
        group.packet_bytes_per_s_min = settings.device_limits.packet_bytes_per_s_min
        return FrontEndParts(
            loop,
            ingress,
            group,
            egress,
            None if at_brokers is None else at_brokers.durable,
            None if at_brokers is None else at_brokers.shared,
            subscriptions,
            sessions,
            authentication,
            permissions,
            sys_topics,
            bridges,
            listeners,
            drain,
            admission,
            plugins,
            guard,
            hooks,
            traces,
        )

    def _plugins_of(self, loop: asyncio.AbstractEventLoop) -> FrontPlugins | None:
        """Make the plug-ins of the settings, whose library is loaded only where there are some."""
        if not self._settings.plugins.amqtt:
            return None
        from iotmq.mqtt_front.plugins.front_plugins import FrontPlugins

        return FrontPlugins(self._settings, loop, self._publish_for_plugins, self._clock)

    def _publish_for_plugins(self, message: packets.Will) -> None:
        """Publish what a plug-in does, as a device of their own."""
        if self._plugin_device is None:
            self._plugin_device = Device(self.parts.group, self._connection_settings, Peer("plug-ins"))
            self._plugin_device.client_id = "iotmq/plug-ins"
            self._plugin_device.properties = encode_properties({MQTT_CLIENT_ID: "iotmq/plug-ins"})
        self.parts.ingress.publish_will(self._plugin_device, message)

    def _overload_changed(self, level: int) -> None:
        parts = self.parts
        parts.ingress.sheds = parts.egress.sheds = level > 1

    def _drain_changed(self, is_draining: bool) -> None:
        if self._session_port is not None:
            self._session_port.report_draining(is_draining=is_draining)

    async def stop(self) -> None:
        """Stop listening, store and acknowledge what devices have sent, and close their connections."""
        self._is_stopping = True
        if self._parts is not None:
            self._parts.listeners.close()
            self._parts.authentication.stop()
            self._parts.permissions.close()
            self._parts.drain.stop()
            self._parts.admission.is_stopping = True
        if self._ticker is not None:
            self._ticker.cancel()
        parts = self._parts
        if parts is not None:
            # Nothing more is read while the rest goes out.
            parts.group.read_no_more()
            await self._drain(parts, _DRAIN_TIMEOUT_S)
            if self._connections:
                await self._hang_up(parts.sessions, parts.admission.stop_reason)
                await self._drain(parts, _WILLS_TIMEOUT_S)
            await parts.guard.stop()
            if parts.hooks is not None:
                await parts.hooks.stop()
            parts.traces.stop()
            parts.ingress.close()
            parts.egress.close()
            parts.sessions.prefixes.tell()
        self._audit.close()
        self.inspections.stop()
        await self._stop_ports()

    async def _stop_ports(self) -> None:
        if self._parts is not None:
            await self._parts.authentication.wait_stopped()
            if self._parts.plugins is not None:
                await self._parts.plugins.stop()
        self._routes.stop()
        if self._parts is not None and self._parts.durable is not None:
            self._parts.durable.stop()
        if self._session_port is not None:
            await self._session_port.stop()
        await self._gateway.stop()

    async def _drain(self, parts: FrontEndParts, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            parts.ingress.flush()
            if (parts.ingress.is_idle and parts.egress.is_idle) or loop.time() >= deadline_s:
                return
            await asyncio.sleep(0.01)

    async def _hang_up(self, sessions: ConnectedSessions, reason: reason_codes.Reason) -> None:
        self._all_gone.clear()
        for device in sessions.devices():
            device.close(reason)
            device.finish()
        if not await happens_within(self._all_gone, _HANG_UP_TIMEOUT_S):
            for device in sessions.devices():
                device.abort()
            await asyncio.sleep(0)  # their ends are reported in the next turn

    @property
    def addresses(self) -> Mapping[str, str]:
        """Name of a listener -> HOST:PORT it listens on, or the path of its socket."""
        return self.parts.listeners.addresses

    @property
    def port(self) -> int:
        """Return the port of the listener of mqtt.listen_port."""
        return parse_address(self.address)[1]

    @property
    def address(self) -> str:
        """host:port of that listener."""
        return self.addresses[TCP_NAME]

    @property
    def not_ready_reason(self) -> str | None:
        """Return None while devices are served, else why not."""
        if not self._is_listening or self._is_stopping:
            return "the MQTT listeners are not open"
        if self._parts is not None and self._parts.drain.reason is not None:
            return "the front end is being drained"
        if self._parts is not None and self._parts.guard.overload.reason is not None:
            return self._parts.guard.overload.reason
        return self._gateway.not_ready_reason

    def _tick(self) -> None:
        parts = self.parts
        group = parts.group
        now_s = self._clock.monotonic_s()
        # Devices are stamped with the time of the next tick, because all but a tick may pass until then and
        # 1.5 keep-alive times are the least they have. A tick that comes late means that the loop was busy,
        # and what devices sent meanwhile is read first.
        is_late = now_s > group.now_s + _TICK_S
        group.now_s = now_s + _TICK_S
        if not is_late:
            self._late_ends.tick(group, self._end_late, now_s)
            with surviving("end of late exchanges"):
                parts.authentication.tick(now_s)
        if parts.sys_topics is not None:
            with surviving("$SYS topics"):
                parts.sys_topics.tick(now_s)
        with surviving("counts of client ids"):
            parts.sessions.prefixes.tick(now_s)
        self._ticker = parts.loop.call_later(_TICK_S, self._tick)

    def _end_late(self, device: Device, now_s: float) -> None:
        if device.close_reason is not None:
            device.abort()  # it was told to go a while ago
            return
        deadline_s = device.next_deadline()
        if device.client_id is not None and (deadline_s is None or deadline_s > now_s):
            self._deadlines.watch(device, now_s)  # it has done something since it was found to be late
            return
        if device.client_id is not None and device.expires_s and device.expires_s <= now_s:
            device.close(reason_codes.MAXIMUM_CONNECT_TIME, "the token by which it connected has ended")
        elif device.is_held:
            device.close(reason_codes.SERVER_UNAVAILABLE, "no broker answers a SUBSCRIBE or UNSUBSCRIBE")
        elif device.client_id is not None:
            device.close(reason_codes.KEEP_ALIVE_TIMEOUT)
        else:
            device.close(reason_codes.CONNECT_TIMEOUT)
        device.finish()
        self._deadlines.watch(device, now_s)

    # Connections (device.DeviceHandler)

    def device_connected(self, device: Device) -> None:
        """A transport was accepted."""
        self._connections += 1
        self._accepted_total += 1
        parts = self.parts
        parts.listeners.connected(device)
        refusal = self._refusal_of(device)
        # Bans and limits on connecting say nothing: an answer would cost more than the attempt.
        if refusal is not None and (
            refusal.cause not in ("room", "overload") or not parts.admission.keep_past(device, refusal)
        ):
            self._audit.record("refused", **facts_of(device), reason=refusal.detail)
            device.close(refusal.reason, refusal.detail)
            device.abort()
            return
        parts.sessions.add(device)
        self._deadlines.watch_connecting(device)

    def _refusal_of(self, device: Device) -> Refusal | None:
        """Return why a connection that was accepted is not taken."""
        parts = self.parts
        if not self._has_room_beside(parts.listeners.arriving_count) or self._is_stopping:
            self._refused_total += 1
            return parts.admission.no_room
        address = device.address if parts.guard.knows_addresses else None
        return parts.listeners.refusal_of(device, address) or parts.guard.connected(
            device, device.peer.listener, address
        )

    def _is_turned_away(self, listener: str, address: str | None) -> bool:
        """Whether a connection without TLS is closed before it costs anything."""
        refusal = self.parts.guard.refusal_of_place(listener, address)
        if refusal is None:
            return False
        self._accepted_total += 1
        self._closed_total[refusal.reason.name] += 1
        self._audit.record("refused", address=address, listener=listener, reason=refusal.detail)
        return True

    def _open_session(self, device: Device, connect: packets.Connect, client_id: str) -> None:
        """A device may connect, as far as authentication goes."""
        if self.parts.hooks is not None:
            go_on = partial(self._open_allowed, device, connect, client_id)
            self.parts.hooks.sessions.after_authenticate(device, connect, client_id, go_on)
        else:
            self._open_allowed(device, connect, client_id)

    def _identity_renewed(self, device: Device) -> None:
        self.parts.guard.renewed(device)
        self.parts.sessions.identity_renewed(device)

    def _open_allowed(self, device: Device, connect: packets.Connect, client_id: str) -> None:
        parts = self.parts
        refusal = parts.guard.opening(device, client_id)
        if refusal is not None:
            device.refuse(refusal.reason, refusal.detail)
        else:
            client_id = client_id or f"iotmq-{secrets.token_hex(8)}"
            if parts.plugins is not None:
                parts.plugins.opening(device, client_id, connect)
            parts.sessions.open(device, connect, client_id)

    def _has_room_beside(self, arriving_count: int) -> bool:
        return self._connections + arriving_count <= self._settings.connections_max

    def device_events(self, device: Device, events: Sequence[packets.Event]) -> None:
        """CONNECT, AUTH, SUBSCRIBE, UNSUBSCRIBE or DISCONNECT arrived."""
        parts = self.parts
        for event in events:
            if isinstance(event, packets.Connect):
                refusal = parts.admission.refusal(device)
                if refusal is None:
                    turned_away = parts.guard.refusal_of_connect(event, device)
                    refusal = turned_away and (turned_away.reason, turned_away.detail)
                if refusal is not None:
                    user = access.shown_user(event.user_name)
                    asked = {**facts_of(device), "client": event.client_id, "user": user}
                    self._audit.record("refused", **asked, reason=refusal[0].name, detail=refusal[1])
                    device.refuse(*refusal)
                elif parts.hooks is not None:
                    go_on = partial(parts.authentication.connect, device, event)
                    parts.hooks.sessions.before_connect(device, event, go_on)
                else:
                    parts.authentication.connect(device, event)
            elif isinstance(event, (packets.Subscribe, packets.Unsubscribe)):
                # What was published before it is not for it, but for retained messages.
                if self._is_settled(device, event):
                    self._change_subscriptions(device, event)
            elif isinstance(event, packets.Auth):
                parts.authentication.received(device, event)
            else:
                parts.sessions.disconnected(device, event)

    def _is_settled(self, device: Device, event: packets.Subscribe | packets.Unsubscribe) -> bool:
        """Return whether all that the device has published is stored; else `_settled` is called then."""
        hooks, settled = self.parts.hooks, partial(self._settled, device, event)
        if hooks is not None:

            def passed() -> None:
                if self.parts.ingress.when_settled(device, settled):
                    settled()

            if not hooks.when_passed(device, passed):
                return False
        return self.parts.ingress.when_settled(device, settled)

    def _settled(self, device: Device, event: packets.Subscribe | packets.Unsubscribe) -> None:
        if device.close_reason is None:
            self._change_subscriptions(device, event)
            device.after_answer()

    def _change_subscriptions(self, device: Device, event: packets.Subscribe | packets.Unsubscribe) -> None:
        hooks, subscriptions = self.parts.hooks, self.parts.subscriptions
        if isinstance(event, packets.Unsubscribe):
            subscriptions.unsubscribe(device, event)
            for listener in device.group.listeners:
                listener.unsubscribed(device, event)
        elif hooks is None:
            subscriptions.subscribe(device, event)
        else:
            hooks.sessions.before_subscribe(device, event, subscriptions.subscribe)

    def device_lost(self, device: Device) -> None:
        """The transport is gone."""
        self._connections -= 1
        reason = device.close_reason
        assert reason is not None, "a lost connection always has a reason"
        self._closed_total[reason.name] += 1
        if device.client_id is not None:
            self._audit.record(
                "disconnected", **facts_of(device), reason=reason.name, detail=device.close_detail or None
            )
        if reason.is_peer_fault:
            _log.warning(
                "connection closed for bad input",
                extra={
                    "reason": reason.name,
                    "detail": device.close_detail,
                    "client": device.client_id,
                    **device.peer.shown,
                },
            )
        if self._parts is not None:
            self._parts.listeners.lost(device)
            self._parts.authentication.lost(device)
            self._parts.admission.lost(device)
            self._parts.guard.lost(device)
            for listener in device.group.listeners:
                listener.lost(device)
            self._parts.sessions.lost(device)
        if not self._connections:
            self._all_gone.set()

    def session_fenced(self, client_id: str, epoch: int, reason: str) -> None:
        """The session is for another front end, or an operator ends it (durable_egress.SessionHandler)."""
        self.parts.sessions.session_fenced(client_id, epoch, reason)

    # Numbers

    def _totals(self) -> FrontEndTotals:
        parts = self.parts
        durable = parts.durable
        return FrontEndTotals(
            connections_accepted=self._accepted_total,
            connections=self._connections,
            sessions=len(parts.sessions),
            subscriptions=parts.subscriptions.count,
            messages_received=parts.ingress.messages,
            messages_sent=parts.egress.delivered + (durable.delivered if durable else 0),
            messages_dropped=parts.egress.dropped + (durable.dropped if durable else 0),
            payload_bytes_received=parts.ingress.message_bytes,
            bytes_received=parts.group.received_bytes,
            bytes_sent=parts.group.sent_bytes,
            overload_level=parts.guard.overload.level,
            messages_shed=parts.ingress.shed + parts.egress.shed,
        )

    def metrics(self) -> Iterable[Metric]:
        """Connections, messages and bytes of this front end and of its way to the brokers."""
        parts = self._parts
        yield from self._gateway.metrics()
        yield from self._routes.metrics()
        yield from self._audit.metrics()
        yield from samples(
            ("iotmq_mqtt_connections", "Open MQTT connections.", self._connections),
            ("iotmq_mqtt_accepted_total", "MQTT connections accepted.", self._accepted_total),
            (
                "iotmq_mqtt_refused_total",
                "Connections closed past mqtt.connections_max.",
                self._refused_total,
            ),
        )
        text = "MQTT connections ended, by reason."
        yield from samples_by("reason", "iotmq_mqtt_closed_total", text, self._closed_total)
        if parts is not None:
            yield from samples(
                ("iotmq_mqtt_sessions", "Connected sessions.", len(parts.sessions)),
                (
                    "iotmq_mqtt_subscriptions",
                    "Subscriptions of connected sessions.",
                    parts.subscriptions.count,
                ),
                (
                    "iotmq_mqtt_retained_sent_total",
                    "Retained messages sent to new subscriptions.",
                    parts.subscriptions.retained_sent,
                ),
            )
            yield from parts.sessions.prefixes.metrics()
            yield from parts.listeners.metrics()
            yield from parts.drain.metrics()
            yield from parts.bridges.metrics()
            yield from parts.authentication.metrics()
            yield from parts.permissions.metrics()
            yield from parts.guard.metrics()
            if parts.hooks is not None:
                yield from parts.hooks.metrics()
            if parts.plugins is not None:
                yield from parts.plugins.metrics()
            yield from traffic_metrics(parts.ingress, parts.egress, parts.group)
            yield from topic_metrics(
                parts.ingress, parts.subscriptions, self._rewrites, self._auto_subscriptions
            )
            if parts.durable is not None:
                yield from durable_metrics(parts.durable)
            if parts.shared is not None:
                yield from parts.shared.metrics()
