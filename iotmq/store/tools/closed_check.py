"""Finding what does not agree in a closed data directory, from the files alone.

Two kinds of findings. *Problems* are what no crash of ours leaves behind, or what costs data. *Notes* are
what the next start puts right by itself (a torn end of the log after a crash, queue entries that had not
reached the disk), and damage that was repaired before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iotmq.errors import RequestError
from iotmq.message.records.record import decode_record
from iotmq.remoting import lenient_json
from iotmq.store.checks.index_check import check_index
from iotmq.store.log.marker import lost_offsets
from iotmq.store.log.timer_record import record_tags_code
from iotmq.store.queues.queue_begins import BEGINS_NAME, decode_begins
from iotmq.store.tools.index_dump import index_files, sizes
from iotmq.store.tools.inspection import BLANK, DAMAGE, RECORD, ClosedStore, Found, QueueFiles, map_file

if TYPE_CHECKING:
    from iotmq.message.records.record import Record
    from iotmq.store.settings import StoreSettings

# A broken directory has millions of problems; after so many more of one kind nobody reads on.
PROBLEMS_MAX: Final = 1_000

_TRANSACTION_MASK: Final = 12
_UNQUEUED: Final = (4, 12)


class ClosedCheck:
    """One check; `run` fills `problems` and `notes`."""

    def __init__(
        self,
        store: ClosedStore,
        settings: StoreSettings,
        *,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """`progress` is told a position and the end from time to time."""
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.record_count = 0
        self.damaged_bytes = 0
        self.end_position = store.min_position
        self._store = store
        self._settings = settings
        self._progress = progress
        self._queues = {(queue.topic, queue.queue_id): queue for queue in store.queues()}
        # (topic, queue id) -> the offset its next record must have.
        self._next_offsets: dict[tuple[str, int], int] = {}
        self._first_offsets: dict[tuple[str, int], int] = {}
        # Stretches of markers: what stood there is lost, and that is known.
        self._lost_starts: list[int] = []
        self._lost_ends: list[int] = []
        self._lost_offsets = 0
        # Of each queue, where its last record stands.
        self._last_positions: dict[tuple[str, int], int] = {}
        # Below it everything was on the disk once: damage there is no torn end. None when nobody knows.
        self._durable_position = store.durable_position()
        # It writes the times of the checkpoint and not our checksum, and knows nothing of our other marks.
        checkpoint = store.checkpoint()
        self._has_been_shared = checkpoint is not None and checkpoint.position is None
        self._left_out = 0
        state = store.queue_state()
        # After a crash the entries from here on may be anything, and are made again.
        # What a member of a replicated broker has not confirmed is in no queue.
        is_whole = store.was_clean and not store.is_replicated
        self._relied_position = 1 << 62 if is_whole else (state.applied_position if state else 0)
        self._unfilled = 0

    def run(self) -> None:
        """Look at everything."""
        if not self._store.was_clean:
            self.notes.append(
                "abort exists: the last process did not stop cleanly, and the next start checks the log's end"
            )
        self._check_files()
        self._check_log()
        self._check_queues()
        self._check_begins()
        self._check_index()
        self._check_checkpoint()
        self._check_key_values()
        self._check_config()
        if self._unfilled and self._store.was_clean:
            self.notes.append(f"{self._unfilled} records at the log's end have not been confirmed")
        elif self._unfilled:
            self.notes.append(f"{self._unfilled} queue entries are missing that the next start fills in")
        if self._lost_starts:
            size = sum(self._lost_ends) - sum(self._lost_starts)
            self.notes.append(
                f"{len(self._lost_starts)} ranges of the log, {size} bytes, were damaged and have been "
                f"repaired: {self._lost_offsets} offsets are known to be lost (see commitlog.damage/)"
            )
        if self._left_out:
            self.problems.append(f"and {self._left_out} more")

    def _say(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
        else:
            self._left_out += 1

    # The log -------------------------------------------------------------------------------------------

    def _check_files(self) -> None:
        previous_end: int | None = None
        for segment in self._store.segments:
            if previous_end is not None and segment.start_position > previous_end:
                self._say(f"{segment.path.parent} has no file for {previous_end}..{segment.start_position}")
            elif previous_end is not None and segment.start_position < previous_end:
                self._say(f"{segment.path} begins inside the file before it, which ends at {previous_end}")
            previous_end = segment.end_position

    def _check_log(self) -> None:
        log_end = sum(segment.data_bytes for segment in self._store.segments)
        done = 0
        stretch: Found | None = None
        last_damage: Found | None = None
        for stretch in self._store.stretches():
            done += stretch.end_position - stretch.start_position
            if self._progress is not None and not self.record_count & 0x3FFF:
                self._progress(min(done, log_end), log_end)
            if last_damage is not None:
                self._say_damage(last_damage)
                last_damage = None
            if stretch.kind == DAMAGE:
                last_damage = stretch
                continue
            if stretch.kind != BLANK:
                self._check_record(stretch, decode_record(stretch.view))
            elif self._lost_ends and self._lost_ends[-1] == stretch.start_position:
                self._lost_ends[-1] = stretch.end_position
            self.end_position = stretch.end_position
        if last_damage is not None:
            if self._store.was_clean or last_damage.start_position < (self._durable_position or 0):
                self._say_damage(last_damage)
            else:
                size = last_damage.end_position - last_damage.start_position
                self.notes.append(
                    f"position {last_damage.start_position}: the log ends in {size} bytes that are no whole "
                    "record; the next start cuts them off"
                )
        if self._progress is not None:
            self._progress(log_end, log_end)

    def _say_damage(self, damage: Found) -> None:
        size = damage.end_position - damage.start_position
        self.damaged_bytes += size
        self._say(
            f"positions {damage.start_position}..{damage.end_position}: {size} bytes of the log are damaged "
            f"({damage.problem})"
        )
        if (
            not self._store.was_clean
            and self._durable_position is not None
            and damage.start_position >= self._durable_position
        ):
            self.notes.append(
                f"position {damage.start_position} was not known to be on the disk: the next start takes it "
                "for the end of the log, and what follows is given up"
            )

    def _check_record(self, found: Found, record: Record) -> None:
        lost = lost_offsets(found.view)
        if lost is not None:
            self._note_damage(found, *lost)
            return
        self.record_count += 1
        where = (
            f"position {found.start_position} "
            f"(topic {record.topic!r} queue {record.queue_id} offset {record.queue_offset})"
        )
        if record.sys_flag & _TRANSACTION_MASK in _UNQUEUED:
            if record.queue_offset != 0:
                self._say(f"{where}: a prepared or rolled back record has an offset")
            return
        key = (record.topic, record.queue_id)
        expected = self._next_offsets.get(key)
        if expected is None:
            self._first_offsets[key] = record.queue_offset
        elif record.queue_offset < expected:
            self._say(f"{where}: the offset was taken by an earlier record; expected {expected}")
        elif record.queue_offset > expected and not self.damaged_bytes and not self._has_lost_since(key):
            self._say(f"{where}: expected offset {expected}")
        self._next_offsets[key] = record.queue_offset + 1
        self._last_positions[key] = found.start_position
        self._check_entry(where, found, record, self._queues.get(key))

    def _note_damage(self, found: Found, topic: str, queue_id: int, first: int, end: int) -> None:
        """Damage that was found and repaired by an earlier start."""
        if self._lost_ends and self._lost_ends[-1] == found.start_position:
            self._lost_ends[-1] = found.end_position
        else:
            self._lost_starts.append(found.start_position)
            self._lost_ends.append(found.end_position)
        if first < end:
            self._lost_offsets += end - first
            key = (topic, queue_id)
            self._first_offsets.setdefault(key, first)
            self._next_offsets[key] = max(end, self._next_offsets.get(key, 0))

    def _has_lost_since(self, key: tuple[str, int]) -> bool:
        """Return whether something was lost behind the last record of a queue."""
        return bool(self._lost_starts) and self._lost_starts[-1] > self._last_positions.get(key, -1)

    def _is_lost(self, position: int) -> bool:
        """Return whether what stood at a position is known to be lost."""
        number = bisect_right(self._lost_starts, position) - 1
        return number >= 0 and position < self._lost_ends[number]

    def _check_entry(self, where: str, found: Found, record: Record, queue: QueueFiles | None) -> None:
        entry = None if queue is None else queue.entry(record.queue_offset)
        wanted = (found.start_position, len(found.view), record_tags_code(found.view))
        if entry is not None and entry[1:] == wanted:
            return
        if found.start_position >= self._relied_position:
            self._unfilled += 1
        elif queue is None:
            self._say(f"{where}: there are no files of this queue")
        elif entry is None:
            self._say(f"{where}: the queue has no entry for it")
        else:
            self._say(f"{where}: the queue's entry is {entry[1:]}, not {wanted}")

    # What is derived from it ---------------------------------------------------------------------------

    def _check_queues(self) -> None:
        state = self._store.queue_state()
        if state is None and self._queues and self.record_count:
            self.notes.append("consumequeue/.applied is missing: the next start fills all queues again")
        count = offset_sum = 0
        for (topic, queue_id), queue in self._queues.items():
            where = f"topic {topic!r} queue {queue_id}"
            end_offset = queue.end_offset()
            count += end_offset > 0
            offset_sum += end_offset
            self._check_queue_files(where, queue)
            logged = self._next_offsets.get((topic, queue_id))
            if not self._store.was_clean and logged is not None:
                continue
            if logged is not None and end_offset > logged:
                self._say(f"{where}: entries up to {end_offset}, but the log's records end at {logged}")
            elif logged is None:
                self._check_empty_queue(where, queue, end_offset)
            first_offset = queue.first_offset_at(self._store.min_position)
            if logged is not None and first_offset < self._first_offsets[(topic, queue_id)]:
                self._check_front(where, queue, first_offset, self._first_offsets[(topic, queue_id)])
        if self._store.was_clean and state is not None:
            found = (min(self.end_position, self._relied_position), count, offset_sum)
            if tuple(state) != found and self._has_been_shared:
                self.notes.append(
                    "another broker has written the queues since: the next start fills them again"
                )
            elif tuple(state) != found and not self.problems:
                self._say(f"consumequeue/.applied says {tuple(state)}, the files say {found}")

    def _check_queue_files(self, where: str, queue: QueueFiles) -> None:
        for before, after in zip(queue.files, queue.files[1:], strict=False):
            if before.first_offset + before.entry_count > after.first_offset:
                self._say(f"{where}: {before.path.name} reaches into {after.path.name}")
            elif before.first_offset + before.entry_count < after.first_offset:
                self._say(
                    f"{where}: no file for the offsets "
                    f"{before.first_offset + before.entry_count}..{after.first_offset}"
                )

    def _check_empty_queue(self, where: str, queue: QueueFiles, end_offset: int) -> None:
        """A queue whose records are all gone with the front of the log keeps its offsets."""
        last = queue.entry(end_offset - 1) if end_offset else None
        if last is None or last.is_filler or self._is_lost(last.position):
            return
        if last.position >= self._store.min_position:
            self._say(f"{where}: an entry for position {last.position}, where the log has no such record")

    def _check_front(self, where: str, queue: QueueFiles, first_offset: int, logged_offset: int) -> None:
        for offset in range(first_offset, min(logged_offset, first_offset + PROBLEMS_MAX)):
            entry = queue.entry(offset)
            if entry is not None and not entry.is_filler and not self._is_lost(entry.position):
                self._say(f"{where}: offset {offset} leads to {entry.position}, where no record is")
                return

    def _check_begins(self) -> None:
        path = self._store.directory / BEGINS_NAME
        if not path.exists():
            return
        begins = decode_begins(path.read_bytes())
        if begins is None:
            self._say(f"{path} is damaged; the next start makes it again from the queue files")
        elif begins.position > self.end_position:
            self._say(f"{path} is of a log from {begins.position} on, this one ends at {self.end_position}")

    def _check_index(self) -> None:
        paths = index_files(self._store.directory / "index")
        state = self._store.index_state()
        if state is None:
            if paths:
                self.notes.append("index.applied is missing: the next start makes the key index again")
            return
        if not self._store.was_clean or self.damaged_bytes:
            self.notes.append("the key index was not compared with the log, whose end or middle is not whole")
            return
        if self._has_been_shared:
            self.notes.append("the key index was not compared: another broker has written it since")
            return
        if state.applied_position > self.end_position:
            self._say(f"the key index has applied {state.applied_position} of {self.end_position}")
        if len(paths) != state.file_count or (paths and int(paths[-1].name) != state.last_file):
            self._say(
                f"the key index has {len(paths)} files, index.applied says {state.file_count} "
                f"up to {state.last_file:017}"
            )
            return
        files = _IndexFiles(state.applied_position, [_IndexFile(path, self._settings) for path in paths])
        for problem in check_index(_LogFiles(self._store), files):
            self._say(problem)

    def _check_checkpoint(self) -> None:
        checkpoint = self._store.checkpoint()
        if checkpoint is None:
            if self.record_count:
                self.notes.append("there is no checkpoint: after a crash a start goes through the whole log")
            return
        if checkpoint.position is None:
            # A Java broker takes its times one by one: that of the queues may be ahead.
            self.notes.append("the checkpoint is another broker's, or damaged: only its times are used")
            return
        if checkpoint.position > self.end_position:
            self._say(f"the checkpoint is for {checkpoint.position}, the log ends at {self.end_position}")
        if checkpoint.queue_timestamp_ms > checkpoint.log_timestamp_ms:
            self._say("the checkpoint has the queues ahead of the log")

    def _check_key_values(self) -> None:
        from iotmq.store.tools.rebuild import has_key_values

        if not has_key_values(self._store.directory):
            return
        from iotmq.store.tools.kv_check import check_key_values

        for problem in check_key_values(
            self._store, self._settings, end_position=self.end_position, is_lost=self._is_lost
        ):
            self._say(problem)

    def _check_config(self) -> None:
        for path in sorted((self._store.directory / "config").glob("*.json")):
            if not _is_json(path):
                backup = path.with_name(path.name + ".bak")
                more = "its .bak is used" if _is_json(backup) else "and so is its .bak, if there is one"
                self._say(f"{path} is no JSON, {more}")


class _LogFiles:
    """The log as the check of the index wants it: asked for its records one after another."""

    def __init__(self, store: ClosedStore) -> None:
        self.min_position = store.min_position
        self._records = (found for found in store.stretches() if found.kind == RECORD)
        self._last: Found | None = None

    def records(self, start_position: int, limit_position: int, _bytes_max: int, /) -> tuple[int, int]:
        """(start, end) of the next record."""
        self._last = next(self._records, None)
        if self._last is None or self._last.start_position >= limit_position:
            return limit_position, limit_position
        assert self._last.start_position >= start_position
        return self._last.start_position, self._last.end_position

    def view(self, _start_position: int, _end_position: int, /) -> memoryview:
        """Return the record's bytes."""
        assert self._last is not None
        return self._last.view


class _IndexFile:
    """A file of the index, mapped but not opened for writing."""

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        self.path = str(path)
        self.number = int(path.name)
        self._view = map_file(path)
        self.slots, self.entries = sizes(len(self._view), settings)

    def view(self) -> memoryview:
        """Return its bytes."""
        return self._view


class _IndexFiles:
    """The index as its check wants it."""

    def __init__(self, applied_position: int, files: list[_IndexFile]) -> None:
        self.applied_position = applied_position
        self._files = files

    def file_list(self) -> list[_IndexFile]:
        """Return the files, oldest first."""
        return self._files


def _is_json(path: Path) -> bool:
    """As the broker reads it: Java brokers leave numbers that are keys without quotes."""
    try:
        data = path.read_bytes()
        lenient_json.decode(data, Any, lenient_bytes_max=len(data))
    except (OSError, RequestError):
        return False
    return True
