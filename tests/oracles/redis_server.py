"""A real Redis on a free port of loopback, without files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from eventually import eventually
from gateway_process import free_port
from server_process import ServerProcess, is_listening

PROGRAM = shutil.which("redis-server")
CONTROL = shutil.which("redis-cli")


class RedisServer(ServerProcess):
    """`with` starts it and ends it."""

    password = "for-tests"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "redis.log")
        self.port = free_port()
        self._directory = directory

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, empty; returns when it listens."""
        assert PROGRAM is not None
        self.launch(
            [
                PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                "--appendonly", "no", "--requirepass", self.password, "--dir", str(self._directory),
            ]
        )  # fmt: skip
        eventually(lambda: is_listening(self.port), "Redis listens")

    def command(self, *words: str) -> str:
        """Run redis-cli."""
        assert CONTROL is not None
        done = subprocess.run(
            [CONTROL, "-p", str(self.port), "--no-auth-warning", "-a", self.password, *words],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout
