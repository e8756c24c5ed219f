"""What keeps a message from being stored twice: batches that are sent again, and devices' packet ids.

A sender that lost its connection does not know whether its batch was stored. It sends it again and says so;
then the batch is looked for by the unique key of its first message, once everything appended so far is
confirmed, because the key index has nothing sooner. What is found is compared record by record: of a batch
that a power cut took the end of, the rest is stored. Sends that do not say so cost nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol

from typing_extensions import Buffer

from iotmq.broker.element import encode_element, split_elements
from iotmq.broker.intake import Done, FoundBatch, Intake, IntakeError, StoredBatch, StoredRun
from iotmq.broker.received_ids import ReceivedIds
from iotmq.broker.topics import RECEIVED_TOPIC
from iotmq.errors import StoreError
from iotmq.message.errors import MessageFormatError
from iotmq.message.properties import UNIQ_KEY
from iotmq.message.record import Record, decode_record, property_value
from iotmq.metrics import Metric
from iotmq.remoting.codes import ResponseCode

_UNIQUE_KEY = UNIQ_KEY.encode()



class Append(Protocol):
    """Stores elements as the intake does."""

    def __call__(self, elements: Buffer, *, done: Done) -> None: ...


class StoredOnce:
    """Stores batches that may be there already. For the loop's thread."""

    def __init__(self, intake: Intake, received: ReceivedIds, *, host: bytes) -> None:
        self._intake = intake
        self._store = intake.store
        self._received = received
        self._host = host
        self.repeats_total = 0
        self.found_total = 0

    def append(
        self,
        topics: tuple[str, ...],
        elements: Buffer,
        append: Append,
        done: Done,
        *,
        is_repeat: bool,
        has_packet_ids: bool,
    ) -> None:
        """Store what of a batch is not there yet, by `append`; `done` is called once, as by the intake.

        `is_repeat`: the sender does not know whether it was stored, in the first of `topics`; it may
        have gone on to another since. `has_packet_ids`: messages of it have MQTT_PACKET_ID.
        """
        if has_packet_ids:
            append = partial(self._append_new, append)
        if is_repeat:
            self.repeats_total += 1
            self._intake.when_flushed(partial(self._look_up, topics, elements, append, done))
        else:
            append(elements, done=done)

    def release(self, body: bytes, done: Done, *, now_ms: int) -> None:
        """Forget packet ids that devices have released; `done` once that is as durable as promised."""
        try:
            known = self._received.known_releases(body)
        except ValueError as error:
            done(IntakeError(ResponseCode.MESSAGE_ILLEGAL, str(error)))
            return
        if not known:
            self._intake.when_flushed(partial(_all_there, done))
            return
        self._received.begin_append()
        before = self._store.appended_position
        self._intake.append(
            RECEIVED_TOPIC,
            0,
            encode_element(b"".join(piece for _, piece in known), b"", 0),
            born_timestamp_ms=now_ms,
            born_host=self._host,
            done=done,
            is_patient=True,
            is_internal=True,
        )
        self._note((key for key, _ in known), before, is_release=True)

    def metrics(self) -> Iterator[Metric]:
        yield Metric(
            "iotmq_broker_repeated_batches_total",
            "counter",
            "Sends that may have been stored before.",
            self.repeats_total,
        )
        yield Metric(
            "iotmq_broker_found_batches_total", "counter", "Those of them that were.", self.found_total
        )
        yield from self._received.metrics()

    def _append_new(self, append: Append, elements: Buffer, *, done: Done) -> None:
        """Store the elements whose packet ids are not those of stored messages."""
        try:
            new, keys = self._received.new_elements(elements)
        except MessageFormatError as error:
            done(IntakeError(ResponseCode.MESSAGE_ILLEGAL, str(error)))
            return
        if not memoryview(new).nbytes:
            self._intake.when_flushed(partial(_all_there, done))
            return
        self._received.begin_append()
        before = self._store.appended_position
        append(new, done=done)
        self._note(keys, before)

    def _note(self, keys: Iterator[bytes] | list[bytes], before: int, *, is_release: bool = False) -> None:
        end_position = self._store.appended_position
        self._received.end_append(
            keys if end_position > before else (), end_position, is_release=is_release
        )

    def _look_up(
        self, topics: tuple[str, ...], elements: Buffer, append: Append, done: Done, run: StoredRun
    ) -> None:
        if run.status != ResponseCode.SUCCESS:
            done(_not_known("the disk takes too long"))
            return
        try:
            parts = list(split_elements(elements))
            found = self._find(topics, parts, run.end_position)
        except MessageFormatError as error:
            done(IntakeError(ResponseCode.MESSAGE_ILLEGAL, str(error)))
            return
        except (StoreError, OSError) as error:
            done(_not_known(str(error)))
            return
        if not found:
            append(elements, done=done)
            return
        self.found_total += 1
        # What has come into its own topic meanwhile waited for its time, and was stored whole.
        records, rest = self._compare(parts, found) if found.topic == topics[0] else ([found], [])
        if rest:
            append(b"".join(encode_element(*part) for part in rest), done=done)
        else:
            stored = FoundBatch(
                [record.position for record in records],
                records[-1].position + records[-1].size,
                first_offset=records[0].queue_offset,
                store_timestamp_ms=records[0].store_timestamp_ms,
            )
            done(StoredBatch(stored, records[0].queue_id))

    def _find(
        self, topics: tuple[str, ...], parts: list[tuple[bytes, bytes, int]], end_position: int
    ) -> Record | None:
        """The first record that was stored of the first element that has a unique key."""
        if not self._store.settings.index_enabled:
            return None
        if self._store.indexed_until[1] < end_position:
            raise StoreError("the key index is behind the log")
        keys = ((body, property_value(properties, _UNIQUE_KEY)) for body, properties, _ in parts)
        body, key = next(((body, key) for body, key in keys if key), (b"", b""))
        if not key:
            return None
        for topic in topics:
            for view in reversed(self._store.query(topic, key.decode("utf-8", "replace"))):
                record = decode_record(view)
                if record.body == body and property_value(record.properties, _UNIQUE_KEY) == key:
                    return record
        return None

    def _compare(
        self, parts: list[tuple[bytes, bytes, int]], first: Record
    ) -> tuple[list[Record], list[tuple[bytes, bytes, int]]]:
        """The records of a batch from the one that was found on, and the elements that have none.

        What may have come before has none, too, when it was stored before; its packet id says so.
        """
        records: list[Record] = []
        rest: list[tuple[bytes, bytes, int]] = []
        key = property_value(first.properties, _UNIQUE_KEY)
        following: Record | None = None
        for part in parts:
            body, properties, _ = part
            if not records and property_value(properties, _UNIQUE_KEY) == key:
                following = first
            if following is not None and following.body == body:
                records.append(following)
                following = self._after(following)
            else:
                rest.append(part)
        return records, rest

    def _after(self, record: Record) -> Record | None:
        """The next record of the same batch."""
        position = record.position + record.size
        if position >= self._store.confirmed_position:
            return None
        view = self._store.read_record(self._store.log.after(record.position))
        if view is None:
            return None
        following = decode_record(view)
        is_of_batch = (
            (following.topic, following.queue_id) == (record.topic, record.queue_id)
            and following.store_timestamp_ms == record.store_timestamp_ms
        )
        return following if is_of_batch else None


def _not_known(why: str) -> IntakeError:
    return IntakeError(
        ResponseCode.SERVICE_NOT_AVAILABLE, f"whether the message is stored is not known yet: {why}"
    )


def _all_there(done: Done, run: StoredRun) -> None:
    """Everything was stored before; it is as durable as promised unless the disk takes too long."""
    if run.status == ResponseCode.SUCCESS:
        done(StoredBatch(FoundBatch([], run.end_position), 0))
    else:
        done(_not_known("the disk takes too long"))
