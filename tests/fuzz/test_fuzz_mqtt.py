"""A short run of the MQTT fuzzer from a fixed seed; `make fuzz` runs it for longer from others."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location("fuzz_mqtt", Path(__file__).with_name("fuzz_mqtt.py"))
assert _spec is not None
assert _spec.loader is not None
fuzz_mqtt = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz_mqtt)


def test_streams_and_programs_have_allowed_outcomes_only() -> None:
    outcomes = fuzz_mqtt.fuzz(seed=1, inputs_max=600)
    # Not everything is turned away at the door, and not everything is let in.
    for level in (3, 4, 5):
        assert outcomes[f"stream {level}: goes on"] > 5
        assert outcomes[f"stream {level}: malformed_packet"] > 5
        assert outcomes[f"program {level}, rules kept: goes on"] > 5
    assert any("rules broken" in outcome for outcome in outcomes)
