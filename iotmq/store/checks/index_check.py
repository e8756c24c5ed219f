"""A second opinion on the key index: every entry, link and slot, worked out again from the log."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import decode_record
from iotmq.message.tags import tag_hash
from iotmq.store.log.marker import lost_offsets
from iotmq.store.projections.key_index.key_query import record_keys

_HEADER = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")
_SLOT = struct.Struct(">i")
_INT32_MAX = 0x7FFFFFFF
PROBLEMS_MAX = 100
_TRANSACTION_MASK = 12
_ROLLBACK = 12


class _Wanted(NamedTuple):
    """Hold an expected entry of the index."""

    hash: int
    position: int
    timestamp_ms: int


class CheckedLog(Protocol):
    """Define what the check asks of a log: an open one, or the files of a closed one."""

    @property
    def min_position(self) -> int:
        """Return the position at which the log begins."""

    def records(self, start_position: int, limit_position: int, bytes_max: int, /) -> tuple[int, int]:
        """(start, end) of the first record from a position on."""

    def view(self, start_position: int, end_position: int, /) -> memoryview:
        """Return the bytes of the log between two positions."""


class CheckedFile(Protocol):
    """Define what the check asks of an index file."""

    @property
    def path(self) -> str:
        """Describe the entry for messages to operators."""

    @property
    def number(self) -> int:
        """Return the number that names it."""

    @property
    def slots(self) -> int:
        """Return the number of its slots."""

    @property
    def entries(self) -> int:
        """Return the number of entries it can take."""

    def view(self) -> memoryview:
        """Return its bytes."""


class CheckedIndex(Protocol):
    """Define what the check asks of an index."""

    @property
    def applied_position(self) -> int:
        """Return the log position up to which it has the keys."""

    def file_list(self) -> Sequence[CheckedFile]:
        """Return its files, oldest first."""


def check_index(log: CheckedLog, index: CheckedIndex) -> list[str]:
    """Return every inconsistency between the log and what the index has applied of it, as a sentence.

    After PROBLEMS_MAX of them it ends, and at an entry from which nothing can be said of those behind it.
    """
    wanted = _WantedEntries(log, index.applied_position)
    problems: list[str] = []
    previous: CheckedFile | None = None
    for file in index.file_list():
        if previous is not None and previous.number >= file.number:
            problems.append(f"{file.path} has a lower name than the file before it")
        previous = file
        problems += itertools.islice(_check_file(file, wanted, log.min_position), PROBLEMS_MAX)
        if len(problems) >= PROBLEMS_MAX:
            return problems
    missing = next(wanted, None)
    if missing is not None:
        problems.append(f"position {missing.position}: the key index ends before its keys")
    return problems


def entry_hash(topic: str, key: bytes) -> int:
    """Return the hash of an entry: the absolute value of Java's, 0 where it has none."""
    value = abs(tag_hash(f"{topic}#{key.decode('utf-8', 'replace')}"))
    return value if value <= _INT32_MAX else 0


class _WantedEntries:
    """Collect the entries that have to be there, in the order of the log."""

    def __init__(self, log: CheckedLog, end_position: int) -> None:
        # The markers met so far: what was there is lost.
        self.holes: list[tuple[int, int]] = []
        self._entries = self._walk(log, end_position)
        self._waiting: list[_Wanted] = []

    def __iter__(self) -> _WantedEntries:
        return self

    def __next__(self) -> _Wanted:
        return self._waiting.pop() if self._waiting else next(self._entries)

    def put_back(self, entry: _Wanted | None) -> None:
        """Have `entry`, the last one taken, come again."""
        if entry is not None:
            self._waiting.append(entry)

    def _walk(self, log: CheckedLog, end_position: int) -> Iterator[_Wanted]:
        position = log.min_position
        while position < end_position:
            start_position, position = log.records(position, end_position, 1)
            if self.holes and self.holes[-1][1] > end_position:
                # The blank behind a marker may stand in front of more that is lost.
                self.holes[-1] = self.holes[-1][0], start_position
            if start_position == position:
                return
            view = log.view(start_position, position)
            try:
                record = decode_record(view)
            except MessageFormatError:
                # The check of the log has more to say about it.
                continue
            if record.sys_flag & _TRANSACTION_MASK == _ROLLBACK:
                if lost_offsets(view) is not None:
                    self.holes.append((start_position, end_position + 1))
                continue
            for key in record_keys(record.properties):
                yield _Wanted(entry_hash(record.topic, key), start_position, record.store_timestamp_ms)


def _check_file(file: CheckedFile, wanted: _WantedEntries, min_position: int) -> Iterator[str]:
    """Compare the entries from `min_position` on with `wanted`, and all with the file's header and slots.

    Entries of records that were lost to damage stay: who looks a record up by one finds none there.
    """
    view = file.view()
    if file.slots < 1:
        yield f"{file.path} has only {len(view)} bytes"
        return
    begin_ms, end_ms, begin_position, end_position, used_slots, count = _HEADER.unpack_from(view, 0)
    entries_at = _HEADER.size + 4 * file.slots
    if not 1 <= count <= file.entries or entries_at + count * _ENTRY.size > len(view):
        yield f"{file.path} has no room for the {count} entries it counts"
        return
    newest: dict[int, int] = {}
    last_position = -1
    last_ms: int | None = None
    for number in range(1, count):
        where = f"{file.path} entry {number}"
        hash_, position, seconds, older = _ENTRY.unpack_from(view, entries_at + number * _ENTRY.size)
        if hash_ < 0 or position < last_position or seconds < 0:
            yield f"{where} cannot be right: hash {hash_}, position {position}, {seconds} s"
            return
        last_position = position
        slot = hash_ % file.slots
        if older != newest.get(slot, 0):
            yield f"{where} leads to entry {older} instead of {newest.get(slot, 0)}"
        newest[slot] = number
        if number == 1 and position != begin_position:
            yield f"{file.path} begins at {position}, its header says {begin_position}"
        if position < min_position:
            continue
        entry = next(wanted, None)
        if (entry is None or entry.position > position) and any(a <= position < b for a, b in wanted.holes):
            wanted.put_back(entry)
            continue
        if entry is None or (entry.hash, entry.position) != (hash_, position):
            yield f"{where} is ({hash_}, {position}), the log wants {entry and entry[:2]}"
            return
        last_ms = entry.timestamp_ms
        if number == 1 and last_ms != begin_ms:
            yield f"{file.path} begins at {last_ms} ms, its header says {begin_ms}"
        wanted_seconds = min(max(0, (last_ms - begin_ms) // 1000), _INT32_MAX) if begin_ms > 0 else 0
        # Other brokers give the first one the time since the previous file's end.
        if number > 1 and seconds != wanted_seconds:
            yield f"{where} says {seconds} s after the file's begin, the record {wanted_seconds}"
    if count > 1 and last_position != end_position:
        yield f"{file.path} ends at {last_position}, its header says {end_position}"
    # After a start that had to guess, the end may be up to a second later than the record.
    if last_ms is not None and not last_ms <= end_ms < last_ms + 1000:
        yield f"{file.path} ends at {last_ms} ms, its header says {end_ms}"
    if used_slots != len(newest):
        yield f"{file.path} has {len(newest)} slots in use, its header says {used_slots}"
    if view[_HEADER.size : entries_at].tobytes() == _slots_of(newest, file.slots):
        return
    slots = struct.unpack_from(f">{file.slots}i", view, _HEADER.size)
    for slot, number in enumerate(slots):
        if number != newest.get(slot, 0):
            yield f"{file.path} slot {slot} leads to entry {number} instead of {newest.get(slot, 0)}"


def _slots_of(newest: dict[int, int], count: int) -> bytes:
    """Return the slots of a file, from the newest entry of those in use."""
    slots = bytearray(4 * count)
    for slot, number in newest.items():
        _SLOT.pack_into(slots, 4 * slot, number)
    return bytes(slots)
