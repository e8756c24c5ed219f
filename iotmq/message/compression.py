"""Compress and open bytes as RocketMQ's clients do: by zlib, by LZ4 frames, and by Zstandard frames.

zlib is always there. The others need a library each, which the extra `iotmq[compression]` installs.
"""

from __future__ import annotations

import logging
import zlib
from functools import cache
from typing import Final, Literal, get_args

from iotmq.message.errors import BodyTooLargeError, CompressionMissingError, MessageFormatError

_log = logging.getLogger(__name__)

Compression = Literal["zlib", "lz4", "zstd"]

# A frame of the library begins so; no batch does, of which these bytes would say a size past all limits.
_BEGINNINGS: Final = (b"\x78", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd")
_PACKAGES: Final = {"lz4": "lz4", "zstd": "zstandard"}


def is_compressed(data: bytes) -> bool:
    """Return whether bytes begin as one of the methods makes them, and as no element of a batch can."""
    return data.startswith(_BEGINNINGS)


@cache
def methods_here() -> tuple[Compression, ...]:
    """Return the methods whose libraries are installed."""
    methods: list[Compression] = []
    for method in get_args(Compression):
        try:
            check_method(method)
        except CompressionMissingError:
            continue
        methods.append(method)
    return tuple(methods)


def check_method(method: Compression) -> None:
    """Raise CompressionMissingError, which names the extra, when the library of a method is not installed."""
    try:
        if method == "lz4":
            import lz4.frame  # noqa: F401
        elif method == "zstd":
            import zstandard  # noqa: F401
    except ImportError as error:
        raise CompressionMissingError(missing_text(method)) from error


def missing_text(method: Compression) -> str:
    """Say what a method needs."""
    return f"{method} needs the package {_PACKAGES[method]}: pip install 'iotmq[compression]'"


def compress(data: bytes, method: Compression, level: int) -> bytes:
    """Return the data compressed. LZ4 has no level here, as in RocketMQ's clients."""
    check_method(method)
    if method == "zlib":
        return zlib.compress(data, level)
    if method == "lz4":
        import lz4.frame

        # RocketMQ's Java clients open no frame whose blocks depend on each other.
        compressed: bytes = lz4.frame.compress(data, block_linked=False)
        return compressed
    import zstandard

    return zstandard.ZstdCompressor(level=level).compress(data)


def decompress(data: bytes, method: Compression, bytes_max: int) -> bytes:
    """Open what a sender has compressed.

    BodyTooLargeError when that makes more than `bytes_max`, CompressionMissingError without the library,
    MessageFormatError for what is damaged or cut off. What follows the compressed data is not looked at.
    """
    try:
        check_method(method)
    except CompressionMissingError as error:
        _tell_once(method, str(error))
        raise
    if method == "zlib":
        plain, is_whole = _open_zlib(data, bytes_max + 1)
    elif method == "lz4":
        plain, is_whole = _open_lz4(data, bytes_max + 1)
    else:
        plain, is_whole = _open_zstd(data, bytes_max + 1)
    if len(plain) > bytes_max:
        raise BodyTooLargeError(f"body inflates past {bytes_max} bytes")
    if not is_whole:
        raise MessageFormatError("compressed body is cut off")
    return plain


def _open_zlib(data: bytes, room: int) -> tuple[bytes, bool]:
    """Return at most `room` bytes, and whether that is all, as the next two."""
    inflater = zlib.decompressobj()
    try:
        return inflater.decompress(data, room), inflater.eof
    except zlib.error as error:
        raise _damaged() from error


def _open_lz4(data: bytes, room: int) -> tuple[bytes, bool]:
    import lz4.frame

    opener = lz4.frame.LZ4FrameDecompressor()
    try:
        return opener.decompress(data, room), opener.eof
    except RuntimeError as error:
        raise _damaged() from error


def _open_zstd(data: bytes, room: int) -> tuple[bytes, bool]:
    import zstandard

    opener = zstandard.ZstdDecompressor()
    try:
        # It would make room for all that a frame says it has.
        if zstandard.frame_content_size(data) < room:
            return opener.decompress(data, max_output_size=room), True
    except zstandard.ZstdError:
        pass
    # It has too much, or is damaged: slower, and tells which.
    try:
        with opener.stream_reader(data) as reader:
            return reader.read(room), False
    except zstandard.ZstdError as error:
        raise _damaged() from error


def _damaged() -> MessageFormatError:
    return MessageFormatError("compressed body is damaged")


@cache
def _tell_once(method: Compression, why: str) -> None:
    """Tell operators: where bodies only pass through, nobody else sees the error."""
    _log.error("bodies compressed by %s cannot be opened in this process: %s", method, why)
