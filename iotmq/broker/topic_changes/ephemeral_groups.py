"""Let ephemeral groups go with their last member, and all that is theirs with them.

A group is ephemeral by its name. When its last member says goodbye it goes at once, and when the last one was
lost, a minute later: long enough to come back after a lost connection or a restart of the broker. With it go
its configuration, offsets and filters, what it has popped, and its retry and dead letter topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from iotmq.broker.filters.consumer_filters import ConsumerFilters
from iotmq.broker.parts import BrokerParts
from iotmq.broker.tables.topics import DLQ_PREFIX, RETRY_PREFIX, ephemeral_group_of, is_ephemeral
from iotmq.broker.topic_changes.topic_removal import TopicRemoval
from iotmq.errors import RequestError
from iotmq.event_loop import SomePerTurn
from iotmq.metrics import Metric, samples

logger = logging.getLogger(__name__)

_KEPT_S: Final = 60.0
# Each is up to two deletions of topics.
_PER_TURN: Final = 4


class EphemeralGroups:
    """Remembers which ephemeral groups have no member, and removes them. For the event loop's thread."""

    def __init__(
        self,
        parts: BrokerParts,
        filters: ConsumerFilters,
        removal: TopicRemoval,
        *,
        topics_deleted: Callable[[], None],
    ) -> None:
        """`topics_deleted` has the deletions written to the disk."""
        self._clock = parts.clock
        self._groups = parts.groups
        self._subscription_groups = parts.subscription_groups
        self._offsets = parts.offsets
        self._topics = parts.topics
        self._filters = filters
        self._removal = removal
        self._topics_deleted = topics_deleted
        # Groups that may have no member, with the time since when; a follower's are its master's.
        self._left_s: dict[str, float] = {}
        self._is_master = False
        self._going: SomePerTurn[str] = SomePerTurn(self._remove, _PER_TURN)
        self.removed_total = 0
        parts.groups.add_end_listener(self._ended)
        parts.subscription_groups.add_listener(self._noticed)
        parts.offsets.add_listener(self._noticed)
        parts.topics.add_listener(self._topic_changed)

    def resume(self) -> None:
        """Begin as the master: what is left of groups has time for members that come back."""
        self._is_master = True
        for name in self._subscription_groups.names():
            self._noticed(name)
        for _, name in self._offsets.each_pair():
            self._noticed(name)
        for topic in self._topics.names():
            self._topic_changed(topic)

    def clean(self) -> None:
        """Remove the groups that nobody came back to; call every ten seconds or so."""
        horizon_s = self._clock.monotonic_s() - _KEPT_S
        for name, left_s in list(self._left_s.items()):
            if self._groups.consumer_group(name) is not None:
                del self._left_s[name]
            elif left_s <= horizon_s:
                self._going.add(name)

    def metrics(self) -> Iterable[Metric]:
        text = "Ephemeral groups that were removed because they had no member any more."
        return samples(("iotmq_broker_ephemeral_groups_removed_total", text, self.removed_total))

    def _ended(self, name: str, *, is_goodbye: bool) -> None:
        if not is_ephemeral(name):
            return
        self._left_s[name] = self._clock.monotonic_s()
        if is_goodbye:
            self._going.add(name)

    def _noticed(self, name: str) -> None:
        if self._is_master and is_ephemeral(name):
            self._left_s.setdefault(name, self._clock.monotonic_s())

    def _topic_changed(self, topic: str) -> None:
        group = ephemeral_group_of(topic)
        if group is not None and self._topics.find(topic) is not None:
            self._noticed(group)

    def _remove(self, name: str) -> None:
        if self._groups.consumer_group(name) is not None or name not in self._left_s:
            return
        try:
            for topic in (RETRY_PREFIX + name, DLQ_PREFIX + name):
                if self._topics.find(topic) is not None:
                    self._removal.delete(topic)
        except RequestError as error:
            logger.warning("ephemeral group %s is removed later: %s", name, error)
            return
        self._topics_deleted()
        self._subscription_groups.delete(name)
        self._offsets.forget_group(name)
        self._filters.forget_group(name)
        # Last: the changes of before have named it once more.
        del self._left_s[name]
        self.removed_total += 1
        logger.info("ephemeral group %s had no member any more and is removed", name)
