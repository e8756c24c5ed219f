"""Split an encoded answer at its numbers, as a template that compiled code fills in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from iotmq.remoting.codes import Flag, LanguageCode, Serialize, Version
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import encode

_OPAQUE: Final = 1_234_567_890


def json_pieces(
    code: int, ext: Mapping[str, str], words: Sequence[str], *, remark: str | None = None
) -> tuple[bytes, ...]:
    """Split the JSON around `words` (values of `ext` in its order) and the opaque.

    The words must stand before any text that might hold one of them.
    """
    rest = _header(code, ext, remark, Serialize.JSON)
    pieces = []
    for word in words:
        piece, _, rest = rest.partition(word.encode())
        pieces.append(piece)
    # Texts behind the words may be any, but all fields stand before the opaque.
    piece, _, rest = rest.rpartition(str(_OPAQUE).encode())
    return (*pieces, piece, rest)


def binary_pieces(
    code: int, ext: Mapping[str, str], words: Sequence[str], *, remark: str | None = None
) -> tuple[bytes, ...]:
    """Split the binary header around the opaque, the size of all fields, and the words with their sizes."""
    header = _header(code, ext, remark, Serialize.BINARY)
    fields_at = 17 + len((remark or "").encode())
    pieces = [header[:5], header[9:fields_at]]
    rest = header[fields_at + 4 :]
    for word in words:
        piece, _, rest = rest.partition(word.encode())
        pieces.append(piece[:-4])
    return (*pieces, rest)


def _header(code: int, ext: Mapping[str, str], remark: str | None, serialize: int) -> bytes:
    command = Command(
        code, _OPAQUE, Flag.RESPONSE, LanguageCode.PYTHON, Version.OURS, remark, dict(ext), b"", serialize
    )
    return b"".join(encode(command))[8:]
