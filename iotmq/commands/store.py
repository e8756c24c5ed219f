"""`iotmq store check|dump|rebuild|repair`: inspect and mend a data directory that nobody has open.

Each returns the process's exit code: 0 when all is well, 1 when something was found or could not be put
right. A directory that is open, or none, is a StoreError, which the command answers with 2.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

from iotmq.addresses import address_text
from iotmq.errors import StoreError
from iotmq.message.bodies import body_field
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import Record, decode_record
from iotmq.store.tools.inspection import BLANK, DAMAGE, ClosedStore, Found, QueueFiles

if TYPE_CHECKING:
    from iotmq.store.recovery.damage import Damage
    from iotmq.store.settings import StoreSettings

EXIT_OK: Final = 0
EXIT_FOUND: Final = 1

_BAR_CELLS: Final = 30
_BAR_EVERY_S: Final = 0.1
_LINE_EVERY_S: Final = 5.0

Row = dict[str, Any]


class DumpFilter(NamedTuple):
    """Limit a dump to some records."""

    # A position, an offset, a slot or a MQTT topic, depending on the subject; None from the start.
    begin: str | None = None
    limit: int | None = None
    topic: str | None = None
    queue_id: int | None = None
    has_bodies: bool = False

    def number(self) -> int:
        """`begin` as a number; raises StoreError."""
        try:
            return int(self.begin or 0)
        except ValueError:
            raise StoreError(f"--from {self.begin} is not a number") from None

    def takes(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue is wanted."""
        return self.topic in (None, topic) and self.queue_id in (None, queue_id)


# Checking -------------------------------------------------------------------------------------------------


def check(directory: Path, settings: StoreSettings, *, output: TextIO) -> int:
    """Print every inconsistency as a sentence, and what there is in the last line."""
    from iotmq.store.tools.closed_check import ClosedCheck

    bar = ProgressBar(sys.stderr)
    with ClosedStore(directory) as store:
        found = ClosedCheck(store, settings, progress=lambda position, end: bar("log", position, end))
        found.run()
        bar.end()
        for problem in found.problems:
            print(problem, file=output)
        for note in found.notes:
            print(f"note: {note}", file=output)
        if found.problems:
            count = len(found.problems)
            verdict = f"{count} {'inconsistency' if count == 1 else 'inconsistencies'}"
        else:
            verdict = "no inconsistencies"
        print(
            f"{directory}: {found.record_count:,} records, "
            f"positions {store.min_position}..{found.end_position}, {len(store.queues())} queues: {verdict}",
            file=output,
        )
    return EXIT_FOUND if found.problems else EXIT_OK


# Dumping --------------------------------------------------------------------------------------------------


def dump(
    directory: Path,
    settings: StoreSettings,
    subject: str,
    *,
    wanted: DumpFilter,
    is_json: bool,
    output: TextIO,
) -> int:
    """Print what is in the files, an item a line."""
    with ClosedStore(directory) as store:
        rows = SUBJECTS[subject](store, settings, wanted)
        for row in rows if wanted.limit is None else islice(rows, wanted.limit):
            print(json.dumps(row, ensure_ascii=False) if is_json else readable(row), file=output)
    return EXIT_OK


def readable(row: Row) -> str:
    """A row for people: its kind, then name=value pairs; times as dates."""
    parts = [f"{row['kind']:<10}"]
    for name, value in row.items():
        if name == "kind" or value is None or value in ("", {}):
            continue
        if name.endswith("_ms"):
            name, value = name[:-3], _time_text(value)
        is_plain = not isinstance(value, dict | list) and str(value).isprintable() and " " not in str(value)
        if not is_plain:
            value = json.dumps(value, ensure_ascii=False)
        parts.append(f"{name}={value}")
    return " ".join(parts)


def _segments(store: ClosedStore, _settings: StoreSettings, wanted: DumpFilter) -> Iterator[Row]:
    for segment in store.segments:
        if segment.end_position <= wanted.number():
            continue
        yield {
            "kind": "segment",
            "file": segment.path.name,
            "start_position": segment.start_position,
            "end_position": segment.end_position,
            "size_bytes": segment.size_bytes,
            "data_bytes": segment.data_bytes,
            "disk_bytes": segment.path.stat().st_blocks * 512,
        }


def _records(store: ClosedStore, _settings: StoreSettings, wanted: DumpFilter) -> Iterator[Row]:
    begin = wanted.number()
    for found in store.stretches(begin):
        if found.end_position <= begin or (found.kind != DAMAGE and found.start_position < begin):
            continue
        if found.kind in (BLANK, DAMAGE):
            if wanted.topic is None and wanted.queue_id is None:
                yield _stretch_row(found)
            continue
        record = decode_record(found.view)
        if wanted.takes(record.topic, record.queue_id):
            yield record_row(record, has_body=wanted.has_bodies)


def _stretch_row(found: Found) -> Row:
    row: Row = {
        "kind": found.kind,
        "position": found.start_position,
        "size": found.end_position - found.start_position,
    }
    if found.kind == DAMAGE:
        row |= {"problem": found.problem, "first_bytes": bytes(found.view[:32]).hex()}
    return row


def record_row(record: Record, *, has_body: bool) -> Row:
    """Return what a record has, to be printed."""
    row: Row = {
        "kind": "record",
        "position": record.position,
        "size": record.size,
        "topic": record.topic,
        "queue": record.queue_id,
        "offset": record.queue_offset,
        "store_time_ms": record.store_timestamp_ms,
        "born_time_ms": record.born_timestamp_ms,
        "born_host": _host_text(record.born_host),
        "flag": record.flag,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "prepared_position": record.prepared_position,
        "body_bytes": len(record.body),
        "properties": decode_properties(record.properties),
    }
    if has_body:
        row |= body_field(record.body)
    return row


def _queues(store: ClosedStore, _settings: StoreSettings, wanted: DumpFilter) -> Iterator[Row]:
    for queue in _wanted_queues(store, wanted):
        yield {
            "kind": "queue",
            "topic": queue.topic,
            "queue": queue.queue_id,
            "min_offset": queue.first_offset_at(store.min_position),
            "end_offset": queue.end_offset(),
            "files": len(queue.files),
        }


def _entries(store: ClosedStore, _settings: StoreSettings, wanted: DumpFilter) -> Iterator[Row]:
    for queue in _wanted_queues(store, wanted):
        for entry in queue.entries(wanted.number()):
            row: Row = {
                "kind": "filler" if entry.is_filler else "entry",
                "topic": queue.topic,
                "queue": queue.queue_id,
                "offset": entry.offset,
            }
            if not entry.is_filler:
                row |= {"position": entry.position, "size": entry.size, "tags_code": entry.tags_code}
            yield row
        queue.close()


def _wanted_queues(store: ClosedStore, wanted: DumpFilter) -> Iterator[QueueFiles]:
    return (queue for queue in store.queues() if wanted.takes(queue.topic, queue.queue_id))


def _checkpoint(store: ClosedStore, _settings: StoreSettings, _wanted: DumpFilter) -> Iterator[Row]:
    checkpoint = store.checkpoint()
    if checkpoint is None:
        yield {"kind": "checkpoint", "problem": "there is none"}
    else:
        yield {
            "kind": "checkpoint",
            "position": checkpoint.position,
            "log_time_ms": checkpoint.log_timestamp_ms,
            "queue_time_ms": checkpoint.queue_timestamp_ms,
            "index_time_ms": checkpoint.index_timestamp_ms,
        }
    state = store.queue_state()
    if state is not None:
        yield {"kind": "applied", "projection": "consumequeue", **state._asdict()}
    index_state = store.index_state()
    if index_state is not None:
        yield {"kind": "applied", "projection": "index", **index_state._asdict()}
    yield {"kind": "abort", "is_there": not store.was_clean}


def _key_values(store: ClosedStore, settings: StoreSettings, _wanted: DumpFilter) -> Iterator[Row]:
    from iotmq.store.tools.rebuild import has_key_values

    if not has_key_values(store.directory):
        return
    from iotmq.store.kv.kv_projection import MARKER_KEY, read_marker
    from iotmq.store.tools.kv_check import open_read_only

    key_values = open_read_only(store, settings)
    try:
        for name in key_values.names():
            space = key_values.space(name)
            yield {
                "kind": "projection",
                "name": name,
                "applied_position": read_marker(space.get(MARKER_KEY)),
                "keys_estimated": space.estimated_count,
            }
    finally:
        key_values.close()


def _retained(store: ClosedStore, settings: StoreSettings, wanted: DumpFilter) -> Iterator[Row]:
    from iotmq.store.tools.kv_check import open_read_only

    key_values = open_read_only(store, settings)
    try:
        if "retained" not in key_values.names():
            return
        begin = (wanted.begin or "").encode("utf-8", "surrogateescape")
        for key, value in key_values.space("retained").scan(b"\x01" + begin, b"\x02"):
            row = record_row(decode_record(value), has_body=wanted.has_bodies)
            yield {
                "kind": "retained",
                "mqtt_topic": key[1:].decode("utf-8", "backslashreplace"),
                "is_stored": store.record_at(row["position"]) is not None,
                **{name: value for name, value in row.items() if name != "kind"},
            }
    finally:
        key_values.close()


def _index(store: ClosedStore, settings: StoreSettings, wanted: DumpFilter) -> Iterator[Row]:
    from iotmq.store.tools.index_dump import index_rows

    return index_rows(store.directory / "index", settings, first_slot=wanted.number())


def _summary(store: ClosedStore, settings: StoreSettings, wanted: DumpFilter) -> Iterator[Row]:
    everything = DumpFilter(topic=wanted.topic, queue_id=wanted.queue_id)
    for part in (_segments, _queues, _checkpoint, _key_values):
        yield from part(store, settings, everything)


SUBJECTS: Final[dict[str, Callable[[ClosedStore, StoreSettings, DumpFilter], Iterable[Row]]]] = {
    "summary": _summary,
    "segments": _segments,
    "records": _records,
    "queues": _queues,
    "entries": _entries,
    "index": _index,
    "checkpoint": _checkpoint,
    "kv": _key_values,
    "retained": _retained,
}


# Rebuilding -----------------------------------------------------------------------------------------------


def rebuild(directory: Path, settings: StoreSettings, names: list[str], *, output: TextIO) -> int:
    """Delete projections and fill them from the log, with a progress bar."""
    from iotmq.store.tools.rebuild import projection_names
    from iotmq.store.tools.rebuild import rebuild as rebuild_projections

    bar = ProgressBar(sys.stderr)
    known = projection_names(directory, settings)
    began_s = time.monotonic()
    rebuilt = rebuild_projections(directory, settings, names or None, progress=bar)
    bar.end()
    print(f"rebuilt {', '.join(rebuilt)} in {time.monotonic() - began_s:.1f} s", file=output)
    left = [name for name in known if name not in rebuilt]
    if left and not names:
        print(
            f"left alone: {', '.join(left)}; what retention has deleted of the log is only there. "
            f"`iotmq store rebuild {' '.join(left)}` makes the rest of it again",
            file=output,
        )
    return EXIT_OK


# Repairing ------------------------------------------------------------------------------------------------


def repair(directory: Path, settings: StoreSettings, *, is_json: bool, output: TextIO) -> int:
    """Check the whole log, cover what is damaged, and print which bytes and offsets are lost."""
    from iotmq.store.tools.repair import repair as repair_log

    bar = ProgressBar(sys.stderr)
    report = repair_log(directory, settings, progress=bar)
    bar.end()
    if is_json:
        for damage in report.damage:
            print(json.dumps(_damage_row(damage), ensure_ascii=False), file=output)
        row = {
            "kind": "repair",
            "min_position": report.min_position,
            "end_position": report.end_position,
            "was_clean": report.was_clean,
            "ranges": len(report.damage),
            "problems": list(report.problems),
        }
        print(json.dumps(row, ensure_ascii=False), file=output)
    else:
        for damage in report.damage:
            print("\n  ".join(_damage_lines(damage)), file=output)
        for problem in report.problems:
            print(problem, file=output)
        count = len(report.damage)
        verdict = f"{count} {'range' if count == 1 else 'ranges'} repaired" if count else "nothing is damaged"
        print(f"{directory}: positions {report.min_position}..{report.end_position}: {verdict}", file=output)
    return EXIT_FOUND if report.damage or report.problems else EXIT_OK


def _damage_row(damage: Damage) -> Row:
    return {
        "kind": damage.kind,
        "start_position": damage.start_position,
        "end_position": damage.end_position,
        "lost": [
            {
                "topic": loss.topic,
                "queue": loss.queue_id,
                "first_offset": loss.first_offset,
                "last_offset": loss.last_offset,
            }
            for loss in damage.lost
        ],
        "kept": damage.kept,
        "kept_bytes": damage.kept_bytes,
    }


def _damage_lines(damage: Damage) -> Iterator[str]:
    size = damage.end_position - damage.start_position
    what = {
        "damaged": f"{size:,} bytes are damaged; markers stand there now",
        "torn": f"{size:,} bytes behind the end of the log were no whole records and are cut off",
        "gap": "no bytes are damaged, but offsets have no record",
    }[damage.kind]
    yield f"positions {damage.start_position}..{damage.end_position}: {what}"
    for loss in damage.lost:
        count = loss.last_offset - loss.first_offset + 1
        offsets = f"offsets {loss.first_offset}..{loss.last_offset}"
        yield f"lost: {loss.topic}/{loss.queue_id}: {offsets} ({count:,})"
    if not damage.lost and damage.kind == "damaged":
        yield "lost: no queue knows of a record there"
    if damage.kept:
        yield f"kept: the first {damage.kept_bytes:,} bytes, as they were, in {damage.kept}"


class ProgressBar:
    """A bar on a terminal that is drawn over, or a line now and then where there is none."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._name = ""
        self._first_position = 0
        self._began_s = self._drawn_s = 0.0

    def __call__(self, name: str, position: int, end_position: int) -> None:
        """Show that `name` has come to `position` of `end_position`."""
        now_s = time.monotonic()
        if name != self._name:
            self.end()
            self._name = name
            self._first_position = position
            self._began_s = now_s
            self._drawn_s = now_s if not self._is_terminal else 0.0
        every_s = _BAR_EVERY_S if self._is_terminal else _LINE_EVERY_S
        if now_s - self._drawn_s < every_s and (position < end_position or not self._is_terminal):
            return
        self._drawn_s = now_s
        text = self._text(position, end_position, now_s - self._began_s)
        print(f"\r{text}\x1b[K" if self._is_terminal else text, end="" if self._is_terminal else "\n",
              file=self._stream, flush=True)  # fmt: skip

    def end(self) -> None:
        """Leave the bar standing; what comes next is below it."""
        if self._name and self._is_terminal:
            print(file=self._stream, flush=True)
        self._name = ""

    def _text(self, position: int, end_position: int, seconds: float) -> str:
        share = min(1.0, position / end_position) if end_position else 1.0
        cells = int(share * _BAR_CELLS)
        speed = (position - self._first_position) / seconds if seconds else 0.0
        left = f", {(end_position - position) / speed:.0f} s left" if speed and share < 1 else ""
        bar = "#" * cells + "." * (_BAR_CELLS - cells)
        sizes = f"{end_position / 1e6:,.0f} MB, {speed / 1e6:,.0f} MB/s{left}"
        return f"{self._name:<14}[{bar}] {share:4.0%} of {sizes}"


def _time_text(timestamp_ms: int) -> str:
    if not 0 < timestamp_ms < 253_402_300_799_000:
        return str(timestamp_ms)
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03}Z"


def _host_text(host: bytes) -> str:
    from iotmq.message.hosts import decode_host

    return address_text(*decode_host(host))
