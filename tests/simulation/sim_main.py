"""Run seeds of the simulation: `PYTHONHASHSEED=0 python tests/simulation/sim_main.py DIRECTORY SEED...`.

A seed may be a range, as `0-99`. Each prints a line with its trace, or what was wrong and the fewest faults
it is wrong with. Every seed runs in a process of its own, which is forked when everything is imported: no run
sees what another one has left. The order of sets is the same only in processes with the same PYTHONHASHSEED.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import traceback
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


def run_alone(seed: int, directory: Path) -> None:
    """Print the line of a seed, from a process of its own."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # A run is short, and its memory is given back as a whole.
            gc.disable()
            own = directory / str(seed)
            own.mkdir(parents=True, exist_ok=True)
            # Paths are in texts of errors, which are sent: they are the same wherever it runs.
            os.chdir(own)
            print(line_of(seed, Path()), flush=True)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        print(f"failed: seed {seed} ended with {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    gc.freeze()
    for argument in sys.argv[2:]:
        first, _, last = argument.partition("-")
        for number in range(int(first), int(last or first) + 1):
            run_alone(number, Path(sys.argv[1]))
