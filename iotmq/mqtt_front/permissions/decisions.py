"""Apply rules to one connection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from iotmq.mqtt.topics.reply import REPLY_PREFIX
from iotmq.mqtt_front.permissions.clauses import Clause, fitting
from iotmq.mqtt_front.permissions.containment import all_allowed
from iotmq.mqtt_front.permissions.rule import NO_RULE, PUBLISH, Decision, Use
from iotmq.mqtt_front.permissions.topic_template import Subject, filled, is_one_level

EVERY_SIZE: Final = 0xFFFF_FFFF
OWN_TOPICS: Final = "own topics"
"""Stands for the name of a rule where there are none."""
ANSWERS: Final = "answers"
"""Stands for the name of a rule that lets a device answer a request."""

_FLAGS: Final = tuple((qos, is_retained) for qos in range(3) for is_retained in (False, True))


class Rooms(NamedTuple):
    """Limits of what may be published to a topic: by QoS * 2 + retain flag the size that is too large.

    `refusals` has the decisions about what is as large; None when nothing is refused.
    """

    room: tuple[int, ...]
    refusals: tuple[Decision, ...] | None


EVERYTHING_FITS: Final = Rooms((EVERY_SIZE,) * len(_FLAGS), None)


def nothing_by(rule: str) -> Rooms:
    """Return the rooms of a topic to which nothing may be published, because of one rule."""
    return Rooms((0,) * len(_FLAGS), (Decision(False, rule),) * len(_FLAGS))


class Policy(Protocol):
    """Decides for one connection."""

    def rooms(self, topic: str, *, is_delayed: bool) -> Rooms:
        """Return what may be published to a topic, as it is after rewriting."""

    def may_publish(self, topic: str, use: Use) -> Decision:
        """Decide about one message."""

    def may_subscribe(self, topic_filter: str, use: Use) -> Decision:
        """Decide about a filter, without `$share/GROUP/` and `$exclusive/`, as it is after rewriting."""


class RulesPolicy:
    """Rules in order, of which the first that fits decides; what none fits is refused.

    A device may answer requests (`$reply/TOKEN`) unless a rule denies it: it was asked.
    """

    __slots__ = ("_publish", "_subject", "_subscribe")

    def __init__(self, subject: Subject, publish: tuple[Clause, ...], subscribe: tuple[Clause, ...]) -> None:
        self._subject = subject
        self._publish = publish
        self._subscribe = subscribe

    def rooms(self, topic: str, *, is_delayed: bool) -> Rooms:
        fits = fitting(self._publish, topic.split("/"), self._subject)
        found = [
            _room(fits, Use(PUBLISH, qos, is_retained=is_retained, is_delayed=is_delayed), topic)
            for qos, is_retained in _FLAGS
        ]
        room = tuple(size for size, _ in found)
        return Rooms(room, None if min(room) == EVERY_SIZE else tuple(decision for _, decision in found))

    def may_publish(self, topic: str, use: Use) -> Decision:
        fits = fitting(self._publish, topic.split("/"), self._subject)
        for clause in fits:
            conditions = clause.rule.conditions
            size_max = conditions.payload_bytes_max
            if conditions.hold(use) and (size_max is None or use.payload_bytes <= size_max):
                return Decision(clause.rule.is_allow, clause.rule.name)
        return _without_rule(fits, use, topic)

    def may_subscribe(self, topic_filter: str, use: Use) -> Decision:
        wanted = topic_filter.split("/")
        fits = fitting(self._subscribe, wanted, self._subject)
        decision = self._may_subscribe(wanted, fits, use)
        if not decision.is_allowed and any(clause.rule.conditions.qos is not None for clause in fits):
            for qos in range(use.qos - 1, -1, -1):
                decision = self._may_subscribe(wanted, fits, use._replace(qos=qos))
                if decision.is_allowed:
                    return decision._replace(qos=qos)
        return decision

    def _may_subscribe(self, wanted: Sequence[str], fits: Iterable[Clause], use: Use) -> Decision:
        rules = [
            (clause.rule, levels)
            for clause in fits
            if clause.rule.conditions.hold(use)
            for levels in filled(clause.levels, self._subject, is_deny=clause.is_deny)
        ]
        verdict = all_allowed(wanted, [(levels, rule.is_allow) for rule, levels in rules])
        if verdict.is_allowed:
            return Decision(True, next((rule.name for rule, _ in rules if rule.is_allow), NO_RULE))
        if not verdict.is_decided:
            return Decision(
                False, NO_RULE, "the rules that fit it are too many and too mixed to be compared with it"
            )
        why = [] if verdict.witness == "/".join(wanted) else [f"it matches {verdict.witness}"]
        if verdict.rule is not None:
            name = rules[verdict.rule][0].name
        else:
            name, missed = _missed(fitting(self._subscribe, verdict.witness.split("/"), self._subject), use)
            why += [missed] if missed else []
        return Decision(False, name, "; ".join(why))


class Everything:
    """Without rules, and without a name or with that setting: all topics."""

    __slots__ = ()

    def rooms(self, topic: str, *, is_delayed: bool) -> Rooms:
        return EVERYTHING_FITS

    def may_publish(self, topic: str, use: Use) -> Decision:
        return Decision(True, NO_RULE)

    def may_subscribe(self, topic_filter: str, use: Use) -> Decision:
        return Decision(True, NO_RULE)


class OwnTopics:
    """Without rules: topics that have a name of the device as a level, and none that begins with $."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str | None]) -> None:
        self._names = frozenset(name for name in names if name is not None and is_one_level(name))

    def rooms(self, topic: str, *, is_delayed: bool) -> Rooms:
        if self.may_publish(topic, Use(PUBLISH, is_delayed=is_delayed)).is_allowed:
            return EVERYTHING_FITS
        return nothing_by(OWN_TOPICS)

    def may_publish(self, topic: str, use: Use) -> Decision:
        if topic.startswith(REPLY_PREFIX):
            return Decision(True, ANSWERS)
        return self.may_subscribe(topic, use)

    def may_subscribe(self, topic_filter: str, use: Use) -> Decision:
        is_own = not topic_filter.startswith("$") and not self._names.isdisjoint(topic_filter.split("/"))
        return Decision(is_own, OWN_TOPICS)


def _room(fits: Iterable[Clause], use: Use, topic: str) -> tuple[int, Decision]:
    """Return the size of payload that is too large, and the decision about one as large."""
    room = 0
    for clause in fits:
        rule = clause.rule
        if not rule.conditions.hold(use):
            continue
        if not rule.is_allow:
            return room, Decision(False, rule.name)
        if rule.conditions.payload_bytes_max is None:
            return EVERY_SIZE, Decision(True, rule.name)
        room = max(room, rule.conditions.payload_bytes_max + 1)
    last = _without_rule(fits, use, topic)
    return (EVERY_SIZE if last.is_allowed else room), last


def _without_rule(fits: Iterable[Clause], use: Use, topic: str) -> Decision:
    """Decide about a message that none of the rules for its topic is for."""
    if topic.startswith(REPLY_PREFIX):
        return Decision(True, ANSWERS)
    return Decision(False, *_missed(fits, use))


def _missed(fits: Iterable[Clause], use: Use) -> tuple[str, str]:
    """Return the rule that would allow it but for a condition, and the condition: that on its size first."""
    near: tuple[str, str] = NO_RULE, ""
    for clause in fits:
        rule = clause.rule
        if rule.is_allow and rule.conditions.hold(use):
            return rule.name, f"payload_bytes_max is {rule.conditions.payload_bytes_max}"
        if rule.is_allow and near[0] == NO_RULE:
            near = rule.name, rule.conditions.missed(use)
    return near
