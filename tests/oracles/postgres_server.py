"""A real PostgreSQL on a free port of loopback, with a database of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from eventually import eventually
from gateway_process import free_port
from server_process import ServerProcess

_PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
INITDB = shutil.which("initdb", path=os.pathsep.join([*map(str, _PROGRAMS), os.environ.get("PATH", "")]))


class PostgresServer(ServerProcess):
    """`with` starts it and ends it. It refuses to run as root, and runs as the user of its package then."""

    user = "iotmq"
    password = "for-tests"

    def __init__(self) -> None:
        assert INITDB is not None
        self._programs = Path(INITDB).resolve().parent
        self._directory = Path(tempfile.mkdtemp(prefix="iotmq-postgres-"))
        super().__init__(self._directory / "log")
        self.port = free_port()
        self._identity: dict[str, Any] = {}
        if os.getuid() == 0:
            entry = pwd.getpwnam("postgres")
            self._identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            os.chown(self._directory, entry.pw_uid, entry.pw_gid)

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        return f"postgresql+asyncpg://{self.user}:{self.password}@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        secret = self._directory / "secret"
        secret.write_text(self.password)
        secret.chmod(0o644)
        self._run(
            "initdb", "--no-sync", "--auth=scram-sha-256", f"--pwfile={secret}", f"--username={self.user}",
            "--encoding=UTF8", "--locale=C", "-D", str(self._directory / "data"),
        )  # fmt: skip
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        shutil.rmtree(self._directory)

    def start(self) -> None:
        """Start it, or start it again with the data it had; returns when it answers."""
        self.launch(
            [
                str(self._programs / "postgres"), "-D", str(self._directory / "data"),
                "-c", f"port={self.port}", "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off",
                "-c", "unix_socket_directories=", "-c", "shared_buffers=16MB", "-c", "max_connections=20",
            ],
            cwd=self._directory, **self._identity,
        )  # fmt: skip
        eventually(self._is_ready, "PostgreSQL answers")

    def _is_ready(self) -> bool:
        self.check()
        words = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(words, check=False).returncode == 0

    def kill(self) -> None:
        """End it, and all its processes, at once."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(30)

    def sql(self, text: str) -> None:
        """Run statements."""
        self._run(
            "psql", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port),
            "-U", self.user, "-d", "postgres", "-c", text,
        )  # fmt: skip

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *words],
            env={**os.environ, "PGPASSWORD": self.password, "LC_ALL": "C"},
            capture_output=True, text=True, timeout=60, check=False, cwd=self._directory, **self._identity,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
