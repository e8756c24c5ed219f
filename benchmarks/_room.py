"""Whether this machine can have both ends of so many connections, said before anything starts."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks._crowd import CONNECTIONS_EACH_MAX
from loadtest.swarm.room import memory_bytes, port_range

# Of a front end or a process of the load, beside its connections: broker, pipes, the interpreter's own.
SPARE_FILES: Final = 500
# The kernel spreads connections by a hash, so one worker gets more than its share: five deviations.
_UNEVEN: Final = 5
# Both ends in the kernel (measured 2 x 4 KB), front end, broker and load generator.
CONNECTION_BYTES: Final = 20 * 1024
# What the servers, the page cache of the log and the rest of the machine need beside that.
BASE_BYTES: Final = 2 * 1024**3
_SYSTEM: Final = Path("/proc/sys")


class Needs(NamedTuple):
    """Say what a run takes."""

    connections: int
    workers: int
    connects_in_progress: int
    """Over all processes of the load."""


class Machine(NamedTuple):
    """Hold what there is. None: the kernel has no such limit."""

    files_each: int
    files_free: int
    ports: int
    memory_bytes: int
    backlog: int
    tracked_free: int | None


def this_machine() -> Machine:
    """What there is here, now."""
    low, high = port_range()
    used, _, most = (int(word) for word in _read("fs/file-nr").split())
    return Machine(
        files_each=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        files_free=most - used,
        ports=high - low + 1,
        memory_bytes=memory_bytes(),
        backlog=int(_read("net/core/somaxconn")),
        tracked_free=_tracked_free(),
    )


def why_not(needs: Needs, machine: Machine) -> list[str]:
    """What is missing, each with the setting that helps; nothing when the run can be made."""
    wrong = []
    share = needs.connections / needs.workers
    each = round(share + _UNEVEN * share**0.5 * (needs.workers > 1))
    if each + SPARE_FILES > machine.files_each:
        wrong.append(
            f"a worker gets up to {each:,} of {needs.connections:,} connections and needs "
            f"{each + SPARE_FILES:,} open files, and {machine.files_each:,} are allowed: more workers, or "
            "ulimit -Hn"
        )
    in_load = min(needs.connections, CONNECTIONS_EACH_MAX)
    if in_load + SPARE_FILES > machine.files_each:
        wrong.append(
            f"a process of the load needs {in_load + SPARE_FILES:,} open files, and {machine.files_each:,} "
            "are allowed: ulimit -Hn"
        )
    if 2 * needs.connections > machine.files_free:
        wrong.append(
            f"both ends of {needs.connections:,} connections are {2 * needs.connections:,} open files, and "
            f"the system has {machine.files_free:,}: sysctl fs.file-max"
        )
    if in_load > machine.ports:
        wrong.append(
            f"a process of the load has one address and needs {in_load:,} ports, and there are "
            f"{machine.ports:,}: sysctl net.ipv4.ip_local_port_range='1024 65535'"
        )
    needed_bytes = BASE_BYTES + needs.connections * CONNECTION_BYTES
    if needed_bytes > machine.memory_bytes:
        wrong.append(
            f"{needs.connections:,} connections need about {needed_bytes >> 20:,} MiB of memory with both "
            f"ends, and {machine.memory_bytes >> 20:,} MiB are free: fewer connections"
        )
    if needs.connects_in_progress > machine.backlog * needs.workers:
        wrong.append(
            f"{needs.connects_in_progress:,} connections are opened at once, and {needs.workers} listeners "
            f"hold {machine.backlog:,} each: sysctl net.core.somaxconn"
        )
    if machine.tracked_free is not None and needs.connections > machine.tracked_free:
        wrong.append(
            f"connections are tracked here, and {machine.tracked_free:,} more can be: "
            "sysctl net.netfilter.nf_conntrack_max"
        )
    return wrong


def _tracked_free() -> int | None:
    """None where connections are not tracked: the kernel cannot, or no rule wants it and none is."""
    try:
        count = int(_read("net/netfilter/nf_conntrack_count"))
        return int(_read("net/netfilter/nf_conntrack_max")) - count if count else None
    except FileNotFoundError:
        return None


def _read(name: str) -> str:
    return (_SYSTEM / name).read_text()
