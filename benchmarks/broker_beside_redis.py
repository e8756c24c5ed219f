"""The broker beside Redis Streams: produce and consume, in one run, by turns.

    .venv/bin/python -m benchmarks.broker_beside_redis [--quick] [--rounds 5]

Both servers have the first core, both keep a log on the same disk that is synced in the background (async
flush here, `appendfsync everysec` there), both loads come from prepared bytes on the last core. A record is
100 bytes. Redis has no batches; its XADDs are pipelined, with as many records in flight as there are here.

produce        one connection, 3,200 records in flight: batches of 100, and XADD
produce singly 10 connections, 100 in flight: single sends, and XADD
consume 32     4 queues or streams over 4 connections: pull and XREAD COUNT, 32 at a time
consume 1,024  the same, 1,024 at a time
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from benchmarks import machine, peers
from benchmarks._broker_process import BrokerProcess, broker
from benchmarks._wire_load import ANSWER_TIMEOUT_S, create_topic, frame, pipeline, pull_all, send_fields
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode

BODY: Final = b"x" * 100
STREAMS: Final = 4
BATCH_RECORDS: Final = 100
IN_FLIGHT_RECORDS: Final = 3_200
RECORD_BYTES: Final = 400
_ENTRY: Final = b"$100\r\n"
_RECEIVED_BYTES: Final = 1 << 20
NAMES: Final = ("iotmq", "redis")
# Processor time of the server, which a machine with other work on it changes less.
COSTS: Final = ("iotmq us/record", "redis us/record")


def main(words: Sequence[str] | None = None) -> int:
    """0 when the broker is ahead in every case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_beside_redis", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(words)
    rounds = 3 if options.quick else options.rounds
    records = 204_800 if options.quick else 1_024_000
    about = machine.description()
    rates: dict[str, dict[str, list[float]]] = {}
    server_core, load_core = machine.cores()
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(broker())
        # Children inherit where this process may run; Redis is moved to its core by its own command.
        os.sched_setaffinity(0, {load_core})
        theirs = stack.enter_context(peers.redis(core=server_core))
        for number in range(rounds + 1):
            machine.warm_page_cache(machine.RESULTS, 2 * records * RECORD_BYTES)
            for case, (share, run_ours, run_theirs) in CASES.items():
                count = records // share
                used_s = [-ours.cpu_s(), -theirs.exact_cpu_s()]
                took_s = [run_ours(ours, number, count), run_theirs(theirs, number, count)]
                used_s = [used_s[0] + ours.cpu_s(), used_s[1] + theirs.exact_cpu_s()]
                if number:  # the first round warms up
                    found = rates.setdefault(case, {name: [] for name in (*NAMES, *COSTS)})
                    for name, cost, one_took_s, one_used_s in zip(NAMES, COSTS, took_s, used_s, strict=True):
                        found[name].append(count / one_took_s)
                        found[cost].append(one_used_s / count * 1e6)
            redis_call(theirs.port, b"FLUSHALL")
    results = {case: compare(found) for case, found in rates.items()}
    rows = [
        [case, f"{one['iotmq']:,.0f}", f"{one['redis']:,.0f}", f"{one['ratio']:.2f}"]
        + [f"{one[cost]:.2f}" for cost in COSTS]
        for case, one in results.items()
    ]
    print(machine.table(["records/s", *NAMES, "ratio", *COSTS], rows))
    machine.save("broker_beside_redis", {"results": {"machine": about, **results, "rounds": rates}})
    behind = [case for case, one in results.items() if one["ratio"] <= 1]
    print(f"behind: {', '.join(behind)}" if behind else "ahead of Redis in every case")
    return 1 if behind and not options.quick else 0


def compare(found: dict[str, list[float]]) -> dict[str, float]:
    """Medians of everything, and the median of the rounds' ratios."""
    ratios = [ours / theirs for ours, theirs in zip(*(found[name] for name in NAMES), strict=True)]
    return {**{name: median(values) for name, values in found.items()}, "ratio": median(ratios)}


# The broker ----------------------------------------------------------------------------------------------


def send_batches(server: BrokerProcess, number: int, records: int) -> float:
    """Seconds to store `records` in batches, each round in a topic of its own that is read back later."""
    topic = f"R{number}"
    create_topic(server.port, topic, STREAMS)
    elements = encode_batch([(BODY, b"", 0)] * BATCH_RECORDS)
    frames = [
        frame(RequestCode.SEND_BATCH_MESSAGE, {**send_fields(topic, one), "m": "true"}, elements)
        for one in range(STREAMS)
    ]
    return pipeline(
        server.port,
        by_turns(frames),
        connections=1,
        in_flight=IN_FLIGHT_RECORDS // BATCH_RECORDS,
        count=records // BATCH_RECORDS,
    )


def send_singly(server: BrokerProcess, number: int, records: int) -> float:
    """Seconds to store `records` one by one."""
    topic = f"S{number}"
    create_topic(server.port, topic, STREAMS)
    frames = [frame(RequestCode.SEND_MESSAGE_V2, send_fields(topic, one), BODY) for one in range(STREAMS)]
    return pipeline(server.port, by_turns(frames), connections=10, in_flight=100, count=records)


def pull(server: BrokerProcess, number: int, records: int, *, at_a_time: int) -> float:
    """Seconds to read what `send_batches` stored."""
    return pull_all(
        server.port,
        f"R{number}",
        queues=STREAMS,
        records_each=records // STREAMS,
        records=at_a_time,
        bytes_max=0 if at_a_time == 32 else 4 << 20,
    )


def by_turns(frames: Sequence[bytes]) -> Callable[[int, int], bytes]:
    """Requests that go round over the queues."""
    turn = 0

    def requests(connection: int, count: int) -> bytes:
        nonlocal turn
        first, turn = turn, turn + count
        return b"".join([frames[one % len(frames)] for one in range(first, first + count)])

    return requests


# Redis ---------------------------------------------------------------------------------------------------


def words_of(*words: bytes) -> bytes:
    """A command as it goes over the wire."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%s\r\n" % (len(word), word) for word in words])


def redis_call(port: int, *words: bytes) -> bytes:
    """One command on a connection of its own, and the start of its answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S) as peer:
        peer.sendall(words_of(*words))
        return peer.recv(_RECEIVED_BYTES)


def xadd(
    server: peers.Server, number: int, records: int, *, connections: int, in_flight: int, name: str
) -> float:
    """Seconds to add `records`, round over the streams."""
    requests = by_turns(
        [words_of(b"XADD", b"%s%d" % (name.encode(), one), b"*", b"b", BODY) for one in range(STREAMS)]
    )
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    lines: dict[int, int] = {}
    try:
        for _ in range(connections):
            peer = socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_TIMEOUT_S)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sockets[peer.fileno()] = peer
            lines[peer.fileno()] = 0
            poll.register(peer.fileno(), select.EPOLLIN)
        left, answered = records, 0
        began_s = time.perf_counter()
        for peer in sockets.values():
            left -= in_flight // connections
            peer.sendall(requests(0, in_flight // connections))
        while answered < records:
            ready = poll.poll(ANSWER_TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"{answered} of {records} XADDs were answered")
            for descriptor, _ in ready:
                # An answer is two lines: its length and the id.
                before = lines[descriptor]
                lines[descriptor] += sockets[descriptor].recv(_RECEIVED_BYTES).count(b"\n")
                arrived = lines[descriptor] // 2 - before // 2
                answered += arrived
                more = min(arrived, left)
                if more:
                    left -= more
                    sockets[descriptor].sendall(requests(0, more))
        took_s = time.perf_counter() - began_s
    finally:
        poll.close()
        for peer in sockets.values():
            peer.close()
    stored = sum(
        int(redis_call(server.port, b"XLEN", b"%s%d" % (name.encode(), one))[1:]) for one in range(STREAMS)
    )
    assert stored == records, f"{stored} of {records} records are stored"
    return took_s


def xread(server: peers.Server, number: int, records: int, *, at_a_time: int) -> float:
    """Seconds to read what `xadd` stored, a connection and a command in flight for each stream."""
    poll = select.epoll()
    streams: dict[int, tuple[socket.socket, bytes]] = {}
    left: dict[int, int] = {}
    data: dict[int, bytearray] = {}
    try:
        for one in range(STREAMS):
            peer = socket.create_connection(("127.0.0.1", server.port), timeout=ANSWER_TIMEOUT_S)
            streams[peer.fileno()] = (peer, b"r%d" % one)
            left[peer.fileno()] = records // STREAMS
            data[peer.fileno()] = bytearray()
            poll.register(peer.fileno(), select.EPOLLIN)
        count_text = b"%d" % at_a_time
        began_s = time.perf_counter()
        for peer, name in streams.values():
            peer.sendall(words_of(b"XREAD", b"COUNT", count_text, b"STREAMS", name, b"0"))
        unfinished = STREAMS
        while unfinished:
            ready = poll.poll(ANSWER_TIMEOUT_S)
            if not ready:
                raise TimeoutError("an XREAD was not answered")
            for descriptor, _ in ready:
                peer, name = streams[descriptor]
                answer = data[descriptor]
                answer += peer.recv(_RECEIVED_BYTES)
                entries = min(at_a_time, left[descriptor])
                last = answer.rfind(_ENTRY)
                if len(answer) - last != len(_ENTRY) + len(BODY) + 2 or answer.count(_ENTRY) < entries:
                    continue
                left[descriptor] -= entries
                # Its id stands two lines before the fields of the last entry.
                head = answer.rfind(b"\r\n*2\r\n$1\r\nb", 0, last)
                last_id = bytes(answer[answer.rfind(b"\n", 0, head) + 1 : head])
                answer.clear()
                if left[descriptor]:
                    peer.sendall(words_of(b"XREAD", b"COUNT", count_text, b"STREAMS", name, last_id))
                else:
                    unfinished -= 1
        return time.perf_counter() - began_s
    finally:
        poll.close()
        for peer, _ in streams.values():
            peer.close()


# Name: the share of the records it gets, what ours does, what theirs does.
CASES: Final = {
    "produce": (
        1,
        send_batches,
        lambda server, number, records: xadd(
            server, number, records, connections=1, in_flight=IN_FLIGHT_RECORDS, name="r"
        ),
    ),
    "produce singly": (
        4,
        send_singly,
        lambda server, number, records: xadd(
            server, number, records, connections=10, in_flight=100, name=f"s{number}-"
        ),
    ),
    "consume 32": (
        1,
        lambda server, number, records: pull(server, number, records, at_a_time=32),
        lambda server, number, records: xread(server, number, records, at_a_time=32),
    ),
    "consume 1,024": (
        1,
        lambda server, number, records: pull(server, number, records, at_a_time=1_024),
        lambda server, number, records: xread(server, number, records, at_a_time=1_024),
    ),
}


if __name__ == "__main__":
    sys.exit(main())
