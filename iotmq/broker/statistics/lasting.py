"""Write what the broker counts into tables that outlive it, minute by minute.

Nothing is counted for it: the counters that only grow are looked at as each minute ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from iotmq.broker.settings import BrokerSettings
from iotmq.broker.statistics.counters import CounterTable, TrafficCounters
from iotmq.clock import Clock
from iotmq.history.questions import COLUMNS, OTHERS, STEPS_MS, QuestionError, StatisticsQuestion, Table
from iotmq.history.tables import StatisticsTables
from iotmq.metrics import Metric, samples

logger = logging.getLogger(__name__)

_MINUTE_MS: Final = STEPS_MS["minute"]
# So long behind its end a minute is written.
_BEHIND_MS: Final = 100
# Of a table that the disk has not taken, while it takes nothing.
_UNWRITTEN_NAMES_MAX: Final = 20_000

_Growth: TypeAlias = Mapping[str, Sequence[tuple[Hashable, tuple[int, ...]]]]
"""By table of counters: key, and by how much each total grew."""

_questions = msgspec.json.Decoder(StatisticsQuestion)


class LastingStatistics:
    """Keep the counts of topics, groups and prefixes of client ids, by minute, hour and day."""

    def __init__(
        self, counters: TrafficCounters, clock: Clock, settings: BrokerSettings, *, directory: Path
    ) -> None:
        """`directory` gets the files; without names (`statistics_names_max`) none is written."""
        self._counters = counters
        self._clock = clock
        self._tables = _tables(settings, directory) if settings.statistics_names_max else None
        self._copies = dict.fromkeys(self._counted, b"")
        self._looked_s = clock.monotonic_s()
        # What was counted and is not written, because the disk did not take it.
        self._unwritten: dict[Table, dict[str, list[int]]] = {table: {} for table in COLUMNS}
        self._failed_count = 0

    async def run(self) -> None:
        """Write each minute as it ends, until cancelled."""
        while self._tables is not None:
            past_ms = (self._clock.now_ms() - _BEHIND_MS) % _MINUTE_MS
            await asyncio.sleep((_MINUTE_MS - past_ms) / 1_000)
            await asyncio.to_thread(self._write, *self._take())

    def finish(self) -> None:
        """Write what was counted since the last minute: the broker stops."""
        if self._tables is not None:
            self._write(*self._take())

    async def answer(self, body: bytes) -> bytes:
        """Answer a StatisticsQuestion in JSON with a StatisticsAnswer, as an inspection."""
        try:
            question = _questions.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise QuestionError(f"no question about statistics: {error}") from None
        if self._tables is None:
            raise QuestionError("this broker keeps no statistics: broker.statistics_names_max is 0")
        try:
            found = await asyncio.to_thread(self._tables.answer, question, self._clock.now_ms())
        except OSError as error:
            raise QuestionError(f"the statistics cannot be read: {error}") from error
        return msgspec.json.encode(found)

    def metrics(self) -> Iterable[Metric]:
        """Report how often statistics could not be written."""
        return samples(
            (
                "iotmq_broker_statistics_failed_writes_total",
                "Minutes of statistics that could not be written when they ended; the next one has them.",
                self._failed_count,
            )
        )

    @property
    def _counted(self) -> Mapping[str, CounterTable]:
        counters = self._counters
        return {
            "topic_puts": counters.topic_puts,
            "group_gets": counters.group_gets,
            "send_backs": counters.send_backs,
            "clients": counters.clients,
            "broker": counters.broker,
        }

    def _take(self) -> tuple[int, _Growth]:
        """Return the minute that most of the time since the last call was in, and what grew meanwhile."""
        now_s = self._clock.monotonic_s()
        passed_ms = min((now_s - self._looked_s) * 1_000, float(_MINUTE_MS))
        self._looked_s = now_s
        minute_ms = (self._clock.now_ms() - round(passed_ms / 2)) // _MINUTE_MS * _MINUTE_MS
        growth = {name: table.growth(self._copies[name]) for name, table in self._counted.items()}
        self._copies = {name: table.copy() for name, table in self._counted.items()}
        return minute_ms, growth

    def _write(self, minute_ms: int, growth: _Growth) -> None:
        """Write a minute; in a thread, one at a time."""
        assert self._tables is not None, "only what is kept is written"
        self._sum(growth)
        try:
            self._tables.add(minute_ms, self._unwritten)
        except OSError as error:
            self._failed_count += 1
            logger.error("statistics could not be written, and wait: %s", error)
        else:
            self._unwritten = {table: {} for table in COLUMNS}

    def _sum(self, growth: _Growth) -> None:
        """Sum up by topic, group and prefix what has grown."""
        found = self._unwritten
        for (topic, *_), steps in _named(growth["topic_puts"]):
            _add(found, "topics", topic, 0, steps[1:])
        for (topic, group), steps in _named(growth["group_gets"]):
            _add(found, "topics", topic, 2, steps[1:3])
            _add(found, "groups", group, 0, steps[1:3])
        for (_, group), steps in _named(growth["send_backs"]):
            _add(found, "groups", group, 2, steps)
        for (prefix, *_), steps in _named(growth["clients"]):
            _add(found, "clients", prefix, 0, steps)
        # All that no key has counted was counted under keys that are gone, or under none.
        puts = _left(growth, "put", "topic_puts", slice(1, 3))
        gets = _left(growth, "get", "group_gets", slice(1, 3))
        _add(found, "topics", OTHERS, 0, puts)
        _add(found, "topics", OTHERS, 2, gets)
        _add(found, "groups", OTHERS, 0, gets)
        _add(found, "clients", OTHERS, 0, _left(growth, "clients", "clients", slice(0, 5)))


def _left(growth: _Growth, side: str, table: str, columns: slice) -> list[int]:
    """Return what the keys of a table do not have of all that was counted on a side."""
    left = list(next((steps for key, steps in growth["broker"] if key == side), (0,) * 6)[columns])
    for _, steps in growth[table]:
        for column, step in enumerate(steps[columns]):
            left[column] -= step
    # A key that was dropped and came again may have counted before.
    return [max(0, number) for number in left]


def _tables(settings: BrokerSettings, directory: Path) -> StatisticsTables:
    return StatisticsTables(
        directory,
        names_max=settings.statistics_names_max,
        kept={
            "minute": settings.statistics_minute_days,
            "hour": settings.statistics_hour_months,
            "day": settings.statistics_day_years,
        },
    )


def _named(
    grown: Sequence[tuple[Hashable, tuple[int, ...]]],
) -> Iterable[tuple[tuple[str, ...], tuple[int, ...]]]:
    for key, steps in grown:
        yield (key if isinstance(key, tuple) else (str(key),)), steps


def _add(
    found: dict[Table, dict[str, list[int]]], table: Table, name: str, first: int, steps: Sequence[int]
) -> None:
    """Add steps to the counts of a name, from a column on."""
    if not any(steps):
        return
    names = found[table]
    if name not in names and len(names) >= _UNWRITTEN_NAMES_MAX:
        name = OTHERS
    counts = names.setdefault(name, [0] * len(COLUMNS[table]))
    for column, step in enumerate(steps, first):
        counts[column] += step
