"""A gateway as people run it: `python -m iotmq ROLE` in a process of its own, on free ports.

It can be killed and started again on the same ports and the same data. What it writes to standard error is
kept in one file over all its lives.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from eventually import WITHIN_S, eventually
from process_pages import metric_at, metrics_at, page

ROOT = Path(__file__).resolve().parents[2]

LISTENERS = {
    "serve": ("http", "registry", "broker", "mqtt"),
    "registry": ("http", "registry"),
    "broker": ("http", "broker"),
    "mqtt": ("http", "mqtt"),
}
# Small files: a test writes little, and the tests run side by side.
SMALL_STORE = ("store.segment_bytes=16777216", "store.allocation_step_bytes=65536")

# Clients that knock at a dead port of the range the kernel gives to outgoing connections can end up
# connected to themselves, and hold the port; so the ports are taken from below that range. Processes of tests
# that run side by side have ports of their own, and none is given out twice before all were. RocketMQ's
# brokers listen two ports below theirs, too: nobody is given those.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8
_PORTS = list(range(18_000 + _WORKER // 2 * 4 + _WORKER % 2, 32_000, 16))
random.SystemRandom().shuffle(_PORTS)
_next_port = itertools.cycle(_PORTS)
_CLUSTER_PORTS = 100
_READY_S = 30.0


def free_port() -> int:
    """A port on loopback that nobody listens on now and no outgoing connection will take."""
    for port in itertools.islice(_next_port, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def free_ports() -> int:
    """The first of so many ports in a row as a cluster takes, which no other test is given."""
    first = int(os.environ.get("IOTMQ_CLUSTER_PORT", "13000"))
    for port in range(first + _WORKER * _CLUSTER_PORTS, first + 40 * _CLUSTER_PORTS, 8 * _CLUSTER_PORTS):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for each in range(port, port + _CLUSTER_PORTS):
                probe = stack.enter_context(socket.socket())
                # As servers do: connections of a former cluster that have ended are in nobody's way.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", each))
            return port
    raise AssertionError(f"no {_CLUSTER_PORTS} free ports in a row from {first} on")


class GatewayProcess:
    """One `iotmq` process over a data directory; `with` starts it and ends it for good."""

    def __init__(
        self,
        data: Path,
        *assignments: str,
        role: str = "serve",
        log: Path | None = None,
        has_clean_log: bool = True,
        prefix: Sequence[str] = (),
        config: Path | None = None,
        program: Sequence[str] = (sys.executable, "-m", "iotmq"),
    ) -> None:
        """`assignments` are for --set; they win over the small store that is the default here.

        The log file is `log`, or the data directory's name with .log. Unless `has_clean_log` is false,
        leaving the `with` block fails when a traceback stands in it. `prefix` is a command that ends in
        executing the words behind it (nsenter, taskset). `config` is a file of settings;
        --set overrides it. `program` runs another iotmq than that of the tree.
        """
        self.data = data
        self.role = role
        self.log = log or data.with_name(data.name + ".log")
        self.ports = {name: free_port() for name in LISTENERS[role]}
        self.assignments = [
            *(f"{name}.listen_port={port}" for name, port in self.ports.items()),
            *SMALL_STORE,
            *assignments,
        ]
        self.process: subprocess.Popen[bytes] | None = None
        """The process while it runs."""
        self._has_clean_log = has_clean_log
        self._program = (*prefix, *program)
        self._config = config

    # Life ---------------------------------------------------------------------------------------------

    def start(self, *, within_s: float = _READY_S) -> Self:
        """Start it and wait until /readyz says yes."""
        self.launch()
        self.wait_ready(within_s=within_s)
        return self

    def launch(self) -> None:
        """Start it without waiting."""
        assert self.process is None, "it runs already"
        words = [word for each in self.assignments for word in ("--set", each)]
        if self._config is not None:
            words += ["--config", str(self._config)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self._program, self.role, "--data", str(self.data), *words],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )

    def wait_ready(self, *, within_s: float = _READY_S) -> None:
        """Wait for /readyz; AssertionError with the log when the process ends before."""

        def is_ready() -> bool:
            assert self.process is not None
            code = self.process.poll()
            assert code is None, f"ended with {code}:\n{self.log_text()[-4000:]}"
            return self.http("/readyz")[0] == 200

        eventually(is_ready, f"{self.role} is ready", within_s=within_s)

    def kill(self) -> None:
        """kill -9."""
        process = self._running()
        process.kill()
        process.wait()
        self.process = None

    def terminate(self, *, within_s: float = WITHIN_S) -> float:
        """SIGTERM; returns the seconds until it was gone. Fails when it ends with an error."""
        process = self._running()
        began_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            text = self.log_text()[-4000:]
            raise AssertionError(f"still there {within_s} s after SIGTERM\n{text}") from None
        self.process = None
        assert code == 0, f"ended with {code} after SIGTERM\n{self.log_text()[-4000:]}"
        return time.monotonic() - began_s

    def restart(self) -> None:
        """kill -9 and start again on the same ports and data."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            if self.process is not None:
                self.kill()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if self.process is not None:
                if kind is None:
                    self.terminate()
                else:
                    self.kill()
        finally:
            if self.process is not None:
                self.kill()
        if kind is None and self._has_clean_log:
            assert "Traceback" not in self.log_text(), self.log_text()[-8000:]

    def _running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None, "it does not run"
        return self.process

    # Looking ------------------------------------------------------------------------------------------

    @property
    def mqtt_port(self) -> int:
        return self.ports["mqtt"]

    @property
    def registry(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.ports['registry']}"

    @property
    def pid(self) -> int:
        return self._running().pid

    def log_text(self) -> str:
        """Everything written to standard error so far, by all its lives."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def http(self, path: str) -> tuple[int, str]:
        """Status and text of a GET; OSError while nobody listens."""
        return page(f"{self._url}{path}")

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics, by its name with labels as it stands there."""
        return metrics_at(self._url)

    def metric(self, name: str) -> float:
        """The sum of all samples of one name; 0 when there is none yet."""
        return metric_at(self._url, name)

    @property
    def _url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http']}"

    def open_files(self) -> int:
        """Descriptors the process holds: a connection nobody closed shows here."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory_bytes(self) -> int:
        """Memory that is the process's own: without the pages of mapped files, which the log has many of."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^RssAnon:\s+(\d+) kB$", status, re.M)
        assert found is not None
        return int(found[1]) * 1024
