"""Audit records on their way: what they say, their limits, and a log that does not take them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from eventually import soon
from manual_clock import ManualClock

from iotmq import audit_log, limits
from iotmq.audit_log import AuditLog, no_audit
from iotmq.broker.writing.single_message_batch import split_elements
from iotmq.message.properties import decode_properties
from iotmq.ports.client_pages import RefusedAnswer, RefusedQuestion
from iotmq.ports.gateway import AppendDone


class Log:
    """What was written, and how it is answered."""

    def __init__(self, **options: Any) -> None:
        self.code: int | None = 0
        self.fails = False
        self.batches: list[tuple[bytes, int, bool]] = []
        self.waiting: list[AppendDone] = []
        self.clock = ManualClock()
        options = {"events": ("refused", "kicked"), "per_second_max": 1_000_000} | options
        self.audit = AuditLog(self._write, self.clock, source="front-1", **options)

    def _write(self, elements: bytes, count: int, is_repeat: bool, done: AppendDone) -> None:
        if self.fails:
            self.fails = False
            raise OSError("no")
        self.batches.append((elements, count, is_repeat))
        if self.code is None:
            self.waiting.append(done)
        else:
            done(self.code, "")

    def records(self) -> list[dict[str, Any]]:
        return [
            msgspec.json.decode(body)
            for elements, _, is_repeat in self.batches
            if not is_repeat
            for body, _, _ in split_elements(elements)
        ]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "_INTERVAL_S", 0.01)
    monkeypatch.setattr(audit_log, "_RETRY_S_MIN", 0.01)
    monkeypatch.setattr(audit_log, "_RETRY_S_MAX", 0.02)


async def test_a_record_says_who_when_and_why_and_is_found_by_its_client() -> None:
    log = Log()
    log.audit.record("refused", client="pump-7", user=None, port=1883, reason="not_authorized")
    assert not log.batches, "nobody waits for a record to be written"
    await soon(lambda: log.batches, "a batch")
    assert log.records() == [
        {
            "time_ms": log.clock.now_ms(),
            "event": "refused",
            "source": "front-1",
            "client": "pump-7",
            "port": 1883,
            "reason": "not_authorized",
        }
    ]
    ((_, properties, _),) = split_elements(log.batches[0][0])
    found = decode_properties(properties)
    assert len(found.pop("UNIQ_KEY")) == 32
    assert found == {"TAGS": "refused", "KEYS": "pump-7"}


async def test_events_that_are_not_asked_for_are_not_recorded() -> None:
    log = Log()
    log.audit.record("connected", client="pump-7")
    log.audit.record("kicked", client="pump-7")
    no_audit("kicked", client="pump-7")
    await soon(lambda: log.batches, "a batch")
    assert [record["event"] for record in log.records()] == ["kicked"]


async def test_records_of_a_moment_are_one_batch() -> None:
    log = Log()
    for number in range(100):
        log.audit.record("refused", client=f"c{number}")
    await soon(lambda: log.batches, "a batch")
    assert [count for _, count, _ in log.batches] == [100]
    assert log.audit.recorded_count == 100


async def test_what_peers_say_is_shortened_and_cannot_be_anything_but_text() -> None:
    log = Log()
    longest = "x" * limits.AUDIT_TEXT_CHARACTERS_MAX
    for client in (longest, longest + "y", "\x01\x02 a", "\ud800", ""):
        log.audit.record("refused", client=client)
    await soon(lambda: log.batches, "a batch")
    assert [record["client"] for record in log.records()] == [longest, longest, "\x01\x02 a", "?", ""]
    keys = [
        decode_properties(properties).get("KEYS") for _, properties, _ in split_elements(log.batches[0][0])
    ]
    assert keys == [longest, longest, None, "?", None]


async def test_so_many_records_wait_and_further_ones_are_counted() -> None:
    log = Log()
    for number in range(limits.AUDIT_RECORDS_MAX + 3):
        log.audit.record("refused", client=f"{number}")
    log.audit.check_invariants()
    assert log.audit.dropped == {"rate": 0, "room": 3, "refused": 0}
    await soon(lambda: log.audit.recorded_count == limits.AUDIT_RECORDS_MAX, "all of them")
    assert all(len(batch) < limits.AUDIT_BATCH_BYTES_MAX * 2 for batch, _, _ in log.batches)
    log.audit.check_invariants()


async def test_so_many_bytes_wait_and_further_ones_are_counted() -> None:
    log = Log()
    fields = {f"field{number}": "x" * limits.AUDIT_TEXT_CHARACTERS_MAX for number in range(8)}
    count = 0
    while not log.audit.dropped["room"]:
        log.audit.record("refused", **fields)
        count += 1
    log.audit.check_invariants()
    size = 8 * limits.AUDIT_TEXT_CHARACTERS_MAX
    assert limits.AUDIT_BYTES_MAX // (size + 512) <= count - 1 <= limits.AUDIT_BYTES_MAX // size
    await soon(lambda: log.audit.recorded_count == count - 1, "those there was room for")


async def test_a_flood_is_cut_to_so_many_a_second() -> None:
    log = Log(per_second_max=limits.AUDIT_RECORDS_PER_S_MAX)
    for number in range(limits.AUDIT_RECORDS_PER_S_MAX + 5):
        log.audit.record("refused", client=f"{number}")
    assert log.audit.dropped["rate"] == 5
    log.clock.advance(1.0)
    log.audit.record("refused", client="later")
    assert log.audit.dropped["rate"] == 5
    await soon(lambda: log.audit.recorded_count == limits.AUDIT_RECORDS_PER_S_MAX + 1, "the others")


async def test_what_the_log_does_not_take_is_offered_again_and_one_batch_at_a_time() -> None:
    log = Log()
    log.code = 14
    log.audit.record("refused", client="first")
    await soon(lambda: len(log.batches) >= 3, "repeats")
    log.audit.record("refused", client="second")
    assert {is_repeat for _, _, is_repeat in log.batches[1:]} == {True}
    assert len({elements for elements, _, _ in log.batches}) == 1
    log.code = None
    await soon(lambda: log.waiting, "a batch under way")
    log.audit.flush()
    assert len(log.waiting) == 1
    log.code = 0
    log.waiting.pop()(0, "")
    await soon(lambda: log.audit.recorded_count == 2, "both")
    assert [record["client"] for record in log.records()] == ["first", "second"]


async def test_what_the_log_fails_at_is_offered_again() -> None:
    log = Log()
    log.fails = True
    log.audit.record("refused", client="a")
    await soon(lambda: not log.fails, "it has failed")
    log.audit.record("refused", client="b")
    await soon(lambda: log.audit.recorded_count == 2, "both are stored")
    assert [is_repeat for *_, is_repeat in log.batches] == [True, False]
    log.audit.check_invariants()


async def test_what_the_log_will_never_take_is_counted_and_gone() -> None:
    log = Log()
    log.code = 13
    log.audit.record("refused", client="a")
    await soon(lambda: log.audit.dropped["refused"] == 1, "the end of it")
    log.code = 0
    log.audit.record("refused", client="b")
    await soon(lambda: log.audit.recorded_count == 1, "the next one")


async def test_the_last_ones_are_written_at_the_end_and_none_after_it() -> None:
    log = Log()
    log.audit.record("refused", client="a")
    log.audit.close()
    assert [record["client"] for record in log.records()] == ["a"]
    log.audit.record("refused", client="b")
    log.audit.close()
    assert len(log.batches) == 1


async def test_the_last_ones_are_written_beside_a_batch_that_is_under_way() -> None:
    log = Log()
    log.code = None
    log.audit.record("refused", client="under way")
    log.audit.flush()
    fields = {f"field{number}": "x" * limits.AUDIT_TEXT_CHARACTERS_MAX for number in range(8)}
    count = 2 * limits.AUDIT_BATCH_BYTES_MAX // (8 * limits.AUDIT_TEXT_CHARACTERS_MAX)
    for _ in range(count):
        log.audit.record("kicked", **fields)
    log.audit.close()
    assert [record["event"] for record in log.records()] == ["refused"] + ["kicked"] * count
    assert max(len(batch) for batch, _, _ in log.batches) < 2 * limits.AUDIT_BATCH_BYTES_MAX
    first, second, *others = log.waiting
    second(14, "")
    for answer in (*others, first):
        answer(0, "")
    log.audit.check_invariants()
    assert log.audit.recorded_count + log.audit.dropped["refused"] == count + 1
    assert log.audit.dropped["refused"] == log.batches[1][1], "nobody offers them again"
    assert len(log.batches) == len(log.waiting)


async def test_a_log_that_fails_at_the_end_keeps_nobody_from_it() -> None:
    log = Log()
    log.code = None
    log.audit.record("refused", client="under way")
    log.audit.flush()
    log.audit.record("refused", client="last")
    log.fails = True
    log.audit.close()
    assert not log.fails
    assert [record["client"] for record in log.records()] == ["under way"]


async def test_the_last_refusals_are_remembered_whether_recorded_or_not() -> None:
    log = Log(events=())

    async def asked(**question: Any) -> RefusedAnswer:
        answer = await log.audit.refusals.answer(msgspec.msgpack.encode(RefusedQuestion(**question)))
        return msgspec.msgpack.decode(answer, type=RefusedAnswer)

    for number in range(limits.REFUSALS_REMEMBERED_MAX):
        log.audit.record(
            "refused", client=f"c{number}", address="10.0.0.1", code=7, reason="NO\ud800" + "x" * 200
        )
    log.audit.record("kicked", client="c")
    assert (await asked()).remembered == limits.REFUSALS_REMEMBERED_MAX
    assert (await asked(client_id="c0")).refusals[0].address == "10.0.0.1"
    log.audit.record("refused", client="last", user="u\0", certificate=None)
    answer = await asked(limit=2)
    assert answer.remembered == limits.REFUSALS_REMEMBERED_MAX
    last, before = answer.refusals
    assert (last.client_id, last.user, last.time_ms) == ("last", "u\0", log.clock.now_ms())
    assert before.reason.startswith("NO?x")
    assert len(before.reason) == 128
    assert (await asked(client_id="c0")).refusals == [], "the oldest is forgotten"
    assert [each.client_id for each in (await asked(user="u*")).refusals] == ["last"]
    assert (await asked(reason="*y")).refusals == []


async def test_what_is_counted() -> None:
    log = Log(per_second_max=1)
    log.audit.record("refused", client="a")
    log.audit.record("refused", client="b")
    names = {(m.name, m.labels): m.value for m in log.audit.metrics("iotmq_mqtt")}
    assert names["iotmq_mqtt_audit_waiting", ()] == 1
    assert names["iotmq_mqtt_audit_dropped_total", (("reason", "rate"),)] == 1
    log.audit.close()
    names = {(m.name, m.labels): m.value for m in log.audit.metrics("iotmq_mqtt")}
    assert names["iotmq_mqtt_audit_records_total", ()] == 1
