"""The record codec once more, slow and plain: what the compiled one is compared with."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

MAGIC = 0xDAA320A7
MAGIC_LONG_TOPIC = 0xDAA320AB


class OracleError(Exception):
    """The bytes are not in the format."""


@dataclass(frozen=True, kw_only=True)
class OracleRecord:
    """All fields of a record, named as the compiled Record names them."""

    topic: str
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    position: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    store_timestamp_ms: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_position: int = 0


def encode(record: OracleRecord, *, magic: int = MAGIC) -> bytes:
    """The record's bytes; its sys_flag must fit its hosts."""
    topic = record.topic.encode()
    topic_size = struct.pack(">B" if magic == MAGIC else ">H", len(topic))
    behind_size = b"".join(
        [
            struct.pack(">IIiiqq", magic, crc(record.body), record.queue_id, record.flag, record.queue_offset,
                        record.position),
            struct.pack(">iq", record.sys_flag, record.born_timestamp_ms),
            record.born_host,
            struct.pack(">q", record.store_timestamp_ms),
            record.store_host,
            struct.pack(">iqi", record.reconsume_times, record.prepared_position, len(record.body)),
            record.body,
            topic_size,
            topic,
            struct.pack(">H", len(record.properties)),
            record.properties,
        ]
    )  # fmt: skip
    return struct.pack(">i", 4 + len(behind_size)) + behind_size


class Reader:
    """Takes fields off the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise OracleError(f"{size} bytes at {self.at} of {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, code: str) -> int:
        (value,) = struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))
        assert isinstance(value, int)
        return value


def decode(data: bytes, at: int = 0) -> tuple[OracleRecord, int]:
    """The record at byte `at` and its size."""
    size = Reader(data[at:]).number("i")
    if size < 0 or at + size > len(data):
        raise OracleError(f"size {size}")
    reader = Reader(data[at : at + size])
    reader.number("i")
    magic = reader.number("I")
    if magic not in (MAGIC, MAGIC_LONG_TOPIC):
        raise OracleError("magic")
    reader.number("I")
    queue_id, flag, queue_offset, position = (reader.number(code) for code in "iiqq")
    sys_flag = reader.number("i")
    born_timestamp_ms = reader.number("q")
    born_host = reader.take(20 if sys_flag & 16 else 8)
    store_timestamp_ms = reader.number("q")
    store_host = reader.take(20 if sys_flag & 32 else 8)
    reconsume_times = reader.number("i")
    prepared_position = reader.number("q")
    body = reader.take(reader.number("i"))
    topic = reader.take(reader.number("B" if magic == MAGIC else "H"))
    properties = reader.take(reader.number("h"))
    if reader.at != size:
        raise OracleError("bytes left over")
    record = OracleRecord(
        topic=topic.decode("utf-8", "replace"),
        body=body,
        properties=properties,
        queue_id=queue_id,
        flag=flag,
        queue_offset=queue_offset,
        position=position,
        sys_flag=sys_flag,
        born_timestamp_ms=born_timestamp_ms,
        born_host=born_host,
        store_timestamp_ms=store_timestamp_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_position=prepared_position,
    )
    return record, size


def decode_all(data: bytes) -> list[OracleRecord]:
    """All records of a pull response."""
    records: list[OracleRecord] = []
    at = 0
    while at < len(data):
        record, size = decode(data, at)
        records.append(record)
        at += size
    return records


def encode_element(body: bytes, properties: bytes, flag: int) -> bytes:
    """One element of a batch body."""
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def decode_batch(data: bytes) -> list[tuple[bytes, bytes, int]]:
    """The (body, properties, flag) of each element of a batch body."""
    elements: list[tuple[bytes, bytes, int]] = []
    at = 0
    while at < len(data):
        size = Reader(data[at:]).number("i")
        if size < 0 or at + size > len(data):
            raise OracleError(f"size {size}")
        reader = Reader(data[at : at + size])
        reader.take(12)
        flag = reader.number("i")
        body = reader.take(reader.number("i"))
        properties = reader.take(reader.number("h"))
        if reader.at != size:
            raise OracleError("bytes left over")
        elements.append((body, properties, flag))
        at += size
    return elements


def join_properties(own: bytes, shared: bytes) -> bytes:
    """An element's properties with those of its batch behind them."""
    if own and shared and not own.endswith(b"\x02"):
        own += b"\x02"
    return own + shared


def properties_of(raw: bytes) -> dict[bytes, bytes]:
    """All pairs, the last of several winning."""
    pairs: dict[bytes, bytes] = {}
    for piece in raw.split(b"\x02"):
        if b"\x01" in piece:
            name, value = piece.split(b"\x01", 1)
            pairs[name] = value
    return pairs


def java_hash(text: str) -> int:
    """String.hashCode: over UTF-16 units, wrapped to int32."""
    units = text.encode("utf-16-be")
    value = 0
    for (unit,) in struct.iter_unpack(">H", units):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def tags_code(raw: bytes) -> int:
    """What the queue entry of a record with these properties holds."""
    return java_hash(properties_of(raw).get(b"TAGS", b"").decode("utf-8", "replace"))


def crc(body: bytes) -> int:
    """The body checksum of a record."""
    return zlib.crc32(body) & 0x7FFFFFFF
