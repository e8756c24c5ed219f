"""Whole processes as a service manager sees them: READY, WATCHDOG, STATUS and STOPPING on a real socket."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import WITHIN_S, eventually
from gateway_process import GatewayProcess, free_port

WATCHDOG_S = 1.0

# As `iotmq`, but SIGUSR1 holds the thread of the event loop until somebody has written to a FIFO.
STALLING = """
import signal, sys
from pathlib import Path
from iotmq.commands.cli import main
fifo = Path(sys.argv.pop(1))
signal.signal(signal.SIGUSR1, lambda *_: fifo.read_text())
sys.exit(main())
"""


class Manager:
    """The socket of a service manager, and what it was told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def close(self) -> None:
        self._socket.close()

    def hear(self, within_s: float) -> bool:
        """Take one datagram; whether one came."""
        if not select.select([self._socket], [], [], within_s)[0]:
            return False
        self.told.append(dict(line.split("=", 1) for line in self._socket.recv(4_096).decode().split("\n")))
        return True

    def wait_for(self, name: str, value: str) -> None:
        """Take datagrams until one says so."""
        deadline_s = time.monotonic() + WITHIN_S
        while not self.told or self.told[-1].get(name) != value:
            assert self.hear(max(0.0, deadline_s - time.monotonic())), f"no {name}={value} in {self.told}"

    def wait_for_status(self, part: str) -> None:
        """Take datagrams until a status has this in it."""
        deadline_s = time.monotonic() + WITHIN_S
        while not any(part in status for status in self.statuses):
            assert self.hear(max(0.0, deadline_s - time.monotonic())), f"no {part!r} in {self.statuses}"

    def says_nothing_for(self, seconds: float) -> bool:
        """Whether nothing comes from now on for so long; what has come already does not count."""
        while self.hear(0):
            pass
        return not self.hear(seconds)

    @property
    def statuses(self) -> list[str]:
        return [told["STATUS"] for told in self.told if "STATUS" in told]


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    yield manager
    manager.close()


def test_a_gateway_is_ready_beats_and_stops(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", str(round(WATCHDOG_S * 1_000_000)))
    gateway = GatewayProcess(tmp_path / "data")
    gateway.launch()
    try:
        manager.wait_for("READY", "1")
        # Ready means that, not that it soon will be.
        assert gateway.http("/readyz")[0] == 200
        # The status may have been told just before.
        assert manager.statuses[-1] == "ready"
        assert "process: starting" in manager.statuses
        assert all("READY" not in told for told in manager.told[:-1])
        for _ in range(3):
            manager.told.clear()
            manager.wait_for("WATCHDOG", "1")
        gateway.terminate()
        manager.wait_for("STOPPING", "1")
    finally:
        if gateway.process is not None:
            gateway.kill()


def test_a_stalled_loop_is_silent_and_one_that_turns_again_is_not(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", str(round(WATCHDOG_S * 1_000_000)))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = (sys.executable, "-c", STALLING, str(fifo))
    with GatewayProcess(tmp_path / "data", program=program) as gateway:
        manager.wait_for("READY", "1")
        os.kill(gateway.pid, signal.SIGUSR1)
        # Opens when the gateway opens it, too: from here on its loop stands still.
        with fifo.open("w") as hold:
            assert manager.says_nothing_for(2 * WATCHDOG_S)
            hold.write("go on")
        manager.wait_for("WATCHDOG", "1")


def test_a_front_end_says_what_it_waits_for_and_its_workers_have_no_manager(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", str(round(WATCHDOG_S * 1_000_000)))
    front = GatewayProcess(
        tmp_path / "front", f"mqtt.registries=127.0.0.1:{free_port()}", "mqtt.workers=2", role="mqtt"
    )
    front.launch()
    try:
        eventually(lambda: '"worker-2":"process: starting' in front.http("/readyz")[1], "both wait")
        manager.told.clear()
        manager.wait_for("EXTEND_TIMEOUT_USEC", "180000000")
        manager.wait_for_status("worker-1: ")
        manager.wait_for("WATCHDOG", "1")
        environments = [
            Path(f"/proc/{child}/environ").read_text()
            for child in Path(f"/proc/{front.pid}/task/{front.pid}/children").read_text().split()
        ]
        assert len(environments) == 2
        assert not any(name in text for text in environments for name in ("NOTIFY_SOCKET", "WATCHDOG_"))
        front.terminate()
        manager.wait_for("STOPPING", "1")
        assert not any("READY" in told for told in manager.told)
    finally:
        if front.process is not None:
            front.kill()
