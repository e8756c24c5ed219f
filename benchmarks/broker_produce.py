"""Produce on the native wire: batches over one connection, and single sends over ten.

    .venv/bin/python -m benchmarks.broker_produce [--quick] [--rounds 5] [--case batches]

batches        one connection, batches of 100 x 100 bytes (code 320), 32 in flight: 1,000,000 records/s
single         single sends (code 310, JSON headers) of 100 bytes, 100 in flight over 10 connections: 60,000/s
single binary  the same with binary headers
single oneway  is not there: nobody could say when it ended

The broker has the first core and a durable log (async flush), the load the last core. Every round stores
into a fresh topic and counts by the queues' ends what is there. Beside the rate stands the broker's own
processor time per request, which a loaded machine changes less.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks import machine
from benchmarks._broker_process import BrokerProcess, broker
from benchmarks._wire_load import create_topic, frame, in_turn, pipeline, send_fields, stored_records
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode

BODY: Final = b"x" * 100
BATCH_RECORDS: Final = 100
QUEUES: Final = 4
# A stored record with everything that is derived from it, roughly.
RECORD_BYTES: Final = 360
# What Java producers put beside a message.
PROPERTIES: Final = "UNIQ_KEY\x017F00000100002A139A5500000000000A\x02WAIT\x01true\x02TAGS\x01TagA\x02"
MARKS: Final = {"batches": 1_000_000, "single": 60_000, "single binary": 60_000}


def main(words: Sequence[str] | None = None) -> int:
    """0 when every mark is reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_produce", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", choices=MARKS, action="append", help="only this one")
    options = parser.parse_args(words)
    rounds = 3 if options.quick else options.rounds
    share = 5 if options.quick else 1
    about = machine.description()
    rates: dict[str, list[float]] = {}
    costs_us: dict[str, list[float]] = {}
    with broker() as server:
        for number in range(rounds + 1):
            for case in options.case or MARKS:
                records = (2_000_000 if case == "batches" else 150_000) // share
                rate, cost_us = measure(server, case, f"T{number}-{case.replace(' ', '-')}", records)
                if number:  # the first round warms up
                    rates.setdefault(case, []).append(rate)
                    costs_us.setdefault(case, []).append(cost_us)
    results = {
        case: {
            "records_per_s": machine.spread(rates[case]),
            "broker_us_per_request": machine.spread(costs_us[case]),
        }
        for case in rates
    }
    rows = [
        [
            case,
            f"{found['records_per_s']['median']:,.0f}",
            f"{found['records_per_s']['min']:,.0f}",
            f"{found['records_per_s']['max']:,.0f}",
            f"{found['broker_us_per_request']['median']:.2f}",
            f"{MARKS[case]:,}",
        ]
        for case, found in results.items()
    ]
    print(machine.table(["case", "records/s", "min", "max", "broker us/request", "mark"], rows))
    machine.save("broker_produce", {"results": {"machine": about, **results}})
    missed = [case for case in results if results[case]["records_per_s"]["median"] < MARKS[case]]
    print(f"missed: {', '.join(missed)}" if missed else "all marks reached")
    return 1 if missed and not options.quick else 0


def measure(server: BrokerProcess, case: str, topic: str, records: int) -> tuple[float, float]:
    """Records per second, and the broker's microseconds per request."""
    create_topic(server.port, topic, QUEUES)
    machine.warm_page_cache(machine.RESULTS, records * RECORD_BYTES)
    if case == "batches":
        elements = encode_batch([(BODY, b"", 0)] * BATCH_RECORDS)
        fields = [{**send_fields(topic, number), "m": "true"} for number in range(QUEUES)]
        frames = [frame(RequestCode.SEND_BATCH_MESSAGE, one, elements) for one in fields]
        connections, in_flight, count = 1, 32, records // BATCH_RECORDS
    else:
        is_binary = case.endswith("binary")
        frames = [
            frame(
                RequestCode.SEND_MESSAGE_V2, send_fields(topic, number, PROPERTIES), BODY, is_binary=is_binary
            )
            for number in range(QUEUES)
        ]
        connections, in_flight, count = 10, 100, records
    used_s = server.cpu_s()
    took_s = pipeline(server.port, in_turn(frames), connections=connections, in_flight=in_flight, count=count)
    used_s = server.cpu_s() - used_s
    stored = stored_records(server.port, topic, QUEUES)
    assert stored == records, f"{stored} of {records} records are stored"
    return records / took_s, used_s / count * 1e6


if __name__ == "__main__":
    sys.exit(main())
