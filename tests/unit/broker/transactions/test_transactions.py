"""Transactions over a real store: halves, ends, checks, limits, and every step a kill may come after."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from eventually import soon
from transaction_bench import (
    CHECK_INTERVAL_S,
    COMMIT,
    HOST,
    ROLLBACK,
    UNKNOWN,
    Bench,
    FakeConnection,
    open_bench,
)

from iotmq import limits
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.topics import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_CHECKS_MAX_TOPIC,
)
from iotmq.broker.transactions import transactions
from iotmq.broker.transactions.half_messages import (
    COPY_PROPERTIES_BYTES,
    half_properties,
    is_prepared,
    parse_half,
    read_op,
)
from iotmq.broker.transactions.transactions import CURSOR_GROUP, State
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.errors import RequestError
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import decode_record
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.store.store import Store


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = await open_bench(tmp_path)
    yield bench
    await bench.close()


def cursors(bench: Bench) -> tuple[int | None, int | None]:
    return (
        bench.offsets.find(CURSOR_GROUP, HALF_TOPIC, 0),
        bench.offsets.find(CURSOR_GROUP, OP_HALF_TOPIC, 0),
    )


def flush(bench: Bench) -> None:
    bench.store._flusher.flush()
    bench.store.advance()


def move_cursors(bench: Bench) -> None:
    """What time and the flush thread do."""
    for _ in range(2):
        bench.transactions.note_progress()
        flush(bench)
    bench.transactions.note_progress()


async def test_a_prepared_message_waits_in_the_half_topic(bench: Bench) -> None:
    answer = bench.prepare(b"half", properties="TAGS\x01TagA\x02")
    assert answer.code == 0
    assert answer.ext["transactionId"] == "K1"
    assert answer.ext["queueId"] == "1"
    assert bench.bodies() == []
    (record,) = bench.records(HALF_TOPIC, 0)
    assert record.body == b"half"
    assert record.sys_flag & 12 == 0
    assert (record.flag, record.queue_offset) == (7, int(answer.ext["queueOffset"]))
    assert decode_properties(record.properties) == {
        "UNIQ_KEY": "K1",
        "TRAN_MSG": "true",
        "PGROUP": "pg",
        "TAGS": "TagA",
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
        "CLUSTER": "C",
    }


async def test_a_commit_delivers_the_message_and_writes_its_op_record(bench: Bench) -> None:
    bench.prepare(b"other")
    prepared = bench.prepare(b"body", properties="TAGS\x01TagA\x02", key="K2")
    (half,) = bench.records(HALF_TOPIC, 0)[1:]
    assert bench.end(prepared, COMMIT).code == 0
    (record,) = bench.records()
    assert record.body == b"body"
    assert record.sys_flag & 12 == 8
    assert record.prepared_position == half.position
    assert (record.flag, record.born_timestamp_ms) == (7, 1_700_000_000_000)
    assert decode_properties(record.properties) == {
        "UNIQ_KEY": "K2",
        "PGROUP": "pg",
        "TAGS": "TagA",
        "CLUSTER": "C",
        # A Java consumer has no transaction id without this; the others stay with it, as in the original.
        "TRAN_MSG": "true",
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
    }
    assert record.properties == half.properties
    (op,) = bench.records(OP_HALF_TOPIC, 0)
    assert (op.body, op.properties, op.born_host) == (b"1", b"WAIT\x01true\x02TAGS\x01d", HOST)
    assert [pending.offset for pending in bench.transactions.pending()] == [0]


async def test_a_rollback_delivers_nothing(bench: Bench) -> None:
    assert bench.end(bench.prepare(), ROLLBACK).code == 0
    assert bench.bodies() == []
    assert [record.body for record in bench.records(OP_HALF_TOPIC, 0)] == [b"0"]
    assert len(bench.transactions) == 0


async def test_an_undecided_end_changes_nothing(bench: Bench) -> None:
    prepared = bench.prepare()
    assert bench.end(prepared, UNKNOWN).code == 0
    assert len(bench.transactions) == 1
    assert bench.handler.undecided_count == 1
    assert bench.end(prepared, COMMIT).code == 0


async def test_an_end_may_come_twice_but_counts_once(bench: Bench) -> None:
    prepared = bench.prepare(b"once")
    for _ in range(3):
        assert bench.end(prepared, COMMIT).code == 0
    assert bench.bodies() == [b"once"]
    late = bench.end(prepared, ROLLBACK)
    assert (late.code, late.remark) == (1, "this transaction was committed")
    other = bench.prepare()
    bench.end(other, ROLLBACK)
    assert bench.end(other, COMMIT).remark == "this transaction was rolled back"
    assert bench.bodies() == [b"once"]


async def test_a_check_waits_for_the_disk_off_the_loop_and_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.join("c1", bench.connection, "pg")
    bench.prepare()
    may_go_on = threading.Event()

    def cold_steps(position: int) -> Iterator[Any]:
        yield "what is not in memory"
        return bench.store.read_record(position)

    def load(plan: Any) -> None:
        assert may_go_on.wait(30)

    monkeypatch.setattr(bench.store, "record_steps", cold_steps)
    monkeypatch.setattr(bench.store, "load", load)
    for _ in range(3):
        bench.check()
    assert bench.broker.parts.cold_reads.waiting_count == 1
    assert bench.checks.checks_count == 0
    may_go_on.set()
    await soon(lambda: bench.checks.checks_count == 1, "the question")
    assert bench.checks._reading == set()
    bench.transactions.check_invariants()


async def test_only_so_many_ends_are_remembered(bench: Bench) -> None:
    assert bench.transactions._ended_max == limits.TRANSACTIONS_ENDED_REMEMBERED_MAX
    bench.transactions._ended_max = 2
    prepared = [bench.prepare() for _ in range(3)]
    for each in prepared:
        bench.end(each, ROLLBACK)
    assert [(await bench.end_later(each, ROLLBACK)).code for each in prepared] == [1, 0, 0]
    assert [(await bench.end_later(each, COMMIT)).code for each in prepared] == [1, 1, 1]
    assert bench.bodies() == []


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"producerGroup": "other"}, "producerGroup"),
        ({"producerGroup": "-"}, "producerGroup"),
        ({"tranStateTableOffset": "5"}, "tranStateTableOffset"),
        ({"tranStateTableOffset": "-"}, "tranStateTableOffset"),
        ({"tranStateTableOffset": "x"}, "tranStateTableOffset"),
        ({"commitLogOffset": "1"}, "commitLogOffset"),
        ({"commitLogOffset": "-1"}, "commitLogOffset"),
        ({"commitLogOffset": "-"}, "commitLogOffset"),
        ({"commitLogOffset": str(2**63 - 1)}, "commitLogOffset"),
        ({"commitOrRollback": "4"}, "commitOrRollback"),
        ({"commitOrRollback": "-"}, "commitOrRollback"),
        ({"fromTransactionCheck": "maybe"}, "fromTransactionCheck"),
        ({"msgId": "-"}, "msgId"),
    ],
)
async def test_an_end_that_does_not_fit_is_refused(bench: Bench, fields: dict[str, str], remark: str) -> None:
    prepared = bench.prepare()
    answer = bench.end(prepared, COMMIT, **fields)
    assert answer.code == 1
    assert remark in (answer.remark or "")
    assert bench.bodies() == []
    assert bench.handler.refused_count == 1
    assert bench.end(prepared, COMMIT).code == 0


async def test_an_end_of_a_record_that_is_no_half_is_refused(bench: Bench) -> None:
    """Or anybody could have any record delivered again."""
    bench.end(bench.prepare(), COMMIT)
    (record,) = bench.records()
    answer = bench.end(
        bench.prepare(), COMMIT, tranStateTableOffset="0", commitLogOffset=str(record.position)
    )
    assert (answer.code, "where no prepared message starts" in (answer.remark or "")) == (1, True)
    assert len(bench.bodies()) == 1


async def test_an_end_nobody_wants_an_answer_to_works_as_well(bench: Bench) -> None:
    prepared = bench.prepare(b"quiet")
    request = Command.request(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "pg",
            "tranStateTableOffset": prepared.ext["queueOffset"],
            "commitLogOffset": str(bench.records(HALF_TOPIC, 0)[0].position),
            "commitOrRollback": "8",
            "msgId": "K1",
        },
        oneway=True,
    )
    assert bench.request(request).code == -1
    assert bench.bodies() == [b"quiet"]


async def test_a_committed_message_waits_for_its_delay(bench: Bench) -> None:
    bench.end(bench.prepare(b"late", properties="DELAY\x012\x02"), COMMIT)
    assert bench.bodies() == []
    (record,) = bench.records(SCHEDULE_TOPIC, 1)
    assert decode_properties(record.properties)["REAL_TOPIC"] == "T"
    bench.clock.advance(5)
    bench.broker.expire()
    assert bench.bodies() == [b"late"]


async def test_what_only_brokers_may_say_is_taken_out_of_a_prepared_message(bench: Bench) -> None:
    """A forged first offset would end somebody else's transaction."""
    first = bench.prepare(b"first")
    bench.prepare(
        b"forged",
        properties="TRAN_PREPARED_QUEUE_OFFSET\x010\x02TRANSACTION_CHECK_TIMES\x0199\x02REAL_TOPIC\x01X\x02",
    )
    assert len(bench.transactions) == 2
    await bench.restart()
    assert len(bench.transactions) == 2
    assert bench.end(first, COMMIT).code == 0
    assert bench.bodies() == [b"first"]


async def test_a_batch_cannot_be_prepared(bench: Bench) -> None:
    assert bench.prepare(m="true").code == 13


async def test_properties_without_room_for_those_of_a_half_are_refused(bench: Bench) -> None:
    fixed = len("UNIQ_KEY\x01K1\x02TRAN_MSG\x01true\x02PGROUP\x01pg\x02x\x01\x02")
    added = len("REAL_TOPIC\x01T\x02REAL_QID\x011" + "CLUSTER\x01C")
    room = limits.PROPERTIES_BYTES_MAX - fixed - added - COPY_PROPERTIES_BYTES
    assert bench.prepare(properties=f"x\x01{'v' * room}\x02").code == 0
    assert bench.prepare(properties=f"x\x01{'v' * (room + 1)}\x02").code == 13
    # What was taken can be copied.
    bench.check()
    (pending,) = bench.transactions.pending()
    assert pending.check_times == 1


async def test_a_message_that_cannot_wait_for_its_time_stays_open(bench: Bench) -> None:
    prepared = bench.prepare(b"body")

    def refuse(topic: str, queue_id: int, properties: bytes) -> tuple[str, int, bytes]:
        raise RequestError(13, "no room to wait")

    divert, bench.transactions._divert = bench.transactions._divert, refuse
    assert bench.end(prepared, COMMIT).code == 13
    bench.transactions._divert = divert
    assert bench.end(prepared, COMMIT).code == 0
    assert bench.bodies() == [b"body"]


async def test_so_many_may_be_pending_and_no_more(tmp_path: Path) -> None:
    assert BrokerSettings().transactions_pending_max == limits.TRANSACTIONS_PENDING_MAX
    bench = await open_bench(tmp_path, transactions_pending_max=3)
    prepared = [bench.prepare() for _ in range(3)]
    refused = bench.prepare()
    assert refused.code == 14
    assert "3 transactions" in (refused.remark or "")
    assert bench.transactions.refused_count == 1
    assert bench.end(prepared[0], COMMIT).code == 0
    assert bench.prepare().code == 0
    assert bench.prepare().code == 14
    # More than the maximum may be found at the start: none of them is dropped.
    bench.settings["transactions_pending_max"] = 2
    await bench.restart()
    assert len(bench.transactions) == 3
    assert bench.prepare().code == 14
    await bench.close()


def test_what_makes_a_send_a_prepared_one() -> None:
    assert is_prepared(b"TRAN_MSG\x01true\x02", 0)
    assert is_prepared(b"TRAN_MSG\x01TRUE", 0)
    assert is_prepared(b"", 4 | 1)
    assert not is_prepared(b"TRAN_MSG\x01false\x02", 8)
    assert not is_prepared(b"KEYS\x01TRAN_MSG\x02", 12)


def test_halves_of_brokers_of_the_java_kind_are_read() -> None:
    properties = half_properties("T", 3, b"PGROUP\x01pg\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0130")
    half = parse_half(properties + b"\x02TRAN_PREPARED_QUEUE_OFFSET\x01-1\x02", 9)
    assert half is not None
    assert half == (9, "T", 3, "pg", 0, 30_000)
    assert parse_half(properties + b"\x02TRAN_PREPARED_QUEUE_OFFSET\x01" + b"9" * 19 + b"\x02", 9) == half
    assert parse_half(b"REAL_TOPIC\x01T\x02", 0) is None
    assert parse_half(b"REAL_QID\x010\x02", 0) is None


def put_op(bench: Bench, body: bytes, properties: bytes = b"TAGS\x01d") -> None:
    """An op record as another broker may have left it."""
    bench.writer.append(
        OP_HALF_TOPIC,
        0,
        encode_element(body, properties, 0),
        born_timestamp_ms=0,
        born_host=HOST,
        done=lambda result: None,
        is_internal=True,
    )


@pytest.mark.parametrize("with_cursors", [False, True])
async def test_the_op_record_of_a_first_half_ends_its_copies(bench: Bench, with_cursors: bool) -> None:
    bench.prepare()
    bench.prepare(key="K2")
    bench.check()
    put_op(bench, b"0")
    if with_cursors:
        # Both first halves are behind it, and only the op record's own offset says what it is about.
        bench.offsets.commit(CURSOR_GROUP, HALF_TOPIC, 0, 2)
        bench.save_offsets()
    await bench.restart()
    assert [(pending.first_offset, pending.offset) for pending in bench.transactions.pending()] == [(1, 3)]


async def test_op_records_with_several_offsets_are_read(bench: Bench) -> None:
    prepared = [bench.prepare() for _ in range(4)]
    put_op(bench, b"0, 2,x,")
    put_op(bench, b"1", b"TAGS\x01other")
    put_op(bench, b"99999999,-3," + b"9" * 30)
    assert [read_op(record) for record in bench.records(OP_HALF_TOPIC, 0)] == [[0, 2], [], [99999999]]
    await bench.restart()
    assert [pending.offset for pending in bench.transactions.pending()] == [1, 3]
    assert bench.end(prepared[3], COMMIT).code == 0


# --- checks -----------------------------------------------------------------------------------------


async def test_a_producer_is_asked_about_what_it_has_not_ended(bench: Bench) -> None:
    bench.add_producer("p1")
    bench.prepare(b"asked", properties="TAGS\x01A\x02")
    bench.clock.advance(5.9)
    bench.checks.check()
    assert bench.asked("p1") == []
    bench.clock.advance(0.1)
    bench.checks.check()
    (question,) = bench.asked("p1")
    assert question.is_oneway
    copy = bench.records(HALF_TOPIC, 0)[1]
    assert question.ext == {
        "tranStateTableOffset": "1",
        "commitLogOffset": str(copy.position),
        "msgId": "K1",
        "transactionId": "K1",
        "offsetMsgId": f"{HOST.hex().upper()}{copy.position:016X}",
    }
    shown = decode_record(question.body_bytes())
    assert (shown.topic, shown.queue_id, shown.body) == ("T", 1, b"asked")
    assert (shown.queue_offset, shown.position) == (1, copy.position)
    assert decode_properties(shown.properties)["TRANSACTION_CHECK_TIMES"] == "1"
    assert decode_properties(copy.properties)["TRANSACTION_CHECK_TIMES"] == "1"
    assert bench.end(question, COMMIT, fromTransactionCheck="true").code == 0
    assert bench.bodies() == [b"asked"]
    bench.check()
    assert bench.asked("p1") == []


async def test_the_producers_of_a_group_are_asked_in_turn(bench: Bench) -> None:
    for name in ("p1", "p2"):
        bench.add_producer(name)
    bench.add_producer("dead").is_closed = True
    bench.prepare()
    asked = []
    for _ in range(4):
        bench.check()
        asked.append([name for name in bench.producers for _ in bench.asked(name)])
    assert asked in ([["p1"], ["p2"]] * 2, [["p2"], ["p1"]] * 2)
    assert bench.checks.checks_count == 4


async def test_producers_that_do_not_read_are_left_alone(bench: Bench) -> None:
    """What is sent to them would fill memory, until the connection is closed."""
    slow, other = bench.add_producer("slow"), bench.add_producer("other")
    bench.prepare()
    slow.is_congested = True
    for _ in range(2):
        bench.check()
        assert len(bench.asked("other")) == 1
    other.is_congested = True
    bench.check()
    assert bench.asked("slow") == bench.asked("other") == []
    assert bench.checks.put_off_count == 1
    # It does not count as a check, of which there are only so many.
    (pending,) = bench.transactions.pending()
    assert pending.check_times == 2
    slow.is_congested = False
    bench.check()
    assert len(bench.asked("slow")) == 1


async def test_other_groups_are_not_asked(bench: Bench) -> None:
    other = FakeConnection()
    bench.join("o", other, "other")
    bench.prepare()
    bench.check()
    assert other.said == []
    assert bench.checks.unasked_count == 1


async def test_a_message_may_ask_for_more_time(bench: Bench) -> None:
    bench.add_producer("p1")
    bench.prepare(properties="CHECK_IMMUNITY_TIME_IN_SECONDS\x01100\x02")
    bench.prepare(properties="CHECK_IMMUNITY_TIME_IN_SECONDS\x01-1\x02", key="usual")
    bench.check(after_s=99)
    assert [question.ext["msgId"] for question in bench.asked("p1")] == ["usual"]
    bench.check(after_s=1)
    assert [question.ext["msgId"] for question in bench.asked("p1")] == ["K1", "usual"]


async def test_an_end_by_the_offsets_of_any_copy_counts(bench: Bench) -> None:
    """An application that commits late, after it was asked twice, need not wait to be asked."""
    bench.add_producer("p1")
    prepared = bench.prepare(b"late")
    bench.check()
    (first,) = bench.asked("p1")
    bench.check()
    (second,) = bench.asked("p1")
    assert bench.end(first, COMMIT).code == 0
    assert bench.end(second, COMMIT).code == 0
    assert bench.end(prepared, COMMIT).code == 0
    assert bench.bodies() == [b"late"]
    await bench.restart()
    assert len(bench.transactions) == 0


async def test_after_too_many_checks_the_half_goes_to_another_topic(bench: Bench) -> None:
    bench.add_producer("p1")
    prepared = bench.prepare(b"never")
    for count in range(1, 16):
        bench.check()
        (question,) = bench.asked("p1")
        times = decode_properties(decode_record(question.body_bytes()).properties)["TRANSACTION_CHECK_TIMES"]
        assert times == str(count)
    bench.check()
    assert bench.asked("p1") == []
    (record,) = bench.records(TRANSACTION_CHECKS_MAX_TOPIC, 0)
    assert record.body == b"never"
    assert decode_properties(record.properties)["REAL_TOPIC"] == "T"
    assert bench.transactions.given_up_count == 1
    late = bench.end(prepared, COMMIT)
    assert (late.code, "given up" in (late.remark or "")) == (1, True)
    await bench.restart()
    bench.check()
    assert len(bench.records(TRANSACTION_CHECKS_MAX_TOPIC, 0)) == 1


async def test_checks_count_when_nobody_is_there_to_be_asked(bench: Bench) -> None:
    bench.settings["transaction_checks_max"] = 2
    await bench.restart()
    bench.prepare()
    for _ in range(3):
        bench.check()
    assert len(bench.records(TRANSACTION_CHECKS_MAX_TOPIC, 0)) == 1
    assert bench.checks.unasked_count == 2


async def test_the_number_of_checks_is_kept_across_starts(bench: Bench) -> None:
    bench.settings["transaction_checks_max"] = 2
    await bench.restart()
    bench.prepare()
    for _ in range(3):
        bench.check()
        await bench.restart()
    assert len(bench.records(TRANSACTION_CHECKS_MAX_TOPIC, 0)) == 1
    assert len(bench.transactions) == 0


async def test_what_is_older_than_the_log_keeps_messages_is_given_up(bench: Bench) -> None:
    bench.add_producer("p1")
    bench.prepare(properties="CHECK_IMMUNITY_TIME_IN_SECONDS\x01999999999\x02")
    bench.check(after_s=72 * 3600 - 1)
    assert bench.records(TRANSACTION_CHECKS_MAX_TOPIC, 0) == []
    bench.check(after_s=1)
    assert len(bench.records(TRANSACTION_CHECKS_MAX_TOPIC, 0)) == 1
    assert bench.asked("p1") == []


async def test_a_log_that_keeps_nothing_ends_no_transaction_unasked(bench: Bench) -> None:
    bench.store_settings = msgspec.structs.replace(bench.store_settings, retention_hours=0)
    bench.settings["transaction_checks_max"] = 2
    await bench.restart()
    bench.add_producer("p1")
    bench.prepare(b"open")
    prepared = bench.prepare(b"ended", key="K2")
    for _ in range(2):
        bench.check()
        assert [question.ext["msgId"] for question in bench.asked("p1")] == ["K1", "K2"]
    assert (await bench.end_later(prepared, COMMIT)).code == 0
    bench.check()
    assert len(bench.records(TRANSACTION_CHECKS_MAX_TOPIC, 0)) == 1
    assert bench.bodies() == [b"ended"]


async def test_a_given_up_half_can_be_taken_up_again(bench: Bench) -> None:
    bench.settings["transaction_checks_max"] = 1
    await bench.restart()
    bench.add_producer("p1")
    bench.prepare(b"again")
    bench.check()
    bench.asked("p1")
    bench.check()
    (given_up,) = bench.records(TRANSACTION_CHECKS_MAX_TOPIC, 0)
    message_id = f"{HOST.hex().upper()}{given_up.position:016X}"
    answer = bench.request(
        Command.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id, "topic": "T"})
    )
    assert answer.code == 0
    bench.check()
    (question,) = bench.asked("p1")
    assert (
        decode_properties(decode_record(question.body_bytes()).properties)["TRANSACTION_CHECK_TIMES"] == "1"
    )
    await bench.restart()
    assert bench.end(question, COMMIT).code == 0
    assert bench.bodies() == [b"again"]


@pytest.mark.parametrize("message_id", ["", "-", "x", "7F00000100002A9F0000000000000000", "0" * 32])
async def test_what_was_not_given_up_cannot_be_taken_up_again(bench: Bench, message_id: str) -> None:
    bench.prepare()
    ext = {} if message_id == "-" else {"msgId": message_id}
    answer = bench.request(Command.request(RequestCode.RESUME_CHECK_HALF_MESSAGE, ext))
    assert answer.code == 1
    assert "msgId" in (answer.remark or "")
    assert len(bench.transactions) == 1


async def test_many_transactions_are_seen_to_in_turns(bench: Bench) -> None:
    bench.add_producer("p1")
    for number in range(600):
        bench.prepare(key=f"K{number}")
    bench.clock.advance(CHECK_INTERVAL_S)
    bench.checks.check()
    assert 0 < len(bench.producers["p1"].said) < 600
    bench.finish_round()
    assert len({question.ext["msgId"] for question in bench.asked("p1")}) == 600


async def test_a_full_disk_puts_checks_and_ends_off(bench: Bench) -> None:
    bench.add_producer("p1")
    prepared = bench.prepare(b"later")
    bench.writer.close("no room")
    bench.check()
    assert bench.asked("p1") == []
    assert bench.end(prepared, COMMIT).code == 14
    assert bench.end(prepared, ROLLBACK).code == 14
    assert bench.prepare().code == 14
    bench.writer.open()
    bench.writer._refused_until_s = 0
    bench.check()
    assert len(bench.asked("p1")) == 1
    assert bench.end(prepared, COMMIT).code == 0
    assert bench.bodies() == [b"later"]


async def test_an_op_record_that_could_not_be_written_is_written_later(bench: Bench) -> None:
    prepared = bench.prepare(b"once")
    bench.gate.refused_topic = OP_HALF_TOPIC
    assert bench.end(prepared, COMMIT).code == 14
    assert bench.bodies() == [b"once"]
    (pending,) = bench.transactions.pending()
    assert pending.state is State.OP_OWED
    assert bench.end(prepared, ROLLBACK).code == 1
    bench.check()
    assert len(bench.transactions) == 1
    bench.gate.refused_topic = ""
    bench.check()
    assert len(bench.transactions) == 0
    assert bench.bodies() == [b"once"]
    assert bench.end(prepared, COMMIT).code == 0
    await bench.restart()
    assert len(bench.transactions) == 0


@pytest.mark.damaged_store
async def test_a_half_the_log_has_lost_is_counted_and_forgotten(bench: Bench) -> None:
    bench.prepare()
    (pending,) = bench.transactions.pending()
    pending.position += 1
    bench.check()
    assert bench.checks.lost_count == 1
    assert len(bench.transactions) == 0


async def test_a_half_in_the_oldest_file_of_the_log_is_written_again(tmp_path: Path) -> None:
    """It would be deleted with the file, long before somebody may be asked about it."""
    bench = await open_bench(tmp_path)
    prepared = bench.prepare(b"kept", properties="CHECK_IMMUNITY_TIME_IN_SECONDS\x0186400\x02")
    bench.check()
    assert len(bench.records(HALF_TOPIC, 0)) == 1
    for _ in range(9):
        bench.prepare(b"x" * (2 << 20), properties="CHECK_IMMUNITY_TIME_IN_SECONDS\x0186400\x02")
    bench.check()
    (pending, *_) = bench.transactions.pending()
    assert pending.position > 16 << 20
    assert pending.check_times == 0
    await bench.restart()
    assert len(bench.transactions) == 10
    assert bench.end(prepared, COMMIT).code == 0
    assert bench.bodies() == [b"kept"]
    await bench.close()


# --- starts -----------------------------------------------------------------------------------------


async def test_a_start_finds_what_is_pending(bench: Bench) -> None:
    prepared = [bench.prepare(b"%d" % number, key=f"K{number}") for number in range(6)]
    for number, outcome in ((1, COMMIT), (3, ROLLBACK), (4, COMMIT)):
        bench.end(prepared[number], outcome)
    await bench.restart()
    assert [pending.offset for pending in bench.transactions.pending()] == [0, 2, 5]
    assert bench.end(prepared[1], COMMIT).code == 0
    assert bench.end(prepared[3], ROLLBACK).remark == "this transaction has ended before"
    for number in (0, 2, 5):
        assert bench.end(prepared[number], COMMIT).code == 0
    assert bench.bodies() == [b"1", b"4", b"0", b"2", b"5"]


async def test_a_transaction_keeps_its_age_across_a_start(bench: Bench) -> None:
    bench.add_producer("p1")
    bench.prepare()
    bench.clock.advance(5)
    await bench.restart()
    bench.check(after_s=0.9)
    assert bench.asked("p1") == []
    bench.check(after_s=0.1)
    assert len(bench.asked("p1")) == 1


async def test_cursors_move_past_what_has_ended_and_is_on_the_disk(tmp_path: Path) -> None:
    bench = await open_bench(tmp_path)
    prepared = [bench.prepare() for _ in range(4)]
    bench.end(prepared[1], COMMIT)
    bench.end(prepared[0], COMMIT)
    bench.transactions.note_progress()
    bench.transactions.note_progress()
    assert cursors(bench) == (None, None)
    move_cursors(bench)
    # Both op records may be about halves from 2 on, for all that is known of them.
    assert cursors(bench) == (2, 0)
    bench.end(prepared[3], COMMIT)
    move_cursors(bench)
    assert cursors(bench) == (2, 0)
    bench.end(prepared[2], ROLLBACK)
    move_cursors(bench)
    assert cursors(bench) == (4, 4)
    bench.prepare()
    move_cursors(bench)
    assert cursors(bench) == (4, 4)
    bench.save_offsets()
    await bench.restart()
    assert [pending.offset for pending in bench.transactions.pending()] == [4]
    await bench.close()


class _NotConfirmed:
    """A store whose last bytes are on the disk, and at no other member."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.confirmed_position = store.appended_position - 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_cursors_wait_for_the_other_members(bench: Bench) -> None:
    bench.end(bench.prepare(), COMMIT)
    flush(bench)
    store: Any = _NotConfirmed(bench.store)
    bench.transactions._store = store
    move_cursors(bench)
    assert cursors(bench) == (None, None)
    store.confirmed_position += 1
    move_cursors(bench)
    assert cursors(bench) == (1, 1)


async def test_the_places_of_the_op_cursor_stay_few(bench: Bench) -> None:
    bench.prepare()
    for _ in range(transactions._MARKS_MAX + 10):
        bench.end(bench.prepare(), COMMIT)
        bench.transactions._find_cursors(*queues(bench))
    assert len(bench.transactions._marks) <= transactions._MARKS_MAX
    move_cursors(bench)
    bench.save_offsets()
    await bench.restart()
    assert [pending.offset for pending in bench.transactions.pending()] == [0]


def queues(bench: Bench) -> tuple[object, object]:
    return bench.store.queue(HALF_TOPIC, 0), bench.store.queue(OP_HALF_TOPIC, 0)


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("appends", [0, 1, 2])
async def test_a_kill_between_the_steps_of_an_end_loses_nothing(
    bench: Bench, outcome: int, appends: int
) -> None:
    """Steps: the message (of a commit), the op record. A message without its op record is found again."""
    bench.add_producer("p1")
    other = bench.prepare(b"other", key="other")
    prepared = bench.prepare(b"body")
    bench.gate.appends_left = appends
    bench.end(prepared, outcome)
    await bench.restart()
    steps = 2 if outcome == COMMIT else 1
    assert len(bench.transactions) == (1 if appends >= steps else 2)
    bench.check()
    questions = {question.ext["msgId"]: question for question in bench.asked("p1")}
    is_ended = appends >= 1
    assert set(questions) == ({"other"} if is_ended else {"other", "K1"})
    if not is_ended:
        assert bench.end(questions["K1"], outcome).code == 0
    assert bench.bodies() == ([b"body"] if outcome == COMMIT else [])
    assert len(bench.transactions) == 1
    assert bench.end(other, COMMIT).code == 0


@pytest.mark.parametrize("properties", ["", "DELAY\x012\x02", "TIMER_DELAY_SEC\x0190000\x02"])
async def test_a_message_delivered_before_a_kill_is_not_delivered_again(
    bench: Bench, properties: str
) -> None:
    """Neither by the producer that says its commit again, nor can it be rolled back any more."""
    prepared = bench.prepare(b"once", properties=properties)
    bench.gate.appends_left = 1
    bench.end(prepared, COMMIT)
    await bench.restart()
    assert bench.end(prepared, ROLLBACK).code == 1
    assert len(bench.transactions) == 1
    assert bench.end(prepared, COMMIT).code == 0
    assert len(bench.transactions) == 0
    await bench.restart()
    assert bench.end(prepared, COMMIT).code == 0
    assert bench.end(prepared, ROLLBACK).remark == "this transaction was committed"
    stored = [bench.records(), bench.records(SCHEDULE_TOPIC, 1), bench.records(TIMER_TOPIC, 0)]
    assert sum(len(records) for records in stored) == 1


async def test_without_a_unique_key_a_kill_may_deliver_twice(bench: Bench) -> None:
    prepared = bench.prepare(b"twice", i="TRAN_MSG\x01true\x02PGROUP\x01pg\x02")
    bench.gate.appends_left = 1
    bench.end(prepared, COMMIT)
    await bench.restart()
    assert bench.end(prepared, COMMIT).code == 0
    assert bench.bodies() == [b"twice", b"twice"]


async def test_another_message_with_the_same_key_is_no_proof(bench: Bench) -> None:
    """A message that was prepared twice, after a lost answer, has one key."""
    first = bench.prepare(b"first")
    second = bench.prepare(b"second")
    assert bench.end(first, COMMIT).code == 0
    await bench.restart()
    assert bench.end(second, COMMIT).code == 0
    assert bench.bodies() == [b"first", b"second"]


@pytest.mark.parametrize("appends", [0, 1])
async def test_a_kill_around_the_copy_of_a_half_leaves_one_transaction(bench: Bench, appends: int) -> None:
    bench.add_producer("p1")
    prepared = bench.prepare(b"body")
    bench.gate.appends_left = appends
    bench.check()
    bench.asked("p1")
    await bench.restart()
    (pending,) = bench.transactions.pending()
    assert (pending.offset, pending.check_times) == (appends, appends)
    assert bench.end(prepared, COMMIT).code == 0
    await bench.restart()
    bench.check()
    assert bench.asked("p1") == []
    assert bench.bodies() == [b"body"]


@pytest.mark.parametrize("appends", [0, 1, 2])
async def test_a_kill_while_a_half_is_given_up_loses_nothing(bench: Bench, appends: int) -> None:
    bench.settings["transaction_checks_max"] = 1
    await bench.restart()
    bench.prepare()
    bench.check()
    bench.gate.appends_left = appends
    bench.check()
    await bench.restart()
    bench.check()
    assert len(bench.records(TRANSACTION_CHECKS_MAX_TOPIC, 0)) == (2 if appends == 1 else 1)
    assert len(bench.transactions) == 0


async def test_an_end_that_comes_while_the_half_is_copied_waits_for_the_copy(tmp_path: Path) -> None:
    """Under synchronous flush the copy takes as long as the disk."""
    bench = await open_bench(tmp_path, flush="sync")

    def settle() -> None:
        bench.store._flusher.flush()
        bench.writer.confirm()

    bench.add_producer("p1")
    bench.prepare(b"body")
    settle()
    (prepared,) = bench.connection.replies
    bench.check()
    (pending,) = bench.transactions.pending()
    assert pending.state is State.COPYING
    assert bench.end(prepared, COMMIT).code == -1
    assert bench.end(prepared, COMMIT).code == 1
    for _ in range(3):
        settle()
    assert bench.asked("p1") == []
    assert [reply.code for reply in bench.connection.replies] == [0, 0]
    assert bench.bodies() == [b"body"]
    assert [record.body for record in bench.records(OP_HALF_TOPIC, 0)] == [b"1"]
    await bench.restart()
    assert len(bench.transactions) == 0
    await bench.close()


async def test_a_clean_stop_and_a_start_agree(bench: Bench) -> None:
    prepared = [bench.prepare(b"%d" % number) for number in range(3)]
    bench.end(prepared[0], COMMIT)
    await bench.restart(is_killed=False)
    assert [pending.offset for pending in bench.transactions.pending()] == [1, 2]


async def test_metrics_count_what_happened(bench: Bench) -> None:
    prepared = [bench.prepare() for _ in range(3)]
    bench.end(prepared[0], COMMIT)
    bench.end(prepared[1], ROLLBACK)
    bench.end(prepared[2], 3)
    values = {
        metric.name: metric.value
        for part in (bench.transactions, bench.checks, bench.handler)
        for metric in part.metrics()
    }
    assert values["iotmq_broker_transactions_pending"] == 1
    assert values["iotmq_broker_transactions_prepared_total"] == 3
    assert values["iotmq_broker_transactions_committed_total"] == 1
    assert values["iotmq_broker_transactions_rolled_back_total"] == 1
    assert values["iotmq_broker_transaction_ends_refused_total"] == 1
