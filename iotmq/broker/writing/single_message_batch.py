"""One message as a batch of one, for those that come alone (wire document 6.5), and batches taken apart."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from typing_extensions import Buffer

from iotmq.errors import RequestError
from iotmq.message.bodies import COMPRESSED, METHOD_MASK, inflate_body
from iotmq.message.compression import is_compressed
from iotmq.message.errors import MessageFormatError
from iotmq.message.records.record import check_batch
from iotmq.remoting.codes import ResponseCode

# Up to the body: total size, magic 0, CRC 0, flag, body size.
_HEAD = struct.Struct(">iiiii")
_PROPERTIES_SIZE = struct.Struct(">h")
_FIXED_BYTES = _HEAD.size + _PROPERTIES_SIZE.size


def encode_element(body: bytes | memoryview, properties: bytes, flag: int) -> bytes:
    """A batch of one element. The caller has checked that properties fit 16 bits."""
    body_size = len(body)
    return b"".join(
        (
            _HEAD.pack(_FIXED_BYTES + body_size + len(properties), 0, 0, flag, body_size),
            body,
            _PROPERTIES_SIZE.pack(len(properties)),
            properties,
        )
    )


def split_elements(batch: Buffer) -> Iterator[tuple[bytes, bytes, int]]:
    """(body, properties, flag) of each element. Raises MessageFormatError for a batch that is not one."""
    check_batch(batch)
    view = memoryview(batch)
    at = 0
    while at < len(view):
        size, _, _, flag, body_size = _HEAD.unpack_from(view, at)
        body_end = at + _HEAD.size + body_size
        properties_at = body_end + _PROPERTIES_SIZE.size
        yield bytes(view[at + _HEAD.size : body_end]), bytes(view[properties_at : at + size]), flag
        at += size


def inflate_batch(elements: bytes | memoryview, sys_flag: int) -> tuple[bytes | memoryview, int]:
    """Return the elements of a batch that was compressed as a whole, as the C++ client does it past 4 KiB."""
    if not is_compressed(bytes(elements[:4])):
        return elements, sys_flag
    try:
        plain = inflate_body(bytes(elements), sys_flag)
    except MessageFormatError as error:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"compressed batch: {error}") from error
    return plain, sys_flag & ~(COMPRESSED | METHOD_MASK)
