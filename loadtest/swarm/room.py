"""Whether this machine has files, ports and memory for a plan, said before anything is opened."""

import resource
from pathlib import Path
from typing import Final

from loadtest.swarm.errors import SwarmError
from loadtest.swarm.plan import Plan

# Room for the interpreter's own files beside the connections.
SPARE_FILES: Final = 32
# An entry in the engine, and a little more than what the kernel takes for both ends of a connection on
# loopback; with TLS the objects of OpenSSL, 28 KB measured, on top.
CONNECTION_BYTES: Final = 6 * 1024
TLS_CONNECTION_BYTES: Final = CONNECTION_BYTES + 30 * 1024
_PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MEMORY: Final = Path("/proc/meminfo")


def check_room(plan: Plan, *, processes: int = 1) -> None:
    """Refuse a plan that has no room here, with the setting that makes some. SwarmError."""
    connections = plan.publishers + plan.subscribers + plan.idle
    each = -(-connections // processes)
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if each + SPARE_FILES > files_max:
        raise SwarmError(
            f"{each} connections need {each + SPARE_FILES} open files, and {files_max} is the limit: "
            "raise it (ulimit -n) or share the work among processes"
        )
    low, high = port_range()
    ports = (high - low + 1) * max(1, len(plan.source_addresses))
    if connections > ports:
        needed = -(-connections // (high - low + 1))
        raise SwarmError(
            f"{connections} connections to one address need as many local ports, and there are {ports} "
            f"(net.ipv4.ip_local_port_range is {low} {high}): give {needed} source addresses"
        )
    needed_bytes = connections * (TLS_CONNECTION_BYTES if plan.tls else CONNECTION_BYTES)
    free_bytes = memory_bytes()
    if needed_bytes > free_bytes:
        raise SwarmError(
            f"{connections} connections need about {needed_bytes >> 20} MiB of memory, and "
            f"{free_bytes >> 20} MiB are free: make it fewer connections"
        )


def port_range() -> tuple[int, int]:
    """The local ports that the kernel hands out, first and last."""
    low, high = _PORT_RANGE.read_text().split()
    return int(low), int(high)


def memory_bytes() -> int:
    """The memory that is free or can be made so."""
    for line in _MEMORY.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise SwarmError(f"{_MEMORY} does not say how much memory there is")
