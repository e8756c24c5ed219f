"""Reads of filters that match much of the log: what they cost, wait for and leave out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from session_bench import FrontEnd, SessionBench

from iotmq.broker.session_store import queue_reader
from iotmq.broker.session_store.queue_reader import LightQueueReader
from iotmq.errors import RequestError
from iotmq.message.records.record import decode_record
from iotmq.ports.sessions import QueueRead, QueueRecords, Refused
from iotmq.remoting.codes import ResponseCode

WINDOW = 8


class Site:
    """A broker with a session that has subscribed `#`, which is wide, and `a`, which matches little."""

    def __init__(self, bench: SessionBench, front: FrontEnd, epoch: int, queue_ids: list[int]) -> None:
        self.bench = bench
        self.front = front
        self.epoch = epoch
        self.all_id, self.little_id = queue_ids

    @property
    def reader(self) -> LightQueueReader:
        return self.bench.broker.sessions._reader

    def begin_read(self, queue_id: int, position: int = 0) -> list[QueueRecords | Refused]:
        found: list[QueueRecords | Refused] = []
        self.reader.read(
            QueueRead(queue_id=queue_id, position=position, records_max=1000, bytes_max=1 << 20), found.append
        )
        return found

    def bodies(self, queue_id: int) -> list[bytes]:
        position, found = 0, []
        while True:
            (answer,) = self.begin_read(queue_id, position)
            assert isinstance(answer, QueueRecords)
            found += [decode_record(record).body for record in answer.records]
            position = answer.next_position
            if answer.is_end:
                return found

    def numbers(self) -> dict[str, Any]:
        return {metric.name: metric.value for metric in self.reader.metrics()}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    bench = SessionBench(tmp_path, wide_filter_percent=50, wide_filter_window_records=WINDOW)
    await bench.start()
    front = FrontEnd(bench, "one")
    opened = await front.open("c")
    found = await front.subscribe("c", opened.epoch, "#", "a")
    assert not isinstance(found, Refused)
    yield Site(bench, front, opened.epoch, [subscription.queue_id for subscription in found])
    await bench.close()


class SlowDisk:
    """Stands for ColdReads: what is asked for comes when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[OSError | None], None]] = []
        self.is_full = False

    def start(self, plan: Any, ready: Callable[[OSError | None], None]) -> None:
        if self.is_full:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many wait")
        self.waiting.append(ready)


@pytest.fixture
def disk(site: Site, monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    """The log counts as on the disk until one load has been done."""
    disk = SlowDisk()
    plans = iter([object()])
    monkeypatch.setattr(site.bench.store, "plan_raw", lambda *_: next(plans, None))
    monkeypatch.setattr(site.reader, "_cold_reads", disk)
    return disk


def publish(site: Site, count: int, topic: str = "b") -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        site.bench.publish(topic, body)
    return bodies


async def test_a_filter_that_matches_much_gets_no_entries_and_all_of_its_messages(site: Site) -> None:
    bodies = publish(site, 40)
    assert site.bodies(site.all_id) == bodies
    numbers = site.numbers()
    assert numbers["iotmq_broker_wide_filters"] == 1
    assert numbers["iotmq_broker_wide_filter_switches_total"] == 1
    assert numbers["iotmq_broker_scanned_records_total"] >= 30
    assert numbers["iotmq_broker_scanned_bytes_total"] > 30 * 91
    assert [body for _, body in site.front.pushed] == bodies
    sessions = site.bench.broker.sessions
    assert (sessions.is_wide(site.all_id), sessions.is_wide(site.little_id)) == (True, False)
    assert sessions.behind("c", site.all_id)[1] == 40


async def test_a_filter_that_matches_little_again_has_entries_again(site: Site) -> None:
    publish(site, 20)
    for number in range(3 * WINDOW):
        # Not for the filter: it does not match topics that begin with $.
        site.bench.publish("$SYS/x", b"%d" % number)
    assert not site.bench.broker.sessions.is_wide(site.all_id)
    scanned = site.reader.scanned_records
    publish(site, 2, "a")
    assert site.bodies(site.little_id) == [b"0", b"1"]
    assert site.reader.scanned_records == scanned
    assert len(site.bodies(site.all_id)) == 22
    assert site.numbers()["iotmq_broker_wide_filter_switches_total"] == 2
    await site.bench.restart()
    assert len(site.bodies(site.all_id)) == 22


async def test_one_read_goes_through_so_much_and_not_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(site, 40)
    for number in range(WINDOW // 2):
        site.bench.publish("$SYS/x", b"%d" % number)
    monkeypatch.setattr(queue_reader, "SCAN_RECORDS_MAX", 2)
    position = site.bench.store.confirmed_position
    for number in range(3):
        site.bench.publish("$SYS/x", b"%d" % number)
    (answer,) = site.begin_read(site.all_id, position)
    assert isinstance(answer, QueueRecords)
    assert (answer.records, answer.is_end) == ([], False)
    assert position < answer.next_position < site.bench.store.confirmed_position


async def test_what_is_on_the_disk_is_waited_for_elsewhere(site: Site, disk: SlowDisk) -> None:
    bodies = publish(site, 40)
    (first,) = site.begin_read(site.all_id)
    assert isinstance(first, QueueRecords)  # entries of the time before
    found = site.begin_read(site.all_id, first.next_position)
    assert found == []
    disk.waiting.pop()(None)
    (rest,) = found
    assert isinstance(rest, QueueRecords)
    assert [decode_record(record).body for record in (*first.records, *rest.records)] == bodies


async def test_a_queue_may_go_while_the_disk_is_waited_for(site: Site, disk: SlowDisk) -> None:
    publish(site, 40)
    found = site.begin_read(site.all_id, site.bench.store.confirmed_position - 1)
    assert await site.front.unsubscribe("c", site.epoch, "#") is None
    disk.waiting.pop()(None)
    (answer,) = found
    assert isinstance(answer, Refused)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_disk_that_fails_or_has_too_much_to_do_is_said(site: Site, disk: SlowDisk) -> None:
    publish(site, 40)
    position = site.bench.store.confirmed_position - 1
    found = site.begin_read(site.all_id, position)
    disk.waiting.pop()(OSError(5, "Input/output error"))
    (answer,) = found
    assert isinstance(answer, Refused)
    assert "Input/output error" in answer.remark


async def test_one_read_too_many_is_refused(site: Site, disk: SlowDisk) -> None:
    publish(site, 40)
    disk.is_full = True
    (answer,) = site.begin_read(site.all_id, site.bench.store.confirmed_position - 1)
    assert isinstance(answer, Refused)
    assert answer.code == ResponseCode.SYSTEM_BUSY


async def test_what_is_damaged_is_left_out(site: Site) -> None:
    bodies = publish(site, 30)
    places = site.bench.store.find_queue("T", 0)
    assert places is not None
    damaged = places.entry(25)
    assert damaged is not None
    (path,) = (site.bench.directory / "data" / "commitlog").glob("0*0")
    whole = overwrite(path, damaged[0], b"\xff" * 60)
    assert site.bodies(site.all_id) == bodies[:25] + bodies[26:]
    overwrite(path, damaged[0], whole)


def overwrite(path: Path, at: int, data: bytes) -> bytes:
    """What was there before."""
    with open(path, "r+b") as file:
        file.seek(at)
        before = file.read(len(data))
        file.seek(at)
        file.write(data)
    return before


async def test_a_queue_nobody_subscribes_is_not_read(site: Site) -> None:
    publish(site, 40)
    assert await site.front.unsubscribe("c", site.epoch, "#") is None
    (answer,) = site.begin_read(site.all_id)
    assert isinstance(answer, Refused)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
