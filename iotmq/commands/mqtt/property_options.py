"""`-D COMMAND PROPERTY VALUE`: the properties of MQTT 5 by the names that Mosquitto's clients have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from iotmq.errors import ConfigError
from iotmq.mqtt.codec.properties import Properties

_USER: Final = "user-property"

_MESSAGE: Final = {
    "content-type": "content_type",
    "correlation-data": "correlation_data",
    "message-expiry-interval": "message_expiry_s",
    "payload-format-indicator": "payload_format",
    "response-topic": "response_topic",
}
# Command -> name -> field. User properties go everywhere.
_NAMES: Final[dict[str, dict[str, str]]] = {
    "connect": {
        "maximum-packet-size": "packet_bytes_max",
        "receive-maximum": "receive_max",
        "request-problem-information": "request_problem_information",
        "request-response-information": "request_response_information",
        "session-expiry-interval": "session_expiry_s",
        "topic-alias-maximum": "topic_alias_max",
    },
    "publish": _MESSAGE,
    "subscribe": {"subscription-identifier": "subscription_identifiers"},
    "unsubscribe": {},
    "will": {**_MESSAGE, "will-delay-interval": "will_delay_s"},
}


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise ValueError(f"it is between {least} and {most}")
        return number

    return read


_VALUES: Final[dict[str, Callable[[str], Any]]] = {
    "content_type": str,
    "correlation_data": str.encode,
    "message_expiry_s": _number(0, 0xFFFFFFFF),
    "payload_format": _number(0, 1),
    "response_topic": str,
    "packet_bytes_max": _number(1, 0xFFFFFFFF),
    "receive_max": _number(1, 65_535),
    "request_problem_information": _number(0, 1),
    "request_response_information": _number(0, 1),
    "session_expiry_s": _number(0, 0xFFFFFFFF),
    "topic_alias_max": _number(0, 65_535),
    "will_delay_s": _number(0, 0xFFFFFFFF),
}


def read_properties(words_of_each: Sequence[Sequence[str]]) -> dict[str, Properties]:
    """Return the properties of each command that `-D` names; ConfigError says what is wrong with which."""
    fields: dict[str, dict[str, Any]] = {}
    for words in words_of_each:
        given = "-D " + " ".join(words)
        command = words[0]
        if command not in _NAMES:
            raise ConfigError(f"{given}: the command is one of {', '.join(_NAMES)}")
        found = fields.setdefault(command, {})
        name = words[1] if len(words) > 1 else ""
        if name == _USER:
            if len(words) != 4:
                raise ConfigError(f"{given}: a user property has a name and a value")
            found["user_properties"] = (*found.get("user_properties", ()), (words[2], words[3]))
            continue
        field = _NAMES[command].get(name)
        if field is None:
            names = ", ".join([*_NAMES[command], _USER])
            raise ConfigError(f"{given}: {command} has {names}")
        if len(words) != 3:
            raise ConfigError(f"{given}: the form is -D {command} {name} VALUE")
        if field in found:
            raise ConfigError(f"{given}: {command} has {name} once")
        found[field] = _value(field, words[2], given)
    return {command: Properties(**found) for command, found in fields.items()}


def _value(field: str, text: str, given: str) -> Any:
    try:
        if field == "subscription_identifiers":
            return (_number(1, 268_435_455)(text),)
        return _VALUES[field](text)
    except ValueError as error:
        raise ConfigError(f"{given}: {error}") from None
