"""Assemble the request processors of native clients: sends, pulls, timers, transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from iotmq import limits
from iotmq.broker.filters.consumer_filters import ConsumerFilters, FilterData
from iotmq.broker.handlers.native.batch_numbers import BatchNumberHandler
from iotmq.broker.handlers.native.clients import ClientHandler
from iotmq.broker.handlers.native.locks import LockHandler
from iotmq.broker.handlers.native.offset_moved import OffsetMovedEvents
from iotmq.broker.handlers.native.parked_pulls import ParkedPulls, Pull
from iotmq.broker.handlers.native.pop import PopHandler
from iotmq.broker.handlers.native.pop_acks import PopAckHandler
from iotmq.broker.handlers.native.pull import PullHandler
from iotmq.broker.handlers.native.request_modes import RequestModeHandler
from iotmq.broker.handlers.native.send import SendHandler
from iotmq.broker.handlers.native.send_back import SendBackHandler
from iotmq.broker.handlers.native.timers import TimerHandler
from iotmq.broker.handlers.native.transactions import TransactionHandler
from iotmq.broker.members.groups import CopiedConsumer
from iotmq.broker.members.queue_locks import CopiedLock, QueueLocks
from iotmq.broker.parts import BrokerParts
from iotmq.broker.pop.dead_letters import DeadLetters
from iotmq.broker.pop.pops import Pops
from iotmq.broker.pop.states import PopStates
from iotmq.broker.questions.device_replies import DeviceReplies
from iotmq.broker.questions.replies import ReplyHandler
from iotmq.broker.registration.registration import QueuesFound
from iotmq.broker.replies.reply_after_registration import WhenCopied, WhenTold
from iotmq.broker.replies.request_table import RequestProcessor
from iotmq.broker.scheduled.scheduling import DelayDelivery, DelayOffsetTable
from iotmq.broker.tables.copied_table import CopiedByKey, CopiedTable, CopiedWhole
from iotmq.broker.tables.table_files import TableFiles
from iotmq.broker.transactions.transaction_checks import TransactionChecks
from iotmq.broker.transactions.transactions import Transactions
from iotmq.metrics import Metric


class NativeProcessors:
    """`processors` are for the request table."""

    def __init__(
        self,
        parts: BrokerParts,
        files: TableFiles,
        *,
        when_told: WhenTold,
        when_copied: WhenCopied,
        find_queues: Callable[[str, QueuesFound], None],
    ) -> None:
        self.cold_reads = parts.cold_reads
        self.delays = DelayDelivery(parts)
        self.transactions = Transactions(parts, self.delays.divert_committed)
        self.transaction_checks = TransactionChecks(parts, self.transactions)
        self.transaction_ends = TransactionHandler(parts, self.transactions)
        self.replies = ReplyHandler(parts)
        self.device_replies = DeviceReplies(self.replies, parts)
        self.sends = SendHandler(
            parts,
            self.delays,
            self.transactions,
            when_told=when_told,
            when_topics_saved=files.when_topics_saved,
        )
        self.filters = ConsumerFilters(
            parts.config / "consumerFilter.json",
            parts.clock,
            is_enabled=parts.settings.property_filter_enabled,
        )
        self.locks = QueueLocks(parts.clock)
        self.parked_pulls: ParkedPulls[Pull] = ParkedPulls(lambda: parts.settings.held_pulls_max)
        self._offset_moved = OffsetMovedEvents(parts)
        self.pulls = PullHandler(
            parts, self.parked_pulls, self.filters, offset_moved=self._offset_moved.moved
        )
        pop_states = PopStates(parts.store.key_values())
        parts.store.add_projection(pop_states)
        self._pops = Pops(parts, pop_states)
        self._pop_requests = PopHandler(parts, self._pops, self.filters)
        self._dead_letters = DeadLetters(parts, self._pops, self._pop_requests.wake_after)
        self._groups = parts.groups
        self._clients = ClientHandler(parts, self.filters)
        self.processors: list[RequestProcessor] = [
            self.sends,
            SendBackHandler(parts, self.delays),
            self.transaction_ends,
            self.replies,
            self.device_replies,
            BatchNumberHandler(parts),
            TimerHandler(self.delays.timers, parts.topics, broker_name=parts.settings.name),
            self.pulls,
            self._pop_requests,
            PopAckHandler(self._pops, self._pop_requests.wake_after),
            RequestModeHandler(parts, self._pops, find_queues=find_queues, tell=self._clients.tell),
            self._clients,
            LockHandler(self.locks, parts.topics, when_copied=when_copied, is_current=parts.role.is_current),
        ]
        parts.writer.add_dispatch_listener(self.pulls.wake)
        parts.writer.add_dispatch_listener(self._pop_requests.wake)

    @property
    def pops(self) -> Pops:
        """Return what groups have popped."""
        return self._pops

    def copied(self) -> list[CopiedTable]:
        """Return the tables that are copied to followers, least urgent first."""
        return [
            CopiedWhole("filters", self.filters, FilterData, entries_max=limits.CONSUMER_FILTERS_MAX),
            CopiedWhole("delay offsets", self.delays.offsets, DelayOffsetTable, entries_max=1),
            CopiedByKey("consumers", self._groups, CopiedConsumer),
            CopiedByKey("queue locks", self.locks, CopiedLock),
        ]

    def restore(self) -> None:
        """Find open transactions in the log, and the consumers of a former master; before requests."""
        self.filters.start()
        self._clients.restore()
        self.transactions.start()
        self._pops.restore()

    def start(self) -> None:
        """Deliver what is due, and ask producers after their transactions; the writer is open."""
        self.transaction_checks.start()
        self.delays.start()
        self._pops.start()

    def stop(self) -> None:
        """Answer no parked pull any more, and do nothing by itself."""
        self.pulls.stop()
        self._pop_requests.stop()
        self._pops.stop()
        self._dead_letters.stop()
        self.delays.stop()
        self.transaction_checks.stop()
        self.transactions.stop()

    def expire(self) -> None:
        """Do everything whose time has come by the clock."""
        self.pulls.expire()
        self._pops.expire()
        self._dead_letters.bury()
        self._pop_requests.expire()
        self.delays.deliver()
        self.transaction_checks.expire()

    def expire_members(self) -> None:
        """Forget clients that are silent, and the filters and locks nobody renews."""
        self._clients.expire()
        self.filters.expire()
        self.locks.expire()

    def metrics(self) -> Iterable[Metric]:
        for part in (
            self.sends,
            self.delays,
            self.transactions,
            self.transaction_checks,
            self.transaction_ends,
            self.replies,
            self.pulls,
            self.parked_pulls,
            self._pops,
            self._pop_requests,
            self._dead_letters,
            self.cold_reads,
            self.filters,
            self._offset_moved,
        ):
            yield from part.metrics()
