"""Assemble the request processors that operators and their tools use."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from iotmq.broker.access.acl import AccessControl
from iotmq.broker.assemble.native import NativeProcessors
from iotmq.broker.handlers.admin.accounts import AclHandler
from iotmq.broker.handlers.admin.configuration import AdminHandler
from iotmq.broker.handlers.admin.connections import ConnectionHandler
from iotmq.broker.handlers.admin.consume_stats import ConsumeStatsHandler
from iotmq.broker.handlers.admin.deletion import RetentionHandler, TopicRemovalHandler
from iotmq.broker.handlers.admin.queries import QueryHandler
from iotmq.broker.handlers.admin.queue_scaling import QueueScalingHandler
from iotmq.broker.handlers.admin.runtime_info import RuntimeInfo
from iotmq.broker.handlers.admin.statistics import StatisticsHandler
from iotmq.broker.handlers.admin.topic_status import TopicStatusHandler
from iotmq.broker.handlers.native.group_changes import GroupChangesHandler
from iotmq.broker.handlers.native.offsets import OffsetHandler
from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.client_relay import RelayHandler
from iotmq.broker.replies.request_table import RequestProcessor
from iotmq.broker.replies.sliced_reply import SlicedReplies
from iotmq.broker.topic_changes.ephemeral_groups import EphemeralGroups
from iotmq.broker.topic_changes.group_lag import GroupLag
from iotmq.broker.topic_changes.group_progress import GroupProgress
from iotmq.broker.topic_changes.topic_removal import TopicRemoval
from iotmq.metrics import Metric


class AdminProcessors:
    """`processors` are for the request table."""

    def __init__(
        self,
        parts: BrokerParts,
        native: NativeProcessors,
        access: AccessControl | None,
        *,
        address: Callable[[], str],
    ) -> None:
        """`address()` is the broker's own, as HOST:PORT."""
        progress = GroupProgress(parts, native.pops)
        self.group_lag = GroupLag(parts, progress)
        self._sliced_replies = sliced_replies = SlicedReplies(parts.cold_reads)
        self._relays = RelayHandler(
            parts.store,
            parts.groups,
            parts.cold_reads,
            broker_name=parts.settings.name,
            timeout_s=parts.settings.relay_timeout_s,
        )
        self.runtime_info = RuntimeInfo(parts, native.pulls, native.delays.offsets.progress)
        self._removal = TopicRemoval(parts)
        self._removals = TopicRemovalHandler(parts, self._removal)
        self._ephemeral = EphemeralGroups(
            parts, native.filters, self._removal, topics_deleted=self._removals.save
        )
        self._accounts = AclHandler(
            access,
            parts.clock,
            broker_name=parts.settings.name,
            cluster=parts.settings.cluster,
            broker_address=address,
            is_member=parts.role.is_member,
        )
        self.processors: list[RequestProcessor] = [
            sliced_replies,
            ConnectionHandler(parts),
            ConsumeStatsHandler(parts, progress, sliced_replies, address=address),
            TopicStatusHandler(parts, sliced_replies),
            QueryHandler(parts, sliced_replies),
            StatisticsHandler(parts, progress.behind, sliced_replies, address=address),
            self._relays,
            OffsetHandler(parts, sliced_replies),
            self._accounts,
            RetentionHandler(parts.store),
            AdminHandler(parts, native.delays.offsets, self.runtime_info.table),
            self._removals,
            GroupChangesHandler(parts, native.pops, sliced_replies),
            QueueScalingHandler(parts),
        ]

    def resume(self) -> None:
        """Go on with the removals of topics and groups a stop has interrupted; before the first request."""
        self._removal.resume()
        self._ephemeral.resume()

    def clean(self) -> None:
        """Remove what is left of topics that were removed, and groups that nobody came back to."""
        self._removal.clean()
        self._ephemeral.clean()

    async def finish_removals(self) -> None:
        """Return when every removal that was begun is on the disk and answered."""
        await self._removals.stop()

    def stop(self) -> None:
        """Work on no sliced reply any more."""
        self._sliced_replies.stop()

    async def finish_account_changes(self) -> None:
        """Return when every change of accounts that was begun is done."""
        await self._accounts.stop()

    def metrics(self) -> Iterable[Metric]:
        yield from self._sliced_replies.metrics()
        yield from self._ephemeral.metrics()
        yield from self._relays.metrics()
        yield from self.group_lag.metrics()
