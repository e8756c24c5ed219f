"""Queue locks of consumers that keep order: codes 41 and 42."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.broker.broker_role import NOT_CURRENT
from iotmq.broker.filters.subscription import check_client_id
from iotmq.broker.members.queue_locks import MessageQueue, QueueLocks
from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.replies.reply_after_registration import WhenCopied
from iotmq.broker.replies.reply_body import reply_json
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.tables.subscription_groups import check_group_name
from iotmq.broker.tables.topics import TopicTable
from iotmq.errors import RequestError
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


class LockHandler(RequestProcessor):
    """Locks queues that exist, while there is room for locks.

    Locks outlive connections: a client that comes back in time keeps its queues. Where the broker is
    replicated they outlive the master, too: who holds a queue is told when the members in sync know it. A
    renewal reaches them within a second, which is little of the time a lock lasts.
    """

    def __init__(
        self,
        locks: QueueLocks,
        topics: TopicTable,
        *,
        when_copied: WhenCopied,
        is_current: Callable[[], bool],
    ) -> None:
        """`is_current` tells whether no other master can be giving the same locks."""
        self._locks = locks
        self._topics = topics
        self._when_copied = when_copied
        self._is_current = is_current
        # What the members in sync know of; nothing at first, since a former master may have told some only.
        self._copied_changes = -1

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.LOCK_BATCH_QUEUES: self._lock,
            RequestCode.UNLOCK_BATCH_QUEUES: self._unlock,
        }

    def _lock(self, connection: ServerConnection, request: Command) -> Command | None:
        asked = _decode(request)
        if not self._is_current():
            raise RequestError(ResponseCode.SYSTEM_BUSY, NOT_CURRENT)
        locked = self._locks.lock(asked.consumer_group, asked.client_id, self._existing(asked.mq_set))
        return self._answer(connection, request, reply_json(request, LockedQueues(locked=locked)))

    def _unlock(self, connection: ServerConnection, request: Command) -> Command | None:
        asked = _decode(request)
        self._locks.unlock(asked.consumer_group, asked.client_id, asked.mq_set)
        return self._answer(connection, request, request.reply(ResponseCode.SUCCESS))

    def _answer(self, connection: ServerConnection, request: Command, response: Command) -> Command | None:
        """Answer once the members in sync know who holds what now, or with an error when not in time."""
        changes = self._locks.changes_count
        if changes == self._copied_changes or request.is_oneway:
            return response
        answer = DeferredReply(connection, request)

        def copied(is_copied: bool) -> None:
            if is_copied:
                self._copied_changes = max(self._copied_changes, changes)
                answer.answer(response)
            else:
                remark = "not all members in sync have said that they know who holds the queues"
                answer.answer(request.reply(ResponseCode.SYSTEM_ERROR, remark=remark))

        self._when_copied(copied)
        return answer.now_or_later()

    def _existing(self, queues: Iterable[MessageQueue]) -> Iterator[MessageQueue]:
        """Yield those that are, a topic looked at once and not for each of its thousand queues."""
        counts: dict[tuple[str, str], int] = {}
        for queue in queues:
            key = queue.broker_name, queue.topic
            count = counts.get(key)
            if count is None:
                count = counts[key] = self._queue_count(*key)
            if 0 <= queue.queue_id < count:
                yield queue

    def _queue_count(self, broker_name: str, topic_name: str) -> int:
        topic = self._topics.find(topic_name)
        is_short = len(broker_name.encode("utf-8", "surrogatepass")) <= limits.LOCKED_BROKER_NAME_BYTES_MAX
        return topic.queue_count if topic is not None and is_short else 0


def _decode(request: Command) -> LockRequest:
    asked = lenient_json.decode_request(request.body, LockRequest)
    check_group_name(asked.consumer_group, "consumerGroup")
    check_client_id(asked.client_id)
    return asked
