"""Limits of what waits for a kept session: how many messages, how many bytes, how old.

Operations: asked when a session reads (at most once a second), when an operator looks at it, and for some
sessions of clients that are away each second. Goals: nothing per message; for a session that is within its
limits a few look-ups; a body stays where it is. Plan: a limit is a cut at one position of the log over all
filters of the session, because positions order everything a session waits for. What is cut off becomes a
range the session skips, as a record of the log; where nothing is in flight before it, its cursor moves.

What counts is what was not sent yet; a message that two filters of a session match counts twice, and each
broker counts what is in its own log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

from iotmq.broker.session_store.cursor import Cursor
from iotmq.broker.session_store.log import SessionLog
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.session_store.queue_reader import LightQueueReader
from iotmq.broker.session_store.records import Skip
from iotmq.broker.session_store.sessions import StoredSession
from iotmq.broker.session_store.shares import is_share
from iotmq.broker.sessions.queue_trim import SessionQueue, Trimmed, Trimmer, waiting_count
from iotmq.broker.settings import QueueLimits
from iotmq.clock import Clock
from iotmq.metrics import Metric, samples_by
from iotmq.ports.sessions import Refused
from iotmq.store.queues.cold_steps import Steps
from iotmq.store.store import Store

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
# Sessions looked at in one turn of the sweep, about once a second.
SWEEP_SESSIONS: Final = 64


class SessionLimits:
    """Holds the sessions of one broker to their limits. On the loop's thread."""

    def __init__(
        self,
        limits: QueueLimits,
        projection: SessionProjection,
        reader: LightQueueReader,
        store: Store,
        log: SessionLog,
        clock: Clock,
    ) -> None:
        self._limits = limits
        self._projection = projection
        self._reader = reader
        self._store = store
        self._log = log
        self._clock = clock
        # Client id -> what was decided and is not in the log yet.
        self._deciding: dict[str, list[Trimmed]] = {}
        # Sessions that belong to a front end and have not read yet.
        self._opened: set[str] = set()
        # Client id -> when it was looked at, of about the last CHECK_INTERVAL_S.
        self._checked_s: dict[str, float] = {}
        self._forgotten_s = 0.0
        self._swept_after: str | None = None
        self.old_total = 0
        self.full_total = 0

    def stretch(
        self, client_id: str, queue_id: int, position: int
    ) -> Steps[tuple[int, tuple[int, int] | None]]:
        """From where on a session gets records of a queue it reads from `position` on, and the next range
        (from, to before) that it does not get."""
        if not client_id:
            return position, None
        yield from self._look_at(client_id, queue_id, position)
        cursor = self._cursor(client_id, queue_id)
        position = max(position, cursor.position)
        skip = cursor.next_skip(position)
        while skip is not None and skip[0] <= position:
            position = skip[1]
            skip = cursor.next_skip(position)
        return position, skip

    def _look_at(self, client_id: str, queue_id: int, position: int) -> Steps[None]:
        """Hold a session to its limits if that was not done just now."""
        if self._limits.has_any:
            now_s = self._clock.monotonic_s()
            is_first = client_id in self._opened
            if is_first or now_s - self._checked_s.get(client_id, -CHECK_INTERVAL_S) >= CHECK_INTERVAL_S:
                self._forget_old(now_s)
                self._opened.discard(client_id)
                self._checked_s[client_id] = now_s
                yield from self._enforce(client_id, reading=None if is_first else (queue_id, position))

    def opened(self, client_id: str) -> None:
        """Note that a front end has the session: its first read checks all queues of the session."""
        if self._limits.has_any:
            self._opened.add(client_id)

    def closed(self, client_id: str) -> None:
        """Note that the client of a session has gone."""
        self._opened.discard(client_id)

    def waiting(self, client_id: str, queue_id: int) -> int:
        """Return how many messages of a queue a session is not done with and still gets."""
        cursor = self._cursor(client_id, queue_id)
        return waiting_count(self._reader, queue_id, cursor._replace(sent=cursor.position))

    def enforce(self, client_id: str) -> None:
        """Cut off what a client that is away has past its limits; one that is there is held to them by
        `stretch`."""
        session = self._projection.session(client_id) if self._limits.has_any else None
        if session is not None and not session.owner:
            self._reader.finish(
                self._enforce(client_id, reading=None),
                lambda _: None,
                lambda error: logger.warning("the limits of a session are looked at later: %s", error),
            )

    def sweep(self) -> None:
        """`enforce` for the next few sessions."""
        if not self._limits.has_any:
            return
        some = islice(self._projection.sessions(after=self._swept_after), SWEEP_SESSIONS)
        client_ids = [client_id for client_id, _ in some]
        for client_id in client_ids:
            self.enforce(client_id)
        self._swept_after = client_ids[-1] if len(client_ids) == SWEEP_SESSIONS else None

    def metrics(self) -> Iterator[Metric]:
        return samples_by(
            "reason",
            "iotmq_broker_session_dropped_total",
            "Messages that kept sessions do not get because of the limits of their queues.",
            {"age": self.old_total, "full": self.full_total},
        )

    def _cursor(self, client_id: str, queue_id: int) -> Cursor:
        cursor = self._projection.cursor_of(queue_id, client_id)
        for cut in self._deciding.get(client_id, ()):
            if cut.queue_id == queue_id:
                cursor = cursor.skipping(cut.start, cut.end)
        return cursor

    def _enforce(self, client_id: str, *, reading: tuple[int, int] | None) -> Steps[None]:
        """`reading` is the queue, and the position, that a connected session reads. It may have been sent
        more than the broker knows; of that queue alone it is certain what, so that one is cut."""
        while True:
            session = self._projection.session(client_id)
            if session is None or client_id in self._deciding:
                return
            queues = self._queues_of(client_id, session, reading)
            try:
                trimmer = Trimmer(self._limits, self._projection, self._store, list(queues))
                trimmed = yield from trimmer.trim(self._clock.now_ms())
            except KeyError:
                # A filter was unsubscribed while the disk was waited for: the next look is at the others.
                return
            if reading is not None:
                trimmed = [cut for cut in trimmed if cut.queue_id == reading[0]]
            if not trimmed:
                return
            # While the disk was waited for it may have been taken, or cut off by somebody else.
            now = self._projection.session(client_id)
            if (
                now is not None
                and now.epoch == session.epoch
                and client_id not in self._deciding
                and self._queues_of(client_id, now, reading) == queues
            ):
                break
        self._deciding[client_id] = trimmed

        def logged(position: int | Refused) -> None:
            del self._deciding[client_id]
            # When it cannot be stored, all of it waits again, and is cut off again.
            if not isinstance(position, Refused):
                self.old_total += sum(cut.messages for cut in trimmed if cut.is_old)
                self.full_total += sum(cut.messages for cut in trimmed if not cut.is_old)

        named = [(cut.topic_filter, cut.start, cut.end) for cut in trimmed]
        self._log.write([Skip(client_id, session.epoch, named, sum(cut.messages for cut in trimmed))], logged)

    def _queues_of(
        self, client_id: str, session: StoredSession, reading: tuple[int, int] | None
    ) -> list[SessionQueue]:
        """Return the queues of a session that are held to its limits."""
        queues = []
        for topic_filter, subscription in session.subscriptions.items():
            if is_share(topic_filter) or self._reader.has_scan(subscription.queue_id):
                # What waits there waits for a group; or it cannot be counted, because the filter was wide
                # before there were limits.
                continue
            cursor = self._projection.cursor_of(subscription.queue_id, client_id)
            if reading is not None and subscription.queue_id == reading[0]:
                cursor = cursor._replace(sent=max(cursor.sent, reading[1]))
            queues.append(SessionQueue(topic_filter, subscription.queue_id, cursor))
        return queues

    def _forget_old(self, now_s: float) -> None:
        if now_s - self._forgotten_s >= CHECK_INTERVAL_S:
            self._forgotten_s = now_s
            self._checked_s = {
                client_id: checked_s
                for client_id, checked_s in self._checked_s.items()
                if now_s - checked_s < CHECK_INTERVAL_S
            }
