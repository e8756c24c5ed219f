"""A replicated broker of real processes whose network, disks and consensus store can be made to fail.

With `has_namespaces` each member and each node of etcd has a network namespace of its own, on one
bridge: its link can be taken down, and packets from one host to another can be lost in one direction. That
needs the rights for it, and a process that is alone in a network and a mount namespace (`unshare`). Without,
everything is on loopback, and the network does not fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final, Self

from replicated_cluster import BROKER, HEALED_S, ClusterError, Hosts, Part, ReplicatedCluster, eventually

from iotmq.errors import IotmqError
from iotmq.remoting.codes import RequestCode
from iotmq.replicated.member_file import open_member_file

SEGMENT_BYTES: Final = 1 << 20
STORE: Final = {
    "segment_bytes": SEGMENT_BYTES, "record_bytes_max": 262_144, "allocation_step_bytes": 65_536,
    "queue_file_entries": 5_000, "disk_delete_percent": 100, "disk_force_percent": 100,
}  # fmt: skip
DISK_MB: Final = 256
_LOAD_HOST: Final = "10.77.0.254"
_NOBODY: Final = "02:00:00:00:00:99"


class Network(Hosts):
    """Hosts that have a network namespace each, and what is done to the ways between them."""

    def __init__(self, *, has_namespaces: bool) -> None:
        self.has_namespaces = has_namespaces
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._addresses: dict[str, str] = {}
        # (host, address) whose packets are lost.
        self._lost: set[tuple[str, str]] = set()
        self._down: set[str] = set()
        if has_namespaces:
            self.load_host = _LOAD_HOST
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

    def add(self, name: str) -> str:
        if not self.has_namespaces:
            return super().add(name)
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


class FaultCluster(ReplicatedCluster):
    """Three members whose processes, network, disks and etcd can be made to fail."""

    def __init__(
        self,
        directory: Path,
        network: Network,
        *,
        port: int,
        etcd_nodes: int = 1,
        is_all_in_one: bool = False,
    ) -> None:
        super().__init__(
            directory,
            port=port,
            is_all_in_one=is_all_in_one,
            settings={"store": STORE},
            etcd_nodes=etcd_nodes,
            etcd_options=["--unsafe-no-fsync"],
            hosts=network,
        )
        self.network = network
        self.said: list[str] = []
        """What commands printed."""
        self.starts_s: list[float] = []
        """When members were started again."""
        self.restores_count = 0
        """Counts how often the consensus store was given older data; odd while it is."""
        self._fillers: list[Path] = []

    def __enter__(self) -> Self:
        try:
            if self.network.has_namespaces:
                # A disk of its own, which can be filled.
                disk = self.members[3].data
                disk.mkdir()
                _run("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(disk))
            super().__enter__()
            self.wait_in_sync()
            for address in self.mqtt:
                eventually(partial(_listens, address), f"a front end listens at {address}")
        except BaseException:
            self.end()
            raise
        return self

    def end(self) -> None:
        """End all processes."""
        super().end()
        self.network.end()

    # Looking ----------------------------------------------------------------------------------------------

    def followers(self) -> list[int]:
        """The members that are not master."""
        master = self.master()
        return [number for number in self.members if number != master]

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
                self.starts_s.append(time.monotonic())
                self.members[number].start()

    def hand_over(self, number: int = 0) -> None:
        """Ask the master to hand over, once; 0 for anybody."""
        master = self.master()
        if master is not None:
            fields = {"member": str(number)}
            with contextlib.suppress(IotmqError):
                asyncio.run(self.connector.request(master, RequestCode.HAND_OVER, fields, timeout_s=5.0))

    def twin(self, number: int) -> Part:
        """Return a process with the number of a member and an empty directory, which is not started."""
        twin = self._member(number, f"twin-{number}", is_twin=True)
        shutil.rmtree(twin.data, ignore_errors=True)
        return twin

    def make_foreign(self, number: int) -> None:
        """Make a member's directory one of another cluster."""
        open_member_file(
            self.members[number].data,
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
        filler = self.members[number].data / "filler"
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
        for part in (*self.etcd, *self.others):
            if not part.is_running:
                part.start()
        self.start(*self.members)
