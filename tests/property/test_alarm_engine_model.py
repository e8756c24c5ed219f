"""Random numbers at random times: the engine against a slow model, and what must hold of every life."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from iotmq.alarms.alarm import Reading, alarm_id
from iotmq.alarms.condition import Condition
from iotmq.alarms.engine import Engine

FOR_S: Final = 3
CLEAR_FOR_S: Final = 2
FLAPPING_COUNT: Final = 3
FLAPPING_S: Final = 20
CONDITION: Final = Condition(
    name="c",
    sources=("m",),
    fires_at=10,
    clears_at=5,
    for_s=FOR_S,
    clear_for_s=CLEAR_FOR_S,
    owner="us",
    says="{value}",
    what_to_do="",
)
LABELS: Final = (("n", "1"),)


class Step(NamedTuple):
    """So many seconds later: the number, None for none; or nobody could look."""

    seconds: int
    value: float | None
    is_looked_at: bool


STEPS: Final = st.lists(
    st.builds(
        Step,
        st.integers(1, 6),
        st.one_of(st.none(), st.sampled_from([0.0, 5.0, 7.0, 10.0, 30.0])),
        st.booleans(),
    ),
    max_size=60,
)


class Model:
    """Looks at all that has been seen, from the beginning, to say what is so now."""

    def __init__(self) -> None:
        # Those that were looked at: (second, value; None counts as clear).
        self.seen: list[tuple[int, float | None]] = []
        self.fires: list[int] = []
        self.is_firing = False
        self.is_flapping = False

    def step(self, second: int, value: float | None) -> str | None:
        self.seen.append((second, value))
        if not self.is_firing:
            met_since = self._since(lambda each: each is not None and each >= CONDITION.fires_at)
            if met_since is None or second - met_since < FOR_S:
                return None
            self.is_firing = True
            self.fires.append(second)
            last = self.fires[-FLAPPING_COUNT:]
            self.is_flapping = len(last) == FLAPPING_COUNT and second - last[0] <= FLAPPING_S
            self.seen.clear()
            return "fired"
        rest_s = FLAPPING_S if self.is_flapping else CLEAR_FOR_S
        clear_since = self._since(lambda each: each is None or each <= CONDITION.clears_at)
        if clear_since is None or second - clear_since < rest_s:
            return None
        self.is_firing = False
        self.seen.clear()
        return "ended"

    def _since(self, holds: Callable[[float | None], bool]) -> int | None:
        """The first second of the last run in which it holds; None when it does not hold now."""
        since = None
        for second, value in self.seen:
            if not holds(value):
                since = None
            elif since is None:
                since = second
        return since


@given(STEPS, st.integers(0, 60))
def test_the_engine_does_what_the_model_says(steps: list[Step], restart_at: int) -> None:
    engine = Engine([CONDITION], flapping_count=FLAPPING_COUNT, flapping_s=FLAPPING_S)
    model = Model()
    second = 0
    kinds: list[str] = []
    for number, step in enumerate(steps):
        second += step.seconds
        if number == restart_at and not (model.seen and not model.is_firing) and not model.fires:
            # Where nothing was under way a restart is not noticed.
            engine = Engine(
                [CONDITION],
                flapping_count=FLAPPING_COUNT,
                flapping_s=FLAPPING_S,
                firing=engine.firing,
                ended=engine.ended,
            )
        if not step.is_looked_at:
            assert engine.observe((), (), second * 1000) == []
            continue
        readings = [] if step.value is None else [Reading("c", LABELS, step.value)]
        events = [event.kind for event in engine.observe(readings, {"c"}, second * 1000)]
        engine.check_invariants()
        expected = model.step(second, step.value)
        assert events == ([] if expected is None else [expected])
        kinds += events
        assert [alarm.id for alarm in engine.firing] == ([alarm_id("c", LABELS)] if model.is_firing else [])
    # Each begin has its end, one after the other.
    assert kinds == ["fired", "ended"] * (len(kinds) // 2) + ["fired"] * (len(kinds) % 2)
    assert len(engine.ended) == kinds.count("ended")
