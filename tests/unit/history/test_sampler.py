"""The history of metrics: rates, gaps, limits, and what is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.history.questions import HistoryQuestion, QuestionError
from iotmq.history.sampler import MetricHistory, series_name
from iotmq.history.settings import HistorySettings
from iotmq.metrics import Metric, samples

# In the middle of a step.
START_MS = 1_700_000_005_000


class Numbers:
    """Reports what a test says."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.by_label: dict[str, float] = {}

    def metrics(self) -> Iterable[Metric]:
        yield from samples(*((name, f"text of {name}", value) for name, value in self.values.items()))
        for label, value in self.by_label.items():
            yield from samples(("many", "many", value), labels=(("of", label),))


class Site:
    """A history of numbers, and the time."""

    def __init__(self, **settings: object) -> None:
        self.clock = ManualClock(START_MS)
        self.numbers = Numbers()
        self.history = MetricHistory([self.numbers], HistorySettings(**settings), self.clock)  # type: ignore[arg-type]

    def pass_steps(self, count: int = 1, *, step: float = 0.0) -> None:
        for _ in range(count):
            self.clock.advance(10)
            for name in self.numbers.values:
                self.numbers.values[name] += step
            self.history.sample()

    def values(self, *series: str, step_s: int = 0, steps: int = 5) -> list[list[float | None]]:
        from_ms = self.clock.now_ms() - (steps - 1) * 1_000 * (step_s or 10)
        question = HistoryQuestion(series=series, from_ms=from_ms, step_s=step_s)  # type: ignore[arg-type]
        return [item.values for item in self.history.find(question).items]


def test_a_counter_is_shown_as_what_it_grew_by_in_a_second_and_a_gauge_as_it_is() -> None:
    site = Site()
    site.numbers.values = {"sent_total": 100.0, "open": 5.0}
    site.history.sample()
    site.pass_steps(2, step=30.0)
    assert site.values("sent_total", "open", steps=3) == [[5.0, 35.0, 65.0], [None, 3.0, 3.0]]
    listed = site.history.series().items
    assert [(each.name, each.is_rate) for each in listed] == [("open", False), ("sent_total", True)]
    assert listed[0].help == "text of open"


def test_a_counter_that_begins_anew_has_a_gap() -> None:
    site = Site()
    site.numbers.values = {"sent_total": 100.0}
    site.history.sample()
    site.pass_steps(step=10.0)
    site.numbers.values = {"sent_total": -10.0}
    site.pass_steps(2, step=10.0)
    assert site.values("sent_total", steps=4) == [[None, 1.0, None, 1.0]]


def test_a_process_that_stood_still_has_a_gap_and_no_rate_over_it() -> None:
    site = Site()
    site.numbers.values = {"sent_total": 0.0, "open": 1.0}
    site.history.sample()
    site.clock.advance(60)
    site.pass_steps(2, step=10.0)
    assert site.values("sent_total", "open", steps=9) == [
        [1.0, *[None] * 6, 11.0, 21.0],
        [*[None] * 8, 1.0],
    ]


def test_a_clock_that_is_set_forward_shows_as_a_gap_and_the_rate_is_that_of_real_time() -> None:
    site = Site()
    site.numbers.values = {"sent_total": 0.0}
    site.history.sample()
    site.pass_steps(step=10.0)
    site.clock.step(40)
    site.pass_steps(step=10.0)
    assert site.values("sent_total", steps=6) == [[1.0, None, None, None, None, 1.0]]


def test_a_clock_that_is_set_back_shows_nothing_at_times_that_are_still_to_come() -> None:
    site = Site()
    site.numbers.values = {"open": 1.0}
    site.pass_steps(5)
    site.clock.step(-30)
    site.pass_steps()
    assert site.values("open", steps=3) == [[1.0, 1.0, 1.0]]
    question = HistoryQuestion(series=("open",), to_ms=site.clock.now_ms() + 60_000)
    found = site.history.find(question)
    assert found.from_ms + (found.count - 1) * 10_000 <= site.clock.now_ms()


def test_larger_steps_are_means_and_the_step_follows_from_how_far_back_is_asked() -> None:
    site = Site()
    site.numbers.values = {"open": 0.0}
    site.pass_steps(12, step=1.0)
    assert site.values("open", step_s=60, steps=2)[0][-1] is not None
    now_ms = site.clock.now_ms()
    for back_s, step_s in ((3_000, 10), (7_200, 60), (86_300, 60), (100_000, 1_200), (10**9, 1_200)):
        question = HistoryQuestion(series=("open",), from_ms=now_ms - 1_000 * back_s)
        found = site.history.find(question)
        assert found.step_s == step_s
        assert found.count <= 1_440
        assert len(found.items[0].values) == found.count


def test_a_metric_stands_for_all_its_series() -> None:
    site = Site()
    site.numbers.by_label = {"a": 1.0, 'b"\n': 2.0}
    site.history.sample()
    found = site.history.find(HistoryQuestion(series=("many",)))
    assert [item.name for item in found.items] == ['many{of="a"}', 'many{of="b\\"\\n"}']
    assert series_name("many", {"of": "a"}) == 'many{of="a"}'
    one = site.history.find(HistoryQuestion(series=('many{of="a"}',)))
    assert [item.values[-1] for item in one.items] == [1.0]
    assert site.history.find(HistoryQuestion(series=("unknown",))).items == []


def test_only_wanted_metrics_are_remembered() -> None:
    site = Site(metrics=("kept_*", "!kept_not"))
    site.numbers.values = {"kept_a": 1.0, "kept_not": 1.0, "other": 1.0}
    site.history.sample()
    assert [each.name for each in site.history.series().items] == ["kept_a"]


def test_there_are_so_many_series_and_one_that_is_gone_for_an_hour_makes_room() -> None:
    site = Site(series_max=3)
    site.numbers.by_label = {"a": 1.0, "b": 1.0, "c": 1.0}
    site.history.sample()
    site.numbers.by_label = {"b": 1.0, "c": 1.0, "d": 2.0, "e": 2.0}
    site.pass_steps()
    left_out = {metric.name: metric.value for metric in site.history.metrics()}
    assert len(site.history) == 3
    assert left_out["iotmq_history_left_out_series"] == 2
    assert left_out["iotmq_history_series"] == 3
    assert left_out["iotmq_history_bytes"] == 3 * 4 * (360 + 1_440 + 504)
    site.pass_steps(360)
    names = [each.name for each in site.history.series().items]
    assert names == ['many{of="b"}', 'many{of="c"}', 'many{of="d"}']
    # Nothing of the one that had the place.
    assert site.values('many{of="d"}', step_s=60, steps=70)[0][:60] == [None] * 60


def test_one_that_was_gone_and_is_back_makes_no_room() -> None:
    site = Site(series_max=1)
    site.numbers.by_label = {"a": 1.0}
    site.history.sample()
    site.numbers.by_label = {}
    site.pass_steps(360)
    site.numbers.by_label = {"a": 1.0, "new": 100.0}
    site.pass_steps()
    assert [each.name for each in site.history.series().items] == ['many{of="a"}']
    assert site.values('many{of="a"}', steps=1) == [[1.0]]


def test_the_default_has_room_for_so_many_series() -> None:
    site = Site()
    site.numbers.by_label = {str(number): 1.0 for number in range(limits.HISTORY_SERIES_MAX + 1)}
    site.history.sample()
    assert len(site.history) == limits.HISTORY_SERIES_MAX


def test_a_series_with_a_name_past_the_limit_is_left_out() -> None:
    site = Site()
    room = limits.HISTORY_NAME_CHARACTERS_MAX - len('many{of=""}')
    site.numbers.by_label = {"a" * room: 1.0, "b" * (room + 1): 1.0}
    site.history.sample()
    assert [len(each.name) for each in site.history.series().items] == [limits.HISTORY_NAME_CHARACTERS_MAX]


def test_one_answer_has_so_many_series() -> None:
    site = Site()
    site.numbers.by_label = {str(number): 1.0 for number in range(limits.HISTORY_ASKED_MAX)}
    site.history.sample()
    assert len(site.history.find(HistoryQuestion(series=("many",))).items) == limits.HISTORY_ASKED_MAX
    site.numbers.by_label["more"] = 1.0
    site.history.sample()
    with pytest.raises(QuestionError, match="49 series are meant, and 48 are answered"):
        site.history.find(HistoryQuestion(series=("many",)))


def test_what_is_no_number_has_no_value() -> None:
    site = Site()
    site.numbers.values = {"a": float("nan"), "b": float("inf"), "c": 1e39, "d": -3e38}
    site.history.sample()
    assert site.values("a", "b", "c", "d", steps=1) == [[None], [None], [None], [-3e38]]


async def test_an_inspection_answers_in_json() -> None:
    site = Site()
    site.numbers.values = {"open": 3.0}
    site.history.sample()
    listed = json.loads(await site.history.answer(b"{}"))
    assert [item["name"] for item in listed["items"]] == ["open"]
    found = json.loads(await site.history.answer(b'{"series": ["open"], "step_s": 60}'))
    assert found["step_s"] == 60
    assert found["items"][0]["values"][-1] == 3.0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"series": [""]}',
        b'{"series": ["a"], "step_s": 7}',
        b'{"series": ["a"], "from_ms": -1}',
        b'{"series": ["a"], "unknown": 1}',
        b'{"series": ["a"], "from_ms": 1800000000000}',
    ],
)
async def test_bad_questions_are_refused(body: bytes) -> None:
    with pytest.raises(QuestionError) as caught:
        await Site().history.answer(body)
    assert caught.value.code == 29


async def test_an_answer_of_the_most_is_one_that_is_sent() -> None:
    site = Site()
    site.numbers.by_label = {"x" * 490 + str(number): 1.0 for number in range(limits.HISTORY_ASKED_MAX)}
    for _ in range(1_440):
        site.clock.advance(60)
        for number, label in enumerate(site.numbers.by_label):
            site.numbers.by_label[label] = -1.23456789e-10 / (number + 1)
        site.history.sample()
    body = json.dumps({"series": ["many"], "step_s": 60, "from_ms": 1}).encode()
    assert len(await site.history.answer(body)) <= limits.INSPECTION_ANSWER_BYTES_MAX


async def test_it_samples_by_itself_in_the_middle_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    refreshed: list[int] = []

    async def refresh() -> None:
        refreshed.append(site.clock.now_ms() % 10_000)

    site.history = MetricHistory([site.numbers], HistorySettings(), site.clock, refresh=refresh)
    site.numbers.values = {"open": 1.0}
    asked: list[float] = []
    done = asyncio.Event()

    async def pass_time(seconds: float) -> None:
        asked.append(seconds)
        if len(asked) == 4:
            done.set()
            await asyncio.get_running_loop().create_future()
        site.clock.advance(seconds)

    monkeypatch.setattr("iotmq.history.sampler.asyncio.sleep", pass_time)
    site.clock.advance(1.5)
    await site.history.start()
    await done.wait()
    await site.history.stop()
    assert asked == [8.5, 10.0, 10.0, 10.0]
    assert refreshed == [5_000] * 3
    assert site.values("open", steps=3) == [[1.0, 1.0, 1.0]]
