"""How fast a backlog goes over a bridge: iotmq's and Mosquitto's own, in turns, to the same kinds of far
side.

    .venv/bin/python -m benchmarks.mqtt_bridge [--messages 200000] [--rounds 3] [--quick]

Messages of QoS 1 wait at the near side, whose process stands still (SIGSTOP) until the far side is there
with a subscriber of the first and the last message. Then it goes on, and what counts is the time between
these two. The near side is on one core, the far side on the other. All messages have one topic, and at
iotmq one key: one queue, in order. Both have a window of 1,000 messages (Mosquitto's own is 20). By MQTT 5
Mosquitto's bridge sends a backlog past the receive maximum of the far side, so iotmq has the largest there.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks import machine, peers
from iotmq.mqtt.codec import packets

GOAL_PER_S: Final = 50_000
_SIDES: Final = ("iotmq", "mosquitto")
_PAYLOAD: Final = b"x" * 64
_TOPIC: Final = "devices/1/telemetry"
_BEGIN: Final = "begin"
_END: Final = "end"
# Of one chunk that is written before its acknowledgements are read.
_CHUNK: Final = 1_000
_START_S: Final = 30.0
_BACKLOG_S: Final = 60.0


class Measured(NamedTuple):
    """One way once: messages a second, and what one took of the processor at both sides."""

    per_s: float
    near_us: float
    far_us: float


class Client:
    """A blocking MQTT 3.1.1 client that knows what it is sent."""

    def __init__(self, port: int, name: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_BACKLOG_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(packets.encode_connect(packets.Connect(name, True, 0, None, None, None)))
        self._read(4)

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self.socket.recv(1 << 16 if size > 1 << 16 else size - len(found))
            if not more:
                raise peers.PeerError("a connection was closed")
            found += more
        return found

    def publish(self, topic: str, count: int) -> None:
        """Publish so many messages of QoS 1, and wait until they are acknowledged."""
        chunk = b"".join(
            packets.encode_publish(topic, _PAYLOAD, qos=1, packet_id=number + 1)
            for number in range(min(count, _CHUNK))
        )
        size = len(chunk) // min(count, _CHUNK)
        while count:
            now = min(count, _CHUNK)
            self.socket.sendall(chunk[: now * size])
            self._read(4 * now)
            count -= now

    def subscribe(self, topic: str) -> None:
        self.socket.sendall(packets.encode_subscribe(1, [(topic, 0)]))
        self._read(5)

    def wait(self, topic: str) -> float:
        """When a message of this topic came."""
        self._read(len(packets.encode_publish(topic, _PAYLOAD)))
        return time.monotonic()

    def close(self) -> None:
        self.socket.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the goals are reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mqtt_bridge", description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of fewer messages")
    options = parser.parse_args(arguments)
    rounds, count = (1, 50_000) if options.quick else (options.rounds, options.messages)
    found: dict[tuple[str, str, str], list[Measured]] = {}
    for _ in range(rounds):
        for far in _SIDES:
            for near in _SIDES:
                for version in ("5", "3.1.1"):
                    measured = measure(near, far, version, count)
                    found.setdefault((far, version, near), []).append(measured)
                    print(
                        f"{near} to {far}, MQTT {version}: {measured.per_s:,.0f} msg/s, "
                        f"near {measured.near_us:.1f} us, far {measured.far_us:.1f} us",
                        flush=True,
                    )
    rows, reached = [], True
    results = {}
    for far in _SIDES:
        for version in ("5", "3.1.1"):
            ours, theirs = (found[far, version, near] for near in _SIDES)
            our_rate, their_rate = (median(each.per_s for each in side) for side in (ours, theirs))
            ratio = our_rate / their_rate
            reached &= our_rate >= GOAL_PER_S and ratio > 1
            cpu = [median(each.near_us for each in side) for side in (ours, theirs)]
            far_cpu = [median(each.far_us for each in side) for side in (ours, theirs)]
            rows.append(
                [far, version, f"{our_rate:,.0f}", f"{their_rate:,.0f}", f"{ratio:.2f}", f"{cpu[0]:.1f}",
                 f"{cpu[1]:.1f}", *(f"{each:.1f}" for each in far_cpu)]
            )  # fmt: skip
            results[f"to {far}, MQTT {version}"] = {
                "iotmq": machine.spread([each.per_s for each in ours]),
                "mosquitto": machine.spread([each.per_s for each in theirs]),
                "iotmq_us": cpu[0],
                "mosquitto_us": cpu[1],
                "far_us_of_iotmq": far_cpu[0],
                "far_us_of_mosquitto": far_cpu[1],
            }
    heads = ["far side", "MQTT", "iotmq msg/s", "Mosquitto msg/s", "ratio", "iotmq us", "Mosquitto us"]
    heads += ["far side's us, iotmq", "Mosquitto"]
    print(machine.table(heads, rows))
    machine.save("mqtt_bridge", {"machine": machine.description(), "messages": count, "ways": results})
    return 0 if reached else 1


def measure(near: str, far: str, version: str, count: int) -> Measured:
    """One backlog over one bridge."""
    near_core, far_core = machine.cores()
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="bridge-", dir=machine.RESULTS))
        )
        near_port, far_port = _free_port(), _free_port()
        start_near = _iotmq_near if near == "iotmq" else _mosquitto_near
        pid = stack.enter_context(start_near(directory / "near", near_core, near_port, far_port, version))
        publisher = Client(near_port, "publisher")
        for topic, number in ((_BEGIN, 1), (_TOPIC, count), (_END, 1)):
            publisher.publish(topic, number)
        publisher.close()
        os.kill(pid, signal.SIGSTOP)
        try:
            start_far = _iotmq if far == "iotmq" else _mosquitto
            config = "[mqtt]\nreceive_max = 65535\n" if far == "iotmq" else ""
            far_pid = stack.enter_context(start_far(directory / "far", far_core, far_port, config))
            subscriber = Client(far_port, "subscriber")
            subscriber.subscribe(_BEGIN)
            subscriber.subscribe(_END)
            before_s = peers.exact_cpu_s(pid), peers.exact_cpu_s(far_pid)
        finally:
            os.kill(pid, signal.SIGCONT)
        began_s = subscriber.wait(_BEGIN)
        took_s = subscriber.wait(_END) - began_s
        used_s = peers.exact_cpu_s(pid) - before_s[0], peers.exact_cpu_s(far_pid) - before_s[1]
        subscriber.close()
    return Measured(count / took_s, used_s[0] / count * 1e6, used_s[1] / count * 1e6)


def _iotmq_near(
    directory: Path, core: int, port: int, far_port: int, version: str
) -> AbstractContextManager[int]:
    config = f"""
[[mqtt.routes]]
filter = "#"
topic = "mqtt"
key = "all"

[[bridges]]
name = "far"
address = "mqtt://127.0.0.1:{far_port}"
version = "{version}"
reconnect_max_s = 1.0
in_flight_max = 1000
[[bridges.send]]
filter = "#"
"""
    return _iotmq(directory, core, port, config)


@contextlib.contextmanager
def _iotmq(directory: Path, core: int, port: int, config: str) -> Iterator[int]:
    directory.mkdir()
    file = directory / "gateway.toml"
    file.write_text(config)
    ports = [f"{name}.listen_port={_free_port()}" for name in ("http", "registry", "broker")]
    words = [word for each in (*ports, f"mqtt.listen_port={port}") for word in ("--set", each)]
    command = [
        sys.executable,
        "-m",
        "iotmq",
        "serve",
        "--data",
        str(directory / "data"),
        "--config",
        str(file),
    ]
    with _process(core, [*command, *words], directory, port) as pid:
        yield pid


def _mosquitto_near(
    directory: Path, core: int, port: int, far_port: int, version: str
) -> AbstractContextManager[int]:
    lines = (
        "connection far",
        f"address 127.0.0.1:{far_port}",
        "restart_timeout 1",
        "cleansession false",
        f"bridge_protocol_version {'mqttv50' if version == '5' else 'mqttv311'}",
        "topic # out 1",
    )
    return _mosquitto(directory, core, port, "\n".join(lines))


@contextlib.contextmanager
def _mosquitto(directory: Path, core: int, port: int, bridge: str) -> Iterator[int]:
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise peers.PeerError("mosquitto is not installed")
    directory.mkdir()
    file = directory / "mosquitto.conf"
    lines = (
        f"user {getpass.getuser()}",
        "max_queued_messages 0",
        "max_inflight_messages 1000",
        "set_tcp_nodelay true",
        "log_type error",
        "allow_anonymous true",
        f"listener {port} 127.0.0.1",
        bridge,
    )
    file.write_text("\n".join(lines) + "\n")
    with _process(core, [program, "-c", str(file)], directory, port) as pid:
        yield pid


@contextlib.contextmanager
def _process(core: int, command: Sequence[str], directory: Path, port: int) -> Iterator[int]:
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            ["taskset", "-c", str(core), *command], cwd=machine.ROOT, stdout=log, stderr=log
        )
    try:
        deadline_s = time.monotonic() + _START_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise peers.PeerError(f"does not listen: {(directory / 'log').read_text()[-2_000:]}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
