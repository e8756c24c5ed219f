"""Reading light queues: their entries, and where a wide filter has none, the log itself.

Both ways give the same records in the same order, so a reader does not know where one ends and the other
begins: a read stops there, and the next goes on. What is on the disk is waited for in threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from iotmq.broker.light_queues.queue_scan import BLANK, BROKEN, CUT, scan_queue
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.session_store.projection import QueueEntries, SessionProjection
from iotmq.errors import RequestError, StoreError
from iotmq.metrics import Metric, samples
from iotmq.ports.sessions import QueueRead, QueueRecords, Refused
from iotmq.remoting.codes import ResponseCode
from iotmq.store.log.resync import next_record
from iotmq.store.queues.cold_steps import Steps, finish
from iotmq.store.queues.residency import ColdRead
from iotmq.store.store import Store

# What one read goes through at most, about a millisecond of the loop; the next goes on behind it. A disk
# brings in a piece at a time.
SCAN_RECORDS_MAX: Final = 16_384
SCAN_BYTES_MAX: Final = 4 << 20
SCAN_PIECE_BYTES: Final = 1 << 20
# A backlog that is so short is counted by reading it, a longer one is estimated.
COUNTED_BYTES_MAX: Final = 256 << 10
# So often what a step needs is brought in; after that the loop waits for what has left the memory meanwhile.
_LOADS_MAX: Final = 4
# No record is longer (store.record_bytes_max): what says so is damaged.
_RECORD_BYTES_MAX: Final = 64 << 20
_ALL: Final = 1 << 40
# Where a record has its position.
_POSITION: Final = slice(28, 36)

T = TypeVar("T")

_NO_QUEUE: Final = Refused(
    ResponseCode.QUERY_NOT_FOUND, "nobody subscribes the filter of this queue any more"
)


class LightQueueReader:
    """Reads the queues of one broker, on the loop's thread."""

    def __init__(self, projection: SessionProjection, store: Store, cold_reads: ColdReads) -> None:
        self._projection = projection
        self._queues = projection.queues
        self._store = store
        self._cold_reads = cold_reads
        self.scanned_records = 0
        self.scanned_bytes = 0

    def read(
        self,
        wanted: QueueRead,
        done: Callable[[QueueRecords | Refused], None],
        *,
        skip: tuple[int, int] | None = None,
    ) -> None:
        """Records of a queue, at once when they are in memory, but none of a range (from, to before).

        What the log has lost is left out.
        """
        self._go_on(self._steps(wanted), done if skip is None else partial(_give_without, skip, done))

    def entry_steps(self, queue_id: int, position: int, *, entries_max: int) -> Steps[QueueEntries]:
        """Return where records of a queue stand, for who reads them later. KeyError as `read`.

        May have none without being at the end: then it has gone through as much as one read may.
        """
        position = self._projection.start_of(queue_id, position)
        if self._projection.scan_end(queue_id, position) is None:
            return self._projection.next_entries(queue_id, position, entries_max=entries_max)
        wanted = QueueRead(queue_id=queue_id, position=position, records_max=entries_max, bytes_max=_ALL)
        found = yield from self._scan_steps(wanted, position)
        views = [memoryview(record) for record in found.records]
        entries = [(int.from_bytes(view[_POSITION], "big"), len(view)) for view in views]
        return QueueEntries(entries, found.next_position, found.is_end)

    def finish(
        self, steps: Steps[T], done: Callable[[T], object], refused: Callable[[RequestError], object]
    ) -> None:
        """Work on what sessions need besides of the log, and wait for the disk off the loop."""
        self._cold_reads.finish(steps, done, refused)

    def load(self, plan: ColdRead, ready: Callable[[OSError | None], None]) -> None:
        """Bring in what a step wants; RequestError when too many wait for the disk."""
        self._cold_reads.start(plan, ready)

    def backlog(self, queue_id: int, position: int) -> int:
        """Return how many records a queue has from `position` on; about, where a wide filter has many."""
        projection = self._projection
        position = projection.start_of(queue_id, position)
        until = projection.scan_end(queue_id, position)
        if until is None:
            return projection.backlog(queue_id, position)
        end = min(until, self._end_position)
        is_hot = self._store.plan_raw(position, COUNTED_BYTES_MAX) is None
        if end - position > COUNTED_BYTES_MAX or not is_hot:
            return projection.backlog(queue_id, position)
        count = 0
        while position < end:
            wanted = QueueRead(queue_id=queue_id, position=position, records_max=_ALL, bytes_max=_ALL)
            found = finish(self._scan_steps(wanted, position), self._store.load)
            count += len(found.records)
            position = max(found.next_position, position + 1)
        return count + (projection.backlog(queue_id, end) if until == end else 0)

    def has_scan(self, queue_id: int) -> bool:
        """Return whether a part of the queue has no entries.

        Its filter is wide, or was, and somebody reads that.
        """
        return self._queues.wide.scan_range(queue_id) is not None

    def is_scanned(self, queue_id: int) -> bool:
        """Return whether the queue's filter is wide: what comes now will be read from the log."""
        scan = self._queues.wide.scan_range(queue_id)
        return scan is not None and scan[1] > self._end_position

    def metrics(self) -> Iterable[Metric]:
        wide = self._queues.wide
        yield from samples(
            (
                "wide_filters",
                "Filters with durable subscribers that match so much that they are read from the log.",
                wide.count,
            ),
            (
                "wide_filter_switches_total",
                "Times a filter became wide, or was no more.",
                wide.switches_total,
            ),
            ("scanned_records_total", "Records gone through for wide filters.", self.scanned_records),
            ("scanned_bytes_total", "Bytes of the log gone through for wide filters.", self.scanned_bytes),
            prefix="iotmq_broker_",
        )

    @property
    def _end_position(self) -> int:
        """Return the log position from which records are pushed instead of read."""
        return min(self._projection.applied_position, self._store.confirmed_position)

    def _go_on(self, steps: Steps[QueueRecords], done: Callable[[QueueRecords | Refused], None]) -> None:
        """Work until there is an answer, or the disk has to be waited for."""

        def ready(error: OSError | None) -> None:
            if error is None:
                self._go_on(steps, done)
            else:
                done(Refused(ResponseCode.SYSTEM_ERROR, f"the log cannot be read: {error.strerror}"))

        try:
            plan = next(steps)
            assert plan is not None, "a read of a queue only waits for the disk"
            self._cold_reads.start(plan, ready)
        except StopIteration as finished:
            done(finished.value)
        except KeyError:
            done(_NO_QUEUE)
        except RequestError as error:
            done(Refused(error.code, str(error)))
        except StoreError as error:
            done(Refused(ResponseCode.SYSTEM_ERROR, str(error)))

    def _steps(self, wanted: QueueRead) -> Steps[QueueRecords]:
        position = self._projection.start_of(wanted.queue_id, wanted.position)
        if self._projection.scan_end(wanted.queue_id, position) is not None:
            return (yield from self._scan_steps(wanted, position))
        found = self._projection.next_entries(wanted.queue_id, position, entries_max=wanted.records_max)
        entries = found.entries
        next_position, is_end = found.next_position, found.is_end
        size = 0
        for number, (place, record_size) in enumerate(entries):
            if number and size + record_size > wanted.bytes_max:
                entries, next_position, is_end = entries[:number], place, False
                break
            size += record_size
        for _ in range(_LOADS_MAX):
            plan = self._store.plan_records(entries)
            if plan is None:
                break
            yield plan
        return QueueRecords(self._records(place for place, _ in entries), next_position, is_end)

    def _scan_steps(self, wanted: QueueRead, position: int) -> Steps[QueueRecords]:
        """Look for the records of the queue in the log from `position` on, as far as one read may go."""
        queue_id = wanted.queue_id
        topic_filter = self._queues.filter_of(queue_id)
        asked_bytes = SCAN_PIECE_BYTES
        scanned_max, stop_position = SCAN_RECORDS_MAX, position + SCAN_BYTES_MAX
        is_start = True
        records: list[memoryview] = []
        while True:
            position = max(position, self._store.min_position)
            is_enough = bool(records) or position >= stop_position or scanned_max <= 0
            if not is_enough:
                yield from self._piece_steps(position, asked_bytes)
            # Meanwhile the queue may have gone, or have entries again.
            until = self._projection.scan_end(queue_id, position)
            if self._queues.filter_of(queue_id) != topic_filter:
                raise KeyError(queue_id)
            end = position if until is None else min(until, self._end_position)
            if position >= end or is_enough:
                return QueueRecords(records, position, position >= end and until is not None and until > end)
            if is_start:
                position = min(self._record_start(position), end)
                is_start = False
                if position == end:
                    continue
            view = self._store.read_raw(position, asked_bytes, end_position=end)
            entries, scanned, gone, why, size = scan_queue(
                self._queues.filters,
                queue_id,
                view,
                records_max=wanted.records_max,
                bytes_max=wanted.bytes_max,
                scanned_max=scanned_max,
            )
            records = self._records(position + at for at, _ in entries)
            scanned_max -= scanned
            self.scanned_records += scanned
            self.scanned_bytes += gone
            if why == CUT and len(view) == asked_bytes and (gone or asked_bytes < size <= _RECORD_BYTES_MAX):
                # The rest of it is behind the view.
                asked_bytes = min(max(SCAN_PIECE_BYTES, size), _RECORD_BYTES_MAX)
                position += gone
                continue
            asked_bytes = SCAN_PIECE_BYTES
            if why == BLANK and size:
                gone += size
            elif why in (BLANK, CUT, BROKEN):
                # Damage nobody has covered yet: on with the next record that proves itself.
                proven = next_record(view, min(gone + 1, len(view)), position)
                gone = len(view) if proven is None else proven
            position = min(position + gone, end)

    def _piece_steps(self, position: int, size: int) -> Steps[None]:
        """Have a piece of the log in memory, and the byte before it, where a record may begin."""
        start = max(position - 1, self._store.min_position)
        for _ in range(_LOADS_MAX):
            plan = self._store.plan_raw(start, position + size - start)
            if plan is None:
                break
            yield plan

    def _record_start(self, position: int) -> int:
        """Start of the first record from `position` on, which may be the byte behind a record's first."""
        if self._store.read_record(position) is None and position > self._store.min_position:
            before = self._store.read_record(position - 1)
            if before is not None:
                return position - 1 + len(before)
        return position

    def _records(self, positions: Iterable[int]) -> list[memoryview]:
        """Return those of them that prove themselves: the log may have lost some."""
        found = (self._store.read_record(position) for position in positions)
        return [record for record in found if record is not None]


def _give_without(
    skip: tuple[int, int], done: Callable[[QueueRecords | Refused], None], found: QueueRecords | Refused
) -> None:
    """Go on behind a range that is not wanted, where its first record would come."""
    if isinstance(found, QueueRecords):
        for number, record in enumerate(found.records):
            if int.from_bytes(memoryview(record)[_POSITION], "big") >= skip[0]:
                found = QueueRecords(found.records[:number], skip[1], False)
                break
    done(found)
