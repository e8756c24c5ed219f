"""What TLS costs: processor time of a connection that is made, memory of one that stays; beside Mosquitto.

    .venv/bin/python -m benchmarks.mqtt_tls [--connections 3000] [--rounds 1] [--quick]

A connection is a TCP connection, a handshake with a certificate of P-256 (TLS 1.3, X25519), and CONNECT with
its CONNACK; counted is the processor time of the server process. The same without TLS is subtracted for what
the handshake costs. All of them stay open, idle, and memory is looked at when it has settled. At last a
device by TCP asks for a PINGRESP every two milliseconds while others shake hands without end, and devices by
TLS publish.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks import _swarm, machine, peers
from benchmarks.peers.mqtt import MOSQUITTO
from iotmq.mqtt.codec import packets

GOAL_BYTES: Final = 30 * 1024
GOAL_PER_S: Final = 1_000
_BASE_CONNECTIONS: Final = 100
_AT_A_TIME: Final = 16
_TIMEOUT_S: Final = 30.0
#: Without TLS, with a full handshake, with one that resumes, with ones where the device has a certificate.
KINDS: Final = ("plain", "full", "resumed", "client", "client_resumed")
MESSAGES: Final = {
    "window 1": ("--window", "1"),
    "window 100": ("--window", "100"),
    "window 100, 10 KB": ("--window", "100", "--payload-bytes", "10000"),
}
_PING_INTERVAL_S: Final = 0.002
_FLOOD_S: Final = 4.0

Connect = Callable[[int, str], int]


class Files(NamedTuple):
    certificate: str
    key: str


class Cost(NamedTuple):
    """Of one connection."""

    cpu_us: float
    memory_bytes: float
    wall_us: float


def make_certificate(directory: Path) -> Files:
    """One for localhost that is its own root."""
    files = Files(str(directory / "server.pem"), str(directory / "server.key"))
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
        "-keyout", files.key, "-out", files.certificate,
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return files


@contextmanager
def iotmq(core: int, files: Files, *, asks: bool = False) -> Iterator[tuple[peers.Server, int]]:
    """A gateway and its port for TLS; with `asks` for devices that have a certificate, too."""
    (port,) = peers.free_ports(1)
    client = f', client_ca_file = "{files.certificate}", client_identity = "cn"' if asks else ""
    listener = (
        f'[{{name = "safe", transport = "tls", listen_port = {port}, certificates = '
        f'[{{certificate_file = "{files.certificate}", key_file = "{files.key}"}}]{client}}}]'
    )
    with peers.iotmq(core=core, settings={"mqtt.listeners": listener}) as server:
        yield server, port


@contextmanager
def mosquitto(core: int, files: Files, *, asks: bool = False) -> Iterator[tuple[peers.Server, int]]:
    """Mosquitto and its port for TLS, likewise."""
    (port,) = peers.free_ports(1)
    more = [
        f"listener {port} 127.0.0.1",
        f"certfile {files.certificate}",
        f"keyfile {files.key}",
    ]
    if asks:
        more += [f"cafile {files.certificate}", "require_certificate true", "use_identity_as_username true"]
    with peers.started(MOSQUITTO, core=core, more=more) as server:
        yield server, port


def connect_plain(port: int, client_id: str) -> int:
    """The descriptor of a connection with an open session."""
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as raw:
        _open_session(raw, client_id)
        return raw.detach()


def connect_by_tls(context: ssl.SSLContext, port: int, client_id: str) -> int:
    """The same by TLS, without what the client's end of TLS would go on to cost."""
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as raw:
        encrypted = context.wrap_socket(raw, server_hostname="localhost", suppress_ragged_eofs=False)
        _open_session(encrypted, client_id)
        return encrypted.detach()


def connect_again(context: ssl.SSLContext, sessions: list[ssl.SSLSession], port: int, client_id: str) -> int:
    """The same with a session to resume, each time the newest."""
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as raw:
        encrypted = context.wrap_socket(
            raw, server_hostname="localhost", session=sessions.pop() if sessions else None
        )
        _open_session(encrypted, client_id)
        if encrypted.session is not None:
            sessions.append(encrypted.session)
        return encrypted.detach()


def _open_session(connection: socket.socket, client_id: str) -> None:
    connection.sendall(packets.encode_connect(packets.Connect(client_id, True, 0, None, None, None)))
    if connection.recv(100)[:1] != bytes([packets.CONNACK << 4]):
        raise RuntimeError("no CONNACK")


def cost(server: peers.Server, port: int, connect: Connect, connections: int, *, name: str) -> Cost:
    """What each of so many connections costs the server; all of them are closed afterwards."""

    def opened(first: int, count: int) -> list[int]:
        with ThreadPoolExecutor(_AT_A_TIME) as threads:
            return list(
                threads.map(lambda number: connect(port, f"{name}-{number}"), range(first, first + count))
            )

    held = opened(0, _BASE_CONNECTIONS)
    try:
        before, cpu_s = server.settled_memory_bytes()["rss"], server.exact_cpu_s()
        began_s = time.monotonic()
        held += opened(_BASE_CONNECTIONS, connections)
        wall_s, cpu_s = time.monotonic() - began_s, server.exact_cpu_s() - cpu_s
        grown = server.settled_memory_bytes()["rss"] - before
    finally:
        for descriptor in held:
            socket.close(descriptor)
    return Cost(cpu_s / connections * 1e6, grown / connections, wall_s / connections * 1e6)


def measure(
    start: Callable[..., AbstractContextManager[tuple[peers.Server, int]]],
    core: int,
    files: Files,
    connections: int,
) -> dict[str, Cost]:
    """Each kind of connection on a fresh server, so that none has memory another left."""
    found = {}
    for name in KINDS:
        context = ssl.create_default_context(cafile=files.certificate)
        context.load_cert_chain(*files)
        with start(core, files, asks=name.startswith("client")) as (server, port):
            connect: Connect
            if name == "plain":
                port, connect = server.port, connect_plain
            elif name in ("full", "client"):
                connect = partial(connect_by_tls, context)
            else:
                connect = partial(connect_again, context, [])
            found[name] = cost(server, port, connect, connections, name=name)
    return found


def round_trips_ms(connection: socket.socket, seconds: float) -> list[float]:
    """Of PINGREQ and its answer, in order of size."""
    found = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        began_s = time.perf_counter()
        connection.sendall(packets.PINGREQ_PACKET)
        connection.recv(100)
        found.append((time.perf_counter() - began_s) * 1e3)
        time.sleep(_PING_INTERVAL_S)
    return sorted(found)


def beside_a_flood(core: int, load_core: int, files: Files) -> dict[str, dict[str, float]]:
    """Kind of flood -> how many handshakes a second, and round trips of the device beside it."""
    found: dict[str, dict[str, float]] = {}
    with iotmq(core, files) as (server, port):
        device = socket.socket(fileno=connect_plain(server.port, "beside"))
        device.settimeout(_TIMEOUT_S)
        for kind in ("none", "full", "hello"):
            flood = None
            if kind != "none":
                words = [str(port), files.certificate, kind, str(_FLOOD_S)]
                flood = subprocess.Popen(
                    ["taskset", "-c", str(load_core), sys.executable, "-m", "benchmarks._tls_flood", *words],
                    cwd=machine.ROOT, stdout=subprocess.PIPE, text=True,
                )  # fmt: skip
                time.sleep(1.0)  # it begins
            times = round_trips_ms(device, _FLOOD_S - 1.5)
            begun = 0 if flood is None else int(flood.communicate()[0])
            found[kind] = {
                "handshakes_per_s": begun / _FLOOD_S,
                "median_ms": median(times),
                "p99_ms": times[int(len(times) * 0.99)],
                "longest_ms": times[-1],
            }
        device.close()
    return found


def messages_us(core: int, load_core: int, files: Files) -> dict[str, float]:
    """Processor time of the server for each message of QoS 1 by TLS from 100 devices."""
    found: dict[str, float] = {}
    with iotmq(core, files) as (server, port):
        for name, words in MESSAGES.items():
            cpu_s = server.exact_cpu_s()
            report = _swarm.publish(
                port,
                *("--tls", "--insecure", "--publishers", "100", "--qos", "1", *words),
                *("--seconds", "2", "--warmup", "0.5"),
                timeout_s=_TIMEOUT_S + 60,
                core=load_core,
            )
            found[name] = (server.exact_cpu_s() - cpu_s) / report["counters"]["acknowledged"] * 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="1,000 connections, for a look")
    options = parser.parse_args()
    connections = 1_000 if options.quick else options.connections
    core, load_core = machine.cores()
    print(", ".join(f"{name} {value}" for name, value in machine.description().items()))
    results: dict[str, object] = {"machine": machine.description()}
    with tempfile.TemporaryDirectory(prefix="benchmark-tls-") as directory:
        files = make_certificate(Path(directory))
        rounds: dict[str, list[dict[str, Cost]]] = {"iotmq": [], "mosquitto": []}
        for _ in range(options.rounds):
            rounds["iotmq"].append(measure(iotmq, core, files, connections))
            rounds["mosquitto"].append(measure(mosquitto, core, files, connections))
        floods = beside_a_flood(core, load_core, files)
        taken_us = messages_us(core, load_core, files)
    for name, found in rounds.items():
        for kind in KINDS:
            cpu_us = median(one[kind].cpu_us for one in found)
            handshake_us = cpu_us - median(one["plain"].cpu_us for one in found)
            memory = median(one[kind].memory_bytes for one in found)
            results[f"{name} {kind}"] = {"cpu_us": cpu_us, "memory_bytes": memory}
            of_it = "" if kind == "plain" else f", of it the handshake {handshake_us:,.0f} us"
            print(
                f"{name}, {kind}: {cpu_us:,.0f} us a connection{of_it}: {1e6 / cpu_us:,.0f} connections/s "
                f"and core; {memory / 1024:,.1f} KB each"
            )
    print(f"goals by TLS: {GOAL_PER_S:,} full handshakes/s and core, {GOAL_BYTES / 1024:.0f} KB")
    for kind, numbers in floods.items():
        print(f"flood {kind}: " + ", ".join(f"{name} {value:,.2f}" for name, value in numbers.items()))
    for name, value in taken_us.items():
        print(f"a message, {name}: {value:,.2f} us of the server's processor")
    machine.save("mqtt_tls", results | {"floods": floods, "messages_us": taken_us})


if __name__ == "__main__":
    main()
