"""delayOffset.json: up to where the queue of each delay level was delivered (wire document 5.5 and 10.1).

The file tells brokers of the RocketMQ family, and tools that read it, what is done. We read it only to learn
what such a broker has delivered before us: what ours delivered the log says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from iotmq.broker.scheduled.delay_levels import DelayLevels
from iotmq.broker.scheduled.unflushed_deliveries import UnflushedDeliveries
from iotmq.broker.tables.config_files import ConfigFile, DataVersion
from iotmq.broker.tables.topics import SCHEDULE_TOPIC
from iotmq.errors import RefusedError
from iotmq.store.kv.timer_index import NEVER_MS
from iotmq.store.log.queue import Queue
from iotmq.store.store import Store


class DelayOffsetTable(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """The shape of delayOffset.json and of the answer to code 45: level -> offset in its queue.

    `taken_over` is ours, and only in the file: before these offsets another broker has delivered.
    """

    offset_table: dict[int, int] = {}
    taken_over: dict[int, int] | None = None


class DelayOffsets:
    """Keep the next offset of each level's queue: read from the timer index, saved for other tools."""

    def __init__(self, store: Store, levels: DelayLevels, ended: UnflushedDeliveries, path: Path) -> None:
        self._store = store
        self._index = store.timers()
        self._ended = ended
        self._levels_count = len(levels)
        self._file = ConfigFile(path)
        stored = self._file.read(DelayOffsetTable) or DelayOffsetTable()
        self._saved = stored.offset_table
        # Set for good by start(): clamped to what there is.
        self._taken_over = stored.offset_table if stored.taken_over is None else stored.taken_over
        # False until start() where another broker has delivered before.
        self._is_ours = stored.taken_over is not None
        self._is_started = False
        # The file is behind what was copied from a master; nothing else is written before start().
        self._is_copy_unsaved = False

    def start(self) -> None:
        """Forget what another broker has delivered before this directory was opened by us."""
        was_ours, self._is_ours = self._is_ours, True
        self._is_started = True
        if not was_ours:
            ends = {
                level: self._store.queue(SCHEDULE_TOPIC, level - 1).max_offset
                for level in self._taken_over
                if 0 < level <= self._levels_count
            }
            self._taken_over = {level: min(self._taken_over[level], end) for level, end in ends.items()}
        for level, offset in self._taken_over.items():
            delivered = []
            for timer in self._index.before(NEVER_MS, kinds=(level,)):
                if timer.queue_offset >= offset:
                    break
                delivered.append(timer)
            if delivered:
                self._index.forget(delivered)
        if not was_ours and self._saved:
            # From here on new messages stand behind the offsets that were read.
            self.write(self._encode_file())

    @property
    def is_dirty(self) -> bool:
        """Return whether the file says something else than it should."""
        return self.offsets() != self._saved if self._is_started else self._is_copy_unsaved

    @is_dirty.setter
    def is_dirty(self, value: bool) -> None:
        """True: what was taken by `take_unsaved` could not be written."""
        if value and self._is_started:
            self._saved = {}
        elif value:
            self._is_copy_unsaved = True

    def offsets(self) -> dict[int, int]:
        """Level -> the offset before which everything is in its real topic, and safely so."""
        return {level: offset for level, (_, offset, _) in enumerate(self._state(is_safe=True), start=1)}

    def encode(self) -> bytes:
        """Return the answer to code 45: how things are now."""
        offsets = {level: offset for level, (offset, _) in enumerate(self.progress(), start=1)}
        return msgspec.json.encode(DelayOffsetTable(offset_table=offsets))

    def take_unsaved(self) -> bytes | None:
        """Return the bytes for `write`, None when the file is up to date."""
        if not self._is_started:
            is_unsaved, self._is_copy_unsaved = self._is_copy_unsaved, False
            return msgspec.json.encode(self._copied_table()) if is_unsaved else None
        offsets = self.offsets()
        if offsets == self._saved:
            return None
        self._saved = offsets
        return self._encode_file()

    def write(self, data: bytes) -> None:
        """Write the file; touches nothing but the disk, so that a thread may do it."""
        self._file.write(data, is_synced=True)

    def write_copy(self, table: DelayOffsetTable) -> None:
        """Write another broker's file, for the next start as master; may be called in any thread."""
        self.write(msgspec.json.encode(DelayOffsetTable(offset_table=table.offset_table)))

    def progress(self) -> list[tuple[int, int]]:
        """Delivered offset and end of each level's queue, as they are now."""
        return [(offset, end) for _, offset, end in self._state(is_safe=False)]

    def delivered(self) -> list[tuple[Queue, int]]:
        """Each level's queue and the offset before which everything is in its real topic, and safely so."""
        return [(queue, offset) for queue, offset, _ in self._state(is_safe=True)]

    # What followers are sent, and take (copied_table.WholeTable)

    @property
    def stamp(self) -> bytes:
        """Return something that is another after each change."""
        return self._encode_file()

    def copied_entries(self) -> list[DelayOffsetTable]:
        return [DelayOffsetTable(offset_table=self.offsets(), taken_over=self._taken_over)]

    def replace(self, entries: Sequence[DelayOffsetTable], version: DataVersion) -> None:
        """Have what a master says, before `start`: its log says what it delivered, only what another broker
        delivered before it has to be known. RequestError (1) unless there is one table."""
        if len(entries) != 1:
            raise RefusedError(f"{len(entries)} tables of delay offsets instead of one")
        (table,) = entries
        self._saved = table.offset_table
        self._taken_over = table.offset_table if table.taken_over is None else table.taken_over
        self._is_ours = table.taken_over is not None
        self._is_copy_unsaved = True

    def _copied_table(self) -> DelayOffsetTable:
        return DelayOffsetTable(
            offset_table=self._saved, taken_over=self._taken_over if self._is_ours else None
        )

    def _encode_file(self) -> bytes:
        return msgspec.json.encode(self.copied_entries()[0])

    def _state(self, *, is_safe: bool) -> list[tuple[Queue, int, int]]:
        """Queue, delivered offset and end of each level; `is_safe` counts what no power cut takes back."""
        firsts: dict[int, int] = {}
        for kind in self._index.kinds():
            first = self._index.first_of(kind)
            if first is not None:
                firsts[kind] = first.queue_offset
        for timer in self._ended.unflushed() if is_safe else ():
            firsts[timer.kind] = min(timer.queue_offset, firsts.get(timer.kind, timer.queue_offset))
        state = []
        for level in range(1, self._levels_count + 1):
            queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
            offset = max(queue.min_offset, firsts.get(level, queue.max_offset))
            if is_safe and not self._ended.is_former_flushed:
                # What a former process delivered last may still get lost, and then it waits again.
                offset = min(offset, self._saved.get(level, queue.min_offset))
            state.append((queue, offset, queue.max_offset))
        return state
