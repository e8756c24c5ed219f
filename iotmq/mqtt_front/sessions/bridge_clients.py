"""Bridges of other brokers: which connections are some, under which topics they are here, and whether they
are connected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from iotmq.limits import MQTT_BRIDGE_STATES_MAX
from iotmq.metrics import Metric, samples, samples_by
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.bridge_names import GATEWAY_PROPERTY
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import NOT_AUTHORIZED
from iotmq.mqtt.topics import topics
from iotmq.mqtt_front.connection.bridge_role import BridgeRole
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.deliver.sys_topics import SysTopics
from iotmq.mqtt_front.routing.device_names import DeviceNames, with_names
from iotmq.mqtt_front.routing.topic_rewrite import split_prefix
from iotmq.mqtt_front.settings.topics import BridgeClientSettings

_STATE: Final = "/state"
_CONNECTED: Final = "1"
_GONE: Final = "0"


class _Told(NamedTuple):
    text: str
    device: Device | None


class BridgeClients:
    """The bridges of one front end.

    `$SYS/broker/connection/CLIENT ID/state` is `1` while one is connected, and `0`, whatever its will says,
    when its connection has ended. It may publish there, with its own client id, that it does not reach us.
    """

    def __init__(
        self, settings: Iterable[BridgeClientSettings], sys_topics: SysTopics | None, *, gateway_name: str
    ) -> None:
        self._settings = tuple(settings)
        self._answer = ((GATEWAY_PROPERTY, gateway_name),)
        self._sys_topics = sys_topics
        self._connected: set[Device] = set()
        # By client id, the one that was heard of last at the end.
        self._told: dict[str, _Told] = {}

    def opened(self, device: Device, connect: packets.Connect) -> packets.Will | None:
        """Look at a connection that gets its session; returns the will it has here.

        Raises MqttProtocolError for one whose names cannot stand in its prefix.
        """
        client_id = device.client_id
        assert client_id is not None
        identity = getattr(device, "identity", None)
        settings = next((each for each in self._settings if _is_meant(each, client_id, device.user)), None)
        will = connect.will
        is_ours = any(name == GATEWAY_PROPERTY for name, _ in connect.properties.user_properties)
        is_proved = identity is not None and identity.is_bridge
        if settings is not None or connect.is_bridge or is_ours or is_proved:
            prefix = settings.prefix if settings is not None else ""
            if identity is not None and is_proved:
                prefix = identity.attributes.get("bridge_prefix", prefix)
            role = BridgeRole(
                client_id,
                prefix=_prefix(prefix, DeviceNames(client_id, device.user)),
                is_trusted=settings is not None and settings.is_trusted,
            )
            device.bridge = role
            device.properties = role.properties
            self._connected.add(device)
            self._keep(client_id, _CONNECTED, device)
            if will is not None and not will.topic.startswith(topics.BRIDGE_PREFIX):
                will = will._replace(topic=role.mounted(will.topic))
        if will is not None and will.topic.startswith(topics.BRIDGE_PREFIX):
            # That it is gone is seen here.
            return None
        return will

    def told(self, device: Device) -> tuple[tuple[str, str], ...]:
        """Return the user properties of the CONNACK of a bridge: who is here."""
        return self._answer if device.bridge is not None else ()

    def notified(self, device: Device, topic: str, payload: bytes) -> bool:
        """Take what a connection says about itself; False for what it may not say."""
        client_id = device.client_id
        if (
            client_id is None
            or topic != f"{topics.BRIDGE_PREFIX}{client_id}{_STATE}"
            or payload not in (b"0", b"1")
        ):
            return False
        self._connected.add(device)
        self._keep(client_id, payload.decode(), device)
        return True

    def lost(self, device: Device) -> None:
        """The connection is over; that of a session that was taken over says nothing about the other."""
        self._connected.discard(device)
        client_id = device.client_id
        if client_id is not None and client_id in self._told and self._told[client_id].device is device:
            self._keep(client_id, _GONE, None)

    def _keep(self, client_id: str, text: str, device: Device | None) -> None:
        before = self._told.pop(client_id, None)
        if before is None and len(self._told) >= MQTT_BRIDGE_STATES_MAX:
            gone = (name for name, told in self._told.items() if told.device is None)
            oldest = next(gone, next(iter(self._told)))
            del self._told[oldest]
            if self._sys_topics is not None:
                self._sys_topics.drop(_topic(oldest))
        self._told[client_id] = _Told(text, device)
        if self._sys_topics is not None and (before is None or before.text != text):
            self._sys_topics.put(_topic(client_id), text)

    def metrics(self) -> Iterable[Metric]:
        """Bridges that are connected, and what each has said of itself."""
        yield from samples(
            ("iotmq_mqtt_bridges", "Connections that are bridges of other brokers.", len(self._connected))
        )
        states = {client_id: float(told.text == _CONNECTED) for client_id, told in self._told.items()}
        text = "Whether a bridge that has been here is connected."
        yield from samples_by("bridge", "iotmq_mqtt_bridge_connected", text, states)


def mounted_filter(role: BridgeRole | None, topic_filter: str) -> str:
    """Return the filter of a connection as it is here, below the prefix of its bridge."""
    if role is None or not role.prefix:
        return topic_filter
    start, plain = split_prefix(topic_filter)
    if plain == "#":
        # Else it would be for the level above the prefix, too [MQTT-4.7.1-2].
        plain = "+/#"
    return f"{start}{role.prefix.decode()}{plain}" if plain else topic_filter


def _topic(client_id: str) -> str:
    return f"{topics.BRIDGE_PREFIX}{client_id}{_STATE}"


def _is_meant(settings: BridgeClientSettings, client_id: str, user: str | None) -> bool:
    return _fits(settings.client_id, client_id) and (
        settings.user == "*" if user is None else _fits(settings.user, user)
    )


def _fits(pattern: str, name: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _prefix(template: str, names: DeviceNames) -> str:
    try:
        prefix = with_names(template, names)
    except ValueError as error:
        raise MqttProtocolError(NOT_AUTHORIZED, f"the prefix of a bridge: {error}") from None
    if prefix and (not prefix.endswith("/") or prefix[0] in "/$" or "+" in prefix or "#" in prefix):
        raise MqttProtocolError(NOT_AUTHORIZED, f"the prefix of a bridge is {prefix!r}")
    return prefix
