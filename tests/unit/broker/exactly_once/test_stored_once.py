"""Batches that are sent again, and packet ids of devices: what is stored is stored once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import soon
from file_size_limit import files_end_at
from once_bench import FLUSH_TIMEOUT_S, Bench

from iotmq import limits
from iotmq.broker.exactly_once import marks, received_ids
from iotmq.broker.exactly_once.received_ids import encode_release
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.errors import StoreError, StoreFullError
from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import ResponseCode


def keyed(key: str, body: bytes) -> bytes:
    return encode_batch([(body, encode_properties({"UNIQ_KEY": key}) if key else b"", 0)])


def marked(client: str, packet_id: int, body: bytes, *, key: str = "", topic: str = "t") -> bytes:
    properties = {"MQTT_TOPIC": topic, "MQTT_CLIENT_ID": client, "MQTT_PACKET_ID": str(packet_id)}
    if key:
        properties["UNIQ_KEY"] = key
    return encode_batch([(body, encode_properties(properties), 0)])


# Batches that are sent again


async def test_a_batch_that_is_sent_again_is_answered_with_where_it_stands(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    batch = (keyed("K1", b"one"), keyed("", b"two"), keyed("", b"two"))
    [first] = bench.send(*batch)
    bench.send(keyed("K2", b"other"))
    for _ in range(2):
        [again] = bench.send(*batch, is_repeat=True)
        assert isinstance(first, StoredBatch)
        assert isinstance(again, StoredBatch)
        assert again.status == ResponseCode.SUCCESS
        assert (again.first_offset, again.count, again.queue_id) == (0, 3, 0)
        assert again.appended.positions() == first.appended.positions()
        bench.restart()
    assert bench.bodies() == [b"one", b"two", b"two", b"other"]
    assert bench.once.repeats_total == 0


async def test_a_batch_that_never_came_is_stored_when_it_is_sent_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.send(keyed("K1", b"one"))
    [answer] = bench.send(keyed("K2", b"one"), is_repeat=True)
    assert isinstance(answer, StoredBatch)
    assert (answer.first_offset, answer.count) == (1, 1)
    assert bench.once.found_total == 0
    # Without a key nothing can be known.
    bench.send(keyed("", b"two"))
    bench.send(keyed("", b"two"), is_repeat=True)
    assert bench.bodies() == [b"one", b"one", b"two", b"two"]


async def test_a_batch_whose_first_message_was_there_before_is_known_when_it_is_sent_again(
    tmp_path: Path,
) -> None:
    """Its key stood on that one; the rest, all of the same body, is stored once however often it comes."""
    bench = Bench(tmp_path)
    bench.publish("d", 1, b"1")
    batch = (
        marked("d", 1, b"1", key="K2"),
        marked("e", 7, b"1"),
        keyed("", b"1"),
        marked("d", 2, b"1"),
    )
    bench.send(*batch, has_packet_ids=True)
    assert len(bench.bodies()) == 4
    for _ in range(3):
        [answer] = bench.send(*batch, is_repeat=True, has_packet_ids=True)
        assert isinstance(answer, StoredBatch)
        assert len(bench.bodies()) == 4
        bench.restart()


async def test_of_a_batch_that_lost_its_end_the_rest_is_stored(tmp_path: Path) -> None:
    """As a power cut leaves it; what was stored since looks like the rest, and is another's."""
    bench = Bench(tmp_path)
    bench.send(keyed("K1", b"one"), keyed("", b"two"))
    bench.clock.advance(1)
    bench.send(keyed("K2", b"three"))
    whole = (keyed("K1", b"one"), keyed("", b"two"), keyed("", b"three"), keyed("", b"four"))
    bench.send(*whole, is_repeat=True)
    assert bench.bodies() == [b"one", b"two", b"three", b"three", b"four"]


async def test_the_rest_of_a_batch_is_known_when_it_is_sent_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.send(keyed("K1", b"one"))
    whole = (keyed("K1", b"one"), keyed("", b"one"), keyed("", b"two"))
    for _ in range(3):
        bench.send(*whole, is_repeat=True)
        assert bench.bodies() == [b"one", b"one", b"two"]
        bench.clock.advance(1)
        bench.restart()


async def test_batches_whose_messages_are_alike_are_told_apart_by_their_keys(tmp_path: Path) -> None:
    """Devices that all say the same within one millisecond."""
    bench = Bench(tmp_path)
    bench.send(keyed("K1", b"on"), keyed("", b"on"))
    bench.send(keyed("K2", b"on"))
    bench.send(keyed("K1", b"on"), keyed("", b"on"), is_repeat=True)
    bench.send(keyed("K3", b"on"), is_repeat=True)
    bench.send(keyed("K2", b"on"), is_repeat=True)
    assert bench.bodies() == [b"on"] * 4


@pytest.mark.slow
async def test_a_batch_whose_flush_is_late_is_not_stored_again_and_is_answered_by_the_flush(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, flush="sync")
    bench.disk_works.clear()
    first = bench.send(keyed("K1", b"one"))
    again = bench.send(keyed("K1", b"one"), is_repeat=True)
    bench.clock.advance(FLUSH_TIMEOUT_S + 1)
    bench.writer.time_out()
    await soon(lambda: bool(again), "the second is told to try again")
    [refused] = again
    assert isinstance(refused, RefusedBatch)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not first, "a patient sender waits"
    once_more = bench.send(keyed("K1", b"one"), is_repeat=True)
    bench.disk_works.set()
    await soon(lambda: bool(first) and bool(once_more), "both are answered by the flush")
    assert [answer.first_offset for answer in (*first, *once_more)] == [0, 0]  # type: ignore[union-attr]
    assert bench.bodies() == [b"one"]


# Packet ids


async def test_a_batch_that_is_sent_again_twice_while_the_disk_is_slow_is_stored_once(tmp_path: Path) -> None:
    """As by a sender whose second connection ended, too: both wait for what was appended before them."""
    bench = Bench(tmp_path, flush="sync")
    bench.disk_works.clear()
    bench.send(keyed("K0", b"before"))
    batch = (keyed("K1", b"one"), keyed("", b"two"))
    answers = [bench.send(*batch, is_repeat=True), bench.send(*batch, is_repeat=True)]
    other = bench.send(keyed("K2", b"other"), is_repeat=True)
    assert not any(answers)
    bench.disk_works.set()
    await soon(lambda: all((*answers, other)), "the disk has all of it")
    [[first], [second]] = answers
    assert isinstance(first, StoredBatch)
    assert isinstance(second, StoredBatch)
    assert first.first_offset == second.first_offset
    assert bench.bodies() == [b"before", b"one", b"two", b"other"]


class OneSyncBench(Bench):
    """Lets one sync through each time the disk is said to work, once it `is_slow`."""

    is_slow = False

    def sync_file(self, descriptor: int) -> None:
        super().sync_file(descriptor)
        if self.is_slow:
            self.disk_works.clear()


async def test_batches_sent_again_are_refused_past_the_limit_of_those_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REPEATS_UNCONFIRMED_MAX", 2)
    bench = OneSyncBench(tmp_path, flush="sync")
    bench.is_slow = True
    bench.disk_works.clear()
    bench.send(keyed("K0", b"before"))
    first, second, third = (bench.send(keyed(f"K{n}", b"%d" % n), is_repeat=True) for n in (1, 2, 3))
    bench.disk_works.set()
    await soon(lambda: third, "it is looked up, and the disk has not what the others appended")
    [refused] = third
    assert isinstance(refused, RefusedBatch)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "2 batches" in refused.remark
    assert not first
    assert not second
    bench.is_slow = False
    bench.disk_works.set()
    await soon(lambda: first and second, "the disk has them")
    again = bench.send(keyed("K3", b"3"), is_repeat=True)
    await soon(lambda: again, "there is room")
    assert isinstance(again[0], StoredBatch)
    assert bench.bodies() == [b"before", b"1", b"2", b"3"]


async def test_what_may_have_come_before_is_stored_once_until_it_is_released(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.publish("c", 5, b"one")
    bench.publish("c", 5, b"one")
    bench.restart()
    bench.publish("c", 5, b"one")
    # Another client's, another id's, and one whose first sending got lost.
    bench.publish("d", 5, b"two")
    bench.publish("c", 6, b"three")
    bench.release("c", 5)
    bench.restart()
    bench.publish("c", 5, b"four")
    bench.release("c", 5)
    bench.release("c", 5)
    bench.publish("c", 5, b"five")
    assert bench.bodies() == [b"one", b"two", b"three", b"four", b"five"]
    assert bench.received.count == 3


async def test_a_new_message_takes_over_a_packet_id_that_was_never_released(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.publish("c", 5, b"one")
    bench.publish("c", 5, b"two")
    bench.publish("c", 5, b"two")
    assert bench.bodies() == [b"one", b"two"]
    assert bench.received.count == 1


async def test_what_a_client_sends_again_without_dup_is_the_same_message(tmp_path: Path) -> None:
    """[MQTT-4.3.3-10]; another one under that id has another body or another topic."""
    bench = Bench(tmp_path)
    bench.publish("c", 5, b"on", topic="a")
    bench.publish("c", 5, b"on", topic="a")
    bench.publish("c", 5, b"on", topic="b")
    bench.publish("c", 5, b"on", topic="a")
    assert bench.bodies() == [b"on"] * 3


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_one_batch_may_have_a_message_of_two_connections_of_its_device(
    tmp_path: Path, flush: str
) -> None:
    bench = Bench(tmp_path, flush=flush)
    batch = (
        marked("c", 5, b"on", key="K"),
        marked("d", 5, b"on"),
        marked("c", 5, b"on"),
        marked("c", 5, b"off"),
        marked("c", 5, b"off"),
    )
    bench.send(*batch, has_packet_ids=True)
    again = bench.send(*batch, has_packet_ids=True, is_repeat=True)
    await soon(lambda: bool(again), "it is answered")
    bench.restart()
    assert bench.bodies() == [b"on", b"on", b"off"]


async def test_a_session_that_begins_takes_no_message_for_one_of_the_session_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for packet_id in range(1, 6):
        bench.publish("c", packet_id, b"on")
    bench.publish("d", 1, b"on")
    bench.once.forget("c", now_ms=1)
    bench.received.check_invariants()
    end_position = bench.store.appended_position
    bench.once.forget("c", now_ms=1)
    bench.once.forget("nobody", now_ms=1)
    assert bench.store.appended_position == end_position
    bench.publish("c", 1, b"on")
    bench.restart()
    bench.publish("c", 2, b"on")
    bench.publish("d", 1, b"on")
    assert bench.bodies() == [b"on"] * 8


async def test_a_packet_id_counts_from_the_append_on_not_from_the_flush(tmp_path: Path) -> None:
    bench = Bench(tmp_path, flush="sync")
    bench.disk_works.clear()
    element = [marked("c", 5, b"one"), marked("c", 5, b"one")]
    first = bench.send(element[0], has_packet_ids=True)
    again = bench.send(element[1], has_packet_ids=True)
    assert not first
    assert not again, "it is not durable yet"
    bench.disk_works.set()
    await soon(lambda: bool(first) and bool(again), "both are answered")
    released: list[StoredBatch | RefusedBatch] = []
    bench.disk_works.clear()
    bench.once.release(encode_release(b"c", 5), released.append, now_ms=1)
    third = bench.send(element[1], has_packet_ids=True)
    assert not released
    bench.disk_works.set()
    await soon(lambda: bool(released) and bool(third), "all are answered")
    bench.received.check_invariants()
    assert bench.bodies() == [b"one", b"one"]


async def test_a_client_that_begins_anew_loses_its_packet_ids_and_nobody_elses(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for client in ("c", "cc", "d"):
        for packet_id in (1, 2):
            bench.publish(client, packet_id, b"x")
    bench.received.write_out()
    bench.publish("c", 3, b"x")
    bench.release("c", received_ids.ALL)
    assert bench.received.count == 4
    assert bench.received.number(b"c\x001") is None
    assert bench.received.number(b"cc\x001") is not None


async def test_a_repeated_batch_with_packet_ids_stores_neither_twice(tmp_path: Path) -> None:
    """The answer got lost; of its messages one had come before, and was left out."""
    bench = Bench(tmp_path)
    bench.publish("c", 1, b"old")
    batch = (
        marked("c", 1, b"old"),
        marked("c", 2, b"lost"),
        marked("c", 3, b"new", key="K"),
        marked("c", 4, b"after"),
    )
    bench.send(*batch, has_packet_ids=True)
    bench.send(*batch, has_packet_ids=True, is_repeat=True)
    bench.restart()
    bench.send(*batch, has_packet_ids=True, is_repeat=True)
    assert bench.bodies() == [b"old", b"lost", b"new", b"after"]


async def test_while_the_database_is_closed_nobody_is_told_what_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    bench.publish("d", 7, b"one")
    bench.received.sync()
    key_values = bench.store.key_values()
    answers: list[StoredBatch | RefusedBatch] = []
    elements = marked("d", 7, b"one") + marked("d", 9, b"two")

    def refuse() -> None:
        raise StoreFullError("No space left")

    with monkeypatch.context() as patch:
        patch.setattr(key_values, "_open", refuse)
        with pytest.raises(StoreFullError):
            key_values.reopen()
        bench.once.append(
            ("T",), elements, lambda elements, *, done: None, answers.append,
            is_repeat=False, has_packet_ids=True,
        )  # fmt: skip
        bench.once.release(encode_release(b"d", 7), answers.append, now_ms=1)
        with pytest.raises(StoreError):
            bench.once.forget("d", now_ms=1)
    assert [type(answer) for answer in answers] == [RefusedBatch, RefusedBatch]
    assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}  # type: ignore[union-attr]
    key_values.reopen()
    [answer] = bench.send(elements, has_packet_ids=True)
    assert isinstance(answer, RefusedBatch), "what was applied is not known yet"
    bench.store.retain()
    [answer] = bench.send(elements, has_packet_ids=True)
    assert isinstance(answer, StoredBatch)
    assert bench.bodies() == [b"one", b"two"]


async def test_after_the_database_was_opened_again_nothing_is_forgotten(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ids_max=1000)
    names = [b"%032x" % number for number in random.Random(1).sample(range(1 << 60), 200)]
    for name in names:
        bench.publish(name.decode(), 7, b"one")
    bench.publish("d", 7, b"one")
    bench.publish("d", 8, b"on")
    bench.received.write_out()
    key_values = bench.store.key_values()
    with files_end_at(4096), pytest.raises(StoreFullError):
        key_values.space("received_ids").flush(wait=True)
    # As another of its projections does: what was written and not flushed is not in it any more.
    key_values.reopen()
    answers = bench.send(marked("d", 7, b"one"), has_packet_ids=True)
    bench.once.release(encode_release(b"d", 8), answers.append, now_ms=1)
    assert [type(answer) for answer in answers] == [RefusedBatch, RefusedBatch]
    assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}  # type: ignore[union-attr]
    bench.store.retain()
    bench.publish("d", 7, b"one")
    bench.release("d", 8)
    # Another message, which is like the one before.
    bench.publish("d", 8, b"on")
    assert bench.bodies()[200:] == [b"one", b"on", b"on"]


@pytest.mark.parametrize("body", [b"\0", b"\0\5abc", b"\0\1c\0"])
async def test_a_release_that_is_none_is_refused(tmp_path: Path, body: bytes) -> None:
    bench = Bench(tmp_path)
    answers: list[StoredBatch | RefusedBatch] = []
    bench.once.release(body, answers.append, now_ms=1)
    [answer] = answers
    assert isinstance(answer, RefusedBatch)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("is_written", [False, True])
async def test_packet_ids_at_their_limit_and_past_it(tmp_path: Path, is_written: bool) -> None:
    bench = Bench(tmp_path, ids_max=3)
    for packet_id in (1, 2, 3):
        bench.publish("c", packet_id, b"x")
    if is_written:
        bench.received.write_out()
    assert bench.received.count == 3
    assert bench.received.forgotten_total == 0
    bench.publish("c", 4, b"x")
    known = [number for number in (1, 2, 3, 4) if bench.received.number(b"c\x00%d" % number) is not None]
    assert known == [2, 3, 4]
    assert bench.received.forgotten_total == 1
    bench.received.write_out()
    bench.received.check_invariants()


async def test_past_the_limit_packet_ids_that_were_forgotten_are_not_passed_over_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, ids_max=100)
    passed = 0
    scan = bench.received._space.scan

    def counted(start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        nonlocal passed
        for item in scan(start, stop):
            passed += 1
            yield item

    for packet_id in range(1, 101):
        bench.publish("c", packet_id, b"x")
    bench.received.write_out()
    with monkeypatch.context() as patch:
        patch.setattr(bench.received._space, "scan", counted)
        # Which looks at everything.
        patch.setattr(bench.received, "check_invariants", lambda: None)
        for packet_id in range(101, 301):
            bench.publish("c", packet_id, b"x")
    assert bench.received.forgotten_total == 200
    # Each finds the one it forgets, or the last one of the database.
    assert passed <= 2 * bench.received.forgotten_total
    known = [number for number in range(1, 301) if bench.received.number(b"c\x00%d" % number) is not None]
    assert known == list(range(201, 301))
    bench.received.write_out()
    bench.received.check_invariants()


@pytest.mark.parametrize("is_written", [False, True])
async def test_packet_ids_that_the_log_has_lost_are_unknown_at_once_and_go_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    monkeypatch.setattr(marks, "TRIMMED_AT_ONCE", 10)
    bench = Bench(tmp_path)
    for packet_id in range(1, 26):
        bench.publish("c", packet_id, b"x")
    kept_position = bench.store.appended_position
    bench.publish("c", 26, b"x")
    if is_written:
        bench.received.write_out()
    bench.received.trim(kept_position)

    def known() -> list[int]:
        return [number for number in range(1, 40) if bench.received.number(b"c\x00%d" % number) is not None]

    assert (known(), bench.received.count) == ([26], 26)
    # Under an id that is unknown comes another message, and what is known is there still.
    counts = []
    for packet_id in (1, 26, 31, 32, 33):
        bench.publish("c", packet_id, b"x")
        counts.append(bench.received.count)
    assert counts == [17, 17, 8, 4, 5]
    assert known() == [1, 26, 31, 32, 33]
    assert len(bench.bodies()) == 30
    bench.received.write_out()
    bench.received.check_invariants()
    bench.restart()
    assert known() == [1, 26, 31, 32, 33]


async def test_bytes_of_packet_ids_at_their_limit_and_past_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, bytes_max=2 * (2 * len(b"client\x001") + 64))
    bench.publish("client", 1, b"x")
    bench.publish("client", 2, b"x")
    assert bench.received.count == 2
    bench.publish("client", 3, b"x")
    assert bench.received.count == 2
    assert bench.received.number(b"client\x001") is None


def test_a_release_of_one_request_fits_a_record() -> None:
    assert limits.RELEASED_BODY_BYTES_MAX <= limits.RECORD_BYTES_MAX // 2
