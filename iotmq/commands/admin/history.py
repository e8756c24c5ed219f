"""Show the history of a process's metrics, and the statistics that brokers keep."""

from __future__ import annotations

import argparse

from iotmq.client.admin.history import HistoryAdmin
from iotmq.commands.admin.output import Result, Table
from iotmq.commands.admin.session import Session
from iotmq.errors import ClientError
from iotmq.history.questions import HistoryQuestion, StatisticsQuestion
from iotmq.history.questions import Table as StatisticsTable

_REST = "(others)"


async def list_series(session: Session, options: argparse.Namespace) -> Result:
    """List the series that a process remembers."""
    found = await HistoryAdmin(session.client).series(options.process)
    rows = [{"series": each.name, "is_rate": each.is_rate} for each in found.items]
    return Table(rows, nothing=f"{options.process} has no series yet")


async def show_history(session: Session, options: argparse.Namespace) -> Result:
    """Print the values of series, the oldest first."""
    question = HistoryQuestion(
        series=tuple(options.series),
        from_ms=options.begin_ms or 0,
        to_ms=options.end_ms or 0,
        step_s=options.step_s,
    )
    found = await HistoryAdmin(session.client).history(options.process, question)
    rows = [
        {"time_ms": found.from_ms + 1_000 * found.step_s * place, "series": item.name, "value": value}
        for item in found.items
        for place, value in enumerate(item.values)
        if value is not None
    ]
    return Table(rows, nothing=f"{options.process} knows nothing of that time")


async def show_topics(session: Session, options: argparse.Namespace) -> Result:
    """Print what was sent to topics and consumed from them."""
    return await _statistics(session, "topics", options)


async def show_groups(session: Session, options: argparse.Namespace) -> Result:
    """Print what groups consumed and gave back."""
    return await _statistics(session, "groups", options)


async def show_clients(session: Session, options: argparse.Namespace) -> Result:
    """Print what devices published and got, by the beginning of their client ids."""
    return await _statistics(session, "clients", options)


async def _statistics(session: Session, table: StatisticsTable, options: argparse.Namespace) -> Result:
    """Return what was counted for each name, or step by step for those asked for."""
    question = StatisticsQuestion(
        table=table,
        step=options.step,
        names=tuple(options.names),
        from_ms=options.begin_ms or 0,
        to_ms=options.end_ms or 0,
        names_max=options.limit,
    )
    answer, problems = await HistoryAdmin(session.client).statistics(question)
    if problems:
        broker, problem = min(problems.items())
        raise ClientError(f"the statistics are not whole without broker {broker}: {problem}")
    if not question.names:
        return Table([{"name": each.name or _REST, **each.counts} for each in answer.sums])
    rows = [
        {
            "time_ms": answer.from_ms + answer.step_ms * place,
            "name": each.name or _REST,
            **{column: values[place] for column, values in each.counts.items()},
        }
        for each in answer.steps
        for place in range(answer.count)
        if any(values[place] is not None for values in each.counts.values())
    ]
    return Table(rows, nothing="nobody counted in that time")
