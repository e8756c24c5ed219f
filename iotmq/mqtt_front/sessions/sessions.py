"""Own the sessions of connected devices: CONNECT, takeover, the end of a connection, and wills."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Final

from iotmq.audit_log import Record, no_audit
from iotmq.clock import Clock
from iotmq.message.properties import MQTT_CLIENT_ID, encode_properties
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt_front.audit import facts_of
from iotmq.mqtt_front.connection.deadlines import Deadlines
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.publish.ingress import Ingress
from iotmq.mqtt_front.routing.device_names import DeviceNames, names_of
from iotmq.mqtt_front.sessions.auto_subscriptions import AutoSubscriptions
from iotmq.mqtt_front.sessions.client_prefixes import ClientPrefixes
from iotmq.mqtt_front.sessions.durable import DurableSession, open_session
from iotmq.mqtt_front.sessions.left_wills import LeftWill, LeftWills
from iotmq.mqtt_front.sessions.subscriptions import Subscriptions
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.ports.sessions import (
    ENDED_BY_OPERATOR,
    FENCED_FOR_GOOD,
    NEVER_EXPIRES_S,
    CloseRequest,
    OpenedSession,
    OpenRequest,
    Refused,
    Will,
)

_log: Final = logging.getLogger("iotmq.mqtt")

# A session of MQTT 5 that a client resumes only to have it end with the connection.
_LAST_EXPIRY_S: Final = 1


class ConnectedSessions:
    """The sessions of the devices connected to one front end."""

    def __init__(
        self,
        settings: MqttSettings,
        ingress: Ingress,
        subscriptions: Subscriptions,
        auto_subscriptions: AutoSubscriptions,
        deadlines: Deadlines,
        clock: Clock,
    ) -> None:
        at_brokers = subscriptions.at_brokers
        self._settings = settings
        self._ingress = ingress
        self._subscriptions = subscriptions
        self._deadlines = deadlines
        self._clock = clock
        self._port = None if at_brokers is None else at_brokers.port
        self._durable = None if at_brokers is None else at_brokers.durable
        self._auto_subscriptions = auto_subscriptions
        self._rights = subscriptions.rights
        self.left_wills = None if self._port is None else LeftWills(self._port, clock)
        # Templates of topics ask for the names of devices (device_names).
        self._keeps_names = (
            subscriptions.rewrites.has_names
            or auto_subscriptions.has_names
            or ingress.targets.asks_names
            or bool(settings.routes_file)
        )
        self._asks_users = settings.authentication.is_asked
        self.prefixes = ClientPrefixes(
            settings.client_prefix_ends, None if self._port is None else self._port.report_clients
        )
        self._devices: dict[str, Device] = {}
        # Connections that have not opened a session yet, or lost theirs to another connection.
        self._without_session: set[Device] = set()
        self.audit: Record = no_audit
        """Told of devices that connect or are disconnected for others; a front end sets it."""

    def __len__(self) -> int:
        return len(self._devices)

    def devices(self) -> Iterator[Device]:
        """Yield every connection, with a session or without."""
        yield from list(self._devices.values())
        yield from list(self._without_session)

    def all_connected(self) -> list[Device]:
        """List the connections that have sent their CONNECT; it may not be accepted yet."""
        return list(self._devices.values())

    @property
    def by_client_id(self) -> dict[str, Device]:
        """Return the same by client id: only to be read, and they come and go."""
        return self._devices

    def connected(self, client_id: str) -> Device | None:
        """Return the connection of a client whose CONNECT was accepted."""
        device = self._devices.get(client_id)
        return device if device is not None and device.opened_ms and device.close_reason is None else None

    def kick(self, device: Device) -> bool:
        """Disconnect a client for an operator; it may come back. False: it has gone already."""
        if device.close_reason is not None:
            return False
        self.audit("kicked", **facts_of(device), reason=ENDED_BY_OPERATOR)
        device.close(reason_codes.ADMINISTRATIVE_ACTION)
        device.finish()
        return True

    def add(self, device: Device) -> None:
        """Add a connection whose CONNECT is to follow."""
        self._without_session.add(device)

    def open(self, device: Device, connect: packets.Connect, client_id: str) -> None:
        """Open or take over the session of a device whose CONNECT has come.

        A device that may not have its will is refused.
        """
        device.client_id = client_id
        device.properties = encode_properties({MQTT_CLIENT_ID: client_id})
        if self._keeps_names:
            # A name that somebody was asked about, and did not prove, is none.
            claimed = None if self._asks_users else connect.user_name
            device.names = DeviceNames(client_id, device.user or claimed).key()
        will = connect.will
        if self._ingress.bridges is not None:
            try:
                will = self._ingress.bridges.opened(device, connect)
            except MqttProtocolError as error:
                device.refuse(error.reason, str(error))
                device.finish()
                return
        device.rights = self._rights.permissions.rights_of(device)
        self._rights.will(device, will, partial(self._will_decided, device, connect, will))

    def _will_decided(
        self, device: Device, connect: packets.Connect, will: packets.Will | None, is_allowed: bool
    ) -> None:
        if is_allowed:
            self._open(device, connect, will)
        else:
            device.refuse(reason_codes.NOT_AUTHORIZED, "it may not have this will")

    def _open(self, device: Device, connect: packets.Connect, will: packets.Will | None) -> None:
        client_id = device.client_id
        assert client_id is not None
        former = self._devices.get(client_id)
        self._without_session.discard(device)
        if former is not None:  # [MQTT-3.1.4-2]
            self.audit("kicked", **facts_of(former), reason="taken over")
            self._hang_up_former(former, reason_codes.SESSION_TAKEN_OVER)
        self._devices[client_id] = device
        if self.left_wills is not None:
            self.left_wills.forget(client_id)
        keep_alive_s_max = self._settings.keep_alive_s_max
        if keep_alive_s_max and not 0 < connect.keep_alive_s <= keep_alive_s_max:
            device.keep_alive_s = keep_alive_s_max
        asked_s = asked_expiry_s(connect)
        device.expiry_s = 0 if self._port is None else min(asked_s, self._settings.session_expiry_s_max)
        told = self._told(device, connect, asked_s)
        if self._port is None:
            device.will = will
            self._accept(device, told, is_present=False)
            self._deadlines.watch(device, self._clock.monotonic_s())
            self._subscribe_automatically(device)
            return
        self._port.open_session(
            OpenRequest(
                client_id=client_id,
                is_clean=connect.clean_session,
                expiry_s=self._opened_expiry_s(device, connect),
                will=self._kept_will(device, will),
            ),
            partial(
                self._opened,
                device,
                client_id,
                told,
                will,
                is_kept=self._opened_expiry_s(device, connect) > 0,
            ),
        )

    def _told(self, device: Device, connect: packets.Connect, asked_s: int) -> Properties:
        """Return the properties of a CONNACK of MQTT 5 beside the limits of the connection."""
        assert device.client_id is not None
        information = None
        if connect.properties.request_response_information:  # [MQTT-3.1.2-28]
            information = self._settings.response_information or None
        return Properties(
            session_expiry_s=device.expiry_s if device.expiry_s != asked_s else None,
            assigned_client_id=device.client_id if not connect.client_id else None,
            server_keep_alive_s=device.keep_alive_s if device.keep_alive_s != connect.keep_alive_s else None,
            response_information=information,
            is_retain_available=0 if self._port is None else None,
            is_sharing_available=0 if self._port is None else None,
            user_properties=() if self._ingress.bridges is None else self._ingress.bridges.told(device),
        )

    def _opened_expiry_s(self, device: Device, connect: packets.Connect) -> int:
        """Return the expiry for the broker; a session that ends with its connection is kept until then."""
        if device.expiry_s or connect.clean_session or not self._settings.session_expiry_s_max:
            return device.expiry_s
        return _LAST_EXPIRY_S

    def identity_renewed(self, device: Device) -> None:
        """Apply the rights of the identity that a connected device has from now on."""
        self._rights.renewed(device, self._subscriptions.withdraw)

    def rules_changed(self) -> None:
        """Have what connected devices have subscribed compared with the permissions of now."""
        self._rights.rules_changed(
            (*self._devices.values(), *(self.left_wills or ())), self._subscriptions.withdraw
        )

    def ended_by_bans(self) -> Iterator[Device | LeftWill]:
        """Yield every connection, and the wills that brokers keep for those that have gone."""
        yield from self.devices()
        yield from self.left_wills or ()

    def lost(self, device: Device) -> None:
        """End a connection: its will is due unless dropped, and a session that is not kept ends."""
        if not self._is_will_delayed(device):
            will, device.will = device.will, None
            if will is not None and self._rights.allows_still(device, will):
                self._ingress.publish_will(device, will)
        self._rights.forget(device)
        self.prefixes.closed(device.traffic)
        self._subscriptions.drop_all(device)
        if self._ingress.bridges is not None:
            self._ingress.bridges.lost(device)
        self._without_session.discard(device)
        self._leave(device)
        device.will = None
        if device.client_id is not None and self._devices.get(device.client_id) is device:
            del self._devices[device.client_id]

    def disconnected(self, device: Device, event: packets.Disconnect) -> None:
        """Apply a DISCONNECT: a regular one drops the will; it may change how long the session is kept."""
        if event.reason_code == 0:  # [MQTT-3.14.4-3]
            device.will = None
        if event.session_expiry_s is not None:
            device.expiry_s = min(event.session_expiry_s, self._settings.session_expiry_s_max)

    def session_fenced(self, client_id: str, epoch: int, reason: str) -> None:
        """Give up a session that another front end takes, an operator ends, or a device has to open anew."""
        device = self._devices.get(client_id)
        if device is not None and device.has_session and device.epoch == epoch:
            del self._devices[client_id]
            _log.debug("session lost", extra={"client": client_id, "detail": reason})
            self.audit("kicked", **facts_of(device), reason=reason)
            # Clients of MQTT 5 do not connect again when their session is taken over.
            is_final = reason in FENCED_FOR_GOOD
            self._hang_up_former(
                device, reason_codes.SESSION_TAKEN_OVER if is_final else reason_codes.SERVER_BUSY
            )

    def _kept_will(self, device: Device, will: packets.Will | None) -> Will | None:
        """Return the device's will for its broker, which publishes it when this process dies."""
        if will is None:
            return None
        try:
            return self._ingress.encode_will(device, will)
        except MqttProtocolError as error:
            _log.warning("will not stored", extra={"client": device.client_id, "detail": str(error)})
            return None

    def _opened(
        self,
        device: Device,
        client_id: str,
        told: Properties,
        will: packets.Will | None,
        opened: OpenedSession | Refused,
        *,
        is_kept: bool,
    ) -> None:
        """Go on with a CONNECT when the broker has answered, or will not."""
        assert self._port is not None
        if isinstance(opened, Refused):
            if device.close_reason is None:
                _log.warning("no session", extra={"client": client_id, "detail": opened.remark})
                device.refuse(reason_codes.SERVER_UNAVAILABLE)
                device.finish()
            return
        if device.close_reason is not None:
            # It went meanwhile. A will is one only when its CONNECT was accepted [MQTT-3.1.2-8].
            self._port.close_session(
                CloseRequest(
                    client_id=client_id, epoch=opened.epoch, expiry_s=device.expiry_s, drops_will=True
                )
            )
            return
        device.epoch = opened.epoch
        device.has_session = True
        if not is_kept:
            self._go_on(device, told, will, opened, None, [])
            return
        assert self._durable is not None
        session = open_session(self._durable, device, client_id, opened)
        held = [(entry.topic_filter, entry.options) for entry in opened.subscriptions]
        self._rights.lost_on_return(device, held, partial(self._go_on, device, told, will, opened, session))

    def _go_on(
        self,
        device: Device,
        told: Properties,
        will: packets.Will | None,
        opened: OpenedSession,
        session: DurableSession | None,
        lost: list[str],
    ) -> None:
        """Accept a CONNECT when the session is known, and which of its subscriptions are `lost` by rules."""
        if device.close_reason is not None:
            return
        device.will = will
        if session is not None:
            self._subscriptions.resume(device, opened.subscriptions)
        self._accept(device, told, is_present=opened.is_present)
        self._deadlines.watch(device, self._clock.monotonic_s())
        if session is not None:
            session.start(opened, lost)
            self._subscriptions.withdraw(device, lost)
            gone = set(lost)
            self._subscriptions.resume_shared(
                device, [entry for entry in opened.subscriptions if entry.topic_filter not in gone]
            )
            self._rights.check_again(device, self._subscriptions.withdraw)
        self._subscribe_automatically(device)
        device.after_answer()

    def _accept(self, device: Device, told: Properties, *, is_present: bool) -> None:
        assert device.client_id is not None
        device.traffic = self.prefixes.opened(device.client_id)
        device.open(session_present=is_present, properties=told)
        self.audit("connected", **facts_of(device))

    def _subscribe_automatically(self, device: Device) -> None:
        if self._auto_subscriptions and device.close_reason is None:
            self._subscriptions.subscribe_automatically(device, self._auto_subscriptions.of(names_of(device)))

    def _leave(self, device: Device) -> None:
        """Tell the broker, once, that the device has gone and how far it came.

        Its will is this process's, but for one with a delay that the session outlives.
        """
        if self._port is None or not device.has_session or device.client_id is None:
            return
        left = self._will_to_leave(device)
        device.has_session = False
        self._subscriptions.leave_shared(device)
        expiry_s = 0
        if isinstance(device.session, DurableSession):
            expiry_s = device.expiry_s
            progress = device.session.end()
            if progress is not None:
                self._port.progress([progress], _log_refusal)
        self._port.close_session(
            CloseRequest(
                client_id=device.client_id, epoch=device.epoch, expiry_s=expiry_s, drops_will=left is None
            )
        )
        if left is not None and self.left_wills is not None:
            self.left_wills.add(left[0], epoch=device.epoch, delay_s=left[1])

    def _will_to_leave(self, device: Device) -> tuple[LeftWill, int] | None:
        """Return the will that the broker is to see to, and its delay: one that is still allowed."""
        will = device.will
        if self.left_wills is None or will is None or not self._is_will_delayed(device):
            return None
        device.will = None
        if not self._rights.allows_still(device, will):
            return None
        return self._rights.left_will(self.left_wills, device, will), will.properties.will_delay_s or 0

    def _is_will_delayed(self, device: Device) -> bool:
        """Return whether the broker is to see to the will.

        A session ends with its connection at once otherwise.
        """
        if device.will is None or not device.has_session or not device.expiry_s:
            return False
        return bool(device.will.properties.will_delay_s)

    def _hang_up_former(self, former: Device, reason: reason_codes.Reason) -> None:
        """Disconnect the former device: another connection has its session now."""
        self._without_session.add(former)
        self._leave(former)
        former.close(reason)
        former.finish()


def asked_expiry_s(connect: packets.Connect) -> int:
    """Return how long a client wants its session kept; before MQTT 5 it is as long as we like."""
    if connect.protocol_level == packets.PROTOCOL_LEVEL_5:
        return connect.properties.session_expiry_s or 0
    return 0 if connect.clean_session else NEVER_EXPIRES_S


def _log_refusal(refused: Refused | None) -> None:
    """Log progress that is not stored: the session gets some messages again."""
    if refused is not None:
        _log.warning("the progress of a session is not stored", extra={"detail": refused.remark})
