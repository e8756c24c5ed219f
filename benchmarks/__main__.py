"""Runs every benchmark of this folder, one after the other, and says which failed.

A benchmark is a module here that can be run by itself; with ``--quick`` it is short where it can be.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import _report, _scaling, machine

FOLDER: Final = Path(__file__).resolve().parent


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every benchmark ended well."""
    known = names()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--quick", action="store_true", help="shorter and less exact")
    parser.add_argument(
        "--report", action="store_true", help="run nothing; write the numbers that are kept into the pages"
    )
    options = parser.parse_args(arguments)
    if options.report:
        return max(_report.write(), _scaling.write())
    for name in options.names:
        if name not in known:
            parser.error(f"unknown benchmark {name}: one of {', '.join(known)}")
    failed = []
    for name in options.names or known:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        if options.quick and "--quick" in (FOLDER / f"{name}.py").read_text():
            command.append("--quick")
        if subprocess.run(command, cwd=machine.ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def names() -> list[str]:
    """The benchmarks of the folder: modules that can be run."""
    return sorted(
        path.stem
        for path in FOLDER.glob("*.py")
        if not path.stem.startswith("_") and '__name__ == "__main__"' in path.read_text()
    )


if __name__ == "__main__":
    sys.exit(main())
