"""Pull stored records on the native wire, 32 and 1,024 per pull.

    .venv/bin/python -m benchmarks.broker_pull [--quick] [--rounds 5]

Records of 100 bytes in 4 queues, read from the start to the end over 4 connections with 8 pulls in flight
each: 32 per pull with the protocol's own bounds (500,000/s), and 1,024 per pull for who asks for more bytes
(3,000,000/s). "scattered" is the same log with records of the queues taking turns, one by one: what
producers leave that go round over queues with single sends.

The broker has the first core, the load the last. Beside the rate stands the broker's own processor time per
pull, which a loaded machine changes less.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks import machine
from benchmarks._broker_process import broker
from benchmarks._wire_load import create_topic, frame, pipeline, pull_all, send_fields, stored_records
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode

QUEUES: Final = 4
BATCH_RECORDS: Final = 128
RECORD_BYTES: Final = 400
# Name: records a batch stores in one queue, records per pull, bytes per pull (0: the protocol's), the mark.
CASES: Final = {
    "32 per pull": (BATCH_RECORDS, 32, 0, 500_000),
    "32 per pull, scattered": (1, 32, 0, 500_000),
    "1,024 per pull": (BATCH_RECORDS, 1_024, 4 << 20, 3_000_000),
    "1,024 per pull, scattered": (1, 1_024, 4 << 20, 3_000_000),
}


def main(words: Sequence[str] | None = None) -> int:
    """0 when every mark is reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_pull", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(words)
    rounds = 3 if options.quick else options.rounds
    records = 262_144 if options.quick else 1_048_576
    about = machine.description()
    rates: dict[str, list[float]] = {}
    costs_us: dict[str, list[float]] = {}
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    machine.warm_page_cache(machine.RESULTS, 2 * records * RECORD_BYTES)
    with broker() as server:
        for batch in (BATCH_RECORDS, 1):
            fill(server.port, f"B{batch}", batch, records)
        for number in range(rounds + 1):
            for case, (batch, per_pull, bytes_max, _) in CASES.items():
                used_s = server.cpu_s()
                took_s = pull_all(
                    server.port,
                    f"B{batch}",
                    queues=QUEUES,
                    records_each=records // QUEUES,
                    records=per_pull,
                    bytes_max=bytes_max,
                )
                used_s = server.cpu_s() - used_s
                if number:  # the first round warms up
                    rates.setdefault(case, []).append(records / took_s)
                    costs_us.setdefault(case, []).append(used_s / (records / per_pull) * 1e6)
    results = {
        case: {
            "records_per_s": machine.spread(rates[case]),
            "broker_us_per_pull": machine.spread(costs_us[case]),
        }
        for case in rates
    }
    rows = [
        [
            case,
            f"{found['records_per_s']['median']:,.0f}",
            f"{found['records_per_s']['min']:,.0f}",
            f"{found['records_per_s']['max']:,.0f}",
            f"{found['broker_us_per_pull']['median']:.1f}",
            f"{CASES[case][3]:,}",
        ]
        for case, found in results.items()
    ]
    print(machine.table(["case", "records/s", "min", "max", "broker us/pull", "mark"], rows))
    machine.save("broker_pull", {"results": {"machine": about, **results}})
    missed = [case for case in results if results[case]["records_per_s"]["median"] < CASES[case][3]]
    print(f"missed: {', '.join(missed)}" if missed else "all marks reached")
    return 1 if missed and not options.quick else 0


def fill(port: int, topic: str, batch: int, records: int) -> None:
    """Store `records` over the queues by turn, `batch` at a time."""
    create_topic(port, topic, QUEUES)
    elements = encode_batch([(b"x" * 100, b"", 0)] * batch)
    frames = [
        frame(RequestCode.SEND_BATCH_MESSAGE, {**send_fields(topic, number), "m": "true"}, elements)
        for number in range(QUEUES)
    ]
    turn = 0

    def requests(connection: int, number: int) -> bytes:
        nonlocal turn
        first, turn = turn, turn + number
        return b"".join([frames[one % QUEUES] for one in range(first, first + number)])

    pipeline(port, requests, connections=1, in_flight=64, count=records // batch)
    stored = stored_records(port, topic, QUEUES)
    assert stored == records, f"{stored} of {records} records are stored"


if __name__ == "__main__":
    sys.exit(main())
