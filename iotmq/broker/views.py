"""The processors that show what the broker has and does, put together; none of them changes anything."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from iotmq.broker.handlers.admin.connections import ConnectionHandler
from iotmq.broker.handlers.admin.consume_stats import ConsumeStatsHandler
from iotmq.broker.handlers.admin.queries import QueryHandler
from iotmq.broker.handlers.admin.statistics import StatisticsHandler
from iotmq.broker.members.groups import Groups
from iotmq.broker.replies.client_relay import RelayHandler
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.replies.request_table import RequestProcessor
from iotmq.broker.replies.sliced_reply import SlicedReplies
from iotmq.broker.statistics.statistics import Statistics
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets
from iotmq.broker.tables.topics import TopicTable
from iotmq.broker.topic_changes.consume_stats import ConsumeStats
from iotmq.clock import Clock
from iotmq.metrics import Metric
from iotmq.store.store import Store


class Views:
    """`processors` are for the request table."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: Groups,
        offsets: ConsumerOffsets,
        statistics: Statistics,
        cold_reads: ColdReads,
        clock: Clock,
        *,
        broker_name: str,
        cluster: str,
        system_topics: Collection[str],
        relay_timeout_s: float,
        address: Callable[[], str],
    ) -> None:
        """`address()` is the broker's own, as HOST:PORT."""
        stats = ConsumeStats(
            store, topics, groups, offsets, clock, broker_name=broker_name, get_tps=statistics.get_tps
        )
        self.long_answers = SlicedReplies(cold_reads)
        self._relays = RelayHandler(
            store, groups, cold_reads, broker_name=broker_name, timeout_s=relay_timeout_s
        )
        self.processors: list[RequestProcessor] = [
            ConnectionHandler(topics, groups, offsets, clock),
            ConsumeStatsHandler(store, topics, offsets, stats, self.long_answers, address=address),
            QueryHandler(store, topics, groups, self.long_answers),
            StatisticsHandler(
                statistics,
                stats.behind,
                self.long_answers,
                cluster=cluster,
                system_topics=system_topics,
                address=address,
            ),
            self._relays,
        ]

    def stop(self) -> None:
        """Work on no answer any more."""
        self.long_answers.stop()

    def metrics(self) -> Iterable[Metric]:
        yield from self.long_answers.metrics()
        yield from self._relays.metrics()
