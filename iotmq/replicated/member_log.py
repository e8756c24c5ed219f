"""The log of a store as the state machine of a member needs it.

The record that begins an epoch is one of the topic EPOCH_TOPIC, queue 0: JSON of the epoch, the member that
is its master, and its incarnation. Queues and projections see it like any other, once it is confirmed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from iotmq.errors import StoreCorruptError
from iotmq.limits import RECORD_BYTES_MAX
from iotmq.message.records.record import decode_record, encode_batch
from iotmq.replicated.member_file import EPOCHS_MAX, MemberFile
from iotmq.replication.cluster_state import Identity
from iotmq.replication.epochs import EpochStart
from iotmq.store.log.marker import lost_offsets
from iotmq.store.recovery.damage import DamageKeeper
from iotmq.store.replication.tail import is_boundary, piece_end, positions_of, whole_records

if TYPE_CHECKING:
    from iotmq.store.queues.residency import ColdRead
    from iotmq.store.store import Store

EPOCH_TOPIC: Final = "rmq_sys_broker_epoch"
# Bytes that followers have cut off: acknowledged by nobody, and kept for those who want them all the same.
DIVERGED_DIRECTORY: Final = "commitlog.diverged"

_EPOCH_TOPIC_BYTES: Final = EPOCH_TOPIC.encode()
# What begins the blank at the end of a file of the log, behind its size.
BLANK_MAGIC_BYTES: Final = bytes.fromhex("cbd43194")

logger = logging.getLogger(__name__)


class _Epoch(msgspec.Struct):
    """The body of the record that begins an epoch."""

    epoch: int
    member: int
    incarnation: str


class FoundRecord(msgspec.Struct, frozen=True):
    """State what stands at a position: a record, a marker of lost ones, a blank or damage."""

    kind: str
    topic: str = ""
    queue_id: int = 0
    offset: int = 0
    size: int = 0


class StoreLog:
    """A store's log, as `iotmq.replication.ports.MemberLog` has it. For the store's thread."""

    def __init__(self, store: Store, file: MemberFile, *, host: bytes) -> None:
        """`host` (8 or 20 bytes) is the born host of the records this member appends."""
        self._store = store
        self._file = file
        self._host = host
        self._epochs = [
            *(start for start in file.epochs if start.position < store.min_position),
            *self._starts_in_queue(),
            *self._starts_between(store.confirmed_position, store.appended_position),
        ]
        if tuple(self._epochs[-EPOCHS_MAX:]) != file.epochs:
            file.note_epochs(self._epochs)

    @property
    def oldest(self) -> int:
        """Return the position of the first byte that is there."""
        return self._store.min_position

    @property
    def end(self) -> int:
        """Return the position behind the last byte."""
        return self._store.appended_position

    @property
    def flushed(self) -> int:
        """Return the position up to which the disk has it."""
        return self._store.flushed_position

    @property
    def epochs(self) -> Sequence[EpochStart]:
        """Return where the epochs of the log began, oldest first."""
        return self._epochs

    def append_epoch(self, epoch: int, identity: Identity) -> None:
        """Append the record that begins an epoch. Raises StoreError."""
        body = msgspec.json.encode(_Epoch(epoch, identity.member, identity.incarnation))
        appended = self._store.append(
            self._store.queue(EPOCH_TOPIC, 0),
            encode_batch([(body, b"", 0)]),
            born_timestamp_ms=0,
            born_host=self._host,
        )
        self._begin([EpochStart(epoch, appended.start_position)])

    def piece_end(self, position: int, bytes_max: int) -> int:
        """Return where a piece of whole records ends that begins at `position`, in one file of the log."""
        return piece_end(self._store.log, position, bytes_max)

    def read_piece(self, position: int, end: int) -> list[bytes | memoryview]:
        """Return the bytes of a piece; the blank at a file's end, without disk blocks, comes in parts."""
        views: list[bytes | memoryview] = []
        while position < end:
            view = self._store.read_raw(position, end - position, end_position=end)
            views.append(view)
            position += len(view)
        return views

    def is_at_hand(self, position: int, bytes_max: int) -> bool:
        """Return whether the piece from there on can be had without waiting for the disk."""
        return self.cold_read(position, bytes_max) is None

    def cold_read(self, position: int, bytes_max: int) -> ColdRead | None:
        """Return what `Store.load` has to bring in for the piece from there on; None when nothing.

        Ask again after the load: the first page of a record that is longer says how long.
        """
        store = self._store
        plan = store.plan_raw(position, bytes_max)
        if plan is None and (size := store.size_at(position)) > bytes_max:
            plan = store.plan_raw(position, size)
        return plan

    def whole_records(self, position: int, bytes_max: int, end_position: int) -> tuple[int, int, int]:
        """Return where records end that begin at `position`, where the next one begins, and their number.

        See `iotmq.store.replication.tail.whole_records`. ValueError for bytes that are not there,
        StoreCorruptError when there is no record.
        """
        return whole_records(self._store.log, position, bytes_max, end_position)

    def read_raw(self, position: int, bytes_max: int, end_position: int) -> memoryview:
        """Return bytes of one file of the log; the view stays valid. ValueError for what is not there."""
        return self._store.read_raw(position, bytes_max, end_position=end_position)

    def found_at(self, position: int, end_position: int) -> FoundRecord:
        """Return what stands at `position`, for operators."""
        view = self._store.log.read_record(position, end_position)
        if view is not None:
            record = decode_record(view)
            return FoundRecord("record", record.topic, record.queue_id, record.queue_offset, record.size)
        view = self._store.read_raw(position, RECORD_BYTES_MAX, end_position=end_position)
        lost = lost_offsets(view)
        if lost is not None:
            topic, queue_id, first_offset, _ = lost
            return FoundRecord("marker of lost records", topic, queue_id, first_offset)
        if bytes(view[4:8]) == BLANK_MAGIC_BYTES:
            return FoundRecord("blank")
        return FoundRecord("damage")

    def diverged(self) -> tuple[int, int]:
        """Return the bytes of records that cuts have kept aside, and in how many files. From any thread."""
        try:
            sizes = [
                entry.stat().st_size
                for entry in os.scandir(self._store.directory / DIVERGED_DIRECTORY)
                if entry.name.endswith(".bin")
            ]
        except FileNotFoundError:
            # Nothing was cut, or an operator removes a file just now: the next look tells.
            return 0, 0
        return sum(sizes), len(sizes)

    def append_copy(self, position: int, end: int, content: object) -> None:
        """Append what a master sent: a piece as `piece_end` has it. Raises StoreError."""
        queue = self._store.find_queue(EPOCH_TOPIC, 0)
        next_offset = 0 if queue is None else queue.next_offset
        taken = self._store.append_raw(position, content)  # type: ignore[arg-type]
        queue = self._store.find_queue(EPOCH_TOPIC, 0)
        if queue is not None and queue.next_offset != next_offset:
            self._begin(self._starts_between(position, taken))
        if taken != end:
            raise StoreCorruptError(f"a piece of the log ends inside a record: {taken} instead of {end}")

    def cut(self, position: int) -> None:
        """Remove everything from `position` on, for good; what it was is kept aside.

        Raises StoreError; StoreCorruptError when no record ends there, and then nothing has changed.
        """
        if not is_boundary(self._store.log, self._store.confirmed_position, position):
            raise StoreCorruptError(f"no record ends at position {position}, so nothing is cut there")
        self._keep_aside(position)
        self._store.cut(position)
        self._epochs = [start for start in self._epochs if start.position < position]
        self._file.note_epochs(self._epochs)

    def _begin(self, starts: list[EpochStart]) -> None:
        self._epochs += starts
        self._file.note_epochs(self._epochs)

    def _starts_in_queue(self) -> list[EpochStart]:
        """Return the beginnings of epochs that are confirmed: the newest entries of their queue."""
        queue = self._store.find_queue(EPOCH_TOPIC, 0)
        if queue is None:
            return []
        starts: list[EpochStart] = []
        for offset in range(max(queue.min_offset, queue.max_offset - EPOCHS_MAX), queue.max_offset):
            entry = queue.entry(offset)
            start = None if entry is None else self._start_at(entry[0])
            if start is not None:
                starts.append(start)
        return starts

    def _starts_between(self, start_position: int, end_position: int) -> list[EpochStart]:
        positions = positions_of(self._store.log, _EPOCH_TOPIC_BYTES, start_position, end_position)
        return [start for position in positions if (start := self._start_at(position)) is not None]

    def _start_at(self, position: int) -> EpochStart | None:
        """Return what the record at `position` begins; None for one that is damaged."""
        view = self._store.log.read_record(position, self._store.appended_position)
        if view is None:
            return None
        try:
            return EpochStart(msgspec.json.decode(decode_record(view).body, type=_Epoch).epoch, position)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Anybody may send to the topic of a log that was not replicated.
            logger.warning("position %d: a record of topic %s that begins no epoch", position, EPOCH_TOPIC)
            return None

    def _keep_aside(self, position: int) -> None:
        """Copy what is to be cut, as far as there is room, and report it like damage."""
        keeper = DamageKeeper(self._store.directory / DIVERGED_DIRECTORY)
        end_position = self._store.appended_position
        while position < end_position:
            stop = min(self.piece_end(position, end_position - position), end_position)
            view = self._store.read_raw(position, stop - position, end_position=end_position)
            keeper.report(keeper.keep("diverged", view, position, position + len(view)))
            position = stop
