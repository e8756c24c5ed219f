"""Topics of rules, with places for what is known of the device.

| place | stands for |
| --- | --- |
| `%c` | the client id |
| `%u` | the user name |
| `%g` | each group of the user, one after the other |
| `%{NAME}` | the attribute NAME of the identity |
| `%%` | a percent sign |

A value must be part of one level and nothing else: not empty, without `+`, `#`, `/` and control characters,
and without a `$` at its beginning. Otherwise there is none, or a device could choose its name so that a rule
for one topic is one for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from iotmq import limits
from iotmq.mqtt.topics.topics import is_valid_filter
from iotmq.mqtt_front.access.identity import NO_ATTRIBUTES, Identity

_PLACE: Final = re.compile(r"%(?:([cug%])|\{([^{}]*)\}|(.?))")
_FORBIDDEN: Final = re.compile(r"[+#/\x00-\x1f\x7f]|^\$|^$")
GROUP: Final = "g"
ANY_VALUE: Final = "+"


class Subject(NamedTuple):
    """Describe the connection that rules are asked about."""

    client_id: str
    identity: Identity | None = None
    address: str | None = None
    """Without a port; None at a Unix socket."""
    listener: str = ""
    certificate_identity: str | None = None

    @property
    def user(self) -> str | None:
        return None if self.identity is None else self.identity.user

    @property
    def groups(self) -> tuple[str, ...]:
        return () if self.identity is None else self.identity.groups


class Place:
    """One level with a placeholder in it: text and placeholders, one after the other."""

    __slots__ = ("has_group", "parts", "text")

    def __init__(self, text: str, parts: tuple[str, ...]) -> None:
        self.text = text
        self.parts = parts
        self.has_group = GROUP in parts[1::2]

    def __repr__(self) -> str:
        return f"Place({self.text!r})"

    def values(self, subject: Subject) -> tuple[str, ...]:
        """Return the level for a device: none without a usable value, one for each group with `%g`."""
        if self.has_group:
            found = (self._filled(subject, group) for group in subject.groups)
            return tuple(dict.fromkeys(level for level in found if level is not None))
        level = self._filled(subject, None)
        return () if level is None else (level,)

    def _filled(self, subject: Subject, group: str | None) -> str | None:
        filled = list(self.parts)
        for at in range(1, len(filled), 2):
            value = _value(filled[at], subject, group)
            if value is None or _FORBIDDEN.search(value):
                return None
            filled[at] = value
        level = "".join(filled)
        return None if level.startswith("$") else level


TemplateLevels: TypeAlias = tuple[str | Place, ...]


def parse_template(text: str) -> TemplateLevels:
    """Return the levels of a rule's topic; ValueError says what is wrong with it."""
    if not 0 < len(text.encode()) <= limits.MQTT_TOPIC_BYTES_MAX:
        raise ValueError(f"a topic has 1 to {limits.MQTT_TOPIC_BYTES_MAX} bytes")
    if not text.isprintable():
        raise ValueError("a topic has no control characters")
    levels = tuple(_level(level) for level in _split(text))
    if len(levels) > limits.MQTT_WILDCARD_LEVELS_MAX:
        raise ValueError(f"a topic of a rule has at most {limits.MQTT_WILDCARD_LEVELS_MAX} levels")
    if not is_valid_filter("/".join(level if isinstance(level, str) else "x" for level in levels)):
        raise ValueError("not an MQTT topic filter (+ and # stand alone, # last)")
    if levels[0] in ("$share", "$exclusive", "$delayed"):
        raise ValueError(f"a rule is for the topic behind {levels[0]}/..., and says so without it")
    if sum(isinstance(level, Place) and level.has_group for level in levels) > 1:
        raise ValueError("%g is in one level at most")
    return levels


def template_text(levels: TemplateLevels) -> str:
    """Return the topic as a rule has it."""
    return "/".join(level if isinstance(level, str) else level.text for level in levels)


def filled(levels: TemplateLevels, subject: Subject, *, is_deny: bool) -> Sequence[tuple[str, ...]]:
    """Return what a rule's topic is for a device: none when a placeholder has no usable value.

    A rule that denies is for every value then: what it keeps from others it keeps from the nameless, too.
    """
    choices: list[tuple[str, ...]] = [()]
    for level in levels:
        values = (level,) if isinstance(level, str) else level.values(subject)
        if not values and is_deny:
            values = (ANY_VALUE,)
        choices = [(*chosen, value) for chosen in choices for value in values]
    return choices


def is_one_level(value: str) -> bool:
    """Return whether a name stands for one level of a topic when it is put there."""
    return not _FORBIDDEN.search(value)


def _split(text: str) -> Iterable[str]:
    """Split at the slashes that are in no placeholder's name."""
    at = 0
    for found in re.finditer(r"/|%\{[^{}]*\}", text):
        if found[0] == "/":
            yield text[at : found.start()]
            at = found.end()
    yield text[at:]


# Rules have the same places in many topics: a decision fills each place once.
@lru_cache(maxsize=1_024)
def _level(text: str) -> str | Place:
    parts = [""]
    at = 0
    for found in _PLACE.finditer(text):
        parts[-1] += text[at : found.start()]
        at = found.end()
        letter, name, _ = found.groups()
        if letter == "%":
            parts[-1] += "%"
        elif letter is not None or name:
            parts += [letter or f"{{{name}", ""]
        else:
            raise ValueError(
                f"{found[0]!r} is no placeholder: use %c, %u, %g, %{{NAME}}, or %% for a percent sign"
            )
    parts[-1] += text[at:]
    if len(parts) == 1:
        return parts[0]
    if any("+" in part or "#" in part for part in parts[::2]):
        raise ValueError("a level with a placeholder has no wildcard")
    return Place(text, tuple(parts))


def _value(name: str, subject: Subject, group: str | None) -> str | None:
    if name == "c":
        return subject.client_id
    if name == "u":
        return subject.user
    if name == GROUP:
        return group
    attributes = NO_ATTRIBUTES if subject.identity is None else subject.identity.attributes
    value = attributes.get(name[1:])
    return value if isinstance(value, str) else None
