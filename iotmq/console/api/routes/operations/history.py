"""The history of metrics, and the statistics that brokers keep."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.client.admin.history import HistoryAdmin
from iotmq.console.api.problems import INVALID, NOT_FOUND, ProblemError
from iotmq.console.api.route import Call, route
from iotmq.console.api.routes.names import TimeMs
from iotmq.console.api.services import Services
from iotmq.history.questions import (
    HistoryQuestion,
    HistoryStep,
    NameSums,
    NameValues,
    QuestionError,
    SeriesHistory,
    SeriesList,
    SeriesName,
    StatisticsName,
    StatisticsQuestion,
    Step,
    Table,
)

_Process = Annotated[str, Meta(max_length=255)]


class ProcessArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process."""

    process: _Process = ""
    """Name of a broker or of a front end; empty for the process that answers."""


class SeriesArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some series of a process."""

    series: Annotated[list[SeriesName], Meta(min_length=1, max_length=limits.HISTORY_ASKED_MAX)]
    """A series, or a metric, which stands for all its series; may be there more than once."""
    process: _Process = ""
    """Name of a broker or of a front end; empty for the process that answers."""
    from_ms: TimeMs = 0
    """Beginning, in milliseconds since 1970; 0: an hour before the end."""
    to_ms: TimeMs = 0
    """End, in milliseconds since 1970; 0: now."""
    step_s: HistoryStep = 0
    """Seconds from one value to the next: 10 (kept for an hour), 60 (a day) or 1200 (a week); 0: the smallest
    that goes back far enough."""


class StatisticsArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Statistics of names over a time."""

    step: Step = "minute"
    """The length of a step; days are of UTC."""
    name: Annotated[list[StatisticsName], Meta(max_length=limits.STATISTICS_ASKED_MAX)] = []
    """A name whose counts are wanted step by step; may be there more than once. Empty: all together that have
    no place of their own. Without any the answer has the sums of all names."""
    from_ms: TimeMs = 0
    """Beginning, in milliseconds since 1970; 0: 60 steps before the end."""
    to_ms: TimeMs = 0
    """End, in milliseconds since 1970; 0: now."""
    limit: Annotated[int, Meta(ge=1, le=limits.STATISTICS_LISTED_MAX)] = 100
    """Without names: how many, those with most first; the others are summed up under the empty name."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of all brokers together."""

    from_ms: int
    """Beginning of the first step, in milliseconds since 1970."""
    step_ms: int
    """From one step to the next."""
    count: int
    """How many steps there are."""
    steps: list[NameValues]
    """The names asked for."""
    sums: list[NameSums]
    """All names, when none was asked for, with what was counted in these steps."""
    oldest_ms: int | None
    """The first step that is kept; null where nothing is."""
    problems: dict[str, str]
    """Brokers whose counts are missing, and why."""


async def show_history(services: Services, call: Call[SeriesArguments, None]) -> SeriesHistory:
    """Show how metrics of a process changed."""
    asked = call.arguments
    question = HistoryQuestion(
        series=tuple(asked.series), from_ms=asked.from_ms, to_ms=asked.to_ms, step_s=asked.step_s
    )
    if asked.process:
        return await HistoryAdmin(await services.client()).history(asked.process, question)
    if services.own.history is None:
        raise _nothing_remembered()
    try:
        return services.own.history.find(question)
    except QuestionError as error:
        raise ProblemError(INVALID, str(error)) from None


async def list_series(services: Services, call: Call[ProcessArguments, None]) -> SeriesList:
    """List the series whose history a process has."""
    if call.arguments.process:
        return await HistoryAdmin(await services.client()).series(call.arguments.process)
    if services.own.history is None:
        raise _nothing_remembered()
    return services.own.history.series()


async def show_topic_statistics(services: Services, call: Call[StatisticsArguments, None]) -> Statistics:
    """Show what was sent to topics and consumed from them, by minute, hour or day."""
    return await _statistics(services, "topics", call.arguments)


async def show_group_statistics(services: Services, call: Call[StatisticsArguments, None]) -> Statistics:
    """Show what groups consumed and gave back, by minute, hour or day."""
    return await _statistics(services, "groups", call.arguments)


async def show_client_statistics(services: Services, call: Call[StatisticsArguments, None]) -> Statistics:
    """Show what devices published and got, by the beginning of their client ids."""
    return await _statistics(services, "clients", call.arguments)


async def _statistics(services: Services, table: Table, asked: StatisticsArguments) -> Statistics:
    question = StatisticsQuestion(
        table=table,
        step=asked.step,
        names=tuple(asked.name),
        from_ms=asked.from_ms,
        to_ms=asked.to_ms,
        names_max=asked.limit,
    )
    answer, problems = await HistoryAdmin(await services.client()).statistics(question)
    return Statistics(
        from_ms=answer.from_ms,
        step_ms=answer.step_ms,
        count=answer.count,
        steps=answer.steps,
        sums=answer.sums,
        oldest_ms=answer.oldest_ms,
        problems=problems,
    )


def _nothing_remembered() -> ProblemError:
    return ProblemError(NOT_FOUND, "this process remembers nothing: history.enabled is false")


_AREA: Final = "history"

ROUTES: Final = (
    route("GET", "/history", show_history, tag=_AREA, problems=(NOT_FOUND,)),
    route("GET", "/history/series", list_series, tag=_AREA, problems=(NOT_FOUND,)),
    route("GET", "/statistics/topics", show_topic_statistics, tag=_AREA),
    route("GET", "/statistics/groups", show_group_statistics, tag=_AREA),
    route("GET", "/statistics/clients", show_client_statistics, tag=_AREA),
)
