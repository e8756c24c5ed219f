"""Everything native clients consume through, put together: heartbeats, pulls, locks, filters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from iotmq.broker.filters.consumer_filters import ConsumerFilters
from iotmq.broker.handlers.native.clients import ClientHandler
from iotmq.broker.handlers.native.filters import FilterHandler
from iotmq.broker.handlers.native.locks import LockHandler
from iotmq.broker.handlers.native.offset_moved import OffsetMovedEvents
from iotmq.broker.handlers.native.parked_pulls import ParkedPulls
from iotmq.broker.handlers.native.pull import PullHandler
from iotmq.broker.members.groups import Groups
from iotmq.broker.members.queue_locks import QueueLocks
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.replies.request_table import RequestProcessor
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.statistics.statistics import Statistics
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets
from iotmq.broker.tables.subscription_groups import SubscriptionGroups
from iotmq.broker.tables.topics import TopicTable
from iotmq.broker.writing.message_writer import MessageWriter
from iotmq.clock import Clock
from iotmq.metrics import Metric
from iotmq.store.store import Store


class Consuming:
    """`processors` are for the request table."""

    def __init__(
        self,
        store: Store,
        writer: MessageWriter,
        topics: TopicTable,
        groups: Groups,
        subscription_groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        statistics: Statistics,
        cold_reads: ColdReads,
        clock: Clock,
        settings: BrokerSettings,
        *,
        host: bytes,
        filters_file: Path,
    ) -> None:
        """`host` is what records carry as the host they were stored at."""
        self.filters = ConsumerFilters(filters_file, clock, is_enabled=settings.property_filter_enabled)
        self.locks = QueueLocks(clock)
        self.holds = ParkedPulls(held_max=settings.held_pulls_max)
        self.cold_reads = cold_reads
        self._offset_moved = OffsetMovedEvents(writer, clock, broker_name=settings.name, host=host)
        self.pulls = PullHandler(
            store,
            topics,
            groups,
            subscription_groups,
            offsets,
            self.holds,
            self.cold_reads,
            clock,
            filters=self.filters,
            is_readable=settings.is_readable,
            statistics=statistics,
            offset_moved=self._offset_moved.moved,
        )
        self._clients = ClientHandler(groups, subscription_groups, topics, self.filters)
        self.processors: list[RequestProcessor] = [
            self.pulls,
            self._clients,
            LockHandler(self.locks, topics),
            FilterHandler(self.filters),
        ]
        writer.add_dispatch_listener(self.pulls.wake)

    def stop(self) -> None:
        """Answer nobody who waits any more."""
        self.pulls.stop()

    def expire(self) -> None:
        """Forget clients that are silent, and the filters and locks nobody renews."""
        self._clients.expire()
        self.filters.expire()
        self.locks.expire()

    def apply_settings(self, settings: BrokerSettings) -> None:
        """Take the values that may change while the broker runs."""
        self.pulls.is_readable = settings.is_readable
        self.holds.held_max = settings.held_pulls_max

    def metrics(self) -> Iterable[Metric]:
        for part in (self.pulls, self.holds, self.cold_reads, self.filters, self._offset_moved):
            yield from part.metrics()
