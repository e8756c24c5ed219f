"""Remember deleted topics while the log still has records of them, and deletedTopics.json.

The log is never rewritten, so a deletion is remembered until the log has passed it: nobody reads a topic's
records from before its `position`, also when the topic is made again, and a start that finds such records
does not take them for a topic that topics.json has lost.

The file: ``{"deletedTopics":{"T":{"position":123456,"version":17}}}``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from iotmq import limits
from iotmq.broker.tables.config_files import DataVersion, DirtyTable
from iotmq.errors import RefusedError


class DeletedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """`position` is the end of the log when the topic was deleted.

    `version` is the counter of the topic table's data version after that. A topics.json with a lower one was
    written before; one with the topic and at least that counter has it because it was made again.
    """

    position: int
    version: int


class DeletedTopicTable(msgspec.Struct, kw_only=True, rename="camel"):
    """The shape of deletedTopics.json."""

    deleted_topics: dict[str, DeletedTopic] = {}


class DeletedTopics(DirtyTable):
    """The deletions that still matter. `is_dirty` says that the file is behind."""

    def __init__(
        self,
        path: Path,
        *,
        is_configured: Callable[[str], bool] = lambda name: False,
        topics_max: int = limits.DELETED_TOPICS_MAX,
    ) -> None:
        """`is_configured(name)` says whether there is such a topic (again)."""
        super().__init__(path)
        self._is_configured = is_configured
        self._topics_max = topics_max
        # Counts changes, for who copies the table.
        self._changes_count = 0
        self._topics = (self._file.read(DeletedTopicTable) or DeletedTopicTable()).deleted_topics

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def items(self) -> list[tuple[str, DeletedTopic]]:
        return list(self._topics.items())

    def check_room(self, name: str) -> None:
        """Raise RequestError (1) when `add` would be one too many."""
        if name not in self._topics and len(self._topics) >= self._topics_max:
            raise RefusedError(
                f"topic {name} is not deleted: the log has records of {self._topics_max} deleted topics, the "
                "maximum; delete it when retention has removed some of them"
            )

    def add(self, name: str, deleted: DeletedTopic) -> None:
        self.check_room(name)
        self._topics[name] = deleted
        self._changed()

    def forget(self, name: str) -> None:
        """The log has passed it."""
        if self._topics.pop(name, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self._changes_count += 1
        self.is_dirty = True

    # What followers are sent, and take (copied_table.WholeTable)

    @property
    def stamp(self) -> int:
        """Return another number after each change."""
        return self._changes_count

    def copied_entries(self) -> list[tuple[str, DeletedTopic]]:
        return self.items()

    def replace(self, entries: Sequence[tuple[str, DeletedTopic]], version: DataVersion) -> None:
        """Hold what a master has, and what it has not any more and this log has not passed yet.

        The topics are the master's already: one that is there was made again, or never deleted.
        """
        deletions = dict(entries)
        for name, deleted in self._topics.items():
            if name not in deletions and not self._is_configured(name) and len(deletions) < self._topics_max:
                deletions[name] = deleted
        self._topics = deletions
        self._changed()

    def encode(self) -> bytes:
        """Return the table as the file holds it."""
        return msgspec.json.encode(DeletedTopicTable(deleted_topics=self._topics))
