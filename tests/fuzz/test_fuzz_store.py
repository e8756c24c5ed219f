"""A short run of the store's fuzzer from a fixed seed; `make fuzz` runs it for longer from others."""

from __future__ import annotations

from pathlib import Path

from module_files import load_module

fuzz_store = load_module(Path(__file__).with_name("fuzz_store.py"))


def test_damaged_directories_are_refused_or_put_right() -> None:
    outcomes = fuzz_store.fuzz(seed=1, cases_max=200)
    assert outcomes.total() == 200
    # Not everything is turned away at the door, and not everything is let in.
    assert outcomes["opened"] > 100
    assert outcomes["refused"] > 0
