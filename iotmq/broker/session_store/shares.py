"""Shared subscriptions as the log has made them: part of the projection `sessions`.

In its column family: 0x08 `$share/GROUP/FILTER` -> StoredShare, in MessagePack. A group subscribes the light
queue of its filter as a session does, with a cursor of its own under a client id no client can have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from iotmq.broker.light_queues.light_queues import LightQueues
from iotmq.broker.session_store.records import EndShare, OpenShare, ShareChange
from iotmq.errors import StoreCorruptError
from iotmq.mqtt.topics.topics import is_shared, split_shared

TAG_SHARE: Final = b"\x08"


def is_share(topic_filter: str) -> bool:
    """Return True for `$share/GROUP/FILTER` that is well formed; others were never granted."""
    if not is_shared(topic_filter):
        return False
    try:
        split_shared(topic_filter)
    except ValueError:
        return False
    return True


class StoredShare(msgspec.Struct, array_like=True):
    """One group and filter. Records before `next_position` are done, but for those at `undone`."""

    queue_id: int
    # The position of the record that began it.
    since: int
    # Kept sessions that subscribe it: while there are any, it goes on without members.
    kept_count: int
    next_position: int
    undone: list[int]

    @property
    def cursor(self) -> int:
        """Return the position before which all is done."""
        return min(self.undone, default=self.next_position)


class StoredShares:
    """All groups of a broker, in memory. `set_cursor(queue id, client id, cursor)` keeps their cursors."""

    def __init__(
        self, queues: LightQueues, set_cursor: Callable[[int, str, tuple[int, int] | None], None]
    ) -> None:
        self._queues = queues
        self._set_cursor = set_cursor
        self._shares: dict[str, StoredShare] = {}
        self._changed: set[str] = set()

    def __len__(self) -> int:
        return len(self._shares)

    def get(self, share: str) -> StoredShare | None:
        """A group by `$share/GROUP/FILTER`, to look at and not to change."""
        return self._shares.get(share)

    def names(self) -> Iterator[str]:
        """Return all groups."""
        return iter(self._shares)

    def subscribe(self, share: str, position: int) -> int:
        """A kept session subscribes; the id of the light queue."""
        stored = self._open(share, position)
        stored.kept_count += 1
        return stored.queue_id

    def unsubscribe(self, share: str) -> None:
        """A kept session has gone. The group ends by a record of its own."""
        stored = self._shares.get(share)
        if stored is not None and stored.kept_count:
            stored.kept_count -= 1
            self._changed.add(share)

    def apply(self, change: ShareChange, position: int) -> None:
        """Apply a change of the log, whose record is at `position`."""
        if isinstance(change, OpenShare):
            if is_share(change.share):
                self._open(change.share, position)
            return
        stored = self._shares.get(change.share)
        if stored is None or stored.since != change.since:
            return
        if isinstance(change, EndShare):
            if not stored.kept_count:
                del self._shares[change.share]
                self._changed.add(change.share)
                self._set_cursor(stored.queue_id, _cursor_name(change.share), None)
                self._queues.unsubscribe(stored.queue_id)
            return
        stored.next_position, stored.undone = change.next_position, change.undone
        self._note(change.share, stored)

    def rewind(self, position: int) -> None:
        """The log ends at `position`: nobody is past it."""
        for share, stored in self._shares.items():
            if stored.next_position > position:
                stored.next_position = position
                stored.undone = [place for place in stored.undone if place < position]
                self._note(share, stored)

    def _open(self, share: str, position: int) -> StoredShare:
        stored = self._shares.get(share)
        if stored is None:
            _, topic_filter = split_shared(share)
            queue_id = self._queues.subscribe(topic_filter)
            stored = self._shares[share] = StoredShare(queue_id, position, 0, position, [])
            self._note(share, stored)
        self._changed.add(share)
        return stored

    def _note(self, share: str, stored: StoredShare) -> None:
        self._changed.add(share)
        self._set_cursor(stored.queue_id, _cursor_name(share), (stored.cursor, stored.next_position))

    # The database

    @property
    def changed_count(self) -> int:
        """Return how many have changed since the last `clear_changes`."""
        return len(self._changed)

    def changes(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Keys and values of what has changed; None for what is gone."""
        for share in self._changed:
            stored = self._shares.get(share)
            yield TAG_SHARE + share.encode(), None if stored is None else _encoder.encode(stored)

    def clear_changes(self) -> None:
        """Forget the changes: they are written, or of no interest."""
        self._changed.clear()

    def forget_all(self) -> None:
        """Forget all groups."""
        self._shares.clear()
        self._changed.clear()

    def restore(self, key: bytes, value: bytes) -> None:
        """A group as `changes` has given it; StoreCorruptError for anything else."""
        try:
            self._shares[key[1:].decode()] = _decoder.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreCorruptError(f"a shared subscription cannot be read: {error}") from error


def _cursor_name(share: str) -> str:
    """In place of a client id, which has no control characters."""
    return "\0" + split_shared(share)[0]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredShare)
