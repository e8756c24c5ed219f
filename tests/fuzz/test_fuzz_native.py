"""A short run of the in-process fuzzer from a fixed seed; `make fuzz` runs it for longer from others."""

from __future__ import annotations

from pathlib import Path

from module_files import load_module

fuzz_native = load_module(Path(__file__).with_name("fuzz_native.py"))


async def test_mutated_frames_headers_and_bodies_have_allowed_outcomes_only(tmp_path: Path) -> None:
    outcomes = await fuzz_native.fuzz(tmp_path, seed=1, inputs_max=3_000)
    # Not everything is turned away at the door, and not everything is let in.
    assert outcomes["answered"] > 300
    assert outcomes["ended: header"] > 10
    assert outcomes["ended: length"] > 10
