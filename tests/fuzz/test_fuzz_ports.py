"""A short run of the port fuzzer from a fixed seed; `make fuzz` runs it for longer from others."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from iotmq.message.hosts import encode_host
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

_spec = importlib.util.spec_from_file_location("fuzz_ports", Path(__file__).with_name("fuzz_ports.py"))
assert _spec is not None
assert _spec.loader is not None
fuzz_ports = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fuzz_ports)


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
