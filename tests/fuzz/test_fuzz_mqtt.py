"""A short run of the MQTT fuzzer from a fixed seed; `make fuzz` runs it for longer from others."""

from __future__ import annotations

from pathlib import Path

from module_files import load_module

fuzz_mqtt = load_module(Path(__file__).with_name("fuzz_mqtt.py"))


def test_streams_and_programs_have_allowed_outcomes_only() -> None:
    outcomes = fuzz_mqtt.fuzz(seed=1, inputs_max=600)
    # Not everything is turned away at the door, and not everything is let in.
    for level in (3, 4, 5):
        assert outcomes[f"stream {level}: goes on"] > 5
        assert outcomes[f"stream {level}: malformed_packet"] > 5
        assert outcomes[f"program {level}, rules kept: goes on"] > 5
    assert any("rules broken" in outcome for outcome in outcomes)
