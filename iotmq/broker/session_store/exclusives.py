"""Keep the owners of exclusive subscriptions, as the log has made them: part of the projection `sessions`.

In its column family: 0x0a filter -> client id, both UTF-8. The subscription itself is one of the session like
any other; here is only that nobody else may have it exclusively.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Final

from iotmq.broker.session_store.records import ExclusiveChange, HoldExclusive
from iotmq.errors import StoreCorruptError

TAG_EXCLUSIVE: Final = b"\x0a"


class StoredExclusives:
    """All of a broker, in memory."""

    def __init__(self) -> None:
        self._holders: dict[str, str] = {}
        self._filters: dict[str, set[str]] = {}
        self._changed: set[str] = set()

    def __len__(self) -> int:
        return len(self._holders)

    def holder(self, topic_filter: str) -> str | None:
        """Return the client that has a filter to itself."""
        return self._holders.get(topic_filter)

    def of(self, client_id: str) -> Set[str]:
        """Return the filters that a client has to itself; to look at and not to change."""
        return self._filters.get(client_id, frozenset())

    def all(self) -> Iterator[tuple[str, str]]:
        """(filter, client id) of all of them."""
        return iter(list(self._holders.items()))

    def apply(self, change: ExclusiveChange) -> None:
        """Apply a change of the log: who comes first has a filter, until it gives it back."""
        for topic_filter in change.filters:
            holder = self._holders.get(topic_filter)
            if isinstance(change, HoldExclusive):
                if holder is None:
                    self._hold(topic_filter, change.client_id)
                    self._changed.add(topic_filter)
            elif holder == change.client_id:
                self._free(topic_filter, holder)

    def end(self, client_id: str) -> None:
        """The session of a client is over."""
        for topic_filter in list(self.of(client_id)):
            self._free(topic_filter, client_id)

    def _hold(self, topic_filter: str, client_id: str) -> None:
        self._holders[topic_filter] = client_id
        self._filters.setdefault(client_id, set()).add(topic_filter)

    def _free(self, topic_filter: str, client_id: str) -> None:
        del self._holders[topic_filter]
        self._changed.add(topic_filter)
        filters = self._filters[client_id]
        filters.remove(topic_filter)
        if not filters:
            del self._filters[client_id]

    # The database

    @property
    def changed_count(self) -> int:
        """Return how many have changed since the last `clear_changes`."""
        return len(self._changed)

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys and values of what has changed; None for what is gone."""
        for topic_filter in self._changed:
            holder = self._holders.get(topic_filter)
            yield TAG_EXCLUSIVE + topic_filter.encode(), None if holder is None else holder.encode()

    def clear_changes(self) -> None:
        """Forget the changes: they are written, or of no interest."""
        self._changed.clear()

    def forget_all(self) -> None:
        """Forget all exclusive subscriptions."""
        self._holders.clear()
        self._filters.clear()
        self._changed.clear()

    def restore(self, key: bytes, value: bytes) -> None:
        """Restore one as `changes` has given it; StoreCorruptError for anything else."""
        try:
            self._hold(key[1:].decode(), value.decode())
        except UnicodeDecodeError as error:
            raise StoreCorruptError(f"an exclusive subscription cannot be read: {error}") from error
