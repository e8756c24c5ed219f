"""A real Redis on a free port of loopback, without files."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Self

from eventually import eventually
from gateway_process import free_port
from slapd_server import is_listening

PROGRAM = shutil.which("redis-server")
CONTROL = shutil.which("redis-cli")


class RedisServer:
    """`with` starts it and ends it."""

    password = "for-tests"

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, empty; returns when it listens."""
        assert PROGRAM is not None
        with (self._directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                    "--appendonly", "no", "--requirepass", self.password, "--dir", str(self._directory),
                ],
                stdout=log, stderr=log,
            )  # fmt: skip
        eventually(lambda: is_listening(self.port), "Redis listens")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Stop the process; its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def command(self, *words: str) -> str:
        """Run redis-cli."""
        assert CONTROL is not None
        done = subprocess.run(
            [CONTROL, "-p", str(self.port), "--no-auth-warning", "-a", self.password, *words],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout
