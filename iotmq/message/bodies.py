"""Compressed bodies: zlib, marked by bits of the record's sys flag, stored and CRC-checked compressed."""

from __future__ import annotations

import base64
import zlib
from typing import Final

from iotmq.limits import INFLATED_BODY_BYTES_MAX
from iotmq.message.errors import MessageFormatError

COMPRESSED: Final = 1
# Bits 8-10 name the method; senders older than the field leave 0 and mean zlib.
METHOD_SHIFT: Final = 8
METHOD_MASK: Final = 7 << METHOD_SHIFT
METHOD_ZLIB: Final = 3
_ZLIB_METHODS: Final = (0, METHOD_ZLIB)


def compress_body(body: bytes, *, level: int = 5) -> tuple[bytes, int]:
    """Return the body compressed, and the sys flag that says so; itself and 0 when that is not shorter."""
    compressed = zlib.compress(body, level)
    if len(compressed) >= len(body):
        return body, 0
    return compressed, COMPRESSED | METHOD_ZLIB << METHOD_SHIFT


def inflate_body(body: bytes, sys_flag: int) -> bytes:
    """Return the body as its sender made it: inflated when `sys_flag` says it is compressed, else as it is.

    Raises MessageFormatError for a damaged body, for one that inflates past INFLATED_BODY_BYTES_MAX, and for
    a method other than zlib. `decode_columns` follows the same rules.
    """
    if not sys_flag & COMPRESSED:
        return body
    if (sys_flag & METHOD_MASK) >> METHOD_SHIFT not in _ZLIB_METHODS:
        raise MessageFormatError("body compressed in a way other than zlib")
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, INFLATED_BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise MessageFormatError("compressed body is damaged") from error
    if len(plain) > INFLATED_BODY_BYTES_MAX:
        raise MessageFormatError(f"body inflates past {INFLATED_BODY_BYTES_MAX} bytes")
    if not inflater.eof:
        raise MessageFormatError("compressed body is cut off")
    return plain


def body_field(body: bytes) -> dict[str, str]:
    """Return the body as a field of JSON: `body`, or `body_base64` for one that is no text."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
