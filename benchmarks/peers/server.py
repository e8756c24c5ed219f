"""A server under comparison: started alone on one core and a free port, measured from outside."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.machine import ROOT

# Java on a core that others use, too.
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
_LOW_PORTS: Final = (12_000, 28_000)
_TRIES: Final = 100
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
def standing_still(pid: int) -> Iterator[None]:
    """Stop a process and its children, so that what they do by themselves is not in another's measurement."""
    family = _family(pid)
    try:
        for one in family:
            os.kill(one, signal.SIGSTOP)
        yield
    finally:
        for one in family:
            os.kill(one, signal.SIGCONT)


def free_ports(count: int) -> list[int]:
    """Different loopback ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def free_port_beside(*offsets: int) -> int:
    """A free port whose neighbours at these offsets are free, too.

    It is below those that clients get: of them one that has just been closed cannot be listened at for a
    minute.
    """
    for _ in range(_TRIES):
        port = random.randrange(*_LOW_PORTS)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for one in (port, *(port + offset for offset in offsets)):
                stack.enter_context(socket.socket()).bind(("", one))
            return port
    raise PeerError(f"no free port with neighbours {offsets}")


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[str],
    core: int | None,
    port: int,
    directory: Path,
    *,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server process, from its first accepted connection on; what it says is in a file of the directory."""
    log = directory / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command) if core is None else ["taskset", "-c", str(core), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
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
