"""Settings of an MQTT client."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from iotmq import limits
from iotmq.errors import ClientError
from iotmq.mqtt.client.connection import ANSWER_TIMEOUT_S
from iotmq.mqtt.codec.packets import PROTOCOL_LEVEL_3_1, PROTOCOL_LEVEL_5, Connect, Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt_client.address import Address
from iotmq.mqtt_client.tls import TlsOptions


class Authenticator(Protocol):
    """The client's side of one run of enhanced authentication (MQTT 5 section 4.12)."""

    @property
    def method(self) -> str:
        """Return the authentication method for CONNECT."""

    def first(self) -> bytes | None:
        """Return the authentication data for CONNECT."""

    def answer(self, data: bytes) -> bytes:
        """Answer the server's challenge; ClientError when that is not possible."""

    def finish(self, data: bytes) -> None:
        """Check the data of CONNACK; ClientError when the server does not prove its identity."""


def new_client_id() -> str:
    """Make a random client id."""
    return f"iotmq-{uuid.uuid4().hex[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttClientSettings:
    """Settings of an MQTT client. Those that only MQTT 5 has are not sent with other versions."""

    address: Address = field(default_factory=Address)
    """The server."""
    client_id: str = field(default_factory=new_client_id)
    """If empty, the server assigns one."""
    protocol_level: int = PROTOCOL_LEVEL_5
    """3 for MQTT 3.1, 4 for 3.1.1, 5 for 5."""
    clean_session: bool = True
    """For the first connection; with MQTT 5 later ones of this client go on with its session."""
    session_expiry_s: int = 0
    """How long the server keeps the session without a connection."""
    ends_session: bool = False
    """Give the session up when the client is closed."""
    keep_alive_s: int = 60
    """0 for no limit."""
    user_name: str | None = None
    """The user name in CONNECT."""
    password: bytes | None = field(default=None, repr=False)
    """The password in CONNECT; before MQTT 5 it needs a user name."""
    authenticator: Callable[[], Authenticator] | None = None
    """Begins an enhanced authentication for each connection."""
    will: Will | None = None
    """The message that the server publishes when the connection is lost."""
    connect_properties: Properties = NO_PROPERTIES
    """Further properties of CONNECT, such as user properties."""
    tls: TlsOptions = field(default_factory=TlsOptions)
    """Certificates and versions for `mqtts` and `wss`."""
    in_flight_max: int | None = None
    """Messages of QoS 1 and 2 under way to the server; None for the server's receive maximum, up to a
    limit."""
    receive_max: int = limits.MQTT_CLIENT_RECEIVE_MAX
    """Messages of QoS 1 and 2 under way from the server."""
    packet_bytes_max: int = limits.MQTT_CLIENT_PACKET_BYTES_MAX
    """The largest packet the server may send."""
    topic_aliases_max: int = limits.MQTT_TOPIC_ALIASES_MAX
    """Topic aliases the server may use."""
    gives_aliases: bool = True
    """Use topic aliases towards the server."""
    unread_bytes_max: int = limits.MQTT_CLIENT_UNREAD_BYTES_MAX
    """Bytes that the program has not taken; with more, reading from the server pauses."""
    connect_timeout_s: float = ANSWER_TIMEOUT_S
    """Seconds for a connection with its CONNACK, and for a PINGRESP."""
    reconnects: bool = True
    """Connect again when a connection is lost."""
    reconnect_min_s: float = 0.2
    """The first pause before connecting again; it doubles with each failure."""
    reconnect_max_s: float = 30.0
    """The longest pause."""

    def __post_init__(self) -> None:
        if self.in_flight_max is not None and not 1 <= self.in_flight_max <= 65_535:
            raise ClientError("in_flight_max must be between 1 and 65,535")
        if not 1 <= self.receive_max <= 65_535:
            raise ClientError("receive_max must be between 1 and 65,535")
        if not 0 <= self.keep_alive_s <= 65_535:
            raise ClientError("keep_alive_s must be between 0 and 65,535")
        if self.password is not None and self.user_name is None and self.protocol_level != PROTOCOL_LEVEL_5:
            raise ClientError("a password needs a user name before MQTT 5")
        if self.authenticator is not None and self.protocol_level != PROTOCOL_LEVEL_5:
            raise ClientError("enhanced authentication needs MQTT 5")
        if not self.client_id and self.protocol_level == PROTOCOL_LEVEL_3_1:
            raise ClientError("MQTT 3.1 has no empty client id")
        is_v5 = self.protocol_level == PROTOCOL_LEVEL_5
        if not self.client_id and not self.clean_session and not is_v5:  # [MQTT-3.1.3-7]
            raise ClientError("an empty client id needs a clean session before MQTT 5")

    @property
    def window(self) -> int:
        """Return how many messages may wait for acknowledgements, if the server allows as many."""
        if self.in_flight_max is not None:
            return self.in_flight_max
        is_told = self.protocol_level == PROTOCOL_LEVEL_5
        return limits.MQTT_CLIENT_IN_FLIGHT_MAX if is_told else limits.MQTT_CLIENT_IN_FLIGHT_UNTOLD_MAX

    def connect_packet(
        self, *, is_first: bool, client_id: str, authenticator: Authenticator | None
    ) -> Connect:
        """Build the CONNECT of the next connection."""
        is_v5 = self.protocol_level == PROTOCOL_LEVEL_5
        properties = NO_PROPERTIES
        if is_v5:
            properties = replace(
                self.connect_properties,
                session_expiry_s=self.session_expiry_s or None,
                receive_max=self.receive_max,
                packet_bytes_max=self.packet_bytes_max,
                topic_alias_max=self.topic_aliases_max or None,
                authentication_method=authenticator.method if authenticator is not None else None,
                authentication_data=authenticator.first() if authenticator is not None else None,
            )
        return Connect(
            client_id,
            self.clean_session and (is_first or not is_v5),
            self.keep_alive_s,
            self.will,
            self.user_name,
            self.password,
            self.protocol_level,
            properties,
        )
