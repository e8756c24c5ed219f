"""A really full disk: a small tmpfs in a mount namespace of its own, where a program might die of SIGBUS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ORACLES = str(Path(__file__).parent)


def run_on_small_disk(program: str, directory: Path, *words: str) -> None:
    """Run `program` in a process that has a disk of 2 MiB at `directory`; it says "done" at its end.

    Its arguments are the folder of the oracles, `directory`, and `words`.
    """
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    namespace = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    mount = f"mount -t tmpfs -o size=2m tmpfs {directory}"
    if subprocess.run(
        [*namespace, "sh", "-c", mount], capture_output=True, timeout=60, check=False
    ).returncode:
        pytest.skip("no mount namespaces here")
    child = [sys.executable, "-c", program, ORACLES, str(directory), *words]
    result = subprocess.run(
        [*namespace, "sh", "-c", f'{mount} && exec "$@"', "sh", *child],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, f"{result.returncode}\n{result.stderr[-3000:]}"
    assert result.stdout.startswith("done")
