"""Define the settings of a client."""

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
        """The data of CONNECT."""

    def answer(self, data: bytes) -> bytes:
        """The answer to the server's challenge; ClientError when it cannot be given."""

    def finish(self, data: bytes) -> None:
        """The server's last word; ClientError when it is not who it should be."""


def new_client_id() -> str:
    """One that nobody else has."""
    return f"iotmq-{uuid.uuid4().hex[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttClientSettings:
    """Sizes are bytes. What only MQTT 5 has is not sent with other versions.

    `clean_session` holds for the first connection; with MQTT 5 the later ones of the same client go on with
    its session, which the server keeps for `session_expiry_s`; `ends_session` gives it up when the client is
    closed. An empty `client_id` is assigned by the server. `connect_properties` is for user properties and
    the like.
    """

    address: Address = field(default_factory=Address)
    client_id: str = field(default_factory=new_client_id)
    protocol_level: int = PROTOCOL_LEVEL_5
    clean_session: bool = True
    session_expiry_s: int = 0
    ends_session: bool = False
    keep_alive_s: int = 60
    user_name: str | None = None
    password: bytes | None = None
    authenticator: Callable[[], Authenticator] | None = None
    will: Will | None = None
    connect_properties: Properties = NO_PROPERTIES
    tls: TlsOptions = field(default_factory=TlsOptions)
    in_flight_max: int | None = None
    receive_max: int = limits.MQTT_CLIENT_RECEIVE_MAX
    packet_bytes_max: int = limits.MQTT_CLIENT_PACKET_BYTES_MAX
    topic_aliases_max: int = limits.MQTT_TOPIC_ALIASES_MAX
    gives_aliases: bool = True
    unread_bytes_max: int = limits.MQTT_CLIENT_UNREAD_BYTES_MAX
    connect_timeout_s: float = ANSWER_TIMEOUT_S
    reconnects: bool = True
    reconnect_min_s: float = 0.2
    reconnect_max_s: float = 30.0

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
        """Messages of QoS 1 and 2 without an acknowledgement, where the server does not ask for less."""
        if self.in_flight_max is not None:
            return self.in_flight_max
        is_told = self.protocol_level == PROTOCOL_LEVEL_5
        return limits.MQTT_CLIENT_IN_FLIGHT_MAX if is_told else limits.MQTT_CLIENT_IN_FLIGHT_UNTOLD_MAX

    def connect_packet(
        self, *, is_first: bool, client_id: str, authenticator: Authenticator | None
    ) -> Connect:
        """The CONNECT of the next connection."""
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
