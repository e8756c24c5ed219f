"""Everything native clients store messages through, put together: sends, delays, transactions, replies."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from iotmq.broker.exactly_once.stored_once import StoredOnce
from iotmq.broker.handlers.native.send import SendHandler
from iotmq.broker.handlers.native.send_back import SendBackHandler
from iotmq.broker.handlers.native.timers import TimerHandler
from iotmq.broker.handlers.native.transactions import TransactionHandler
from iotmq.broker.members.groups import Groups
from iotmq.broker.questions.device_replies import DeviceReplies
from iotmq.broker.questions.replies import ReplyHandler
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.replies.reply_after_registration import WhenTold
from iotmq.broker.replies.request_table import RequestProcessor
from iotmq.broker.scheduled.scheduling import DelayDelivery, DelayLevels
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.statistics.statistics import Statistics
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets
from iotmq.broker.tables.subscription_groups import SubscriptionGroups
from iotmq.broker.tables.topics import TopicTable
from iotmq.broker.transactions.transaction_checks import TransactionChecks
from iotmq.broker.transactions.transactions import Transactions
from iotmq.broker.writing.message_ids import OffsetMessageIds
from iotmq.broker.writing.message_writer import MessageWriter
from iotmq.clock import Clock
from iotmq.metrics import Metric
from iotmq.store.store import Store


class Sending:
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
        stored_once: StoredOnce,
        cold_reads: ColdReads,
        clock: Clock,
        settings: BrokerSettings,
        *,
        host: bytes,
        delay_offsets: Path,
        when_told: WhenTold,
    ) -> None:
        """`host` is what records carry as the host they were stored at, `delay_offsets` a file."""
        message_ids = OffsetMessageIds(host)
        delay_levels = DelayLevels(settings.delay_levels, clock)
        self.delays = DelayDelivery(
            store,
            writer,
            delay_levels,
            delay_offsets,
            clock,
            host=host,
            broker_name=settings.name,
            pending_max=settings.timers_pending_max,
        )
        self.transactions = Transactions(
            store,
            writer,
            offsets,
            clock,
            host=host,
            divert=self._divert,
            pending_max=settings.transactions_pending_max,
        )
        self.transaction_checks = TransactionChecks(
            store,
            self.transactions,
            groups,
            message_ids,
            cold_reads,
            clock,
            timeout_s=settings.transaction_timeout_s,
            interval_s=settings.transaction_check_interval_s,
            checks_max=settings.transaction_checks_max,
            age_max_s=store.settings.retention_hours * 3600,
        )
        self.transaction_ends = TransactionHandler(store, self.transactions, cold_reads)
        self.replies = ReplyHandler(
            writer,
            topics,
            groups,
            message_ids,
            clock,
            host=host,
            cluster=settings.cluster,
            region=settings.region,
            is_tracing_allowed=settings.is_tracing_allowed,
            is_writable=settings.is_writable,
            stores_replies=settings.store_replies,
        )
        self.device_replies = DeviceReplies(
            self.replies,
            writer,
            clock,
            host=host,
            cluster=settings.cluster,
            stores_replies=settings.store_replies,
        )
        self.sends = SendHandler(
            writer,
            topics,
            subscription_groups,
            message_ids,
            self.delays,
            stored_once,
            broker_name=settings.name,
            cluster=settings.cluster,
            region=settings.region,
            is_tracing_allowed=settings.is_tracing_allowed,
            is_writable=settings.is_writable,
            transactions=self.transactions,
            when_told=when_told,
        )
        self._send_backs = SendBackHandler(
            store,
            writer,
            topics,
            subscription_groups,
            message_ids,
            delay_levels,
            self.delays,
            cold_reads,
            statistics=statistics,
            is_writable=settings.is_writable,
        )
        self.processors: list[RequestProcessor] = [
            self.sends,
            self._send_backs,
            self.transaction_ends,
            self.replies,
            self.device_replies,
            TimerHandler(self.delays.timers, topics, broker_name=settings.name),
        ]

    def restore(self) -> None:
        """Find the transactions that are open in the log; before the first request."""
        self.transactions.start()

    def start(self) -> None:
        """Deliver what is due, and ask producers after their transactions; the writer is open."""
        self.transaction_checks.start()
        self.delays.start()

    def stop(self) -> None:
        """Nothing more is done by itself."""
        self.delays.stop()
        self.transaction_checks.stop()
        self.transactions.stop()

    def expire(self) -> None:
        """Do everything whose time has come by the clock."""
        self.delays.deliver()
        self.transaction_checks.expire()

    def apply_settings(self, settings: BrokerSettings) -> None:
        """Take the values that may change while the broker runs."""
        for part in (self.sends, self._send_backs, self.replies):
            part.is_writable = settings.is_writable
        self.sends.trace_on = self.replies.trace_on = "true" if settings.is_tracing_allowed else "false"

    def metrics(self) -> Iterable[Metric]:
        for part in (
            self.sends,
            self.delays,
            self.transactions,
            self.transaction_checks,
            self.transaction_ends,
            self.replies,
        ):
            yield from part.metrics()

    def _divert(self, topic: str, queue_id: int, properties: bytes) -> tuple[str, int, bytes]:
        """Where a committed message goes: to its queue, or to wait for its time first."""
        wish = self.delays.timers.read_wish(properties)
        if not wish.level and not wish.due_ms:
            return topic, queue_id, properties
        return self.delays.timers.divert(topic, queue_id, properties, wish, is_counted=False)[:3]
