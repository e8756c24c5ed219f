"""Say in fields what a packet says, without secrets.

Of passwords, and of the data of an authentication exchange, there is only the size; of a user name that is a
token only the beginning; of user properties of a CONNECT or AUTH only the names, because tokens travel there,
too; the token of a reply topic is left out. Texts are cut to a length, and lists to some of their members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from iotmq import limits
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.field_reader import FieldReader
from iotmq.mqtt.codec.properties import Properties, read_properties
from iotmq.mqtt.codec.subscription_options import SubscriptionOptions
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import reason_text
from iotmq.mqtt.topics.reply import REPLY_PREFIX
from iotmq.mqtt_front.access.authentication import shown_user

Facts: TypeAlias = dict[str, str | int | bool | list[str]]

_LISTED_MAX: Final = 16
_NAMES: Final = {
    packets.CONNECT: "CONNECT",
    packets.CONNACK: "CONNACK",
    packets.PUBLISH: "PUBLISH",
    packets.PUBACK: "PUBACK",
    packets.PUBREC: "PUBREC",
    packets.PUBREL: "PUBREL",
    packets.PUBCOMP: "PUBCOMP",
    packets.SUBSCRIBE: "SUBSCRIBE",
    packets.SUBACK: "SUBACK",
    packets.UNSUBSCRIBE: "UNSUBSCRIBE",
    packets.UNSUBACK: "UNSUBACK",
    packets.PINGREQ: "PINGREQ",
    packets.PINGRESP: "PINGRESP",
    packets.DISCONNECT: "DISCONNECT",
    packets.AUTH: "AUTH",
}
# Of whom the names of user properties alone are told.
_WITH_SECRETS: Final = frozenset({packets.CONNECT, packets.AUTH})
_IS_V5: Final = packets.PROTOCOL_LEVEL_5


class _WholeReader(FieldReader):
    """Reads packets of ours, which may be larger than a device's."""

    properties_bytes_max = limits.MQTT_TRACE_PACKET_BYTES_MAX
    user_properties_max = limits.MQTT_TRACE_PACKET_BYTES_MAX


def packet_name(first: int) -> str:
    """Name the type of a packet by its first byte."""
    return _NAMES.get(first >> 4, f"type {first >> 4}")


def shown_topic(topic: str) -> str:
    """Return a topic without a token, and cut."""
    if topic.startswith(REPLY_PREFIX):
        return f"{REPLY_PREFIX}..."
    return cut(topic)


def cut(text: str) -> str:
    """Return the beginning of a text."""
    characters = limits.MQTT_TRACE_TEXT_CHARACTERS_MAX
    return text if len(text) <= characters else f"{text[:characters]}... ({len(text)} characters)"


def packet_facts(first: int, body: bytes, size: int, level: int, *, is_sent: bool) -> Facts:
    """Decode a packet, of whose `size` bytes `body` has the first ones; `bytes` is always there."""
    facts: Facts = {"bytes": size}
    decode = (_OF_SERVER if is_sent else _OF_CLIENT).get(first >> 4)
    if decode is None:
        return facts
    if len(body) < size and first >> 4 != packets.PUBLISH:
        return facts | {"is_cut": True}
    try:
        decode(facts, first, body, level)
    except (MqttProtocolError, IndexError) as error:
        facts["problem"] = cut(str(error) or "it ends in the middle of a field")
    return facts


def publish_parts(first: int, body: bytes, level: int) -> tuple[tuple[tuple[str, str], ...], bytes]:
    """Return the user properties of a PUBLISH and its payload, as far as they are there."""
    reader = _WholeReader(body, "PUBLISH")
    try:
        reader.binary()
        if first & 6:
            reader.u16()
        properties = read_properties(reader, packets.PUBLISH) if level == _IS_V5 else None
    except MqttProtocolError:
        return (), b""
    return () if properties is None else properties.user_properties, reader.rest()


# One function for each packet; FieldReader raises MqttProtocolError where something is missing


def _connect(facts: Facts, first: int, body: bytes, level: int) -> None:
    connect = packets.decode_connect(body)
    facts["client_id"] = cut(connect.client_id)
    facts["protocol_level"] = connect.protocol_level
    facts["clean_session"] = connect.clean_session
    facts["keep_alive_s"] = connect.keep_alive_s
    if connect.user_name is not None:
        facts["user"] = cut(shown_user(connect.user_name) or "")
    if connect.password is not None:
        facts["has_password"] = True
    if connect.is_bridge:
        facts["is_bridge"] = True
    _add_properties(facts, packets.CONNECT, connect.properties)
    if connect.will is not None:
        facts["will_topic"] = shown_topic(connect.will.topic)
        facts["will_qos"] = connect.will.qos
        facts["will_retain"] = connect.will.retain
        facts["will_payload_bytes"] = len(connect.will.payload)
        if connect.will.properties.will_delay_s is not None:
            facts["will_delay_s"] = connect.will.properties.will_delay_s


def _connack(facts: Facts, first: int, body: bytes, level: int) -> None:
    reader = _WholeReader(body, "CONNACK")
    facts["session_present"] = bool(reader.u8() & 1)
    code = reader.u8()
    facts["reason_code"] = code
    if level == _IS_V5:
        facts["reason"] = reason_text(code)
        _add_properties(facts, packets.CONNACK, read_properties(reader, packets.CONNACK))


def _publish(facts: Facts, first: int, body: bytes, level: int) -> None:
    facts["qos"] = first >> 1 & 3
    facts["retain"] = bool(first & 1)
    if first & 8:
        facts["dup"] = True
    reader = _WholeReader(body, "PUBLISH")
    reader.binary()
    if first & 6:
        facts["packet_id"] = reader.u16()
    if level == _IS_V5:
        _add_properties(facts, packets.PUBLISH, read_properties(reader, packets.PUBLISH))
    # Of the whole packet: what is cut off its end is payload.
    size = facts["bytes"]
    assert isinstance(size, int)
    facts["payload_bytes"] = len(reader.rest()) + size - len(body)


def _receipt(facts: Facts, first: int, body: bytes, level: int) -> None:
    reader = _WholeReader(body, packet_name(first))
    facts["packet_id"] = reader.u16()
    if level == _IS_V5:
        _add_reason(facts, reader, first >> 4)


def _subscribe(facts: Facts, first: int, body: bytes, level: int) -> None:
    subscribe = packets.decode_subscribe(body, level)
    facts["packet_id"] = subscribe.packet_id
    facts["filters"] = _listed([_subscription(*each) for each in subscribe.subscriptions])
    if subscribe.identifier:
        facts["identifier"] = subscribe.identifier


def _subscription(topic_filter: str, options: int) -> str:
    asked = SubscriptionOptions.decode(options)
    words = [f"{cut(topic_filter)} QoS {asked.qos}"]
    if asked.no_local:
        words.append("no local")
    if asked.retain_as_published:
        words.append("retain as published")
    if asked.retain_handling:
        words.append(f"retain handling {asked.retain_handling}")
    return ", ".join(words)


def _suback(facts: Facts, first: int, body: bytes, level: int) -> None:
    reader = _WholeReader(body, packet_name(first))
    facts["packet_id"] = reader.u16()
    if level == _IS_V5:
        _add_properties(facts, first >> 4, read_properties(reader, first >> 4))
    codes = reader.rest()
    if codes:
        facts["codes"] = _listed(
            [
                f"QoS {code}" if code <= 2 and first >> 4 == packets.SUBACK else reason_text(code)
                for code in codes
            ]
        )


def _unsubscribe(facts: Facts, first: int, body: bytes, level: int) -> None:
    unsubscribe = packets.decode_unsubscribe(body, level)
    facts["packet_id"] = unsubscribe.packet_id
    facts["filters"] = _listed([cut(each) for each in unsubscribe.filters])


def _disconnect(facts: Facts, first: int, body: bytes, level: int) -> None:
    if level == _IS_V5:
        _add_reason(facts, _WholeReader(body, "DISCONNECT"), packets.DISCONNECT)


def _auth(facts: Facts, first: int, body: bytes, level: int) -> None:
    _add_reason(facts, _WholeReader(body, "AUTH"), packets.AUTH)


_OF_BOTH: Final[dict[int, Callable[[Facts, int, bytes, int], None]]] = {
    packets.PUBLISH: _publish,
    packets.PUBACK: _receipt,
    packets.PUBREC: _receipt,
    packets.PUBREL: _receipt,
    packets.PUBCOMP: _receipt,
    packets.DISCONNECT: _disconnect,
    packets.AUTH: _auth,
}
_OF_CLIENT: Final = _OF_BOTH | {
    packets.CONNECT: _connect,
    packets.SUBSCRIBE: _subscribe,
    packets.UNSUBSCRIBE: _unsubscribe,
}
_OF_SERVER: Final = _OF_BOTH | {packets.CONNACK: _connack, packets.SUBACK: _suback, packets.UNSUBACK: _suback}


def _listed(items: list[str]) -> list[str]:
    if len(items) <= _LISTED_MAX:
        return items
    return [*items[:_LISTED_MAX], f"... ({len(items)} in all)"]


def _add_reason(facts: Facts, reader: FieldReader, packet_type: int) -> None:
    code, properties = packets.read_reason(reader, packet_type)
    facts["reason_code"] = code
    if code:
        facts["reason"] = reason_text(code)
    _add_properties(facts, packet_type, properties)


def _add_properties(facts: Facts, packet_type: int, properties: Properties) -> None:
    """Add those that are there, but for what may be secret or content."""
    for name in _SHOWN_PROPERTIES:
        value = getattr(properties, name)
        if isinstance(value, str):
            facts[name] = shown_topic(value)
        elif value is not None:
            facts[name] = value
    if properties.correlation_data is not None:
        facts["correlation_data_bytes"] = len(properties.correlation_data)
    if properties.authentication_data is not None:
        facts["authentication_data_bytes"] = len(properties.authentication_data)
    if properties.subscription_identifiers:
        facts["subscription_identifiers"] = _listed(list(map(str, properties.subscription_identifiers)))
    if packet_type in _WITH_SECRETS and properties.user_properties:
        facts["user_property_names"] = _listed([cut(name) for name, _ in properties.user_properties])
    elif properties.user_properties:
        facts["user_properties_count"] = len(properties.user_properties)


_SHOWN_PROPERTIES: Final = (
    "payload_format",
    "message_expiry_s",
    "content_type",
    "response_topic",
    "session_expiry_s",
    "assigned_client_id",
    "server_keep_alive_s",
    "authentication_method",
    "request_problem_information",
    "will_delay_s",
    "request_response_information",
    "response_information",
    "server_reference",
    "reason_string",
    "receive_max",
    "topic_alias_max",
    "topic_alias",
    "qos_max",
    "is_retain_available",
    "packet_bytes_max",
    "are_wildcards_available",
    "are_subscription_identifiers_available",
    "is_sharing_available",
)
