"""Keep the committed offsets of consumer groups, and consumerOffset.json."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from iotmq import limits
from iotmq.broker.tables.config_files import DataVersion, DirtyTable
from iotmq.broker.tables.copied_table import ChangedKeys
from iotmq.errors import RefusedError
from iotmq.metrics import Metric, samples


class ConsumerOffsetTable(msgspec.Struct, kw_only=True, rename="camel"):
    """The shape of consumerOffset.json and of the answer to code 43: `topic@group` -> queue -> offset."""

    offset_table: dict[str, dict[int, int]] = {}


class OffsetsOfPair(NamedTuple):
    """All offsets of a pair by queue id; none when it was forgotten. `pair` is `topic@group`."""

    pair: str
    offsets: dict[int, int]


class ConsumerOffsets(DirtyTable):
    """Committed offsets of all groups. `is_dirty` says that the file is behind the table."""

    def __init__(self, path: Path, *, pairs_max: int = limits.CONSUMER_OFFSET_PAIRS_MAX) -> None:
        super().__init__(path)
        self._pairs_max = pairs_max
        # It has none.
        self.version = DataVersion()
        # Pairs, as `topic@group`. One that is forgotten stays there until it is taken.
        self.changed: ChangedKeys[str] = ChangedKeys(2 * pairs_max)
        self._offsets = (self._file.read(ConsumerOffsetTable) or ConsumerOffsetTable()).offset_table
        self._listeners: list[Callable[[str], None]] = []

    def __len__(self) -> int:
        """Number of pairs of topic and group."""
        return len(self._offsets)

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Tell of groups that have their first offset in a topic."""
        self._listeners.append(listener)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next offset the group will consume; may move back. RequestError (1) past `pairs_max`."""
        key = f"{topic}@{group}"
        queues = self._offsets.get(key)
        if queues is None:
            if len(self._offsets) >= self._pairs_max:
                raise RefusedError(
                    f"no offset kept for {key}: this broker has its maximum of {self._pairs_max} "
                    "pairs of topic and group"
                )
            queues = self._offsets[key] = {}
            self.changed.bound()
            for listener in self._listeners:
                listener(group)
        queues[queue_id] = offset
        self.is_dirty = True
        changed = self.changed.keys
        if changed is not None:
            changed.add(key)

    def raise_to(self, table: ConsumerOffsetTable) -> None:
        """Take another broker's offsets where they are greater: what was committed here is never set back."""
        for key, told in table.offset_table.items():
            queues = self._offsets.get(key)
            if queues is None:
                if len(self._offsets) >= self._pairs_max:
                    continue
                queues = self._offsets[key] = {}
            for queue_id, offset in told.items():
                if offset > queues.get(queue_id, -1):
                    queues[queue_id] = offset
                    self.is_dirty = True

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self._offsets.get(f"{topic}@{group}")
        return None if queues is None else queues.get(queue_id)

    def of_topic(self, group: str, topic: str) -> Mapping[int, int]:
        """Queue id to offset for one group and topic."""
        return self._offsets.get(f"{topic}@{group}", {})

    def each_pair(self) -> Iterator[tuple[str, str]]:
        """Yield all (topic, group) of this moment, one by one: there may be very many. Neither has an `@`."""
        for key in list(self._offsets):
            topic, _, group = key.partition("@")
            yield topic, group

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in the topic."""
        prefix = topic + "@"
        return [key[len(prefix) :] for key in self._offsets if key.startswith(prefix)]

    def topics_of(self, group: str) -> list[str]:
        """The topics the group has offsets in."""
        suffix = "@" + group
        return [key[: -len(suffix)] for key in self._offsets if key.endswith(suffix)]

    def each_topic(self) -> Iterator[tuple[str, Mapping[int, int]]]:
        """The topics of this moment's pairs with queue id to offset, one by one: there may be very many."""
        for key in list(self._offsets):
            yield key.partition("@")[0], self._offsets.get(key, {})

    def forget_group(self, group: str) -> None:
        """Drop every offset of the group."""
        suffix = "@" + group
        self._forget([key for key in self._offsets if key.endswith(suffix)])

    def forget_topics(self, topics: Collection[str]) -> None:
        """Drop every offset of any group in the topics."""
        self._forget([key for key in self._offsets if key.partition("@")[0] in topics])

    def _forget(self, keys: list[str]) -> None:
        for key in keys:
            del self._offsets[key]
        if keys:
            self.is_dirty = True
            if self.changed.keys is not None:
                self.changed.keys.update(keys)

    def clamp(self, end_of: Callable[[str, int], int | None]) -> int:
        """Pull offsets past a queue's end back to the end; returns how many were.

        After a crash the log may end before what was consumed. Records appended there later would be
        skipped by a group whose offset points past them. `end_of(topic, queue_id)` is the queue's
        next offset, None for a queue that does not exist.
        """
        clamped = 0
        for key, queues in self._offsets.items():
            topic = key.partition("@")[0]
            for queue_id, offset in queues.items():
                end = end_of(topic, queue_id)
                if end is not None and offset > end:
                    queues[queue_id] = end
                    clamped += 1
        self.is_dirty = self.is_dirty or clamped > 0
        return clamped

    # What followers are sent, and take (copied_table.KeyedTable)

    def copied_entries(self) -> Iterator[OffsetsOfPair]:
        """Yield the pairs of this moment that are still there."""
        for key in list(self._offsets):
            queues = self._offsets.get(key)
            if queues is not None:
                yield OffsetsOfPair(key, queues)

    def entries_of(self, keys: set[str]) -> Iterator[OffsetsOfPair]:
        """Yield what the pairs have now, and take them out of `keys`."""
        while keys:
            key = keys.pop()
            yield OffsetsOfPair(key, self._offsets.get(key, {}))

    def new_copy(self) -> dict[str, dict[int, int]]:
        return {}

    def apply(self, entries: Sequence[OffsetsOfPair], copy: dict[str, dict[int, int]] | None) -> None:
        """Change a copy, or the table. RequestError (1) past `pairs_max`, and then nothing has changed."""
        offsets = self._offsets if copy is None else copy
        changed: dict[str, dict[int, int]] = dict(entries)
        gone = [key for key, queues in changed.items() if not queues]
        come_count = sum(key not in offsets for key in changed)
        if len(offsets) + come_count - len(gone) > self._pairs_max:
            raise RefusedError(
                f"more than {self._pairs_max} pairs of topic and group, the maximum of this broker"
            )
        offsets.update(changed)
        for key in gone:
            del offsets[key]
        self.is_dirty = self.is_dirty or copy is None

    def replace(self, copy: dict[str, dict[int, int]]) -> None:
        """Hold what a copy has."""
        self._offsets = copy
        self.is_dirty = True

    def encode(self) -> bytes:
        """Return the table as the file holds it."""
        return msgspec.json.encode(ConsumerOffsetTable(offset_table=self._offsets))

    def metrics(self) -> Iterable[Metric]:
        text = "Pairs of topic and group with a committed offset."
        return samples(("iotmq_broker_consumer_offset_pairs", text, len(self._offsets)))
