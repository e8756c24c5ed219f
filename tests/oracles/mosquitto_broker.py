"""A Mosquitto broker on free ports: TCP, TLS, WebSocket, secure WebSocket and a Unix socket."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

from certificates import Certificate, make_certificate, make_root
from eventually import eventually
from gateway_process import free_port

PROGRAM = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class MosquittoBroker:
    """`with` starts it and ends it; everything it needs is below `directory`."""

    def __init__(self, directory: Path, *settings: str) -> None:
        """`settings` are lines of its configuration file, instead of one that lets everybody in."""
        self.port = free_port()
        self.tls_port = free_port()
        self.websocket_port = free_port()
        self.secure_websocket_port = free_port()
        self.socket_path = directory / "mqtt.sock"
        self.root: Certificate = make_root(directory)
        server = make_certificate(directory, self.root)
        secrets = [f"certfile {server.certificate}", f"keyfile {server.key}"]
        self._file = directory / "mosquitto.conf"
        self._file.write_text(
            "\n".join(
                [
                    *(settings or ["allow_anonymous true"]),
                    f"user {getpass.getuser()}", "max_queued_messages 100000",
                    f"listener {self.port} 127.0.0.1",
                    f"listener {self.tls_port} 127.0.0.1", *secrets,
                    f"listener {self.websocket_port} 127.0.0.1", "protocol websockets",
                    f"listener {self.secure_websocket_port} 127.0.0.1", "protocol websockets", *secrets,
                    f"listener 0 {self.socket_path}",
                ]
            )
            + "\n"
        )  # fmt: skip
        self._log = directory / "mosquitto.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        assert PROGRAM is not None
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([PROGRAM, "-v", "-c", str(self._file)], stdout=log, stderr=log)

        def listens() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.log_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        eventually(listens, "Mosquitto listens")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")
