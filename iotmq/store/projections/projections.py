"""The projections of one store: those it always has, and those its owner adds; and the database of some."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from iotmq.errors import StoreCorruptError, StoreError
from iotmq.metrics import Metric
from iotmq.store.log.timer_record import WAITING_TOPICS
from iotmq.store.projections.catch_up import CatchUpProgress, CatchUpReport, catch_up
from iotmq.store.projections.projection import DurableProjection, Projection, RewindableProjection

if TYPE_CHECKING:
    from iotmq.store.kv.kv import KeyValueStore
    from iotmq.store.kv.timer_index import TimerIndex
    from iotmq.store.log.commit_log import CommitLog
    from iotmq.store.log.queue import Queue
    from iotmq.store.projections.dispatch import Dispatch
    from iotmq.store.queues.consume_queue import ConsumeQueue
    from iotmq.store.settings import StoreSettings

P = TypeVar("P", bound=Projection)

logger = logging.getLogger("iotmq.store")


class Projections:
    """Keep the projections that `dispatch` feeds besides the queues. Adding one brings it level first."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueue,
        dispatch: Dispatch,
        settings: StoreSettings,
        *,
        directory: Path,
        verify: Callable[[int], int],
    ) -> None:
        """`verify` checks a piece of the log that was not checked yet, and returns where the piece ends."""
        self._log = log
        self._queues = queues
        self._dispatch = dispatch
        self._settings = settings
        self._directory = directory
        self._verify = verify
        # Opened by the first use: most processes have no projection in it.
        self._key_values: KeyValueStore | None = None
        self._timers: TimerIndex | None = None

    def __iter__(self) -> Iterator[Projection]:
        return iter(self._dispatch.projections)

    @property
    def is_behind(self) -> bool:
        """Return whether a projection has not applied all that is confirmed."""
        confirmed_position = self._dispatch.confirmed_position
        return any(projection.applied_position < confirmed_position for projection in self)

    def add(self, projection: Projection, progress: CatchUpProgress | None) -> None:
        """As `Store.add_projection`."""
        if self._dispatch.confirmed_position < projection.applied_position <= self._log.appended_position:
            # Of a log that is replicated. Nothing is applied that was not confirmed.
            self._dispatch.run(projection.applied_position)
        end_position = self._dispatch.confirmed_position
        if projection.applied_position > end_position:
            if not isinstance(projection, RewindableProjection):
                raise StoreCorruptError(
                    f"projection {projection.name} has applied up to {projection.applied_position}, "
                    f"but the log ends at {end_position}; delete it and it will be rebuilt"
                )
            projection.rewind(end_position, self._log.min_position)
        start_position = max(projection.applied_position, self._log.min_position)
        report = CatchUpReport(projection.name, start_position, end_position, progress)
        catch_up(self._log, projection, end_position, verify=self._verify, progress=report)
        self._dispatch.projections.append(projection)

    def add_key_value(self, make: Callable[[KeyValueStore], P], progress: CatchUpProgress | None) -> P:
        """As `Store.add_key_value_projection`."""
        key_values = self.key_values()
        projection = make(key_values)
        try:
            self.add(projection, progress)
        except StoreCorruptError as error:
            # Damage that only writing has met. Nothing in there is worth a start that fails.
            logger.warning("%s is damaged and starts over from the log: %s", key_values.directory, error)
            key_values.start_over()
            projection = make(key_values)
            self.add(projection, progress)
        return projection

    def key_values(self) -> KeyValueStore:
        """Return the database, opened by the first call. Raises StoreError."""
        if self._key_values is None:
            # A process that needs none should not pay for it.
            from iotmq.store.kv.kv import KV_DIRECTORY, KeyValueStore

            self._key_values = KeyValueStore(
                self._directory / KV_DIRECTORY,
                cache_bytes=self._settings.kv_cache_bytes,
                write_buffer_bytes=self._settings.kv_write_buffer_bytes,
            )
        return self._key_values

    def timers(self, progress: CatchUpProgress | None) -> TimerIndex:
        """Return the messages that wait for a time, kept from the first call on. Raises StoreError."""
        if self._timers is None:
            from iotmq.store.kv.timer_index import TimerIndex

            timers = TimerIndex(self.key_values())
            if timers.applied_position == 0 and not any(map(_has_waiting, self._queues.queues())):
                # A large log where nothing ever waited need not be gone through.
                timers.clear(self._dispatch.confirmed_position)
                with suppress(StoreError):
                    # Only so that a crash does not have the log gone through after all.
                    timers.sync()
            self.add(timers, progress)
            self._timers = timers
        return self._timers

    def close(self) -> None:
        """Close the database. What cannot be written now is taken from the log at the next start."""
        if self._key_values is None:
            return
        for projection in self:
            if isinstance(projection, DurableProjection):
                try:
                    projection.sync()
                except StoreError as error:
                    logger.warning("projection %s was not brought to the disk: %s", projection.name, error)
        self._key_values.close()
        self._key_values = None

    def metrics(self) -> Iterable[Metric]:
        """Of the database, while there is one."""
        return () if self._key_values is None else self._key_values.metrics()


def _has_waiting(queue: Queue) -> bool:
    """Return whether there are records in it that wait for a time, or did."""
    return queue.topic in WAITING_TOPICS and queue.max_offset > queue.min_offset
