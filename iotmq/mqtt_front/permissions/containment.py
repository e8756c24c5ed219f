"""Decide whether all topics that a filter can match are allowed by rules, of which the first decides.

The answer is exact, for any rules. A topic is walked level by level with all rules that still fit it. What a
level is matters only as far as some rule names it, so a level has one branch for every text that is named
there, and one for all others. A rule that has come to its `#` fits whatever follows, and hides the rules
behind it.

Rules can be made so that this takes exponentially many branches (they can say any formula of logic, and
whether one is always true is such a question). So the work has a limit; past it the filter is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from iotmq import limits

Levels: TypeAlias = Sequence[str]


class Verdict(NamedTuple):
    """The decision about a filter: where it is refused, `witness` is a topic of it that is not allowed.

    `rule` is the place of the rule that refuses the witness; None: no rule fits it. `is_decided` is False
    when the decision takes too much work; the filter is refused then.
    """

    is_allowed: bool
    rule: int | None = None
    witness: str = ""
    is_decided: bool = True


def all_allowed(
    wanted: Levels,
    rules: Sequence[tuple[Levels, bool]],
    *,
    work_max: int = limits.MQTT_PERMISSION_WORK_MAX,
) -> Verdict:
    """Decide about a filter by the levels of the rules, and whether each of them allows.

    Topics that begin with $ are not for a wildcard in the first level, of rules as of filters [MQTT-4.7.2-1].
    """
    try:
        refused = _Walk(wanted, rules, work_max).refused(0, tuple(range(len(rules))), is_at_end=False)
    except _TooMuchWorkError:
        return Verdict(False, is_decided=False)
    if refused is None:
        return Verdict(True)
    witness = refused[::-1]
    fits = (place for place, (levels, _) in enumerate(rules) if is_matched(levels, witness))
    return Verdict(False, next(fits, None), "/".join(witness))


def is_matched(levels: Levels, topic: Levels) -> bool:
    """Return whether the filter with these levels selects the topic."""
    if topic[0].startswith("$") and levels[0] in ("+", "#"):
        return False
    for place, level in enumerate(levels):
        if level == "#":
            return True
        if place == len(topic) or level not in ("+", topic[place]):
            return False
    return len(levels) == len(topic)


class _TooMuchWorkError(Exception):
    """The walk has taken as many steps as it may."""


class _Walk:
    def __init__(self, wanted: Levels, rules: Sequence[tuple[Levels, bool]], work_max: int) -> None:
        self._wanted = wanted
        self._levels = [levels for levels, _ in rules]
        self._allows = [allows for _, allows in rules]
        self._work_left = work_max
        # From where everything is allowed, as the arguments of `refused`.
        self._allowed: set[tuple[int, tuple[int, ...], bool]] = set()
        self._other = _unnamed({level for levels, _ in rules for level in levels}.union(wanted))

    def refused(self, depth: int, fitting: tuple[int, ...], *, is_at_end: bool) -> list[str] | None:
        """Return the further levels, from the back, of a topic that is refused; None when there is none.

        `fitting` has the places of the rules that fit the first `depth` levels; of those that have come to
        their `#` it is ~place. `is_at_end`: the filter has come to its own.
        """
        fitting = self._without_hidden(fitting)
        allowing = [self._allows[place if place >= 0 else ~place] for place in fitting]
        if not any(allowing):
            return self._some_end(depth, is_at_end=is_at_end)
        if all(allowing) and fitting[-1] < 0:
            return None
        state = (depth, fitting, is_at_end)
        if state in self._allowed:
            return None
        found = self._refused_from(depth, fitting, is_at_end=is_at_end)
        if found is None:
            self._allowed.add(state)
        return found

    def _refused_from(self, depth: int, fitting: tuple[int, ...], *, is_at_end: bool) -> list[str] | None:
        wanted = "#" if is_at_end else self._wanted[depth] if depth < len(self._wanted) else None
        if depth and wanted in ("#", None) and not self._allows_end(depth, fitting):
            return []
        if wanted is None:
            return None
        for level, still in self._branches(depth, fitting, wanted):
            self._work_left -= 1 + len(still)
            if self._work_left < 0:
                raise _TooMuchWorkError
            found = self.refused(depth + 1, still, is_at_end=wanted == "#")
            if found is not None:
                found.append(level)
                return found
        return None

    @staticmethod
    def _without_hidden(fitting: tuple[int, ...]) -> tuple[int, ...]:
        """Leave out what stands behind a rule that fits everything from here on."""
        for place, rule in enumerate(fitting):
            if rule < 0:
                return fitting[: place + 1]
        return fitting

    def _allows_end(self, depth: int, fitting: tuple[int, ...]) -> bool:
        """Return whether the topic is allowed that has no level more."""
        for rule in fitting:
            if rule < 0:
                return self._allows[~rule]
            levels = self._levels[rule]
            if len(levels) == depth or levels[depth] == "#":
                return self._allows[rule]
        return False

    def _branches(
        self, depth: int, fitting: tuple[int, ...], wanted: str
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield a text for each kind that the next level can be of, and the rules that fit on with it."""
        anyhow: list[tuple[int, int]] = []
        named: dict[str, list[tuple[int, int]]] = {}
        for order, rule in enumerate(fitting):
            own = "#" if rule < 0 else self._levels[rule][depth] if depth < len(self._levels[rule]) else None
            if own == "#":
                anyhow.append((order, rule if rule < 0 else ~rule))
            elif own == "+":
                anyhow.append((order, rule))
            elif own is not None:
                named.setdefault(own, []).append((order, rule))
        is_any = wanted in ("+", "#")
        for level in (self._other, *sorted(named)) if is_any else (wanted,):
            still = named.get(level, [])
            if depth or not level.startswith("$"):
                still = sorted([*still, *anyhow])
            elif is_any:
                continue
            yield level, tuple(rule for _, rule in still)

    def _some_end(self, depth: int, *, is_at_end: bool) -> list[str]:
        """Return the further levels of some topic of the filter, from the back."""
        if is_at_end:
            return []
        rest = [self._other if level in ("+", "#") else level for level in self._wanted[depth:]]
        if depth and rest and self._wanted[-1] == "#":
            rest.pop()
        return rest[::-1]


def _unnamed(named: set[str]) -> str:
    """Return a level that none of the filters has."""
    return next(text for number in range(len(named) + 1) if (text := f"x{number or ''}") not in named)
