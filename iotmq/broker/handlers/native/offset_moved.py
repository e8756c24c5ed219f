"""Messages in OFFSET_MOVED_EVENT, about consumers that asked for an offset their queue does not have."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from iotmq import limits
from iotmq.broker.members.queue_locks import MessageQueue
from iotmq.broker.parts import BrokerParts
from iotmq.broker.tables.topics import OFFSET_MOVED_TOPIC
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.message.properties import KEYS, TAGS, encode_properties
from iotmq.metrics import Metric, samples


class OffsetMovedEvent(msgspec.Struct, kw_only=True, rename="camel"):
    """The body of one event."""

    consumer_group: str
    message_queue: MessageQueue
    offset_new: int
    offset_request: int


class OffsetMovedEvents:
    """Writes an event for each offset that was moved, up to so many in a second: a broken consumer would
    otherwise fill the log at the speed it asks."""

    def __init__(self, parts: BrokerParts) -> None:
        self._writer = parts.writer
        self._clock = parts.clock
        self._broker_name = parts.settings.name
        self._host = parts.host
        self._second = 0
        self._in_second = 0
        self.events_count = 0
        self.suppressed_count = 0

    def moved(self, group: str, topic: str, queue_id: int, asked_offset: int, next_offset: int) -> None:
        """A group asked for `asked_offset` of a queue and is told to go on at `next_offset`."""
        second = int(self._clock.monotonic_s())
        if second != self._second:
            self._second = second
            self._in_second = 0
        if self._in_second >= limits.OFFSET_MOVED_EVENTS_PER_S_MAX:
            self.suppressed_count += 1
            return
        self._in_second += 1
        event = OffsetMovedEvent(
            consumer_group=group,
            message_queue=MessageQueue(broker_name=self._broker_name, queue_id=queue_id, topic=topic),
            offset_new=next_offset,
            offset_request=asked_offset,
        )
        self._writer.append(
            OFFSET_MOVED_TOPIC,
            0,
            encode_element(msgspec.json.encode(event), encode_properties({TAGS: group, KEYS: group}), 0),
            born_timestamp_ms=self._clock.now_ms(),
            born_host=self._host,
            done=self._stored,
            waits_for_flush=False,
            is_internal=True,
        )

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            (
                "iotmq_broker_offset_moved_events_total",
                "Events about consumers whose offset was moved.",
                self.events_count,
            ),
            (
                "iotmq_broker_suppressed_offset_moved_events_total",
                "Events not written because there were too many, or the log took none.",
                self.suppressed_count,
            ),
        )

    def _stored(self, result: StoredBatch | RefusedBatch) -> None:
        if isinstance(result, RefusedBatch):
            self.suppressed_count += 1
        else:
            self.events_count += 1
