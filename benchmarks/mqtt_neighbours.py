"""What bad devices cost their neighbours: a subscriber that does not read, a storm of subscriptions.

    .venv/bin/python -m benchmarks.mqtt_neighbours [--rounds 5] [--quick]

Twenty devices send 2,000 messages a second (QoS 1) to twenty others all the time; their 99th percentile is
what counts. It is taken in turns, so that a machine that is slow for a while is slow for all:

- quiet: nobody else;
- flood: 5,000 messages a second of 1 KB to two more subscribers, who read;
- unread: the same flood to two subscribers who stop reading: one of QoS 0, one of QoS 1 with a kept session;
- storm: 500 devices a second connect and subscribe, and every second one sends 1,000 SUBSCRIBEs at once.

`unread` is compared with `flood`, `storm` with `quiet`: the ratio of the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Final

from benchmarks import _swarm, machine, peers
from loadtest.swarm import connect_packet, subscribe_packet

GOAL_RATIO: Final = 2.0
STORM_CONNECTS_PER_S: Final = 500
STORM_SUBSCRIBES: Final = 1_000
FLOOD: Final = (
    "--topic",
    "flood/x",
    "--payload-bytes",
    "1000",
    "--rate",
    "5000",
    "--client-id",
    "flood-{kind}-{n}",
)
# Before and after the seconds that are measured.
LEAD_S: Final = 1.5

Phase = Callable[[peers.Server, float], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def quiet(server: peers.Server, seconds: float) -> Iterator[None]:
    yield


@contextlib.contextmanager
def flood(server: peers.Server, seconds: float, subscribers: int = 2) -> Iterator[None]:
    """5,000 messages a second; the subscribers in it read."""
    done = _in_thread(
        lambda: _swarm.publish(
            server.port,
            *("--publishers", "1", "--subscribers", str(subscribers), "--filter", "flood/#", "--qos", "1"),
            *("--seconds", str(seconds + 2 * LEAD_S), "--warmup", "0", *FLOOD),
            timeout_s=seconds + 60,
            core=machine.cores()[1],
        )
    )
    time.sleep(LEAD_S)
    yield
    done()


@contextlib.contextmanager
def unread(server: peers.Server, seconds: float) -> Iterator[None]:
    """The flood, and two subscribers who never read."""
    with _connected(server, "unread-0", is_clean=True) as one, _connected(server, "unread-1") as other:
        one.sendall(subscribe_packet("flood/#", 0))
        other.sendall(subscribe_packet("flood/#", 1))
        with flood(server, seconds, subscribers=0):
            yield


@contextlib.contextmanager
def storm(server: peers.Server, seconds: float) -> Iterator[None]:
    """Connections and subscriptions without end."""
    is_over = threading.Event()

    def connect_many() -> None:
        with _swarm.holding(
            server.port,
            *("--subscribers", str(round(STORM_CONNECTS_PER_S * (seconds + LEAD_S))), "--qos", "1"),
            *("--filter", "storm/{n}/+/#", "--connect-rate", str(STORM_CONNECTS_PER_S)),
            *("--client-id", "storm-{n}"),
            core=machine.cores()[1],
        ) as held:
            held.ready()
            is_over.wait()
            held.end()

    def subscribe_much() -> None:
        packets = b"".join(
            subscribe_packet(f"storm/own/{number}/+", 1, packet_id=number + 1)
            for number in range(STORM_SUBSCRIBES)
        )
        while not is_over.is_set():
            with _connected(server, "storm", is_clean=True) as connection:
                connection.sendall(packets)
                answered = 0
                while answered < 5 * STORM_SUBSCRIBES and not is_over.is_set():
                    answered += len(connection.recv(65_536))
                is_over.wait(1.0)

    ends = [_in_thread(connect_many), _in_thread(subscribe_much)]
    time.sleep(LEAD_S)
    yield
    is_over.set()
    for end in ends:
        end()


PHASES: Final[dict[str, Phase]] = {"quiet": quiet, "flood": flood, "unread": unread, "storm": storm}
COMPARED: Final = {"unread": "flood", "storm": "quiet"}


def p99_us(server: peers.Server, seconds: float) -> float:
    """The neighbours' 99th percentile, publisher to subscriber."""
    report = _swarm.publish(
        server.port,
        *("--publishers", "20", "--subscribers", "20", "--qos", "1", "--filter", "devices/{n}/telemetry"),
        *("--rate", "2000", "--seconds", str(seconds), "--warmup", "0.3", "--deliveries-per-message", "1"),
        timeout_s=seconds + 60,
        core=machine.cores()[1],
    )
    if not report["is_drained"]:
        raise _swarm.LoadError(f"not everything was delivered: {report['counters']}")
    return float(report["latencies"]["delivery"]["p99_ns"]) / 1e3


@contextlib.contextmanager
def _connected(server: peers.Server, client_id: str, *, is_clean: bool = False) -> Iterator[socket.socket]:
    """A connection with a small buffer of its own."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(connect_packet(client_id, keep_alive_s=0, is_clean=is_clean))
        if len(connection.recv(4)) != 4:
            raise _swarm.LoadError(f"{client_id} was not let in")
        yield connection


def _in_thread(work: Callable[[], object]) -> Callable[[], None]:
    """Starts it; what is returned waits for it and raises what it raised."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def end() -> None:
        thread.join()
        if failures:
            raise failures[0]

    return end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured in each phase of a round")
    parser.add_argument("--quick", action="store_true", help="one round, for a look")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    print(", ".join(f"{name} {value}" for name, value in machine.description().items()))
    measured: dict[str, list[float]] = {name: [] for name in PHASES}
    with peers.iotmq(core=machine.cores()[0]) as server:
        p99_us(server, 1.0)
        for number in range(rounds):
            for name, phase in PHASES.items():
                with phase(server, options.seconds + 1.0):
                    measured[name].append(p99_us(server, options.seconds))
            told = ", ".join(f"{name} {values[-1]:,.0f} us" for name, values in measured.items())
            print(f"{number + 1}/{rounds}: p99 {told}", flush=True)
    for name, against in COMPARED.items():
        ratio = median(measured[name]) / median(measured[against])
        print(
            f"{name}: p99 {median(measured[name]):,.0f} us, {ratio:.2f}x of {against} "
            f"({median(measured[against]):,.0f} us; goal {GOAL_RATIO:.0f}x)"
        )
    machine.save("mqtt_neighbours", {"p99_us": measured, "machine": machine.description()})


if __name__ == "__main__":
    main()
