"""Look at brokers: their runtime information, their statistics, and the contents of their topics."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from iotmq.client.admin.asking import Asking
from iotmq.client.admin.groups import ConsumeStatsAnswer, GroupProgress
from iotmq.client.transport.message import check_topic
from iotmq.client.transport.queue_tables import by_queue
from iotmq.client.transport.routes import MessageQueue
from iotmq.remoting.codes import RequestCode, ResponseCode


class Statistic(msgspec.Struct, frozen=True, kw_only=True):
    """Hold a statistic over a time: the sum, the rate per second, and the average per call."""

    sum: int = 0
    tps: float = 0.0
    average: float = msgspec.field(name="avgpt", default=0.0)


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's statistic of one name and key over the last minute, hour and day."""

    minute: Statistic = msgspec.field(name="statsMinute", default=Statistic())
    hour: Statistic = msgspec.field(name="statsHour", default=Statistic())
    day: Statistic = msgspec.field(name="statsDay", default=Statistic())


class QueueContent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Hold the offsets of a queue: from `min_offset` up to, not including, `max_offset`."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


class BrokerProgress(NamedTuple):
    """The progress of all groups of one broker: a GroupProgress for each of their topics."""

    groups: dict[str, list[GroupProgress]]
    behind: int


class BrokerViews(Asking):
    """Asks about brokers through a client that is started; changes nothing."""

    async def runtime_info(self, broker_names: Collection[str] = ()) -> dict[str, dict[str, str]]:
        """Return the runtime information by broker name (keys: docs/reference/wire-protocol.md)."""
        tables = await self._of_masters(
            _Table,
            RequestCode.GET_BROKER_RUNTIME_INFO,
            doing="asking for runtime info",
            broker_names=broker_names,
        )
        return {name: found.table for name, found in tables.items()}

    async def statistics(
        self, name: str, key: str, broker_names: Collection[str] = ()
    ) -> dict[str, Statistics]:
        """Return statistics by broker, of a name such as TOPIC_PUT_NUMS and a key such as a topic.

        Brokers that counted nothing under it are left out.
        """
        return await self._of_masters(
            Statistics,
            RequestCode.VIEW_BROKER_STATS_DATA,
            {"statsName": name, "statsKey": key},
            doing=f"asking for {name} of {key}",
            broker_names=broker_names,
            none_codes=(ResponseCode.SYSTEM_ERROR,),
        )

    async def progress(self, broker_name: str, *, is_order: bool = False) -> BrokerProgress:
        """Return the progress of a broker's groups; with `is_order` only in topics that keep an order."""
        table = await self._of_master(
            _ConsumeStatsList,
            broker_name,
            RequestCode.GET_BROKER_CONSUME_STATS,
            {"isOrder": "true" if is_order else "false"},
            doing=f"asking broker {broker_name} how far its groups are",
        )
        groups = {
            group: [
                GroupProgress(queues=by_queue(part.offset_table), consume_tps=part.consume_tps)
                for part in parts
            ]
            for entry in table.consume_stats_list
            for group, parts in entry.items()
        }
        return BrokerProgress(groups, table.total_diff)

    async def system_topics(self) -> list[str]:
        """List the topics that brokers made for themselves, sorted."""
        lists = await self._of_masters(
            _TopicList, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, doing="listing system topics"
        )
        return sorted({topic for found in lists.values() for topic in found.topic_list})

    async def topic_content(self, topic: str) -> dict[MessageQueue, QueueContent]:
        """Return the offsets of every queue of a topic, and when its last message was stored."""
        check_topic(topic)
        tables = await self._of_masters(
            _TopicStats,
            RequestCode.GET_TOPIC_STATS_INFO,
            {"topic": topic},
            doing=f"asking what topic {topic} holds",
            none_codes=(ResponseCode.TOPIC_NOT_EXIST,),
        )
        return by_queue(
            {key: content for table in tables.values() for key, content in table.offset_table.items()}
        )


class _Table(msgspec.Struct):
    table: dict[str, str] = {}


class _ConsumeStatsList(msgspec.Struct, kw_only=True, rename="camel"):
    consume_stats_list: list[dict[str, list[ConsumeStatsAnswer]]] = []
    total_diff: int = 0


class _TopicList(msgspec.Struct, kw_only=True, rename="camel"):
    topic_list: list[str] = []


class _TopicStats(msgspec.Struct, kw_only=True, rename="camel"):
    offset_table: dict[str, QueueContent] = {}
