"""The rules that are in force, and which of them are for a connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.mqtt_front.permissions.clauses import Clause
from iotmq.mqtt_front.permissions.rule import PUBLISH, SUBSCRIBE, Rule, roles_of
from iotmq.mqtt_front.permissions.rules_file import RulesOfFile
from iotmq.mqtt_front.permissions.topic_template import Subject


class ClausesFor(NamedTuple):
    """The topics of those rules that are for some devices; shared by all of them."""

    publish: tuple[Clause, ...]
    subscribe: tuple[Clause, ...]


class RuleSet:
    """Rules in order. Those that name users, roles and the like are found by these, whatever their number."""

    def __init__(self, found: RulesOfFile) -> None:
        self.rules: Final = found.rules
        self._roles_of_user = found.roles_of_user
        self._clauses = [_clauses(rule) for rule in found.rules]
        self._asked_always: list[int] = []
        self._by_name: dict[tuple[str, str], list[int]] = {}
        for place, rule in enumerate(found.rules):
            key = rule.who.key
            if key is None:
                self._asked_always.append(place)
                continue
            kind, values = key
            for value in values:
                self._by_name.setdefault((kind, value), []).append(place)
        self._found: dict[tuple[int, ...], ClausesFor] = {}

    def clauses_for(self, subject: Subject) -> ClausesFor:
        """Return what is for a device; the same object for all devices with the same rules."""
        roles = roles_of(subject, self._roles_of_user.get(subject.user or "", ()))
        places = set(self._asked_always)
        for key in self._keys(subject, roles):
            places.update(self._by_name.get(key, ()))
        chosen = tuple(place for place in sorted(places) if self.rules[place].who.includes(subject, roles))
        found = self._found.get(chosen)
        if found is None:
            if len(self._found) >= limits.MQTT_PERMISSION_SETS_MAX:
                self._found.clear()
            found = self._found[chosen] = _joined(self._clauses[place] for place in chosen)
        return found

    @staticmethod
    def _keys(subject: Subject, roles: frozenset[str]) -> Iterable[tuple[str, str]]:
        yield "client_id", subject.client_id
        yield "listener", subject.listener
        if subject.user is not None:
            yield "user", subject.user
        if subject.certificate_identity is not None:
            yield "certificate", subject.certificate_identity
        for role in roles:
            yield "role", role
        for group in subject.groups:
            yield "group", group


def clauses_of(rules: Iterable[Rule]) -> ClausesFor:
    """Return what is for a device that all of the rules are for."""
    return _joined(map(_clauses, rules))


def _clauses(rule: Rule) -> ClausesFor:
    clauses = tuple(Clause(rule, levels) for levels in rule.topics)
    return ClausesFor(clauses if rule.actions & PUBLISH else (), clauses if rule.actions & SUBSCRIBE else ())


def _joined(parts: Iterable[ClausesFor]) -> ClausesFor:
    found = list(parts)
    return ClausesFor(
        tuple(clause for part in found for clause in part.publish),
        tuple(clause for part in found for clause in part.subscribe),
    )
