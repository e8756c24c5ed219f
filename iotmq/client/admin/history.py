"""Ask for the history of metrics that processes remember, and for the statistics that brokers keep."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

import msgspec

from iotmq.client.admin.inspections import InspectionAdmin
from iotmq.client.transport.calls import master_addresses
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.queue_tables import decode_answer
from iotmq.errors import BrokerError, ClientError, ConnectionClosedError, RequestTimeoutError
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
        self._client = client
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
        body = msgspec.json.encode(asked)
        names = sorted(await master_addresses(self._client))
        answers: list[StatisticsAnswer] = []
        problems: dict[str, str] = {}
        failure: Exception | None = None

        async def one(broker: str) -> None:
            nonlocal failure
            try:
                answer = await self._inspections.ask_broker(broker, STATISTICS, body)
            except (BrokerError, ConnectionClosedError, RequestTimeoutError) as error:
                problems[broker] = str(error)
                failure = error
            else:
                answers.append(
                    decode_answer(answer, StatisticsAnswer, doing=f"reading the statistics of {broker}")
                )

        await asyncio.gather(*map(one, names))
        if not answers:
            assert failure is not None, "there is a broker"
            raise failure
        return ClusterStatistics(merged(asked, answers), problems)
