"""The writer: checks, confirmation at once and by group commit, time-outs, refusals, waking."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest
from manual_clock import ManualClock

from iotmq.broker.settings import BrokerSettings
from iotmq.broker.statistics.statistics import Statistics
from iotmq.broker.tables.changed_settings import ChangedSettings
from iotmq.broker.tables.topics import TopicConfig, TopicTable
from iotmq.broker.writing.message_writer import MessageWriter, RefusedBatch, StoredBatch, StoredRun
from iotmq.errors import RecordTooLargeError, StoreError, StoreFullError, StoreReadOnlyError
from iotmq.message.errors import MessageFormatError
from iotmq.remoting.codes import ResponseCode
from iotmq.store.settings import StoreSettings
from iotmq.supervised import FAILURES

HOST = bytes.fromhex("7f00000100001388")


class FakeAppended:
    def __init__(self, start: int, end: int, offset: int) -> None:
        self.start_position = start
        self.end_position = end
        self.first_offset = offset
        self.count = 1


class FakeQueue(NamedTuple):
    topic: str
    queue_id: int


class FakeStore:
    """A log that only counts bytes; `is_sync` leaves the confirmation to `flush` and `advance`."""

    def __init__(self, directory: Path, *, is_sync: bool = False) -> None:
        self.directory = directory
        self.is_sync = is_sync
        self.settings = StoreSettings(flush="sync" if is_sync else "async")
        self.confirms_later = is_sync
        self.appended_position = self.flushed_position = self.confirmed_position = 0
        self.is_replicated = False
        self.is_dispatching = True
        self.on_flushed = lambda: None
        self.error: Exception | None = None
        self.failure: str | None = None
        self.calls: list[dict[str, object]] = []
        self.handles: dict[tuple[str, int], FakeQueue] = {}
        self.dispatched: list[object] = []

    def queue(self, topic: str, queue_id: int) -> FakeQueue:
        return self.handles.setdefault((topic, queue_id), FakeQueue(topic, queue_id))

    def append(self, queue: FakeQueue, elements: bytes, **fields: object) -> FakeAppended:
        if self.error is not None:
            raise self.error
        self.calls.append({"queue": queue, "elements": elements, **fields})
        start = self.appended_position
        self.appended_position += len(elements)
        if not self.is_sync and self.is_dispatching:
            self.confirmed_position = self.appended_position
        return FakeAppended(start, self.appended_position, len(self.calls) - 1)

    def flush(self) -> None:
        self.flushed_position = self.appended_position
        self.on_flushed()

    def begin_appends(self) -> int:
        return 1

    def end_appends(self) -> None:
        self.appended_position += 8

    def advance(self) -> int:
        self.confirmed_position = self.flushed_position if self.is_sync else self.appended_position
        return self.confirmed_position

    def take_dispatched(self) -> list[object]:
        dispatched, self.dispatched = self.dispatched, []
        return dispatched


class Bench:
    """A writer with everything around it in reach."""

    def __init__(
        self, directory: Path, *, is_sync: bool, is_replicated: bool = False, flush: str = "sync"
    ) -> None:
        self.clock = ManualClock()
        self.store = FakeStore(directory, is_sync=is_sync)
        if is_replicated:
            self.store.is_replicated = True
            self.store.settings = StoreSettings(flush=flush)  # type: ignore[arg-type]
        self.topics = TopicTable(directory / "topics.json", self.clock)
        self.topics.ensure("T", queues=2)
        self.statistics = Statistics(self.clock)
        self.writer = MessageWriter(
            self.store,  # type: ignore[arg-type]
            self.topics,
            ChangedSettings(directory / "settings.json", BrokerSettings(), self.store.settings),
            self.clock,
            self.statistics,
        )
        self.results: list[StoredBatch | RefusedBatch] = []

    def append(
        self, topic: str = "T", queue_id: int = 0, elements: bytes = b"12345678", **fields: object
    ) -> None:
        self.writer.append(
            topic,
            queue_id,
            elements,
            born_timestamp_ms=1,
            born_host=HOST,
            done=self.results.append,
            **fields,  # type: ignore[arg-type]
        )

    def codes(self) -> list[int]:
        return [result.code if isinstance(result, RefusedBatch) else result.status for result in self.results]

    def remark(self) -> str:
        result = self.results[-1]
        assert isinstance(result, RefusedBatch)
        return result.remark


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, is_sync=False)
    bench.writer.open()
    return bench


@pytest.fixture
async def sync_bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path, is_sync=True)
    bench.writer.open()
    return bench


async def turn() -> None:
    """Let callbacks that are scheduled now run."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_under_asynchronous_flush_a_batch_is_done_at_once(bench: Bench) -> None:
    bench.append(
        queue_id=1, sys_flag=1, reconsume_times=2, prepared_position=77, batch_properties=b"a\x01b\x02"
    )
    result = bench.results[0]
    assert isinstance(result, StoredBatch)
    assert (result.status, result.queue_id, result.first_offset, result.count) == (0, 1, 0, 1)
    assert bench.store.calls[0] == {
        "queue": ("T", 1),
        "elements": b"12345678",
        "born_timestamp_ms": 1,
        "born_host": HOST,
        "sys_flag": 1,
        "reconsume_times": 2,
        "prepared_position": 77,
        "batch_properties": b"a\x01b\x02",
    }
    assert (bench.writer.batches_count, bench.writer.records_count, bench.writer.bytes_count) == (1, 1, 8)


async def test_the_host_bits_of_the_sys_flag_follow_the_host(bench: Bench) -> None:
    bench.append(sys_flag=0x301 | 16 | 32)
    bench.writer.append(
        "T", 0, b"1", born_timestamp_ms=1, born_host=bytes(20), sys_flag=0, done=bench.results.append
    )
    assert [call["sys_flag"] for call in bench.store.calls] == [0x301, 16]


async def test_listeners_run_once_per_turn_after_the_holds_woke(bench: Bench) -> None:
    told: list[str] = []
    bench.writer.add_dispatch_listener(lambda queues: told.append(f"wake {queues}"))
    bench.writer.add_confirmed_listener(lambda: told.append("confirmed"))
    for _ in range(3):
        bench.append()
    bench.store.dispatched = ["q"]
    assert told == []
    await turn()
    assert told == ["wake ['q']", "confirmed"]
    bench.append()
    await turn()
    assert told == ["wake ['q']", "confirmed", "confirmed"]


async def test_gathered_appends_are_done_at_once_and_dispatched_together(bench: Bench) -> None:
    settled: list[int] = []
    bench.writer.add_written_listener(lambda: settled.append(bench.store.confirmed_position))
    with bench.writer.gathered():
        for number in range(3):
            bench.append()
            assert len(bench.results) == number + 1
            assert bench.store.confirmed_position == 0
    assert settled == [24]
    bench.append()
    assert bench.store.confirmed_position == 32
    assert bench.codes() == [0, 0, 0, 0]


async def test_under_group_commit_gathered_appends_wait_for_the_disk(sync_bench: Bench) -> None:
    with sync_bench.writer.gathered():
        sync_bench.append()
    assert sync_bench.results == []
    sync_bench.store.flush()
    await turn()
    assert sync_bench.codes() == [0]


async def test_what_could_not_be_dispatched_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise OSError("the disk of the queues")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "advance", refuse)
        with pytest.raises(OSError, match="of the queues"), bench.writer.gathered():
            bench.append()
    assert bench.store.confirmed_position == 0
    bench.writer.write_out()
    assert bench.store.confirmed_position == 8


async def test_group_commit_answers_in_log_order_what_it_covers(sync_bench: Bench) -> None:
    bench = sync_bench
    confirmed: list[int] = []
    bench.writer.add_confirmed_listener(lambda: confirmed.append(len(bench.results)))
    bench.append()
    bench.append(queue_id=1)
    assert bench.results == []
    bench.store.flush()
    bench.append()
    await turn()
    assert [result.queue_id for result in bench.results if isinstance(result, StoredBatch)] == [0, 1]
    assert bench.writer.waiting_count == 1
    assert confirmed == [2]
    bench.store.flush()
    await turn()
    assert bench.codes() == [0, 0, 0]


async def test_whoever_fails_at_its_answer_leaves_the_others_theirs(
    sync_bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench = sync_bench
    woken: list[None] = []

    def fail(outcome: object) -> None:
        raise ValueError("cannot take it")

    bench.writer.append("T", 0, b"12345678", born_timestamp_ms=1, born_host=HOST, done=fail)
    bench.append()
    bench.writer.add_confirmed_listener(lambda: woken.append(None))
    bench.store.flushed_position = bench.store.appended_position
    before = FAILURES.count("answers to flushed batches")
    bench.writer.confirm()
    assert FAILURES.count("answers to flushed batches") == before + 1
    assert "cannot take it" in caplog.text
    assert bench.codes() == [0]
    assert woken == [None]


async def test_batches_and_how_long_they_took_are_counted(bench: Bench, sync_bench: Bench) -> None:
    bench.append()
    bench.append(queue_id=1)
    assert sum(bench.statistics.put_latencies.counted()) == 2
    found = bench.statistics.find("TOPIC_PUT_NUMS", "T", "minute")
    assert found is not None
    assert found.sum == bench.writer.records_count
    of_queue = bench.statistics.find("QUEUE_PUT_NUMS", "T@1", "minute")
    assert of_queue is not None
    assert of_queue.sum == found.sum // 2
    bench.append(topic="none")
    assert bench.statistics.find("TOPIC_PUT_NUMS", "none", "minute") is None

    assert sync_bench.writer.longest_wait_ms == 0
    sync_bench.append()
    assert sync_bench.writer.waiting_count == 1
    assert sync_bench.writer.longest_wait_ms >= 0
    assert sum(sync_bench.statistics.put_latencies.counted()) == 0
    sync_bench.store.flush()
    await turn()
    assert sum(sync_bench.statistics.put_latencies.counted()) == 1
    assert sync_bench.writer.longest_wait_ms == 0


async def test_flushes_reported_from_a_thread_reach_the_loop(sync_bench: Bench) -> None:
    finished = asyncio.Event()
    sync_bench.writer.add_confirmed_listener(finished.set)
    sync_bench.append()
    await asyncio.to_thread(sync_bench.store.flush)
    await asyncio.wait_for(finished.wait(), 30)
    assert sync_bench.codes() == [0]


async def test_a_flush_past_its_time_is_reported_and_not_confirmed_again(sync_bench: Bench) -> None:
    bench = sync_bench
    bench.append()
    bench.clock.advance(4.9)
    bench.append()
    bench.writer.time_out()
    assert bench.results == []
    bench.clock.advance(0.1)
    bench.writer.time_out()
    assert bench.codes() == [10]
    bench.store.flush()
    await turn()
    assert bench.codes() == [10, 0]
    assert bench.writer.flush_timeouts_count == 1


async def test_a_patient_batch_waits_for_a_slow_disk_but_not_for_a_broken_one(sync_bench: Bench) -> None:
    bench = sync_bench
    bench.append(is_patient=True)
    bench.append()
    bench.append(is_patient=True)
    bench.clock.advance(60.0)
    bench.writer.time_out()
    assert bench.codes() == [10], "only the batch that is not patient"
    bench.store.flush()
    await turn()
    assert bench.codes() == [10, 0, 0]
    bench.append(is_patient=True)
    bench.store.failure = "a flush failed"
    bench.clock.advance(5.0)
    bench.writer.time_out()
    assert bench.codes() == [10, 0, 0, 10]


@pytest.mark.parametrize("ends", ["late", "stopped"])
async def test_whoever_fails_at_a_late_answer_leaves_the_others_theirs(sync_bench: Bench, ends: str) -> None:
    bench = sync_bench

    def fail(outcome: object) -> None:
        raise ValueError("cannot take it")

    bench.writer.append("T", 0, b"12345678", born_timestamp_ms=1, born_host=HOST, done=fail)
    bench.append()
    before = FAILURES.count("answers to flushed batches")
    if ends == "late":
        bench.clock.advance(5.0)
        bench.writer.time_out()
    else:
        bench.writer.finish()
    assert FAILURES.count("answers to flushed batches") == before + 1
    assert bench.codes() == [10]


@pytest.mark.parametrize(
    ("flush", "is_on_disk", "failure", "status"),
    [
        ("async", False, None, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        ("sync", True, None, ResponseCode.FLUSH_SLAVE_TIMEOUT),
        ("sync", False, None, ResponseCode.FLUSH_DISK_TIMEOUT),
        ("async", False, "a flush failed", ResponseCode.FLUSH_DISK_TIMEOUT),
    ],
)
async def test_who_is_late_is_told_when_others_have_to_confirm(
    tmp_path: Path, flush: str, is_on_disk: bool, failure: str | None, status: int
) -> None:
    """Before clients give up after 3 s, whatever the time for the disk."""
    bench = Bench(tmp_path, is_sync=True, is_replicated=True, flush=flush)
    bench.writer.open()
    bench.append()
    bench.append(is_patient=True)
    if is_on_disk:
        bench.store.flushed_position = bench.store.appended_position
    bench.clock.advance(2.4)
    bench.writer.time_out()
    assert bench.codes() == []
    bench.store.failure = failure
    bench.clock.advance(0.1)
    bench.writer.time_out()
    assert bench.codes() == ([status] if failure is None else [status, status])


async def test_what_a_master_alone_has_is_said_to_who_is_not_patient(sync_bench: Bench) -> None:
    bench = sync_bench
    runs: list[StoredRun] = []
    bench.writer.confirmed_status = ResponseCode.SLAVE_NOT_AVAILABLE
    bench.append()
    bench.append(is_patient=True)
    bench.writer.begin_run()
    bench.writer.end_run(2, records=2, size_bytes=16, waiting=2, done=runs.append)
    bench.writer.when_flushed(runs.append)
    bench.store.flush()
    await turn()
    assert bench.codes() == [ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SUCCESS]
    assert [(run.batches, run.status) for run in runs] == [
        (2, ResponseCode.SLAVE_NOT_AVAILABLE),
        # Nobody's send: whether it is confirmed is all that is asked.
        (0, ResponseCode.SUCCESS),
    ]
    bench.writer.confirmed_status = ResponseCode.SUCCESS
    bench.append()
    bench.store.flush()
    await turn()
    assert bench.codes()[-1] == ResponseCode.SUCCESS


async def test_a_former_master_has_plain_senders_send_again_and_says_nothing_to_others(
    sync_bench: Bench,
) -> None:
    bench = sync_bench
    runs: list[StoredRun] = []
    bench.append()
    bench.writer.begin_run()
    bench.writer.end_run(2, records=2, size_bytes=16, waiting=2, done=runs.append)
    bench.writer.when_flushed(runs.append)
    bench.writer.depose("another member is master")
    assert [(run.batches, run.status) for run in runs] == [(2, ResponseCode.SERVICE_NOT_AVAILABLE)]
    bench.store.flush()
    await turn()
    assert (bench.results, len(runs)) == ([], 1)
    bench.append()
    assert bench.codes() == [ResponseCode.SERVICE_NOT_AVAILABLE]


async def test_who_does_not_wait_for_the_flush_is_done_at_once(sync_bench: Bench) -> None:
    sync_bench.append(waits_for_flush=False)
    assert sync_bench.codes() == [0]


async def test_finish_confirms_what_was_flushed_just_now(sync_bench: Bench) -> None:
    sync_bench.append()
    sync_bench.store.flush()
    # Before the loop comes to what the flush asked of it.
    sync_bench.writer.finish()
    assert sync_bench.codes() == [0]


async def test_finish_answers_what_still_waits(sync_bench: Bench) -> None:
    sync_bench.append()
    sync_bench.writer.close()
    sync_bench.writer.finish()
    assert sync_bench.codes() == [10]


async def test_finish_answers_also_when_the_queues_do_not_take_what_was_flushed(
    sync_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise OSError("the disk of the queues")

    sync_bench.append()
    sync_bench.store.flush()
    monkeypatch.setattr(sync_bench.store, "advance", refuse)
    before = FAILURES.count("confirmation at the stop")
    sync_bench.writer.finish()
    assert FAILURES.count("confirmation at the stop") == before + 1
    assert sync_bench.codes() == [10]


async def test_unknown_topics_and_queues_are_refused(bench: Bench) -> None:
    bench.append("U")
    assert "U does not exist" in bench.remark()
    bench.append(queue_id=2)
    assert "queueId 2" in bench.remark()
    bench.append(queue_id=-1)
    assert bench.codes() == [17, 1, 1]
    assert bench.store.calls == []


async def test_topic_changes_are_seen(bench: Bench) -> None:
    bench.append()
    bench.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
    bench.append(queue_id=3)
    bench.topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4, perm=4))
    bench.append()
    assert bench.codes() == [0, 0, 16]
    assert bench.writer.queue_count("T", create=False) == 0


async def test_topics_of_the_gateway_are_made_on_demand(bench: Bench) -> None:
    assert bench.writer.queue_count("mqtt", create=False) == 0
    assert bench.writer.queue_count("mqtt", create=True) == 8
    assert bench.writer.queue_count("mqtt", create=False) == 8
    bench.append("mqtt", 7)
    assert bench.codes() == [0]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MessageFormatError("element 3 is short"), 13),
        (RecordTooLargeError("record of 5 MiB"), 13),
        (StoreFullError("/data is full"), 14),
        (StoreReadOnlyError("/data failed"), 14),
        (StoreError("something else"), 1),
    ],
)
async def test_errors_of_the_store_become_codes(bench: Bench, error: Exception, code: int) -> None:
    bench.store.error = error
    bench.append()
    assert bench.codes() == [code]
    assert bench.remark().startswith(str(error))
    assert bench.writer.is_writable == (code != 14)


async def test_a_full_disk_refuses_at_once_and_is_tried_again_after_a_second(bench: Bench) -> None:
    bench.store.error = StoreFullError("/data is full")
    bench.append()
    bench.store.error = None
    bench.append()
    assert bench.codes() == [14, 14]
    assert "/data is full" in bench.remark()
    assert "/data is full" in bench.writer.refusal
    bench.clock.advance(1.0)
    bench.append()
    assert bench.codes() == [14, 14, 0]
    assert bench.writer.is_writable


async def test_nothing_is_taken_before_open_and_after_close(tmp_path: Path) -> None:
    bench = Bench(tmp_path, is_sync=False)
    bench.append()
    assert not bench.writer.is_writable
    bench.writer.open()
    bench.append()
    bench.writer.close()
    bench.append()
    assert bench.codes() == [14, 0, 14]
    assert "stopping" in bench.remark()
