"""Settings of bridges to other MQTT brokers (`[[bridges]]` of the configuration)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.secret_text import hide
from iotmq.setting_types import FileName, SecretText, TopicName

_FilterText = Annotated[str, Meta(min_length=1, max_length=limits.MQTT_TOPIC_BYTES_MAX)]
_TemplateText = Annotated[str, Meta(min_length=1, max_length=limits.MQTT_TOPIC_BYTES_MAX)]


class SendRuleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages of the log that go to the other broker; the first rule whose filter matches decides."""

    filter: _FilterText = "#"
    """Filter of the MQTT topics here."""
    topic: _TemplateText = "{topic}"
    """Topic there: text with {topic} for the topic here, {0}, {1}, ... for its levels, {1:} for those from
    one on, {gateway} for mqtt.gateway_name."""
    qos_min: Annotated[int, Meta(ge=0, le=1)] = 0
    """QoS 1 has messages of QoS 0 acknowledged by the other broker, too: what is in the log arrives at least
    once."""
    qos_max: Annotated[int, Meta(ge=0, le=2)] = 1
    """A message of QoS 2 goes with 1, and iotmq-message tells repeats apart. With 2 the other broker has it
    as QoS 2; after a lost connection it may come twice all the same."""
    retain: bool = True
    """Messages keep their retain flag; false takes it off."""


class ReceiveRuleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Messages that are subscribed at the other broker, and where they go here."""

    filter: _FilterText
    """Filter of the topics there; $share/GROUP/FILTER where several gateways share the messages."""
    topic: _TemplateText = "{topic}"
    """Topic here, a template as in send."""
    qos: Annotated[int, Meta(ge=0, le=2)] = 1
    """The highest QoS of its messages."""


class BridgeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bridge to another MQTT broker, which this gateway connects to as a client."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+\Z")]
    """Name of the bridge (letters, digits, _ -) in metrics and log. Its consumer group is BRIDGE_ and the
    name."""
    address: Annotated[str, Meta(min_length=1, max_length=1_024)]
    """The other broker: mqtt://HOST:PORT, mqtts:// for TLS, unix:PATH."""
    version: Literal["5", "3.1.1"] = "5"
    """Version of MQTT. Only 5 has properties, a window told by the other broker, and marks that end loops."""
    client_id: Annotated[str, Meta(max_length=limits.MQTT_CLIENT_ID_BYTES_MAX - 8)] = ""
    """Client id there; further connections have -2, -3, ... behind it. Empty: GATEWAY-NAME, of
    mqtt.gateway_name and the bridge."""
    user_name: Annotated[str, Meta(max_length=limits.MQTT_USER_NAME_BYTES_MAX)] = ""
    """User name there; empty: none."""
    password: Annotated[SecretText, Meta(max_length=limits.MQTT_PASSWORD_BYTES_MAX)] = ""
    """Password of that user."""
    tls_ca_file: FileName = ""
    """PEM file with the roots of the other broker's certificate; empty for the machine's own."""
    tls_certificate_file: FileName = ""
    """PEM file with the certificate of this gateway, where the other broker asks for one."""
    tls_key_file: FileName = ""
    """PEM file with its key; empty when that file has it."""
    tls_is_verified: bool = True
    """Whether the other broker has to show a certificate of these roots for its name."""
    send: Annotated[tuple[SendRuleSettings, ...], Meta(max_length=limits.BRIDGE_RULES_MAX)] = ()
    """Rules of what goes there, in order."""
    receive: Annotated[tuple[ReceiveRuleSettings, ...], Meta(max_length=limits.BRIDGE_RULES_MAX)] = ()
    """Rules of what comes from there, in order."""
    broker_topics: Annotated[tuple[TopicName, ...], Meta(max_length=limits.BRIDGE_BROKER_TOPICS_MAX)] = ()
    """Broker topics that are read for send. Messages of native producers in one that is named here go, too,
    under the name of the broker topic when they have no MQTT topic. Empty: those of devices, that is
    mqtt.default_topic and the topics of mqtt.routes."""
    begin: Literal["first", "last"] = "first"
    """Where a new bridge begins to read: with the oldest message of the log, or with what comes from now
    on."""
    connections: Annotated[int, Meta(ge=1, le=limits.BRIDGE_CONNECTIONS_MAX)] = 1
    """Connections that send. Each has some of the queues, so messages of one key keep their order."""
    in_flight_max: Annotated[int, Meta(ge=1, le=65_535)] = 1_024
    """Messages that one connection has sent and that are not acknowledged, where the other broker's receive
    maximum is not smaller."""
    messages_per_s: Annotated[int, Meta(ge=0, le=10_000_000)] = 0
    """Messages a second at most, such as after an outage; 0 = as many as the other broker takes."""
    bytes_per_s: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """Bytes of records a second at most; 0 = no limit."""
    drops_qos0_offline: bool = False
    """Leave out messages of QoS 0 that were stored while the connection was lost: measurements that nobody
    needs late."""
    properties: bool = True
    """With MQTT 5, tell which device has published a message (iotmq-client-id), its place in the log, by
    which a receiver tells repeats apart (iotmq-message), and which gateways it has passed (iotmq-hops)."""
    forwards_bridged: bool | None = None
    """Send messages, too, that came here over another bridge. Without it: with MQTT 5, which marks where a
    message has been. MQTT 3.1.1 does not: true is for another broker that sends nothing back over a bridge
    of its own."""
    bridge_bit: bool = True
    """With MQTT 3.1.1, say that this is a bridge by a bit of the protocol level, as Mosquitto does; without
    it where that is refused."""
    session_expiry_s: Annotated[int, Meta(ge=1, le=0xFFFF_FFFF)] = 7 * 24 * 3600
    """How long the other broker is to keep what receive has subscribed while this gateway is away, in
    seconds (MQTT 5; with 3.1.1 as long as it likes)."""
    packet_bytes_max: Annotated[int, Meta(ge=1024, le=16 * 1024 * 1024)] = limits.MQTT_PACKET_BYTES_MAX
    """Largest packet taken from the other broker, in bytes."""
    keep_alive_s: Annotated[int, Meta(ge=2, le=65_535)] = 30
    """Seconds of silence after which the other broker is asked whether it is there."""
    connect_timeout_s: Annotated[float, Meta(gt=0, le=300)] = 10.0
    """Seconds for a connection with its CONNACK, and for the answer to the question whether it is there."""
    reconnect_min_s: Annotated[float, Meta(gt=0, le=3_600)] = 1.0
    """The first pause before connecting again; it doubles with each failure, and is spread by chance."""
    reconnect_max_s: Annotated[float, Meta(gt=0, le=3_600)] = 30.0
    """The longest pause."""
    alarm_age_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Age of the oldest message that is not there yet past which the gateway says that it is not ready; 0 =
    never."""

    def __post_init__(self) -> None:
        hide(self, "password")
