"""Index waiting messages by time: to deliver, cancel and list them, and to keep their records.

In the column family `timers`, all numbers big-endian; `kind` is 0 for a message with a time of its own, or
the delay level:

0x01 due_ms 8 position 8 -> kind 2 | size 4 | queue offset 8              in the order in which they are due
0x02 kind 2 position 8   -> due_ms 8 | queue offset 8 | name 8 | size 4   in the order of the log
0x03 name 8 position 8   -> kind 2 | due_ms 8        name: hash of real topic and unique key, when it has one
0x04                     -> how many there are 8

What waits is a function of the log alone: a record of one of the two topics adds, a record with a mark (see
timer_record) takes away. So what was delivered before a crash stays delivered, whatever was saved when, as
far as the log has it.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from iotmq.errors import StoreCorruptError
from iotmq.store.kv.kv_projection import MARKER_KEY, PENDING_LOG_BYTES_MAX, KeyValueProjection
from iotmq.store.kv.timer_collector import TimerCollector, keys_of
from iotmq.store.log.timer_record import DELAY_LEVELS_MAX, name_hash

if TYPE_CHECKING:
    from iotmq.store.kv.kv import KeyValueStore

NAME: Final = "timers"
FORMAT_VERSION: Final = 1
# A write of so many keys takes the loop about a millisecond; catching up takes the larger ones of all
# projections.
PENDING_KEYS_MAX: Final = 1_024

NEVER_MS: Final = 0x7FFFFFFFFFFFFFFF

logger = logging.getLogger("iotmq.store")

_TAG_DUE: Final = b"\x01"
_TAG_PLACE: Final = b"\x02"
_TAG_NAME: Final = b"\x03"
_COUNT_KEY: Final = b"\x04"

_DUE_KEY: Final = struct.Struct(">cQQ")
_DUE_VALUE: Final = struct.Struct(">HIq")
_PLACE_KEY: Final = struct.Struct(">cHQ")
_PLACE_VALUE: Final = struct.Struct(">qqQI")
_NAME_KEY: Final = struct.Struct(">cQQ")
_NAME_VALUE: Final = struct.Struct(">Hq")
_COUNT: Final = struct.Struct(">Q")


class Timer(NamedTuple):
    """One waiting message. `kind` 0 has a time of its own, others are the delay level."""

    due_ms: int
    position: int
    kind: int
    size: int
    queue_offset: int


class TimerIndex(KeyValueProjection):
    """The projection. For the store's thread alone."""

    def __init__(self, key_values: KeyValueStore) -> None:
        self._pending = TimerCollector()
        # Called when something may be due before what was `next_due_ms`.
        self.on_earlier: Callable[[], None] | None = None
        super().__init__(key_values, NAME, format_version=FORMAT_VERSION, collector=self._pending)

    def _load(self) -> None:
        super()._load()
        self._forget_bounds()
        try:
            stored = self._space.get(_COUNT_KEY)
        except StoreCorruptError as error:
            logger.warning("projection %s is damaged (%s) and starts over from the log", NAME, error)
            self.clear(0)
        else:
            self._stored_count = 0 if stored is None else _COUNT.unpack(stored)[0]
        if self.on_earlier is not None:
            # The database was opened again, and may have less than before.
            self.on_earlier()

    def _forget_bounds(self) -> None:
        self._stored_count = 0
        # Nothing that is stored is due before this key; what was removed there costs a look no time.
        self._first_due_key = _TAG_DUE
        # Of each kind the key before which nothing is stored: later records stand behind it.
        self._first_place_keys: dict[int, bytes] = {}
        # When the first is due of those that are stored; too early is possible, too late is not.
        self._stored_due_ms = 0

    @property
    def next_due_ms(self) -> int:
        """Return the time before which nothing is due; NEVER_MS when nothing waits."""
        return min(self._stored_due_ms, self._pending.first_due_ms)

    @property
    def count(self) -> int:
        """Return how many messages wait."""
        self.write_out()
        return self._stored_count

    @property
    def estimated_count(self) -> int:
        """Return how many messages wait, without looking at what came in last."""
        return max(0, self._stored_count + self._pending.growth)

    def apply(self, view: memoryview, start_position: int, end_position: int) -> None:
        """Take in the records of [start_position, end_position); StoreError when the database is full."""
        pending = self._pending
        if (
            pending.is_empty
            and self._reopen_s is None
            and self._generation == self._key_values.generation
            and end_position - self.written_position < PENDING_LOG_BYTES_MAX
        ):
            # Most of what is stored waits for nothing, and is stored a few records at a time.
            pending.collect(view)
            self.applied_position = end_position
            if pending.is_empty:
                return
            before_ms = NEVER_MS
        else:
            before_ms = pending.first_due_ms
            super().apply(view, start_position, end_position)
        first_ms = pending.first_due_ms
        if first_ms < before_ms and first_ms < self._stored_due_ms and self.on_earlier is not None:
            self.on_earlier()
        if PENDING_KEYS_MAX <= self._pending.count < 2 * PENDING_KEYS_MAX:
            # Past that it is catching up, or the database refuses.
            self.write_out()

    def due(self, now_ms: int, *, timers_max: int, besides: Collection[int] = ()) -> list[Timer]:
        """Return the due records in their order, but for those at the positions `besides`."""
        if self.next_due_ms > now_ms:
            return []
        self.write_out()
        found: list[Timer] = []
        first_key: bytes | None = None
        next_ms = NEVER_MS
        for key, value in self._space.scan(self._first_due_key, _TAG_PLACE):
            if first_key is None:
                first_key = key
            _, due_ms, position = _DUE_KEY.unpack(key)
            if due_ms > now_ms or len(found) == timers_max:
                next_ms = due_ms
                break
            if position not in besides:
                found.append(_timer(due_ms, position, value))
        self._first_due_key = first_key or _TAG_PLACE
        self._stored_due_ms = found[0].due_ms if found else next_ms
        return found

    def look_again(self) -> None:
        """Let `due` return again what it has returned, and is still there."""
        self._stored_due_ms = 0

    def soon(self, now_ms: int, until_ms: int, *, timers_max: int) -> list[Timer]:
        """Return the records that fall due in (now_ms, until_ms], to prepare for them."""
        self.write_out()
        start = max(self._first_due_key, _DUE_KEY.pack(_TAG_DUE, now_ms + 1, 0))
        return self._range(start, _DUE_KEY.pack(_TAG_DUE, until_ms + 1, 0), timers_max)

    def waiting(self, *, after: tuple[int, int] = (-1, -1), timers_max: int) -> list[Timer]:
        """Return waiting records in the order of their time, from behind `after` = (due_ms, position) on."""
        self.write_out()
        due_ms, position = after
        start = self._first_due_key
        if due_ms >= 0:
            start = max(start, _DUE_KEY.pack(_TAG_DUE, due_ms, position + 1))
        return self._range(start, _TAG_PLACE, timers_max)

    def find(self, topic: bytes, unique_key: bytes, *, timers_max: int) -> list[Timer]:
        """Return records that wait for a topic under a unique key. Others may have the same hash: compare."""
        name = name_hash(topic, unique_key)
        if not name:
            return []
        self.write_out()
        start = _NAME_KEY.pack(_TAG_NAME, name, 0)
        stop = _NAME_KEY.pack(_TAG_NAME, name, 0xFFFFFFFFFFFFFFFF)
        found = []
        for key, value in self._space.scan(start, stop):
            timer = self.at(_NAME_VALUE.unpack(value)[0], _NAME_KEY.unpack(key)[2])
            if timer is not None:
                found.append(timer)
            if len(found) == timers_max:
                break
        return found

    def at(self, kind: int, position: int) -> Timer | None:
        """Return the waiting message whose record is at `position`; None when there is none."""
        self.write_out()
        value = self._space.get(_PLACE_KEY.pack(_TAG_PLACE, kind, position))
        return None if value is None else _placed(kind, position, value)

    def first_of(self, kind: int) -> Timer | None:
        """Return the waiting message of a kind that is first in the log."""
        return next(self.before(NEVER_MS, kinds=(kind,)), None)

    def before(self, position: int, *, kinds: Iterable[int] | None = None) -> Iterator[Timer]:
        """Yield waiting messages before `position`, by kind and then in the order of the log."""
        self.write_out()
        for kind in self.kinds() if kinds is None else kinds:
            start = self._first_place_key(kind)
            stop = _PLACE_KEY.pack(_TAG_PLACE, kind + 1, 0)
            is_first = True
            for key, value in self._space.scan(start, stop):
                if is_first:
                    self._first_place_keys[kind] = key
                    is_first = False
                found_position = _PLACE_KEY.unpack(key)[2]
                if found_position >= position:
                    break
                yield _placed(kind, found_position, value)

    def first_position(self) -> int | None:
        """Return where the first of all records stands that something waits in; None when nothing waits."""
        positions = [timer.position for kind in self.kinds() if (timer := self.first_of(kind)) is not None]
        return min(positions, default=None)

    def kinds(self) -> list[int]:
        """Return the kinds of which messages wait."""
        self.write_out()
        found = []
        kind = 0
        while kind <= DELAY_LEVELS_MAX:
            entry = next(self._space.scan(self._first_place_key(kind), _TAG_NAME), None)
            found_kind = DELAY_LEVELS_MAX + 1 if entry is None else _PLACE_KEY.unpack(entry[0])[1]
            for empty in {kind, *self._first_place_keys}:
                if kind <= empty < found_kind:
                    self._first_place_keys[empty] = _PLACE_KEY.pack(_TAG_PLACE, empty, self.written_position)
            if entry is not None:
                found.append(found_kind)
            kind = found_kind + 1
        return found

    def forget(self, timers: Iterable[Timer]) -> None:
        """Take away what waits no more although the log does not say so: others have delivered it."""
        self.write_out()
        removed: list[bytes] = []
        count = self._stored_count
        for timer in timers:
            value = self._space.get(_PLACE_KEY.pack(_TAG_PLACE, timer.kind, timer.position))
            if value is not None:
                removed += keys_of(
                    kind=timer.kind,
                    position=timer.position,
                    due_ms=timer.due_ms,
                    name=_PLACE_VALUE.unpack(value)[2],
                )
                count -= 1
        self._space.write((_COUNT_KEY,), (_COUNT.pack(count),), removed_keys=removed)
        self._stored_count = count

    def clear(self, position: int) -> None:
        """Delete everything; the log is applied again from `position` on."""
        super().clear(position)
        self._forget_bounds()

    def _write(self, marker: bytes) -> None:
        keys, values, removed, more = self._pending.take(self._space.get)
        first_due_ms = self._pending.first_due_ms
        count = self._stored_count + more
        keys += (_COUNT_KEY, MARKER_KEY)
        values += (_COUNT.pack(count), marker)
        self._space.write(keys, values, removed_keys=removed)
        self._stored_count = count
        if first_due_ms < self._stored_due_ms:
            self._stored_due_ms = first_due_ms
        self._first_due_key = min(self._first_due_key, _DUE_KEY.pack(_TAG_DUE, first_due_ms, 0))

    def _first_place_key(self, kind: int) -> bytes:
        return self._first_place_keys.get(kind) or _PLACE_KEY.pack(_TAG_PLACE, kind, 0)

    def _range(self, start: bytes, stop: bytes, timers_max: int) -> list[Timer]:
        found: list[Timer] = []
        for key, value in self._space.scan(start, stop):
            if len(found) == timers_max:
                break
            _, due_ms, position = _DUE_KEY.unpack(key)
            found.append(_timer(due_ms, position, value))
        return found


def _timer(due_ms: int, position: int, value: bytes) -> Timer:
    kind, size, queue_offset = _DUE_VALUE.unpack(value)
    return Timer(due_ms, position, kind, size, queue_offset)


def _placed(kind: int, position: int, value: bytes) -> Timer:
    due_ms, queue_offset, _, size = _PLACE_VALUE.unpack(value)
    return Timer(due_ms, position, kind, size, queue_offset)
