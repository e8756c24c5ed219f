"""Keep changes of sessions that are not written yet, over what the database has of them."""

from __future__ import annotations

from collections.abc import Iterator

from iotmq.broker.light_queues.light_queues import LightQueues
from iotmq.broker.session_store.cursor import Cursor
from iotmq.broker.session_store.exclusives import StoredExclusives
from iotmq.broker.session_store.sessions import StoredSession, cursor_key, encode_session, session_key
from iotmq.broker.session_store.shares import StoredShares


class SessionOverlay:
    """Collect the changes since the last write (store.kv_projection.Collector)."""

    def __init__(self, queues: LightQueues) -> None:
        self.queues = queues
        # None for what is gone.
        self.sessions: dict[str, StoredSession | None] = {}
        self.cursors: dict[tuple[int, str], Cursor | None] = {}
        # Keys without a value, and whether they are there.
        self.marks: dict[bytes, bool] = {}
        self.shares = StoredShares(queues, self._set_cursor)
        self.exclusives = StoredExclusives()

    @property
    def count(self) -> int:
        changed = len(self.sessions) + len(self.cursors) + len(self.marks)
        return self.queues.count + changed + self.shares.changed_count + self.exclusives.changed_count

    def _set_cursor(self, queue_id: int, client_id: str, cursor: tuple[int, int] | None) -> None:
        self.cursors[queue_id, client_id] = None if cursor is None else Cursor(*cursor)

    def collect(self, view: memoryview) -> None:
        self.queues.collect(view)

    def items(self) -> tuple[list[bytes], list[bytes]]:
        keys, values, _, _ = self.all_items()
        return keys, values

    def all_items(self) -> tuple[list[bytes], list[bytes], list[bytes], list[tuple[bytes, bytes]]]:
        keys, values, removed, ranges = self.queues.items()
        for key, value in self._changed_values():
            if value is None:
                removed.append(key)
            else:
                keys.append(key)
                values.append(value)
        return keys, values, removed, ranges

    def _changed_values(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield keys and values of all but the queues; None for what is gone."""
        for client_id, session in self.sessions.items():
            yield session_key(client_id), None if session is None else encode_session(session)
        for (queue_id, client_id), cursor in self.cursors.items():
            yield cursor_key(queue_id, client_id), None if cursor is None else cursor.encode()
        for key, is_there in self.marks.items():
            yield key, b"" if is_there else None
        yield from self.shares.changes()
        yield from self.exclusives.changes()

    def clear(self) -> None:
        self.queues.clear()
        self.sessions.clear()
        self.cursors.clear()
        self.marks.clear()
        self.shares.clear_changes()
        self.exclusives.clear_changes()
