"""`MqttDeviceUser`: one Locust user is one device, with the attributes of `locust.contrib.mqtt.MqttUser`."""

from __future__ import annotations

import ssl
from typing import Any, Literal

from gevent.pool import Group
from locust import User
from locust.env import Environment

from iotmq.errors import ClientError
from iotmq.mqtt.codec.packets import PROTOCOL_LEVEL_3_1, PROTOCOL_LEVEL_3_1_1, PROTOCOL_LEVEL_5, Will
from iotmq.mqtt_client.address import Address, parse_url
from iotmq.mqtt_client.settings import MqttClientSettings, new_client_id
from iotmq.spelling import did_you_mean
from loadtest.users.devices_tab import Devices
from loadtest.users.mqtt_client import DeviceClient, event_name
from loadtest.users.process import Process
from loadtest.users.statistics import install_buckets


class MqttDeviceUser(User):
    """A device; it connects when it is made, and connects again when it loses its connection.

    The first part of the attributes is that of `locust.contrib.mqtt.MqttUser`.
    """

    abstract = True

    host: str | None = "localhost"
    """A name, an address, or a URL (`mqtt://HOST:PORT`; mqtts, ws, wss), which wins over those below."""
    port: int = 1883
    transport: Literal["tcp", "websockets"] = "tcp"
    ws_path: str = "/mqtt"
    tls_context: ssl.SSLContext | None = None
    client_cls: type[DeviceClient] = DeviceClient
    client_id: str | None = None
    """None for a random one."""
    username: str | None = None
    password: str | None = None
    protocol: int = 4
    """3 for MQTT 3.1, 4 for 3.1.1, 5 for 5, or paho's names for them."""
    use_loop_selectors: bool = False
    """Without a meaning here: any number of connections will do."""

    keep_alive_s: int = 60
    clean_session: bool = True
    session_expiry_s: int = 0
    """MQTT 5: how long the server keeps the session without a connection."""
    will: Will | None = None
    stamps: Literal["payload", "property"] | None = None
    """Where messages have a stamp: 24 bytes in front of the payload, or a user property of MQTT 5.
    Receivers measure end-to-end latency by it, and find what is lost or repeated. None: messages are sent
    as they are."""
    checks_sequences: bool = True
    """Count what is lost or repeated. To be switched off for a device with filters that overlap."""
    answer_timeout_s: float = 20.0
    """Seconds for a connection and for every acknowledgement."""
    in_flight_max: int | None = None
    """Messages without acknowledgement; None for what the server allows."""
    reconnects: bool = True
    reconnect_min_s: float = 0.2
    """The first pause before connecting again; it doubles with each failure."""
    reconnect_max_s: float = 10.0

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        install_buckets()
        self._process = Process.get(environment)
        Devices.get(environment).process = self._process
        self.client: DeviceClient = self.client_cls(
            environment,
            _settings_of(self),
            context=self.tls_context or self._default_context(),
            stamps=self.stamps,
            checks_sequences=self.checks_sequences,
            name_of=self.event_name,
        )

    def event_name(self, action: str, qos: int, topic: str) -> str:
        """Name the row of an event (`publish`, `subscribe`, `unsubscribe`, `receive`).

        Override it where there are many topics: each name is a row.
        """
        return event_name(action, qos, topic)

    def start(self, group: Group) -> Any:
        greenlet = super().start(group)
        greenlet.link(self._left)
        return greenlet

    def _left(self, _greenlet: object) -> None:
        """Disconnect when the user leaves; at the end of a run all devices do so together."""
        if not self._process.is_ending and self._process.is_known(self.client.device):
            self.client.disconnect()

    @classmethod
    def check(cls) -> None:
        """Raise ClientError for attributes that cannot be, or are spelt nearly like one of ours."""
        known = {name: name for name in _attributes(MqttDeviceUser)}
        for name in _attributes(cls) - known.keys() - _attributes(User):
            if hint := did_you_mean(name, known):
                raise ClientError(f"{cls.__name__}.{name} is no attribute of a device{hint}")
        if cls.stamps not in (None, "payload", "property"):
            raise ClientError(f"{cls.__name__}.stamps is 'payload', 'property' or None, not {cls.stamps!r}")
        if cls.stamps == "property" and cls.protocol != PROTOCOL_LEVEL_5:
            raise ClientError(f"{cls.__name__}: stamps = 'property' needs protocol = 5")
        if cls.protocol not in (PROTOCOL_LEVEL_3_1, PROTOCOL_LEVEL_3_1_1, PROTOCOL_LEVEL_5):
            raise ClientError(f"{cls.__name__}.protocol is 3, 4 or 5, not {cls.protocol!r}")
        if cls.transport not in ("tcp", "websockets"):
            raise ClientError(f"{cls.__name__}.transport is 'tcp' or 'websockets', not {cls.transport!r}")
        _settings_of(cls)

    def _default_context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if _address_of(self).is_secure else None


def _address_of(user: MqttDeviceUser | type[MqttDeviceUser]) -> Address:
    host = user.host or "localhost"
    if "://" in host:
        return parse_url(host).address
    is_secure = user.tls_context is not None
    if user.transport == "websockets":
        return Address("wss" if is_secure else "ws", host, user.port, user.ws_path)
    return Address("mqtts" if is_secure else "mqtt", host, user.port)


def _settings_of(user: MqttDeviceUser | type[MqttDeviceUser]) -> MqttClientSettings:
    return MqttClientSettings(
        address=_address_of(user),
        client_id=user.client_id or new_client_id(),
        protocol_level=int(user.protocol),
        clean_session=user.clean_session,
        session_expiry_s=user.session_expiry_s,
        ends_session=False,
        keep_alive_s=user.keep_alive_s,
        user_name=user.username,
        password=None if user.password is None else user.password.encode(),
        will=user.will,
        in_flight_max=user.in_flight_max,
        connect_timeout_s=user.answer_timeout_s,
        reconnects=user.reconnects,
        reconnect_min_s=user.reconnect_min_s,
        reconnect_max_s=user.reconnect_max_s,
    )


def _attributes(cls: type) -> set[str]:
    """Return the names of a class's plain values."""
    return {
        name
        for each in cls.__mro__
        if each is not object
        for name, value in vars(each).items()
        if not name.startswith("_")
        and not callable(value)
        and not isinstance(value, property | classmethod | staticmethod)
    }
