"""Pieces of a bounded size that a master's tables are sent in, and their bytes.

A piece has entries of one table, as a MessagePack array. Either it is part of a copy of the whole table,
which takes the place of what a follower has once it is complete; or it has what changed, and holds by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import msgspec

from iotmq import limits
from iotmq.broker.tables.config_files import DataVersion
from iotmq.errors import TableCopyError

# What a piece is filled up to: a millisecond of the loop.
PIECE_BYTES: Final = 32 * 1024
# In place of the number of a copy: the piece has what changed.
CHANGED: Final = 0

_ARRAY_OF_32_BITS: Final = b"\xdd"

E = TypeVar("E")


class TablePiece(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Some entries of a table.

    `copy` numbers the copies a master has begun; those of one copy have the same number, the first and the
    last of them say so. `version` is that of a whole table, where it has one.
    """

    table: str
    copy: int = CHANGED
    is_first: bool = False
    is_last: bool = False
    version: DataVersion = DataVersion()
    body: bytes

    def encode(self) -> bytes:
        """Return the bytes for a connection."""
        return msgspec.msgpack.encode(self)


def decode_piece(data: bytes | memoryview) -> TablePiece:
    """Read what `TablePiece.encode` wrote. Raises TableCopyError."""
    if len(data) > limits.TABLE_PIECE_BYTES_MAX:
        raise TableCopyError(
            f"a piece of a table has {len(data)} bytes, more than {limits.TABLE_PIECE_BYTES_MAX}"
        )
    try:
        return msgspec.msgpack.decode(data, type=TablePiece)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TableCopyError(f"this is no piece of a table: {error}") from None


def encode_bodies(entries: Iterable[object]) -> Iterator[tuple[bytes, bool]]:
    """Yield the bodies of pieces, and whether it is the last: one at least, each made when it is asked for.

    No entry is read before the body that has it is asked for: what changes in between is sent in between.
    """
    encode = msgspec.msgpack.Encoder().encode
    parts: list[bytes] = []
    size = 0
    for entry in entries:
        try:
            data = encode(entry)
        except UnicodeEncodeError:
            # A client has named something with half a surrogate pair; it must not stop all of the others.
            continue
        parts.append(data)
        size += len(data)
        if size >= PIECE_BYTES:
            yield _array(parts), False
            parts, size = [], 0
    yield _array(parts), True


def decode_body(piece: TablePiece, entry_type: type[E]) -> list[E]:
    """Return the entries of a piece. Raises TableCopyError."""
    if len(piece.body) > limits.TABLE_PIECE_BYTES_MAX:
        raise TableCopyError(
            f"a piece of the table {piece.table} has {len(piece.body)} bytes, more than "
            f"{limits.TABLE_PIECE_BYTES_MAX}"
        )
    try:
        return msgspec.msgpack.decode(piece.body, type=list[entry_type])  # type: ignore[valid-type]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TableCopyError(f"a piece of the table {piece.table} cannot be read: {error}") from None


def _array(parts: list[bytes]) -> bytes:
    return b"".join((_ARRAY_OF_32_BITS, len(parts).to_bytes(4, "big"), *parts))
