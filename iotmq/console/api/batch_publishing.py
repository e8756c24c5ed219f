"""Sends the messages of one request, those of a queue together, and writes their outcomes as JSON.

Operations: for each message what `batch_elements` does; for each queue a part of a request to its broker,
which it shares with what others publish in the same turn of the loop. Goals: 300,000 messages a second with
all the rest of a gateway on one core. Plan: no coroutine, future or Python object for each message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from iotmq.client.sending.producer import Producer
from iotmq.client.transport.message import SendResult
from iotmq.client.transport.routes import MessageQueue
from iotmq.console.api.batch_elements import BatchElements, QueueBatch
from iotmq.console.api.problems import ProblemError, from_error
from iotmq.console.api.publishing import Publisher
from iotmq.errors import IotmqError
from iotmq.message.message_ids import UniqueKeys
from iotmq.message.properties import PROPERTY_END, encode_properties

if TYPE_CHECKING:
    from iotmq.console.api.batch_elements import Item


class BatchPublisher:
    """Takes the messages of one request with `take` and `add`; `send` writes an outcome for each of them."""

    def __init__(
        self,
        publisher: Publisher,
        producer: Producer,
        unique_keys: UniqueKeys,
        count: int,
        *,
        context: Mapping[str, str],
    ) -> None:
        """`count` messages come at most, with the properties of their trace."""
        self._publisher = publisher
        self._producer = producer
        self._outcomes: list[bytes] = [b""] * count
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._elements = BatchElements(
            publisher.lanes,
            self._queues,
            unique_keys,
            count,
            # Behind the unique key, whose end is its first byte.
            PROPERTY_END.encode() + encode_properties(context) if context else b"",
        )
        self.stored_count = 0

    async def prepare(self, mqtt_topic: str) -> None:
        """Look up the queues that `add` needs. IotmqError when that cannot be done."""
        lane = self._publisher.lane_of(mqtt_topic)
        if lane is not None:
            self._queues[lane.topic] = await self._producer.queues(lane.topic)

    def take(self, items: tuple[Item, ...], place: int) -> int:
        """Take messages from a place on; return the place of the first that `add` is needed for."""
        return self._elements.take(items, place)

    def add(self, place: int, mqtt_topic: str, payload: bytes, qos: int, *, is_retained: bool) -> bool | None:
        """Take a message; False for one that has to go by itself, None when `prepare` comes first.

        IotmqError when it cannot be sent.
        """
        lane = self._publisher.lane_of(mqtt_topic)
        if lane is None:
            return False
        queues = self._queues.get(lane.topic)
        if queues is None:
            return None
        if not queues:
            return False
        self._elements.add(place, lane, queues, payload, qos, is_retained=is_retained)
        return True

    def refuse(self, place: int, problem: ProblemError) -> None:
        """Write why a message was not sent."""
        self._outcomes[place] = _problem(problem)

    def put(self, place: int, outcome: bytes, *, is_stored: bool) -> None:
        """Write the outcome of a message that went by itself."""
        self._outcomes[place] = outcome
        self.stored_count += is_stored

    async def send(self) -> None:
        """Send what was taken, and write the outcomes."""
        sending: list[tuple[QueueBatch, asyncio.Future[SendResult]]] = []
        for batch in self._elements.batches:
            try:
                future = self._producer.send_elements_nowait(batch.queue, batch.elements, len(batch.places))
            except IotmqError as error:
                self._refuse_all(batch, from_error(error))
                continue
            sending.append((batch, future))
        for batch, future in sending:
            try:
                result = await future
            except (IotmqError, ConnectionError) as error:
                self._refuse_all(batch, from_error(error))
                continue
            self._write_stored(batch, result)

    @property
    def answer(self) -> bytes:
        """Return the outcomes of all messages, as the struct `Outcomes` has them."""
        return b'{"items":[%b],"stored":%d}' % (b",".join(self._outcomes), self.stored_count)

    def _write_stored(self, batch: QueueBatch, result: SendResult) -> None:
        queue = result.queue
        topic, broker = msgspec.json.encode(queue.topic), msgspec.json.encode(queue.broker_name)
        batch.write_stored(
            self._outcomes,
            b'","topic":%b,"broker":%b,"queue":%d,"offset":' % (topic, broker, queue.queue_id),
            result.queue_offset,
            b',"status":"%b"}}' % result.status.name.encode(),
        )
        self.stored_count += len(batch.places)

    def _refuse_all(self, batch: QueueBatch, problem: ProblemError) -> None:
        text = _problem(problem)
        for place in batch.places:
            self._outcomes[place] = text


def _problem(problem: ProblemError) -> bytes:
    return b'{"problem":%b}' % msgspec.json.encode(problem.document)
