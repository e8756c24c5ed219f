"""A replicated broker of real processes whose network, disks and consensus store can be made to fail.

With `Network.of_namespaces` each member and each node of etcd has a network namespace of its own, on one
bridge: its link can be taken down, and packets from one host to another can be lost in one direction. That
needs the rights for it, and a process that is alone in a network and a mount namespace (`unshare`). With
`Network.plain` everything is on loopback, and the network does not fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from module_files import load_module

from iotmq.errors import IotmqError
from iotmq.member.peers import PeerConnector
from iotmq.member.wire import Introduction
from iotmq.remoting.codes import RequestCode
from iotmq.replicated.member_file import open_member_file
from iotmq.replication.settings import ReplicationSettings

ROOT: Final = Path(__file__).resolve().parents[2]
replicated_cluster = load_module(ROOT / "deploy" / "cluster" / "replicated_cluster.py")
BROKER: Final = "broker-a"
CLUSTER: Final = "DefaultCluster"
SEGMENT_BYTES: Final = 1 << 20
STORE: Final = {
    "segment_bytes": SEGMENT_BYTES, "record_bytes_max": 262_144, "allocation_step_bytes": 65_536,
    "queue_file_entries": 5_000, "disk_delete_percent": 100, "disk_force_percent": 100,
}  # fmt: skip
DISK_MB: Final = 256
# A busy machine may take long for what is done at once elsewhere.
HEALED_S: Final = 90.0
_LOAD_HOST: Final = "10.77.0.254"
_NOBODY: Final = "02:00:00:00:00:99"

Part = replicated_cluster.Part
ClusterError = replicated_cluster.ClusterError
eventually = replicated_cluster.eventually


class Network:
    """Hosts by name, and what is done to the ways between them."""

    def __init__(self, *, has_namespaces: bool) -> None:
        self.has_namespaces = has_namespaces
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses: dict[str, str] = {}
        # (host, address) whose packets are lost.
        self._lost: set[tuple[str, str]] = set()
        self._down: set[str] = set()
        if has_namespaces:
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "link", "add", "br0", "type", "bridge")
            _run("ip", "link", "set", "br0", "up")
            _run("ip", "addr", "add", f"{_LOAD_HOST}/24", "dev", "br0")

    @staticmethod
    def is_permitted() -> bool:
        """Return whether a program may have a network and a bridge of its own."""
        if shutil.which("unshare") is None or shutil.which("ip") is None or os.geteuid():
            return False
        words = (
            "ip link add br0 type bridge && ip link add va type veth peer name vb && mount -t tmpfs none /mnt"
        )
        done = subprocess.run(
            ["unshare", "--net", "--mount", "sh", "-c", words], capture_output=True, timeout=30, check=False
        )
        return done.returncode == 0

    @property
    def load_host(self) -> str:
        """The address of what is no member and no node of etcd."""
        return _LOAD_HOST if self.has_namespaces else "127.0.0.1"

    def add(self, name: str) -> str:
        """Make a host, and return its address."""
        if not self.has_namespaces:
            return "127.0.0.1"
        number = len(self._addresses) + 1
        address = self._addresses[name] = f"10.77.0.{number}"
        holder = self._holders[name] = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        own = os.readlink("/proc/self/ns/net")
        eventually(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own, "a network namespace")
        _run("ip", "link", "add", f"h{number}", "type", "veth", "peer", "name", f"p{number}")
        _run("ip", "link", "set", f"p{number}", "netns", str(holder.pid))
        _run("ip", "link", "set", f"h{number}", "master", "br0", "up")
        self._inside(name, "ip", "link", "set", "lo", "up")
        self._inside(name, "ip", "link", "set", f"p{number}", "name", "eth0")
        self._inside(name, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
        self._inside(name, "ip", "link", "set", "eth0", "up")
        return address

    def prefix(self, name: str) -> list[str]:
        """Return the words before a command that runs at a host."""
        holder = self._holders.get(name)
        return [] if holder is None else ["nsenter", f"--net=/proc/{holder.pid}/ns/net", "--"]

    def take_down(self, name: str) -> None:
        """Let nothing from or to a host through."""
        self._down.add(name)
        _run("ip", "link", "set", self._link(name), "down")

    def lose(self, sender: str, receiver: str) -> None:
        """Lose the packets from one host to another; those of the other direction arrive."""
        address = self._addresses[receiver]
        self._lost.add((sender, address))
        self._inside(
            sender, "ip", "neigh", "replace", address, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent"
        )

    def heal(self) -> None:
        """Let everything through."""
        for name in self._down:
            _run("ip", "link", "set", self._link(name), "up")
        for sender, address in self._lost:
            self._inside(sender, "ip", "neigh", "del", address, "dev", "eth0")
        self._down.clear()
        self._lost.clear()

    def end(self) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.wait()

    def _link(self, name: str) -> str:
        return f"h{self._addresses[name].rpartition('.')[2]}"

    def _inside(self, name: str, *words: str) -> None:
        _run(*self.prefix(name), *words)


def _listens(address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=1.0):
        return True
    return False


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


class FaultCluster:
    """etcd of one or three nodes, two registries, three members, two front ends; `with` starts and ends."""

    def __init__(
        self,
        directory: Path,
        network: Network,
        *,
        port: int,
        etcd_nodes: int = 1,
        is_all_in_one: bool = False,
    ) -> None:
        """With `is_all_in_one` each member's process has a registry and a front end, too."""
        self.directory = directory
        self.network = network
        self.is_all_in_one = is_all_in_one
        self._port = port
        self.said: list[str] = []
        """What commands printed."""
        directory.mkdir(parents=True, exist_ok=True)
        self.etcd = self._etcd(port, etcd_nodes)
        hosts = {number: network.add(f"member-{number}") for number in (1, 2, 3)}
        load = network.load_host
        if is_all_in_one:
            registries = [(hosts[number], port + 10 + number) for number in hosts]
        else:
            registries = [(load, port + 10 + number) for number in (1, 2)]
        self.registries = tuple(f"{host}:{each}" for host, each in registries)
        self.addresses = {number: (hosts[number], port + 30 + number) for number in hosts}
        self.member_texts = [f"{number}={host}:{each}" for number, (host, each) in self.addresses.items()]
        self.members: dict[int, Any] = {
            number: self._member(number, port, f"member-{number}", number) for number in hosts
        }
        self.mqtt: list[tuple[str, int]] = []
        self.others: list[Any] = []
        if is_all_in_one:
            self.mqtt = [(hosts[number], port + 50 + number) for number in hosts]
        else:
            for number, (host, each) in enumerate(registries, 1):
                settings = f'[registry]\nlisten_host = "{host}"\nlisten_port = {each}\n'
                self.others.append(self._part(f"registry-{number}", "registry", port + 20 + number, settings))
            for number in (1, 2):
                self.mqtt.append(("127.0.0.1", port + 50 + number))
                settings = f"[mqtt]\nlisten_port = {port + 50 + number}\n" + self._registries()
                self.others.append(self._part(f"front-{number}", "mqtt", port + 60 + number, settings))
        self.connector = PeerConnector(
            ReplicationSettings(members=tuple(self.member_texts)),
            Introduction(cluster=CLUSTER, broker=BROKER, segment_bytes=SEGMENT_BYTES),
        )
        self._fillers: list[Path] = []

    # Life -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            for part in self.etcd:
                part.start()
            for part in self.etcd:
                part.wait_ready()
            if self.network.has_namespaces:
                # A disk of its own, which can be filled.
                (self.directory / "member-3").mkdir()
                disk = str(self.directory / "member-3")
                _run("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", disk)
            for part in (*self.others, *self.members.values()):
                part.start()
            self.wait_in_sync()
            for part in self.others:
                part.wait_ready()
            for address in self.mqtt:
                eventually(partial(_listens, address), f"a front end listens at {address}")
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End all processes."""
        for part in (*self.others, *self.members.values(), *self.etcd):
            if part.is_running:
                part.signal(signal.SIGCONT)
                part.end()
        self.network.end()

    # Looking ----------------------------------------------------------------------------------------------

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
        """The member that serves with the latest epoch."""
        serving = [(s["state"]["epoch"], n) for n, s in self.statuses().items() if s["isServing"]]
        return max(serving)[1] if serving else None

    def followers(self) -> list[int]:
        """The members that are not master."""
        master = self.master()
        return [number for number in self.members if number != master]

    def wait_in_sync(self, *, within_s: float = HEALED_S) -> int:
        """Wait until a member is master and all are in sync; return its number."""

        def find() -> int | None:
            for part in self.members.values():
                if not part.is_running:
                    raise ClusterError(f"{part.name} has ended:\n{part.log.read_text()[-2_000:]}")
            master = self.master()
            status = None if master is None else self.status(master)
            # An epoch of another master may still be recorded as its own by a member that was stopped.
            is_whole = status is not None and status["isServing"] and len(status["state"]["in_sync"]) == 3
            return master if is_whole else None

        try:
            found = eventually(find, "all members are in sync", within_s=within_s)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{json.dumps(self.statuses(), indent=1)}") from None
        assert isinstance(found, int)
        return found

    def wait_level(self) -> int:
        """Wait until all members have confirmed the same end of the log, and return it."""

        def find() -> int | None:
            ends = [(s["end"], s["confirmed"]) for s in self.statuses().values()]
            positions = {position for pair in ends for position in pair}
            return positions.pop() if len(ends) == 3 and len(positions) == 1 else None

        found = eventually(find, "all members have confirmed the same", within_s=HEALED_S)
        assert isinstance(found, int)
        return found

    # Faults -----------------------------------------------------------------------------------------------

    def kill(self, *numbers: int) -> None:
        for number in numbers:
            if self.members[number].is_running:
                self.members[number].signal(signal.SIGKILL)

    def pause(self, *numbers: int) -> None:
        for number in numbers:
            self.members[number].signal(signal.SIGSTOP)

    def go_on(self, *numbers: int) -> None:
        for number in numbers:
            self.members[number].signal(signal.SIGCONT)

    def start(self, *numbers: int) -> None:
        for number in numbers:
            if not self.members[number].is_running:
                self.members[number].start()

    def hand_over(self, number: int = 0) -> None:
        """Ask the master to hand over, once; 0 for anybody."""
        master = self.master()
        if master is not None:
            fields = {"member": str(number)}
            with contextlib.suppress(IotmqError):
                asyncio.run(self.connector.request(master, RequestCode.HAND_OVER, fields, timeout_s=5.0))

    def twin(self, number: int) -> Any:
        """Return a process with the number of a member and an empty directory, which is not started."""
        directory = self.directory / f"twin-{number}"
        shutil.rmtree(directory, ignore_errors=True)
        return self._member(number, self._port, directory.name, 40 + number, native=self._port + 70 + number)

    def make_foreign(self, number: int) -> None:
        """Make a member's directory one of another cluster."""
        open_member_file(
            self.directory / f"member-{number}",
            cluster="another",
            broker=BROKER,
            member=number,
            keeps_acknowledged=True,
        ).close()

    def adopt(self) -> None:
        """Have the state of the consensus store written anew, as an operator does."""
        eventually(lambda: len(self.statuses()) == 3, "all members answer", within_s=HEALED_S)

        def is_done() -> bool:
            if self.master() is not None:
                return True
            words = [sys.executable, "-m", "iotmq", "replication", "adopt", "--yes"]
            words += ["--config", str(self.directory / "member-1.toml")]
            prefix = self.network.prefix("member-1")
            done = subprocess.run([*prefix, *words], capture_output=True, text=True, timeout=60, check=False)
            self.said.append(f"adopt: {done.returncode}: {done.stdout}{done.stderr}")
            return done.returncode == 0

        try:
            eventually(is_done, "the state is adopted", within_s=30.0)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.said[-1:]}\n{self.statuses()}") from None

    def fill_disk(self, number: int) -> None:
        """Leave no room on the disk of a member."""
        filler = self.directory / f"member-{number}" / "filler"
        self._fillers.append(filler)
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                pass

    def heal(self) -> None:
        """End every fault: what was stopped runs, what was killed is started."""
        self.network.heal()
        for filler in self._fillers:
            filler.unlink(missing_ok=True)
        self._fillers.clear()
        for part in (*self.etcd, *self.members.values(), *self.others):
            if part.is_running:
                part.signal(signal.SIGCONT)
            else:
                part.start()

    # Settings ---------------------------------------------------------------------------------------------

    def _etcd(self, port: int, count: int) -> list[Any]:
        program = shutil.which("etcd")
        if program is None:
            raise ClusterError("etcd is not installed: apt-get install etcd-server")
        hosts = [self.network.add(f"etcd-{number}") for number in range(1, count + 1)]
        nodes = [(host, port + 2 * number) for number, host in enumerate(hosts)]
        self.etcd_urls = [f"http://{host}:{each}" for host, each in nodes]
        peers = [f"http://{host}:{each + 1}" for host, each in nodes]
        cluster = ",".join(f"etcd-{number}={peer}" for number, peer in enumerate(peers, 1))
        return [
            Part(
                f"etcd-{number}",
                [
                    *self.network.prefix(f"etcd-{number}"), program, "--name", f"etcd-{number}",
                    "--data-dir", str(self.directory / f"etcd-{number}"),
                    "--listen-client-urls", url, "--advertise-client-urls", url,
                    "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                    "--initial-cluster", cluster, "--unsafe-no-fsync",
                ],
                self.directory,
                ready_url=f"{url}/health",
            )
            for number, (url, peer) in enumerate(zip(self.etcd_urls, peers, strict=True), 1)
        ]  # fmt: skip

    def _registries(self) -> str:
        return f"registries = {json.dumps(list(self.registries))}\n"

    def _member(self, number: int, port: int, name: str, directory_number: int, *, native: int = 0) -> Any:
        host, own = self.addresses[number]
        native = native or own
        store = "".join(f"{key} = {value}\n" for key, value in STORE.items())
        settings = (
            f'[broker]\nname = "{BROKER}"\nlisten_host = "{host}"\nadvertised_host = "{host}"\n'
            f"listen_port = {native}\n{self._registries()}\n[store]\n{store}\n"
            f'[replication]\nmode = "elected"\nmember = {number}\n'
            f"members = {json.dumps(self.member_texts)}\n\n"
            f"[replication.etcd]\nendpoints = {json.dumps(self.etcd_urls)}\n\n"
        )
        role = "broker"
        if self.is_all_in_one:
            role = "serve"
            settings += (
                f'[registry]\nlisten_host = "{host}"\nlisten_port = {port + 10 + number}\n\n'
                f'[mqtt]\nlisten_host = "{host}"\nlisten_port = {port + 50 + number}\n'
                "allow_anonymous_remote = true\n\n"
            )
        prefix = self.network.prefix(f"member-{number}")
        return self._part(name, role, port + 40 + directory_number, settings, prefix)

    def _part(self, name: str, role: str, http_port: int, settings: str, prefix: Iterable[str] = ()) -> Any:
        file = self.directory / f"{name}.toml"
        file.write_text(f"{settings}\n[http]\nlisten_port = {http_port}\n")
        words = [*prefix, sys.executable, "-m", "iotmq", role, "--config", str(file)]
        words += ["--data", str(self.directory / name)]
        return Part(name, words, self.directory, ready_url=f"http://127.0.0.1:{http_port}/readyz")
