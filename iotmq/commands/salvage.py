"""`iotmq store salvage`: what a member has cut off its log, shown and published again.

A file of `commitlog.diverged` has records of a former master that nobody acknowledged. Their senders were
told so, or had no answer, and most of them have sent again. So each batch is sent as one that may be stored
already: the broker looks for the unique key of its first message, and stores what is not there.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from iotmq.commands.store import EXIT_FOUND, EXIT_OK, readable, record_row
from iotmq.errors import StoreError
from iotmq.limits import BATCH_RECORDS_MAX
from iotmq.message import properties as names
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import Record, check_record, decode_record, encode_batch, property_value
from iotmq.store.recovery.damage import KEPT_BYTES_MAX

if TYPE_CHECKING:
    from iotmq.client.transport.settings import ClientSettings

_FILE_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.bin")
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "%retry%", "%dlq%")
_BLANK_MAGIC: Final = b"\xcb\xd4\x31\x94"
_SHORTEST_BYTES: Final = 8
# Of the system flag: how the body is compressed.
_BODY_FLAGS: Final = 0x703
_TRANSACTION_MASK: Final = 0xC
_TRANSACTION_COMMITTED: Final = 0x8
# What brokers put on a message on its way, and what has had its effect when the message is in its topic.
_OF_THE_BROKER: Final = frozenset(
    {
        names.CLUSTER,
        names.DELAY,
        names.MSG_REGION,
        names.ORIGIN_MESSAGE_ID,
        names.REAL_QUEUE_ID,
        names.REAL_TOPIC,
        names.TRACE_ON,
        names.TRANSACTION_CHECK_TIMES,
        names.TRANSACTION_PREPARED,
        names.TRANSACTION_PREPARED_QUEUE_OFFSET,
        names.WAIT,
    }
)
_TIMER_PREFIX: Final = "TIMER_"


class Kept(NamedTuple):
    """Hold a record of a file, and why it is not published again; empty when it can be."""

    record: Record
    left_because: str


class Batch(NamedTuple):
    """Hold messages that were one batch: the first one's unique key may be that of all of them."""

    topic: str
    queue_id: int
    sys_flag: int
    records: list[Record]

    def elements(self) -> bytes:
        """Encode the messages as their sender did, without what brokers add."""
        return encode_batch(
            [(each.body, own_properties(each.properties), each.flag) for each in self.records]
        )


class Salvaged(NamedTuple):
    """Count messages that were sent, that a broker had already, and batches no broker took."""

    stored_count: int
    found_count: int
    problems: list[str]


def read_kept(path: Path, *, system_topics: Collection[str]) -> tuple[list[Kept], int]:
    """Return the records of a file, and the bytes behind them that are none. Raises StoreError."""
    match = _FILE_NAME.fullmatch(path.name)
    if match is None:
        raise StoreError(f"{path} is no file of commitlog.diverged: its name must be START-END.bin")
    start, end = (int(group) for group in match.groups())
    try:
        with path.open("rb") as file:
            data = file.read(KEPT_BYTES_MAX + 1)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > KEPT_BYTES_MAX or not len(data) <= end - start:
        raise StoreError(f"{path} has more bytes than {min(KEPT_BYTES_MAX, end - start)}")
    if end - start <= KEPT_BYTES_MAX:
        # Zeros at the end are not kept, and a record without properties ends in some.
        data = data.ljust(end - start, b"\0")
    kept: list[Kept] = []
    at = 0
    while len(data) - at >= _SHORTEST_BYTES and data[at + 4 : at + 8] != _BLANK_MAGIC:
        try:
            size = check_record(data, at, position=start + at)
        except MessageFormatError:
            break
        record = decode_record(data[at : at + size])
        kept.append(Kept(record, _left_because(record, system_topics)))
        at += size
    rest = data[at:].rstrip(b"\0")
    return kept, 0 if rest[4:8] == _BLANK_MAGIC else len(rest)


def _left_because(record: Record, system_topics: Collection[str]) -> str:
    topic = record.topic
    if topic in system_topics or topic.lower().startswith(_SYSTEM_PREFIXES):
        return "a topic of the broker's own"
    if record.sys_flag & _TRANSACTION_MASK not in (0, _TRANSACTION_COMMITTED):
        return "of a transaction that is not committed"
    if property_value(record.properties, names.MQTT_PACKET_ID.encode()) is not None:
        # With its packet id it could take the place of another message, without it it could come twice.
        return "QoS 2: its device sends it until it is acknowledged"
    return ""


def own_properties(raw: bytes) -> bytes:
    """Return the properties of a record without those that brokers set, otherwise as they are."""
    pieces = []
    for piece in raw.split(b"\x02"):
        name, separator, _ = piece.partition(b"\x01")
        text = name.decode("utf-8", "replace")
        if separator and text not in _OF_THE_BROKER and not text.startswith(_TIMER_PREFIX):
            pieces.append(piece + b"\x02")
    return b"".join(pieces)


def batches_of(kept: list[Kept]) -> Iterator[Batch]:
    """Yield what was sent as one batch: a message with a unique key, and those without one behind it."""
    batch: Batch | None = None
    last: Record | None = None
    for record in (each.record for each in kept if not each.left_because):
        is_next = (
            batch is not None
            and last is not None
            and last.position + last.size == record.position
            and (last.topic, last.queue_id, last.store_timestamp_ms, last.sys_flag)
            == (record.topic, record.queue_id, record.store_timestamp_ms, record.sys_flag)
            and property_value(record.properties, names.UNIQ_KEY.encode()) is None
            and len(batch.records) < BATCH_RECORDS_MAX
        )
        last = record
        if is_next and batch is not None:
            batch.records.append(record)
            continue
        if batch is not None:
            yield batch
        batch = Batch(record.topic, record.queue_id, record.sys_flag & _BODY_FLAGS, [record])
    if batch is not None:
        yield batch


def show(kept: list[Kept], rest_bytes: int, *, has_bodies: bool, is_json: bool, output: TextIO) -> None:
    """Print each record, a line each."""
    for each in kept:
        row = record_row(each.record, has_body=has_bodies) | {"left_because": each.left_because}
        print(json.dumps(row, ensure_ascii=False) if is_json else readable(row), file=output)
    if rest_bytes and not is_json:
        print(f"{rest_bytes:,} bytes behind them are no whole record", file=output)


async def publish(settings: ClientSettings, batches: list[Batch], *, broker: str) -> Salvaged:
    """Send batches in order, each to its queue at `broker`, or to one of its topic when that is not there.

    Raises ConnectionClosedError when no registry is there.
    """
    from iotmq.client.consuming.offsets.offsets import max_offset
    from iotmq.client.sending.producer import Producer
    from iotmq.client.transport.client import ClientTransport
    from iotmq.client.transport.routes import MessageQueue
    from iotmq.errors import BrokerError, MessageRefusedError, RequestTimeoutError, RouteNotFoundError

    stored = found = 0
    problems: list[str] = []
    # What a queue has before anything is sent to it: an answer with an offset below says it was there.
    begins: dict[MessageQueue, int] = {}
    client = ClientTransport(settings)
    async with client, Producer(client) as producer:
        for batch in batches:
            place = f"{batch.topic}/{batch.queue_id}, position {batch.records[0].position}"
            try:
                queues = await producer.queues(batch.topic)
                queue = MessageQueue(batch.topic, broker, batch.queue_id)
                if queue not in queues:
                    queue = queues[batch.queue_id % len(queues)]
                if queue not in begins:
                    begins[queue] = await max_offset(client, queue)
                await producer.room()
                result = await producer.send_encoded_batch_nowait(
                    batch.topic,
                    queue,
                    batch.elements(),
                    len(batch.records),
                    is_repeat=True,
                    sys_flag=batch.sys_flag,
                )
            except (BrokerError, MessageRefusedError, RequestTimeoutError, RouteNotFoundError) as error:
                problems.append(f"{place}: {error}")
                continue
            if result.queue == queue and result.queue_offset >= begins[queue]:
                stored += len(batch.records)
            else:
                found += len(batch.records)
    return Salvaged(stored, found, problems)


def summary(kept: list[Kept]) -> Iterator[str]:
    """Say how many records are left, and why, and how many can be published."""
    left = Counter(each.left_because for each in kept)
    can = left.pop("", 0)
    yield f"{len(kept):,} records; {can:,} can be published again"
    for reason, count in sorted(left.items()):
        yield f"{count:,} are left: {reason}"


def exit_code(salvaged: Salvaged) -> int:
    """Return 0 when every message is stored now."""
    return EXIT_FOUND if salvaged.problems else EXIT_OK
