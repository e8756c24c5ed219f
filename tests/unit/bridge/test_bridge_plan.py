"""What to read next and how to spread it over tasks."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from iotmq.bridge.offsets import INITIAL, QueueBounds, QueueKey, QueueRange, StreamOffset, ranges_between
from iotmq.bridge.plan import (
    Change,
    Held,
    Loss,
    advance,
    describe_losses,
    is_settled,
    share_rows,
    split_tasks,
)


def key(number: int) -> QueueKey:
    return QueueKey("t", "b", number)


A, B, C = key(0), key(1), key(2)
D = QueueKey("t", "d", 0)
lags = st.dictionaries(st.integers(0, 20).map(key), st.integers(0, 1000), max_size=12)


def test_a_queue_that_is_not_subscribed_any_more_keeps_its_place_and_nothing_of_it_is_lost() -> None:
    said = {("t", "d"): "g"}
    start = StreamOffset({A: 5, D: 7}, generations=said, time_ms=100)
    bounds = {A: QueueBounds(0, 9)}
    step = advance(start, Held(bounds), is_subscribed=lambda key: key != D)
    assert step == (StreamOffset({A: 9}, left={D: 7}, generations=said, time_ms=100), ())
    assert ranges_between(start, step.end) == [QueueRange(A, 5, 9)]
    # For as long as it may be, whatever becomes of it.
    assert advance(step.end, Held(bounds), is_subscribed=lambda key: key != D) == (step.end, ())
    back = advance(step.end, Held({**bounds, D: QueueBounds(0, 20)}))
    assert ranges_between(step.end, back.end) == [QueueRange(D, 7, 20, "g")]
    assert back.losses == ()


def test_a_batch_ends_where_the_queues_end() -> None:
    step = advance(StreamOffset({A: 5, B: 7}), Held({A: QueueBounds(0, 9), B: QueueBounds(0, 7)}))
    assert step.end == StreamOffset({A: 9, B: 7})
    assert step.losses == ()


def test_a_new_queue_begins_at_its_smallest_offset() -> None:
    step = advance(StreamOffset({A: 5}), Held({A: QueueBounds(0, 5), B: QueueBounds(30, 90)}))
    assert step.end == StreamOffset({A: 5, B: 30})
    assert step.losses == ()
    following = advance(step.end, Held({A: QueueBounds(0, 5), B: QueueBounds(30, 90)}))
    assert following.end == StreamOffset({A: 5, B: 90})


def test_records_deleted_below_the_start_are_a_loss_and_the_rest_is_read() -> None:
    step = advance(StreamOffset({A: 5}), Held({A: QueueBounds(8, 20)}))
    assert step.end == StreamOffset({A: 20})
    assert [(loss.key, loss.wanted) for loss in step.losses] == [(A, 5)]


def test_a_queue_shorter_than_its_start_is_a_loss_and_continues_at_its_new_end() -> None:
    step = advance(StreamOffset({A: 50}), Held({A: QueueBounds(0, 20)}))
    assert step.end == StreamOffset({A: 20})
    assert [(loss.key, loss.wanted, loss.end) for loss in step.losses] == [(A, 20, 50)]


def test_a_queue_that_is_gone_keeps_its_offset() -> None:
    step = advance(StreamOffset({A: 50, B: 1}), Held({B: QueueBounds(0, 2)}))
    assert step.end == StreamOffset({A: 50, B: 2})
    assert [(loss.key, loss.wanted) for loss in step.losses] == [(A, 50)]


def test_a_queue_that_was_removed_leaves_and_is_lost_with_what_was_not_read_of_it() -> None:
    bounds = {B: QueueBounds(0, 2)}
    start = StreamOffset({A: 50, B: 1})
    step = advance(start, Held(bounds, removed={A: QueueBounds(0, 50)}))
    assert step == (StreamOffset({B: 2}, left={A: 50}), ())
    step = advance(start, Held(bounds, removed={A: QueueBounds(0, 51)}))
    assert step.end == StreamOffset({B: 2}, left={A: 50})
    assert [(loss.key, loss.wanted, loss.end) for loss in step.losses] == [(A, 50, 51)]
    # Said once: then it has left.
    assert advance(step.end, Held(bounds, removed={A: QueueBounds(0, 51)})) == (step.end, ())
    assert advance(step.end, Held(bounds)) == (step.end, ())
    # Forgotten with its last record, and back where it was when the topic has it again.
    for nothing in (None, QueueBounds(51, 51)):
        assert advance(step.end, Held(bounds, removed={A: nothing})).end == StreamOffset({B: 2})
    back = advance(step.end, Held({A: QueueBounds(0, 60), **bounds}))
    assert back == (StreamOffset({A: 60, B: 2}), ())
    assert ranges_between(step.end, back.end) == [QueueRange(A, 50, 60)]


def test_a_queue_of_a_deleted_topic_is_lost_unless_it_was_read_to_its_end() -> None:
    bounds = {B: QueueBounds(0, 2)}
    step = advance(StreamOffset({A: 50, B: 1}), Held(bounds, removed={A: QueueBounds(50, 50)}))
    assert step == (StreamOffset({B: 2}), ())
    step = advance(StreamOffset({A: 40, B: 1}), Held(bounds, removed={A: QueueBounds(50, 50)}))
    assert step.end == StreamOffset({B: 2})
    assert [(loss.key, loss.wanted, loss.end) for loss in step.losses] == [(A, 40, 50)]


def test_a_queue_nobody_remembers_leaves_and_is_lost_unless_nothing_was_read_of_it() -> None:
    bounds = {B: QueueBounds(0, 2)}
    step = advance(StreamOffset({A: 50, B: 1}), Held(bounds, removed={A: None}))
    assert step.end == StreamOffset({B: 2})
    assert [(loss.key, loss.wanted, loss.end) for loss in step.losses] == [(A, 50, None)]
    assert advance(StreamOffset({A: 0, B: 1}), Held(bounds, removed={A: None})) == (StreamOffset({B: 2}), ())


def test_the_time_of_a_batch_moves_with_its_offsets_alone() -> None:
    start = StreamOffset({A: 5}, time_ms=100)
    assert advance(start, Held({A: QueueBounds(0, 5)}, time_ms=200)).end == start
    assert advance(start, Held({A: QueueBounds(0, 6)}, time_ms=200)).end == StreamOffset({A: 6}, time_ms=200)
    assert advance(start, Held({A: QueueBounds(0, 6)})).end == StreamOffset({A: 6}, time_ms=100)


def test_generations_are_those_the_brokers_say_and_the_former_ones_of_those_that_say_none() -> None:
    start = StreamOffset({A: 5, D: 7}, generations={("t", "b"): "1-0", ("t", "d"): "1-9"})
    said = {("t", "b"): "2-0"}
    end = advance(start, Held({A: QueueBounds(0, 5), D: QueueBounds(0, 7)}, generations=said)).end
    assert end.generations == {("t", "b"): "2-0", ("t", "d"): "1-9"}
    assert advance(start, Held({A: QueueBounds(0, 5)}, removed={D: None})).end.generations == {
        ("t", "b"): "1-0"
    }


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, Held]:
    """An offset that was read up to, and what a broker may say of its queue."""
    wanted = draw(st.integers(0, 40))
    low = draw(st.integers(0, 40))
    bounds = QueueBounds(low, low + draw(st.integers(0, 40)))
    changes = {}
    if draw(st.booleans()):
        offset = draw(st.integers(bounds.min_offset, bounds.max_offset))
        changes[A] = Change(offset, draw(st.sampled_from(["cut", "anew"])))
    return wanted, Held({A: bounds}, changes=changes)


@given(histories())
def test_every_offset_is_read_or_lost_or_still_to_come(history: tuple[int, Held]) -> None:
    """Two batches after whatever has happened, the stream stands at the end of the queue it has now."""
    wanted, held = history
    bounds, change = held.bounds[A], held.changes.get(A)
    start = StreamOffset({A: wanted})
    first = advance(start, held)
    # The second one is of the generation that it finds.
    second = advance(first.end, held._replace(changes={}))
    read = [
        n
        for a, b in ((start, first.end), (first.end, second.end))
        for part in ranges_between(a, b)
        for n in range(part.start, part.end)
    ]
    assert len(read) == len(set(read))
    assert second.end.offsets[A] == bounds.max_offset
    lost = [loss for step in (first, second) for loss in step.losses]
    if change is not None and change.offset < wanted:
        # All of the new records, and the loss begins where they do, or where the former ones went on.
        assert read == list(range(change.offset, bounds.max_offset))
        assert (lost[0].wanted, lost[0].end) == (
            (change.offset, wanted) if change.kind == "cut" else (wanted, None)
        )
    elif bounds.max_offset < wanted:
        assert read == []
        assert [(loss.wanted, loss.end) for loss in lost] == [(bounds.max_offset, wanted)]
    else:
        begin = max(wanted, bounds.min_offset)
        expected_loss = [(wanted, begin)] if begin > wanted else []
        assert [(loss.wanted, loss.end) for loss in lost] == expected_loss
        # The gap is part of the range of the first batch, and the broker begins behind it.
        assert [n for n in read if n >= begin] == list(range(begin, bounds.max_offset))
    assert is_settled(A, wanted, held) == (
        bounds.max_offset >= wanted or (change is not None and change.offset < wanted)
    )


def test_a_queue_of_which_everything_was_deleted_is_empty_at_its_end() -> None:
    step = advance(StreamOffset({A: 5}), Held({A: QueueBounds(9, 9)}))
    assert step.end == StreamOffset({A: 9})
    assert len(step.losses) == 1


def test_rows_are_shared_in_proportion_to_lag() -> None:
    assert share_rows({A: 600, B: 300, C: 100}, 100) == {A: 60, B: 30, C: 10}


def test_every_lagging_queue_gets_a_row_when_there_are_enough() -> None:
    assert share_rows({A: 10_000, B: 1, C: 1}, 10) == {A: 8, B: 1, C: 1}


def test_with_fewer_rows_than_queues_those_that_lag_most_are_served() -> None:
    assert share_rows({A: 5, B: 9, C: 7}, 2) == {B: 1, C: 1}


@given(lags, st.integers(1, 3000))
def test_shares_are_exactly_the_limit_or_everything(lag: dict[QueueKey, int], rows_max: int) -> None:
    shares = share_rows(lag, rows_max)
    assert sum(shares.values()) == min(rows_max, sum(lag.values()))
    assert all(0 < rows <= lag[queue] for queue, rows in shares.items())
    assert len(shares) == min(rows_max, sum(1 for rows in lag.values() if rows))


@given(lags)
def test_without_a_limit_everything_is_shared(lag: dict[QueueKey, int]) -> None:
    assert share_rows(lag, None) == {queue: rows for queue, rows in lag.items() if rows}


@given(lags, st.integers(1, 100))
def test_steps_with_a_limit_reach_the_end_and_read_each_row_once(
    lag: dict[QueueKey, int], rows_max: int
) -> None:
    bounds = {queue: QueueBounds(10, 10 + rows) for queue, rows in lag.items()}
    at = StreamOffset(dict.fromkeys(bounds, 10))
    for _ in range(sum(lag.values()) // rows_max + 1):
        step = advance(at, Held(bounds), rows_max=rows_max)
        assert not step.losses
        assert all(step.end.offsets[queue] >= offset for queue, offset in at.offsets.items())
        at = step.end
    assert at.offsets == {queue: held.max_offset for queue, held in bounds.items()}
    assert advance(at, Held(bounds), rows_max=rows_max).end == at


def test_a_target_hides_what_came_after_it() -> None:
    bounds = {A: QueueBounds(0, 10), B: QueueBounds(5, 9), C: QueueBounds(0, 1)}
    assert Held(bounds).within({A: 7, B: 3}).bounds == {A: QueueBounds(0, 7), B: QueueBounds(3, 3)}


def test_one_task_per_queue() -> None:
    ranges = [QueueRange(A, 0, 5), QueueRange(B, 3, 4)]
    assert split_tasks(ranges) == [(ranges[0],), (ranges[1],)]
    assert split_tasks([]) == []


def test_small_batches_are_one_task_up_to_combine_rows() -> None:
    ranges = [QueueRange(A, 0, 5), QueueRange(B, 3, 8)]
    assert split_tasks(ranges, combine_rows=10) == [tuple(ranges)]
    assert len(split_tasks(ranges, combine_rows=9)) == 2


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=6),
    st.integers(1, 40),
)
def test_pieces_cover_every_range_once(sizes: list[int], partitions_min: int) -> None:
    ranges = [QueueRange(key(number), 100, 100 + size) for number, size in enumerate(sizes)]
    tasks = split_tasks(ranges, partitions_min=partitions_min)
    pieces = [piece for task in tasks for piece in task]
    assert len(tasks) == len(pieces)
    assert all(piece.rows > 0 for piece in pieces)
    for part in ranges:
        mine = [piece for piece in pieces if piece.key == part.key]
        assert mine[0].start == part.start
        assert mine[-1].end == part.end
        assert all(a.end == b.start for a, b in itertools.pairwise(mine))
    assert len(tasks) >= min(len(ranges), partitions_min)


def test_min_partitions_cuts_by_size() -> None:
    tasks = split_tasks([QueueRange(A, 0, 900), QueueRange(B, 0, 100)], partitions_min=10)
    assert len(tasks) == 10
    assert sum(task[0].key == A for task in tasks) == 9


def test_losses_name_queue_offset_and_reason_and_not_too_many() -> None:
    text = describe_losses([Loss(key(n), n, "gone") for n in range(7)], consequence="Set failOnDataLoss.")
    assert "topic 't' queue b:0 offset 0: gone" in text
    assert "b:4" in text
    assert "b:5" not in text
    assert "and 2 more" in text
    assert text.endswith("Set failOnDataLoss.")


def test_the_first_step_of_a_pinned_start_introduces_queues_only() -> None:
    step = advance(INITIAL, Held({A: QueueBounds(4, 9)}))
    assert step.end == StreamOffset({A: 4})


def test_ranges_with_more_records_than_a_partition_may_have_are_cut() -> None:
    ranges = [QueueRange(A, 0, 10), QueueRange(B, 5, 8)]
    tasks = split_tasks(ranges, records_max=4)
    assert [task for (task,) in tasks] == [
        QueueRange(A, 0, 3),
        QueueRange(A, 3, 6),
        QueueRange(A, 6, 10),
        QueueRange(B, 5, 8),
    ]
    # A small batch is one task only if it may be so large.
    assert len(split_tasks(ranges, combine_rows=100, records_max=13)) == 1
    assert len(split_tasks(ranges, combine_rows=100, records_max=12)) == 2
    # More pieces than that, when more are wanted.
    assert len(split_tasks(ranges, partitions_min=6, records_max=4)) == 5
