"""The key index as plainly as it can be said: the slow twin of
iotmq/store/projections/key_index/key_index.pyx."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from iotmq.message.properties import decode_properties

INT32_MAX = 0x7FFFFFFF
ROLLBACK = 12


def java_hash(text: str) -> int:
    """String.hashCode."""
    value = 0
    units = text.encode("utf-16-be", "replace")
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def index_hash(text: str) -> int:
    value = abs(java_hash(text))
    return 0 if value > INT32_MAX else value


def keys_of(properties: bytes) -> list[str]:
    """What is entered for a record, in this order."""
    pairs = decode_properties(properties)
    unique_key = pairs.get("UNIQ_KEY", "")
    return [key for key in (unique_key, *pairs.get("KEYS", "").split(" ")) if key]


class Entry(NamedTuple):
    hash: int
    position: int
    seconds: int
    older: int


class OracleFile:
    def __init__(self, name: int, slots: int, previous: OracleFile | None) -> None:
        self.name = name
        self.begin_ms = self.end_ms = 0 if previous is None else previous.end_ms
        self.begin_position = self.end_position = 0 if previous is None else previous.end_position
        self.slots = [0] * slots
        # Entry 0 is never used.
        self.entries = [Entry(0, 0, 0, 0)]

    def put(self, hash_: int, position: int, timestamp_ms: int) -> None:
        if len(self.entries) == 1:
            self.begin_ms, self.begin_position = timestamp_ms, position
        seconds = 0
        if self.begin_ms > 0:
            seconds = min(max((timestamp_ms - self.begin_ms) // 1000, 0), INT32_MAX)
        slot = hash_ % len(self.slots)
        self.entries.append(Entry(hash_, position, seconds, self.slots[slot]))
        self.slots[slot] = len(self.entries) - 1
        self.end_ms, self.end_position = timestamp_ms, position

    def data(self, entries: int) -> bytes:
        """The whole file."""
        used = sum(1 for slot in self.slots if slot)
        header = struct.pack(
            ">qqqqii",
            self.begin_ms,
            self.end_ms,
            self.begin_position,
            self.end_position,
            used,
            len(self.entries),
        )
        slots = struct.pack(f">{len(self.slots)}i", *self.slots)
        data = header + slots + b"".join(struct.pack(">iqii", *entry) for entry in self.entries)
        return data.ljust(40 + 4 * len(self.slots) + 20 * entries, b"\0")


class IndexOracle:
    """Files of `slots` slots and room for `entries - 1` entries."""

    def __init__(self, slots: int, entries: int) -> None:
        self.files: list[OracleFile] = []
        self._slots = slots
        self._entries = entries

    def add(
        self, topic: str, properties: bytes, position: int, timestamp_ms: int, *, sys_flag: int = 0
    ) -> None:
        if sys_flag & 12 == ROLLBACK:
            return
        for key in keys_of(properties):
            if not self.files or len(self.files[-1].entries) == self._entries:
                self._roll(timestamp_ms)
            self.files[-1].put(index_hash(f"{topic}#{key}"), position, timestamp_ms)

    def data(self) -> dict[str, bytes]:
        """What the directory has to hold."""
        return {f"{file.name:017d}": file.data(self._entries) for file in self.files}

    def look_up(self, topic: str, key: str, begin_ms: int, end_ms: int) -> list[int]:
        """Every position proposed, the newest first. Times are compared to the second, never missing one."""
        wanted = index_hash(f"{topic}#{key}")
        positions = []
        for file in reversed(self.files):
            if file.begin_ms <= end_ms and file.end_ms >= begin_ms:
                number = file.slots[wanted % self._slots]
                while number:
                    entry = file.entries[number]
                    time_ms = file.begin_ms + 1000 * entry.seconds
                    if entry.hash == wanted and time_ms <= end_ms and time_ms + 999 >= begin_ms:
                        positions.append(entry.position)
                    if time_ms + 999 < begin_ms:
                        break
                    number = entry.older
            if file.begin_ms < begin_ms:
                break
        return positions

    def _roll(self, timestamp_ms: int) -> None:
        previous = self.files[-1] if self.files else None
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=max(timestamp_ms, 0))
        name = int(time.strftime("%Y%m%d%H%M%S") + f"{time.microsecond // 1000:03d}")
        if previous is not None:
            name = max(name, previous.name + 1)
        self.files.append(OracleFile(name, self._slots, previous))
