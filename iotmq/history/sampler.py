"""Remember the metrics of a process, for as long as it lives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

import msgspec

from iotmq import limits
from iotmq.clock import Clock
from iotmq.history.questions import (
    HistoryQuestion,
    QuestionError,
    Series,
    SeriesHistory,
    SeriesList,
    SeriesValues,
)
from iotmq.history.rings import RESOLUTIONS, VALUE_MAX, Ring
from iotmq.history.settings import HistorySettings
from iotmq.metrics import Metric, MetricSource, SourceReader, samples
from iotmq.supervised import end, supervise

SAMPLE_INTERVAL_S: Final = RESOLUTIONS[0].step_s
# What a counter grew by in more than so many seconds is no rate of one step: the process did not run.
_RATE_S_MAX: Final = 3.0 * SAMPLE_INTERVAL_S
_FORGET_S: Final = 3_600.0
_DEFAULT_SPAN_MS: Final = 3_600_000

_Key = tuple[str, tuple[tuple[str, str], ...]]
_questions = msgspec.json.Decoder(HistoryQuestion)


class _Place:
    """A series and the row it has in the rings."""

    __slots__ = ("help", "is_rate", "last", "name", "row", "seen_s")

    def __init__(self, row: int, name: str, metric: Metric) -> None:
        self.row = row
        self.name = name
        self.help = metric.help
        # Samples of histograms count, too.
        self.is_rate = metric.kind != "gauge"
        self.last = math.nan
        self.seen_s = -math.inf


class _Span(NamedTuple):
    ring: Ring
    first_slot: int
    steps: int


class MetricHistory:
    """Values of metric sources at the last hour's, day's and week's steps. A role: `start()`, `stop()`.

    `sample` is called every SAMPLE_INTERVAL_S, in the middle of a step of the wall clock, so that a timer
    that is a little early or late stays within its step. `refresh` is awaited before, where sources are in
    other processes.
    """

    def __init__(
        self,
        sources: Collection[MetricSource],
        settings: HistorySettings,
        clock: Clock,
        *,
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`sources` may grow meanwhile."""
        self._reader = SourceReader(sources)
        self._settings = settings
        self._clock = clock
        self._refresh = refresh
        self._rings = tuple(Ring(resolution) for resolution in RESOLUTIONS)
        self._places: dict[_Key, _Place] = {}
        # Whether a metric is remembered; there are as many as the code has.
        self._is_wanted: dict[str, bool] = {}
        self._left_out = 0
        # Series whose places others may have: those that were not seen since.
        self._gone: list[_Key] = []
        self._gone_since_s = -math.inf
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._places)

    async def start(self) -> None:
        """Sample until `stop`."""
        self._task = supervise("history of metrics", self._run)

    async def stop(self) -> None:
        """End; what is remembered stays."""
        await end([] if self._task is None else [self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.wait_s())
            if self._refresh is not None:
                await self._refresh()
            self.sample()

    def wait_s(self) -> float:
        """Return how long it is until the middle of the next step."""
        step_ms = 1_000 * SAMPLE_INTERVAL_S
        return (step_ms - (self._clock.now_ms() - step_ms // 2) % step_ms) / 1_000

    def sample(self) -> None:
        """Take the value of each series."""
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        found: list[tuple[int, float]] = []
        self._left_out = 0
        self._gone_since_s = now_s - _FORGET_S
        self._gone = [key for key, place in self._places.items() if place.seen_s <= self._gone_since_s]
        for metric in self._reader.samples():
            key = (metric.name, metric.labels)
            place = self._places.get(key)
            if place is None:
                if not self._wants(metric.name):
                    continue
                place = self._open(key, metric)
                if place is None:
                    self._left_out += 1
                    continue
            value = float(metric.value)
            shown = _rate(place, value, now_s) if place.is_rate else value
            place.last, place.seen_s = value, now_s
            if -VALUE_MAX < shown < VALUE_MAX:
                found.append((place.row, shown))
        for ring in self._rings:
            ring.add(now_ms, found)

    async def answer(self, body: bytes) -> bytes:
        """Answer a HistoryQuestion in JSON with a SeriesHistory or a SeriesList, as an inspection."""
        try:
            question = _questions.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise QuestionError(f"no question about the history: {error}") from None
        return msgspec.json.encode(self.find(question) if question.series else self.series())

    def series(self) -> SeriesList:
        """List the series there are."""
        self._have_a_sample()
        places = sorted(self._places.values(), key=lambda place: place.name)
        return SeriesList(
            items=[Series(name=each.name, is_rate=each.is_rate, help=each.help) for each in places]
        )

    def find(self, question: HistoryQuestion) -> SeriesHistory:
        """Return the values asked for. QuestionError for times that make no sense, or too much of them."""
        self._have_a_sample()
        span = self._span(question)
        step_ms = 1_000 * span.ring.step_s
        places = self._asked(question.series)
        return SeriesHistory(
            from_ms=span.first_slot * step_ms,
            step_s=span.ring.step_s,
            count=span.steps,
            items=[
                SeriesValues(
                    name=place.name,
                    is_rate=place.is_rate,
                    values=[
                        None if math.isnan(value) else float(f"{value:.6g}")
                        for value in span.ring.read(place.row, first_slot=span.first_slot, count=span.steps)
                    ],
                )
                for place in places
            ],
        )

    def metrics(self) -> Iterable[Metric]:
        """Report what the history has and takes."""
        return samples(
            ("iotmq_history_series", "Series whose history this process remembers.", len(self._places)),
            (
                "iotmq_history_left_out_series",
                "Series that are not remembered because there are history.series_max.",
                self._left_out,
            ),
            (
                "iotmq_history_bytes",
                "Memory of the history.",
                sum(ring.size_bytes for ring in self._rings),
            ),
        )

    def _have_a_sample(self) -> None:
        """A process that has just started is asked before it has looked at itself."""
        if not self._places:
            self.sample()

    def _wants(self, name: str) -> bool:
        wanted = self._is_wanted.get(name)
        if wanted is None:
            patterns = self._settings.metrics
            wanted = self._is_wanted[name] = any(
                fnmatchcase(name, each) for each in patterns if not each.startswith("!")
            ) and not any(fnmatchcase(name, each[1:]) for each in patterns if each.startswith("!"))
        return wanted

    def _open(self, key: _Key, metric: Metric) -> _Place | None:
        """Give a series a place; None when there is none."""
        name = series_name(metric.name, dict(metric.labels))
        if len(name) > limits.HISTORY_NAME_CHARACTERS_MAX:
            return None
        row = len(self._places)
        if row >= self._settings.series_max:
            # Not one that this sample has seen again.
            while self._gone and self._places[self._gone[-1]].seen_s > self._gone_since_s:
                self._gone.pop()
            if not self._gone:
                return None
            row = self._places.pop(self._gone.pop()).row
            for ring in self._rings:
                ring.clear(row)
        place = self._places[key] = _Place(row, name, metric)
        return place

    def _asked(self, names: Iterable[str]) -> list[_Place]:
        wanted = set(names)
        found = [
            place for (metric, _), place in self._places.items() if place.name in wanted or metric in wanted
        ]
        if len(found) > limits.HISTORY_ASKED_MAX:
            raise QuestionError(
                f"{len(found)} series are meant, and {limits.HISTORY_ASKED_MAX} are answered at a time: name "
                "some with their labels"
            )
        return sorted(found, key=lambda place: place.name)

    def _span(self, question: HistoryQuestion) -> _Span:
        now_ms = self._clock.now_ms()
        to_ms = min(question.to_ms or now_ms, now_ms)
        from_ms = question.from_ms or max(0, to_ms - _DEFAULT_SPAN_MS)
        if from_ms > to_ms:
            raise QuestionError("the history asked for ends before it begins, or is still to come")
        rings = [ring for ring in self._rings if question.step_s in (0, ring.step_s)]
        ring = next(
            (each for each in rings if now_ms - from_ms <= 1_000 * each.step_s * each.length), rings[-1]
        )
        step_ms = 1_000 * ring.step_s
        last_slot = to_ms // step_ms
        # There is nothing before.
        first_slot = max(from_ms // step_ms, now_ms // step_ms - ring.length + 1)
        return _Span(ring, first_slot, max(0, last_slot - first_slot + 1))


def series_name(metric: str, labels: Mapping[str, str]) -> str:
    """Return the name of a series: as in the text format of Prometheus."""
    if not labels:
        return metric
    shown = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{metric}{{{shown}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _rate(place: _Place, value: float, now_s: float) -> float:
    """Return what a counter grew by in a second; NaN for one that is new, began anew, or was not seen."""
    elapsed_s = now_s - place.seen_s
    if not 0 < elapsed_s <= _RATE_S_MAX or value < place.last:
        return math.nan
    return (value - place.last) / elapsed_s
