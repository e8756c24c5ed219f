"""Dead letters: messages a consumer group gave up on, in the topic ``%DLQ%group``.

They are looked at, sent to their original topic again, and exported. Nothing is deleted: dead letters stay
until retention takes them. How far a bulk resend has come is kept as the offset of a group of its own
(``RESEND_group``), so that the next one goes on behind it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from iotmq.client.consuming.offsets import offsets
from iotmq.client.consuming.pulls import PullStatus, pull_command, read_pulled
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.calls import asking, broker_address
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import DEAD_LETTER_PREFIX, Message, ReceivedMessage, check_group
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.subscriptions import parse_subscription
from iotmq.errors import ClientError, MessageRefusedError, RouteNotFoundError
from iotmq.message import properties
from iotmq.message.bodies import body_field
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import iter_records

_log = logging.getLogger(__name__)

RESEND_PREFIX: Final = "RESEND_"

# A position that no offset is behind.
_NEVER: Final = 1 << 63
_PULL_RECORDS: Final = 256
_PULL_BYTES: Final = 1 << 20
# Messages of one resend that are not answered yet.
_IN_FLIGHT_MAX: Final = 64
# What brokers and clients put on a message on its way; a message that is sent again gets them anew.
_OF_THE_WAY: Final = frozenset(
    {
        properties.CLUSTER,
        properties.CONSUME_START_TIME,
        properties.DELAY,
        properties.DLQ_ORIGIN_MESSAGE_ID,
        properties.DLQ_ORIGIN_TOPIC,
        properties.KEYS,
        properties.MAX_OFFSET,
        properties.MAX_RECONSUME_TIMES,
        properties.MIN_OFFSET,
        properties.MSG_REGION,
        properties.ORIGIN_MESSAGE_ID,
        properties.PRODUCER_GROUP,
        properties.REAL_QUEUE_ID,
        properties.REAL_TOPIC,
        properties.RECONSUME_TIME,
        properties.RETRY_TOPIC,
        properties.TAGS,
        properties.TRACE_ON,
        properties.TRANSACTION_CHECK_TIMES,
        properties.TRANSACTION_PREPARED,
        properties.TRANSACTION_PREPARED_QUEUE_OFFSET,
        properties.UNIQ_KEY,
        properties.WAIT,
    }
)
# When an any-time delay was over, and what else belongs to it.
_TIMER_PREFIX: Final = "TIMER_"


class DeadLetter(NamedTuple):
    """A message that a consumer group gave up on, with its original topic."""

    message: ReceivedMessage
    # Empty when the message does not say.
    original_topic: str
    # The id of the message in its original topic, from which it was consumed first.
    original_message_id: str

    @property
    def message_id(self) -> str:
        """Return the sender's id, the same as that of the original message."""
        return self.message.message_id


class Resent(NamedTuple):
    """Report a resend; those of `left_message_ids` cannot be sent: they do not say what topic they had come
    from, their body cannot be inflated, or no broker would take them as they are."""

    sent_count: int
    left_message_ids: list[str]


class DeadLetters:
    """List and resend the dead letters of consumer groups; needs a started client."""

    def __init__(self, client: ClientTransport) -> None:
        self._client = client

    async def of_group(
        self,
        group: str,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        positions: Mapping[MessageQueue, int] | None = None,
    ) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters of a group that were given up in [begin_ms, end_ms], queue by queue.

        `positions` are offsets to begin at, where a queue has one. RouteNotFoundError when the group has no
        dead letter topic: nothing was ever given up.
        """
        for queue in await self._queues(group):
            begin = await offsets.min_offset(self._client, queue)
            async for message in self._read(queue, max(begin, (positions or {}).get(queue, 0))):
                stored_ms = message.store_timestamp_ms
                if end_ms is not None and stored_ms > end_ms:
                    break
                if stored_ms >= begin_ms:
                    yield _dead_letter(message)

    async def resend(self, group: str, message_ids: Collection[str], producer: Producer) -> Resent:
        """Send the dead letters with these ids to their original topics; returns when all are stored.

        An id is the sender's or that of the place, as `of_group` shows both. ClientError names ids that are
        not there, and then nothing was sent.
        """
        wanted = set(message_ids)
        found: dict[str, DeadLetter] = {}
        async for letter in self.of_group(group):
            for message_id in {letter.message_id, letter.message.offset_message_id} & wanted:
                found[message_id] = letter
        missing = sorted(wanted - found.keys())
        if missing:
            raise ClientError(f"group {group} has no dead letter {', '.join(missing[:5])}; nothing was sent")
        letters = {letter.message.offset_message_id: letter for letter in found.values()}
        return await self._send(list(letters.values()), producer)

    async def resend_all(
        self,
        group: str,
        producer: Producer,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        is_again: bool = False,
    ) -> AsyncIterator[Resent]:
        """Send all dead letters of a time to their original topics; yields the progress after each batch.

        Goes on behind what an earlier call sent, unless `is_again`. Letters from before `begin_ms` that were
        never sent stay for a later call, which then sends those behind them once more. So may a crash.
        """
        resender = resend_group(group)
        positions = await self._positions(group, resender)
        done = Resent(0, [])
        batch: list[DeadLetter] = []
        from_position = {} if is_again else positions
        async for letter in self.of_group(group, end_ms=end_ms, positions=from_position):
            queue = letter.message.queue
            if letter.message.store_timestamp_ms < begin_ms:
                if letter.message.queue_offset >= positions.get(queue, 0):
                    # Behind a letter that is left out nothing counts as dealt with.
                    positions[queue] = _NEVER
                continue
            if batch and (len(batch) == _PULL_RECORDS or batch[-1].message.queue != queue):
                done = await self._send_and_commit(resender, positions, batch, producer, done)
                yield done
                batch = []
            batch.append(letter)
        if batch:
            done = await self._send_and_commit(resender, positions, batch, producer, done)
        yield done

    # ------------------------------------------------------------------------------------------------

    async def _queues(self, group: str) -> tuple[MessageQueue, ...]:
        route = await self._client.routes.refresh(topic_of(group))
        if route is None or not route.readable:
            raise RouteNotFoundError(
                f"group {group} has no dead letters: no broker registered with "
                f"{self._client.registries.addresses_text} has topic {topic_of(group)}"
            )
        return route.readable

    async def _read(self, queue: MessageQueue, begin: int) -> AsyncIterator[ReceivedMessage]:
        """Read the present messages of the queue from `begin` on."""
        end = await offsets.max_offset(self._client, queue)
        offset = begin
        subscription = parse_subscription(queue.topic, "*", self._client.clock.now_ms())
        while offset < end:
            command = pull_command(
                _READER,
                queue,
                offset,
                records_max=_PULL_RECORDS,
                bytes_max=_PULL_BYTES,
                hold_ms=0,
                subscription=subscription,
            )
            address = await broker_address(self._client, queue)
            with asking(f"reading dead letters of {queue}"):
                answer = await self._client.request(address, command)
            pulled = read_pulled(answer, queue)
            if pulled.status is PullStatus.FOUND:
                for record in iter_records(pulled.records):
                    if record.queue_offset < end:
                        yield ReceivedMessage(queue, record)
            if pulled.next_offset <= offset:
                break
            offset = pulled.next_offset

    async def _positions(self, group: str, resender: str) -> dict[MessageQueue, int]:
        positions: dict[MessageQueue, int] = {}
        for queue in await self._queues(group):
            stored = await offsets.stored_offset(self._client, resender, queue)
            if stored is not None:
                positions[queue] = stored
        return positions

    async def _send_and_commit(
        self,
        resender: str,
        positions: dict[MessageQueue, int],
        batch: list[DeadLetter],
        producer: Producer,
        done: Resent,
    ) -> Resent:
        sent = await self._send(batch, producer)
        last = batch[-1].message
        end = last.queue_offset + 1
        # What is sent again may lie before what was sent already.
        if end > positions.get(last.queue, 0):
            await offsets.commit_offset(self._client, resender, last.queue, end)
            positions[last.queue] = end
        return Resent(done.sent_count + sent.sent_count, done.left_message_ids + sent.left_message_ids)

    async def _send(self, letters: list[DeadLetter], producer: Producer) -> Resent:
        """Send messages in order per queue, a few at a time; raises the first failure."""
        left: list[str] = []
        for start in range(0, len(letters), _IN_FLIGHT_MAX):
            pending = []
            for letter in letters[start : start + _IN_FLIGHT_MAX]:
                await producer.room()
                try:
                    if not letter.original_topic:
                        raise MessageRefusedError("it does not say what topic it had come from")
                    pending.append(producer.send_nowait(message_again(letter)))
                except (MessageFormatError, MessageRefusedError) as error:
                    # It would stop those behind it, now and in every later call.
                    _log.warning("dead letter %s is left: %s", letter.message.offset_message_id, error)
                    left.append(letter.message.offset_message_id)
            for result in await asyncio.gather(*pending, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
        return Resent(len(letters) - len(left), left)


_READER: Final = "TOOLS_CONSUMER"


def topic_of(group: str) -> str:
    """Return the name of the topic with the group's dead letters."""
    check_group(group)
    return DEAD_LETTER_PREFIX + group


def resend_group(group: str) -> str:
    """Return the group whose offset records the progress of bulk resends."""
    check_group(RESEND_PREFIX + group)
    return RESEND_PREFIX + group


def message_again(letter: DeadLetter) -> Message:
    """Build the message for its original topic again; ORIGIN_MESSAGE_ID names the first one."""
    message = letter.message
    kept = {
        name: value
        for name, value in message.properties.items()
        if name not in _OF_THE_WAY and not name.startswith(_TIMER_PREFIX)
    }
    kept[properties.ORIGIN_MESSAGE_ID] = letter.original_message_id or message.message_id
    key, *more = message.keys or [""]
    return Message(
        letter.original_topic,
        message.body,
        key=key,
        keys=more,
        tags=message.tags,
        properties=kept,
        flag=message.flag,
    )


def exported(letter: DeadLetter) -> bytes:
    """Write a dead letter as a line of JSON. A body that is no text is in `body_base64`."""
    message = letter.message
    fields: dict[str, object] = {
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "original_topic": letter.original_topic,
        "original_message_id": letter.original_message_id,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "redeliveries": message.redeliveries,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
        "keys": message.keys,
        "tags": message.tags,
        "properties": message.properties,
    }
    try:
        fields |= body_field(message.body)
    except MessageFormatError as error:
        fields["body_error"] = str(error)
    return msgspec.json.encode(fields) + b"\n"


def _dead_letter(message: ReceivedMessage) -> DeadLetter:
    found = message.properties
    return DeadLetter(
        message,
        found.get(properties.RETRY_TOPIC) or found.get(properties.DLQ_ORIGIN_TOPIC, ""),
        found.get(properties.ORIGIN_MESSAGE_ID) or found.get(properties.DLQ_ORIGIN_MESSAGE_ID, ""),
    )
