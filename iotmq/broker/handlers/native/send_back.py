"""Consumers giving a message back to try it later: code 36 (wire document 10.2)."""

from __future__ import annotations

import random
from collections.abc import Mapping

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.scheduled.delivery_time import DeliveryTime
from iotmq.broker.scheduled.given_back import given_back_properties
from iotmq.broker.scheduled.scheduling import DelayDelivery
from iotmq.broker.tables.subscription_groups import SubscriptionGroupConfig, known_group
from iotmq.broker.tables.topics import DLQ_PREFIX, RETRY_PREFIX
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.broker.writing.stored_reply import StoredReply
from iotmq.errors import RefusedError, RequestError
from iotmq.message.records.record import Record, decode_record, property_value
from iotmq.remoting.codes import RequestCode, ResponseCode, Version
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

# The first attempt waits for level 3 (10 s), each further one a level longer.
_FIRST_RETRY_LEVEL = 3
_INT32_MAX = 2**31 - 1


class SendBackHandler(RequestProcessor):
    """Stores a copy for the group alone: in its retry topic, or in its dead letters after too many tries."""

    def __init__(self, parts: BrokerParts, delivery: DelayDelivery) -> None:
        self._parts = parts
        self._store = parts.store
        self._writer = parts.writer
        self._topics = parts.topics
        self._subscription_groups = parts.subscription_groups
        self._message_ids = parts.message_ids
        self._levels = delivery.levels
        self._delivery = delivery
        self._cold_reads = parts.cold_reads
        self._statistics = parts.statistics

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MESSAGE_BACK: self._send_back}

    def _send_back(self, connection: ServerConnection, request: Command) -> Command | None:
        position = request.integer("offset", minimum=0)
        group_name = request.text("group")
        level = request.integer("delayLevel", minimum=-_INT32_MAX, maximum=_INT32_MAX)
        group = known_group(self._subscription_groups, group_name, "group")
        if not self._parts.settings.is_writable:
            raise RequestError(ResponseCode.NO_PERMISSION, "this broker does not take messages")
        if group.retry_queue_nums <= 0:
            return request.reply(ResponseCode.SUCCESS)
        answer = StoredReply(connection, request)

        def read(view: memoryview | None) -> None:
            if view is None:
                raise RefusedError(f"the field offset is {position}, where no record starts")
            self._store_again(request, group, level, decode_record(view), answer)

        self._cold_reads.finish(self._store.record_steps(position), read, answer.refuse)
        return answer.now_or_later()

    def _store_again(
        self,
        request: Command,
        group: SubscriptionGroupConfig,
        level: int,
        record: Record,
        answer: StoredReply,
    ) -> None:
        """Store the copy; RequestError when it cannot be."""
        group_name = group.group_name
        times_max = group.retry_max_times
        if request.version >= Version.HONOURS_MAX_RECONSUME_TIMES:
            times_max = request.integer(
                "maxReconsumeTimes", times_max, minimum=-_INT32_MAX, maximum=_INT32_MAX
            )
        properties = given_back_properties(record, self._message_ids)

        if record.reconsume_times >= times_max or level < 0:
            level = 0
            properties += b"DELAY\x010"
            topic = self._topics.ensure(DLQ_PREFIX + group_name, queues=1).topic_name
            queue_id = 0
        else:
            level = self._levels.clamp(level or _FIRST_RETRY_LEVEL + record.reconsume_times)
            retry = self._topics.ensure(RETRY_PREFIX + group_name, queues=group.retry_queue_nums)
            topic = retry.topic_name
            queue_id = random.randrange(min(group.retry_queue_nums, retry.write_queue_nums))
        if level:
            waiting = self._delivery.timers.divert(
                topic, queue_id, properties, DeliveryTime(level=level), is_counted=False
            )
            topic, queue_id, properties = waiting[:3]
        if len(properties) > limits.PROPERTIES_BYTES_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the properties of the message have no room for those of a retry",
            )
        original_topic = (property_value(properties, b"RETRY_TOPIC") or b"").decode("utf-8", "replace")

        def done(result: StoredBatch | RefusedBatch) -> None:
            if isinstance(result, StoredBatch):
                self._statistics.counters.count_send_back(original_topic, group_name)
            answer(result)

        self._writer.append(
            topic,
            queue_id,
            encode_element(record.body, properties, record.flag),
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host,
            sys_flag=record.sys_flag,
            reconsume_times=min(record.reconsume_times + 1, _INT32_MAX),
            done=done,
        )
