"""The processors that change what a broker has, for operators and their tools, put together."""

from __future__ import annotations

from collections.abc import Callable, Collection

from iotmq.broker.access.acl import AccessControl
from iotmq.broker.handlers.admin.accounts import AclHandler
from iotmq.broker.handlers.admin.configuration import AdminHandler
from iotmq.broker.handlers.admin.queue_scaling import QueueScalingHandler
from iotmq.broker.handlers.admin.retention import RetentionHandler
from iotmq.broker.handlers.admin.settings import SettingsHandler
from iotmq.broker.handlers.admin.topic_removal import TopicRemovalHandler
from iotmq.broker.handlers.native.group_changes import GroupChangesHandler
from iotmq.broker.members.groups import Groups
from iotmq.broker.replies.request_table import RequestProcessor
from iotmq.broker.replies.sliced_reply import SlicedReplies
from iotmq.broker.scheduled.scheduling import DelayDelivery
from iotmq.broker.tables.changed_settings import ChangedSettings
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets
from iotmq.broker.tables.subscription_groups import SubscriptionGroups
from iotmq.broker.tables.topics import TopicTable
from iotmq.broker.topic_changes.topic_removal import TopicRemoval
from iotmq.clock import Clock
from iotmq.store.store import Store


class Administration:
    """`processors` are for the request table."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: Groups,
        subscription_groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        delays: DelayDelivery,
        access: AccessControl | None,
        changed_settings: ChangedSettings,
        long_answers: SlicedReplies,
        clock: Clock,
        *,
        system_topics: Collection[str],
        runtime_info: Callable[[], dict[str, str]],
        address: Callable[[], str],
        apply_settings: Callable[[], None],
    ) -> None:
        """`address()` is the broker's own, as HOST:PORT; `apply_settings` gives all parts new settings."""
        settings = changed_settings.broker
        self._removal = TopicRemoval(store, topics, offsets)
        self._removals = TopicRemovalHandler(self._removal, topics, own_topics=system_topics)
        self._accounts = AclHandler(
            access, clock, broker_name=settings.name, cluster=settings.cluster, broker_address=address
        )
        self.processors: list[RequestProcessor] = [
            self._accounts,
            RetentionHandler(store),
            AdminHandler(
                topics,
                subscription_groups,
                offsets,
                delays,
                broker_name=settings.name,
                cluster=settings.cluster,
                runtime_info=runtime_info,
            ),
            self._removals,
            GroupChangesHandler(
                store,
                topics,
                groups,
                subscription_groups,
                offsets,
                long_answers,
                broker_name=settings.name,
            ),
            QueueScalingHandler(store, topics, groups, offsets, own_topics=system_topics),
            SettingsHandler(changed_settings, clock, apply=apply_settings),
        ]

    def resume(self) -> None:
        """Go on with the removals of topics a stop has interrupted; before the first request."""
        self._removal.resume()

    def clean(self) -> None:
        """Remove what is left of topics that were removed."""
        self._removal.clean()

    async def finish_removals(self) -> None:
        """Return when every removal that was begun is on the disk and answered."""
        await self._removals.stop()

    async def finish_account_changes(self) -> None:
        """Return when every change of accounts that was begun is done."""
        await self._accounts.stop()
