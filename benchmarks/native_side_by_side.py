"""The broker beside other logs and streams: produce and consume, in one run, by turns.

    .venv/bin/python -m benchmarks.native_side_by_side [--quick] [--rounds 5] [--peer rocketmq]

Both servers have the first core and keep a log on the same disk; both loads come from prepared bytes on the
last core. A record is 100 bytes. Each peer is measured in its fastest setting, where iotmq flushes
asynchronously, and in its durable one, where it answers when a record is on the disk.

produce        one connection, 3,200 records on the way: batches of 100; single records where there are none
produce singly 10 connections, 100 on the way: single records
consume 32     16 queues or streams over 16 connections, 32 records at a time, up to 8 times on the way
consume 1,024  the same, 1,024 at a time

Before the first round each case is tried with few records, and gets as many as the slower side does in some
seconds. `python -m benchmarks.peers` fetches the peers; those that are not there are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks import _nats_load, _redis_load, machine, peers
from benchmarks._broker_process import broker
from benchmarks._wire_load import (
    BODY,
    STREAMS,
    create_topic,
    frame,
    in_turn,
    pipeline,
    pull_all,
    send_fields,
    stored_records,
)
from benchmarks.peers import native
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode

BATCH_RECORDS: Final = 100
IN_FLIGHT_RECORDS: Final = 3_200
RECORD_BYTES: Final = 400
# All batches of all streams are whole, and so is what is on the way.
STEP_RECORDS: Final = IN_FLIGHT_RECORDS
CASE_S: Final = 5.0
_TRIAL: Final = 1_000
_STORED_TIMEOUT_S: Final = 30.0


class Wire(NamedTuple):
    """How a server is loaded: functions of its port, the number of the round, and a number of records."""

    send_batches: Callable[[int, int, int, int], float]
    send_singly: Callable[[int, int, int], float]
    read: Callable[[int, int, int, int], float]
    forget: Callable[[int], None] | None = None


def send_batches(port: int, number: int, records: int, in_flight: int) -> float:
    """Seconds until records are stored in batches; each round has a topic of its own, which is read later."""
    topic = f"R{number}"
    create_topic(port, topic, STREAMS)
    elements = encode_batch([(BODY, b"", 0)] * BATCH_RECORDS)
    frames = [
        frame(RequestCode.SEND_BATCH_MESSAGE, {**send_fields(topic, one), "m": "true"}, elements)
        for one in range(STREAMS)
    ]
    took_s = pipeline(
        port, in_turn(frames),
        connections=1, in_flight=in_flight // BATCH_RECORDS, count=records // BATCH_RECORDS,
    )  # fmt: skip
    return took_s + wait_stored(port, topic, records)


def send_singly(port: int, number: int, records: int) -> float:
    """Seconds until records are stored one by one."""
    topic = f"S{number}"
    create_topic(port, topic, STREAMS)
    frames = [frame(RequestCode.SEND_MESSAGE_V2, send_fields(topic, one), BODY) for one in range(STREAMS)]
    took_s = pipeline(port, in_turn(frames), connections=10, in_flight=100, count=records)
    return took_s + wait_stored(port, topic, records)


def wait_stored(port: int, topic: str, records: int) -> float:
    """Seconds until all are in their queues, which RocketMQ fills after it has answered."""
    began_s = time.monotonic()
    while (stored := stored_records(port, topic, STREAMS)) != records:
        assert time.monotonic() < began_s + _STORED_TIMEOUT_S, f"{stored} of {records} records are stored"
        time.sleep(0.005)
    return time.monotonic() - began_s


def read(port: int, number: int, records: int, at_a_time: int) -> float:
    """Seconds to read what `send_batches` stored."""
    return pull_all(
        port,
        f"R{number}",
        queues=STREAMS,
        records_each=records // STREAMS,
        records=at_a_time,
        bytes_max=0 if at_a_time == 32 else 4 << 20,
    )


ROCKETMQ_WIRE: Final = Wire(send_batches, send_singly, read)
WIRES: Final = {
    native.ROCKETMQ.name: ROCKETMQ_WIRE,
    native.REDIS.name: Wire(
        _redis_load.send_batches, _redis_load.send_singly, _redis_load.read, _redis_load.forget
    ),
    native.NATS.name: Wire(
        _nats_load.send_batches, _nats_load.send_singly, _nats_load.read, _nats_load.forget
    ),
}
Run = Callable[[Wire, int, int, int], float]
# Name: the share of the records it has at most, and what is done with a wire, a port, a round, and records.
CASES: Final[dict[str, tuple[int, Run]]] = {
    "produce": (1, lambda wire, *what: wire.send_batches(*what, IN_FLIGHT_RECORDS)),
    "produce singly": (4, lambda wire, *what: wire.send_singly(*what)),
    "consume 32": (1, lambda wire, *what: wire.read(*what, 32)),
    "consume 1,024": (1, lambda wire, *what: wire.read(*what, 1_024)),
}


def main(words: Sequence[str] | None = None) -> int:
    """0 when all peers that are there could be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.native_side_by_side", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", choices=WIRES, action="append", help="only this one")
    parser.add_argument("--setting", choices=peers.SETTINGS, action="append", help="only this one")
    parser.add_argument(
        "--peer-line", action="append", default=[], metavar="LINE", help="a line of the peer's configuration"
    )
    options = parser.parse_args(words)
    rounds = 1 if options.quick else options.rounds
    records = 204_800 if options.quick else 1_024_000
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    rows: list[list[str]] = []
    failures: list[str] = []
    wanted = [native.PEERS[name] for name in options.peer or WIRES]
    for peer in wanted if options.peer else peers.those_there(wanted):
        for setting in options.setting or peers.SETTINGS:
            try:
                found = measure(peer, setting, options.peer_line, rounds, records)
            except (peers.PeerError, OSError, AssertionError) as error:
                failures.append(f"{peer.title}, {setting}: NOT MEASURED: {error}")
                print(failures[-1], file=sys.stderr, flush=True)
                continue
            machine.save("native_side_by_side", {f"{peer.name}, {setting}": found})
            rows += rows_of(peer, setting, found)
    heads = ["records/s", "iotmq", "peer", "ratio", "iotmq us/record", "peer us/record"]
    print(machine.table(heads, rows))
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


class Side(NamedTuple):
    """A server, and the other one on its core."""

    wire: Wire
    port: int
    cpu_s: Callable[[], float]
    other_pid: int


def measure(peer: peers.Peer, setting: str, more: Sequence[str], rounds: int, records: int) -> dict[str, Any]:
    """All cases of one peer beside ours; the servers are loaded in turns, and one stands still meanwhile."""
    about = machine.description()
    server_core, load_core = machine.cores()
    rates: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(broker(is_sync=setting == peers.DURABLE))
        # Children inherit where this process may run; the peer is moved to its core by its own command.
        os.sched_setaffinity(0, {load_core})
        theirs = stack.enter_context(peers.started(peer, core=server_core, setting=setting, more=more))
        sides = [
            Side(ROCKETMQ_WIRE, ours.port, ours.cpu_s, theirs.pid),
            Side(WIRES[peer.name], theirs.port, theirs.cpu_s, ours.pid),
        ]
        counts = tried(sides, records)
        forget = WIRES[peer.name].forget
        # The first round warms up.
        for number in range(rounds + 1):
            machine.warm_page_cache(machine.RESULTS, 2 * records * RECORD_BYTES)
            for case, (_, run) in CASES.items():
                found = [one_run(run, side, number, counts[case]) for side in sides]
                if number:
                    into = rates.setdefault(case, {})
                    for side, (per_s, us_per_record) in zip(("iotmq", peer.name), found, strict=True):
                        into.setdefault(side, []).append(per_s)
                        into.setdefault(f"{side} us/record", []).append(us_per_record)
            if forget is not None:
                forget(theirs.port)
            print(f"{peer.title}, {setting}: round {number} of {rounds}", flush=True)
    return {
        "machine": about,
        "setting": peer.settings[setting],
        **{case: compare(found, peer.name) | {"records": counts[case]} for case, found in rates.items()},
        "rounds": rates,
    }


def tried(sides: Sequence[Side], records: int) -> dict[str, int]:
    """How many records each case gets."""
    counts: dict[str, int] = {}
    for case, (share, run) in CASES.items():
        slowest_per_s = min(one_run(run, side, _TRIAL, STEP_RECORDS)[0] for side in sides)
        counts[case] = count_for(slowest_per_s, records // share)
    # What is read is what was produced.
    return {case: counts["produce"] if case.startswith("consume") else counts[case] for case in CASES}


def count_for(per_s: float, most: int) -> int:
    """Records for some seconds at that rate, in whole steps, at least one and not more than `most`."""
    return max(min(int(per_s * CASE_S), most) // STEP_RECORDS, 1) * STEP_RECORDS


def one_run(run: Run, side: Side, number: int, records: int) -> tuple[float, float]:
    """Records per second, and microseconds of the server's processor for each."""
    with peers.standing_still(side.other_pid):
        used_s = -side.cpu_s()
        took_s = run(side.wire, side.port, number, records)
        used_s += side.cpu_s()
    return records / took_s, used_s / records * 1e6


def compare(found: dict[str, list[float]], name: str) -> dict[str, float]:
    """Medians of everything, and the median of the rounds' ratios."""
    ratios = [ours / theirs for ours, theirs in zip(found["iotmq"], found[name], strict=True)]
    return {**{key: median(values) for key, values in found.items()}, "ratio": median(ratios)}


def rows_of(peer: peers.Peer, setting: str, found: dict[str, Any]) -> list[list[str]]:
    """The table of one peer."""
    return [
        [
            f"{peer.title}, {setting}: {case}",
            *(f"{found[case][side]:,.0f}" for side in ("iotmq", peer.name)),
            f"{found[case]['ratio']:.2f}x",
            *(f"{found[case][f'{side} us/record']:.2f}" for side in ("iotmq", peer.name)),
        ]
        for case in CASES
    ]


if __name__ == "__main__":
    sys.exit(main())
