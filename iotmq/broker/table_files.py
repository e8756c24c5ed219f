"""Keeping the files under `config/` level with the tables they hold.

Topics and groups are written at the end of the turn of the loop in which they changed; what changes with
every message consumed is written every few seconds, off the loop. A disk that takes nothing does not stop a
broker from serving what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from iotmq.broker.subscription_groups import SubscriptionGroups
from iotmq.broker.topics import TopicTable

logger = logging.getLogger(__name__)


class SavedTable(Protocol):
    """A table whose file is written every few seconds, off the loop."""

    is_dirty: bool

    def take_unsaved(self) -> bytes | None: ...

    def write(self, data: bytes) -> None: ...


class TableFiles:
    """The files of `topics` and `groups`, and those of `tables`, written every `interval_s`."""

    def __init__(
        self,
        topics: TopicTable,
        groups: SubscriptionGroups,
        tables: Sequence[SavedTable],
        *,
        interval_s: float,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._tables = tables
        self.interval_s = interval_s
        # Tables that changed in this turn of the loop and are saved at its end.
        self._unsaved: set[TopicTable | SubscriptionGroups] = set()

    def follow_changes(self) -> None:
        """Save the topics, and from now on whatever changes of topics and groups."""
        _save_config(self._topics, is_synced=True)
        self._topics.add_listener(lambda name: self._save_soon(self._topics))
        self._groups.add_listener(lambda name: self._save_soon(self._groups))

    def savers(self) -> list[Callable[[], Awaitable[None]]]:
        """One for each table that is written every `interval_s`; cancelled before `save_all`."""
        return [partial(self._save_repeatedly, table) for table in self._tables]

    def save_all(self) -> None:
        """Write whatever is not on the disk."""
        _save_config(self._topics, is_synced=True)
        _save_config(self._groups, is_synced=True)
        for table in self._tables:
            data = table.take_unsaved()
            if data is not None:
                try:
                    table.write(data)
                except OSError as error:
                    _note_failure(table, error)

    def _save_soon(self, table: TopicTable | SubscriptionGroups) -> None:
        """Many changes in one turn of the loop make one write at its end."""
        if not self._unsaved:
            asyncio.get_running_loop().call_soon(self._save_changed)
        self._unsaved.add(table)

    def _save_changed(self) -> None:
        unsaved, self._unsaved = self._unsaved, set()
        for table in unsaved:
            _save_config(table, is_synced=False)

    async def _save_repeatedly(self, table: SavedTable) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            data = table.take_unsaved()
            if data is None:
                continue
            writing = asyncio.get_running_loop().run_in_executor(None, table.write, data)
            try:
                await asyncio.shield(writing)
            except OSError as error:
                _note_failure(table, error)
            except asyncio.CancelledError:
                # save_all() writes the file itself, after this one is done.
                await asyncio.wait([writing])
                table.is_dirty = True
                raise


def _note_failure(table: SavedTable, error: OSError) -> None:
    table.is_dirty = True
    logger.error("offsets could not be written: %s", error)


def _save_config(table: TopicTable | SubscriptionGroups, *, is_synced: bool) -> None:
    try:
        table.save(is_synced=is_synced)
    except OSError as error:
        logger.error("a configuration file could not be written: %s", error)
