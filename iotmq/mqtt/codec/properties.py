"""The properties of MQTT 5 packets (section 2.2.2): what each is, where it is allowed, and its bytes.

PUBLISH packets from devices are read by `iotmq.mqtt.codec.publish_properties`, which makes no objects; this
is for the packets that are rare, and for whoever writes packets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from iotmq.mqtt.codec.field_reader import FieldReader
from iotmq.mqtt.codec.framing import encode_variable_integer
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import MALFORMED_PACKET, PROTOCOL_ERROR, QUOTA_EXCEEDED

# Whose properties they are: packet types, and the will inside of a CONNECT.
WILL: Final = 0
_CONNECT, _CONNACK, _PUBLISH, _SUBSCRIBE, _UNSUBSCRIBE, _DISCONNECT, _AUTH = 1, 2, 3, 8, 10, 14, 15
_ACKNOWLEDGEMENTS: Final = frozenset({4, 5, 6, 7, 9, 11})
_EVERYWHERE: Final = _ACKNOWLEDGEMENTS | {
    WILL,
    _CONNECT,
    _CONNACK,
    _PUBLISH,
    _SUBSCRIBE,
    _UNSUBSCRIBE,
    _DISCONNECT,
    _AUTH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """The properties of one packet; None, or an empty tuple, where one is absent."""

    payload_format: int | None = None
    """PUBLISH, will: 1 for a payload of UTF-8 text."""
    message_expiry_s: int | None = None
    """PUBLISH, will: seconds until the message expires."""
    content_type: str | None = None
    """PUBLISH, will: the kind of payload."""
    response_topic: str | None = None
    """PUBLISH, will: topic for the answer to a request."""
    correlation_data: bytes | None = None
    """PUBLISH, will: repeated by the answer to a request."""
    subscription_identifiers: tuple[int, ...] = ()
    """SUBSCRIBE: the identifier of its subscriptions. PUBLISH: those of the subscriptions it matches."""
    session_expiry_s: int | None = None
    """CONNECT, CONNACK, DISCONNECT: seconds that the session outlives its connection."""
    assigned_client_id: str | None = None
    """CONNACK: the client id for a client without one."""
    server_keep_alive_s: int | None = None
    """CONNACK: keep-alive in place of the client's."""
    authentication_method: str | None = None
    """CONNECT, CONNACK, AUTH: method of enhanced authentication."""
    authentication_data: bytes | None = None
    """CONNECT, CONNACK, AUTH: data of the method."""
    request_problem_information: int | None = None
    """CONNECT: 0 for answers without reason strings and user properties."""
    will_delay_s: int | None = None
    """Will: seconds between the end of the connection and the will."""
    request_response_information: int | None = None
    """CONNECT: 1 to ask for response information."""
    response_information: str | None = None
    """CONNACK: base of response topics."""
    server_reference: str | None = None
    """CONNACK, DISCONNECT: another server to use."""
    reason_string: str | None = None
    """CONNACK, acknowledgements, DISCONNECT, AUTH: the reason as a text for people."""
    receive_max: int | None = None
    """CONNECT, CONNACK: unacknowledged QoS 1 and 2 messages that the sender of this packet takes."""
    topic_alias_max: int | None = None
    """CONNECT, CONNACK: the highest topic alias that the sender of this packet takes."""
    topic_alias: int | None = None
    """PUBLISH: a number in place of the topic."""
    qos_max: int | None = None
    """CONNACK: the highest QoS of the server; 2 if absent."""
    is_retain_available: int | None = None
    """CONNACK: 0 if the server has no retained messages."""
    user_properties: tuple[tuple[str, str], ...] = ()
    """All packets: pairs of name and value, in their order."""
    packet_bytes_max: int | None = None
    """CONNECT, CONNACK: the largest packet that the sender of this packet takes."""
    are_wildcards_available: int | None = None
    """CONNACK: 0 if filters may have no wildcards."""
    are_subscription_identifiers_available: int | None = None
    """CONNACK: 0 if SUBSCRIBE may have no identifier."""
    is_sharing_available: int | None = None
    """CONNACK: 0 if there are no shared subscriptions."""


NO_PROPERTIES: Final = Properties()


class _Kind(NamedTuple):
    """A data type of section 1.5."""

    read: Callable[[FieldReader, str], Any]
    write: Callable[[Any], bytes]


def write_text(text: str) -> bytes:
    """UTF-8 text behind its length, two bytes."""
    return write_binary(text.encode())


def write_binary(data: bytes) -> bytes:
    """Bytes behind their length, two bytes."""
    return len(data).to_bytes(2, "big") + data


_BYTE: Final = _Kind(lambda reader, _: reader.u8(), lambda value: bytes([value]))
_U16: Final = _Kind(lambda reader, _: reader.u16(), lambda value: value.to_bytes(2, "big"))
_U32: Final = _Kind(lambda reader, _: reader.u32(), lambda value: value.to_bytes(4, "big"))
_VARIABLE: Final = _Kind(lambda reader, _: reader.variable_integer(), encode_variable_integer)
_TEXT: Final = _Kind(lambda reader, what: reader.value(what), write_text)
_BINARY: Final = _Kind(lambda reader, _: reader.binary(), write_binary)
_PAIR: Final = _Kind(
    lambda reader, what: (reader.value(what), reader.value(what)),
    lambda pair: write_text(pair[0]) + write_text(pair[1]),
)


class _Property(NamedTuple):
    """A row of table 2-4. Values outside of `least` to `most` are protocol errors."""

    identifier: int
    field: str
    kind: _Kind
    packets: frozenset[int]
    least: int = 0
    most: int = 0xFFFFFFFF

    @property
    def is_repeatable(self) -> bool:
        return self.field in ("user_properties", "subscription_identifiers")


_MESSAGE: Final = frozenset({_PUBLISH, WILL})

PROPERTIES: Final = (
    _Property(0x01, "payload_format", _BYTE, _MESSAGE, 0, 1),
    _Property(0x02, "message_expiry_s", _U32, _MESSAGE),
    _Property(0x03, "content_type", _TEXT, _MESSAGE),
    _Property(0x08, "response_topic", _TEXT, _MESSAGE),
    _Property(0x09, "correlation_data", _BINARY, _MESSAGE),
    _Property(0x0B, "subscription_identifiers", _VARIABLE, frozenset({_PUBLISH, _SUBSCRIBE}), 1),
    _Property(0x11, "session_expiry_s", _U32, frozenset({_CONNECT, _CONNACK, _DISCONNECT})),
    _Property(0x12, "assigned_client_id", _TEXT, frozenset({_CONNACK})),
    _Property(0x13, "server_keep_alive_s", _U16, frozenset({_CONNACK})),
    _Property(0x15, "authentication_method", _TEXT, frozenset({_CONNECT, _CONNACK, _AUTH})),
    _Property(0x16, "authentication_data", _BINARY, frozenset({_CONNECT, _CONNACK, _AUTH})),
    _Property(0x17, "request_problem_information", _BYTE, frozenset({_CONNECT}), 0, 1),
    _Property(0x18, "will_delay_s", _U32, frozenset({WILL})),
    _Property(0x19, "request_response_information", _BYTE, frozenset({_CONNECT}), 0, 1),
    _Property(0x1A, "response_information", _TEXT, frozenset({_CONNACK})),
    _Property(0x1C, "server_reference", _TEXT, frozenset({_CONNACK, _DISCONNECT})),
    _Property(0x1F, "reason_string", _TEXT, _ACKNOWLEDGEMENTS | {_CONNACK, _DISCONNECT, _AUTH}),
    _Property(0x21, "receive_max", _U16, frozenset({_CONNECT, _CONNACK}), 1),
    _Property(0x22, "topic_alias_max", _U16, frozenset({_CONNECT, _CONNACK})),
    _Property(0x23, "topic_alias", _U16, frozenset({_PUBLISH}), 1),
    _Property(0x24, "qos_max", _BYTE, frozenset({_CONNACK}), 0, 1),
    _Property(0x25, "is_retain_available", _BYTE, frozenset({_CONNACK}), 0, 1),
    _Property(0x26, "user_properties", _PAIR, _EVERYWHERE),
    _Property(0x27, "packet_bytes_max", _U32, frozenset({_CONNECT, _CONNACK}), 1),
    _Property(0x28, "are_wildcards_available", _BYTE, frozenset({_CONNACK}), 0, 1),
    _Property(0x29, "are_subscription_identifiers_available", _BYTE, frozenset({_CONNACK}), 0, 1),
    _Property(0x2A, "is_sharing_available", _BYTE, frozenset({_CONNACK}), 0, 1),
)
_BY_IDENTIFIER: Final = {row.identifier: row for row in PROPERTIES}
assert [row.field for row in PROPERTIES] == [field.name for field in fields(Properties)]


def read_properties(reader: FieldReader, packet_type: int) -> Properties:
    """Read the length and the properties that come next in a packet of this type, or in a will.

    Raises MqttProtocolError: malformed for an identifier that does not belong here or a value that is not of
    its type, protocol error for one that comes twice or is out of its range, quota exceeded past our limits.
    """
    size = reader.variable_integer()
    if size == 0:
        return NO_PROPERTIES
    part = reader.part(size, reader.packet)
    if size > reader.properties_bytes_max:
        raise MqttProtocolError(
            QUOTA_EXCEEDED,
            f"{reader.packet} has {size} bytes of properties, at most {reader.properties_bytes_max}"
            " are allowed",
        )
    found: dict[str, Any] = {}
    repeated: dict[str, list[Any]] = {}
    while not part.is_at_end:
        row = _BY_IDENTIFIER.get(part.variable_integer())
        if row is None or packet_type not in row.packets:
            raise MqttProtocolError(MALFORMED_PACKET, f"{reader.packet} has a property it cannot have")
        value = row.kind.read(part, row.field.replace("_", " "))
        if isinstance(value, int) and not row.least <= value <= row.most:
            raise MqttProtocolError(PROTOCOL_ERROR, f"{reader.packet} has {row.field} {value}")
        if row.is_repeatable:
            _add_repeated(repeated.setdefault(row.field, []), value, row, reader, packet_type)
        elif row.field in found:
            raise MqttProtocolError(PROTOCOL_ERROR, f"{reader.packet} has {row.field} twice")
        else:
            found[row.field] = value
    topic = found.get("response_topic")
    if topic is not None:
        check_response_topic(topic, reader.packet)
    found.update((field, tuple(values)) for field, values in repeated.items())
    return Properties(**found)


def check_response_topic(topic: str, packet: str) -> None:
    """A response topic is a topic name [MQTT-3.3.2-14]."""
    if not topic or "+" in topic or "#" in topic:
        raise MqttProtocolError(PROTOCOL_ERROR, f"{packet} has an invalid response topic")


def _add_repeated(
    values: list[Any], value: Any, row: _Property, reader: FieldReader, packet_type: int
) -> None:
    packet = reader.packet
    values.append(value)
    if row.field == "subscription_identifiers":
        if len(values) > 1 and packet_type == _SUBSCRIBE:
            raise MqttProtocolError(PROTOCOL_ERROR, f"{packet} has two subscription identifiers")
    elif len(values) > reader.user_properties_max:
        raise MqttProtocolError(
            QUOTA_EXCEEDED, f"{packet} has more than {reader.user_properties_max} user properties"
        )


def encode_message_properties(will: Properties) -> bytes:
    """Return the properties of a will that its PUBLISH has, too."""
    return _encode(will, [row for row in PROPERTIES if row.packets >= _MESSAGE])


def encode_properties(properties: Properties) -> bytes:
    """Return the properties behind their length; it is the caller who knows which belong into a packet."""
    return _encode(properties, PROPERTIES)


def _encode(properties: Properties, rows: Iterable[_Property]) -> bytes:
    encoded = bytearray()
    for row in rows:
        value = getattr(properties, row.field)
        if value is None:
            continue
        for one in value if row.is_repeatable else (value,):
            encoded.append(row.identifier)
            encoded += row.kind.write(one)
    return encode_variable_integer(len(encoded)) + bytes(encoded)
