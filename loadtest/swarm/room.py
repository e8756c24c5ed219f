"""Whether this machine has files, ports and memory for a plan, said before anything is opened."""

import os
import resource
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loadtest.swarm.errors import SwarmError
from loadtest.swarm.plan import Plan
from loadtest.swarm.templates import draw_sizes

# Room for the interpreter's own files beside the connections.
SPARE_FILES: Final = 32
# An entry in the engine, and a little more than what the kernel takes for both ends of a connection on
# loopback; with TLS the objects of OpenSSL, 28 KB measured, on top.
CONNECTION_BYTES: Final = 6 * 1024
TLS_CONNECTION_BYTES: Final = CONNECTION_BYTES + 30 * 1024
_PORT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MEMORY: Final = Path("/proc/meminfo")


def check_room(plan: Plan, parts: Sequence[Plan] = ()) -> None:
    """Refuse a plan that has no room here, with the setting that makes some. SwarmError.

    `parts` are those of several processes, where it is shared.
    """
    connections = _connections(plan)
    each = max(map(_connections, parts or [plan]))
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
    needed_bytes = connections * (TLS_CONNECTION_BYTES if plan.tls else CONNECTION_BYTES) + _ring_bytes(plan)
    free_bytes = memory_bytes()
    if needed_bytes > free_bytes:
        raise SwarmError(
            f"{connections} connections need about {needed_bytes >> 20} MiB of memory, and "
            f"{free_bytes >> 20} MiB are free: make it fewer connections, or a smaller window"
        )
    _check_sources(plan)


def check_cores(*cores: int | None) -> None:
    """Refuse to pin to processor cores that this process may not use. SwarmError."""
    allowed = os.sched_getaffinity(0)
    for core in cores:
        if core is not None and core not in allowed:
            raise SwarmError(f"there is no core {core}: this process may use {sorted(allowed)}")


def raise_file_limit() -> None:
    """Allow this process as many open files as it may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _connections(plan: Plan) -> int:
    return plan.publishers + plan.subscribers + plan.idle


def _ring_bytes(plan: Plan) -> int:
    """About the messages that publishers hold ready: their windows full."""
    sizes = draw_sizes(plan.payload_sizes) if plan.payload_sizes else [plan.payload_bytes]
    payload_bytes = len(plan.payload_template) or sum(sizes) // len(sizes)
    return plan.publishers * (plan.window if plan.qos else 1) * (payload_bytes + len(plan.topic))


def _check_sources(plan: Plan) -> None:
    """Refuse source addresses that are not this machine's."""
    for address in plan.source_addresses:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.bind((address, 0))
        except OSError as error:
            raise SwarmError(f"source address {address}: {error.strerror}") from error


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
