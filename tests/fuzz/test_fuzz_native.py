"""A short run of the in-process fuzzer from a fixed seed; `make fuzz` runs it for longer from others."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("fuzz_native", Path(__file__).with_name("fuzz_native.py"))
assert _spec is not None
assert _spec.loader is not None
fuzz_native = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz_native)


async def test_mutated_frames_headers_and_bodies_have_allowed_outcomes_only(tmp_path: Path) -> None:
    outcomes = await fuzz_native.fuzz(tmp_path, seed=1, inputs_max=3_000)
    # Not everything is turned away at the door, and not everything is let in.
    assert outcomes["answered"] > 300
    assert outcomes["ended: header"] > 10
    assert outcomes["ended: length"] > 10
