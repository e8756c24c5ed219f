"""Keep a slave's topics, groups, offsets and delay offsets level with its master's: asked for every 10 s.

Topics and groups are taken whole when their data version is another one. Consumer offsets are only raised: a
group that went on at this slave while the master was away does not go back. Delay offsets are for the next
start as master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.scheduled.delay_offsets import DelayOffsets, DelayOffsetTable
from iotmq.broker.tables.consumer_offsets import ConsumerOffsetTable
from iotmq.broker.tables.subscription_groups import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    check_group_name,
)
from iotmq.broker.tables.topics import TopicConfig, TopicConfigTable, check_topic_name
from iotmq.errors import IotmqError, RequestError
from iotmq.master_slave.master_calls import MasterCalls
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode

logger = logging.getLogger("iotmq.replication")

FIRST_S: Final = 3.0
INTERVAL_S: Final = 10.0
_KEY_BYTES_MAX: Final = limits.TOPIC_BYTES_MAX + 1 + limits.GROUP_BYTES_MAX


class MasterTables:
    """Asks for them; `poll` is one round."""

    def __init__(self, parts: BrokerParts, delay_offsets: DelayOffsets, calls: MasterCalls) -> None:
        self._parts = parts
        self._delay_offsets = delay_offsets
        self._calls = calls
        self._written = DelayOffsetTable()
        # The answer of this round, and one of a former round with the end of the master's log then.
        self._told_delays: DelayOffsetTable | None = None
        self._early_delays: tuple[int, DelayOffsetTable] | None = None
        self._has_failed = False
        # Where the master's log begins; None before it was asked.
        self.oldest_position: int | None = None
        self.polls_count = 0
        self.failures_count = 0
        self.left_out_count = 0

    async def poll_repeatedly(self) -> None:
        """Poll until cancelled."""
        await asyncio.sleep(FIRST_S)
        while True:
            if self._calls.has_address:
                await self.poll()
            await asyncio.sleep(INTERVAL_S)

    async def poll(self) -> None:
        """Ask for everything once. What one question lacks does not keep the others from being asked."""
        errors: list[Exception] = []
        steps: tuple[Callable[[], Awaitable[None]], ...] = (
            self._topics, self._groups, self._offsets, self._delays, self._range,
        )  # fmt: skip
        for step in steps:
            try:
                await step()
            except (IotmqError, OSError) as error:
                errors.append(error)
        self.polls_count += 1
        self.failures_count += bool(errors)
        if errors and not self._has_failed:
            logger.warning("the master's tables are not as they were asked for: %s", errors[0])
        elif self._has_failed and not errors:
            logger.info("the master tells its tables again")
        self._has_failed = bool(errors)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("polls_total", "Rounds of questions for the master's tables.", self.polls_count),
            ("failures_total", "Rounds in which something was not answered.", self.failures_count),
            ("left_out_total", "Entries that cannot be taken over.", self.left_out_count),
            prefix="iotmq_ha_slave_tables_",
        )

    async def _topics(self) -> None:
        table = await self._calls.table(RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigTable)
        topics = self._parts.topics
        if table.data_version == topics.version:
            return
        taken: dict[str, TopicConfig] = {}
        for name, config in table.topic_config_table.items():
            try:
                check_topic_name(name)
            except RequestError as error:
                self._leave_out(error)
                continue
            counts = (config.read_queue_nums, config.write_queue_nums)
            if config.topic_name != name or not all(
                0 <= count <= limits.QUEUES_PER_TOPIC_MAX for count in counts
            ):
                self._leave_out(f"topic {name} with {counts} queues")
            elif len(taken) == limits.TOPICS_MAX:
                self._leave_out(f"topic {name}: {limits.TOPICS_MAX} are the maximum")
            else:
                taken[name] = config
        topics.adopt(TopicConfigTable(data_version=table.data_version, topic_config_table=taken))

    async def _groups(self) -> None:
        code = RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG
        table = await self._calls.table(code, SubscriptionGroupTable)
        groups = self._parts.subscription_groups
        if table.data_version == groups.version:
            return
        taken: dict[str, SubscriptionGroupConfig] = {}
        for name, config in table.subscription_group_table.items():
            try:
                check_group_name(name)
            except RequestError as error:
                self._leave_out(error)
                continue
            if config.group_name != name or not 0 <= config.retry_queue_nums <= limits.QUEUES_PER_TOPIC_MAX:
                self._leave_out(f"group {name} with {config.retry_queue_nums} retry queues")
            elif len(taken) == limits.GROUPS_MAX:
                self._leave_out(f"group {name}: {limits.GROUPS_MAX} are the maximum")
            else:
                taken[name] = config
        groups.adopt(SubscriptionGroupTable(data_version=table.data_version, subscription_group_table=taken))

    async def _offsets(self) -> None:
        table = await self._calls.table(RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetTable)
        taken: dict[str, dict[int, int]] = {}
        for key, offsets in table.offset_table.items():
            if len(key.encode()) > _KEY_BYTES_MAX or key.count("@") != 1:
                self._leave_out(f"offsets of {key[:80]}")
                continue
            taken[key] = {
                queue_id: offset
                for queue_id, offset in offsets.items()
                if 0 <= queue_id < limits.QUEUES_PER_TOPIC_MAX and 0 <= offset <= limits.QUEUE_OFFSET_MAX
            }
        self._parts.offsets.raise_to(ConsumerOffsetTable(offset_table=taken))

    async def _delays(self) -> None:
        self._told_delays = None
        self._told_delays = await self._calls.table(RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsetTable)

    async def _range(self) -> None:
        """Ask for the master's log's begin and end; what was told of delays is true once the log is here.

        A master may have delivered what has not come yet. Were it taken for delivered, it would be lost.
        """
        oldest, end_position = await self._calls.log_range()
        self._note_oldest(oldest)
        confirmed_position = self._parts.store.confirmed_position
        early, told = self._early_delays, self._told_delays
        if told is not None and end_position <= confirmed_position:
            self._early_delays = None
            await self._write_delays(told)
            return
        if early is not None and early[0] <= confirmed_position:
            await self._write_delays(early[1])
            early = None
        if early is None and told is not None:
            early = end_position, told
        self._early_delays = early

    async def _write_delays(self, table: DelayOffsetTable) -> None:
        if table.offset_table != self._written.offset_table:
            await asyncio.to_thread(self._delay_offsets.write_copy, table)
            self._written = table

    def _note_oldest(self, position: int) -> None:
        end_position = self._parts.store.appended_position
        if position > end_position and position != self.oldest_position:
            logger.error(
                "the master's log begins at position %d by now, and the copy here ends at %d: "
                "it cannot go on. Start with an empty data directory for a new copy",
                position,
                end_position,
            )
        self.oldest_position = position

    def _leave_out(self, what: object) -> None:
        self.left_out_count += 1
        logger.debug("not taken over from the master: %s", what)
