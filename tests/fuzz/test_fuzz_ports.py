"""A short run of the port fuzzer from a fixed seed; `make fuzz` runs it for longer from others."""

from __future__ import annotations

from pathlib import Path

from module_files import load_module

from iotmq.message.hosts import encode_host
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

fuzz_ports = load_module(Path(__file__).with_name("fuzz_ports.py"))


def test_mutated_traffic_on_every_port_has_allowed_outcomes_only(tmp_path: Path) -> None:
    with fuzz_ports.fuzzed_gateway(tmp_path) as gateway:
        outcomes = fuzz_ports.fuzz(gateway, seed=1, inputs_max=1_200)
    settings = StoreSettings(segment_bytes=16_777_216, allocation_step_bytes=65_536)
    store = Store.open(tmp_path / "data", settings, store_host=encode_host("127.0.0.1", 1))
    assert store.check() == []
    store.close()
    # Not everything is turned away at the door: valid inputs are among them.
    for port in fuzz_ports.TARGETS:
        assert outcomes[f"{port} answered"] or outcomes[f"{port} 200"]
