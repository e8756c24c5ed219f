"""10,000 parked pulls on 10,000 queues: what they cost while nothing happens, and whom a message wakes.

    .venv/bin/python -m benchmarks.broker_holds [--quick] [--holds 10000]

The broker (first core) holds the pulls of 100 connections, each on a queue of its own, for 30 s. Its
processor time is measured for some seconds in which nothing happens: it is to be under 1 % of a core. Then
one message goes to one queue, some times over: exactly its pull is to be answered, and the time until then
is told.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from benchmarks import machine
from benchmarks._broker_process import BrokerProcess, broker
from benchmarks._wire_load import call, create_topic, frame, pull_fields, send_fields
from iotmq.remoting.codes import RequestCode

QUEUES: Final = 1_000
CONNECTIONS: Final = 100
HOLD_MS: Final = 30_000
# Longer than the pulls take to be parked, shorter than they wait.
IDLE_S: Final = 10.0
SHARE_MAX: Final = 0.01
WAKES: Final = 200


def main(words: Sequence[str] | None = None) -> int:
    """0 when the mark is reached and every message woke its own pull alone."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_holds", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a shorter idle time")
    parser.add_argument("--holds", type=int, default=10_000)
    options = parser.parse_args(words)
    idle_s = 3.0 if options.quick else IDLE_S
    about = machine.description()
    with broker() as server:
        for number in range(-(-options.holds // QUEUES)):
            create_topic(server.port, f"T{number}", QUEUES)
        empty_share = idle_share(server, idle_s)
        memory = server.memory_bytes()["anonymous"]
        began_s = time.perf_counter()
        peers = park(server, options.holds)
        parked_s = time.perf_counter() - began_s
        memory = server.memory_bytes()["anonymous"] - memory
        share = idle_share(server, idle_s)
        waits_ms = [wake(server, peers, number) for number in range(min(WAKES, options.holds))]
        for peer in peers:
            peer.close()
    found = {
        "parked in, s": parked_s,
        "bytes each": memory / options.holds,
        "idle share of a core with none, %": empty_share * 100,
        "idle share of a core, %": share * 100,
        "wake, median ms": median(waits_ms),
        "wake, longest ms": max(waits_ms),
    }
    rows = [[name, f"{value:,.2f}"] for name, value in found.items()]
    print(machine.table([f"{options.holds:,} parked pulls", ""], rows))
    machine.save("broker_holds", {f"{options.holds} holds": {"machine": about, **found}})
    print("mark reached" if share < SHARE_MAX else f"missed: {share:.2%} of a core while idle")
    return 0 if share < SHARE_MAX or options.quick else 1


def idle_share(server: BrokerProcess, seconds: float) -> float:
    """The share of a core the broker takes while nobody asks anything."""
    used_s = server.cpu_s()
    time.sleep(seconds)
    return (server.cpu_s() - used_s) / seconds


def park(server: BrokerProcess, holds: int) -> list[socket.socket]:
    """Park that many pulls, a queue each; returns the connections they came over."""
    peers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(CONNECTIONS)]
    for number in range(holds):
        fields = pull_fields(f"T{number // QUEUES}", number % QUEUES, 0, 32, 0)
        fields.update(sysFlag="6", suspendTimeoutMillis=str(HOLD_MS))
        peers[number % CONNECTIONS].sendall(frame(RequestCode.PULL_MESSAGE, fields, opaque=number))
    # Requests of a connection are taken in order: an answer to one more shows that those before are parked.
    for peer in peers:
        peer.sendall(frame(RequestCode.GET_MAX_OFFSET, {"topic": "T0", "queueId": "0"}))
        assert peer.recv(1 << 16), "the broker closed the connection"
    return peers


def wake(server: BrokerProcess, peers: Sequence[socket.socket], number: int) -> float:
    """Send a message to a queue; the milliseconds until its pull was answered. No other may be."""
    began_s = time.perf_counter()
    topic, queue_id = f"T{number // QUEUES}", number % QUEUES
    answer = call(server.port, RequestCode.SEND_MESSAGE_V2, send_fields(topic, queue_id), b"wake up")
    assert answer.code == 0, answer
    own = peers[number % CONNECTIONS]
    ready, _, _ = select.select(peers, [], [], 5.0)
    took_s = time.perf_counter() - began_s
    assert ready == [own], f"the message of queue {number} woke {len(ready)} connections"
    data = own.recv(1 << 16)
    size = int.from_bytes(data[:4], "big")
    assert len(data) == 4 + size, "more than one pull was answered"
    assert f'"opaque":{number},'.encode() in data, "another pull of the connection was answered"
    return took_s * 1_000


if __name__ == "__main__":
    sys.exit(main())
