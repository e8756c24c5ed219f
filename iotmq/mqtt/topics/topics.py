"""Topic names and topic filters: what is legal, and what matches (MQTT 3.1.1 section 4.7)."""

from __future__ import annotations

from typing import Final

from iotmq import limits
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import MALFORMED_PACKET, TOPIC_NAME_INVALID

# Topics the server publishes about itself.
SYS_PREFIX: Final = "$SYS/"
# Below it bridges of Mosquitto tell, with a retained message and a will, whether they are connected.
BRIDGE_PREFIX: Final = "$SYS/broker/connection/"

# Topics that front ends have for themselves: no device may publish or subscribe there.
PRIVATE_PREFIX: Final = "$iotmq/"

# U+0000 is forbidden [MQTT-1.5.3-2]; the other C0 controls may be refused, and are: \x01 and \x02
# separate the properties of a stored record, and none of them has a place in a topic.
_CONTROLS: Final = bytes((*range(0x20), 0x7F))

_SHARE: Final = "$share/"
_EXCLUSIVE: Final = "$exclusive/"


_WILDCARDS: Final = {"+": 1, "#": 2}


def wildcard_shape(topic_filter: str) -> bytes | None:
    """Return for each level 0 (literal), 1 (`+`) or 2 (`#`); None for a filter without wildcards."""
    if "+" not in topic_filter and "#" not in topic_filter:
        return None
    return bytes([_WILDCARDS.get(level, 0) for level in topic_filter.split("/")])


def decode_text(raw: bytes, *, what: str) -> str:
    """UTF-8 text of a packet, without control characters.

    Raises MqttProtocolError: ill-formed UTF-8 or a surrogate [MQTT-1.5.3-1], or a control character.
    """
    return _decode(raw, _CONTROLS, what, "a control character")


def is_text(raw: bytes) -> bool:
    """Return True for what the specification calls text, control characters included [MQTT-1.5.3-1, -2]."""
    try:
        return "\0" not in raw.decode("utf-8")
    except UnicodeDecodeError:
        return False


def decode_any_text(raw: bytes, *, what: str) -> str:
    """Decode any text that the specification allows; raises as `decode_text` does [MQTT-1.5.4-1, -2]."""
    return _decode(raw, b"\0", what, "a NUL")


def decode_value(raw: bytes, *, what: str) -> str:
    """UTF-8 text that is a value for somebody else, such as a user property: all but NUL, U+0001 and U+0002.

    Those two separate the properties of a stored record. Raises MqttProtocolError as `decode_text` does.
    """
    return _decode(raw, b"\0\x01\x02", what, "a NUL or another separator")


def _decode(raw: bytes, forbidden: bytes, what: str, named: str) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MqttProtocolError(MALFORMED_PACKET, f"{what} is not UTF-8 (byte {error.start})") from None
    # In UTF-8 no other character has these bytes; a packet may have a megabyte of text.
    if len(raw.translate(None, forbidden)) != len(raw):
        raise MqttProtocolError(MALFORMED_PACKET, f"{what} has {named}")
    return text


def decode_topic_name(raw: bytes) -> str:
    """Return the topic of a PUBLISH or a will: not empty, no wildcards [MQTT-3.3.2-2], within our limits."""
    if not raw:
        raise MqttProtocolError(TOPIC_NAME_INVALID, "topic name is empty")
    _check_size(raw, "topic name")
    topic = decode_text(raw, what="topic name")
    if "+" in topic or "#" in topic:
        raise MqttProtocolError(TOPIC_NAME_INVALID, "topic name has a wildcard")
    return topic


def decode_topic_filter(raw: bytes) -> str:
    """Return the filter of a SUBSCRIBE or UNSUBSCRIBE: wildcards only where section 4.7.1 allows them."""
    if not raw:
        raise MqttProtocolError(MALFORMED_PACKET, "topic filter is empty")
    _check_size(raw, "topic filter")
    topic_filter = decode_text(raw, what="topic filter")
    if not is_valid_filter(topic_filter):
        raise MqttProtocolError(MALFORMED_PACKET, "topic filter has a misplaced wildcard")
    return topic_filter


def is_valid_filter(topic_filter: str) -> bool:
    """Return whether `+` stands alone in its level and `#` alone in the last one [MQTT-4.7.1-2, -3]."""
    levels = topic_filter.split("/")
    for position, level in enumerate(levels):
        if level == "#":
            if position != len(levels) - 1:
                return False
        elif level != "+" and ("+" in level or "#" in level):
            return False
    return True


def is_shared(topic_filter: str) -> bool:
    """Return whether the filter is that of a shared subscription, well formed or not [MQTT-4.8.2-1]."""
    return topic_filter.startswith(_SHARE)


def split_shared(topic_filter: str) -> tuple[str, str]:
    """Return the group and the filter of a shared subscription: `$share/GROUP/FILTER`.

    Raises ValueError when the group's name is empty, too long or has a wildcard, or no filter follows
    [MQTT-4.8.2-1, -2].
    """
    group, separator, shared = topic_filter.removeprefix(_SHARE).partition("/")
    if not is_shared(topic_filter) or not separator:
        raise ValueError("a shared subscription is $share/GROUP/FILTER")
    if not group or "+" in group or "#" in group:
        raise ValueError("the group of a shared subscription has a name without wildcards")
    if len(group.encode()) > limits.SHARE_NAME_BYTES_MAX:
        raise ValueError(f"the name of a group has at most {limits.SHARE_NAME_BYTES_MAX} bytes")
    if not shared or not is_valid_filter(shared) or is_shared(shared):
        raise ValueError("a group shares a topic filter")
    return group, shared


def is_exclusive(topic_filter: str) -> bool:
    """Return True for `$exclusive/FILTER`, well formed or not: one session at a time has such a filter."""
    return topic_filter.startswith(_EXCLUSIVE)


def split_exclusive(topic_filter: str) -> str:
    """The filter of `$exclusive/FILTER`; ValueError when there is none, or one that several may have."""
    plain = topic_filter.removeprefix(_EXCLUSIVE)
    if not plain or is_shared(plain) or is_exclusive(plain) or not is_valid_filter(plain):
        raise ValueError("an exclusive subscription is $exclusive/FILTER, and that filter is a plain one")
    return plain


def is_private(topic_filter: str) -> bool:
    """Return whether a filter, or a topic, is of those that front ends have for themselves."""
    return topic_filter.startswith(PRIVATE_PREFIX) or topic_filter == PRIVATE_PREFIX[:-1]


def without_prefix(topic_filter: str) -> str:
    """Return the filter behind `$share/GROUP/` or `$exclusive/`, well formed or not; else all of it."""
    if is_shared(topic_filter):
        return topic_filter.removeprefix(_SHARE).partition("/")[2]
    return topic_filter.removeprefix(_EXCLUSIVE)


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether the filter selects the topic.

    `$` topics are not for leading wildcards [MQTT-4.7.2-1].
    """
    filter_levels = topic_filter.split("/")
    topic_levels = topic.split("/")
    if topic.startswith("$") and filter_levels[0] in ("+", "#"):
        return False
    for position, level in enumerate(filter_levels):
        if level == "#":
            return True
        if position >= len(topic_levels):
            return False
        if level not in ("+", topic_levels[position]):
            return False
    return len(filter_levels) == len(topic_levels)


def matches_subscription(topic_filter: str, topic: str) -> bool:
    """Return `matches`, whatever kind of subscription has the filter."""
    return matches(without_prefix(topic_filter), topic)


def _check_size(raw: bytes, what: str) -> None:
    if len(raw) > limits.MQTT_TOPIC_BYTES_MAX:
        raise MqttProtocolError(
            TOPIC_NAME_INVALID,
            f"{what} is {len(raw)} bytes, at most {limits.MQTT_TOPIC_BYTES_MAX} are allowed",
        )
    if raw.count(b"/") >= limits.MQTT_TOPIC_LEVELS_MAX:
        raise MqttProtocolError(
            TOPIC_NAME_INVALID, f"{what} has more than {limits.MQTT_TOPIC_LEVELS_MAX} levels"
        )
