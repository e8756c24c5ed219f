"""Placeholders of routes: what `{...}` in a template or a condition stands for, and texts made of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.message.properties import NAME_END, PROPERTY_END, encode_correlation_data
from iotmq.mqtt_front.routing.device_names import DeviceNames

Value: TypeAlias = object
"""Text, a number, true or false, or a list or object of JSON; None for what is not there."""

KNOWN: Final = (
    "{topic}, a level such as {1}, {client_id}, {user}, {content_type}, {response_topic}, "
    "{correlation_data}, {property:NAME} or {json:a.b.0}"
)
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
# They end names and values of a record's properties; NUL ends texts of MQTT.
_SEPARATORS: Final = frozenset((NAME_END, PROPERTY_END))
_REPLACED: Final = str.maketrans({"\0": "\ufffd", NAME_END: "\ufffd", PROPERTY_END: "\ufffd"})
_NO_PROPERTIES: Final[Mapping[str, object]] = {}
_DECODER: Final = msgspec.json.Decoder()
_UNREAD: Final = object()


class InvalidJsonError(Exception):
    """A payload has no fields to be read; the text says why."""


class RoutedMessage:
    """A message as placeholders see it; `properties` are named as in mqtt.codec.publish_properties."""

    __slots__ = (
        "_json",
        "invalid_json",
        "json_bytes_max",
        "levels",
        "names",
        "payload",
        "properties",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        names: DeviceNames | None = None,
        *,
        payload: bytes = b"",
        properties: Mapping[str, object] = _NO_PROPERTIES,
        json_bytes_max: int = limits.MQTT_ROUTE_JSON_BYTES_MAX,
    ) -> None:
        self.topic = topic
        self.levels = topic.split("/")
        self.names = names
        self.payload = payload
        self.properties = properties
        self.json_bytes_max = json_bytes_max
        # Why there are no fields; empty while the payload was not asked for them, or has them.
        self.invalid_json = ""
        self._json: object = _UNREAD

    def with_content(self, payload: bytes, properties: Mapping[str, object]) -> RoutedMessage:
        """Return a message of the same topic and device."""
        message = RoutedMessage.__new__(RoutedMessage)
        message.topic = self.topic
        message.levels = self.levels
        message.names = self.names
        message.payload = payload
        message.properties = properties
        message.json_bytes_max = self.json_bytes_max
        message.invalid_json = ""
        message._json = _UNREAD
        return message

    @property
    def json(self) -> object:
        """The payload as JSON, read when it is first asked for; None, and `invalid_json`, when it is none."""
        if self._json is _UNREAD:
            try:
                self._json = read_json(self.payload, size_max=self.json_bytes_max)
            except InvalidJsonError as error:
                self.invalid_json = str(error)
                self._json = None
        return self._json


def read_json(payload: bytes, *, size_max: int) -> object:
    """Read a payload; InvalidJsonError for one that is too large, too deep, or no JSON."""
    if len(payload) > size_max:
        raise InvalidJsonError(
            f"{len(payload)} bytes are too many for JSON, mqtt.json_bytes_max is {size_max}"
        )
    try:
        return _DECODER.decode(payload)
    except RecursionError:
        raise InvalidJsonError("JSON that is nested too deep") from None
    except ValueError as error:  # of which msgspec.DecodeError is one; digits without end are another
        raise InvalidJsonError(f"no JSON: {error}"[:200]) from None


class Placeholder(NamedTuple):
    """One `{...}`, and how its value is read."""

    text: str
    read: Callable[[RoutedMessage], Value]
    asks_names: bool = False
    """The value depends on the device."""
    asks_properties: bool = False
    """The value is in the properties of the message."""
    asks_json: bool = False
    """The value is in the payload of the message."""

    @property
    def asks_message(self) -> bool:
        """Return whether the value depends on the message."""
        return self.asks_properties or self.asks_json


def placeholder(text: str, where: str) -> Placeholder:
    """Read what stands between the braces; ConfigError, which begins with `where`, for what is unknown."""
    kind, colon, name = text.partition(":")
    if text == "topic":
        return Placeholder(text, lambda message: message.topic)
    if text.isascii() and text.isdecimal() and int(text) < limits.MQTT_TOPIC_LEVELS_MAX:
        return Placeholder(text, _level_reader(int(text)))
    if text == "client_id":
        return Placeholder(text, lambda message: message.names and message.names.client_id, asks_names=True)
    if text == "user":
        return Placeholder(text, lambda message: message.names and message.names.user_name, asks_names=True)
    if text in ("content_type", "response_topic"):
        return Placeholder(text, lambda message: message.properties.get(text), asks_properties=True)
    if text == "correlation_data":
        return Placeholder(text, _correlation_data, asks_properties=True)
    if kind == "property" and name:
        return Placeholder(text, _property_reader(name), asks_properties=True)
    if kind == "json" and colon and all(name.split(".")):
        return Placeholder(text, _json_reader(name.split(".")), asks_json=True)
    raise ConfigError(f"{where}: {{{text}}} is not known; use {KNOWN}")


def _level_reader(level: int) -> Callable[[RoutedMessage], Value]:
    return lambda message: message.levels[level] if level < len(message.levels) else None


def _correlation_data(message: RoutedMessage) -> Value:
    data = message.properties.get("correlation_data")
    return encode_correlation_data(data) if isinstance(data, bytes) else None


def _property_reader(name: str) -> Callable[[RoutedMessage], Value]:
    def read(message: RoutedMessage) -> Value:
        pairs = message.properties.get("user_properties")
        if not isinstance(pairs, tuple):
            return None
        # Of several with one name readers of the record see the last one, too.
        return next((value for known, value in reversed(pairs) if known == name), None)

    return read


def _json_reader(steps: list[str]) -> Callable[[RoutedMessage], Value]:
    # A number is the place in a list, or the name in an object.
    path = [
        (step, int(step) if step.isascii() and step.isdecimal() and len(step) < 10 else -1) for step in steps
    ]

    def read(message: RoutedMessage) -> Value:
        value = message.json if message._json is _UNREAD else message._json
        for name, index in path:
            if isinstance(value, dict):
                value = value.get(name)
            elif isinstance(value, list) and 0 <= index < len(value):
                value = value[index]
            else:
                return None
        return value

    return read


def text_of(value: Value) -> str:
    """Return a value as a text of a property; empty for what is not there, lists, objects and long ones."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool | int | float):
        try:
            text = msgspec.json.encode(value).decode()
        except ValueError:  # an integer of thousands of digits
            return ""
    else:
        return ""
    size = len(text) if text.isascii() else len(text.encode())
    if size > limits.MQTT_ROUTE_VALUE_BYTES_MAX:
        return ""
    return text if text.isprintable() else text.translate(_REPLACED)


class Template:
    """A text with placeholders. ConfigError, which begins with `where`, for one that no record can have."""

    __slots__ = ("_parts", "_whole", "placeholders", "text")

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        where = f"{where} = {text!r}"
        if not _SEPARATORS.isdisjoint(text):
            raise ConfigError(f"{where}: \\x01 and \\x02 separate the properties of a record")
        pieces = _PLACEHOLDER.split(text)
        self.placeholders = [placeholder(piece, where) for piece in pieces[1::2]]
        self._parts = [
            self.placeholders[number // 2] if number % 2 else piece for number, piece in enumerate(pieces)
        ]
        # The text of a template that is one placeholder, or none, is not put together.
        self._whole = self.placeholders[0] if pieces[0::2] == ["", ""] else None

    def expand(self, message: RoutedMessage) -> str:
        """Return the text for a message; a placeholder without a value leaves nothing."""
        if self._whole is not None:
            return _text(self._whole, message)
        if not self.placeholders:
            return self.text
        return "".join([part if isinstance(part, str) else _text(part, message) for part in self._parts])


def _text(source: Placeholder, message: RoutedMessage) -> str:
    value = source.read(message)
    if not source.asks_names and not source.asks_message:
        # The topic's own limits are the limits, and its text has been looked at.
        return value if isinstance(value, str) else ""
    return text_of(value)
