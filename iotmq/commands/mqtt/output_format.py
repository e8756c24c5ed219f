"""Print messages for `iotmq sub`: plain, verbose, or by a format with Mosquitto's letters.

    %t topic            %p payload, %x %X in hex, %l its length    %q QoS    %r retained, 0 or 1
    %m packet id        %j JSON, %J with the payload as JSON       %I %U time it came, ISO and Unix
    %C content type     %D correlation data      %E expiry         %F payload format
    %R response topic   %S subscription ids      %A topic alias    %P user properties, NAME:VALUE
    %@Y a field of the local time, as of strftime                  %% a %

A backslash begins \\a \\e \\n \\r \\t \\v \\0 and \\\\. What a message does not have is empty.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any, Final

from iotmq.errors import ConfigError
from iotmq.mqtt.client.input import ReceivedMessage
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties

Writer = Callable[[ReceivedMessage], bytes]


def plain(end: bytes) -> Writer:
    """Return the payload alone."""
    return lambda message: message.payload + end


def verbose(end: bytes) -> Writer:
    """Return the topic and the payload."""
    return lambda message: message.topic.encode() + b" " + message.payload + end


def compile_format(text: str, end: bytes) -> Writer:
    """Compile a format; ConfigError names an unknown letter."""
    parts: list[bytes | Writer] = []
    at = 0
    while at < len(text):
        sign = text[at]
        at += 1
        if sign == "%":
            letter = text[at : at + 1]
            at += 1
            if letter == "@":
                parts.append(_time_field(text[at : at + 1]))
                at += 1
            elif letter == "%":
                parts.append(b"%")
            elif letter in _FIELDS:
                parts.append(_FIELDS[letter])
            else:
                raise ConfigError(
                    f"-F {text}: %{letter} is none of {' '.join(f'%{one}' for one in _FIELDS)} %@ %%"
                )
        elif sign == "\\":
            letter = text[at : at + 1]
            at += 1
            if letter not in _ESCAPES:
                raise ConfigError(f"-F {text}: \\{letter} is none of \\a \\e \\n \\r \\t \\v \\0 \\\\")
            parts.append(_ESCAPES[letter])
        else:
            parts.append(sign.encode())
    joined = _joined([*parts, end])

    def write(message: ReceivedMessage) -> bytes:
        return b"".join([part if type(part) is bytes else part(message) for part in joined])  # type: ignore[operator]

    return write


def _joined(parts: list[bytes | Writer]) -> list[bytes | Writer]:
    """With neighbouring pieces of text in one."""
    joined: list[bytes | Writer] = []
    for part in parts:
        if isinstance(part, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


_ESCAPES: Final = {
    "a": b"\a", "e": b"\x1b", "n": b"\n", "r": b"\r", "t": b"\t", "v": b"\v", "0": b"\0", "\\": b"\\",
}  # fmt: skip


def _time_field(letter: str) -> Writer:
    if not letter.isalpha() and letter != "%":
        raise ConfigError(f"-F: unknown field of a time: %@{letter}")
    return lambda _: time.strftime(f"%{letter}").encode()


def _optional(field: str) -> Writer:
    def write(message: ReceivedMessage) -> bytes:
        value = getattr(message.properties, field)
        if value is None:
            return b""
        return value if isinstance(value, bytes) else str(value).encode()

    return write


def _iso_time() -> str:
    now_s = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now_s)) + time.strftime(
        "%z", time.localtime(now_s)
    )


def _user_properties(message: ReceivedMessage) -> bytes:
    return " ".join(f"{name}:{value}" for name, value in message.properties.user_properties).encode()


def _subscription_identifiers(message: ReceivedMessage) -> bytes:
    return " ".join(map(str, message.properties.subscription_identifiers)).encode()


# Names of Mosquitto's JSON.
_JSON_NAMES: Final = {
    "payload_format": "payload-format-indicator",
    "message_expiry_s": "message-expiry-interval",
    "content_type": "content-type",
    "response_topic": "response-topic",
    "topic_alias": "topic-alias",
}


def _json_properties(properties: Properties) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: value
        for field, name in _JSON_NAMES.items()
        if (value := getattr(properties, field)) is not None
    }
    if properties.correlation_data is not None:
        found["correlation-data"] = _text(properties.correlation_data)
    if properties.subscription_identifiers:
        found["subscription-identifier"] = list(properties.subscription_identifiers)
    if properties.user_properties:
        found["user-properties"] = [{name: value} for name, value in properties.user_properties]
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _json(message: ReceivedMessage, payload: dict[str, Any]) -> bytes:
    fields: dict[str, Any] = {
        "tst": _iso_time(),
        "topic": message.topic,
        "qos": message.qos,
        "retain": int(message.is_retained),
        "payloadlen": len(message.payload),
    }
    if message.packet_id:
        fields["mid"] = message.packet_id
    if message.properties is not NO_PROPERTIES:
        fields["properties"] = _json_properties(message.properties)
    return json.dumps(fields | payload, ensure_ascii=False, separators=(",", ":")).encode()


def _json_with_text(message: ReceivedMessage) -> bytes:
    try:
        return _json(message, {"payload": message.payload.decode()})
    except UnicodeDecodeError:
        return _json(message, {"payload_base64": base64.b64encode(message.payload).decode()})


def _json_with_json(message: ReceivedMessage) -> bytes:
    try:
        return _json(message, {"payload": json.loads(message.payload)})
    except ValueError:
        return _json_with_text(message)


_FIELDS: Final[dict[str, Writer]] = {
    "A": _optional("topic_alias"),
    "C": _optional("content_type"),
    "D": _optional("correlation_data"),
    "E": _optional("message_expiry_s"),
    "F": _optional("payload_format"),
    "I": lambda _: _iso_time().encode(),
    "J": _json_with_json,
    "P": _user_properties,
    "R": _optional("response_topic"),
    "S": _subscription_identifiers,
    "U": lambda _: f"{time.time():.9f}".encode(),
    "X": lambda message: message.payload.hex().upper().encode(),
    "j": _json_with_text,
    "l": lambda message: str(len(message.payload)).encode(),
    "m": lambda message: str(message.packet_id).encode(),
    "p": lambda message: message.payload,
    "q": lambda message: str(message.qos).encode(),
    "r": lambda message: str(int(message.is_retained)).encode(),
    "t": lambda message: message.topic.encode(),
    "x": lambda message: message.payload.hex().encode(),
}
