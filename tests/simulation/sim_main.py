"""Run seeds of the simulation: `PYTHONHASHSEED=0 python tests/simulation/sim_main.py FIRST COUNT DIRECTORY`.

Each prints a line with its trace, or what was wrong and the fewest faults it is wrong with. In a process of
its own, because the order of sets is the same only in processes with the same PYTHONHASHSEED.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "oracles")]

from sim_faults import Fault  # noqa: E402
from sim_run import planned_faults, simulate  # noqa: E402
from sim_shrink import shrunk  # noqa: E402
from sim_world import BrokenPromiseError  # noqa: E402


def failure_of(seed: int, directory: Path, faults: list[Fault] | None = None) -> str | None:
    """What is wrong with a run; None when nothing is."""
    try:
        simulate(seed, directory / "world", faults=faults)
    except BrokenPromiseError as error:
        return str(error)
    return None


def kind_of(failure: str | None) -> str | None:
    """What is wrong, without names and numbers."""
    return failure and " ".join(re.findall(r"(?<!\S)[a-z,]+(?!\S)", failure))


def line_of(seed: int, directory: Path) -> str:
    """The result of a run, or of the smallest that fails in the same seed, and with the same."""
    try:
        site = simulate(seed, directory / "world")
    except BrokenPromiseError as error:
        kind = kind_of(str(error))
        faults = shrunk(
            planned_faults(seed, directory / "plan"),
            lambda fewer: kind_of(failure_of(seed, directory, fewer)) == kind,
        )
        listed = "".join(f"\n  {fault}" for fault in faults)
        why = failure_of(seed, directory, faults)
        setting = f"IOTMQ_SIMULATION_SEED={seed} SIMULATION_SEEDS=1"
        return f"failed: {setting}: {error}\nwith these alone:{listed}\n{why}"
    return f"{seed} {site.trace} {site.world.steps} steps"


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for number in range(first, first + count):
        print(line_of(number, Path(sys.argv[3])), flush=True)
