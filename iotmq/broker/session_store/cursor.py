"""Keep a session's progress in one filter: log positions, and ranges it is not sent because of a queue limit.

position 8 | sent 8 | (from 8 | to 8) repeated; big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from iotmq.errors import StoreCorruptError

SKIPS_MAX: Final = 16
"""Ranges of one filter; the last two become one when there would be more."""

_HEAD: Final = struct.Struct(">QQ")
_SKIP: Final = struct.Struct(">QQ")

Skip = tuple[int, int]
"""From a position on to before another."""


class Cursor(NamedTuple):
    """The session is done with records before `position`, was sent those before `sent`, skips `skips`."""

    position: int
    sent: int
    skips: tuple[Skip, ...] = ()

    def moved(self, position: int, sent: int) -> Cursor:
        """Return the same session farther on; it does not go back behind what it skipped meanwhile."""
        position = max(position, self.position)
        return Cursor(position, sent, tuple(skip for skip in self.skips if skip[1] > position))

    def skipping(self, start: int, end: int) -> Cursor:
        """Without the records of [start, end); what was sent and is not done stays."""
        if start <= self.position:
            return self.moved(end, max(self.sent, end))
        skips: list[Skip] = []
        for first, last in sorted((*self.skips, (start, end))):
            if skips and first <= skips[-1][1]:
                skips[-1] = skips[-1][0], max(skips[-1][1], last)
            else:
                skips.append((first, last))
        if len(skips) > SKIPS_MAX:
            skips[-2:] = [(skips[-2][0], skips[-1][1])]
        return Cursor(self.position, self.sent, tuple(skips))

    def waiting(self) -> list[tuple[int, int | None]]:
        """Return the ranges with what was not sent yet, the last one without an end."""
        found: list[tuple[int, int | None]] = []
        start = max(self.position, self.sent)
        for first, last in self.skips:
            if last <= start:
                continue
            if start < first:
                found.append((start, first))
            start = last
        return [*found, (start, None)]

    def next_skip(self, position: int) -> Skip | None:
        """Return the first range to skip that ends behind a position."""
        return next((skip for skip in self.skips if skip[1] > position), None)

    def encode(self) -> bytes:
        return _HEAD.pack(self.position, self.sent) + b"".join(_SKIP.pack(*skip) for skip in self.skips)


def decode_cursor(value: bytes) -> Cursor:
    """Decode the bytes of `Cursor.encode`; StoreCorruptError for any others."""
    if len(value) < _HEAD.size or (len(value) - _HEAD.size) % _SKIP.size:
        raise StoreCorruptError(f"a session's cursor in a queue has {len(value)} bytes")
    position, sent = _HEAD.unpack_from(value)
    skips: Sequence[Skip] = list(_SKIP.iter_unpack(value[_HEAD.size :]))
    return Cursor(position, sent, tuple(skips))
