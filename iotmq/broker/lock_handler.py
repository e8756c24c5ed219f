"""Queue locks of consumers that keep order: codes 41 and 42."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.broker.heartbeat import check_client_id
from iotmq.broker.queue_locks import MessageQueue, QueueLocks
from iotmq.broker.request_table import Handler
from iotmq.broker.subscription_groups import check_group_name
from iotmq.broker.topics import TopicTable
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection


class LockRequest(msgspec.Struct, kw_only=True, rename="camel"):
    """The body of both codes."""

    client_id: str
    consumer_group: str
    mq_set: Annotated[list[MessageQueue], Meta(max_length=limits.LOCKED_QUEUES_PER_REQUEST_MAX)] = []


class LockedQueues(msgspec.Struct, kw_only=True):
    """The answer to code 41."""

    locked: list[MessageQueue] = msgspec.field(name="lockOKMQSet")


class LockHandler:
    """Locks queues that exist, while there is room for locks."""

    def __init__(self, locks: QueueLocks, topics: TopicTable) -> None:
        self._locks = locks
        self._topics = topics

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_QUEUES: self._lock,
            RequestCode.UNLOCK_BATCH_QUEUES: self._unlock,
        }

    def connection_lost(self, connection: ServerConnection) -> None:
        """Locks outlive connections: a client that comes back in time keeps its queues."""

    def _lock(self, connection: ServerConnection, request: Command) -> Command | None:
        asked = _decode(request)
        queues = [queue for queue in asked.mq_set if self._exists(queue)]
        locked = self._locks.lock(asked.consumer_group, asked.client_id, queues) if queues else []
        return request.reply(ResponseCode.SUCCESS, body=msgspec.json.encode(LockedQueues(locked=locked)))

    def _unlock(self, connection: ServerConnection, request: Command) -> Command | None:
        asked = _decode(request)
        self._locks.unlock(asked.consumer_group, asked.client_id, asked.mq_set)
        return request.reply(ResponseCode.SUCCESS)

    def _exists(self, queue: MessageQueue) -> bool:
        topic = self._topics.find(queue.topic)
        return (
            topic is not None
            and 0 <= queue.queue_id < topic.queue_count
            and len(queue.broker_name.encode("utf-8", "surrogatepass")) <= limits.LOCKED_BROKER_NAME_BYTES_MAX
        )


def _decode(request: Command) -> LockRequest:
    asked = lenient_json.decode_request(request.body, LockRequest)
    check_group_name(asked.consumer_group, "consumerGroup")
    check_client_id(asked.client_id)
    return asked
