"""How far behind chosen groups are, for /metrics: looked at every few seconds, not with each scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.tables.topics import TopicConfig
from iotmq.broker.topic_changes.group_progress import GroupProgress
from iotmq.errors import RequestError
from iotmq.event_loop import LoopSlice
from iotmq.metrics import Metric, samples
from iotmq.store.queues.cold_steps import Steps

LOOK_S: Final = 10.0
"""Between two looks."""


class _Lag(NamedTuple):
    messages: int
    # Since the oldest of them was stored.
    seconds: float


class GroupLag:
    """Looks at the groups of broker.lag_groups; pairs of group and topic past the maximum are counted."""

    def __init__(self, parts: BrokerParts, progress: GroupProgress) -> None:
        self._parts = parts
        self._progress = progress
        # (group, topic) -> how far behind it was.
        self._lags: dict[tuple[str, str], _Lag] = {}
        self._left_out_count = 0

    async def look_repeatedly(self) -> None:
        """Look every few seconds while there are groups to look at."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look at all of them, some queues in each turn of the loop."""
        turn = LoopSlice()
        lags: dict[tuple[str, str], _Lag] = {}
        left_out_count = queue_count = 0
        for group, config in self._chosen():
            queue_count += config.queue_count
            if len(lags) == limits.LAG_PAIRS_MAX or queue_count > limits.LAG_QUEUES_MAX:
                left_out_count += 1
                continue
            lag = await self._finished(self._of_topic(group, config))
            if lag is not None:
                lags[group, config.topic_name] = lag
            if not turn.take():
                await asyncio.sleep(0)
                turn = LoopSlice()
        self._lags, self._left_out_count = lags, left_out_count

    def metrics(self) -> Iterable[Metric]:
        """Report what was seen last."""
        if not self._parts.settings.lag_groups:
            return
        text = "Pairs of group and topic that broker.lag_groups names and that are too many."
        yield from samples(("iotmq_broker_group_lag_left_out", text, self._left_out_count))
        for (group, topic), lag in self._lags.items():
            yield from samples(
                (
                    "iotmq_broker_group_lag_messages",
                    "Messages a group of broker.lag_groups has not consumed.",
                    lag.messages,
                ),
                (
                    "iotmq_broker_group_lag_seconds",
                    "Age of the oldest message a group of broker.lag_groups has not consumed.",
                    lag.seconds,
                ),
                labels=(("group", group), ("topic", topic)),
            )

    def _chosen(self) -> Iterable[tuple[str, TopicConfig]]:
        patterns = self._parts.settings.lag_groups
        if not patterns:
            return
        for topic, group in self._parts.offsets.each_pair():
            if any(fnmatchcase(group, pattern) for pattern in patterns):
                for config in self._progress.consumed(group, (topic,)):
                    yield group, config

    def _of_topic(self, group: str, config: TopicConfig) -> Steps[_Lag]:
        messages, milliseconds = 0, 0
        for queue_id in range(config.read_queue_nums):
            queue = self._parts.store.find_queue(config.topic_name, queue_id)
            offset = self._parts.offsets.find(group, config.topic_name, queue_id)
            if queue is None or offset is None:
                continue
            messages += max(0, queue.max_offset - max(offset, queue.min_offset))
            behind = yield from self._progress.behind(config.topic_name, queue_id, group)
            if behind is not None:
                milliseconds = max(milliseconds, behind[1])
        return _Lag(messages, milliseconds / 1000)

    async def _finished(self, steps: Steps[_Lag]) -> _Lag | None:
        """Return the answer of the steps; None when the disk is too busy or does not give it."""
        answer: asyncio.Future[_Lag | None] = asyncio.get_running_loop().create_future()

        def done(lag: _Lag | None) -> None:
            if not answer.done():
                answer.set_result(lag)

        def refused(_: RequestError) -> None:
            done(None)

        self._parts.cold_reads.finish(steps, done, refused)
        return await answer
