"""Compressed bodies: marked by bits of the record's sys flag, stored and CRC-checked compressed."""

from __future__ import annotations

import base64
from typing import Final

from iotmq.limits import INFLATED_BODY_BYTES_MAX
from iotmq.message.compression import Compression, compress, decompress
from iotmq.message.errors import MessageFormatError

COMPRESSED: Final = 1
# Bits 8-10 name the method; senders older than the field leave 0 and mean zlib.
METHOD_SHIFT: Final = 8
METHOD_MASK: Final = 7 << METHOD_SHIFT
_METHODS: Final[dict[int, Compression]] = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}
_NUMBERS: Final[dict[Compression, int]] = {method: number for number, method in _METHODS.items()}


def compress_body(body: bytes, method: Compression = "zlib", *, level: int = 5) -> tuple[bytes, int]:
    """Return the body compressed, and the sys flag that says so; itself and 0 when that is not shorter."""
    compressed = compress(body, method, level)
    if len(compressed) >= len(body):
        return body, 0
    return compressed, COMPRESSED | _NUMBERS[method] << METHOD_SHIFT


def inflate_body(body: bytes, sys_flag: int, *, bytes_max: int = INFLATED_BODY_BYTES_MAX) -> bytes:
    """Return the body as its sender made it: inflated when `sys_flag` says it is compressed, else as it is.

    Raises MessageFormatError for a damaged body, for an unknown method, for one whose library is not
    installed (CompressionMissingError), and for a body that inflates past `bytes_max` (BodyTooLargeError).
    `decode_columns` follows the same rules.
    """
    if not sys_flag & COMPRESSED:
        return body
    method = _METHODS.get((sys_flag & METHOD_MASK) >> METHOD_SHIFT)
    if method is None:
        raise MessageFormatError("body compressed in an unknown way")
    return decompress(body, method, bytes_max)


def body_field(body: bytes) -> dict[str, str]:
    """Return the body as a field of JSON: `body`, or `body_base64` for one that is no text."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def text_beginning(body: bytes, bytes_max: int) -> str:
    """Return the first bytes of a text, without half a character at the end of them.

    Raises UnicodeDecodeError for what is no text.
    """
    shown = body[:bytes_max]
    try:
        return shown.decode()
    except UnicodeDecodeError as error:
        if len(shown) == len(body) or error.reason != "unexpected end of data":
            raise
        return shown[: error.start].decode()
