"""Keeping the files under `config/` level with the tables they hold.

Topics, groups and changed settings are written whenever they change (config_saver.py); what changes with
every message consumed is written every few seconds. Both off the loop. A disk that takes nothing does not
stop a broker from serving what it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from iotmq import limits
from iotmq.broker.tables.changed_settings import CHANGEABLE, Change, ChangedSettings
from iotmq.broker.tables.config_saver import ConfigSaver, Saved
from iotmq.broker.tables.copied_table import CopiedByKey, CopiedTable, CopiedWhole
from iotmq.broker.tables.deleted_topics import DeletedTopic
from iotmq.broker.tables.subscription_groups import CopiedGroup, SubscriptionGroups
from iotmq.broker.tables.topics import CopiedTopic, TopicTable
from iotmq.errors import StoreError
from iotmq.metrics import Metric
from iotmq.supervised import to_its_end

logger = logging.getLogger(__name__)


class SavedTable(Protocol):
    """A table whose file is written every few seconds, off the loop."""

    is_dirty: bool

    def take_unsaved(self) -> bytes | None: ...

    def write(self, data: bytes) -> None: ...


class TableFiles:
    """The files of `topics`, `groups` and `settings`, and those of further tables, written now and then."""

    def __init__(self, topics: TopicTable, groups: SubscriptionGroups, settings: ChangedSettings) -> None:
        self._topics = ConfigSaver("topics.json", topics)
        self._groups = ConfigSaver("subscriptionGroup.json", groups)
        self._settings = ConfigSaver("brokerSettings.json", settings)
        self._savers = (self._topics, self._groups, self._settings)
        self._tables: list[SavedTable] = []
        self._kept = topics, groups, settings
        topics.add_listener(lambda name: self._topics.changed())
        groups.add_listener(lambda name: self._groups.changed())
        settings.add_listener(self._settings.changed)

    def copied(self) -> list[CopiedTable]:
        """Return the tables as they are copied to followers; a file follows what is taken."""
        topics, groups, settings = self._kept
        return [
            CopiedWhole(
                "settings",
                settings,
                tuple[str, Change],
                entries_max=len(CHANGEABLE),
                replaced=self._settings.changed,
            ),
            CopiedByKey("topics", topics, CopiedTopic, replaced=self._topics.changed),
            CopiedWhole(
                "deleted topics",
                topics.deleted,
                tuple[str, DeletedTopic],
                entries_max=limits.DELETED_TOPICS_MAX,
            ),
            CopiedByKey("groups", groups, CopiedGroup, replaced=self._groups.changed),
        ]

    def add(self, tables: Iterable[SavedTable]) -> None:
        """Write these, too."""
        self._tables += tables

    def when_topics_saved(self, saved: Saved) -> None:
        """Tell when topics.json has every topic as it is now, or the disk's refusal."""
        self._topics.when_saved(saved)

    def save_topics(self) -> None:
        """Write the topics as they are at the start; `savers` write what changes from then on."""
        self._topics.save()

    def groups_changed(self) -> None:
        """Have the groups written, whose data version has changed and nothing else."""
        self._groups.changed()

    @property
    def is_behind(self) -> bool:
        """Return whether a change of topics, groups or settings is not on the disk yet."""
        return any(saver.is_behind for saver in self._savers)

    def when_saved(self, saved: Saved) -> None:
        """Tell when every change until now is on the disk, or the first problem with that."""
        left = [saver for saver in self._savers if saver.is_behind]
        if not left:
            saved(None)
            return
        errors: list[OSError | None] = []

        def one_saved(error: OSError | None) -> None:
            errors.append(error)
            if len(errors) == len(left):
                saved(next((error for error in errors if error is not None), None))

        for saver in left:
            saver.when_saved(one_saved)

    def follower_savers(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """`savers`, and one for deletions, which a master has on the disk before it answers."""
        return [*self.savers(), partial(self._save_repeatedly, self._kept[0].deleted)]

    def savers(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """One for each file; cancelled before `save_all`."""
        return [
            *(saver.run for saver in self._savers),
            *(partial(self._save_repeatedly, table) for table in self._tables),
        ]

    def save_all(self) -> None:
        """Write whatever is not on the disk."""
        self._topics.save()
        self._groups.save()
        if self._settings.is_behind:
            self._settings.save()
        for table in (*self._tables, self._kept[0].deleted):
            try:
                data = table.take_unsaved()
                if data is not None:
                    table.write(data)
            except (OSError, StoreError) as error:
                # The others are written all the same: what one says may need a database that is closed.
                _note_failure(table, error)

    def metrics(self) -> Iterable[Metric]:
        for saver in self._savers:
            yield from saver.metrics()

    async def _save_repeatedly(self, table: SavedTable) -> None:
        while True:
            await asyncio.sleep(self._kept[2].broker.offsets_interval_s)
            data = table.take_unsaved()
            if data is None:
                continue
            writing = asyncio.get_running_loop().run_in_executor(None, table.write, data)
            try:
                # save_all() writes the file itself, after this one is done.
                await to_its_end(writing)
            except OSError as error:
                _note_failure(table, error)
            except asyncio.CancelledError:
                table.is_dirty = True
                raise


def _note_failure(table: SavedTable, error: OSError | StoreError) -> None:
    table.is_dirty = True
    logger.error("offsets could not be written: %s", error)
