"""Members of a simulated cluster keep their promises, whatever fails; and mistakes would be noticed."""

from __future__ import annotations

import os

import pytest
from replication_mutants import MUTANTS, Mutant
from replication_sim import BrokenPromiseError, simulate

SEED = int(os.environ.get("IOTMQ_REPLICATION_SEED", "0"))
RUNS = int(os.environ.get("IOTMQ_REPLICATION_RUNS", "60"))
BLOCK = 30


@pytest.mark.timeout(60 + RUNS)
@pytest.mark.parametrize("first", range(SEED, SEED + RUNS, BLOCK))
def test_nothing_acknowledged_is_lost_and_a_master_is_found_again(first: int) -> None:
    acknowledged = epochs = recovered = 0
    for seed in range(first, min(first + BLOCK, SEED + RUNS)):
        try:
            cluster = simulate(seed)
        except BrokenPromiseError as error:
            raise AssertionError(f"IOTMQ_REPLICATION_SEED={seed} IOTMQ_REPLICATION_RUNS=1: {error}") from None
        acknowledged += cluster.acknowledged_count
        epochs += len(cluster.epoch_writers)
        recovered += cluster.is_recoverable
    # The runs were worth something: there was load, masters changed, and most clusters could recover.
    assert acknowledged > 500 * BLOCK
    assert epochs > 3 * BLOCK
    assert recovered > BLOCK // 2


@pytest.mark.parametrize(("mutant", "first"), MUTANTS.items(), ids=lambda word: getattr(word, "__name__", ""))
def test_a_mistake_is_noticed(mutant: Mutant, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert any(is_noticed(seed) for seed in (first, *range(1_000)))


def is_noticed(seed: int) -> bool:
    try:
        simulate(seed)
    except AssertionError:
        return True
    return False
