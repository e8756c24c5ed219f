"""How much processor time and memory the processes of a server take."""

import os
from pathlib import Path
from typing import Final, NamedTuple

from loadtest.swarm.errors import SwarmError

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat behind the name, which may have spaces and brackets.
_PARENT: Final = 1
# Its own time in programs and in the kernel, and that of its children that have ended.
_TIMES: Final = slice(11, 15)


class Usage(NamedTuple):
    """Give what processes have taken so far."""

    cpu_s: float
    memory_bytes: int


class ServerProcess:
    """A process of the server with all its children."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        if not Path(f"/proc/{pid}/stat").exists():
            raise SwarmError(f"there is no process {pid} whose use of the machine could be measured")

    def usage(self) -> Usage | None:
        """What it has taken so far; None when it is gone."""
        parents = {}
        for name in os.listdir("/proc"):
            if name.isdigit() and (fields := _stat(int(name))):
                parents[int(name)] = fields
        if self._pid not in parents:
            return None
        family = {self._pid}
        while children := {pid for pid, fields in parents.items() if int(fields[_PARENT]) in family} - family:
            family |= children
        ticks = sum(int(time) for pid in family for time in parents[pid][_TIMES])
        return Usage(ticks / _TICKS_PER_S, sum(map(_memory_bytes, family)))


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        # It ended meanwhile.
        return None


def _memory_bytes(pid: int) -> int:
    """What is its own, and its part of what is shared; what is resident where the kernel tells no more."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except PermissionError:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
