"""Runs a command under the limits that a systemd unit sets by seccomp, where no systemd runs.

`python unit_sandbox.py UNIT COMMAND...`: a system call that the unit refuses kills the process instead of
failing, so a command that goes on has used none. Needs systemd-analyze for the groups of system calls, and
libseccomp.

This has SystemCallFilter=, MemoryDenyWriteExecute= and RestrictAddressFamilies=; not what needs a new name
space.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

_ALLOW: Final = 0x7FFF0000
_KILL_PROCESS: Final = 0x80000000
_UNKNOWN_FAMILY: Final = 0x00050000 | errno.EAFNOSUPPORT
_NO_SUCH_CALL: Final = -1
_EQUAL, _MASKED_EQUAL = 4, 7
_PROT_WRITE, _PROT_EXEC, _SHM_EXEC = 2, 4, 0o100000
# The filter is loaded before the command is executed.
_LOADING: Final = frozenset({"execve"})


def missing_tools() -> str | None:
    """What has to be installed first; None when all is there."""
    if shutil.which("systemd-analyze") is None:
        return "systemd-analyze is not installed: tools/setup.sh dev installs it (the package systemd)"
    if ctypes.util.find_library("seccomp") is None:
        return "libseccomp is not installed: tools/setup.sh dev installs it (the package libseccomp2)"
    return None


def values(unit: Path, name: str) -> list[str]:
    """All values of a setting of the unit, in order."""
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.M)


def allowed_calls(unit: Path) -> frozenset[str]:
    """The names of the system calls that the unit allows."""
    groups = _groups()
    allowed: set[str] = set(groups["@default"])
    for value in values(unit, "SystemCallFilter"):
        is_denial = value.startswith("~")
        named = set[str]().union(*(groups.get(word, {word}) for word in value.lstrip("~").split()))
        allowed = allowed - named if is_denial else allowed | named
    return frozenset(allowed)


def _groups() -> dict[str, frozenset[str]]:
    """Group -> system calls of it, those of groups in it included."""
    shown = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True, check=True
    ).stdout
    direct: dict[str, list[str]] = {}
    for line in shown.splitlines():
        word = line.split("#")[0].strip()
        if word.startswith("@") and not line.startswith(" "):
            members = direct.setdefault(word, [])
        elif word and line.startswith(" "):
            members.append(word)
        elif line.startswith("#"):
            # What this systemd does not know of the kernel.
            break

    def expanded(name: str) -> frozenset[str]:
        return frozenset().union(
            *(expanded(word) if word.startswith("@") else {word} for word in direct[name])
        )

    return {name: expanded(name) for name in direct}


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class _Filter:
    """A seccomp filter that kills at what it is told to, or at what it is not."""

    def __init__(self, default: int) -> None:
        self._library = ctypes.CDLL("libseccomp.so.2")
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._library.seccomp_init.argtypes = [ctypes.c_uint32]
        self._library.seccomp_rule_add_array.argtypes = [
            *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Comparison))
        ]
        self._library.seccomp_load.argtypes = [ctypes.c_void_p]
        self._context = self._library.seccomp_init(default)

    def add(self, action: int, call: str, *comparisons: tuple[int, int, int, int]) -> None:
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        if number == _NO_SUCH_CALL:
            return
        array = (_Comparison * max(1, len(comparisons)))(*(_Comparison(*each) for each in comparisons))
        code = self._library.seccomp_rule_add_array(self._context, action, number, len(comparisons), array)
        # A call of another architecture.
        if code not in (0, -errno.EDOM):
            raise OSError(-code, f"{call}: {os.strerror(-code)}")

    def load(self) -> None:
        """For this process from now on, for good; sets no_new_privs, too."""
        code = self._library.seccomp_load(self._context)
        if code != 0:
            raise OSError(-code, os.strerror(-code))


def restrict(unit: Path) -> None:
    """Restrict this process as systemd would."""
    families = _Filter(_ALLOW)
    # As systemd does it: the C library asks for netlink before it looks up a name, and does without.
    (named,) = values(unit, "RestrictAddressFamilies")
    permitted = {int(getattr(socket, name)) for name in named.split()}
    for family in set(range(46)) - permitted:
        families.add(_UNKNOWN_FAMILY, "socket", (0, _EQUAL, family, 0))
    memory = _Filter(_ALLOW)
    if values(unit, "MemoryDenyWriteExecute") == ["yes"]:
        both = _PROT_WRITE | _PROT_EXEC
        memory.add(_KILL_PROCESS, "mmap", (2, _MASKED_EQUAL, both, both))
        for call in ("mprotect", "pkey_mprotect"):
            memory.add(_KILL_PROCESS, call, (2, _MASKED_EQUAL, _PROT_EXEC, _PROT_EXEC))
        memory.add(_KILL_PROCESS, "shmat", (2, _MASKED_EQUAL, _SHM_EXEC, _SHM_EXEC))
    calls = _Filter(_KILL_PROCESS)
    # `seccomp` loads the filters behind this one.
    for call in allowed_calls(unit) | _LOADING:
        calls.add(_ALLOW, call)
    for each in (families, memory, calls):
        each.load()


if __name__ == "__main__":
    restrict(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
