"""Keep the expressions consumer groups filter by, compiled, and consumerFilter.json (wire document 5.5).

A heartbeat registers the SQL92 subscriptions of its groups; a pull that brings no expression of its own
uses what its group registered. A group without a live consumer keeps its filters for a day, so that it
finds them again after a restart of either side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from iotmq import limits
from iotmq.broker.filters.property_filter import PropertyFilter
from iotmq.broker.filters.sql import parse_sql
from iotmq.broker.filters.sql_tree import SQL_EXPRESSION
from iotmq.broker.filters.subscription import SubscriptionData
from iotmq.broker.tables.config_files import DataVersion, DirtyTable
from iotmq.clock import Clock
from iotmq.errors import RefusedError, RequestError
from iotmq.event_loop import LoopSlice, NextTurn
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import ResponseCode

_KEPT_MS: Final = 24 * 3_600 * 1_000
# Subscriptions that wait for a turn of the loop; more of them come with the next heartbeat.
_LATE_MAX: Final = 1_024


class FilterData(msgspec.Struct, kw_only=True, rename="camel"):
    """One group's filter on one topic, as the file holds it. `dead_time` 0: the group has a live consumer."""

    topic: str
    consumer_group: str
    expression: str
    expression_type: str = SQL_EXPRESSION
    born_time: int = 0
    dead_time: int = 0
    client_version: int = 0


class TopicFilters(msgspec.Struct, kw_only=True, rename="camel"):
    """Group -> filter on one topic."""

    topic: str = ""
    group_filter_data: dict[str, FilterData] = {}


class _FilterFile(msgspec.Struct, kw_only=True, rename="camel"):
    filter_data_by_topic: dict[str, TopicFilters] = {}

    def each(self) -> Iterator[FilterData]:
        """Yield the filters."""
        for by_group in self.filter_data_by_topic.values():
            yield from by_group.group_filter_data.values()


class ConsumerFilters(DirtyTable):
    """Which filters groups registered. `is_dirty` says that the file is behind the table."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        is_enabled: bool,
        filters_max: int = limits.CONSUMER_FILTERS_MAX,
    ) -> None:
        super().__init__(path)
        self._clock = clock
        self._is_enabled = is_enabled
        self._filters_max = filters_max
        # Group -> topic -> filter: what a heartbeat and a pull look for.
        self._by_group: dict[str, dict[str, FilterData]] = {}
        self._count = 0
        self._late: deque[tuple[str, SubscriptionData]] = deque()
        self._next_turn = NextTurn(self._register_late)
        self.refused_count = 0
        # Counts changes, for who copies the table.
        self._changes_count = 0
        for data in (self._file.read(_FilterFile) or _FilterFile()).each():
            self._put(data)
        self.start()

    def __len__(self) -> int:
        return self._count

    def start(self) -> None:
        """Note that no consumer is there yet; those that come back say so."""
        now_ms = self._clock.now_ms()
        for by_topic in self._by_group.values():
            for data in by_topic.values():
                data.dead_time = data.dead_time or now_ms

    def register(
        self, group: str, subscriptions: Iterable[SubscriptionData], turn: LoopSlice | None = None
    ) -> None:
        """Take the subscriptions of a group's heartbeat.

        An expression that cannot be parsed is not taken; pulls are told so (27). An older version of a
        subscription changes nothing while the group lives. What `turn` has no room for, because to parse an
        expression takes milliseconds, is taken in the turns of the loop that follow.
        """
        known = self._by_group.get(group)
        wanted: set[str] = set()
        for subscription in subscriptions:
            if not subscription.is_by_tag:
                wanted.add(subscription.topic)
                is_long = len(subscription.expression) > limits.FILTER_EXPRESSION_BYTES_MAX
                if turn is None or is_long or turn.take():
                    self._register_one(group, subscription)
                elif len(self._late) < _LATE_MAX:
                    self._register_later(group, subscription)
        if known:
            for topic, data in known.items():
                if topic not in wanted and not data.dead_time:
                    data.dead_time = self._clock.now_ms()
                    self._changed()

    def _register_later(self, group: str, subscription: SubscriptionData) -> None:
        self._late.append((group, subscription))
        self._next_turn.schedule()

    def _register_late(self) -> None:
        """Register some of the late subscriptions."""
        turn = LoopSlice()
        while self._late and turn.take():
            self._register_one(*self._late.popleft())
        if self._late:
            self._next_turn.schedule()

    def group_left(self, group: str) -> None:
        """The group's last consumer is gone: forget its filters in a day."""
        if any(name == group for name, _ in self._late):
            self._late = deque(late for late in self._late if late[0] != group)
        for data in self._by_group.get(group, {}).values():
            if not data.dead_time:
                data.dead_time = self._clock.now_ms()
                self._changed()

    def forget_group(self, group: str) -> None:
        """Forget the filters of a group now."""
        self.group_left(group)
        gone = self._by_group.pop(group, {})
        self._count -= len(gone)
        if gone:
            self._changed()

    def of_request(self, expression_type: str, expression: str) -> PropertyFilter:
        """The filter a request brings. RequestError: 1 for a type not served, 23 for a wrong expression."""
        self._check_type(expression_type)
        return compile_filter(expression)

    def of_group(self, group: str, subscription: SubscriptionData) -> PropertyFilter:
        """Return the filter a group registered for the topic of its subscription.

        RequestError: 1 for a type not served, 27 when nothing is registered, 28 when something older is.
        """
        self._check_type(subscription.expression_type or "")
        data = self._by_group.get(group, {}).get(subscription.topic)
        if data is None:
            raise RequestError(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"no filter of group {group} on topic {subscription.topic} is registered: is its expression "
                f"right? {_problem(subscription.expression)}",
            )
        if data.client_version < subscription.sub_version:
            raise RequestError(
                ResponseCode.FILTER_DATA_NOT_LATEST,
                f"the filter registered of group {group} on topic {subscription.topic} is of version "
                f"{data.client_version}, the subscription of version {subscription.sub_version}: "
                f"{_problem(subscription.expression)}",
            )
        return compile_filter(data.expression)

    def check(self, subscription: SubscriptionData) -> None:
        """RequestError (1 or 23) for a subscription that pulls would not be served by."""
        if not subscription.is_by_tag:
            self.of_request(subscription.expression_type or "", subscription.sub_string or "")

    def expire(self) -> None:
        """Forget the filters of groups that left a day ago; call now and then."""
        horizon_ms = self._clock.now_ms() - _KEPT_MS
        for group, by_topic in list(self._by_group.items()):
            for topic, data in list(by_topic.items()):
                if 0 < data.dead_time <= horizon_ms:
                    del by_topic[topic]
                    self._count -= 1
                    self._changed()
            if not by_topic:
                del self._by_group[group]

    # What followers are sent, and take (copied_table.WholeTable)

    @property
    def stamp(self) -> int:
        """Return another number after each change."""
        return self._changes_count

    def copied_entries(self) -> list[FilterData]:
        return [data for by_topic in self._by_group.values() for data in by_topic.values()]

    def replace(self, filters: Sequence[FilterData], version: DataVersion) -> None:
        """Hold exactly a master's filters. RequestError (1) when one cannot be; then nothing has changed."""
        for data in filters:
            if len(data.expression) > limits.FILTER_EXPRESSION_BYTES_MAX:
                raise RefusedError(
                    f"the filter of group {data.consumer_group} on topic {data.topic} has "
                    f"{len(data.expression)} characters, more than {limits.FILTER_EXPRESSION_BYTES_MAX}"
                )
        self._late.clear()
        self._by_group.clear()
        self._count = 0
        for data in filters:
            self._put(data)
        self._changed()

    def encode(self) -> bytes:
        """Return the table as the file holds it."""
        document = _FilterFile(filter_data_by_topic={})
        topics = document.filter_data_by_topic
        for group, by_topic in self._by_group.items():
            for topic, data in by_topic.items():
                if topic not in topics:
                    topics[topic] = TopicFilters(topic=topic, group_filter_data={})
                topics[topic].group_filter_data[group] = data
        return msgspec.json.encode(document)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            (
                "iotmq_broker_consumer_filters",
                "Filters by property that consumer groups registered.",
                self._count,
            ),
            (
                "iotmq_broker_consumer_filters_refused_total",
                "Filters by property not registered: not understood, or too many.",
                self.refused_count,
            ),
        )

    def _register_one(self, group: str, subscription: SubscriptionData) -> None:
        topic, version = subscription.topic, subscription.sub_version
        known = self._by_group.get(group, {}).get(topic)
        if known is not None and version <= known.client_version:
            if not known.dead_time:
                return
            # Nobody else speaks for the group: what is left of it has to give way, whatever clocks say.
            if known.expression == subscription.sub_string:
                known.dead_time = 0
                known.client_version = version
                self._changed()
                return
        try:
            self.check(subscription)
            if known is None and self._count >= self._filters_max:
                raise RefusedError(f"{self._filters_max} filters are the maximum of this broker")
        except RequestError:
            self.refused_count += 1
            return
        self._put(
            FilterData(
                topic=topic,
                consumer_group=group,
                expression=subscription.sub_string or "",
                expression_type=subscription.expression_type or SQL_EXPRESSION,
                born_time=self._clock.now_ms(),
                client_version=version,
            )
        )
        self._changed()

    def _changed(self) -> None:
        self._changes_count += 1
        self.is_dirty = True

    def _put(self, data: FilterData) -> None:
        by_topic = self._by_group.setdefault(data.consumer_group, {})
        self._count += data.topic not in by_topic
        by_topic[data.topic] = data

    def _check_type(self, expression_type: str) -> None:
        if not self._is_enabled:
            raise RefusedError(
                f"this broker does not filter by {expression_type[:40]!a}: "
                "broker.property_filter_enabled is off"
            )
        if expression_type != SQL_EXPRESSION:
            raise RefusedError(
                f"the field expressionType is {expression_type[:40]!a}; TAG and {SQL_EXPRESSION} are served"
            )


def compile_filter(expression: str) -> PropertyFilter:
    """The filter of an expression, from a bounded cache. Raises RequestError (23) naming what is wrong."""
    found = _parsed(expression)
    if isinstance(found, str):
        raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, found)
    return found


def _parsed(expression: str) -> PropertyFilter | str:
    """Compile through the cache; overlong texts, which are refused, stay out of it."""
    is_cached = len(expression) <= limits.FILTER_EXPRESSION_BYTES_MAX
    return _compiled(expression) if is_cached else _compiled.__wrapped__(expression)


@lru_cache(maxsize=limits.FILTER_CACHE_MAX)
def _compiled(expression: str) -> PropertyFilter | str:
    # What is wrong is remembered, too: a consumer with a wrong expression pulls again and again.
    try:
        return PropertyFilter(parse_sql(expression))
    except RequestError as error:
        return str(error)


def _problem(expression: str) -> str:
    found = _parsed(expression)
    return found if isinstance(found, str) else "it may come with the next heartbeat"
