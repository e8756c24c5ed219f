"""The life of alarms, by a clock that the test moves."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from iotmq import limits
from iotmq.alarms.alarm import Acknowledgement, Reading, alarm_id
from iotmq.alarms.condition import Condition
from iotmq.alarms.engine import Engine

LAG = Condition(
    name="lag",
    sources=("m",),
    fires_at=100,
    clears_at=10,
    for_s=30,
    clear_for_s=20,
    owner="us",
    says="{group} is {value} behind",
    what_to_do="Hurry.",
)
ROOM = Condition(
    name="room",
    sources=("r",),
    fires_at=1,
    clears_at=5,
    clear_for_s=0,
    level="critical",
    owner="us",
    says="{value} left",
    what_to_do="Make some.",
)
GROUP = (("group", "g"),)


class Bench:
    def __init__(self, *, flapping_count: int = 3, flapping_s: float = 600) -> None:
        self.engine = Engine((LAG, ROOM), flapping_count=flapping_count, flapping_s=flapping_s)
        self.now_s = 1_000.0

    def at(self, second: float, value: float | None, *, looked: bool = True) -> list[str]:
        """Give the lag of one group so many seconds after the start; the kinds of events."""
        self.now_s = 1_000 + second
        readings = [] if value is None else [Reading("lag", GROUP, value)]
        events = self.engine.observe(readings, {"lag"} if looked else (), round(self.now_s * 1000))
        self.engine.check_invariants()
        return [event.kind for event in events]

    @property
    def id(self) -> str:
        return alarm_id("lag", GROUP)

    def fire(self, second: float) -> None:
        assert self.at(second, 100) == []
        assert self.at(second + 30, 100) == ["fired"]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_it_fires_when_met_for_long_enough_and_ends_when_clear_for_long_enough(bench: Bench) -> None:
    assert bench.at(0, 99) == []
    assert bench.at(10, 100) == []
    assert bench.engine.current[bench.id].state == "pending"
    assert bench.at(39, 150) == []
    assert bench.at(40, 200) == ["fired"]
    (alarm,) = bench.engine.firing
    assert (alarm.says, alarm.value, alarm.level) == ("g is 200 behind", 200, "warning")
    assert (alarm.since_ms, alarm.fired_ms) == (1_010_000, 1_040_000)
    # Between the marks nothing changes.
    assert bench.at(50, 11) == []
    assert bench.engine.firing[0].says == "g is 11 behind"
    assert bench.at(60, 10) == []
    assert bench.at(79, 0) == []
    assert bench.at(80, 0) == ["ended"]
    assert bench.engine.current == {}
    (ended,) = bench.engine.ended
    assert (ended.state, ended.ended_ms, ended.ended_by) == ("ended", 1_080_000, "")


def test_a_moment_between_the_marks_begins_the_wait_for_the_end_anew(bench: Bench) -> None:
    bench.fire(0)
    assert bench.at(40, 5) == []
    assert bench.at(50, 50) == []
    assert bench.at(65, 5) == []
    assert bench.at(84, 5) == []
    assert bench.at(85, 5) == ["ended"]


def test_a_pending_one_that_is_not_met_is_forgotten(bench: Bench) -> None:
    bench.at(0, 100)
    assert bench.at(10, 99) == []
    assert bench.engine.current == {}
    assert bench.at(20, 100) == []
    assert bench.at(49, 100) == []
    assert bench.at(50, 100) == ["fired"]


def test_what_has_no_number_any_more_is_over_where_it_was_looked_for(bench: Bench) -> None:
    bench.fire(0)
    # The cluster could not be asked: nothing is known.
    assert bench.at(100, None, looked=False) == []
    assert bench.engine.firing[0].clear_since_ms == 0
    assert bench.at(110, None) == []
    assert bench.at(130, None) == ["ended"]


def test_one_that_is_pending_and_has_no_number_any_more_is_forgotten(bench: Bench) -> None:
    bench.at(0, 100)
    bench.at(1, None, looked=False)
    assert bench.engine.current
    bench.at(2, None)
    assert bench.engine.current == {}


def test_small_numbers_are_bad_where_it_clears_above() -> None:
    engine = Engine((ROOM,), flapping_count=9, flapping_s=1)
    assert [event.kind for event in engine.observe([Reading("room", (), 1)], {"room"}, 0)] == ["fired"]
    assert engine.observe([Reading("room", (), 4)], {"room"}, 1) == []
    assert [event.kind for event in engine.observe([Reading("room", (), 5)], {"room"}, 2)] == ["ended"]


def test_one_that_comes_and_goes_is_told_once_more_and_ends_after_a_rest(bench: Bench) -> None:
    for start in (0, 100):
        bench.fire(start)
        assert not bench.engine.firing[0].is_flapping
        bench.at(start + 40, 0)
        assert bench.at(start + 60, 0) == ["ended"]
    bench.fire(200)
    assert bench.engine.firing[0].is_flapping
    # It goes and comes, and nobody is told.
    assert bench.at(240, 0) == []
    assert bench.at(300, 0) == []
    assert bench.at(320, 100) == []
    assert bench.at(400, 0) == []
    assert bench.at(999, 0) == []
    assert bench.at(1_000, 0) == ["ended"]
    # Long after, it is one like others.
    bench.fire(3_000)
    assert not bench.engine.firing[0].is_flapping


def test_an_acknowledgement_stays_until_the_end(bench: Bench) -> None:
    bench.fire(0)
    bench.engine.acknowledge(bench.id, Acknowledgement(by="ann", at_ms=1, note="on it"))
    bench.at(40, 500)
    acknowledged = bench.engine.firing[0].acknowledged
    assert acknowledged is not None
    assert (acknowledged.by, acknowledged.note) == ("ann", "on it")
    bench.at(50, 0)
    bench.at(70, 0)
    bench.fire(100)
    assert bench.engine.firing[0].acknowledged is None


def test_only_what_fires_is_acknowledged_or_ended_by_hand(bench: Bench) -> None:
    bench.at(0, 100)
    for identity in (bench.id, "unknown"):
        with pytest.raises(KeyError):
            bench.engine.acknowledge(identity, Acknowledgement(by="ann", at_ms=1))
        with pytest.raises(KeyError):
            bench.engine.end(identity, by="ann", now_ms=1)


def test_one_that_is_ended_by_hand_begins_anew_when_it_is_met(bench: Bench) -> None:
    bench.fire(0)
    event = bench.engine.end(bench.id, by="ann", now_ms=1_040_000)
    assert (event.kind, event.alarm.ended_by) == ("ended", "ann")
    assert bench.at(50, 100) == []
    assert bench.at(80, 100) == ["fired"]


def test_an_alarm_whose_condition_is_not_there_after_a_restart_ends(bench: Bench) -> None:
    bench.fire(0)
    engine = Engine((ROOM,), flapping_count=3, flapping_s=1, firing=bench.engine.firing)
    assert [event.kind for event in engine.observe((), (), 2_000_000)] == ["ended"]


def test_a_restart_neither_repeats_nor_forgets(bench: Bench) -> None:
    bench.fire(0)
    engine = Engine((LAG,), flapping_count=3, flapping_s=1, firing=bench.engine.firing)
    assert engine.observe([Reading("lag", GROUP, 100)], {"lag"}, 1_050_000) == []
    assert engine.observe([Reading("lag", GROUP, 0)], {"lag"}, 1_060_000) == []
    assert [each.kind for each in engine.observe([Reading("lag", GROUP, 0)], {"lag"}, 1_080_000)] == ["ended"]


@pytest.mark.parametrize("extra", [0, 1])
def test_so_many_alarms_there_may_be(extra: int) -> None:
    engine = Engine((ROOM,), flapping_count=3, flapping_s=1)
    readings = [Reading("room", (("disk", str(number)),), 0) for number in range(limits.ALARMS_MAX + extra)]
    events = engine.observe(readings, {"room"}, 1)
    assert (len(events), engine.refused_count) == (limits.ALARMS_MAX, extra)
    engine.check_invariants()
    # Those that there was no room for have it when others have ended.
    events = engine.observe(readings[-1:], {"room"}, 2)
    events += engine.observe(readings[-1:], {"room"}, 3)
    assert Counter(event.kind for event in events)["fired"] == extra
    engine.check_invariants()


def test_a_flood_of_groups_leaves_room_for_what_is_wrong_with_the_process() -> None:
    engine = Engine((replace(LAG, is_of_cluster=True, for_s=0), ROOM), flapping_count=3, flapping_s=1)
    flood = [Reading("lag", (("group", str(number)),), 100) for number in range(2 * limits.ALARMS_MAX)]
    for now_ms in (1, 2):
        engine.observe(flood, {"lag"}, now_ms)
        assert len(engine.current) == limits.ALARMS_MAX * 3 // 4
    assert [event.kind for event in engine.observe([Reading("room", (), 0)], {"room"}, 3)] == ["fired"]
    engine.check_invariants()


def test_so_many_that_have_ended_are_remembered() -> None:
    engine = Engine((ROOM,), flapping_count=3, flapping_s=1)
    for number in range(limits.ALARMS_ENDED_MAX + 1):
        labels = (("disk", str(number)),)
        engine.observe([Reading("room", labels, 0)], {"room"}, number)
    engine.observe((), {"room"}, 10_000)
    assert len(engine.ended) == limits.ALARMS_ENDED_MAX
    engine.check_invariants()


def test_the_order_of_labels_means_nothing() -> None:
    assert alarm_id("a", (("x", "1"), ("y", "2"))) == alarm_id("a", (("y", "2"), ("x", "1")))
    assert alarm_id("a", (("x", "1"),)) != alarm_id("b", (("x", "1"),))
