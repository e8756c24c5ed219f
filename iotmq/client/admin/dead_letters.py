"""Dead letters: messages a consumer group gave up on, in the topic ``%DLQ%group``.

They are looked at, sent to their original topic again, and exported. Nothing is deleted: dead letters stay
until retention takes them. How far a bulk resend has come is kept as the offset of a group of its own
(``RESEND_group``), so that the next one goes on behind it. A message is sent first, and counts as dealt with
once a broker has stored it: what fails in between is sent once more, and nothing is lost.
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
from iotmq.client.transport.message import (
    DEAD_LETTER_PREFIX,
    Message,
    ReceivedMessage,
    check_group,
    is_own_topic,
)
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.subscriptions import parse_subscription
from iotmq.errors import ClientError, MessageRefusedError, RouteNotFoundError
from iotmq.event_loop import happens_within
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
# Pieces of a bulk resend at a rate, in a second; how far it has come is committed after each.
_PIECES_PER_S: Final = 10
LEFT_IDS_MAX: Final = 1000
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
    """Report a resend; those that are left cannot be sent: they do not say what topic they had come from,
    their body cannot be inflated, or no broker would take them as they are."""

    sent_count: int = 0
    left_message_ids: list[str] = []  # noqa: RUF012 - it is never changed
    """The first `LEFT_IDS_MAX` of them."""
    left_count: int = 0


class Selection(NamedTuple):
    """Choose dead letters of a group: those that fit all that is given."""

    begin_ms: int = 0
    end_ms: int | None = None
    """Given up in [begin_ms, end_ms]."""
    original_topic: str = ""
    key: str = ""

    def has(self, letter: DeadLetter) -> bool:
        """Return whether a letter is chosen; its end is not looked at, behind which a queue has none."""
        return (
            letter.message.store_timestamp_ms >= self.begin_ms
            and self.original_topic in ("", letter.original_topic)
            and (not self.key or self.key in letter.message.keys)
        )

    def is_before(self, letter: DeadLetter) -> bool:
        """Return whether a letter, and so all behind it in its queue, was given up after the end."""
        return self.end_ms is not None and letter.message.store_timestamp_ms > self.end_ms


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
        original_topic: str = "",
        key: str = "",
        positions: Mapping[MessageQueue, int] | None = None,
    ) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters of a group that were given up in [begin_ms, end_ms], queue by queue; only
        those of a topic, or with a key, where one is given.

        `positions` are offsets to begin at, where a queue has one. RouteNotFoundError when the group has no
        dead letter topic: nothing was ever given up.
        """
        selection = Selection(begin_ms, end_ms, original_topic, key)
        for queue in await _queues(self._client, group):
            begin = await offsets.min_offset(self._client, queue)
            end = await offsets.max_offset(self._client, queue)
            async for letter in _read(self._client, queue, max(begin, (positions or {}).get(queue, 0)), end):
                if selection.is_before(letter):
                    break
                if selection.has(letter):
                    yield letter

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
        left = await _send(list(letters.values()), producer)
        return Resent(len(letters) - len(left), left[:LEFT_IDS_MAX], len(left))

    async def resend_all(
        self,
        group: str,
        producer: Producer,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        original_topic: str = "",
        key: str = "",
        per_second: float = 0.0,
        is_again: bool = False,
    ) -> AsyncIterator[Resent]:
        """Send all dead letters of a time to their original topics; yields the progress after each batch.
        Only those of a topic, or with a key, where one is given; at most `per_second` of them, where it is.

        Goes on behind what an earlier call sent, unless `is_again`. Letters that are passed over and were
        never sent stay for a later call, which then sends those behind them once more. So may a crash.
        """
        selection = Selection(begin_ms, end_ms, original_topic, key)
        replay = Replay(self._client, group, producer, selection, per_second=per_second, is_again=is_again)
        async for resent in replay.run():
            yield resent


class Replay:
    """Sends the dead letters of a group that are there when it begins, piece by piece.

    `run` may be called again after an error: it goes on behind what is sent.
    """

    def __init__(
        self,
        client: ClientTransport,
        group: str,
        producer: Producer,
        selection: Selection,
        *,
        per_second: float = 0.0,
        is_again: bool = False,
    ) -> None:
        """0 for `per_second`: as fast as the brokers take them."""
        self.resent = Resent()
        self.stopping = asyncio.Event()
        """Set it, and `run` returns behind the piece that is being sent."""
        self._client = client
        self._group = group
        self._producer = producer
        self._selection = selection
        self._per_second = per_second
        self._is_again = is_again
        self._piece_records = _PULL_RECORDS
        if per_second:
            self._piece_records = max(1, min(_PULL_RECORDS, round(per_second / _PIECES_PER_S)))
        # When the next piece may be sent, in seconds of the loop.
        self._due_s = 0.0
        # Where a queue ends, known from `begin` on, and up to where its letters are dealt with.
        self._ends: dict[MessageQueue, int] = {}
        self._begins: dict[MessageQueue, int] = {}
        self._reached: dict[MessageQueue, int] = {}
        # The offsets of the group for the progress: what brokers have of them, and what they should have.
        self._committed: dict[MessageQueue, int] = {}
        self._sent_to: dict[MessageQueue, int] = {}

    @property
    def total_count(self) -> int:
        """Return how many letters there are, chosen or not, from where it began on."""
        return sum(self._ends.values()) - sum(self._begins.values())

    @property
    def seen_count(self) -> int:
        """Return how many of them are dealt with: sent, left or passed over."""
        return sum(self._reached.values()) - sum(self._begins.values())

    async def begin(self) -> None:
        """Look up where to begin and to end. RouteNotFoundError when the group has no dead letters."""
        begins, ends = {}, {}
        for queue in await _queues(self._client, self._group):
            stored = await offsets.stored_offset(self._client, resend_group(self._group), queue)
            self._committed[queue] = 0 if stored is None else stored
            ends[queue] = await offsets.max_offset(self._client, queue)
            first = await offsets.min_offset(self._client, queue)
            begins[queue] = min(ends[queue], max(first, 0 if self._is_again else self._committed[queue]))
        self._begins, self._ends, self._reached = begins, ends, dict(begins)

    async def run(self) -> AsyncIterator[Resent]:
        """Send what is chosen; yields the progress after each piece, and once where there is none."""
        if not self._ends:
            await self.begin()
        piece_count = 0
        for queue, end in self._ends.items():
            async for piece in self._pieces(queue, end):
                await self._send_piece(queue, piece)
                piece_count += 1
                yield self.resent
                if self.stopping.is_set():
                    return
            # One that failed behind the last piece is made up for.
            await self._commit(queue)
        if not piece_count:
            yield self.resent

    async def _pieces(self, queue: MessageQueue, end: int) -> AsyncIterator[list[DeadLetter]]:
        piece: list[DeadLetter] = []
        size_bytes = 0
        async for letter in _read(self._client, queue, self._reached[queue], end):
            if self._selection.is_before(letter):
                break
            offset = letter.message.queue_offset
            if not self._selection.has(letter):
                if offset >= self._committed[queue]:
                    if piece:
                        yield piece
                        piece, size_bytes = [], 0
                    # Behind a letter that is passed over nothing counts as dealt with.
                    self._committed[queue] = _NEVER
                if not piece:
                    self._reached[queue] = offset + 1
                continue
            piece.append(letter)
            size_bytes += letter.message.record.size
            if len(piece) == self._piece_records or size_bytes >= _PULL_BYTES:
                yield piece
                piece, size_bytes = [], 0
        else:
            if piece:
                yield piece
            self._reached[queue] = end
            return
        if piece:
            yield piece

    async def _send_piece(self, queue: MessageQueue, piece: list[DeadLetter]) -> None:
        if self._per_second:
            loop = asyncio.get_running_loop()
            left_s = self._due_s - loop.time()
            if left_s > 0 and await happens_within(self.stopping, left_s):
                return
            self._due_s = max(self._due_s, loop.time()) + len(piece) / self._per_second
        left = await _send(piece, self._producer)
        self._reached[queue] = self._sent_to[queue] = piece[-1].message.queue_offset + 1
        before = self.resent
        ids = before.left_message_ids
        if left and len(ids) < LEFT_IDS_MAX:
            ids = (ids + left)[:LEFT_IDS_MAX]
        self.resent = Resent(before.sent_count + len(piece) - len(left), ids, before.left_count + len(left))
        await self._commit(queue)

    async def _commit(self, queue: MessageQueue) -> None:
        end = self._sent_to.get(queue, 0)
        # What is sent again may lie before what was sent already.
        if end > self._committed[queue]:
            await offsets.commit_offset(self._client, resend_group(self._group), queue, end)
            self._committed[queue] = end


async def _queues(client: ClientTransport, group: str) -> tuple[MessageQueue, ...]:
    route = await client.routes.refresh(topic_of(group))
    if route is None or not route.readable:
        raise RouteNotFoundError(
            f"group {group} has no dead letters: no broker registered with "
            f"{client.registries.addresses_text} has topic {topic_of(group)}"
        )
    return route.readable


async def _read(
    client: ClientTransport, queue: MessageQueue, begin: int, end: int
) -> AsyncIterator[DeadLetter]:
    """Read the messages of the queue in [begin, end)."""
    offset = begin
    subscription = parse_subscription(queue.topic, "*", client.clock.now_ms())
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
        address = await broker_address(client, queue)
        with asking(f"reading dead letters of {queue}"):
            answer = await client.request(address, command)
        pulled = read_pulled(answer, queue)
        if pulled.status is PullStatus.FOUND:
            for record in iter_records(pulled.records):
                if record.queue_offset < end:
                    yield dead_letter(ReceivedMessage(queue, record))
        if pulled.next_offset <= offset:
            break
        offset = pulled.next_offset


async def _send(letters: list[DeadLetter], producer: Producer) -> list[str]:
    """Send messages in order per queue, a few at a time, and return the ids of those that cannot be sent;
    raises the first failure."""
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
    return left


_READER: Final = "TOOLS_CONSUMER"


def topic_of(group: str) -> str:
    """Return the name of the topic with the group's dead letters."""
    check_group(group)
    return DEAD_LETTER_PREFIX + group


def resend_group(group: str) -> str:
    """Return the group whose offset records the progress of bulk resends."""
    check_group(RESEND_PREFIX + group)
    return RESEND_PREFIX + group


def message_again(letter: DeadLetter, *, topic: str | None = None, body: bytes | None = None) -> Message:
    """Build the message for its original topic again, or another one, with another body where one is given;
    ORIGIN_MESSAGE_ID names the first one.

    MessageRefusedError for the gateway's own topics: what it comes from is what a letter says of itself.
    """
    message = letter.message
    topic = letter.original_topic if topic is None else topic
    if is_own_topic(topic):
        raise MessageRefusedError(f"topic {topic} is the gateway's own: nothing is sent there again")
    kept = {
        name: value
        for name, value in message.properties.items()
        if name not in _OF_THE_WAY and not name.startswith(_TIMER_PREFIX)
    }
    kept[properties.ORIGIN_MESSAGE_ID] = letter.original_message_id or message.message_id
    key, *more = message.keys or [""]
    return Message(
        topic,
        message.body if body is None else body,
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


def dead_letter(message: ReceivedMessage) -> DeadLetter:
    """Read what a message of a topic of dead letters says of the original one."""
    found = message.properties
    return DeadLetter(
        message,
        found.get(properties.RETRY_TOPIC) or found.get(properties.DLQ_ORIGIN_TOPIC, ""),
        found.get(properties.ORIGIN_MESSAGE_ID) or found.get(properties.DLQ_ORIGIN_MESSAGE_ID, ""),
    )
