"""Rules that came with an identity, from a token, a database or a service, in the form that EMQX has.

    [{"permission": "allow", "action": "publish", "topic": "devices/%c/#", "qos": [0, 1], "retain": false}]

`topic` may be a list; without `qos` and `retain` the rule is for all. Placeholders are those of rules in a
file, or `${clientid}`, `${username}`, `${client_attrs.NAME}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.mqtt_front.permissions.rule import ACTIONS, Conditions, Rule
from iotmq.mqtt_front.permissions.topic_template import parse_template

_FOREIGN: Final = re.compile(r"\$\{([^{}]*)\}")
_OWN_NAMES: Final = {"clientid": "%c", "username": "%u"}
_ATTRIBUTE: Final = "client_attrs."

_Qos = Annotated[int, Meta(ge=0, le=2)]


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    permission: Literal["allow", "deny"]
    action: Literal["publish", "subscribe", "all", "pubsub"]
    topic: str | list[str] | None = None
    topics: list[str] | None = None
    qos: _Qos | list[_Qos] | str | None = None
    retain: bool | Literal["all", "true", "false", 0, 1] | None = None


def rules_of_identity(permissions: Sequence[Mapping[str, object]]) -> tuple[Rule, ...]:
    """Return the rules; ValueError when there are too many, or one is none: the others are no use then."""
    if len(permissions) > limits.MQTT_IDENTITY_RULES_MAX:
        raise ValueError(
            f"{len(permissions)} rules; an identity has at most {limits.MQTT_IDENTITY_RULES_MAX}"
        )
    return tuple(_rule(number, entry) for number, entry in enumerate(permissions))


def _rule(number: int, given: Mapping[str, object]) -> Rule:
    name = f"identity[{number}]"
    try:
        entry = msgspec.convert(dict(given), _Entry)
        return Rule(
            name=name,
            is_allow=entry.permission == "allow",
            actions=ACTIONS["all" if entry.action == "pubsub" else entry.action],
            topics=tuple(parse_template(_own_placeholders(topic)) for topic in _topics(entry)),
            conditions=Conditions(qos=_qos(entry.qos), retain=_retain(entry.retain)),
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name}: {error}") from None


def _topics(entry: _Entry) -> list[str]:
    named = [] if entry.topic is None else [entry.topic] if isinstance(entry.topic, str) else entry.topic
    found = [*named, *(entry.topics or ())]
    if not 1 <= len(found) <= limits.MQTT_PERMISSION_TOPICS_MAX:
        raise ValueError(f"{len(found)} topics; a rule has 1 to {limits.MQTT_PERMISSION_TOPICS_MAX}")
    return found


def _own_placeholders(topic: str) -> str:
    def own(found: re.Match[str]) -> str:
        name = found[1]
        if name in _OWN_NAMES:
            return _OWN_NAMES[name]
        if name.startswith(_ATTRIBUTE):
            return f"%{{{name.removeprefix(_ATTRIBUTE)}}}"
        raise ValueError(f"{found[0]!r} is no placeholder that is known here")

    return _FOREIGN.sub(own, topic)


def _qos(given: Any) -> frozenset[int] | None:
    if given is None:
        return None
    if isinstance(given, str):
        if not all(part in ("0", "1", "2") for part in given.split(",")):
            raise ValueError(f"qos {given[:20]!r} is not of 0, 1 and 2")
        return frozenset(map(int, given.split(",")))
    return frozenset([given] if isinstance(given, int) else given)


def _retain(given: Any) -> bool | None:
    if given is None or given == "all":
        return None
    return given in (True, "true", 1)
