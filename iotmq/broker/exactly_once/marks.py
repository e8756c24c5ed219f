"""Keep marks of stored messages, a projection of the log: key, position of the record, and a number.

A mark stays until it is released, or until a later message has its key. So after any crash the log says which
messages are stored. `received_ids` and `batch_numbers` say what keys and numbers are.

Column family; most marks are released or replaced before they are written to it:

    0x01 | key                      position of the record 8 | number 8
    0x02 | position 8               key; finds the oldest mark
    0x03                            count 8 | size in bytes 8

A key begins with its owner and 0x00.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from iotmq.store.kv.kv_projection import CountedProjection, after_prefix

if TYPE_CHECKING:
    from iotmq.store.kv.kv import KeyValueStore

_TAG: Final = b"\x01"
_ORDER_TAG: Final = b"\x02"
_ORDER_END: Final = b"\x03"
_TOTALS_KEY: Final = b"\x03"
_POSITION: Final = struct.Struct(">Q")
_VALUE: Final = struct.Struct(">QQ")
# What a mark costs beside its key, which is there twice: tags, positions, what RocksDB has for two entries.
_ENTRY_BYTES: Final = 64
_NO_MARKS: Final = -1
_ALL_MARKS: Final = 1 << 62
# So many marks that the log has lost are released with each stretch that is applied: some milliseconds.
TRIMMED_AT_ONCE: Final = 256


class Entry(NamedTuple):
    """A mark in memory: the position of its record, None once released, and the one in the database."""

    position: int | None
    number: int
    stored: int | None


class _Changes:
    """Collect the changes since the last write (store.kv_projection.Collector)."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self.entries: dict[bytes, Entry] = {}
        # Owner -> keys of it that are not released.
        self.keys_of: dict[bytes, set[bytes]] = {}

    def put(self, key: bytes, position: int, number: int, stored: int | None) -> None:
        # At the end, where the positions grow.
        self.entries.pop(key, None)
        self.entries[key] = Entry(position, number, stored)
        self.keys_of.setdefault(_owner_of(key), set()).add(key)

    def release(self, key: bytes, stored: int | None) -> None:
        owner = _owner_of(key)
        keys = self.keys_of.get(owner)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self.keys_of[owner]
        if stored is None:
            del self.entries[key]
        else:
            self.entries[key] = Entry(None, 0, stored)

    @property
    def count(self) -> int:
        return len(self.entries)

    def collect(self, view: memoryview) -> None:
        if self._marks.is_looking:
            self._marks.collect(view)

    def items(self) -> tuple[list[bytes], list[bytes]]:
        keys: list[bytes] = []
        values: list[bytes] = []
        for key, entry in self.entries.items():
            if entry.position is not None:
                position = _POSITION.pack(entry.position)
                keys += (_TAG + key, _ORDER_TAG + position)
                values += (_VALUE.pack(entry.position, entry.number), key)
        return keys, values

    def clear(self) -> None:
        self.entries.clear()
        self.keys_of.clear()


class Marks(CountedProjection):
    """The projection. For the store's thread alone.

    It reads only the stretches of the log that have marked messages, as announced by `begin_append`; while it
    catches up at a start, it reads all.
    """

    totals_key = _TOTALS_KEY

    def __init__(
        self, key_values: KeyValueStore, name: str, *, format_version: int, count_max: int, bytes_max: int
    ) -> None:
        self._changes = _Changes(self)
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.forgotten_total = 0
        self.is_looking = True
        self._marked_until = _ALL_MARKS
        # What was appended and is not applied yet: key -> (end of its batch, number; None for a release).
        # And the same by batch, in order.
        self._recent: dict[bytes, tuple[int, int | None]] = {}
        self._recent_batches: deque[tuple[int, list[bytes]]] = deque()
        # What the database has of messages before it is released.
        self._forgotten_until = 0
        # What is before it is unknown, and released by and by.
        self._min_position = 0
        super().__init__(key_values, name, format_version=format_version, collector=self._changes)

    def _load(self) -> None:
        super()._load()
        self._forgotten_until = 0

    def clear(self, position: int) -> None:
        """Delete everything; the log is applied again from `position` on."""
        super().clear(position)
        self._forgotten_until = 0

    def collect(self, view: memoryview) -> None:
        """`put` the marks of whole records, and release what they release."""
        raise NotImplementedError

    # What is appended

    def begin_append(self) -> None:
        """Announce an append of marked messages or releases."""
        self._marked_until = _ALL_MARKS

    def end_append(self, numbers: Mapping[bytes, int | None], end_position: int) -> None:
        """Note what was appended: the log ends at `end_position` now.

        `numbers` has the number of each marked message by its key, None for a released key; it is empty when
        nothing was stored.
        """
        self._marked_until = end_position
        if numbers and self.applied_position < end_position:
            self._recent.update((key, (end_position, number)) for key, number in numbers.items())
            self._recent_batches.append((end_position, list(numbers)))

    def number(self, key: bytes) -> int | None:
        """Return the number of the message stored under this key; None when there is none."""
        recent = self._recent.get(key)
        if recent is not None:
            return recent[1]
        entry = self.entry(key)
        if entry is None or entry.position is None or entry.position < self._min_position:
            return None
        return entry.number

    # What is applied

    def apply(self, view: memoryview, start_position: int, end_position: int) -> None:
        self.is_looking = start_position < self._marked_until
        super().apply(view, start_position, end_position)
        while self._recent_batches and self._recent_batches[0][0] <= end_position:
            position, keys = self._recent_batches.popleft()
            for key in keys:
                if self._recent.get(key, (_NO_MARKS,))[0] == position:
                    del self._recent[key]
        if self._forgotten_until < self._min_position:
            self._forget_trimmed()
        while self.count > self._count_max or self.size_bytes > self._bytes_max:
            self._forget_oldest()

    def put(self, key: bytes, position: int, number: int) -> None:
        """Add a marked message in place of any other with its key."""
        before = self.entry(key)
        if before is None or before.position is None:
            self.count += 1
            self.size_bytes += 2 * len(key) + _ENTRY_BYTES
        self._changes.put(key, position, number, None if before is None else before.stored)

    def release(self, key: bytes) -> None:
        """Take a mark away."""
        entry = self.entry(key)
        if entry is None or entry.position is None:
            return
        self.count -= 1
        self.size_bytes -= 2 * len(key) + _ENTRY_BYTES
        self._changes.release(key, entry.stored)

    def trim(self, min_position: int) -> None:
        """Forget messages that retention has deleted: their senders have been away for that long.

        They are unknown from now on, and released some at a time with what is applied next: there may be very
        many.
        """
        # All of it is in the database then.
        super().trim(min_position)
        self._min_position = max(self._min_position, min_position)

    def entry(self, key: bytes) -> Entry | None:
        """Return what was applied of a key, a release too; None for one that never was."""
        entry = self._changes.entries.get(key)
        if entry is None:
            value = self._space.get(_TAG + key)
            if value is not None:
                position, number = _VALUE.unpack(value)
                entry = Entry(position, number, position)
        return entry

    def keys_of(self, owner: bytes) -> set[bytes]:
        """Return all keys that an owner has here."""
        if not self.count and not self._recent:
            return set()
        prefix = owner + b"\0"
        return {
            *(key[1:] for key, _ in self._space.scan(_TAG + prefix, after_prefix(_TAG + prefix))),
            *self._changes.keys_of.get(owner, ()),
            *(key for key in self._recent if key.startswith(prefix)),
        }

    def _forget_oldest(self) -> None:
        """Release the mark whose message is the oldest."""
        # Those before are in the database until the next write, and are not to be passed over one by one.
        start = _ORDER_TAG + _POSITION.pack(self._forgotten_until)
        for order_key, key in self._space.scan(start, _ORDER_END):
            self._forgotten_until = position = _POSITION.unpack(order_key[1:])[0]
            if self._position(key) == position:
                self.forgotten_total += 1
                self.release(key)
                return
        # Every mark of the database is released; those in memory are in the order of the log.
        for key, entry in self._changes.entries.items():
            if entry.position is not None:
                self.forgotten_total += 1
                self.release(key)
                return
        raise AssertionError(f"{self.count} marks are counted and none is there")

    def _forget_trimmed(self) -> None:
        """Release some of what is before the start of the log."""
        start, stop = (_ORDER_TAG + _POSITION.pack(at) for at in (self._forgotten_until, self._min_position))
        some = list(islice(self._space.scan(start, stop), TRIMMED_AT_ONCE))
        for order_key, key in some:
            position = _POSITION.unpack(order_key[1:])[0]
            if self._position(key) == position:
                self.release(key)
            self._forgotten_until = position + 1
        if len(some) < TRIMMED_AT_ONCE:
            self._forgotten_until = self._min_position

    def _position(self, key: bytes) -> int | None:
        entry = self.entry(key)
        return None if entry is None else entry.position

    def _removed_keys(self) -> list[bytes]:
        removed: list[bytes] = []
        for key, entry in self._changes.entries.items():
            if entry.position is None:
                removed.append(_TAG + key)
            if entry.stored is not None and entry.stored != entry.position:
                removed.append(_ORDER_TAG + _POSITION.pack(entry.stored))
        return removed

    def check_invariants(self) -> None:
        """Raise AssertionError when the books disagree. For tests."""
        stored = {key[1:]: _VALUE.unpack(value)[0] for key, value in self._space.scan(_TAG, _ORDER_TAG)}
        order = {key: _POSITION.unpack(at[1:])[0] for at, key in self._space.scan(_ORDER_TAG, _ORDER_END)}
        assert order == stored, "the order is not that of the ids"
        for key, entry in self._changes.entries.items():
            assert entry.stored == stored.get(key), "a change is about another value"
            if entry.position is None:
                del stored[key]
            else:
                stored[key] = entry.position
        assert self.count == len(stored), f"{self.count} counted, {len(stored)} there"
        size_bytes = sum(2 * len(key) + _ENTRY_BYTES for key in stored)
        assert self.size_bytes == size_bytes, f"{self.size_bytes} bytes counted, {size_bytes} there"
        unreleased = {key for key, entry in self._changes.entries.items() if entry.position is not None}
        assert unreleased == {key for keys in self._changes.keys_of.values() for key in keys}
        noted = {key for _, keys in self._recent_batches for key in keys}
        assert self._recent.keys() <= noted, "a recent id would never leave"


def _owner_of(key: bytes) -> bytes:
    return key.rpartition(b"\0")[0]
