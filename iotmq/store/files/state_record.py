"""A few numbers in a file, known by a magic and proved by a checksum: how far something is on the disk.

magic 8 | numbers, 8 bytes each | CRC-32 of all that 4, big-endian. Small enough for one disk sector and
written in place, so that a full disk does not keep a store from closing cleanly. Should it be torn
nevertheless, the checksum fails, and what the record vouched for is made again.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import NamedTuple

from iotmq.files import sync_path
from iotmq.store import fail_points

_CRC = struct.Struct(">I")


class State(NamedTuple):
    """Hold the contents of a state record."""

    magic: bytes
    numbers: tuple[int, ...]


def sealed(data: bytes) -> bytes:
    """`data` and its checksum."""
    return data + _CRC.pack(zlib.crc32(data))


def unsealed(data: bytes) -> bytes | None:
    """Open what `sealed` made; None for any other bytes."""
    content = data[: -_CRC.size]
    return content if len(data) > _CRC.size and data[-_CRC.size :] == _CRC.pack(zlib.crc32(content)) else None


def encode_state(magic: bytes, *numbers: int) -> bytes:
    """Encode a record; `magic` has 8 bytes."""
    return sealed(struct.pack(f">8s{len(numbers)}q", magic, *numbers))


def decode_state(data: bytes, *magics: bytes, count: int) -> State | None:
    """Return the record if it has one of the magics and so many numbers, and proves itself."""
    content = unsealed(data)
    if content is None or len(content) != 8 + 8 * count or content[:8] not in magics:
        return None
    return State(content[:8], struct.unpack(f">{count}q", content[8:]))


def read_state(path: str, *magics: bytes, count: int) -> State | None:
    """Return the record in the file at `path`; None when there is none that proves itself. Raises OSError."""
    try:
        with open(path, "rb") as file:
            data = file.read(4096)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return decode_state(data, *magics, count=count)


def write_state(path: str, record: bytes, *, fail_point: str) -> None:
    """Replace what the file at `path` holds, and wait for the disk; raises OSError."""
    is_new = not os.path.exists(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(descriptor, record, 0)
        fail_points.reach(fail_point)
        os.ftruncate(descriptor, len(record))
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        sync_path(os.path.dirname(path))
