"""What the broker counts, minute by minute: what is written, and what a disk that takes nothing leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.statistics.counters import CounterTable, TrafficCounters
from iotmq.broker.statistics.lasting import LastingStatistics
from iotmq.history.questions import QuestionError, StatisticsQuestion

# The begin of a minute.
START_MS = 1_700_006_400_000


class Site:
    """Counters whose minutes are kept."""

    def __init__(self, directory: Path, *, keys_max: int = 100, names_max: int = 10) -> None:
        self.clock = ManualClock(START_MS)
        self.counters = TrafficCounters(keys_max=keys_max, monotonic_s=self.clock.monotonic_s)
        self.settings = BrokerSettings(statistics_names_max=names_max)
        self.directory = directory
        self.lasting = LastingStatistics(self.counters, self.clock, self.settings, directory=directory)

    def end_minute(self) -> None:
        self.clock.advance(60)
        self.lasting.finish()

    async def sums(self, table: str) -> dict[str, list[int]]:
        question = {"table": table, "step": "minute", "from_ms": START_MS, "to_ms": START_MS + 3_600_000}
        found = json.loads(await self.lasting.answer(json.dumps(question).encode()))
        return {each["name"]: list(each["counts"].values()) for each in found["sums"]}


async def test_topics_groups_and_clients_are_written(tmp_path: Path) -> None:
    site = Site(tmp_path)
    counters = site.counters
    counters.count_put("T", 0, 3, 300)
    counters.count_put("T", 1, 2, 200, 2)
    counters.count_put("U", 0, 1, 100)
    counters.count_get("T", 0, "g", 3, 300, 5, False)
    counters.count_get("U", 0, "g", 1, 100, 5, True)
    counters.count_get("T", 0, "h", 3, 300, 5, False)
    counters.count_send_back("T", "h")
    counters.count_clients("truck", 4, 40, 5, 50, 1)
    counters.count_clients("", 1, 2, 3, 4, 5)
    site.end_minute()
    assert await site.sums("topics") == {"T": [5, 500, 6, 600], "U": [1, 100, 1, 100]}
    assert await site.sums("groups") == {"g": [4, 400, 0], "h": [3, 300, 1]}
    assert await site.sums("clients") == {"truck": [4, 40, 5, 50, 1], "": [1, 2, 3, 4, 5]}
    # Only what is new counts.
    counters.count_put("T", 0, 1, 1)
    site.end_minute()
    assert (await site.sums("topics"))["T"] == [6, 501, 6, 600]


async def test_keys_that_were_dropped_meanwhile_count_with_the_others(tmp_path: Path) -> None:
    site = Site(tmp_path, keys_max=2)
    for number in range(5):
        site.counters.count_put(f"t{number}", 0, 10, 1)
        site.counters.count_get("t", 0, f"g{number}", 10, 1, 1, False)
        site.counters.count_clients(f"c{number}", 10, 1, 0, 0, 1)
    site.counters.topic_puts.drop("t4")
    site.end_minute()
    for table in ("topics", "groups", "clients"):
        found = await site.sums(table)
        assert sum(row[0] for row in found.values()) == 50
        assert found[""][0] >= 30


async def test_a_disk_that_takes_nothing_for_a_while_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "statistics"
    directory.write_bytes(b"in the way")
    site = Site(directory)
    for _ in range(3):
        site.counters.count_put("T", 0, 1, 10)
        site.end_minute()
    assert [metric.value for metric in site.lasting.metrics()] == [3]
    assert "statistics could not be written, and wait" in caplog.text
    with pytest.raises(QuestionError, match="cannot be read"):
        await site.sums("topics")
    directory.unlink()
    site.end_minute()
    assert await site.sums("topics") == {"T": [3, 30, 0, 0]}


async def test_a_minute_is_that_of_most_of_its_time(tmp_path: Path) -> None:
    site = Site(tmp_path)
    # A little late, and then stopped for long.
    for advanced_s, minute in ((60.3, 0), (59.8, 1), (3_600, 61)):
        site.counters.count_put("T", 0, 1, 10)
        site.clock.advance(advanced_s)
        site.lasting.finish()
        question = StatisticsQuestion(
            table="topics",
            step="minute",
            names=("T",),
            from_ms=START_MS + minute * 60_000,
            to_ms=START_MS + minute * 60_000,
        )
        found = json.loads(await site.lasting.answer(json.dumps(_fields(question)).encode()))
        assert found["steps"][0]["counts"]["messages"] == [1]


def _fields(question: StatisticsQuestion) -> dict[str, object]:
    return {name: getattr(question, name) for name in question.__struct_fields__}


async def test_it_writes_as_minutes_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    asked: list[float] = []

    async def pass_time(seconds: float) -> None:
        asked.append(round(seconds, 3))
        if len(asked) == 3:
            raise asyncio.CancelledError
        site.counters.count_put("T", 0, 1, 1)
        site.clock.advance(seconds)

    monkeypatch.setattr("iotmq.broker.statistics.lasting.asyncio.sleep", pass_time)
    site.clock.advance(20)
    with pytest.raises(asyncio.CancelledError):
        await site.lasting.run()
    assert asked == [40.1, 60.0, 60.0]
    assert await site.sums("topics") == {"T": [2, 2, 0, 0]}


async def test_without_names_nothing_is_written(tmp_path: Path) -> None:
    site = Site(tmp_path / "none", names_max=0)
    site.counters.count_put("T", 0, 1, 1)
    await site.lasting.run()
    site.end_minute()
    assert not (tmp_path / "none").exists()
    with pytest.raises(QuestionError, match="statistics_names_max is 0"):
        await site.sums("topics")


async def test_a_question_has_so_many_names_and_its_list_so_many(tmp_path: Path) -> None:
    lasting = Site(tmp_path).lasting
    fields: dict[str, object] = {"table": "topics", "step": "minute"}
    names = [f"n{number}" for number in range(limits.STATISTICS_ASKED_MAX)]
    for taken, refused in (
        ({"names": names}, {"names": [*names, "more"]}),
        ({"names_max": limits.STATISTICS_LISTED_MAX}, {"names_max": limits.STATISTICS_LISTED_MAX + 1}),
        (
            {"names": ["x" * limits.STATISTICS_NAME_BYTES_MAX]},
            {"names": ["x" * (limits.STATISTICS_NAME_BYTES_MAX + 1)]},
        ),
    ):
        json.loads(await lasting.answer(json.dumps(fields | taken).encode()))
        with pytest.raises(QuestionError):
            await lasting.answer(json.dumps(fields | refused).encode())


async def test_an_answer_of_the_most_is_one_that_is_sent(tmp_path: Path) -> None:
    site = Site(tmp_path, keys_max=limits.STATISTICS_LISTED_MAX, names_max=limits.STATISTICS_LISTED_MAX)
    for number in range(limits.STATISTICS_LISTED_MAX):
        site.counters.count_clients(f"{number:064}", *[1 << 40] * 5)
    site.end_minute()
    fields: dict[str, object] = {"table": "clients", "step": "minute", "to_ms": START_MS}
    steps = limits.STATISTICS_POINTS_MAX // limits.STATISTICS_ASKED_MAX
    for more in (
        {},
        {
            "names": [f"{number:064}" for number in range(limits.STATISTICS_ASKED_MAX)],
            "from_ms": START_MS - (steps - 1) * 60_000,
        },
    ):
        answer = await site.lasting.answer(json.dumps(fields | more).encode())
        assert len(answer) <= limits.INSPECTION_ANSWER_BYTES_MAX


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", b'{"table": "x", "step": "minute"}'])
async def test_bad_questions_are_refused(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(QuestionError, match="no question about statistics"):
        await Site(tmp_path).lasting.answer(body)


def test_growth_is_what_was_added_since_a_copy() -> None:
    clock = ManualClock(START_MS)
    table = CounterTable(2, keys_max=3, monotonic_s=clock.monotonic_s)
    assert table.growth(b"") == []
    table.add("a", 1, 2)
    before = table.copy()
    assert table.growth(b"") == [("a", (1, 2))]
    assert table.growth(before) == []
    table.add("a", 5)
    table.add("b", 7, 8)
    assert table.growth(before) == [("a", (5, 0)), ("b", (7, 8))]
    # Another key in the place of one that is gone begins at nothing.
    table.drop("a")
    table.add("c", 9, 9)
    assert table.growth(before) == [("c", (9, 9)), ("b", (7, 8))]
    assert table.growth(b"") == [("c", (9, 9)), ("b", (7, 8))]
