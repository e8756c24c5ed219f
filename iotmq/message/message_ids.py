"""The two ids of a message: where it is stored, and the key its producer gave it.

Both are upper-case hexadecimal, 32 characters with an IPv4 address in them and 56 with IPv6.
"""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime

from iotmq.clock import Clock, SystemClock
from iotmq.message.errors import MessageFormatError
from iotmq.message.hosts import HOST_V4_BYTES, HOST_V6_BYTES, decode_host, encode_host

_LOOPBACK = bytes((127, 0, 0, 1))
_POSITION_BYTES = 8
_COUNTER_VALUES = 0x10000


def offset_message_id(host: str, port: int, position: int) -> str:
    """Return the id of the record at `position` of the broker that advertises `host` and `port`."""
    return message_id_prefix(encode_host(host, port)) + f"{position:016X}"


def message_id_prefix(store_host: bytes) -> str:
    """Return the common beginning of a broker's message ids: format positions behind it with `016X`."""
    return store_host.hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """Host, port and position in an id. Raises MessageFormatError for anything else, also for a
    producer's key that happens to look like one but has a port or position no broker has."""
    try:
        encoded = bytes.fromhex(message_id)
    except ValueError:
        encoded = b""
    host_size = len(encoded) - _POSITION_BYTES
    # `fromhex` skips blanks, so the text must have the length as well.
    if host_size not in (HOST_V4_BYTES, HOST_V6_BYTES) or len(message_id) != 2 * len(encoded):
        raise MessageFormatError(f"not a message id: {message_id[:64]!r}")
    host, port = decode_host(encoded[:host_size])
    position = int.from_bytes(encoded[host_size:], signed=True)
    if position < 0 or not 0 <= port <= 65_535:
        raise MessageFormatError(f"not a message id of a broker: {message_id!r}")
    return host, port, position


class UniqueKeys:
    """Makes the UNIQ_KEY of messages: unlike any other, also those of other processes and hosts.

    Layout: IP address 4 (always loopback: the number makes keys differ), process id 2, a number of this
    generator 4 (Java has its class loader's hash there), milliseconds since the first of the month (UTC) 4,
    counter 2. Java starts the month in local time; nothing but its tools' guess of the sending time depends
    on that.
    A new month and a fork make it take a new number, so that keys do not come round again.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._counter = 0
        # The millisecond of the last key: runs ahead of the clock when it has used up its 65,536 keys
        # or the clock steps back.
        self._last_ms = 0
        self._month_end_ms = 0
        self._start_process()

    def next(self) -> str:
        """One key."""
        return self.next_batch(1)[0]

    def next_batch(self, count: int) -> list[str]:
        """`count` keys, in rising order within a month, until the counter starts again."""
        keys: list[str] = []
        while len(keys) < count:
            prefix, first, end = self.next_numbers(count - len(keys))
            keys += [f"{prefix}{number:04X}" for number in range(first, end)]
        return keys

    def next_numbers(self, count: int) -> tuple[str, int, int]:
        """Take up to `count` keys: what they begin with, and the numbers behind it (`04X`), first and end."""
        if os.getpid() != self._process_id:
            self._start_process()
        now_ms = self._clock.now_ms()
        if now_ms > self._last_ms:
            self._enter(now_ms)
        elif self._counter == _COUNTER_VALUES:
            self._enter(self._last_ms + 1)
        first = self._counter
        self._counter = min(first + count, _COUNTER_VALUES)
        return self._prefix, first, self._counter

    def _enter(self, ms: int) -> None:
        """Start a millisecond's counter."""
        if ms >= self._month_end_ms:
            self._start_month(ms)
        self._last_ms = ms
        self._counter = 0
        self._prefix = f"{self._process}{ms - self._month_start_ms:08X}"

    def _start_month(self, ms: int) -> None:
        day = datetime.fromtimestamp(ms / 1000, UTC).date()
        first = datetime(day.year, day.month, 1, tzinfo=UTC)
        after = datetime(day.year + day.month // 12, day.month % 12 + 1, 1, tzinfo=UTC)
        self._month_start_ms = int(first.timestamp()) * 1000
        self._month_end_ms = int(after.timestamp()) * 1000
        fields = _LOOPBACK + (self._process_id & 0xFFFF).to_bytes(2) + secrets.token_bytes(4)
        self._process = fields.hex().upper()

    def _start_process(self) -> None:
        self._process_id = os.getpid()
        self._month_end_ms = 0
        self._enter(max(self._last_ms, self._clock.now_ms()))
