"""Sends the messages of one request, those of a queue together, and writes their outcomes as JSON.

Operations: for each message a look-up of its topic, an element and a line of the answer; for each queue a
request to its broker. Goals: 300,000 messages a second with all the rest of a gateway on one core. Plan: what
messages of a topic have in common is made once (`publishing.Lane`); no coroutine, future or struct for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from iotmq.client.sending.producer import Producer
from iotmq.client.transport.message import SendResult
from iotmq.client.transport.routes import MessageQueue
from iotmq.console.api.problems import ProblemError, from_error
from iotmq.console.api.publishing import Publisher
from iotmq.errors import IotmqError
from iotmq.message.message_ids import UniqueKeys
from iotmq.message.properties import PROPERTY_END, encode_properties
from iotmq.message.records.record import encode_batch

# Well below what a broker takes in one request.
_BATCH_BYTES: Final = 1024 * 1024


class _Batch:
    """Messages of one queue: their elements, places in the request, and ids."""

    __slots__ = ("elements", "ids", "places", "queue", "size_bytes")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.elements: list[tuple[bytes, bytes, int]] = []
        self.places: list[int] = []
        self.ids: list[str] = []
        self.size_bytes = 0


class BatchPublisher:
    """Takes the messages of one request with `add`; `send` writes an outcome for each of them."""

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
        # Stands behind the unique key, whose end is its first byte.
        self._context = PROPERTY_END.encode() + encode_properties(context) if context else b""
        self._producer = producer
        self._outcomes: list[str] = [""] * count
        self._ids = iter(unique_keys.next_batch(count))
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._open: dict[MessageQueue, _Batch] = {}
        self._batches: list[_Batch] = []
        self.stored_count = 0

    async def prepare(self, mqtt_topic: str) -> None:
        """Look up the queues that `add` needs. IotmqError when that cannot be done."""
        lane = self._publisher.lane_of(mqtt_topic)
        if lane is not None:
            self._queues[lane.topic] = await self._producer.queues(lane.topic)

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
        queue = lane.queue_of(queues)
        batch = self._open.get(queue)
        if batch is None:
            batch = self._open[queue] = _Batch(queue)
            self._batches.append(batch)
        unique_key = next(self._ids)
        # The end of the last property may be left out.
        properties = lane.heads[2 * qos + is_retained] + unique_key.encode() + self._context
        batch.elements.append((payload, properties, 0))
        batch.places.append(place)
        batch.ids.append(unique_key)
        batch.size_bytes += len(payload)
        if batch.size_bytes >= _BATCH_BYTES:
            del self._open[queue]
        return True

    def refuse(self, place: int, problem: ProblemError) -> None:
        """Write why a message was not sent."""
        self._outcomes[place] = _problem(problem)

    def put(self, place: int, outcome: bytes, *, is_stored: bool) -> None:
        """Write the outcome of a message that went by itself."""
        self._outcomes[place] = outcome.decode()
        self.stored_count += is_stored

    async def send(self) -> None:
        """Send what was taken, and write the outcomes."""
        sending: list[tuple[_Batch, asyncio.Future[SendResult]]] = []
        for batch in self._batches:
            try:
                future = self._producer.send_encoded_batch_nowait(
                    batch.queue.topic, batch.queue, encode_batch(batch.elements), len(batch.places)
                )
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
        return f'{{"items":[{",".join(self._outcomes)}],"stored":{self.stored_count}}}'.encode()

    def _write_stored(self, batch: _Batch, result: SendResult) -> None:
        queue = result.queue
        topic = msgspec.json.encode(queue.topic).decode()
        broker = msgspec.json.encode(queue.broker_name).decode()
        middle = f'","topic":{topic},"broker":{broker},"queue":{queue.queue_id},"offset":'
        end = f',"status":"{result.status.name}"}}}}'
        outcomes = self._outcomes
        offset = result.queue_offset
        for place, message_id in zip(batch.places, batch.ids, strict=True):
            outcomes[place] = f'{{"stored":{{"message_id":"{message_id}{middle}{offset}{end}'
            offset += 1
        self.stored_count += len(batch.places)

    def _refuse_all(self, batch: _Batch, problem: ProblemError) -> None:
        text = _problem(problem)
        for place in batch.places:
            self._outcomes[place] = text


def _problem(problem: ProblemError) -> str:
    return f'{{"problem":{msgspec.json.encode(problem.document).decode()}}}'
