"""Publish how far a stream is, as the offsets of a consumer group.

Nobody reads them back: the checkpoint alone says where a stream goes on. They tell brokers which records
somebody has still to read, for removing queues and for `store.protect_unconsumed`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from iotmq.bridge.cluster import Address, Cluster
from iotmq.bridge.offsets import QueueKey, StreamOffset
from iotmq.errors import IotmqError
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

_log = logging.getLogger("iotmq.bridge")


class Progress:
    """Tell brokers how far one stream is. Where that is refused it is tried again, and the stream goes on."""

    def __init__(self, group_id: str, group_prefix: str) -> None:
        """`group_id` names the group; without one it is the prefix with the stream's own id."""
        self._group_id = group_id
        self._group_prefix = group_prefix
        self._published: dict[QueueKey, int] = {}
        self._refusals: dict[str, str] = {}  # of each broker, what was said about it last

    def group_of(self, offset: StreamOffset) -> str:
        """Return the name of the group."""
        return self._group_id or f"{self._group_prefix}-{offset.stream_id}"

    @property
    def is_unknown(self) -> bool:
        """Return whether nothing was published yet."""
        return not self._published

    def publish(self, cluster: Cluster, addresses: Mapping[str, Address], offset: StreamOffset) -> None:
        """Commit what is read up to `offset`, where that has changed."""
        group = self.group_of(offset)
        by_broker: dict[str, list[QueueKey]] = {}
        for key, number in offset.offsets.items():
            if self._published.get(key) != number and key.broker in addresses:
                by_broker.setdefault(key.broker, []).append(key)
        for broker, keys in by_broker.items():
            requests = [_commit(group, key, offset.offsets[key]) for key in keys]
            refusal = ""
            try:
                answers = cluster.ask_once(broker, addresses[broker], requests)
                for key, answer in zip(keys, answers, strict=True):
                    if answer.code == ResponseCode.SUCCESS:
                        self._published[key] = offset.offsets[key]
                    elif answer.code != ResponseCode.TOPIC_NOT_EXIST:
                        refusal = answer.remark or f"code {answer.code}"
            except (OSError, IotmqError) as error:
                refusal = str(error)
            self._say(broker, group, refusal)

    def _say(self, broker: str, group: str, refusal: str) -> None:
        if refusal and self._refusals.get(broker) != refusal:
            _log.warning("broker %s does not take the progress of group %s: %s", broker, group, refusal)
        self._refusals[broker] = refusal


def _commit(group: str, key: QueueKey, offset: int) -> Command:
    return Command.request(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {
            "consumerGroup": group,
            "topic": key.topic,
            "queueId": str(key.queue_id),
            "commitOffset": str(offset),
        },
    )
