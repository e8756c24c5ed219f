"""The servers under comparison: started alone on one core and a free port, measured from outside."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.machine import RESULTS, ROOT

START_TIMEOUT_S: Final = 60.0
_WEBSOCKET_LISTENER: Final = """
[[mqtt.listeners]]
name = "web"
transport = "ws"
listen_port = {}
allowed_origins = ["*"]
"""
STOP_TIMEOUT_S: Final = 10.0
CLOCK_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class PeerError(Exception):
    """A server could not be started, or ended by itself."""


class Server:
    """One running server process and what can be seen of it from outside."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.name = name
        self.port = port
        self.http_port = 0
        """Where `metric` asks; 0 for a server that has no metrics."""
        self.pid = process.pid
        self.is_killed = False
        self._process = process
        self._log = log

    def memory_bytes(self) -> dict[str, int]:
        """Resident bytes of the process and its children: ``rss``, of it ``anonymous`` (no file pages)."""
        return memory_bytes(_family(self.pid))

    def settled_memory_bytes(self) -> dict[str, int]:
        """`memory_bytes` when it has stopped changing for half a second, or after five."""
        deadline = time.monotonic() + 5
        last = self.memory_bytes()
        while True:
            time.sleep(0.5)
            now = self.memory_bytes()
            if abs(now["rss"] - last["rss"]) < 64 * 1024 or time.monotonic() > deadline:
                return now
            last = now

    def cpu_s(self) -> float:
        """Processor time used since the start, by the process and its children."""
        ticks = 0
        for pid in _family(self.pid):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / CLOCK_TICKS_PER_S

    def exact_cpu_s(self) -> float:
        """`cpu_s` of this process alone, from the scheduler's nanosecond counters."""
        return exact_cpu_s(self.pid)

    def metric(self, name: str) -> float:
        """The sum of all samples of one name; 0 when there is none."""
        url = f"http://127.0.0.1:{self.http_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.M))

    def check(self) -> None:
        """Raises PeerError, with the end of its log, when the server is not running any more."""
        if self._process.poll() is not None:
            raise PeerError(f"{self.name} ended with {self._process.returncode}: {_tail(self._log)}")

    def wait_ready(self) -> None:
        """Returns when the port accepts connections."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            self.check()
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise PeerError(
                        f"{self.name} did not listen within {START_TIMEOUT_S} s: {_tail(self._log)}"
                    ) from None
                time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL, as a machine that loses its power."""
        self.is_killed = True
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that does not end it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@contextlib.contextmanager
def mosquitto(
    *, core: int, has_tcp_nodelay: bool = False, is_websocket: bool = False, more: Sequence[str] = ()
) -> Iterator[Server]:
    """Mosquitto at its fastest: nothing on disk or logged, no bounds on queues and in-flight messages.

    With `is_websocket` MQTT is in WebSockets at its port. ``more`` are further lines of its configuration.
    """
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise PeerError("mosquitto is not installed (Debian: apt install mosquitto)")
    port, spare_port = free_ports(2)
    # Version 2.0.11 (Debian 12) does not start with a listener for WebSockets alone.
    websocket = ["protocol websockets", f"listener {spare_port} 127.0.0.1"] if is_websocket else []
    config = [
        f"listener {port} 127.0.0.1",
        *websocket,
        "allow_anonymous true",
        "persistence false",
        "max_queued_messages 0",
        "max_inflight_messages 0",
        "log_type none",
        f"set_tcp_nodelay {'true' if has_tcp_nodelay else 'false'}",
        *more,
    ]
    with tempfile.TemporaryDirectory(prefix="benchmark-mosquitto-") as directory:
        file = Path(directory, "mosquitto.conf")
        file.write_text("\n".join(config) + "\n")
        with _running("mosquitto", [program, "-c", str(file)], core, port, Path(directory)) as server:
            yield server


@contextlib.contextmanager
def iotmq(
    *,
    core: int,
    settings: Mapping[str, str] | None = None,
    data_parent: Path | None = None,
    data: Path | None = None,
    is_websocket: bool = False,
) -> Iterator[Server]:
    """The all-in-one gateway with a durable log (async flush), in a data directory that goes with it.

    ``settings`` are further ``--set`` assignments, ``section.key`` to value. The directory lies in
    ``data_parent``, by default ``build/benchmarks``: a real disk, as a gateway has. ``data`` is a directory
    that is there already, and stays. With `is_websocket` MQTT is in WebSockets at its port.
    """
    mqtt_port, broker_port, registry_port, http_port = free_ports(4)
    parent = data_parent or RESULTS
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-iotmq-", dir=parent) as directory:
        file = Path(directory, "iotmq.toml")
        file.write_text(
            f"""
[log]
level = "warning"
[store]
flush = "async"
[registry]
listen_port = {registry_port}
[broker]
listen_port = {broker_port}
registries = ["127.0.0.1:{registry_port}"]
[http]
listen_port = {http_port}
[mqtt]
listen_port = {mqtt_port}
tcp_enabled = {"false" if is_websocket else "true"}
[[mqtt.routes]]
filter = "devices/+/telemetry"
topic = "telemetry"
key = "{{1}}"
{_WEBSOCKET_LISTENER.format(mqtt_port) if is_websocket else ""}"""
        )
        command = [
            sys.executable,
            "-m",
            "iotmq",
            "serve",
            "--config",
            str(file),
            "--data",
            str(data or Path(directory, "data")),
        ]
        for name, value in (settings or {}).items():
            command += ["--set", f"{name}={value}"]
        with _running("iotmq", command, core, mqtt_port, Path(directory)) as server:
            server.http_port = http_port
            yield server


@contextlib.contextmanager
def front_ends(
    count: int,
    *,
    brokers: int = 1,
    settings: Mapping[str, str] | None = None,
    cores: Sequence[int | None] | None = None,
    data: Path | None = None,
) -> Iterator[tuple[Server, list[Server]]]:
    """A broker, with a registry, and so many MQTT front ends for it: each a process of its own.

    Of several ``brokers`` it is the first. ``settings`` with names that begin with ``mqtt.`` are for the
    front ends, the others for the brokers. ``cores`` are for the brokers and the front ends, in this order;
    None leaves one where the system puts it. ``data`` is the directory of one broker when it is to be kept. A
    front end may be killed.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    registry_port, *ports = free_ports(2 * count + 2 * brokers + 2)
    registry = f"127.0.0.1:{registry_port}"
    wanted = dict(settings or {})
    for_front_ends = {name: wanted.pop(name) for name in list(wanted) if name.startswith("mqtt.")}
    pinned = list(cores or [None] * (count + 1))
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="data-roles-", dir=RESULTS)))

        def run(role: str, name: str, port: int, core: int | None, **assignments: str) -> Server:
            home = directory / name
            home.mkdir()
            http_port = ports.pop()
            assignments |= {"http.listen_port": str(http_port), "log.level": "warning"}
            command = [sys.executable, "-m", "iotmq", role]
            command += ["--data", str(data if data is not None and role == "broker" else home / "data")]
            for setting, value in assignments.items():
                command += ["--set", f"{setting}={value}"]
            server = stack.enter_context(_running(name, command, core, port, home))
            server.http_port = http_port
            return server

        run("registry", "registry", registry_port, pinned[0], **{"registry.listen_port": str(registry_port)})
        started = []
        for number in range(1, brokers + 1):
            name, port = "broker" if number == 1 else f"broker-{number}", ports.pop()
            own_name = {} if number == 1 else {"broker.name": name}
            started.append(
                run(
                    "broker", name, port, pinned[0],
                    **{"broker.listen_port": str(port), "broker.registries": registry,
                       "broker.registration_interval_s": "1", "store.flush": "async"} | own_name | wanted,
                )
            )  # fmt: skip
        servers = []
        for number in range(1, count + 1):
            name, port = f"front-end-{number}", ports.pop()
            servers.append(
                run(
                    "mqtt", name, port, pinned[number],
                    **{"mqtt.listen_port": str(port), "mqtt.registries": registry, "mqtt.name": name}
                    | for_front_ends,
                )
            )  # fmt: skip
        yield started[0], servers


@contextlib.contextmanager
def redis(*, core: int) -> Iterator[Server]:
    """Redis with an append-only file synced every second, as the broker flushes; no snapshots beside it."""
    program = shutil.which("redis-server")
    if program is None:
        raise PeerError("redis-server is not installed (Debian: apt install redis-server)")
    (port,) = free_ports(1)
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-redis-", dir=RESULTS) as directory:
        command = [
            program, "--port", str(port), "--bind", "127.0.0.1", "--dir", directory, "--save", "",
            "--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0",
            "--stop-writes-on-bgsave-error", "no",
        ]  # fmt: skip
        with _running("redis", command, core, port, Path(directory)) as server:
            yield server


def free_ports(count: int) -> list[int]:
    """Different loopback ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def _running(name: str, command: list[str], core: int | None, port: int, directory: Path) -> Iterator[Server]:
    log = directory / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command if core is None else ["taskset", "-c", str(core), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )
    server = Server(name, process, port, log)
    try:
        server.wait_ready()
        yield server
        if not server.is_killed:
            server.check()
    finally:
        server.stop()


def memory_bytes(pids: Sequence[int]) -> dict[str, int]:
    """Resident bytes of the processes: ``rss``, of it ``anonymous`` (no file pages)."""
    totals = {"rss": 0, "anonymous": 0}
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name.lower() in totals:
                totals[name.lower()] += int(rest.split()[0]) * 1024
    return totals


def exact_cpu_s(pid: int) -> float:
    """Processor time of all threads of a process so far, from the scheduler's nanosecond counters."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def _family(pid: int) -> list[int]:
    """The process and all below it."""
    members = [pid]
    for one in members:
        for task in Path(f"/proc/{one}/task").iterdir():
            members += [int(child) for child in (task / "children").read_text().split()]
    return members


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2_000:].strip() or "it said nothing"
