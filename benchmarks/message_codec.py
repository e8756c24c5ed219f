"""How long the record codec takes per record, on one core: best of several runs, nanoseconds.

    .venv/bin/python -m benchmarks.message_codec [--body 100] [--records 8000]

The records are those of MQTT messages (topic, key, client id and QoS as properties). "write" is what
the log does per record; "columns" what a Spark task does with a pull response of that many records.
"""

from __future__ import annotations

import argparse
import platform
import random
import time
import zlib
from collections.abc import Callable

import pyarrow

from iotmq.message.properties import KEYS, MQTT_CLIENT_ID, MQTT_QOS, MQTT_TOPIC, encode_properties
from iotmq.message.records.columns import decode_columns
from iotmq.message.records.record import (
    body_checksum,
    check_batch,
    encode_batch,
    encode_records,
    iter_records,
    properties_tags_code,
)

MARK_RECORDS_PER_S = 3_000_000


def best_s(work: Callable[[], object], runs: int = 25) -> float:
    """The shortest time of one run: what the code costs when nothing else has the core."""
    shortest = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        work()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def sample(count: int, body_size: int) -> tuple[bytes, bytes]:
    """A batch body of `count` elements, and the records it becomes."""
    source = random.Random(1)
    elements = [
        (
            source.randbytes(body_size),
            encode_properties(
                {
                    MQTT_TOPIC: f"devices/{device}/telemetry",
                    KEYS: str(device),
                    MQTT_CLIENT_ID: f"c{device}",
                    MQTT_QOS: "1",
                }
            ),
            0,
        )
        for device in (source.randrange(1000) for _ in range(count))
    ]
    batch = encode_batch(elements)
    return batch, encode_records(batch, topic="devices")


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the record codec per record.")
    parser.add_argument("--body", type=int, default=100, help="bytes of a body (default 100)")
    parser.add_argument("--records", type=int, default=8000, help="records of a batch (default 8000)")
    options = parser.parse_args()
    batch, records = sample(options.records, options.body)
    body = bytes(options.body)
    properties = next(iter_records(records)).properties
    keys = (KEYS, MQTT_TOPIC)
    per_batch: list[tuple[str, Callable[[], object]]] = [
        ("check batch", lambda: check_batch(batch)),
        ("write: batch to records, CRC included", lambda: encode_records(batch, topic="devices")),
        ("columns: queue offset only", lambda: decode_columns(records, columns=("queue_offset",)).to_arrow()),
        ("columns: all", lambda: decode_columns(records).to_arrow()),
        ("columns: all, 2 properties", lambda: decode_columns(records, keys=keys).to_arrow()),
        (
            "columns: all, 2 properties, CRC checked",
            lambda: decode_columns(records, keys=keys, check_crc=True).to_arrow(),
        ),
        ("columns: tags code only", lambda: decode_columns(records, columns=("tags_code",)).to_arrow()),
        ("one Record object each", lambda: sum(1 for _ in iter_records(records))),
    ]
    print(f"{platform.machine()}, Python {platform.python_version()}, pyarrow {pyarrow.__version__}, "
          f"zlib {zlib.ZLIB_RUNTIME_VERSION}")  # fmt: skip
    print(
        f"{options.records} records of {len(records) / options.records:.0f} bytes, bodies of {options.body}\n"
    )
    print(f"{'work':42} {'ns/record':>10} {'M records/s':>12}")
    rates = {}
    for name, work in per_batch:
        seconds = best_s(work)
        rates[name] = options.records / seconds
        print(f"{name:42} {1e9 / rates[name]:10.1f} {rates[name] / 1e6:12.2f}")
    calls = 10_000
    print(f"\n{'one call from Python':42} {'ns':>10}")
    for name, call in (
        ("body_checksum", lambda: body_checksum(body)),
        ("zlib.crc32, to compare", lambda: zlib.crc32(body)),
        ("properties_tags_code", lambda: properties_tags_code(properties)),
    ):
        seconds = best_s(lambda call=call: [call() for _ in range(calls)], runs=5)  # type: ignore[misc]
        print(f"{name:42} {seconds / calls * 1e9:10.1f}")
    reached = rates["columns: all"]
    verdict = "reached" if reached >= MARK_RECORDS_PER_S else "MISSED"
    print(f"\nmark of {MARK_RECORDS_PER_S / 1e6:.0f} M records/s into Arrow columns: {verdict}")


if __name__ == "__main__":
    main()
