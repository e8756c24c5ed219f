"""A simulated gateway keeps its promises, whatever fails: real code on one virtual time, network and disk.

SIMULATION_SEEDS=10000 tries as many seeds, IOTMQ_SIMULATION_SEED=N begins with another one. A failure names
its seed and the smallest set of its faults that still fails; with PYTHONHASHSEED=0, as `make simulate` sets
it, the same seed is the same run in every process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sim_faults import Fault
from sim_run import planned_faults, simulate
from sim_shrink import shrunk
from sim_world import BrokenPromiseError

from iotmq.store.log.flush import Flusher

SEED = int(os.environ.get("IOTMQ_SIMULATION_SEED", "0"))
SEEDS = int(os.environ.get("SIMULATION_SEEDS", "6"))
BLOCK = 3
# Seeds that once failed, with what was wrong.
KEPT = {
    1: "a broker that came later had devices told that their session was taken over, for good",
}
# What counts as synced is the model's business.
FAST = Path("/dev/shm")


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="iotmq-simulation-", dir=FAST if FAST.is_dir() else None))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def failure_of(seed: int, directory: Path, faults: list[Fault] | None = None) -> str | None:
    try:
        simulate(seed, directory / "world", faults=faults)
    except BrokenPromiseError as error:
        return str(error)
    return None


def check(seed: int, directory: Path) -> None:
    failure = failure_of(seed, directory)
    if failure is None:
        return
    faults = shrunk(
        planned_faults(seed, directory / "plan"),
        lambda fewer: failure_of(seed, directory, fewer) is not None,
    )
    listed = "\n  ".join(map(str, faults))
    raise AssertionError(
        f"PYTHONHASHSEED=0 IOTMQ_SIMULATION_SEED={seed} SIMULATION_SEEDS=1: {failure}\n"
        f"with these faults alone:\n  {listed}\n{failure_of(seed, directory, faults)}"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEED, SEED + SEEDS, BLOCK))
def test_a_simulated_gateway_keeps_its_promises(first: int, directory: Path) -> None:
    for seed in range(first, min(first + BLOCK, SEED + SEEDS)):
        check(seed, directory)


@pytest.mark.slow
@pytest.mark.parametrize("seed", KEPT)
def test_what_once_failed_does_not_any_more(seed: int, directory: Path) -> None:
    # Without faults as well: that seed needs none.
    assert failure_of(seed, directory, []) is None


@pytest.mark.slow
def test_the_same_seed_is_the_same_run(directory: Path) -> None:
    first, again, other = (simulate(seed, directory / "world") for seed in (5, 5, 6))
    assert first.trace == again.trace
    assert first.world.steps == again.world.steps
    assert first.trace != other.trace


@pytest.mark.slow
def test_a_broker_that_lies_about_its_disk_is_noticed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flush(self: Flusher) -> bool:
        moved = self._log.appended_position > self.flushed_position
        self._flushed = (self._log.appended_position, self._log.last_store_timestamp_ms)
        return moved

    monkeypatch.setattr(Flusher, "flush", flush)
    power = [Fault(8.0, "power", "broker-0", "broker-0", 0.5, 0.5)]
    noticed = [seed for seed in range(20, 23) if failure_of(seed, directory, power) is not None]
    assert noticed
    monkeypatch.undo()
    assert failure_of(noticed[0], directory, power) is None


def test_faults_that_do_not_matter_are_left_out() -> None:
    assert shrunk(range(20), lambda kept: {3, 17} <= set(kept)) == [3, 17]
    assert shrunk(range(5), lambda kept: True) == []
