"""One answer of several brokers."""

from __future__ import annotations

from iotmq.history.merging import merged
from iotmq.history.questions import NameSums, NameValues, StatisticsAnswer, StatisticsQuestion


def answer(
    *, steps: list[int | None] | None = None, oldest_ms: int | None = None, **sums: int
) -> StatisticsAnswer:
    return StatisticsAnswer(
        from_ms=0,
        step_ms=60_000,
        count=3,
        steps=[] if steps is None else [NameValues(name="a", counts={"messages": steps})],
        sums=[NameSums(name=name.strip("_"), counts={"messages": count}) for name, count in sums.items()],
        oldest_ms=oldest_ms,
    )


QUESTION = StatisticsQuestion(table="groups", step="minute", names_max=2)


def test_steps_add_up_and_what_nobody_knows_stays_unknown() -> None:
    found = merged(QUESTION, [answer(steps=[1, None, None]), answer(steps=[2, 3, None], oldest_ms=7)])
    assert found.steps == [NameValues(name="a", counts={"messages": [3, 3, None]})]
    assert (found.from_ms, found.step_ms, found.count, found.oldest_ms) == (0, 60_000, 3, 7)


def test_sums_add_up_and_the_largest_of_all_brokers_are_named() -> None:
    found = merged(QUESTION, [answer(a=5, b=4, _=1), answer(b=3, c=6), answer(d=1)])
    assert [(each.name, each.counts["messages"]) for each in found.sums] == [("b", 7), ("c", 6), ("", 7)]


def test_one_broker_alone() -> None:
    only = answer(a=1)
    assert merged(QUESTION, [only]) == only
