"""Ask for the history of metrics that processes remember, and for the statistics that brokers keep."""

from __future__ import annotations

import time
from typing import NamedTuple

import msgspec

from iotmq.client.admin.inspections import InspectionAdmin
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.queue_tables import decode_answer
from iotmq.errors import ClientError
from iotmq.history.merging import merged
from iotmq.history.questions import (
    HISTORY,
    STATISTICS,
    STEPS_MS,
    HistoryQuestion,
    SeriesHistory,
    SeriesList,
    StatisticsAnswer,
    StatisticsQuestion,
)

_DEFAULT_STEPS = 60


class ClusterStatistics(NamedTuple):
    """Statistics of all brokers together, and why some of them are not in it, by broker name."""

    answer: StatisticsAnswer
    problems: dict[str, str]


class HistoryAdmin:
    """Ask about history and statistics; needs a started client."""

    def __init__(self, client: ClientTransport) -> None:
        self._inspections = InspectionAdmin(client)

    async def series(self, process: str) -> SeriesList:
        """List the series that a broker or front end remembers. RouteNotFoundError for an unknown one."""
        body = await self._inspections.ask(process, HISTORY, msgspec.json.encode(HistoryQuestion()))
        return decode_answer(body, SeriesList, doing=f"listing the series of {process}")

    async def history(self, process: str, question: HistoryQuestion) -> SeriesHistory:
        """Return the values of series of a broker or front end. RouteNotFoundError for an unknown one."""
        if not question.series:
            raise ClientError("a history has at least one series: `series` lists them")
        body = await self._inspections.ask(process, HISTORY, msgspec.json.encode(question))
        return decode_answer(body, SeriesHistory, doing=f"reading the history of {process}")

    async def statistics(self, question: StatisticsQuestion) -> ClusterStatistics:
        """Return the statistics of all brokers together.

        BrokerError, ConnectionClosedError or RequestTimeoutError when none of them answers.
        """
        # All of them are asked about the same time.
        to_ms = question.to_ms or time.time_ns() // 1_000_000
        from_ms = question.from_ms or max(0, to_ms - (_DEFAULT_STEPS - 1) * STEPS_MS[question.step])
        asked = msgspec.structs.replace(question, from_ms=from_ms, to_ms=to_ms)
        found = await self._inspections.ask_all_brokers(STATISTICS, msgspec.json.encode(asked))
        answers = [
            decode_answer(body, StatisticsAnswer, doing=f"reading the statistics of {broker}")
            for broker, body in found.answers.items()
        ]
        if not answers:
            raise next(iter(found.failures.values()))
        return ClusterStatistics(merged(asked, answers), found.problems)
