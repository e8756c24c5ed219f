"""Batches of MQTT front ends whose messages wait for a time each (`$delayed/SECONDS/TOPIC`)."""

from __future__ import annotations

from typing_extensions import Buffer

from iotmq.broker.scheduled.delivery_time import NOW
from iotmq.broker.scheduled.timers import Timers
from iotmq.broker.tables.topics import TIMER_TOPIC
from iotmq.broker.writing.message_writer import Done, MessageWriter, RefusedBatch
from iotmq.broker.writing.single_message_batch import split_elements
from iotmq.clock import Clock
from iotmq.errors import RequestError
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import ResponseCode


class DelayedBatches:
    """Stores messages to wait, a batch as one append; the timers deliver them."""

    def __init__(self, timers: Timers, writer: MessageWriter, clock: Clock) -> None:
        self._timers = timers
        self._writer = writer
        self._clock = clock

    def append(self, topic: str, queue_id: int, elements: Buffer, *, born_host: bytes, done: Done) -> None:
        """Store the batch; `done` is called once, as by the writer.

        Refused are, as a whole, a batch with a message that does not say for how long it waits, and one for
        which too many messages wait already (TOO_MANY_WAITING).
        """
        now_ms = self._clock.now_ms()
        waiting: list[tuple[bytes, bytes, int]] = []
        try:
            for body, properties, flag in split_elements(elements):
                delivery_time = self._timers.read_delivery_time(properties)
                if delivery_time is NOW or not delivery_time.due_ms:
                    raise RequestError(
                        ResponseCode.MESSAGE_ILLEGAL, "a delayed message without TIMER_DELAY_SEC"
                    )
                stored = self._timers.divert(
                    topic, queue_id, properties, delivery_time, is_counted=True, also_waiting=len(waiting)
                )
                waiting.append((body, stored.properties, flag))
        except MessageFormatError as error:
            done(RefusedBatch(ResponseCode.MESSAGE_ILLEGAL, str(error)))
            return
        except RequestError as error:
            is_full = error.code == ResponseCode.SERVICE_NOT_AVAILABLE
            # Not the code of a broker that is busy: what its sender could only repeat would hold up others.
            done(RefusedBatch(ResponseCode.TOO_MANY_WAITING if is_full else error.code, str(error)))
            return
        self._writer.append(
            TIMER_TOPIC,
            0,
            encode_batch(waiting),
            born_timestamp_ms=now_ms,
            born_host=born_host,
            done=done,
            is_patient=True,
            is_internal=True,
        )
