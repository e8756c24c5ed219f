"""Batches that are numbered: what comes again is stored once, and nothing is passed over."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from eventually import soon
from hypothesis import given
from hypothesis import strategies as st
from once_bench import Bench, element

from iotmq import limits
from iotmq.broker.exactly_once.batch_marks import collect_numbers, read_mark
from iotmq.broker.exactly_once.batch_numbers import NUMBER_BITS, key_of
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.errors import StoreError
from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_record
from iotmq.remoting.codes import ResponseCode


def numbered(
    batch: int, number: int, *bodies: bytes, producer: str = "q/0", skipped: int = 0, queues: str = "a*2"
) -> list[bytes]:
    value = f"{producer} {batch} {number} {skipped} {skipped + len(bodies)} {queues}"
    return [element(bodies[0], BATCH_NUMBER=value), *(element(body) for body in bodies[1:])]


def stored(bench: Bench, batch: int, number: int, *bodies: bytes, producer: str = "q/0") -> None:
    [answer] = bench.send(*numbered(batch, number, *bodies, producer=producer), is_numbered=True)
    assert isinstance(answer, StoredBatch), vars(answer) if hasattr(answer, "__dict__") else answer.remark


def left_over(bench: Bench, *elements: bytes) -> None:
    """What a power cut has left of a batch, and a restart finds."""
    bench.numbers.begin_append()
    bench.send(*elements)
    bench.clock.advance(1)


def refused(bench: Bench, *elements: bytes) -> str:
    [answer] = bench.send(*elements, is_numbered=True)
    assert isinstance(answer, RefusedBatch)
    assert answer.code == ResponseCode.BATCH_OUT_OF_ORDER, answer.remark
    return answer.remark


async def test_a_batch_that_comes_again_is_stored_once_also_after_a_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for _ in range(3):
        stored(bench, 7, 0, b"one", b"two")
        stored(bench, 7, 1, b"three")
        stored(bench, 7, 0, b"one", b"two")
        bench.restart()
    stored(bench, 8, 0, b"one")
    stored(bench, 7, 1, b"three")
    assert bench.bodies() == [b"one", b"two", b"three", b"one"]
    assert bench.numbers.count == 1


async def test_two_tasks_that_write_the_same_at_once_store_one_copy(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    random_ = random.Random(15)
    at = [0, 0]
    while min(at) < 200:
        task = random_.randrange(2)
        if at[task] < 200:
            batch, number = divmod(at[task], 20)
            stored(bench, batch, number, b"%d" % at[task], b"x")
            at[task] += 1
            if not random_.randrange(40):
                bench.restart()
    expected = [body for number in range(200) for body in (b"%d" % number, b"x")]
    assert bench.bodies() == expected
    assert bench.once.out_of_order_total == 0


async def test_a_batch_whose_predecessor_is_missing_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert "nothing is known of its producer" in refused(bench, *numbered(3, 1, b"x"))
    stored(bench, 3, 0, b"x")
    assert "number 2 of batch 3 does not follow" in refused(bench, *numbered(3, 2, b"x"))
    assert "number 0 of batch 3" in refused(bench, *numbered(4, 1, b"x"))
    stored(bench, 5, 0, b"y")
    assert bench.bodies() == [b"x", b"y"]
    assert bench.once.out_of_order_total == 3


async def test_producers_and_topics_are_told_apart(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    stored(bench, 0, 0, b"a", producer="q/0")
    stored(bench, 0, 0, b"b", producer="q/00")
    assert bench.numbers.last(key_of("T", b"q/0")) == 0
    assert bench.numbers.last(key_of("t", b"q/0")) is None
    assert bench.bodies() == [b"a", b"b"]


async def test_of_a_batch_that_lost_its_end_the_rest_is_stored_once(tmp_path: Path) -> None:
    """As power cuts leave it, twice; messages that look the same, and another's behind them."""
    bench = Bench(tmp_path)
    bodies = [b"same"] * 5 + [b"last"]
    # The first three of six.
    left_over(bench, element(b"same", BATCH_NUMBER="q/0 0 0 0 6 a*2"), element(b"same"), element(b"same"))
    bench.send(element(b"same"))
    bench.restart()
    # One more of them, which the next one is behind.
    left_over(bench, element(b"same", BATCH_NUMBER="q/0 0 0 3 6 a*2"))
    bench.send(element(b"other"))
    bench.restart()
    for _ in range(3):
        stored(bench, 0, 0, *bodies)
        assert bench.bodies() == [b"same"] * 5 + [b"other", b"same", b"last"]
        bench.restart()
    stored(bench, 0, 1, b"next")
    stored(bench, 0, 0, *bodies)
    assert bench.bodies()[8:] == [b"next"]


async def test_two_that_complete_a_torn_batch_at_once_store_its_rest_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, flush="sync")
    left_over(bench, element(b"1", BATCH_NUMBER="q/0 0 0 0 3 a*2"))
    await soon(lambda: bench.store.confirmed_position == bench.store.appended_position, "confirmed")
    bench.restart()
    bench.disk_works.clear()
    answers = [bench.send(*numbered(0, 0, b"1", b"2", b"3"), is_numbered=True) for _ in range(3)]
    bench.disk_works.set()
    await soon(lambda: all(answers), "three answers")
    for [answer] in answers:
        assert isinstance(answer, StoredBatch), answer.remark
    assert bench.bodies() == [b"1", b"2", b"3"]


async def test_what_is_appended_and_not_on_the_disk_is_answered_when_it_is(tmp_path: Path) -> None:
    bench = Bench(tmp_path, flush="sync")
    bench.disk_works.clear()
    first = bench.send(*numbered(0, 0, b"x"), is_numbered=True)
    again = bench.send(*numbered(0, 0, b"x"), is_numbered=True)
    behind = bench.send(*numbered(0, 1, b"y"), is_numbered=True)
    assert first == again == behind == []
    bench.disk_works.set()
    await soon(lambda: bool(first and again and behind), "three answers")
    for [answer] in (first, again, behind):
        assert isinstance(answer, StoredBatch)
        assert answer.status == ResponseCode.SUCCESS
    assert bench.bodies() == [b"x", b"y"]


@pytest.mark.parametrize(
    "value",
    [
        "", "q", "q 1", "q 1 2 0", " 1 2 0 1 a", "q 1 2 1 1 a", "q -1 0 0 1 a", "q 1 x 0 1 a",
        f"q {1 << 36} 0 0 1 a", f"q 0 {1 << NUMBER_BITS} 0 1 a", "q 0 0 0 65537 a", f"{'q' * 201} 0 0 0 1 a",
        "q 0 0 0 2 a", "q 0 0 0 1x", "q\0 0 0 0 1 a",
    ],
)  # fmt: skip
async def test_a_number_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    bench = Bench(tmp_path)
    [answer] = bench.send(element(b"x", BATCH_NUMBER=value), is_numbered=True)
    assert isinstance(answer, RefusedBatch)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.bodies() == []
    assert bench.numbers.count == 0


async def test_the_largest_numbers_are_taken(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    value = f"{'q' * 200} {(1 << 36) - 1} 0 0 1 {'a' * 1_000}"
    [answer] = bench.send(element(b"x", BATCH_NUMBER=value), is_numbered=True)
    assert isinstance(answer, StoredBatch), answer.remark
    assert bench.numbers.last(key_of("T", b"q" * 200)) == (1 << 36) - 1 << NUMBER_BITS


@pytest.mark.parametrize("is_written", [False, True])
async def test_producers_at_their_limit_and_past_it(tmp_path: Path, is_written: bool) -> None:
    """Those that have sent nothing for longest are forgotten, and what they send again is stored again."""
    bench = Bench(tmp_path, producers_max=3)
    for name in "abc":
        stored(bench, 0, 0, name.encode(), producer=name)
    stored(bench, 0, 1, b"a", producer="a")
    if is_written:
        bench.numbers.write_out()
    assert (bench.numbers.count, bench.numbers.forgotten_total) == (3, 0)
    stored(bench, 0, 0, b"d", producer="d")
    assert (bench.numbers.count, bench.numbers.forgotten_total) == (3, 1)
    assert [name for name in "abcd" if bench.numbers.last(key_of("T", name.encode())) is not None] == [*"acd"]
    assert "nothing is known" in refused(bench, *numbered(0, 1, b"b", producer="b"))
    bench.restart()
    assert [name for name in "abcd" if bench.numbers.last(key_of("T", name.encode())) is not None] == [*"acd"]


async def test_bytes_of_producers_at_their_limit_and_past_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, bytes_max=2 * (2 * len(key_of("T", b"a")) + 64))
    stored(bench, 0, 0, b"x", producer="a")
    stored(bench, 0, 0, b"x", producer="b")
    assert bench.numbers.count == 2
    stored(bench, 0, 0, b"x", producer="c")
    assert bench.numbers.count == 2
    assert bench.numbers.last(key_of("T", b"a")) is None


def test_the_limits_hold_a_hundred_thousand_producers_of_a_usual_name() -> None:
    name = key_of("telemetry-of-all-devices", b"3f2b8c1e-0f7a-4d6e-9a55-0c6d2f6f1c11/199")
    assert limits.BATCH_PRODUCERS_MAX * (2 * len(name) + 64) <= limits.BATCH_PRODUCERS_BYTES_MAX


async def test_producers_whose_messages_retention_has_deleted_are_forgotten(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    stored(bench, 0, 0, b"x", producer="a")
    kept_position = bench.store.appended_position
    stored(bench, 0, 0, b"x", producer="b")
    bench.numbers.trim(kept_position)
    assert bench.numbers.last(key_of("T", b"a")) is None
    assert bench.numbers.last(key_of("T", b"b")) == 0
    stored(bench, 0, 1, b"x", producer="b")
    assert bench.numbers.count == 1


async def test_nothing_is_answered_while_a_database_that_was_opened_again_has_less(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    stored(bench, 0, 0, b"x")
    bench.store.key_values().reopen()
    with pytest.raises(StoreError):
        bench.numbers.write_out()
    [answer] = bench.send(*numbered(0, 0, b"x"), is_numbered=True)
    assert isinstance(answer, RefusedBatch)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_copies_of_messages_do_not_take_the_place_of_what_they_copy() -> None:
    """One that waits for its time counts where it waits, one that a consumer gave back does not."""
    mark = {"BATCH_NUMBER": "q 1 2 0 1 a"}
    found: list[tuple[bytes, int, int, int]] = []
    log = b"".join(
        encode_record(topic=topic, body=b"x", properties=encode_properties(properties), position=position)
        for position, (topic, properties) in enumerate(
            [
                ("T", mark),
                ("%RETRY%g", mark),
                ("rmq_sys_wheel_timer", {**mark, "REAL_TOPIC": "R"}),
                ("SCHEDULE_TOPIC_XXXX", {**mark, "REAL_TOPIC": "S"}),
                ("rmq_sys_wheel_timer", mark),
                ("rmq_sys_other", {**mark, "REAL_TOPIC": "U"}),
                ("V", {}),
            ]
        )
    )
    collect_numbers(memoryview(log), lambda *each: found.append(each))
    number = (1 << NUMBER_BITS) + 2
    assert found == [(b"T\0q", 0, number, 0), (b"R\0q", 2, number, 0), (b"S\0q", 3, number, 0)]


@given(
    st.text("q/.0ü", min_size=1, max_size=90), st.integers(0, (1 << 36) - 1), st.integers(0, (1 << 27) - 1),
    st.integers(1, 65_536), st.text("ab*, 0", max_size=40), st.data(),
)  # fmt: skip
def test_a_number_is_read_as_it_was_written(
    producer: str, batch: int, number: int, count: int, queues: str, data: st.DataObject
) -> None:
    skipped = data.draw(st.integers(0, count - 1))
    value = f"{producer} {batch} {number} {skipped} {count} {queues}"
    properties = encode_properties({"KEYS": "k", "BATCH_NUMBER": value, "TAGS": "t"})
    assert read_mark(properties) == (
        producer.encode(), batch << NUMBER_BITS | number, skipped, count, queues.encode(),
    )  # fmt: skip


@given(st.binary(max_size=60))
def test_any_bytes_are_a_number_or_none(value: bytes) -> None:
    mark = read_mark(b"BATCH_NUMBER\x01" + value)
    assert mark is None or mark[2] < mark[3]


async def test_a_topic_that_was_made_anew_knows_no_batches_of_the_former_one(tmp_path: Path) -> None:
    """Neither of those that are in the database, nor of those that were appended just now."""
    bench = Bench(tmp_path)
    bodies = []
    for is_restarted in (True, False, True):
        stored(bench, 7, 0, b"one", b"two")
        stored(bench, 7, 1, b"three")
        stored(bench, 7, 0, b"one", b"two")
        bodies += [b"one", b"two", b"three"]
        assert bench.bodies() == bodies
        if is_restarted:
            bench.restart()
            stored(bench, 7, 1, b"three")
            assert bench.bodies() == bodies
        bench.topics.delete("T")
        bench.topics.ensure("T", queues=2)
        assert bench.numbers.last(key_of("T", b"q/0")) is None
        assert "nothing is known" in refused(bench, *numbered(7, 1, b"three"))
    assert bench.numbers.count == 1
