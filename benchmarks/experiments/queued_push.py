"""Whether `broker/light_queues/queued_push.pyx` has to be compiled: the same with numpy, beside it.

.venv/bin/python -m benchmarks.experiments.queued_push
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from iotmq.broker.light_queues.queued_push import gather_queued

_RECORD_BYTES: Final = 200
_ROUNDS: Final = 7
_BYTES_MAX: Final = 1 << 20

Gather: TypeAlias = Callable[[bytes, bytes, int, int], tuple[bytearray, bytearray, int]]


def gather_by_numpy(
    records: bytes, pushes: bytes, start: int, bytes_max: int
) -> tuple[bytearray, bytearray, int]:
    """As `gather_queued`, for a push that has something from byte `start` on."""
    pairs = np.frombuffer(pushes, ">u4").reshape(-1, 2)[start // 8 :]
    places = pairs[:, 0]
    is_new = np.ones(len(pairs), bool)
    np.not_equal(places[1:], places[:-1], out=is_new[1:])
    firsts = places[is_new].astype(np.int64)
    data = np.frombuffer(records, np.uint8)
    sizes = np.zeros(len(firsts), np.int64)
    for byte in range(4):
        sizes = (sizes << 8) | data[firsts + byte]
    ends = np.cumsum(sizes)
    count = max(1, int(np.searchsorted(ends, bytes_max, "right")))
    numbers = np.cumsum(is_new) - 1
    taken = int(np.searchsorted(numbers, count))
    ranges = zip(firsts[:count].tolist(), sizes[:count].tolist(), strict=True)
    gathered = b"".join([records[at : at + size] for at, size in ranges])
    renumbered = pairs[:taken].copy()
    renumbered[:, 0] = (ends - sizes)[numbers[:taken]]
    return bytearray(gathered), bytearray(renumbered.tobytes()), start + 8 * taken


def main() -> None:
    """Print the time of a call, the least of some rounds, for pushes of several sizes."""
    for count in (1, 10, 100, 5_000):
        record = struct.pack(">I", _RECORD_BYTES) + bytes(_RECORD_BYTES - 4)
        records = record * count
        pushes = b"".join(struct.pack(">II", _RECORD_BYTES * number, number) for number in range(count))
        expected = gather_queued(records, pushes, 0, _BYTES_MAX)
        assert gather_by_numpy(records, pushes, 0, _BYTES_MAX) == expected
        compiled_us, numpy_us = (_call_us(each, records, pushes) for each in (gather_queued, gather_by_numpy))
        ratio = numpy_us / compiled_us
        print(f"{count:5,} records: compiled {compiled_us:8.1f} us, numpy {numpy_us:8.1f} us ({ratio:.0f}x)")


def _call_us(gather: Gather, records: bytes, pushes: bytes) -> float:
    calls = max(10, 20_000 // len(pushes))
    times_s = []
    for _ in range(_ROUNDS):
        began_s = time.perf_counter()
        for _ in range(calls):
            gather(records, pushes, 0, _BYTES_MAX)
        times_s.append(time.perf_counter() - began_s)
    return min(times_s) / calls * 1e6


if __name__ == "__main__":
    main()
