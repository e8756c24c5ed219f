"""Make one answer of those of several brokers."""

from __future__ import annotations

from collections.abc import Sequence

from iotmq.history.questions import (
    COLUMNS,
    OTHERS,
    NameSums,
    NameValues,
    StatisticsAnswer,
    StatisticsQuestion,
)


def merged(question: StatisticsQuestion, answers: Sequence[StatisticsAnswer]) -> StatisticsAnswer:
    """Add up the answers of brokers that were asked about the same times."""
    first = answers[0]
    steps = [
        NameValues(
            name=same[0].name,
            counts={column: _added([each.counts[column] for each in same]) for column in same[0].counts},
        )
        for same in zip(*(answer.steps for answer in answers), strict=True)
    ]
    sums: dict[str, dict[str, int]] = {}
    for answer in answers:
        for each in answer.sums:
            _add(sums, each.name, each.counts)
    ranked = sorted(sums.keys() - {OTHERS}, key=lambda name: (-sums[name][COLUMNS[question.table][0]], name))
    for name in ranked[question.names_max :]:
        _add(sums, OTHERS, sums.pop(name))
    names = [*ranked[: question.names_max], *(sums.keys() & {OTHERS})]
    return StatisticsAnswer(
        from_ms=first.from_ms,
        step_ms=first.step_ms,
        count=first.count,
        steps=steps,
        sums=[NameSums(name=name, counts=sums[name]) for name in names],
        oldest_ms=min((each.oldest_ms for each in answers if each.oldest_ms is not None), default=None),
    )


def _add(sums: dict[str, dict[str, int]], name: str, counts: dict[str, int]) -> None:
    former = sums.get(name, {})
    sums[name] = {column: former.get(column, 0) + count for column, count in counts.items()}


def _added(rows: Sequence[Sequence[int | None]]) -> list[int | None]:
    """Add numbers place by place; what nobody knows stays unknown."""
    return [
        None if all(each is None for each in place) else sum(each or 0 for each in place)
        for place in zip(*rows, strict=True)
    ]
