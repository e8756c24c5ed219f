"""A projection in the key-value database: what every one of them needs besides its own keys.

    class Sessions(KeyValueProjection): ...     or      KeyValueProjection(key_values, "sessions", ...)

What it makes of the records is the business of a *collector*, compiled code that goes through a range of
the log and keeps what is to be written. It is written when enough has come together, as one batch with the
position it belongs to; so keys that change often are written seldom. Reads ask the collector first.

A column family holds the marker under the key 0x00 and the projection's keys, which start with another byte:
0 magic "iotmqKV1" 8 | 8 the projection's format version 4 | 12 applied position 8, big-endian.
"""

from __future__ import annotations

import logging
import struct
import time
from typing import TYPE_CHECKING, Final, Protocol

from iotmq.errors import StoreCorruptError, StoreError

if TYPE_CHECKING:
    from iotmq.store.kv.kv import KeyValueStore

MARKER_KEY: Final = b"\0"
_MARKER: Final = struct.Struct(">8sIQ")
_MAGIC: Final = b"iotmqKV1"
_TOTALS: Final = struct.Struct(">QQ")

# What has been collected is written once it is so much. A write of so many keys takes some milliseconds on
# the loop; the bytes are those of the log since the last write, which is what a crash repeats at least.
PENDING_KEYS_MAX: Final = 4_096
PENDING_LOG_BYTES_MAX: Final = 32 << 20
# A projection that catches up, in pieces of this size and more, has nobody waiting for it: fewer, larger
# writes take in more changes of the same keys.
CATCH_UP_PIECE_BYTES: Final = 1 << 20
CATCH_UP_KEYS_MAX: Final = 65_536
CATCH_UP_LOG_BYTES_MAX: Final = 256 << 20
# Written batches are brought to the disk after so much of the log: a start after a crash goes through so
# much again, which takes less than a second.
FLUSH_LOG_BYTES: Final = 256 << 20
# So long after the first refused write the database is opened again, which takes some milliseconds.
REOPEN_S: Final = 10.0

logger = logging.getLogger("iotmq.store")


class Collector(Protocol):
    """Collect the keys and values that a projection makes of the log and that are not in the database yet."""

    @property
    def count(self) -> int:
        """Return how many keys there are."""

    def collect(self, view: memoryview) -> None:
        """Take in the whole records of `view`. Must be repeatable: a range may come twice."""

    def items(self) -> tuple[list[bytes], list[bytes]]:
        """Return all keys, and their values in the same order."""

    def clear(self) -> None:
        """Forget everything."""


class KeyValueProjection:
    """One projection. For the store's thread alone."""

    def __init__(
        self, key_values: KeyValueStore, name: str, *, format_version: int, collector: Collector
    ) -> None:
        """Go on from what is stored under `name`; with another `format_version` from the start of the log."""
        self.name = name
        self._key_values = key_values
        self._format_version = format_version
        self._collector = collector
        # Set while the database refuses writes: when it may be opened again, in monotonic seconds.
        self._reopen_s: float | None = None
        # How far the log had been applied before the database was opened again.
        self._known_until = 0
        self._load()

    def _load(self) -> None:
        """Take up what the database has, and forget what it has not."""
        self._collector.clear()
        self._space = self._key_values.space(self.name)
        try:
            marker = self._space.get(MARKER_KEY)
            position = read_marker(marker, self._format_version)
            problem = "has another format" if marker is not None and position is None else ""
        except StoreCorruptError as error:
            position = None
            problem = f"is damaged ({error})"
        if problem:
            logger.warning("projection %s %s and starts over from the log", self.name, problem)
            self._space = self._key_values.clear(self.name)
        position = position or 0
        # Up to here the log has been collected, written to the database, and is safe from a crash.
        self.applied_position = self.written_position = self.durable_position = position
        # The written position at the last flush that was begun; None when none is under way.
        self._flushing_position: int | None = None
        # What of the database all of this belongs to.
        self._generation = self._key_values.generation

    def apply(self, view: memoryview, start_position: int, end_position: int) -> None:
        """Take in the records of [start_position, end_position); StoreError when the database is full."""
        self._reopen_when_due()
        # First, so that a database that refuses leaves the projection behind and its memory bounded.
        is_catching_up = end_position - start_position >= CATCH_UP_PIECE_BYTES
        keys_max = CATCH_UP_KEYS_MAX if is_catching_up else PENDING_KEYS_MAX
        log_bytes_max = CATCH_UP_LOG_BYTES_MAX if is_catching_up else PENDING_LOG_BYTES_MAX
        pending_bytes = self.applied_position - self.written_position
        if self._collector.count >= keys_max or pending_bytes >= log_bytes_max:
            self.write_out()
        self._collector.collect(view)
        self.applied_position = end_position

    def write_out(self) -> None:
        """Write what has been collected, with its position, as one batch."""
        self._follow_generation()
        if self.applied_position == self.written_position:
            return
        try:
            self._write(self._marker())
            self.written_position = self.applied_position
            self._collector.clear()
            self._flush_when_due()
            self._reopen_s = None
        except StoreError:
            self._reopen_s = self._reopen_s or time.monotonic() + REOPEN_S
            raise

    def sync(self) -> None:
        """Make everything applied so far safe from a crash."""
        self.write_out()
        if self.durable_position != self.written_position:
            try:
                self._space.flush(wait=True)
            except StoreError:
                self._reopen_s = self._reopen_s or time.monotonic() + REOPEN_S
                raise
            self.durable_position = self.written_position
            self._flushing_position = None

    def begin_sync(self) -> None:
        """Have everything applied so far made safe from a crash, without waiting for the disk.

        StoreError when the database is full, or has just been opened again after that.
        """
        # Also here: on a full disk nothing is applied, and nothing deleted before this succeeds.
        self._reopen_when_due()
        self.write_out()
        self._note_flushed()
        if self.durable_position != self.written_position:
            try:
                self._space.check_flush()
                self._begin_flush()
            except StoreError:
                self._reopen_s = self._reopen_s or time.monotonic() + REOPEN_S
                raise

    def rewind(self, position: int, min_position: int) -> None:
        """Start over: what an older record had set is not known any more once a later one replaced it."""
        if position < self.applied_position:
            logger.warning(
                "projection %s had applied the log up to %d, which ends at %d; it starts over",
                self.name, self.applied_position, position,
            )  # fmt: skip
            self.clear(min_position)

    def clear(self, position: int) -> None:
        """Delete everything; the log is applied again from `position` on."""
        self._collector.clear()
        self._space = self._key_values.clear(self.name)
        self.applied_position = position
        self.written_position = self.durable_position = 0
        self._flushing_position = None

    def trim(self, min_position: int) -> None:
        """The log begins at `min_position` now, or soon: nothing before it may have to come again."""
        if self.durable_position < min_position:
            self.sync()

    def _marker(self) -> bytes:
        return _MARKER.pack(_MAGIC, self._format_version, self.applied_position)

    def _write(self, marker: bytes) -> None:
        """Write what has been collected and the marker, in one step."""
        keys, values = self._collector.items()
        keys.append(MARKER_KEY)
        values.append(marker)
        self._space.write(keys, values)

    def _reopen_when_due(self) -> None:
        """Open a database again that has refused writes.

        A disk that was full makes RocksDB refuse all writes until it is opened again.
        """
        key_values = self._key_values
        is_refused = self._reopen_s is not None and key_values.generation == self._generation
        if is_refused or not key_values.is_open:
            now_s = time.monotonic()
            if now_s >= (self._reopen_s or now_s):
                self._reopen_s = now_s + REOPEN_S
                # The one before may have failed, and then nobody has it open.
                key_values.reopen()
        self._follow_generation()

    def _follow_generation(self) -> None:
        """Go back to what the database has, after it was opened again."""
        if self._key_values.generation != self._generation:
            self._known_until = max(self._known_until, self.applied_position)
            self._load()
            self._reopen_s = None
            # The caller has a later range in hand; the next time it begins where we are.
            raise StoreError(f"projection {self.name} goes on from {self.applied_position}")

    def _check_known(self) -> None:
        """Raise StoreError while a database that was opened again has less than was applied."""
        self._follow_generation()
        if self.applied_position < self._known_until:
            raise StoreError(f"projection {self.name} goes on from {self.applied_position}")

    def _flush_when_due(self) -> None:
        self._note_flushed()
        if self.written_position - self.durable_position >= FLUSH_LOG_BYTES:
            self._begin_flush()

    def _note_flushed(self) -> None:
        """Note that the last flush that was begun is over, if it is."""
        if self._flushing_position is not None and not self._space.is_flushing:
            self.durable_position = self._flushing_position
            self._flushing_position = None

    def _begin_flush(self) -> None:
        if self._flushing_position is None:
            self._flushing_position = self.written_position
            self._space.flush(wait=False)


class CountedProjection(KeyValueProjection):
    """A projection that keeps how many keys it has, and their size, beside them.

    Under `totals_key`: count 8 | size in bytes 8, big-endian. Whoever changes a key keeps both right.
    """

    totals_key: bytes

    def clear(self, position: int) -> None:
        """Delete everything; the log is applied again from `position` on."""
        super().clear(position)
        self.count = self.size_bytes = 0

    def _load(self) -> None:
        super()._load()
        try:
            stored = self._space.get(self.totals_key)
        except StoreCorruptError as error:
            logger.warning("projection %s is damaged (%s) and starts over from the log", self.name, error)
            self.clear(0)
            return
        self.count, self.size_bytes = (0, 0) if stored is None else _TOTALS.unpack(stored)

    def _write(self, marker: bytes) -> None:
        keys, values = self._collector.items()
        keys += [self.totals_key, MARKER_KEY]
        values += [_TOTALS.pack(self.count, self.size_bytes), marker]
        self._space.write(keys, values, removed_keys=self._removed_keys())

    def _removed_keys(self) -> list[bytes]:
        """Return the keys to remove from the database for what was collected."""
        raise NotImplementedError


def read_marker(marker: bytes | None, format_version: int | None = None) -> int | None:
    """The applied position a marker tells; None when it is no marker, or one of another format version."""
    if marker is None or len(marker) != _MARKER.size:
        return None
    magic, found_version, position = _MARKER.unpack(marker)
    if magic != _MAGIC or format_version not in (None, found_version):
        return None
    return int(position)


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the first key behind all that start with `prefix`; None when there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None
