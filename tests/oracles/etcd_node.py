"""A real etcd of one node on a free port of loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

from certificates import Certificate
from eventually import eventually
from gateway_process import free_port
from server_process import ServerProcess

PROGRAM = shutil.which("etcd")
CONTROL = shutil.which("etcdctl")


class EtcdNode(ServerProcess):
    """`with` starts it and ends it; its data are below `directory`."""

    def __init__(
        self, directory: Path, root: Certificate | None = None, server: Certificate | None = None
    ) -> None:
        """With certificates it takes encrypted connections only, of clients that `root` has signed."""
        scheme = "http" if server is None else "https"
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        peer = f"http://127.0.0.1:{free_port()}"
        super().__init__(directory / "etcd.log")
        self._words = [
            "--name", "test", "--data-dir", str(directory / "etcd"),
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"test={peer}",
        ]  # fmt: skip
        self._health = f"{self.url}/health"
        if server is not None and root is not None:
            self._words += [
                "--cert-file", server.certificate, "--key-file", server.key,
                "--trusted-ca-file", root.certificate, "--client-cert-auth",
            ]  # fmt: skip
            metrics = f"http://127.0.0.1:{free_port()}"
            self._words += ["--listen-metrics-urls", metrics]
            self._health = f"{metrics}/health"

    def start(self) -> None:
        """Start it, or start it again with the data it had; returns once it is healthy."""
        assert PROGRAM is not None
        # The package for Debian refuses to start on other processors without it.
        self.launch([PROGRAM, *self._words], env={**os.environ, "ETCD_UNSUPPORTED_ARCH": os.uname().machine})

        def is_healthy() -> bool:
            self.check()
            with urllib.request.urlopen(self._health, timeout=5) as answer:
                return b'"true"' in answer.read()

        eventually(is_healthy, "etcd is healthy")

    def control(self, *words: str) -> str:
        """Run etcdctl."""
        assert CONTROL is not None
        done = subprocess.run(
            [CONTROL, f"--endpoints={self.url}", *words],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout
