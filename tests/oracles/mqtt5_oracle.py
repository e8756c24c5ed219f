"""MQTT 5 properties, read slowly and obviously from table 2-4 of the specification."""

from __future__ import annotations

from typing import Any

from iotmq import limits
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import MALFORMED_PACKET, PROTOCOL_ERROR, QUOTA_EXCEEDED

# identifier: (name, data type, where it is allowed). Packet types are numbers, "W" is the will.
TABLE: dict[int, tuple[str, str, set[Any]]] = {
    1: ("payload_format", "byte", {3, "W"}),
    2: ("message_expiry_s", "four", {3, "W"}),
    3: ("content_type", "text", {3, "W"}),
    8: ("response_topic", "text", {3, "W"}),
    9: ("correlation_data", "binary", {3, "W"}),
    11: ("subscription_identifiers", "variable", {3, 8}),
    17: ("session_expiry_s", "four", {1, 2, 14}),
    18: ("assigned_client_id", "text", {2}),
    19: ("server_keep_alive_s", "two", {2}),
    21: ("authentication_method", "text", {1, 2, 15}),
    22: ("authentication_data", "binary", {1, 2, 15}),
    23: ("request_problem_information", "byte", {1}),
    24: ("will_delay_s", "four", {"W"}),
    25: ("request_response_information", "byte", {1}),
    26: ("response_information", "text", {2}),
    28: ("server_reference", "text", {2, 14}),
    31: ("reason_string", "text", {2, 4, 5, 6, 7, 9, 11, 14, 15}),
    33: ("receive_max", "two", {1, 2}),
    34: ("topic_alias_max", "two", {1, 2}),
    35: ("topic_alias", "two", {3}),
    36: ("qos_max", "byte", {2}),
    37: ("is_retain_available", "byte", {2}),
    38: ("user_properties", "pair", {1, 2, 3, "W", 4, 5, 6, 7, 8, 9, 10, 11, 14, 15}),
    39: ("packet_bytes_max", "four", {1, 2}),
    40: ("are_wildcards_available", "byte", {2}),
    41: ("are_subscription_identifiers_available", "byte", {2}),
    42: ("is_sharing_available", "byte", {2}),
}
# A value of 0 is a protocol error for these.
NOT_ZERO = {11, 33, 35, 39}


class Cursor:
    """Bytes that are taken from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, size: int) -> bytes:
        if size > len(self.data):
            raise MqttProtocolError(MALFORMED_PACKET, "too short")
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def variable(self) -> int:
        digits = b""
        while True:
            digits += self.take(1)
            if digits[-1] < 128:
                break
            if len(digits) == 4:
                raise MqttProtocolError(MALFORMED_PACKET, "too long")
        if len(digits) > 1 and digits[-1] == 0:
            raise MqttProtocolError(MALFORMED_PACKET, "not the shortest form")
        return sum((digit & 127) << 7 * place for place, digit in enumerate(digits))

    def binary(self) -> bytes:
        return self.take(int.from_bytes(self.take(2), "big"))

    def text(self) -> str:
        raw = self.binary()
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise MqttProtocolError(MALFORMED_PACKET, "not UTF-8") from None
        if set(text) & set("\0\x01\x02"):
            raise MqttProtocolError(MALFORMED_PACKET, "separator")
        return text


def read_properties(data: bytes, owner: int | str) -> tuple[int, dict[str, Any]]:
    """(bytes taken, properties by name) of what stands first in `data`."""
    whole = Cursor(data)
    size = whole.variable()
    part = Cursor(whole.take(size))
    if size > limits.MQTT_PROPERTIES_BYTES_MAX:
        raise MqttProtocolError(QUOTA_EXCEEDED, "properties")
    found: dict[str, Any] = {}
    while part.data:
        identifier = part.variable()
        if identifier not in TABLE or owner not in TABLE[identifier][2]:
            raise MqttProtocolError(MALFORMED_PACKET, "identifier")
        name, kind, _ = TABLE[identifier]
        value = _value(part, kind)
        if (kind == "byte" and value > 1) or (identifier in NOT_ZERO and value == 0):
            raise MqttProtocolError(PROTOCOL_ERROR, "range")
        if identifier == 38 or (identifier == 11 and owner == 3):
            found[name] = (*found.get(name, ()), value)
            if identifier == 38 and len(found[name]) > limits.MQTT_USER_PROPERTIES_MAX:
                raise MqttProtocolError(QUOTA_EXCEEDED, "user properties")
        elif name in found:
            raise MqttProtocolError(PROTOCOL_ERROR, "twice")
        else:
            found[name] = (value,) if identifier == 11 else value
    topic = found.get("response_topic")
    if topic is not None and (topic == "" or "+" in topic or "#" in topic):
        raise MqttProtocolError(PROTOCOL_ERROR, "response topic")
    return len(data) - len(whole.data), found


def _value(part: Cursor, kind: str) -> Any:
    if kind == "variable":
        return part.variable()
    if kind == "text":
        return part.text()
    if kind == "binary":
        return part.binary()
    if kind == "pair":
        return part.text(), part.text()
    return int.from_bytes(part.take({"byte": 1, "two": 2, "four": 4}[kind]), "big")
