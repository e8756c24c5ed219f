"""The file of rules for devices' topics (TOML): its form, and what is checked of it.

[roles]
pump = ["pump-7", "pump-8"]                 # users of a role, beside what identities say

[[rules]]
permission = "allow"
who = { role = "pump" }                     # or "all"
action = "publish"                          # or "subscribe", "all"
topics = ["devices/%u/telemetry"]
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.errors import IotmqError
from iotmq.mqtt_front.permissions.rule import ACTIONS, PUBLISH, SUBSCRIBE, Conditions, Rule, Who
from iotmq.mqtt_front.permissions.topic_template import TemplateLevels, parse_template, template_text
from iotmq.spelling import did_you_mean

_PROBLEMS_SHOWN_MAX: Final = 10

_Name = Annotated[str, Meta(min_length=1, max_length=limits.MQTT_USER_NAME_BYTES_MAX)]
_Names = _Name | Annotated[list[_Name], Meta(min_length=1, max_length=limits.MQTT_PERMISSION_NAMES_MAX)]
_Topic = Annotated[str, Meta(min_length=1, max_length=limits.MQTT_TOPIC_BYTES_MAX)]
_Qos = Annotated[int, Meta(ge=0, le=2)]


class RulesFileError(IotmqError):
    """The file of rules cannot be used; the text says in which rules and why."""


class _Who(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user: _Names | None = None
    client_id: _Names | None = None
    certificate: _Names | None = None
    role: _Names | None = None
    group: _Names | None = None
    listener: _Names | None = None
    attribute: dict[str, _Names] | None = None
    address: _Names | None = None


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    permission: Literal["allow", "deny"]
    who: Literal["all"] | _Who
    action: Literal["publish", "subscribe", "all"]
    topics: Annotated[list[_Topic], Meta(min_length=1, max_length=limits.MQTT_PERMISSION_TOPICS_MAX)]
    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None
    qos_max: _Qos | None = None
    qos: Annotated[list[_Qos], Meta(min_length=1, max_length=3)] | None = None
    retain: bool | None = None
    will: bool | None = None
    delayed: bool | None = None
    shared: bool | None = None
    exclusive: bool | None = None
    payload_bytes_max: Annotated[int, Meta(ge=0, le=limits.RECORD_BYTES_MAX)] | None = None


_MEANT: Final = {
    "permission": '"allow" or "deny"',
    "action": '"publish", "subscribe" or "all"',
    "who": '"all" or a table such as { role = "pump" }',
    "topics": 'a list such as ["devices/%u/#"]',
    "qos": "a list such as [0, 1]",
}


class RulesOfFile(NamedTuple):
    """The rules of a file, and the roles it gives to users."""

    rules: tuple[Rule, ...]
    roles_of_user: Mapping[str, frozenset[str]]


def read_rules(path: Path) -> RulesOfFile:
    """Return the rules of a file. OSError when it cannot be read, RulesFileError when it breaks a rule."""
    with path.open("rb") as file:
        data = file.read(limits.MQTT_PERMISSIONS_FILE_BYTES_MAX + 1)
    if len(data) > limits.MQTT_PERMISSIONS_FILE_BYTES_MAX:
        raise RulesFileError(f"it has more than {limits.MQTT_PERMISSIONS_FILE_BYTES_MAX:,} bytes")
    return parse_rules(data)


def parse_rules(data: bytes) -> RulesOfFile:
    """Return the rules that the bytes of a file say; RulesFileError names those that are wrong."""
    try:
        table = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise RulesFileError(f"it is not TOML: {error}") from None
    unknown = table.keys() - {"rules", "roles"}
    if unknown:
        raise RulesFileError(f"{sorted(unknown)[0]} is not known: a file of rules has [[rules]] and [roles]")
    entries = table.get("rules", [])
    if not isinstance(entries, list):
        raise RulesFileError("rules is not a list: each rule begins with [[rules]]")
    if len(entries) > limits.MQTT_PERMISSION_RULES_MAX:
        raise RulesFileError(f"it has more than {limits.MQTT_PERMISSION_RULES_MAX:,} rules")
    rules: list[Rule] = []
    problems: list[str] = []
    names: set[str] = set()
    for number, entry in enumerate(entries):
        try:
            rule = _rule(number, entry)
            if rule.name in names:
                raise ValueError(f"name = {rule.name!r} is that of another rule")
        except (ValueError, TypeError) as error:
            problems.append(f"rules[{number}]: {error}")
            continue
        names.add(rule.name)
        rules.append(rule)
    problems += _contradictions(rules)
    if problems:
        more = ["and more"] if len(problems) > _PROBLEMS_SHOWN_MAX else []
        raise RulesFileError("\n".join(problems[:_PROBLEMS_SHOWN_MAX] + more))
    return RulesOfFile(tuple(rules), _roles_of_user(table.get("roles", {})))


def _hint(problem: str) -> str:
    """Return what could stand there instead, where that is known."""
    if unknown := re.search(r"unknown field `(.*?)`(?: - at `\$\.(who))?", problem):
        known = (_Who if unknown[2] else _Entry).__struct_fields__
        return (
            did_you_mean(unknown[1], dict(zip(known, known, strict=True))) or f"; known: {', '.join(known)}"
        )
    place = re.search(r"`\$\.(\w+)`$", problem)
    return f"; it is {_MEANT[place[1]]}" if place and place[1] in _MEANT else ""


def _rule(number: int, given: object) -> Rule:
    try:
        entry = msgspec.convert(given, _Entry)
    except msgspec.ValidationError as error:
        raise ValueError(f"{error}{_hint(str(error))}") from None
    actions = ACTIONS[entry.action]
    if entry.qos is not None and entry.qos_max is not None:
        raise ValueError("qos and qos_max say the same: give one of them")
    if entry.permission == "deny":
        for name in ("qos_max", "payload_bytes_max"):
            if getattr(entry, name) is not None:
                raise ValueError(
                    f"{name} is for a rule that allows; what is above it is left to the next rules"
                )
    for name, action in (
        ("retain", PUBLISH),
        ("will", PUBLISH),
        ("delayed", PUBLISH),
        ("payload_bytes_max", PUBLISH),
        ("shared", SUBSCRIBE),
        ("exclusive", SUBSCRIBE),
    ):
        if getattr(entry, name) is not None and not actions & action:
            raise ValueError(f"{name} means nothing with action = {entry.action!r}")
    qos = frozenset(range(entry.qos_max + 1)) if entry.qos_max is not None else entry.qos
    return Rule(
        name=entry.name or f"rules[{number}]",
        is_allow=entry.permission == "allow",
        actions=actions,
        topics=tuple(map(_topic, entry.topics)),
        who=_who(entry.who),
        conditions=Conditions(
            qos=None if qos is None else frozenset(qos),
            retain=entry.retain,
            will=entry.will,
            delayed=entry.delayed,
            shared=entry.shared,
            exclusive=entry.exclusive,
            payload_bytes_max=entry.payload_bytes_max,
        ),
    )


def _topic(text: str) -> TemplateLevels:
    try:
        return parse_template(text)
    except ValueError as error:
        raise ValueError(f"topic {text[:80]!r}: {error}") from None


def _who(given: Literal["all"] | _Who) -> Who:
    if given == "all":
        return Who()
    assert isinstance(given, _Who)
    attributes = given.attribute or {}
    who = Who(
        user=_values(given.user),
        client_id=_values(given.client_id),
        certificate=_values(given.certificate),
        role=_values(given.role),
        group=_values(given.group),
        listener=_values(given.listener),
        attribute=tuple((name, _values(value)) for name, value in sorted(attributes.items())),
        address=tuple(_network(text) for text in sorted(_values(given.address))),
    )
    if who == Who():
        raise ValueError('who = {} names nobody: a rule for everybody has who = "all"')
    return who


def _values(given: str | list[str] | None) -> frozenset[str]:
    return frozenset([given] if isinstance(given, str) else given or ())


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValueError(f"address {text[:80]!r}: {error}") from None


def _contradictions(rules: Iterable[Rule]) -> Iterable[str]:
    """Find rules that never decide, because one in front of them says the opposite about the same."""
    first: dict[tuple[Who, Conditions, str, int], Rule] = {}
    for rule in rules:
        for levels in rule.topics:
            for action in (PUBLISH, SUBSCRIBE):
                if not rule.actions & action:
                    continue
                text = template_text(levels)
                former = first.setdefault((rule.who, rule.conditions, text, action), rule)
                if former.is_allow != rule.is_allow:
                    said = "allowed" if former.is_allow else "denied"
                    yield f"{rule.name}: {text!r} is {said} to the same devices by {former.name} before"
                    break


def _roles_of_user(given: object) -> Mapping[str, frozenset[str]]:
    try:
        users_of = msgspec.convert(given, dict[_Name, list[_Name]])
    except msgspec.ValidationError as error:
        raise RulesFileError(f"roles: {error}") from None
    found: dict[str, set[str]] = {}
    for role, users in users_of.items():
        for user in users:
            found.setdefault(user, set()).add(role)
    shared: dict[frozenset[str], frozenset[str]] = {}
    return {user: shared.setdefault(roles := frozenset(names), roles) for user, names in found.items()}
