"""Dump the files of the key index, header by header and chain by chain; for tools, and slow.

The layout is that of `key_index`; read here from the bytes alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from iotmq.store.tools.inspection import map_file

if TYPE_CHECKING:
    from iotmq.store.settings import StoreSettings

NAME_DIGITS: Final = 17

_HEADER: Final = struct.Struct(">qqqqii")
_SLOT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">iqii")
# Entries to a slot in a file of the usual size, for one whose settings are not known.
_ENTRIES_PER_SLOT: Final = 4


def index_rows(directory: Path, settings: StoreSettings, *, first_slot: int = 0) -> Iterator[dict[str, Any]]:
    """For each file its header, then every chain from `first_slot` on, newest entry first."""
    for path in index_files(directory):
        view = map_file(path)
        if len(view) < _HEADER.size:
            yield {"kind": "index", "file": path.name, "problem": f"only {len(view)} bytes"}
            continue
        slots, entries = sizes(len(view), settings)
        begin_ms, end_ms, begin_position, end_position, used_slots, count = _HEADER.unpack_from(view)
        yield {
            "kind": "index",
            "file": path.name,
            "begin_time_ms": begin_ms,
            "end_time_ms": end_ms,
            "begin_position": begin_position,
            "end_position": end_position,
            "slots": slots,
            "used_slots": used_slots,
            "entries": max(0, count - 1),
            "entries_max": entries,
        }
        for slot in range(first_slot, slots):
            (number,) = _SLOT.unpack_from(view, _HEADER.size + _SLOT.size * slot)
            if number:
                yield _chain_row(path, view, slots, slot, number)


def index_files(directory: Path) -> list[Path]:
    """Return the files of the index, oldest first."""
    if not directory.is_dir():
        return []
    return sorted(
        path for path in directory.iterdir() if path.name.isdecimal() and len(path.name) == NAME_DIGITS
    )


def sizes(size_bytes: int, settings: StoreSettings) -> tuple[int, int]:
    """Return how many slots and entries a file of that size has: those of the settings if they fit it."""
    slots, entries = settings.index_slots, settings.index_entries
    if _HEADER.size + slots * _SLOT.size + entries * _ENTRY.size == size_bytes:
        return slots, entries
    slots = (size_bytes - _HEADER.size) // (_SLOT.size + _ENTRIES_PER_SLOT * _ENTRY.size)
    return slots, (size_bytes - _HEADER.size - slots * _SLOT.size) // _ENTRY.size


def _chain_row(path: Path, view: memoryview, slots: int, slot: int, number: int) -> dict[str, Any]:
    entries_at = _HEADER.size + slots * _SLOT.size
    chain: list[dict[str, int]] = []
    row: dict[str, Any] = {"kind": "chain", "file": path.name, "slot": slot, "entries": chain}
    seen: set[int] = set()
    while number:
        if number < 0 or number in seen or entries_at + (number + 1) * _ENTRY.size > len(view):
            row["problem"] = f"leads to entry {number}, which cannot be"
            break
        seen.add(number)
        hash_, position, seconds, older = _ENTRY.unpack_from(view, entries_at + number * _ENTRY.size)
        chain.append({"number": number, "hash": hash_, "position": position, "seconds": seconds})
        number = older
    return row
