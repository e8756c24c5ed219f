"""Store times never fall, wherever the clock is set, so searches by time are right."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from manual_clock import ManualClock
from store_model import BORN_HOST, batch, open_small

from iotmq.message.records.record import decode_record
from iotmq.store.store import Store

START_MS = 1_700_000_000_000
# What happens before each append: the clock moves by so many milliseconds, or the store is opened anew.
STEPS = st.lists(
    st.one_of(st.integers(-5_000, 5_000), st.integers(-(10**12), 10**6), st.none()),
    min_size=1,
    max_size=60,
)


def append(store: Store) -> None:
    store.append(store.queue("T", 0), batch(b"x" * 100), born_timestamp_ms=1, born_host=BORN_HOST)


def append_through_the_log(store: Store) -> None:
    """As compiled senders do."""
    store.log.append(
        store.queue("T", 0),
        batch(b"x" * 100),
        store_timestamp_ms=store.begin_appends(),
        born_timestamp_ms=1,
        born_host=BORN_HOST,
    )
    store.end_appends()
    store.advance()


def times(store: Store) -> list[int]:
    """Store times of queue 0 of T, by offset."""
    queue = store.queue("T", 0)
    found = []
    for offset in range(queue.max_offset):
        view = store.read_record(queue.entry(offset)[0])
        assert view is not None
        found.append(decode_record(view).store_timestamp_ms)
    return found


@given(steps=STEPS)
@example(steps=[0, -1_000, None, -1_000, 500])
@settings(
    max_examples=settings().max_examples // 4, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_times_do_not_fall_and_a_search_finds_a_record_of_every_time(
    tmp_path: Path, steps: list[int | None]
) -> None:
    directory = tmp_path / str(len(list(tmp_path.iterdir())))
    clock = ManualClock(START_MS)
    store = open_small(directory, clock=clock)
    for number, step in enumerate(steps):
        if step is None:
            store.close()
            store = open_small(directory, clock=clock)
        else:
            clock.advance(step / 1000)
        (append, append_through_the_log)[number % 2](store)
    found = times(store)
    assert found == sorted(found)
    queue = store.queue("T", 0)
    assert {found[store.offset_at_time(queue, at_ms)] for at_ms in found} == set(found)
    assert found[store.offset_at_time(queue, found[0] - 1)] == found[0]
    assert found[store.offset_at_time(queue, found[-1] + 1)] == found[-1]
    store.close()


def test_a_clock_that_was_a_year_ahead_leaves_the_times_where_they_are(tmp_path: Path) -> None:
    year_s = 365 * 86_400
    clock = ManualClock(START_MS + year_s * 1000)
    store = open_small(tmp_path, clock=clock)
    append(store)
    clock.advance(-year_s)
    append(store)
    store.close()
    store = open_small(tmp_path, clock=clock)
    append(store)
    clock.advance(year_s + 1)
    append(store)
    assert [time_ms - START_MS - year_s * 1000 for time_ms in times(store)] == [0, 0, 0, 1_000]
    store.close()


def test_how_far_the_clock_is_behind_is_a_metric(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    store = open_small(tmp_path, clock=clock)
    append(store)
    clock.advance(-90)
    behind = {metric.name: metric.value for metric in store.metrics()}["iotmq_store_clock_behind_seconds"]
    assert behind == 90
    store.close()
