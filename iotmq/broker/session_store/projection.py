"""Durable MQTT sessions and their light queues, as the log has made them.

In the column family `sessions` (numbers big-endian), besides the keys of light_queues:
0x03 client id                    -> the session, in MessagePack (StoredSession)
0x04 filter id 4 client id        -> how far the session has come with the filter (cursor.Cursor)
0x05 due_ms 8 client id           -> nothing: when sessions nobody is connected to expire
0x06                              -> how many sessions there are 8
0x07 client id                    -> nothing: sessions that have an owner, or a will that was not published
0x08 $share/group/filter          -> a shared subscription (see `shares`)
0x0a filter                       -> who has it exclusively (see `exclusives`)

A session costs memory only while something of it changes; where its queues stand is in LightQueues.
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from iotmq.broker.light_queues.light_queues import LightQueues
from iotmq.broker.session_store.cursor import Cursor, decode_cursor
from iotmq.broker.session_store.exclusives import TAG_EXCLUSIVE
from iotmq.broker.session_store.overlay import SessionOverlay
from iotmq.broker.session_store.records import (
    Change,
    Close,
    End,
    EndShare,
    Flight,
    FreeExclusive,
    HoldExclusive,
    Open,
    OpenShare,
    Progress,
    ProgressShare,
    Skip,
    Subscribe,
    Unsubscribe,
    WillSent,
    decode_changes,
)
from iotmq.broker.session_store.sessions import (
    QUEUE_KEY,
    TAG_CURSOR,
    TAG_SESSION,
    StoredSession,
    Subscription,
    cursor_key,
    decode_session,
    session_key,
)
from iotmq.broker.session_store.shares import TAG_SHARE, is_share
from iotmq.broker.tables.topics import SESSION_TOPIC
from iotmq.errors import StoreCorruptError
from iotmq.event_loop import LoopSlice
from iotmq.store.kv.kv_projection import MARKER_KEY, KeyValueProjection

if TYPE_CHECKING:
    from iotmq.store.kv.kv import KeyValueStore

NAME: Final = "sessions"
FORMAT_VERSION: Final = 1
# Sessions that were looked at and are kept decoded: they say five times a second how far they came. So many,
# and so many bytes of memory for all of them, of which one has a part at most: a session may have ten
# thousand filters, and each filter or message in flight costs its objects beside its bytes.
RECENT_SESSIONS_MAX: Final = 8_192
RECENT_BYTES_MAX: Final = 64 << 20
RECENT_SESSION_BYTES_MAX: Final = RECENT_BYTES_MAX // 8
_SESSION_BYTES: Final = 512
_PART_BYTES: Final = 256
# How many queues are looked at about once a second, once the log has been trimmed or sessions have come
# further, and how many of their sessions' places: some milliseconds of the loop.
SWEEP_QUEUES: Final = 128
SWEEP_PLACES: Final = 2_048

_TAG_FILTER: Final = b"\x01"
_TAG_ENTRIES: Final = b"\x02"
_TAG_DUE: Final = b"\x05"
_COUNT_KEY: Final = b"\x06"
_TAG_UNSETTLED: Final = b"\x07"
_TAG_SCAN: Final = b"\x09"
_TAG_END: Final = b"\x0b"

_ENTRIES_KEY: Final = struct.Struct(">cIQ")
_DUE_KEY: Final = struct.Struct(">cQ")
_NUMBER: Final = struct.Struct(">Q")
_ENTRY: Final = struct.Struct(">qIq")
_POSITION_MAX: Final = 2**63 - 1
_NOWHERE: Final = Cursor(0, 0)

logger = logging.getLogger("iotmq.broker")


class QueueEntries(NamedTuple):
    """A stretch of a light queue: where records stand and how large they are.

    Everything before `next_position` is in it or was before; `is_end` when the queue has nothing after it.
    """

    entries: list[tuple[int, int]]
    next_position: int
    is_end: bool


class _PlacesWalk:
    """On its way through the places of all sessions of a queue: how far the slowest of them is.

    Meanwhile a place moves on and no other way, and who comes begins behind `end_position`, where the log
    ended: so what was found holds, however long ago.
    """

    __slots__ = ("end_position", "lowest", "next_key", "queue_id")

    def __init__(self, queue_id: int, end_position: int) -> None:
        self.queue_id = queue_id
        self.end_position = end_position
        self.next_key = QUEUE_KEY.pack(TAG_CURSOR, queue_id)
        # None before the first place.
        self.lowest: int | None = None


class SessionProjection(KeyValueProjection):
    """The projection. For the store's thread alone.

    Its state is a function of the log alone, but for what nobody needs any more. What is not in the log any
    more is only here: a database that is lost takes the sessions with it whose records retention removed.
    """

    def __init__(
        self, key_values: KeyValueStore, *, wide_percent: int = 0, wide_window_records: int = 65_536
    ) -> None:
        """A filter is wide that matches `wide_percent` of so many records of the log; 0 for none."""
        self.queues = LightQueues(
            SESSION_TOPIC,
            self._apply_record,
            wide_percent=wide_percent,
            wide_window_records=wide_window_records,
        )
        self._changes = SessionOverlay(self.queues)
        # As the database has them, with what each costs, and that of all; the one decoded first comes first.
        self._recent: OrderedDict[str, tuple[StoredSession, int]] = OrderedDict()
        self._recent_bytes = 0
        self.shares = self._changes.shares
        self.exclusives = self._changes.exclusives
        self._count = 0
        self.malformed_records = 0
        # Queues whose sessions have come further, each once, in the order they are looked at; and the walk
        # through the places of one of them that is under way.
        self._moved_queues: deque[int] = deque()
        self._is_moved: set[int] = set()
        self._walk: _PlacesWalk | None = None
        # No session is due before this key. What is removed stays in the database's way for a while: after
        # 100,000 sessions that expired a scan from the beginning takes 30 ms.
        self._due_from = _TAG_DUE
        # What is left to look at behind a trimmed log.
        self._min_position = 0
        self._sweep: Iterator[int] = iter(())
        super().__init__(key_values, NAME, format_version=FORMAT_VERSION, collector=self._changes)

    # Reading

    @property
    def count(self) -> int:
        """Return how many sessions there are."""
        return self._count

    def session(self, client_id: str) -> StoredSession | None:
        """Return the session of a client, to look at and not to change."""
        recent = self._recent.get(client_id)
        if recent is not None:
            return recent[0]
        if client_id in self._changes.sessions:
            return self._changes.sessions[client_id]
        value = self._space.get(session_key(client_id))
        if value is None:
            return None
        session = decode_session(value)
        self._remember(client_id, session, _memory_bytes(session, len(value)))
        return session

    def _remember(self, client_id: str, session: StoredSession, size: int) -> None:
        if size > RECENT_SESSION_BYTES_MAX:
            return
        while self._recent and (
            len(self._recent) >= RECENT_SESSIONS_MAX or self._recent_bytes + size > RECENT_BYTES_MAX
        ):
            _, (_, former_size) = self._recent.popitem(last=False)
            self._recent_bytes -= former_size
        self._recent[client_id] = session, size
        self._recent_bytes += size

    def _forget(self, client_id: str) -> None:
        """A session is not what the database has any more: until it is written `_changes` has it."""
        recent = self._recent.pop(client_id, None)
        if recent is not None:
            self._recent_bytes -= recent[1]

    def sessions(self, *, after: str | None = None) -> Iterator[tuple[str, StoredSession]]:
        """Yield all sessions in the order of their client ids' UTF-8, from behind `after` on."""
        self.write_out()
        start = TAG_SESSION if after is None else session_key(after) + b"\0"
        for key, value in self._space.scan(start, TAG_CURSOR):
            yield key[1:].decode(), decode_session(value)

    def cursor(self, queue_id: int, client_id: str) -> tuple[int, int]:
        """Return up to which position the session is done with the queue, and up to which it was sent it."""
        at = self.cursor_of(queue_id, client_id)
        return at.position, at.sent

    def cursor_of(self, queue_id: int, client_id: str) -> Cursor:
        """Return how far the session has come with the queue."""
        key = (queue_id, client_id)
        if key in self._changes.cursors:
            return self._changes.cursors[key] or _NOWHERE
        value = self._space.get(cursor_key(queue_id, client_id))
        return _NOWHERE if value is None else decode_cursor(value)

    def start_of(self, queue_id: int, position: int) -> int:
        """Return where a read of a queue from `position` on may begin.

        KeyError when there is no such queue.
        """
        return max(position, self.queues.first_position(queue_id), self._min_position)

    def scan_end(self, queue_id: int, position: int) -> int | None:
        """Return the log position at which a search for a queue's records from `position` on may end.

        None where the queue has entries of its own, which `next_entries` gives.
        """
        scan = self.queues.wide.scan_range(queue_id)
        if scan is None or not scan[0] <= position < scan[1]:
            return None
        return scan[1]

    def next_entries(self, queue_id: int, position: int, *, entries_max: int) -> QueueEntries:
        """Places of records of a queue from `position` on, up to where `scan_end` begins to give one.

        `broker.sessions.queue_reader` reads both. KeyError when there is no such queue.
        """
        position = self.start_of(queue_id, position)
        scan = self.queues.wide.scan_range(queue_id)
        # A queue that is wide again may have entries from between.
        end_position = scan[0] if scan is not None and position < scan[1] else _POSITION_MAX
        entries: list[tuple[int, int]] = []
        for _, value in self._values_from(queue_id, position):
            for at in range(8, len(value), _ENTRY.size):
                place, size, _ = _ENTRY.unpack_from(value, at)
                if place >= end_position:
                    return QueueEntries(entries, max(position, end_position), False)
                if place >= position:
                    if len(entries) == entries_max:
                        return QueueEntries(entries, place, False)
                    entries.append((place, size))
        if end_position != _POSITION_MAX:
            return QueueEntries(entries, max(position, end_position), False)
        return QueueEntries(entries, max(position, self.applied_position), True)

    def backlog(self, queue_id: int, position: int) -> int:
        """Return how many records a queue has from `position` on. KeyError when there is no such queue.

        Where it has no entries of its own that is about: at most those too many that came between two writes.
        """
        for last_position, value in self._values_from(queue_id, position):
            before = _entries_before(value, position)
            if last_position >= position:
                return int(self.queues.next_sequence(queue_id)) - int(_NUMBER.unpack_from(value)[0]) - before
        return 0

    def entries(self, queue_id: int, position: int) -> Iterator[tuple[int, int]]:
        """(position, size) of a queue's records from `position` on; those with entries.

        KeyError when there is no such queue.
        """
        for _, value in self._values_from(queue_id, position):
            at = 8 + _entries_before(value, position) * _ENTRY.size
            for place, size, _ in _ENTRY.iter_unpack(value[at:]):
                yield place, size

    def due(self, now_ms: int, turn: LoopSlice) -> list[tuple[str, int]]:
        """Clients whose sessions have expired, with the epoch in which they have; as many as `turn` takes."""
        self.write_out()
        found: list[tuple[str, int]] = []
        is_first = True
        for key, _ in self._space.scan(self._due_from, _DUE_KEY.pack(_TAG_DUE, now_ms + 1)):
            if is_first:
                self._due_from = key
                is_first = False
            if not turn.take():
                break
            client_id = key[_DUE_KEY.size :].decode()
            session = self.session(client_id)
            if session is not None:
                found.append((client_id, session.epoch))
        return found

    def unsettled(self, *, after: str | None = None) -> Iterator[tuple[str, StoredSession]]:
        """The sessions that have an owner, or had one before it crashed, or a will that was not published."""
        self.write_out()
        start = _TAG_UNSETTLED if after is None else _TAG_UNSETTLED + after.encode() + b"\0"
        for key, _ in self._space.scan(start, TAG_SHARE):
            session = self.session(key[1:].decode())
            if session is not None:
                yield key[1:].decode(), session

    # Keeping small

    def tidy(self) -> None:
        """Look at some queues whose sessions have come further, or whose records are gone."""
        # What the database has is all there is.
        self.write_out()
        turn = LoopSlice(SWEEP_PLACES)
        for _ in range(SWEEP_QUEUES):
            if self._walk is None and self._moved_queues:
                queue_id = self._moved_queues.popleft()
                self._is_moved.discard(queue_id)
                self._walk = _PlacesWalk(queue_id, self.applied_position)
            if self._walk is None or turn.is_over:
                break
            self._walk_on(self._walk, turn)
        for queue_id in islice(self._sweep, SWEEP_QUEUES):
            self._drop_gone(queue_id)

    def _walk_on(self, walk: _PlacesWalk, turn: LoopSlice) -> None:
        """Go through some places; after the last the queue drops what nobody needs."""
        stop = QUEUE_KEY.pack(TAG_CURSOR, walk.queue_id + 1)
        for key, value in self._space.scan(walk.next_key, stop):
            if not turn.take():
                walk.next_key = key
                return
            cursor = decode_cursor(value).position
            walk.lowest = cursor if walk.lowest is None else min(walk.lowest, cursor)
        self._walk = None
        if walk.lowest is not None and self.queues.filter_of(walk.queue_id) is not None:
            self.queues.advance(walk.queue_id, min(walk.lowest, walk.end_position))

    def _note_moved(self, queue_id: int) -> None:
        if queue_id not in self._is_moved:
            self._is_moved.add(queue_id)
            self._moved_queues.append(queue_id)

    def trim(self, min_position: int) -> None:
        """The log begins at `min_position` now."""
        super().trim(min_position)
        if min_position > self._min_position:
            self._min_position = min_position
            self._sweep = iter(range(self.queues.ids_end))

    def rewind(self, position: int, min_position: int) -> None:
        """The log has lost what comes from `position` on; so have the queues. Sessions stay as they are: what
        the lost records said of them was true, but for messages that do not exist any more."""
        if position >= self.applied_position:
            return
        self.write_out()
        logger.warning("projection %s goes back from %d to %d", NAME, self.applied_position, position)
        self.applied_position = self.written_position = self.durable_position = position
        keys, values, removed = [], [], []
        for queue_id in self._queue_ids():
            self.queues.cut_scan(queue_id, position)
            start, stop = _entries_key(queue_id, position), _entries_key(queue_id, _POSITION_MAX)
            found = list(self._space.scan(start, stop))
            ending = b"", _NUMBER.pack(self.queues.next_sequence(queue_id))
            removed += [key for key, _ in found]
            if found:
                first, following = (int(_NUMBER.unpack_from(value)[0]) for _, value in (*found, ending)[:2])
                kept, last_position, count = _cut(found[0][1], following - first, position)
                self.queues.rewind(queue_id, first + count)
                key = _entries_key(queue_id, last_position)
                # Where the log ended once before there is one that counts those without an entry as its own.
                if count and (len(kept) > _NUMBER.size or self._space.get(key) is None):
                    keys.append(key)
                    values.append(kept)
        self.shares.rewind(position)
        for key, share in self.shares.changes():
            if share is not None:
                keys.append(key)
                values.append(share)
        heads, head_values, _, _ = self.queues.items()
        self._space.write(
            [*keys, *heads, MARKER_KEY], [*values, *head_values, self._marker()], removed_keys=removed
        )
        self._changes.clear()
        self._space.flush(wait=True)

    def clear(self, position: int) -> None:
        """Delete everything; the log is applied again from `position` on."""
        self._forget_all()
        super().clear(position)
        self._count = 0

    def apply(self, view: memoryview, start_position: int, end_position: int) -> None:
        """Take in the records of [start_position, end_position); StoreError when the database is full."""
        try:
            super().apply(view, start_position, end_position)
        except Exception:
            # Part of the range may be in the queues already, and all of it comes again.
            self._load()
            raise

    def check_invariants(self) -> None:
        """Raise AssertionError when sessions, their places and the queues do not agree; for small tests."""
        self.queues.check_invariants()
        assert len(self._moved_queues) == len(self._is_moved)
        assert set(self._moved_queues) == self._is_moved
        found = dict(self.sessions())
        assert len(found) == self._count
        subscribers: dict[int, int] = {}
        for client_id, session in found.items():
            for topic_filter, subscription in session.subscriptions.items():
                if is_share(topic_filter):
                    continue
                queue_id = subscription.queue_id
                assert self.queues.filter_of(queue_id) == topic_filter
                assert self.cursor_of(queue_id, client_id) != _NOWHERE
                subscribers[queue_id] = subscribers.get(queue_id, 0) + 1
        for share in self.shares.names():
            stored = self.shares.get(share)
            assert stored is not None
            subscribers[stored.queue_id] = subscribers.get(stored.queue_id, 0) + 1
        assert self._recent_bytes == sum(size for _, size in self._recent.values())
        assert self._recent_bytes <= RECENT_BYTES_MAX
        assert len(self._recent) <= RECENT_SESSIONS_MAX
        assert not self._recent.keys() & self._changes.sessions.keys()
        assert subscribers == {
            queue_id: self.queues.subscriber_count(queue_id) for queue_id in self._queue_ids()
        }

    # The log's changes

    def _apply_record(self, body: bytes, position: int, now_ms: int) -> None:
        try:
            changes = decode_changes(body)
        except msgspec.DecodeError as error:
            self.malformed_records += 1
            logger.warning("the session record at position %d is passed over: %s", position, error)
            return
        for change in changes:
            self._apply_change(change, position, now_ms)

    def _apply_change(self, change: Change, position: int, now_ms: int) -> None:
        if isinstance(change, OpenShare | ProgressShare | EndShare):
            stored = self.shares.get(change.share)
            self.shares.apply(change, position)
            if stored is not None:
                self._note_moved(stored.queue_id)
            return
        if isinstance(change, HoldExclusive | FreeExclusive):
            self.exclusives.apply(change)
            return
        session = self.session(change.client_id)
        if isinstance(change, Open):
            self._open(change, session, position)
            return
        if session is None or session.epoch != change.epoch:
            # Said by a former owner.
            return
        if isinstance(change, End):
            self._end(change.client_id, session)
            return
        if isinstance(change, Subscribe):
            self._subscribe(change, session, position)
        elif isinstance(change, Unsubscribe):
            for topic_filter in change.filters:
                subscription = session.subscriptions.pop(topic_filter, None)
                if subscription is not None:
                    self._unsubscribe(change.client_id, topic_filter, subscription)
            # A packet names a thousand filters, and there may be as many messages.
            unwanted = set(change.filters)
            session.in_flight = [
                Flight(flight.packet_id, "", flight.position, True)
                if flight.topic_filter in unwanted
                else flight
                for flight in session.in_flight
            ]
        elif isinstance(change, Progress):
            if not self._progress(change, session):
                return
        elif isinstance(change, Skip):
            self._skip(change, session)
        elif isinstance(change, Close):
            session.owner = ""
            session.closed_ms = now_ms
            session.expiry_s = change.expiry_s
            if change.drops_will:
                session.will = None
            self._set_due(change.client_id, session.due_ms, is_there=True)
        else:
            assert isinstance(change, WillSent)
            session.will = None
        self._put(change.client_id, session)

    def _put(self, client_id: str, session: StoredSession) -> None:
        self._forget(client_id)
        self._changes.sessions[client_id] = session
        is_unsettled = bool(session.owner) or session.will is not None
        self._changes.marks[_TAG_UNSETTLED + client_id.encode()] = is_unsettled

    def _open(self, change: Open, session: StoredSession | None, position: int) -> None:
        if session is not None and change.is_clean:
            self._end(change.client_id, session)
            session = None
        if session is None:
            if change.former_epoch is not None:
                # Ended meanwhile, or its beginning is not in the log any more, and with it its filters: a
                # device that was told of a session without them would wait for messages for good.
                return
            self._count += 1
            session = StoredSession(position, "", 0, 0, {}, [], [])
        self._set_due(change.client_id, session.due_ms, is_there=False)
        session.epoch = position
        session.owner = change.owner
        session.expiry_s = change.expiry_s
        session.closed_ms = 0
        session.will = change.will
        self._put(change.client_id, session)

    def _end(self, client_id: str, session: StoredSession) -> None:
        self.exclusives.end(client_id)
        for topic_filter, subscription in session.subscriptions.items():
            self._unsubscribe(client_id, topic_filter, subscription)
        self._set_due(client_id, session.due_ms, is_there=False)
        self._changes.sessions[client_id] = None
        self._forget(client_id)
        self._changes.marks[_TAG_UNSETTLED + client_id.encode()] = False
        self._count -= 1

    def _subscribe(self, change: Subscribe, session: StoredSession, position: int) -> None:
        for topic_filter, options in change.subscriptions:
            subscription = session.subscriptions.get(topic_filter)
            if subscription is None and is_share(topic_filter):
                queue_id = self.shares.subscribe(topic_filter, position)
                session.subscriptions[topic_filter] = Subscription(queue_id, options)
            elif subscription is None:
                queue_id = self.queues.subscribe(topic_filter)
                session.subscriptions[topic_filter] = Subscription(queue_id, options)
                self._changes.cursors[queue_id, change.client_id] = Cursor(position, position)
            else:
                subscription.options = options

    def _unsubscribe(self, client_id: str, topic_filter: str, subscription: Subscription) -> None:
        if is_share(topic_filter):
            self.shares.unsubscribe(topic_filter)
            return
        self._changes.cursors[subscription.queue_id, client_id] = None
        self._note_moved(subscription.queue_id)
        self.queues.unsubscribe(subscription.queue_id)

    def _progress(self, change: Progress, session: StoredSession) -> bool:
        """Return whether there is more to it than cursors, which are keys of their own."""
        done, in_flight = change.done, change.in_flight
        if change.is_more:
            done = [*session.done, *done]
            in_flight = in_flight and [*session.in_flight, *in_flight]
        has_changed = session.done != done
        for topic_filter, cursor, sent in change.cursors:
            subscription = session.subscriptions.get(topic_filter)
            if subscription is not None and not is_share(topic_filter):
                queue_id = subscription.queue_id
                at = self.cursor_of(queue_id, change.client_id)
                self._changes.cursors[queue_id, change.client_id] = at.moved(cursor, sent)
                self._note_moved(queue_id)
        session.done = done
        if change.received is not None:
            has_changed = has_changed or session.received != change.received
            session.received = change.received
        if in_flight is not None:
            has_changed = has_changed or session.in_flight != in_flight
            session.in_flight = in_flight
        return has_changed

    def _skip(self, change: Skip, session: StoredSession) -> None:
        session.dropped += change.count
        for topic_filter, start, end in change.ranges:
            subscription = session.subscriptions.get(topic_filter)
            if subscription is not None:
                queue_id = subscription.queue_id
                at = self.cursor_of(queue_id, change.client_id)
                self._changes.cursors[queue_id, change.client_id] = at.skipping(start, end)
                self._note_moved(queue_id)

    def _set_due(self, client_id: str, due_ms: int | None, *, is_there: bool) -> None:
        if due_ms is not None:
            key = _DUE_KEY.pack(_TAG_DUE, due_ms) + client_id.encode()
            self._changes.marks[key] = is_there
            self._due_from = min(self._due_from, key)

    # The database

    def _load(self) -> None:
        super()._load()
        self._forget_all()
        try:
            for key, value in self._space.scan(_TAG_FILTER, _TAG_ENTRIES):
                self.queues.restore(key, value)
            for key, value in self._space.scan(TAG_SHARE, _TAG_SCAN):
                self.shares.restore(key, value)
            for key, value in self._space.scan(_TAG_SCAN, TAG_EXCLUSIVE):
                self.queues.restore_scan(key, value)
            for key, value in self._space.scan(TAG_EXCLUSIVE, _TAG_END):
                self.exclusives.restore(key, value)
            stored = self._space.get(_COUNT_KEY)
        except StoreCorruptError as error:
            logger.warning("projection %s is damaged (%s) and starts over from the log", NAME, error)
            self.clear(0)
            return
        self._count = 0 if stored is None else _NUMBER.unpack(stored)[0]

    def _forget_all(self) -> None:
        self.queues.forget_all()
        self._recent.clear()
        self._recent_bytes = 0
        self.shares.forget_all()
        self.exclusives.forget_all()
        self._moved_queues.clear()
        self._is_moved.clear()
        self._walk = None
        self._due_from = _TAG_DUE

    def _write(self, marker: bytes) -> None:
        keys, values, removed, ranges = self._changes.all_items()
        keys += [_COUNT_KEY, MARKER_KEY]
        values += [_NUMBER.pack(self._count), marker]
        self._space.write(keys, values, removed_keys=removed, removed_ranges=ranges)

    def _values_from(self, queue_id: int, position: int) -> Iterator[tuple[int, bytes]]:
        """(position of the last record, value) of each write of the queue."""
        start, stop = _entries_key(queue_id, position), _entries_key(queue_id, _POSITION_MAX)
        for key, value in self._space.scan(start, stop):
            yield _ENTRIES_KEY.unpack(key)[2], value
        yield self.queues.pending(queue_id)

    def _drop_gone(self, queue_id: int) -> None:
        """Forget entries whose records the log has lost at its beginning."""
        if self.queues.filter_of(queue_id) is None:
            return
        start, stop = _entries_key(queue_id, 0), _entries_key(queue_id, self._min_position)
        for _ in self._space.scan(start, stop):
            self.queues.advance(queue_id, self._min_position)
            break

    def _queue_ids(self) -> list[int]:
        self.write_out()
        return [QUEUE_KEY.unpack(key)[1] for key, _ in self._space.scan(_TAG_FILTER, _TAG_ENTRIES)]


def _memory_bytes(session: StoredSession, encoded_bytes: int) -> int:
    """About what a session costs that is decoded."""
    numbers = len(session.received) + sum(len(found) for _, found in session.done if isinstance(found, list))
    parts = len(session.subscriptions) + len(session.in_flight) + len(session.done) + numbers // 8
    return _SESSION_BYTES + 2 * encoded_bytes + _PART_BYTES * parts


def _entries_before(value: bytes, position: int) -> int:
    """Return how many entries of a value stand before a position."""
    return bisect_left(range((len(value) - 8) // _ENTRY.size), position, key=partial(_position_at, value))


def _position_at(value: bytes, number: int) -> int:
    return int(_NUMBER.unpack_from(value, 8 + number * _ENTRY.size)[0])


def _cut(value: bytes, count: int, position: int) -> tuple[bytes, int, int]:
    """Cut a write of `count` records where the log ends (`position`): value, last position, count."""
    places = [_ENTRY.unpack_from(value, at)[0] for at in range(8, len(value), _ENTRY.size)]
    kept = sum(place < position for place in places)
    if count == len(places):
        return value[: 8 + kept * _ENTRY.size], places[kept - 1] if kept else 0, kept
    # Where those without an entry are is not known: none of them is missed by counting all of them.
    return value[: 8 + kept * _ENTRY.size], position - 1, count - len(places) + kept


def _entries_key(queue_id: int, position: int) -> bytes:
    return _ENTRIES_KEY.pack(_TAG_ENTRIES, queue_id, position)
