"""Leave out of a batch what is stored already: repeated batches, and QoS 2 messages of known packet ids.

A sender that lost its connection does not know whether its batch was stored. It sends the batch again, marked
as a repeat. The broker then waits until everything appended so far is confirmed, since the key index has
nothing sooner, and looks the batch up by its first unique key. Messages are compared one by one: when a power
cut took the end of the batch, only that end is stored, under the same key. Batches that are no repeats cost
nothing here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, TypeAlias

from typing_extensions import Buffer

from iotmq import limits
from iotmq.broker.exactly_once.batch_marks import read_mark
from iotmq.broker.exactly_once.batch_numbers import BatchNumbers, NumberedBatch, read_numbered
from iotmq.broker.exactly_once.received_ids import ALL, ReceivedIds, encode_release
from iotmq.broker.tables.topics import RECEIVED_TOPIC
from iotmq.broker.writing.message_writer import (
    Done,
    FoundBatch,
    MessageWriter,
    RefusedBatch,
    StoredBatch,
    StoredRun,
)
from iotmq.broker.writing.single_message_batch import encode_element, split_elements
from iotmq.errors import StoreError
from iotmq.message.errors import MessageFormatError
from iotmq.message.properties import BATCH_NUMBER, MQTT_CLIENT_ID, MQTT_PACKET_ID, UNIQ_KEY
from iotmq.message.records.record import Record, decode_record, property_value
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

_UNIQUE_KEY = UNIQ_KEY.encode()
_PACKET_ID = MQTT_PACKET_ID.encode()
_CLIENT_ID = MQTT_CLIENT_ID.encode()
_BATCH_NUMBER = BATCH_NUMBER.encode()

# Body, properties and flag of an element.
Part: TypeAlias = tuple[bytes, bytes, int]


class Append(Protocol):
    """Append elements to a queue, as MessageWriter.append with its other arguments filled in."""

    def __call__(self, elements: Buffer, *, done: Done) -> None: ...


class StoredOnce:
    """Stores what is not stored yet of a batch. For the loop's thread."""

    def __init__(
        self, writer: MessageWriter, received: ReceivedIds, numbers: BatchNumbers, *, host: bytes
    ) -> None:
        self._writer = writer
        self._store = writer.store
        self._received = received
        self.numbers = numbers
        self._host = host
        # Hashes of the first keys of batches that repeats have appended, in order, and where the log ended
        # then; until that is confirmed. Another batch with that hash only waits, too.
        self._appended: dict[int, int] = {}
        self.repeats_total = 0
        self.found_total = 0
        self.numbered_found_total = 0
        self.out_of_order_total = 0

    def start(self) -> None:
        """Note that from here on nobody else appends: what is marked in the log is known to be."""
        self._received.end_append({}, self._store.appended_position)
        self.numbers.begin(self._store.appended_position)

    def append(
        self,
        topics: tuple[str, ...],
        elements: Buffer,
        append: Append,
        done: Done,
        *,
        is_repeat: bool,
        has_packet_ids: bool,
        is_numbered: bool = False,
    ) -> None:
        """Give `append` those messages of a batch that are not stored yet; `done` is called once.

        `is_repeat`: the batch may have been stored in the first of `topics`, and its messages delivered
        from there to the others. `has_packet_ids`: some of its messages have MQTT_PACKET_ID. `is_numbered`:
        the first one has BATCH_NUMBER, which says whether it is a repeat.
        """
        if is_numbered:
            self._append_numbered(topics[-1], elements, append, done)
            return
        if has_packet_ids:
            append = partial(self._append_new, append)
        if is_repeat:
            self.repeats_total += 1
            self._writer.when_flushed(partial(self._look_up, topics, elements, append, done))
        else:
            append(elements, done=done)

    def release(self, body: bytes, done: Done, *, now_ms: int) -> None:
        """Forget packet ids that devices have released; `done` once that is as durable as promised."""
        try:
            keys, known = self._received.known_releases(body)
        except ValueError as error:
            done(RefusedBatch(ResponseCode.MESSAGE_ILLEGAL, str(error)))
            return
        except StoreError as error:
            done(_unknown(str(error)))
            return
        if known:
            self._release(keys, known, done, now_ms=now_ms)
        else:
            self._writer.when_flushed(partial(_answer_stored, done))

    def forget(self, client_id: str, *, now_ms: int) -> None:
        """Forget the packet ids of a client that begins a new session.

        Raises StoreError, with nothing done, while those ids are not known.
        """
        keys, known = self._received.known_releases(encode_release(client_id.encode(), ALL))
        if known:
            self._release(keys, known, _log_refusal, now_ms=now_ms)

    def _release(self, keys: list[bytes], body: bytes, done: Done, *, now_ms: int) -> None:
        self._received.begin_append()
        before = self._store.appended_position
        self._writer.append(
            RECEIVED_TOPIC,
            0,
            encode_element(body, b"", 0),
            born_timestamp_ms=now_ms,
            born_host=self._host,
            done=done,
            is_patient=True,
            is_internal=True,
        )
        self._note(dict.fromkeys(keys), before)

    def metrics(self) -> Iterator[Metric]:
        yield from samples(
            (
                "iotmq_broker_repeated_batches_total",
                "Sends that may have been stored before.",
                self.repeats_total,
            ),
            ("iotmq_broker_found_batches_total", "Sends known to be stored.", self.found_total),
        )
        yield from samples(
            (
                "iotmq_broker_found_numbered_batches_total",
                "Numbered batches known to be stored.",
                self.numbered_found_total,
            ),
            (
                "iotmq_broker_out_of_order_batches_total",
                "Numbered batches refused because the one before is not stored.",
                self.out_of_order_total,
            ),
        )
        yield from self._received.metrics()
        yield from self.numbers.metrics()

    def _append_numbered(self, topic: str, elements: Buffer, append: Append, done: Done) -> None:
        try:
            batch = read_numbered(topic, elements)
            last = self.numbers.last(batch.key)
        except MessageFormatError as error:
            done(RefusedBatch(ResponseCode.MESSAGE_ILLEGAL, str(error)))
            return
        except StoreError as error:
            done(_unknown(str(error)))
            return
        if problem := batch.problem_after(last):
            self.out_of_order_total += 1
            done(RefusedBatch(ResponseCode.BATCH_OUT_OF_ORDER, problem))
        elif last is None or batch.number > last:
            self._append_marked(batch, elements, append, done)
        else:
            self.numbered_found_total += 1
            self._writer.when_flushed(partial(self._answer_numbered, batch, elements, append, done))

    def _append_marked(self, batch: NumberedBatch, elements: Buffer, append: Append, done: Done) -> None:
        self.numbers.begin_append()
        before = self._store.appended_position
        append(elements, done=done)
        end_position = self._store.appended_position
        self.numbers.end_append({batch.key: batch.number} if end_position > before else {}, end_position)

    def _answer_numbered(
        self, batch: NumberedBatch, elements: Buffer, append: Append, done: Done, run: StoredRun
    ) -> None:
        """Answer for a batch that was stored before, once what is missing of it is stored, too."""
        try:
            position = None
            if self.numbers.last(batch.key) == batch.number:
                position = self.numbers.torn_position(batch.key)
            stored_count = batch.message_count if position is None else self._stored_count(position)
        except (MessageFormatError, StoreError, OSError) as error:
            done(_unknown(str(error)))
            return
        if stored_count < batch.message_count:
            rest = _numbered_rest(list(split_elements(elements)), stored_count)
            self._append_marked(batch, rest, append, done)
        else:
            _answer_stored(done, run)

    def _stored_count(self, position: int) -> int:
        """Return how many messages of a numbered batch are stored, up to the last piece, at `position`."""
        view = self._store.read_record(position)
        mark = None if view is None else read_mark(decode_record(view).properties)
        if view is None or mark is None:
            raise StoreError(f"the record at {position} cannot be read")
        _, _, skipped, count, _ = mark
        run = islice(self._run_from(decode_record(view)), count - skipped)
        return skipped + sum(1 for _ in run)

    def _append_new(self, append: Append, elements: Buffer, *, done: Done) -> None:
        """Append the elements whose packet ids are not those of stored messages."""
        try:
            new, digests = self._received.new_elements(elements)
        except MessageFormatError as error:
            done(RefusedBatch(ResponseCode.MESSAGE_ILLEGAL, str(error)))
            return
        except StoreError as error:
            done(_unknown(str(error)))
            return
        if not memoryview(new).nbytes:
            self._writer.when_flushed(partial(_answer_stored, done))
            return
        if new is not elements:
            new = _encode_rest(list(split_elements(new)), _key_of(split_elements(elements)))
        self._received.begin_append()
        before = self._store.appended_position
        append(new, done=done)
        self._note(digests, before)

    def _note(self, digests: dict[bytes, int | None], before: int) -> None:
        end_position = self._store.appended_position
        self._received.end_append(digests if end_position > before else {}, end_position)

    def _look_up(
        self, topics: tuple[str, ...], elements: Buffer, append: Append, done: Done, run: StoredRun
    ) -> None:
        if run.status != ResponseCode.SUCCESS:
            done(_unknown("the disk takes too long"))
            return
        try:
            parts = list(split_elements(elements))
            key = _key_of(parts)
            if self._appended.get(hash(key), 0) > run.end_position:
                # One that waited beside this one has stored it, and the key index does not have it yet.
                self._writer.when_flushed(partial(self._look_up, topics, elements, append, done))
                return
            stored = self._stored_of(topics, parts, run.end_position)
        except MessageFormatError as error:
            done(RefusedBatch(ResponseCode.MESSAGE_ILLEGAL, str(error)))
            return
        except (StoreError, OSError) as error:
            done(_unknown(str(error)))
            return
        if not stored:
            self._append_keyed(key, elements, append, done)
            return
        self.found_total += 1
        # A batch found in another topic was delivered from the first one, where it was stored whole.
        rest = _unstored(parts, stored) if stored[0].topic == topics[0] else []
        if rest:
            self._append_keyed(key, _encode_rest(rest, key), append, done)
        else:
            found = FoundBatch(
                [record.position for record in stored],
                stored[-1].position + stored[-1].size,
                first_offset=stored[0].queue_offset,
                store_timestamp_ms=stored[0].store_timestamp_ms,
            )
            done(StoredBatch(found, stored[0].queue_id))

    def _append_keyed(self, key: bytes, elements: Buffer, append: Append, done: Done) -> None:
        """Append what the key index will know by `key`."""
        appended, confirmed_position = self._appended, self._store.confirmed_position
        while appended and next(iter(appended.values())) <= confirmed_position:
            del appended[next(iter(appended))]
        if key and len(appended) >= limits.REPEATS_UNCONFIRMED_MAX:
            done(_unknown(f"{len(appended)} batches that were sent again are not confirmed yet"))
            return
        before = self._store.appended_position
        append(elements, done=done)
        if key and self._store.appended_position > before:
            # At the end, where the positions grow.
            appended.pop(hash(key), None)
            appended[hash(key)] = self._store.appended_position

    def _stored_of(self, topics: tuple[str, ...], parts: list[Part], end_position: int) -> list[Record]:
        """Return the records of a batch in the first topic that has any, in order."""
        key = _key_of(parts)
        if not key or not self._store.settings.index_enabled:
            return []
        if self._store.indexed_until[1] < end_position:
            raise StoreError("the key index is behind the log")
        identities = {_identity(body, properties) for body, properties, _ in parts}
        keys = {_key_in(properties) for _, properties, _ in parts} | {b""}
        for topic in topics:
            # The query finds several records when the batch was stored in pieces, each with the key.
            found: dict[int, Record] = {}
            for view in self._store.query(topic, key.decode("utf-8", "replace")):
                first = decode_record(view)
                if _key_in(first.properties) != key:
                    continue
                for record in self._run_from(first):
                    is_of_batch = _key_in(record.properties) in keys and (
                        _identity(record.body, record.properties) in identities
                    )
                    if not is_of_batch or record.position in found or len(found) == len(parts):
                        break
                    found[record.position] = record
            if found:
                return [found[position] for position in sorted(found)]
        return []

    def _run_from(self, record: Record) -> Iterator[Record]:
        """Yield a record and those right behind it with its topic, queue and store time."""
        batch = (record.topic, record.queue_id, record.store_timestamp_ms)
        while (record.topic, record.queue_id, record.store_timestamp_ms) == batch:
            yield record
            if record.position + record.size >= self._store.confirmed_position:
                return
            view = self._store.read_record(self._store.log.after(record.position))
            if view is None:
                return
            record = decode_record(view)


def _key_of(parts: Iterable[Part]) -> bytes:
    """Return the first unique key in a batch, by which it is looked up; empty when it has none."""
    return next((key for _, properties, _ in parts if (key := _key_in(properties))), b"")


def _key_in(properties: bytes) -> bytes:
    return property_value(properties, _UNIQUE_KEY) or b""


class _Identity(NamedTuple):
    """Tell the messages of one batch apart; copies of one message are equal."""

    body: bytes
    packet_id: bytes | None
    client_id: bytes | None


def _identity(body: bytes, properties: bytes) -> _Identity:
    packet_id = property_value(properties, _PACKET_ID)
    return _Identity(body, packet_id, packet_id and property_value(properties, _CLIENT_ID))


def _unstored(parts: list[Part], stored: list[Record]) -> list[Part]:
    """Return the elements that have no record; all with the same packet id and body are one message."""
    there = Counter(_identity(record.body, record.properties) for record in stored)
    rest = []
    for part in parts:
        identity = _identity(*part[:2])
        if not there[identity]:
            rest.append(part)
        elif identity.packet_id is None:
            there[identity] -= 1
    return rest


def _encode_rest(parts: list[Part], key: bytes) -> bytes:
    """Encode what is left of a batch; its first element gets the batch's key if it has none of its own."""
    if key and _key_of(parts) != key:
        body, properties, flag = parts[0]
        separator = b"" if not properties or properties.endswith(b"\x02") else b"\x02"
        parts[0] = (body, properties + separator + b"%s\x01%s\x02" % (_UNIQUE_KEY, key), flag)
    return b"".join(encode_element(*part) for part in parts)


def _numbered_rest(parts: list[Part], stored_count: int) -> bytes:
    """Encode a numbered batch without its first messages, and say in its first one that they are stored."""
    mark = property_value(parts[0][1], _BATCH_NUMBER) or b""
    producer, batch, number, _, words = mark.split(b" ", 4)
    body, properties, flag = parts[stored_count]
    separator = b"" if not properties or properties.endswith(b"\x02") else b"\x02"
    value = b" ".join((producer, batch, number, b"%d" % stored_count, words))
    parts[stored_count] = (body, properties + separator + b"%s\x01%s\x02" % (_BATCH_NUMBER, value), flag)
    return b"".join(encode_element(*part) for part in parts[stored_count:])


def _unknown(why: str) -> RefusedBatch:
    return RefusedBatch(
        ResponseCode.SERVICE_NOT_AVAILABLE, f"whether the message is stored is not known yet: {why}"
    )


def _log_refusal(result: StoredBatch | RefusedBatch) -> None:
    if isinstance(result, RefusedBatch):
        logger.warning("packet ids of a session that is over stay: %s", result.remark)


def _answer_stored(done: Done, run: StoredRun) -> None:
    """Answer for a batch that was stored before, once all is flushed or that has taken too long."""
    if run.status == ResponseCode.SUCCESS:
        done(StoredBatch(FoundBatch([], run.end_position), 0))
    else:
        done(_unknown("the disk takes too long"))
