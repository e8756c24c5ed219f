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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeAlias, TypeVar

from iotmq.errors import IotmqError
from iotmq.member.peers import PeerConnector
from iotmq.member.wire import Introduction
from iotmq.replication.settings import ReplicationSettings

ROOT: Final = Path(__file__).resolve().parents[2]
BROKER: Final = "broker-a"
CLUSTER: Final = "DefaultCluster"
SEGMENT_BYTES: Final = 64 * 1024 * 1024

# A busy machine may take long for what is done at once elsewhere.
HEALED_S: Final = 90.0
_READY_S: Final = 30.0
_STEP_S: Final = 0.02
_PR_SET_PDEATHSIG: Final = 1
T = TypeVar("T")
Sections: TypeAlias = Mapping[str, Mapping[str, object]]


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

    def __init__(self, name: str, words: list[str], directory: Path, *, url: str, ready_page: str) -> None:
        self.name = name
        self.data = directory / name
        self.url = url
        """Where its pages are, `ready_page` among them."""
        self._log = directory / f"{name}.log"
        self._words = words
        self._ready_page = ready_page
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

        with self._log.open("ab") as log:
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
            self.check_running()
            try:
                with urllib.request.urlopen(f"{self.url}{self._ready_page}", timeout=1.0) as answer:
                    return bool(answer.status == 200)
            except (urllib.error.URLError, OSError):
                return False

        eventually(is_ready, f"{self.name} is ready")

    def check_running(self) -> None:
        """Raise ClusterError, with the last it wrote, when it does not run."""
        if not self.is_running:
            raise ClusterError(f"{self.name} has ended:\n{self.log_text()[-2_000:]}")

    def log_text(self) -> str:
        """What it wrote, in all its lives."""
        return self._log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal; SIGKILL and SIGTERM wait for its end."""
        assert self._process is not None
        self._process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.wait()

    def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        assert self._process is not None
        return self._process.wait(_READY_S)

    def end(self) -> None:
        """End it, by force if need be."""
        if self.is_running:
            try:
                self.signal(signal.SIGCONT)
                self.signal(signal.SIGTERM)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)


class Hosts:
    """The hosts that parts of a cluster have for themselves; here all of them are loopback."""

    load_host = "127.0.0.1"
    """The address of what is no member and no node of etcd."""

    def add(self, name: str) -> str:
        """Make a host, and return its address."""
        return self.load_host

    def prefix(self, name: str) -> list[str]:
        """Return the words before a command that runs at a host."""
        return []


class ReplicatedCluster:
    """`with` starts and ends all processes. Settings files, logs and data are in `directory`."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 21_000,
        members: int = 3,
        front_ends: int = 2,
        is_all_in_one: bool = False,
        settings: Sections | None = None,
        etcd_nodes: int = 1,
        etcd_options: Sequence[str] = (),
        hosts: Hosts | None = None,
    ) -> None:
        """Ports from `port` on are used.

        With one member the broker is not replicated. With `is_all_in_one` each member's process has a
        registry and a front end, too, and there are no others. `settings` are more ones of every member;
        its section mqtt is for every front end.
        """
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.is_all_in_one = is_all_in_one
        self._port = port
        self._hosts = hosts or Hosts()
        self._settings = settings or {}
        self.etcd = self._etcd(etcd_nodes, etcd_options)
        places = {number: self._hosts.add(f"member-{number}") for number in range(1, members + 1)}
        self.addresses = {number: (host, port + 30 + number) for number, host in places.items()}
        self.member_texts = [f"{number}={host}:{each}" for number, (host, each) in self.addresses.items()]
        if is_all_in_one:
            registries = [(host, port + 10 + number) for number, host in places.items()]
            self.mqtt = [(host, port + 50 + number) for number, host in places.items()]
        else:
            registries = [(self._hosts.load_host, port + 10 + number) for number in (1, 2)]
            self.mqtt = [("127.0.0.1", port + 50 + number) for number in range(1, front_ends + 1)]
        self.registries = tuple(f"{host}:{each}" for host, each in registries)
        self.members = {number: self._member(number, f"member-{number}") for number in places}
        self.others: list[Part] = []
        """Registries and front ends that are processes of their own."""
        if not is_all_in_one:
            for number, (host, each) in enumerate(registries, 1):
                section = {"listen_host": host, "listen_port": each}
                self._add_other(f"registry-{number}", "registry", port + 20 + number, section)
            for number, (host, each) in enumerate(self.mqtt, 1):
                section = {"listen_host": host, "listen_port": each, "registries": self.registries}
                section.update(self._settings.get("mqtt", {}))
                self._add_other(f"front-{number}", "mqtt", port + 60 + number, section)
        store = {"segment_bytes": SEGMENT_BYTES, **self._settings.get("store", {})}
        self.connector = PeerConnector(
            ReplicationSettings(members=tuple(self.member_texts)),
            Introduction(cluster=CLUSTER, broker=BROKER, segment_bytes=store["segment_bytes"]),
        )

    def __enter__(self) -> Self:
        try:
            for part in self.etcd:
                part.start()
            for part in self.etcd:
                part.wait_ready()
            for part in (*self.others, *self.members.values()):
                part.start()
            if len(self.members) > 1:
                self.wait_for_master()
            else:
                self.members[1].wait_ready()
            for part in self.others:
                part.wait_ready()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End all processes."""
        for part in (*reversed(self.others), *self.members.values(), *self.etcd):
            part.end()

    @property
    def mqtt_ports(self) -> list[int]:
        """The ports of the front ends."""
        return [port for _host, port in self.mqtt]

    def status(self, number: int) -> dict[str, Any] | None:
        """What a member says of itself; None when it does not answer."""

        async def ask() -> dict[str, Any] | None:
            with contextlib.suppress(IotmqError):
                return await self.connector.status(number, timeout_s=1.0)
            return None

        return asyncio.run(ask()) if self.members[number].is_running else None

    def statuses(self) -> dict[int, dict[str, Any]]:
        """What members say of themselves, those that answer."""
        return {number: status for number in self.members if (status := self.status(number)) is not None}

    def master(self) -> int | None:
        """The member that serves as master now, with the latest epoch."""
        serving = [(s["state"]["epoch"], n) for n, s in self.statuses().items() if s["isServing"]]
        return max(serving)[1] if serving else None

    def wait_for_master(self, *, other_than: int | None = None) -> int:
        """Wait until a member serves, and return its number."""

        def find() -> int | None:
            number = self.master()
            return None if number == other_than else number

        found = eventually(find, "a member is master", within_s=HEALED_S)
        assert found is not None
        return found

    def wait_in_sync(self) -> int:
        """Wait until a member is master and all are in sync, and return its number."""

        def find() -> int | None:
            for part in self.members.values():
                part.check_running()
            master = self.master()
            status = None if master is None else self.status(master)
            # An epoch of another master may still be recorded as its own by a member that was stopped.
            is_whole = (
                status is not None
                and status["isServing"]
                and len(status["state"]["in_sync"]) == len(self.members)
            )
            return master if is_whole else None

        try:
            found = eventually(find, "all members are in sync", within_s=HEALED_S)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{json.dumps(self.statuses(), indent=1)}") from None
        assert found is not None
        return found

    def _etcd(self, count: int, options: Sequence[str]) -> list[Part]:
        program = shutil.which("etcd")
        if program is None:
            raise ClusterError("etcd is not installed: tools/setup.sh dev, or apt-get install etcd-server")
        names = [f"etcd-{number}" for number in range(1, count + 1)]
        places = [(self._hosts.add(name), self._port + 2 * index) for index, name in enumerate(names)]
        self.etcd_urls = [f"http://{host}:{port}" for host, port in places]
        peers = [f"http://{host}:{port + 1}" for host, port in places]
        cluster = ",".join(f"{name}={peer}" for name, peer in zip(names, peers, strict=True))
        return [
            Part(
                name,
                [
                    *self._hosts.prefix(name), program,
                    "--name", name, "--data-dir", str(self.directory / name),
                    "--listen-client-urls", url, "--advertise-client-urls", url,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", cluster, *options,
                ],
                self.directory,
                url=url,
                ready_page="/health",
            )
            for name, url, peer in zip(names, self.etcd_urls, peers, strict=True)
        ]  # fmt: skip

    def _member(self, number: int, name: str, *, is_twin: bool = False) -> Part:
        """Make a member; one that is a twin has the number of another, and ports of its own."""
        host, native_port = self.addresses[number]
        port, shift = self._port + number, 40 if is_twin else 0
        sections: dict[str, dict[str, object]] = {
            "broker": {
                "name": BROKER,
                "listen_host": host,
                "listen_port": native_port + shift,
                "advertised_host": host,
                "registries": self.registries,
            },
            "store": {"segment_bytes": SEGMENT_BYTES},
            "replication": {
                "mode": "elected" if len(self.addresses) > 1 else "off",
                "member": number,
                "members": self.member_texts,
            },
            "replication.etcd": {"endpoints": self.etcd_urls},
        }
        role = "broker"
        if self.is_all_in_one:
            role = "serve"
            sections["registry"] = {"listen_host": host, "listen_port": port + 10}
            sections["mqtt"] = {
                "listen_host": host,
                "listen_port": port + 50,
                "allow_anonymous_remote": True,
            }
        for section, more in self._settings.items():
            if section != "mqtt" or self.is_all_in_one:
                sections.setdefault(section, {}).update(more)
        prefix = self._hosts.prefix(f"member-{number}")
        return self._part(name, role, port + 40 + shift, sections, prefix)

    def _add_other(self, name: str, role: str, http_port: int, section: Mapping[str, object]) -> None:
        self.others.append(self._part(name, role, http_port, {role: section}))

    def _part(
        self, name: str, role: str, http_port: int, settings: Sections, prefix: Sequence[str] = ()
    ) -> Part:
        file = self.directory / f"{name}.toml"
        file.write_text(_toml({**settings, "http": {"listen_port": http_port}}))
        words = [*prefix, sys.executable, "-m", "iotmq", role, "--config", str(file)]
        words += ["--data", str(self.directory / name)]
        url = f"http://127.0.0.1:{http_port}"
        return Part(name, words, self.directory, url=url, ready_page="/readyz")


def _toml(sections: Sections) -> str:
    """The text of a settings file."""
    return "\n".join(
        f"[{section}]\n" + "".join(f"{name} = {_toml_value(value)}\n" for name, value in values.items())
        for section, values in sections.items()
    )


def _toml_value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    # Texts and numbers are the same in JSON and TOML.
    return json.dumps(value)


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
            print(f"etcd: {cluster.etcd_urls[0]}; settings, logs and data: {cluster.directory}")
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
