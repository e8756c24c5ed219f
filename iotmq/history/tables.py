"""Statistics by minute, hour and day that outlive the process: the files there are, and their sums.

    statistics/minute-YYYYMMDD    the minutes of a day
    statistics/hour-YYYYMM        the hours of a month
    statistics/day-YYYY           the days of a year, all of UTC

Minutes are written as they end. An hour is the sum of its minutes, a day that of its hours; they are written
when the first minute behind them comes. Whoever is stopped in between does it at the next start, because the
same minute comes last in the files. Hours and days may stand there twice, when the clock was set back into
them: the last one has all. Minutes that stand there twice add up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.history.block_sums import BlockSums, row_of
from iotmq.history.questions import (
    COLUMNS,
    OTHERS,
    STEPS_MS,
    NameSums,
    NameValues,
    QuestionError,
    StatisticsAnswer,
    StatisticsQuestion,
    Step,
    Table,
)
from iotmq.history.statistics_file import (
    TABLES,
    Block,
    Chosen,
    Content,
    Counts,
    Rows,
    StatisticsFile,
    add_to,
    first_time,
    read_file,
)

logger = logging.getLogger(__name__)

Growth = Mapping[Table, Mapping[str, Sequence[int]]]
"""By table and name: what was counted."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999
_FORMATS: Final[dict[Step, str]] = {"minute": "%Y%m%d", "hour": "%Y%m", "day": "%Y"}
_SMALLER: Final[dict[Step, Step]] = {"hour": "minute", "day": "hour"}
# A file has names of many minutes, of which not all are there at a time.
_NAMES_PER_FILE: Final = 4
_DEFAULT_STEPS: Final = 60


class _Placed(NamedTuple):
    """A block of a file, and the time of the step it is a part of."""

    time_ms: int
    names: list[str]
    """Of its file and table."""
    block: Block


class StatisticsTables:
    """The files of one directory. All may be called in any thread."""

    def __init__(self, directory: Path, *, names_max: int, kept: Mapping[Step, int]) -> None:
        """Each step has `names_max` names of each table; of each step there are `kept` files."""
        self._directory = directory
        self._names_max = names_max
        self._kept = kept
        self._lock = threading.Lock()
        # The file of each step that is written, until writing fails.
        self._files: dict[Step, StatisticsFile] = {}
        # The last minute written; None until the files were looked at.
        self._last_ms: int | None = None

    def add(self, minute_ms: int, growth: Growth) -> None:
        """Write what was counted in a minute, and the hour and day that are over. OSError: nothing counts."""
        minute_ms = _start(min(minute_ms, _TIME_MS_MAX), "minute")
        with self._lock:
            try:
                self._roll(minute_ms)
                rows = [self._rows(table, minute_ms, growth.get(table, {})) for table in TABLES]
                self._file("minute", minute_ms).append(rows, is_synced=False)
                self._last_ms = minute_ms
            except OSError:
                self._files.clear()
                raise

    def answer(self, question: StatisticsQuestion, now_ms: int) -> StatisticsAnswer:
        """Find what is asked for. QuestionError for too much of it, OSError for unreadable files."""
        step_ms = STEPS_MS[question.step]
        to_ms = min(question.to_ms or now_ms, _TIME_MS_MAX)
        from_ms = question.from_ms or max(0, to_ms - (_DEFAULT_STEPS - 1) * step_ms)
        first_ms, last_ms = _start(from_ms, question.step), _start(to_ms, question.step)
        count = (last_ms - first_ms) // step_ms + 1
        if count < 1:
            raise QuestionError("the time asked for ends before it begins")
        if len(question.names) * count > limits.STATISTICS_POINTS_MAX:
            raise QuestionError(
                f"{count} steps of {len(question.names)} names are asked for, and "
                f"{limits.STATISTICS_POINTS_MAX} are answered at a time: take a larger step, a shorter time, "
                "or fewer names"
            )
        steps: list[NameValues] = []
        found: dict[str, Counts] = {}
        with self._lock:
            # Files are read one after the other as they are added up: one of minutes may have 150 MB.
            placed = self._placed(question.step, question.table, first_ms, last_ms)
            if question.names:
                steps = _by_step(placed, question, first_ms=first_ms, count=count)
            else:
                found = _sums(placed, question.table)
            oldest_ms = self._oldest(question.step)
        sums = _listed(_largest(found, question.names_max), question.table)
        return StatisticsAnswer(
            from_ms=first_ms, step_ms=step_ms, count=count, steps=steps, sums=sums, oldest_ms=oldest_ms
        )

    # Writing

    def _rows(self, table: Table, time_ms: int, growth: Mapping[str, Sequence[int]]) -> Rows:
        found: dict[str, Counts] = {}
        for name, counts in growth.items():
            add_to(found, _shortened(name), tuple(counts))
        return Rows(table, time_ms, _largest(found, self._names_max))

    def _roll(self, minute_ms: int) -> None:
        """Write the hour and the day of the last minute when a minute is not of them."""
        if self._last_ms is None:
            self._last_ms = self._last_minute()
        last_ms = self._last_ms
        for step in _SMALLER:
            if last_ms is not None and _start(last_ms, step) != _start(minute_ms, step):
                self._write_sums(step, _start(last_ms, step))

    def _write_sums(self, step: Step, time_ms: int) -> None:
        rows = []
        for table in TABLES:
            parts = list(self._parts(step, table, time_ms))
            rows.append(Rows(table, time_ms, _largest(_sums(parts, table), self._names_max)))
        self._file(step, time_ms).append(rows, is_synced=True)

    def _file(self, step: Step, time_ms: int) -> StatisticsFile:
        path = self._path(step, time_ms)
        file = self._files.get(step)
        if file is None or file.path != path:
            file = StatisticsFile(path, names_max=_NAMES_PER_FILE * self._names_max)
            self._files[step] = file
            self._drop_files(step, time_ms)
        return file

    def _drop_files(self, step: Step, time_ms: int) -> None:
        """Delete the files that are farthest from a time, so that this and `kept` - 1 others stay.

        By age alone a clock that was wrong for a minute would delete everything.
        """
        own = _period(step, _name(step, time_ms)) or 0
        found = sorted(self._paths(step), key=lambda each: (abs(each[0] - own), each[0]))
        others = [path for period, path in found if period != own]
        for path in others[self._kept[step] - 1 :]:
            logger.info("statistics are deleted for their age", extra={"file": str(path)})
            path.unlink(missing_ok=True)

    # Reading

    def _placed(self, step: Step, table: Table, first_ms: int, last_ms: int) -> Iterator[_Placed]:
        """Yield what makes up the steps of a time, those that are not over included."""
        last_written_ms = self._last_ms if self._last_ms is not None else self._last_minute()
        under_way_ms = None if last_written_ms is None else _start(last_written_ms, step)
        found = (
            _Placed(block.time_ms, content.names[table], block)
            for content in self._contents(step, Chosen(table, first_ms, last_ms))
            for block in content.blocks
        )
        if step == "minute":
            yield from found
            return
        # The last of a time has all.
        latest = {each.time_ms: each for each in found}
        if under_way_ms is not None and first_ms <= under_way_ms <= last_ms:
            latest.pop(under_way_ms, None)
            yield from self._parts(step, table, under_way_ms)
        yield from latest.values()

    def _parts(self, step: Step, table: Table, time_ms: int) -> Iterator[_Placed]:
        """Yield the smaller steps of a step, as parts of it."""
        last_ms = time_ms + STEPS_MS[step] - 1
        for each in self._placed(_SMALLER[step], table, time_ms, last_ms):
            yield _Placed(time_ms, each.names, each.block)

    def _contents(self, step: Step, chosen: Chosen) -> Iterator[Content]:
        first, last = _name(step, chosen.first_ms), _name(step, chosen.last_ms)
        for _, path in sorted(self._paths(step)):
            # The names stand in the order of their times.
            if first <= path.name <= last:
                yield read_file(path, chosen)

    def _last_minute(self) -> int | None:
        """Return the last minute that was written, by the order of the files."""
        for _, path in sorted(self._paths("minute"), reverse=True):
            blocks = read_file(path).blocks
            if blocks:
                return blocks[-1].time_ms
        return None

    def _oldest(self, step: Step) -> int | None:
        for _, path in sorted(self._paths(step)):
            time_ms = first_time(path)
            if time_ms is not None:
                return time_ms
        return None

    def _paths(self, step: Step) -> Iterable[tuple[int, Path]]:
        try:
            paths = list(self._directory.iterdir())
        except FileNotFoundError:
            return []
        return [(period, path) for path in paths if (period := _period(step, path.name)) is not None]

    def _path(self, step: Step, time_ms: int) -> Path:
        return self._directory / _name(step, time_ms)


def _start(time_ms: int, step: Step) -> int:
    return time_ms // STEPS_MS[step] * STEPS_MS[step]


def _name(step: Step, time_ms: int) -> str:
    """Return the name of the file that has a time."""
    time = _EPOCH + timedelta(milliseconds=time_ms)
    # The year with four digits always, which strftime does not say.
    return f"{step}-{time.year:04}{time.month:02}{time.day:02}"[: len(step) + 1 + _digits(step)]


def _digits(step: Step) -> int:
    return {"minute": 8, "hour": 6, "day": 4}[step]


def _period(step: Step, name: str) -> int | None:
    """Return the number of the time a file is for, in days, months or years; None for another file."""
    digits = name.removeprefix(f"{step}-")
    if digits == name or len(digits) != _digits(step) or not digits.isascii() or not digits.isdecimal():
        return None
    try:
        date = datetime.strptime(digits, _FORMATS[step])
    except ValueError:
        return None
    if step == "minute":
        return date.toordinal()
    return date.year * 12 + date.month if step == "hour" else date.year


def _shortened(name: str) -> str:
    """Return a name that has its room; one that has more goes to the others."""
    if len(name.encode("utf-8", "replace")) > limits.STATISTICS_NAME_BYTES_MAX:
        return OTHERS
    return name.encode("utf-8", "replace").decode()


def _largest(counts: Mapping[str, Counts], names_max: int) -> dict[str, Counts]:
    """Return the names with most, and all further ones together, last."""
    named = [name for name in counts if name != OTHERS]
    named.sort(key=lambda name: (-counts[name][0], name))
    found = {name: counts[name] for name in named[:names_max]}
    for name in (*named[names_max:], *((OTHERS,) if OTHERS in counts else ())):
        add_to(found, OTHERS, counts[name])
    return found


def _listed(counts: Mapping[str, Counts], table: Table) -> list[NameSums]:
    return [
        NameSums(name=name, counts=dict(zip(COLUMNS[table], row, strict=True)))
        for name, row in counts.items()
    ]


def _sums(placed: Iterable[_Placed], table: Table) -> dict[str, Counts]:
    """Return what the blocks have of each name together."""
    # By the names of a file.
    by_file: dict[int, tuple[list[str], BlockSums]] = {}
    for each in placed:
        key = id(each.names)
        if key not in by_file:
            by_file[key] = each.names, BlockSums(len(each.names), len(COLUMNS[table]))
        by_file[key][1].add(each.block.ids, each.block.counts)
    found: dict[str, Counts] = {}
    for names, sums in by_file.values():
        for number, counts in sums.rows():
            add_to(found, names[number], counts)
    return found


def _by_step(
    placed: Iterable[_Placed], question: StatisticsQuestion, *, first_ms: int, count: int
) -> list[NameValues]:
    """Return what the blocks have of the names asked for, step by step."""
    columns = COLUMNS[question.table]
    step_ms = STEPS_MS[question.step]
    wanted = list(dict.fromkeys(question.names))
    nothing = (0,) * len(columns)
    known_places: set[int] = set()
    # Of each name, by place.
    values: list[dict[int, Counts]] = [{} for _ in wanted]
    # By the names of a file, which it keeps.
    numbers: dict[int, tuple[list[str], dict[int, int]]] = {}
    for each in placed:
        place = (each.time_ms - first_ms) // step_ms
        known_places.add(place)
        key = id(each.names)
        if key not in numbers:
            own = {number: wanted.index(name) for number, name in enumerate(each.names) if name in wanted}
            numbers[key] = each.names, own
        for number, index in numbers[key][1].items():
            row = row_of(each.block.ids, number)
            if row >= 0:
                add_to(values[index], place, each.block.row(row))
    return [
        NameValues(
            name=name,
            counts={
                column: [
                    counts.get(place, nothing)[number] if place in known_places else None
                    for place in range(count)
                ]
                for number, column in enumerate(columns)
            },
        )
        for name, counts in zip(wanted, values, strict=True)
    ]
