"""A process that writes numbers to a topic through the sink, to be killed: REGISTRY TOPIC ROWS BATCH."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow
from sink_harness import record_batches, sink

ROWS_AT_ONCE = 500


def numbers(rows: int, batch: int) -> Iterator[pyarrow.RecordBatch]:
    """Rows whose values say which they are, told as they are sent."""
    for at in range(0, rows, ROWS_AT_ONCE):
        print(at, flush=True)
        yield from record_batches(
            [
                {"value": b"%d:%d" % (batch, number), "key": f"device-{number % 97}" if number % 5 else None}
                for number in range(at, min(at + ROWS_AT_ONCE, rows))
            ]
        )


def write(registry: str, topic: str, rows: int, batch: int) -> int:
    """Write one batch of numbers."""
    options = {"topic": topic, "batchBytes": "4096", "inFlightBytes": "65536"}
    return sink(registry, numbers(rows, batch), producer="numbers/0", batch=batch, **options)


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
