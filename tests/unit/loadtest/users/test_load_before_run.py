"""Runs that cannot succeed here are refused, with the setting that helps."""

from __future__ import annotations

import pytest

from loadtest.swarm import Plan, Swarm, SwarmError
from loadtest.swarm.driven import plan_of, plan_text
from loadtest.users.machine import SPARE_FILES, SWARM_BYTES, SWARM_CONNECTION_BYTES, Machine, Wanted, problems

MACHINE = Machine(files_max=1_000, ports=28_000, memory_bytes=1 << 30)


def test_this_machine_has_limits() -> None:
    here = Machine.here()
    assert here.files_max > 0
    assert 0 < here.ports < 65_536
    assert here.memory_bytes > 1 << 20


def test_a_small_run_has_no_problems() -> None:
    assert problems([Wanted(connections=100, server="a:1")], MACHINE) == []
    assert problems([], MACHINE) == []


def test_too_few_files() -> None:
    assert problems([Wanted(connections=1_000 - SPARE_FILES)], MACHINE) == []
    (said,) = problems([Wanted(connections=1_001 - SPARE_FILES)], MACHINE)
    assert "ulimit -Hn" in said
    assert "1001 open files" in said


def test_too_few_ports() -> None:
    machine = Machine(files_max=10**6, ports=100, memory_bytes=1 << 40)
    both = [Wanted(connections=50, processes=2, server="a:1"), Wanted(connections=100, server="b:1")]
    assert problems(both, machine) == []
    (said,) = problems([*both, Wanted(connections=1, server="a:1")], machine)
    assert "101 connections to a:1" in said
    assert "ip_local_port_range" in said
    assert problems([Wanted(connections=101, server="a:1", source_addresses=2)], machine) == []


def test_too_little_memory() -> None:
    machine = Machine(files_max=10**6, ports=10**6, memory_bytes=SWARM_BYTES + 10 * SWARM_CONNECTION_BYTES)
    assert problems([Wanted(connections=10)], machine) == []
    (said,) = problems([Wanted(connections=11)], machine)
    assert "memory" in said


def test_a_plan_crosses_a_pipe() -> None:
    import json

    plan = Plan(
        publishers=2, subscribers=1, fallback_ports=(1, 2), publish_properties=b"\x01\x00", is_v5=True
    )
    assert plan_of(json.loads(plan_text(plan))) == plan


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(SwarmError, match=r"no field publishrs; did you mean publishers\?"):
        plan_of({"publishrs": 5})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rate_per_s", -1),
        ("rate_per_s", 10_000_001),
        ("connect_rate_per_s", 0),
        ("connect_rate_per_s", float("inf")),
        ("payload_bytes", -1),
        ("drain_timeout_s", -1.0),
    ],
)
def test_an_impossible_number_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(SwarmError, match=field):
        Swarm.check(Plan(publishers=1, **{field: value}))  # type: ignore[arg-type]


def test_the_largest_rate_is_taken() -> None:
    Swarm.check(Plan(publishers=1, rate_per_s=10_000_000))
