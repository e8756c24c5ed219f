"""The process of a real server that a test starts, kills and stops for a while."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from eventually import eventually


class ServerProcess:
    """`with` starts it and ends it. Servers say in `start` how, and when they are ready."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns when it answers."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def launch(self, words: Sequence[str], **options: Any) -> None:
        """Start the program, with its output in the log."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, **options)

    def check(self) -> None:
        """AssertionError, with what it has said, when it has ended."""
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text(errors="replace")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Stop the process; its connections stay open. All its threads stand still when this returns."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        eventually(
            lambda: all(_state(task) == "T" for task in tasks.iterdir()), "all threads have stopped"
        )

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


def _state(task: Path) -> str:
    """The letter of a thread's state; the name before it may have spaces."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def is_listening(port: int) -> bool:
    """Whether somebody listens on a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
