"""What a group has of one queue: handed out, held, ready again, dead, done."""

from __future__ import annotations

import random

import pytest

from iotmq.broker.pop.pop_queue import DONE, DONE_BEFORE, NOT_HELD, NOT_POPPED, PopQueue
from iotmq.errors import StoreCorruptError
from iotmq.message.records.record import encode_record, iter_records

T = 1_700_000_000_000


def record(offset: int, *, reconsume_times: int = 0) -> bytes:
    return encode_record(
        topic="T",
        body=b"%d" % offset,
        queue_offset=offset,
        position=100 * offset,
        reconsume_times=reconsume_times,
    )


def views(*offsets: int) -> list[memoryview]:
    return [memoryview(b"".join(map(record, offsets)))]


def pop(queue: PopQueue, *offsets: int, at_ms: int = T, invisible_ms: int = 1_000) -> list[int]:
    """Hand out new offsets; the times of each."""
    given, text, count = queue.hand_out(
        views(*offsets), queue.next_offset, offsets[-1] + 1, pop_ms=at_ms, due_ms=at_ms + invisible_ms
    )
    assert (text, count) == (b",".join(b"%d" % offset for offset in offsets), len(offsets))
    return [each.reconsume_times for view in given for each in iter_records(view)]


def again(queue: PopQueue, *, at_ms: int, attempts_max: int = 100) -> tuple[list[int], list[int]]:
    """Hand out what is due: offsets and times."""
    queue.expire(at_ms, attempts_max=attempts_max)
    offsets: list[int] = []
    times: list[int] = []
    while (run := queue.ready_run()) is not None:
        given, _, _ = queue.hand_out(
            views(*range(*run)), *run, pop_ms=max(at_ms, queue.pop_floor_ms), due_ms=at_ms + 1_000
        )
        for view in given:
            for each in iter_records(view):
                offsets.append(each.queue_offset)
                times.append(each.reconsume_times)
    queue.check_invariants()
    return offsets, times


def restored(queue: PopQueue) -> PopQueue:
    """The same after a restart: what changes so far say."""
    queue.mark_changed()
    change = queue.take_change()
    assert change is not None
    return from_changes([change])


def from_changes(changes: list[bytes]) -> PopQueue:
    blocks: dict[int, bytes] = {}
    next_offset = version = 0
    for change in changes:
        version, next_offset = (int.from_bytes(change[at : at + 8], "big") for at in (0, 8))
        if change[16]:
            blocks.clear()
        at = 17
        while at < len(change):
            number, size = (
                int.from_bytes(change[at : at + 8], "big"),
                int.from_bytes(change[at + 8 : at + 10], "big"),
            )
            blocks[number] = change[at + 10 : at + 10 + size]
            at += 10 + size
    again = PopQueue(next_offset, version=version)
    for number, value in blocks.items():
        if value:
            again.restore_block(number, value)
    again.check_invariants()
    return again


def test_a_message_is_invisible_until_its_time_is_over_and_comes_again_with_its_times() -> None:
    queue = PopQueue(0)
    assert pop(queue, 0, 1, 2) == [0, 0, 0]
    assert again(queue, at_ms=T + 999) == ([], [])
    assert again(queue, at_ms=T + 1_000) == ([0, 1, 2], [1, 1, 1])
    assert again(queue, at_ms=T + 1_999) == ([], [])
    assert again(queue, at_ms=T + 2_000) == ([0, 1, 2], [2, 2, 2])


def test_what_is_acknowledged_never_comes_again_and_the_low_offset_follows() -> None:
    queue = PopQueue(5)
    pop(queue, 5, 6, 7)
    assert queue.low_offset == 5
    assert queue.acknowledge(6, T) == DONE
    assert queue.low_offset == 5
    assert queue.acknowledge(5, T) == DONE
    assert queue.low_offset == 7
    assert again(queue, at_ms=T + 1_000) == ([7], [1])
    assert queue.acknowledge(5, T) == DONE_BEFORE
    assert queue.acknowledge(8, T) == NOT_POPPED


def test_a_receipt_holds_its_message_until_somebody_else_has_it() -> None:
    queue = PopQueue(0)
    pop(queue, 0, 1)
    queue.expire(T + 5_000, attempts_max=9)
    # Late, but nobody else has it.
    assert queue.acknowledge(0, T) == DONE
    assert again(queue, at_ms=T + 5_000) == ([1], [1])
    assert queue.acknowledge(1, T) == NOT_HELD
    assert queue.acknowledge(1, T + 5_000) == DONE
    assert queue.undone_count == queue.block_count == 0


def test_an_offset_never_has_the_same_receipt_twice() -> None:
    queue = PopQueue(0)
    pop(queue, 0, invisible_ms=0)
    queue.expire(T, attempts_max=9)
    assert queue.pop_floor_ms == T + 1
    assert again(queue, at_ms=T) == ([0], [1])
    assert queue.acknowledge(0, T) == NOT_HELD
    assert queue.acknowledge(0, T + 1) == DONE


def test_a_holder_has_more_time_or_gives_the_message_back_at_once_or_later() -> None:
    queue = PopQueue(0)
    pop(queue, 0, 1, 2)
    found, receipt = queue.change_due(0, T, now_ms=T + 500, due_ms=T + 9_000)
    assert (found, receipt) == (DONE, T + 500)
    assert queue.change_due(0, T, now_ms=T + 500, due_ms=T + 9_000) == (NOT_HELD, 0)
    assert queue.change_due(1, T, now_ms=T + 500, due_ms=T + 500)[0] == DONE
    assert again(queue, at_ms=T + 500) == ([1], [1])
    assert again(queue, at_ms=T + 1_000) == ([2], [1])
    assert again(queue, at_ms=T + 8_999)[0] == [1, 2]
    assert again(queue, at_ms=T + 9_000)[0] == [0]
    assert queue.change_due(7, T, now_ms=T, due_ms=T) == (NOT_POPPED, 0)


@pytest.mark.parametrize("attempts_max", [1, 2, 17])
def test_a_message_is_dead_exactly_after_its_last_attempt(attempts_max: int) -> None:
    queue = PopQueue(0)
    pop(queue, 0)
    now_ms = T
    for number in range(1, attempts_max):
        now_ms += 1_000
        assert again(queue, at_ms=now_ms, attempts_max=attempts_max) == ([0], [number])
        assert queue.dead_offsets() == []
    now_ms += 1_000
    assert again(queue, at_ms=now_ms, attempts_max=attempts_max) == ([], [])
    assert queue.dead_offsets() == [0]
    assert queue.attempts(0) == attempts_max
    assert queue.find(0, now_ms - 1_000) == NOT_HELD
    queue.take_change()
    change = queue.bury(0)
    queue.check_invariants()
    assert queue.undone_count == 0
    assert change[17:] == (0).to_bytes(10, "big")
    queue.dig_out(0, attempts_max)
    assert queue.dead_offsets() == [0]
    queue.check_invariants()


def test_in_order_nothing_may_be_handed_out_while_something_is_held() -> None:
    queue = PopQueue(0)
    assert not queue.is_held
    pop(queue, 0, 1)
    assert queue.is_held
    queue.acknowledge(1, T)
    assert queue.is_held
    queue.expire(T + 1_000, attempts_max=9)
    assert not queue.is_held
    assert queue.ready_run() == (0, 1)


def test_messages_that_a_filter_passes_over_are_done() -> None:
    queue = PopQueue(0)
    queue.hand_out(views(3, 200), 0, 300, pop_ms=T, due_ms=T + 1_000)
    assert (queue.next_offset, queue.low_offset, queue.undone_count) == (300, 3, 2)
    assert queue.acknowledge(4, T) == DONE_BEFORE
    queue.hand_out([], 300, 400, pop_ms=T, due_ms=T)
    assert queue.next_offset == 400
    assert again(queue, at_ms=T + 1_000)[0] == [3, 200]


def test_a_ready_message_that_the_log_has_lost_is_done() -> None:
    queue = PopQueue(0)
    pop(queue, 0, 1, 2)
    queue.expire(T + 1_000, attempts_max=9)
    queue.hand_out(views(1), 0, 3, pop_ms=T + 1_000, due_ms=T + 2_000)
    assert queue.undone_count == 1
    queue.check_invariants()
    queue.expire(T + 2_000, attempts_max=9)
    queue.discard(1)
    assert queue.undone_count == 0


def test_a_pop_that_could_not_be_stored_is_as_if_it_had_not_been() -> None:
    queue = PopQueue(0)
    pop(queue, 0, 1, invisible_ms=60_000)
    pop(queue, 2, at_ms=T + 1, invisible_ms=60_000)
    pop(queue, 3, at_ms=T, invisible_ms=60_000)
    queue.give_back(b"0,1", T)
    queue.check_invariants()
    assert again(queue, at_ms=T + 1) == ([0, 1], [0, 0])


def test_many_are_acknowledged_by_bits_the_lowest_first() -> None:
    queue = PopQueue(60)
    pop(queue, *range(60, 80))
    # Offsets 60, 61 and 79; and 80, which was not popped.
    assert queue.acknowledge_many(60, (0b11 | 1 << 19 | 1 << 20).to_bytes(3, "little"), T) == 1
    assert queue.undone_count == 17
    assert queue.acknowledge_many(60, b"\xff\xff\x0f", T + 1) == 17
    assert queue.acknowledge_many(60, b"\xff\xff\x0f", T) == 0
    assert queue.undone_count == 0


def test_a_group_that_is_moved_forward_keeps_what_is_done_behind_and_back_starts_over() -> None:
    queue = PopQueue(0)
    pop(queue, *range(100))
    queue.acknowledge(80, T)
    queue.advance(70)
    queue.check_invariants()
    assert (queue.low_offset, queue.undone_count, queue.next_offset) == (70, 29, 100)
    queue.advance(200)
    assert (queue.low_offset, queue.undone_count, queue.next_offset) == (200, 0, 200)
    queue.start_over(50)
    assert (queue.low_offset, queue.undone_count, queue.next_offset) == (50, 0, 50)


def test_what_the_log_has_lost_at_its_end_is_forgotten() -> None:
    queue = PopQueue(0)
    pop(queue, *range(200))
    queue.cut(200)
    assert queue.undone_count == 200
    queue.cut(100)
    queue.check_invariants()
    assert (queue.undone_count, queue.next_offset) == (100, 100)
    queue.cut(64)
    assert (queue.undone_count, queue.next_offset) == (64, 64)


def test_records_that_are_none_are_refused() -> None:
    queue = PopQueue(0)
    broken = [memoryview(record(0)[:50])], [memoryview(b"\0" * 200)], [memoryview(record(7))]
    for each in broken:
        with pytest.raises(StoreCorruptError):
            queue.hand_out(each, 0, 1, pop_ms=T, due_ms=T)
    for number, value in ((0, b"x"), (-1, b""), (1 << 58, b""), (0, bytes(26 * 65)), (0, (b"\xff" * 26) * 2)):
        with pytest.raises(StoreCorruptError):
            PopQueue(0).restore_block(number, value)


def test_a_message_stays_with_its_receipt_over_a_restart() -> None:
    queue = PopQueue(0)
    pop(queue, *range(100))
    again(queue, at_ms=T + 1_000)
    queue.change_due(99, T + 1_000, now_ms=T + 1_001, due_ms=T + 70_000)
    queue.acknowledge(3, T + 1_000)
    queue = restored(queue)
    assert queue.acknowledge(4, T) == NOT_HELD
    assert queue.acknowledge(4, T + 1_000) == DONE
    assert again(queue, at_ms=T + 1_999) == ([], [])
    offsets, times = again(queue, at_ms=T + 2_000)
    assert offsets == [0, 1, 2, *range(5, 99)]
    assert set(times) == {2}
    assert again(queue, at_ms=T + 70_000)[1][-1] == 2


def test_memory_and_heaps_are_bounded_by_what_is_undone() -> None:
    queue = PopQueue(0)
    receipt = T
    pop(queue, 0, at_ms=T, invisible_ms=10**9)
    for number in range(1, 5_000):
        # Always earlier, which is what makes the heap longer.
        _, receipt = queue.change_due(0, receipt, now_ms=receipt, due_ms=T + 10**9 - number)
        pop(queue, number, at_ms=T)
        queue.acknowledge(number, T)
    assert queue.block_count == 1
    queue.check_invariants()
    change = queue.take_change()
    assert change is not None
    assert len(restored(queue).take_change() or b"") == 0
    queue.mark_changed()
    assert len(queue.take_change() or b"") == 17 + 10 + 26


@pytest.mark.parametrize("seed", range(20))
def test_a_random_life_is_that_of_a_slow_twin_with_restarts_in_the_middle(seed: int) -> None:
    random_ = random.Random(seed)
    queue = PopQueue(0)
    changes: list[bytes] = []
    held: dict[int, list[int]] = {}
    buried: set[int] = set()
    ready: set[int] = set()
    now_ms, attempts_max = T, 3
    for _ in range(600):
        choice = random_.randrange(7)
        if choice == 0:
            now_ms += random_.randrange(2_000)
        elif choice == 1:
            count = random_.randrange(1, 40)
            start = queue.next_offset
            chosen = sorted(random_.sample(range(start, start + count), random_.randrange(1, count + 1)))
            due_ms = now_ms + random_.randrange(3_000)
            pop_ms = max(now_ms, queue.pop_floor_ms)
            queue.hand_out(views(*chosen), start, start + count, pop_ms=pop_ms, due_ms=due_ms)
            for offset in chosen:
                held[offset] = [due_ms, pop_ms, 1]
        elif choice in (2, 3) and held:
            offset = random_.choice(list(held))
            receipt = held[offset][1] + random_.choice((0, 0, 0, 1))
            expected = DONE if receipt == held[offset][1] else NOT_HELD
            if choice == 2:
                assert queue.acknowledge(offset, receipt) == expected
                if expected == DONE:
                    del held[offset]
                    ready.discard(offset)
            else:
                due_ms = now_ms + random_.randrange(3_000)
                found, receipt = queue.change_due(offset, receipt, now_ms=now_ms, due_ms=due_ms)
                assert found == expected
                if found == DONE:
                    held[offset][:2] = [due_ms, receipt]
                    ready.discard(offset)
        elif choice in (4, 5):
            queue.expire(now_ms, attempts_max=attempts_max)
            for offset, (due_ms, _, attempts) in list(held.items()):
                if due_ms <= now_ms and offset not in ready:
                    if attempts >= attempts_max:
                        del held[offset]
                        buried.add(offset)
                    else:
                        ready.add(offset)
            assert (queue.ready_count, queue.undone_count) == (len(ready), len(held) + queue.dead_count)
            run = queue.ready_run()
            assert (run is None) == (not ready)
            if run is not None:
                assert run[0] == min(ready)
                pop_ms = max(now_ms, queue.pop_floor_ms)
                queue.hand_out(views(*range(*run)), *run, pop_ms=pop_ms, due_ms=now_ms + 500)
                for offset in range(*run):
                    ready.discard(offset)
                    held[offset] = [now_ms + 500, pop_ms, held[offset][2] + 1]
            change = queue.take_change()
            changes += [change] if change else []
            for offset in queue.dead_offsets():
                assert offset in buried
                changes.append(queue.bury(offset))
        else:
            change = queue.take_change()
            changes += [change] if change else []
            queue = from_changes(changes)
            ready.clear()
            # What is dead and not buried is found again.
            queue.expire(0, attempts_max=attempts_max)
        queue.check_invariants()
        assert queue.undone_count == len(held) + queue.dead_count
        lowest = min([*held, *(queue.dead_offsets())], default=queue.next_offset)
        assert queue.low_offset == lowest
