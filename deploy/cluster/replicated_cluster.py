"""A replicated broker on one machine: etcd, two registries, three members, two front ends, on loopback.

    python deploy/cluster/replicated_cluster.py [--directory build/cluster] [--port 21000]

Writes a settings file for each process, starts them, and ends them with Ctrl-C. The files are what three
machines would have, but for the addresses.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from iotmq.errors import IotmqError
from iotmq.member.peers import PeerConnector
from iotmq.member.wire import Introduction
from iotmq.replication.settings import ReplicationSettings

ROOT: Final = Path(__file__).resolve().parents[2]
BROKER: Final = "broker-a"
CLUSTER: Final = "DefaultCluster"
SEGMENT_BYTES: Final = 64 * 1024 * 1024

_READY_S: Final = 30.0
_STEP_S: Final = 0.02
_PR_SET_PDEATHSIG: Final = 1
T = TypeVar("T")


class ClusterError(Exception):
    """The cluster cannot be started, or does not do what it should; the text says why."""


def eventually(condition: Callable[[], T], what: str, *, within_s: float = _READY_S) -> T:
    """The first true value of `condition`; ClusterError after `within_s`."""
    deadline_s = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline_s:
            raise ClusterError(f"{what}: not within {within_s:.0f} s")
        time.sleep(_STEP_S)
    return value


class Part:
    """One process, which ends with this one, and whose output goes to a file."""

    def __init__(self, name: str, words: list[str], directory: Path, *, ready_url: str) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._words = words
        self._ready_url = ready_url
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        """Its number for the system."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, or start it again."""

        def in_child() -> None:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=in_child,
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": os.uname().machine},
            )

    def wait_ready(self) -> None:
        """Wait until its health page says so."""

        def is_ready() -> bool:
            if not self.is_running:
                raise ClusterError(f"{self.name} has ended:\n{self.log.read_text()[-2_000:]}")
            try:
                with urllib.request.urlopen(self._ready_url, timeout=1.0) as answer:
                    return bool(answer.status == 200)
            except (urllib.error.URLError, OSError):
                return False

        eventually(is_ready, f"{self.name} is ready")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; SIGKILL and SIGTERM wait for its end."""
        assert self._process is not None
        self._process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._process.wait(_READY_S)

    def end(self) -> None:
        """End it, by force if need be."""
        if self.is_running:
            try:
                self.signal(signal.SIGTERM)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)


class ReplicatedCluster:
    """`with` starts and ends all processes. Settings files, logs and data are in `directory`."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 21_000,
        members: int = 3,
        front_ends: int = 2,
        broker: str = "",
        more: str = "",
    ) -> None:
        """Ports from `port` on are used.

        `broker` is TOML for the section of that name in every member's file, `more` is TOML at its end.

        With one member the broker is not replicated.
        """
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        program = shutil.which("etcd")
        if program is None:
            raise ClusterError("etcd is not installed: tools/setup.sh dev, or apt-get install etcd-server")
        self.etcd_url = f"http://127.0.0.1:{port}"
        peer_url = f"http://127.0.0.1:{port + 1}"
        self.etcd = Part(
            "etcd",
            [
                program, "--name", "etcd", "--data-dir", str(directory / "etcd"),
                "--listen-client-urls", self.etcd_url, "--advertise-client-urls", self.etcd_url,
                "--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url,
                "--initial-cluster", f"etcd={peer_url}",
            ],
            directory,
            ready_url=f"{self.etcd_url}/health",
        )  # fmt: skip
        registry_ports = [port + 10, port + 11]
        self.registries = tuple(f"127.0.0.1:{each}" for each in registry_ports)
        texts = json.dumps(list(self.registries))
        self.registry_parts = [
            self._part(
                f"registry-{number}", "registry", port + 20 + number,
                f"[registry]\nlisten_port = {each}\n",
            )
            for number, each in enumerate(registry_ports, 1)
        ]  # fmt: skip
        addresses = {number: port + 30 + number for number in range(1, members + 1)}
        self.member_texts = [f"{number}=127.0.0.1:{each}" for number, each in addresses.items()]
        self.members = {
            number: self._part(
                f"member-{number}", "broker", port + 40 + number,
                f'[broker]\nname = "{BROKER}"\nlisten_port = {each}\nregistries = {texts}\n'
                f"{broker}\n[store]\nsegment_bytes = {SEGMENT_BYTES}\n\n"
                f'[replication]\nmode = "{"elected" if members > 1 else "off"}"\nmember = {number}\n'
                f"members = {json.dumps(self.member_texts)}\n\n"
                f'[replication.etcd]\nendpoints = ["{self.etcd_url}"]\n{more}',
            )
            for number, each in addresses.items()
        }  # fmt: skip
        self.mqtt_ports = [port + 50 + number for number in range(front_ends)]
        self.front_ends = [
            self._part(
                f"front-{number}", "mqtt", port + 60 + number,
                f"[mqtt]\nlisten_port = {each}\nregistries = {texts}\n",
            )
            for number, each in enumerate(self.mqtt_ports, 1)
        ]  # fmt: skip
        self.connector = PeerConnector(
            ReplicationSettings(members=tuple(self.member_texts)),
            Introduction(cluster=CLUSTER, broker=BROKER, segment_bytes=SEGMENT_BYTES),
        )

    def __enter__(self) -> Self:
        try:
            self.etcd.start()
            self.etcd.wait_ready()
            for part in (*self.registry_parts, *self.members.values()):
                part.start()
            for part in self.registry_parts:
                part.wait_ready()
            if len(self.members) > 1:
                self.wait_for_master()
            else:
                self.members[1].wait_ready()
            for part in self.front_ends:
                part.start()
            for part in self.front_ends:
                part.wait_ready()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End all processes."""
        for part in (*self.front_ends, *self.members.values(), *self.registry_parts, self.etcd):
            part.end()

    def status(self, number: int) -> dict[str, Any] | None:
        """What a member says of itself; None when it does not answer."""

        async def ask() -> dict[str, Any] | None:
            with contextlib.suppress(IotmqError):
                return await self.connector.status(number, timeout_s=1.0)
            return None

        return asyncio.run(ask()) if self.members[number].is_running else None

    def master(self) -> int | None:
        """The member that serves as master now."""
        for number in self.members:
            status = self.status(number)
            if status is not None and status["isServing"]:
                return number
        return None

    def wait_for_master(self, *, other_than: int | None = None) -> int:
        """Wait until a member serves, and return its number."""

        def find() -> int | None:
            number = self.master()
            return None if number == other_than else number

        found = eventually(find, "a member is master")
        assert found is not None
        return found

    def wait_in_sync(self) -> None:
        """Wait until all members are in sync."""

        def are_in_sync() -> bool:
            master = self.master()
            status = None if master is None else self.status(master)
            return status is not None and len(status["state"]["in_sync"]) == len(self.members)

        eventually(are_in_sync, "all members are in sync")

    def _part(self, name: str, role: str, http_port: int, settings: str) -> Part:
        file = self.directory / f"{name}.toml"
        file.write_text(f"{settings}\n[http]\nlisten_port = {http_port}\n")
        words = [sys.executable, "-m", "iotmq", role, "--config", str(file)]
        words += ["--data", str(self.directory / name)]
        return Part(name, words, self.directory, ready_url=f"http://127.0.0.1:{http_port}/readyz")


def main() -> int:
    """Run a cluster until Ctrl-C."""
    parser = argparse.ArgumentParser(description="A replicated broker on this machine.")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "cluster")
    parser.add_argument("--port", type=int, default=21_000, help="the first port (default: %(default)s)")
    options = parser.parse_args()
    try:
        with ReplicatedCluster(options.directory, port=options.port) as cluster:
            print(f"members (native port): {', '.join(cluster.member_texts)}; master: {cluster.master()}")
            print(f"registries: {', '.join(cluster.registries)}")
            print(f"MQTT: {', '.join(f'127.0.0.1:{port}' for port in cluster.mqtt_ports)}")
            print(f"etcd: {cluster.etcd_url}; settings, logs and data: {cluster.directory}")
            print("Ctrl-C ends it.", flush=True)
            signal.pause()
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
