"""Say before a run what this machine has too little of, with the setting that helps."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# The interpreter's, Locust's and those of pipes.
SPARE_FILES: Final = 64
# Of a connection: the kernel's socket with small buffers, and the load side's own.
SWARM_CONNECTION_BYTES: Final = 6 * 1024
DEVICE_BYTES: Final = 64 * 1024
SWARM_BYTES: Final = 40 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The limits of this machine."""

    files_max: int
    """Open files of a process, as far as it may raise the limit itself."""
    ports: int
    """Ports for outgoing connections from one address to one port of a server."""
    memory_bytes: int
    """Memory that is free or can be freed."""

    @classmethod
    def here(cls) -> Machine:
        """Read them."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        available = next(
            line
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("MemAvailable:")
        )
        return cls(files_max=hard, ports=high - low + 1, memory_bytes=int(available.split()[1]) * 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The connections that a run makes from this machine."""

    connections: int
    """Of one process."""
    processes: int = 1
    """Processes with so many connections each; 0 for those that are Locust's own."""
    server: str = ""
    """Address and port, whatever the spelling: connections to different ones do not share ports."""
    source_addresses: int = 1
    connection_bytes: int = SWARM_CONNECTION_BYTES
    """Memory of one connection."""
    process_bytes: int = SWARM_BYTES


def problems(wanted: Iterable[Wanted], machine: Machine) -> list[str]:
    """Return a sentence for each thing that is too little."""
    wanted = list(wanted)
    found = []
    largest = max((one.connections for one in wanted), default=0)
    if largest + SPARE_FILES > machine.files_max:
        found.append(
            f"{largest} connections in one process need {largest + SPARE_FILES} open files, and "
            f"{machine.files_max} are allowed: raise the limit (ulimit -Hn, or LimitNOFILE= of a service), "
            "or use more processes"
        )
    by_server: Counter[str] = Counter()
    addresses: dict[str, int] = {}
    for one in wanted:
        by_server[one.server] += one.connections * one.processes
        addresses[one.server] = max(addresses.get(one.server, 1), one.source_addresses)
    for server, count in by_server.items():
        room = machine.ports * addresses[server]
        if count > room:
            found.append(
                f"{count} connections to {server} need as many ports, and {addresses[server]} source "
                f"address(es) have {room}: sysctl net.ipv4.ip_local_port_range='1024 65535', "
                "or more source_addresses"
            )
    needed = sum(
        one.processes * (one.process_bytes + one.connections * one.connection_bytes) for one in wanted
    )
    if needed > machine.memory_bytes:
        found.append(
            f"about {needed >> 20} MiB of memory are needed, and {machine.memory_bytes >> 20} MiB are free: "
            "fewer devices, a smaller window, or another machine for a part of them (--worker)"
        )
    return found
