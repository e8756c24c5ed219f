"""Pulls that wait for the disk: how many, in which order of things, and what the disk may say."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from eventually import soon

from iotmq.broker.broker import Broker
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.settings import BrokerSettings
from iotmq.errors import RequestError
from iotmq.message.hosts import encode_host
from iotmq.message.message_ids import offset_message_id
from iotmq.message.records.record import encode_batch, iter_records
from iotmq.remoting.codes import RequestCode, ResponseCode, Version
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.signature import Credentials, sign
from iotmq.store.queues.residency import ColdRead, Window
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)
WAIT_S = 20.0
PLAN = cast(ColdRead, None)


class SlowStore:
    """Loads wait until they may go on, and fail when told to."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.error: Exception | None = None

    def load(self, plan: ColdRead) -> None:
        assert self.may_go_on.wait(WAIT_S)
        if self.error is not None:
            raise self.error


@pytest.fixture
def slow() -> Iterator[SlowStore]:
    slow = SlowStore()
    yield slow
    slow.may_go_on.set()


def cold_reads(store: SlowStore, *, waiting_max: int = 10) -> ColdReads:
    return ColdReads(cast(Store, store), threads_max=2, waiting_max=waiting_max)


async def test_as_many_wait_as_may_and_one_more_is_told_so(slow: SlowStore) -> None:
    reads = cold_reads(slow, waiting_max=3)
    answers: asyncio.Queue[OSError | None] = asyncio.Queue()
    for _ in range(3):
        reads.start(PLAN, answers.put_nowait)
    with pytest.raises(RequestError, match="3 pulls wait for the disk already") as refusal:
        reads.start(PLAN, answers.put_nowait)
    assert refusal.value.code == ResponseCode.SYSTEM_BUSY
    slow.may_go_on.set()
    for _ in range(3):
        assert await asyncio.wait_for(answers.get(), WAIT_S) is None
    reads.start(PLAN, answers.put_nowait)
    assert await asyncio.wait_for(answers.get(), WAIT_S) is None
    metrics = {metric.name: metric.value for metric in reads.metrics()}
    assert metrics["iotmq_broker_cold_reads_total"] == 4
    assert metrics["iotmq_broker_refused_cold_reads_total"] == 1
    assert metrics["iotmq_broker_cold_reads_waiting"] == 0
    reads.stop()


async def test_what_the_disk_refuses_is_handed_on(slow: SlowStore) -> None:
    reads = cold_reads(slow)
    slow.error = OSError(5, "Input/output error")
    slow.may_go_on.set()
    answers: asyncio.Queue[OSError | None] = asyncio.Queue()
    reads.start(PLAN, answers.put_nowait)
    assert await asyncio.wait_for(answers.get(), WAIT_S) is slow.error
    assert reads.failed_count == 1
    reads.stop()


async def test_after_the_stop_nobody_is_answered(slow: SlowStore) -> None:
    reads = cold_reads(slow)
    answers: list[OSError | None] = []
    for _ in range(5):
        reads.start(PLAN, answers.append)
    reads.stop()
    slow.may_go_on.set()
    reads._threads.shutdown(wait=True)
    # Everything the threads have left for the loop.
    await asyncio.sleep(0)
    assert answers == []
    with pytest.raises(RequestError):
        reads.start(PLAN, answers.append)


class Site:
    """A broker whose old records are out of memory."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.store = Store.open(
            directory, StoreSettings(segment_bytes=8 << 20, hot_bytes=1 << 20), store_host=HOST
        )
        self.broker = Broker(
            BrokerSettings(**{"listen_port": 0, "registries": (), "cold_reads_max": 2, **settings}),
            self.store,
            directory=directory,
            store_host=HOST,
        )
        self.bodies = [b"%06d" % number + b"x" * 1000 for number in range(4000)]
        for at in range(0, 4000, 100):
            self.store.append(
                self.store.queue("T", 0),
                encode_batch((body, b"", 0) for body in self.bodies[at : at + 100]),
                born_timestamp_ms=1,
                born_host=HOST,
            )
        self.log_out()

    def log_out(self) -> None:
        (segment, *_) = self.store._log.segment_list()
        with Path(segment.path).open("rb") as file:
            os.fdatasync(file.fileno())
        window = Window(segment, 0, 2 << 20)
        window.drop()
        assert window.absent_pages() > 500

    async def pull(self, connection: ClientConnection, offset: int) -> Any:
        ext = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": "15000",
            "subscription": "*",
            "subVersion": "0",
        }
        return await connection.request(Command.request(RequestCode.PULL_MESSAGE, ext), timeout_s=WAIT_S)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.broker.start()
    site.broker.topics.ensure("T", queues=1)
    yield site
    await site.broker.stop()
    assert site.store.check() == []
    site.store.close()


async def test_a_cold_pull_is_answered_later_and_a_hot_one_meanwhile(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    load = site.store.load

    def slow_load(plan: ColdRead) -> None:
        assert may_go_on.wait(WAIT_S)
        load(plan)

    monkeypatch.setattr(site.store, "load", slow_load)
    connection = await ClientConnection.connect("127.0.0.1", site.broker.port)
    cold = [asyncio.create_task(site.pull(connection, offset)) for offset in (0, 500)]
    hot = await site.pull(connection, 3990)
    assert [record.body for record in iter_records(hot.body_bytes())] == site.bodies[3990:]
    assert not any(task.done() for task in cold)
    busy = await site.pull(connection, 1000)
    assert busy.code == ResponseCode.SYSTEM_BUSY
    info = await connection.request(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout_s=WAIT_S)
    assert b'"pullThreadPoolQueueSize":"2"' in info.body_bytes()
    assert b'"pullThreadPoolQueueCapacity":"2"' in info.body_bytes()
    may_go_on.set()
    for offset, task in zip((0, 500), cold, strict=True):
        response = await task
        got = [record.body for record in iter_records(response.body_bytes())]
        assert got == site.bodies[offset : offset + 32]
        assert response.ext["nextBeginOffset"] == str(offset + 32)
    from_disk = site.broker.statistics.find("GROUP_GET_FROM_DISK_NUMS", "T@g", "minute")
    everything = site.broker.statistics.find("GROUP_GET_NUMS", "T@g", "minute")
    assert from_disk is not None
    assert everything is not None
    assert (from_disk.sum, everything.sum) == (64, 74)
    assert site.broker.parts.cold_reads.longest_wait_ms == 0
    await connection.close()


async def test_a_disk_that_refuses_is_an_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(plan: ColdRead) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(site.store, "load", fail)
    connection = await ClientConnection.connect("127.0.0.1", site.broker.port)
    response = await site.pull(connection, 0)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "Input/output error" in response.remark
    await connection.close()


async def test_a_connection_that_ends_meanwhile_is_not_missed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, started = threading.Event(), threading.Event()

    def slow_load(plan: ColdRead) -> None:
        started.set()
        assert may_go_on.wait(WAIT_S)

    monkeypatch.setattr(site.store, "load", slow_load)
    connection = await ClientConnection.connect("127.0.0.1", site.broker.port)
    waiting = asyncio.create_task(site.pull(connection, 0))
    assert await asyncio.to_thread(started.wait, WAIT_S)
    await connection.close()
    await asyncio.gather(waiting, return_exceptions=True)
    may_go_on.set()
    monkeypatch.undo()
    again = await ClientConnection.connect("127.0.0.1", site.broker.port)
    response = await site.pull(again, 0)
    assert response.code == 0
    cold_reads = site.broker.parts.cold_reads
    # The first read ends in a thread of its own, maybe behind the second one.
    await soon(lambda: cold_reads.waiting_count == 0, "nobody waits for the disk any more")
    await again.close()


# --- every other request that reads what is stored --------------------------------------------------


MESSAGE_ID = offset_message_id("127.0.0.1", 10911, 0)
MEMBER = {"consumerGroup": "g", "clientId": "c"}
END = {"producerGroup": "g", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8",
       "msgId": "m"}  # fmt: skip
READS = {
    "give a message back": (36, {"offset": "0", "group": "g", "delayLevel": "0"}, 0),
    "end a transaction": (37, END, 1),
    "ask about a transaction again": (323, {"msgId": MESSAGE_ID}, 1),
    "have a message consumed": (309, {**MEMBER, "msgId": MESSAGE_ID}, 0),
    "how far a group is behind": (315, {"statsName": "GROUP_GET_FALL_TIME", "statsKey": "0@T@g"}, 0),
    "view a message": (33, {"offset": "0"}, 0),
}
HEARTBEAT = (
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY",'
    b'"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[]}]}'
)


def consume(connection: ClientConnection, request: Command) -> Command:
    return request.reply(0)


@pytest.mark.parametrize("name", list(READS))
async def test_whoever_asks_for_what_is_on_the_disk_holds_up_nobody(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    code, ext, expected = READS[name]
    may_go_on, is_asked = threading.Event(), threading.Event()
    load, loop_thread = site.store.load, threading.get_ident()
    loads_on_loop: list[ColdRead] = []

    def slow_load(plan: ColdRead) -> None:
        if threading.get_ident() == loop_thread:
            loads_on_loop.append(plan)
        is_asked.set()
        assert may_go_on.wait(WAIT_S)
        load(plan)

    connection = await ClientConnection.connect("127.0.0.1", site.broker.port, on_request=consume)
    beat = Command.request(RequestCode.HEART_BEAT, {}, HEARTBEAT)
    beat.version = Version.OURS
    assert (await connection.request(beat, timeout_s=WAIT_S)).code == 0
    site.broker.offsets.commit("g", "T", 0, 0)
    site.log_out()
    monkeypatch.setattr(site.store, "load", slow_load)
    reads = site.broker.parts.cold_reads.reads_count
    cold = connection.request(Command.request(code, ext), timeout_s=WAIT_S)
    assert await asyncio.to_thread(is_asked.wait, WAIT_S)
    hot = await site.pull(connection, 3990)
    assert [record.body for record in iter_records(hot.body_bytes())] == site.bodies[3990:]
    assert not cold.done()
    may_go_on.set()
    answer = await cold
    assert answer.code == expected, answer.remark
    assert site.broker.parts.cold_reads.reads_count > reads
    assert loads_on_loop == []
    await connection.close()


@pytest.mark.parametrize("name", list(READS))
async def test_what_the_disk_refuses_is_the_answer_of_every_request(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(plan: ColdRead) -> None:
        raise OSError(5, "Input/output error")

    code, ext, _ = READS[name]
    connection = await ClientConnection.connect("127.0.0.1", site.broker.port, on_request=consume)
    beat = Command.request(RequestCode.HEART_BEAT, {}, HEARTBEAT)
    beat.version = Version.OURS
    assert (await connection.request(beat, timeout_s=WAIT_S)).code == 0
    site.broker.offsets.commit("g", "T", 0, 0)
    site.log_out()
    monkeypatch.setattr(site.store, "load", fail)
    answer = await connection.request(Command.request(code, ext), timeout_s=WAIT_S)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "Input/output error" in (answer.remark or "")
    await connection.close()


async def test_runtime_info_does_not_wait_for_the_disk(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on = threading.Event()
    load = site.store.load

    def slow_load(plan: ColdRead) -> None:
        assert may_go_on.wait(WAIT_S)
        load(plan)

    monkeypatch.setattr(site.store, "load", slow_load)
    info = site.broker._admin.runtime_info
    info._earliest_position = -1
    assert info.table()["earliestMessageTimeStamp"] == "-1"
    assert site.broker.parts.cold_reads.waiting_count == 1
    assert info.table()["earliestMessageTimeStamp"] == "-1"
    assert site.broker.parts.cold_reads.waiting_count == 1
    may_go_on.set()
    await soon(lambda: info.table()["earliestMessageTimeStamp"] != "-1", "the time of the first record")


async def test_whose_a_record_is_is_read_off_the_loop_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").mkdir()
    accounts = "accounts: [{accessKey: consumer, secretKey: abcdefgh, topicPerms: [T=%s]}]"
    path = tmp_path / "config" / "plain_acl.yml"
    path.write_text(accounts % "SUB")
    path.chmod(0o600)
    site = Site(tmp_path, acl_enabled=True)
    await site.broker.start()
    loads: list[int] = []
    load = site.store.load

    def noted(plan: ColdRead) -> None:
        loads.append(threading.get_ident())
        load(plan)

    monkeypatch.setattr(site.store, "load", noted)
    connection = await ClientConnection.connect("127.0.0.1", site.broker.port)
    request = Command.request(33, {"offset": "0"})
    unsigned = await connection.request(Command.request(33, {"offset": "0"}), timeout_s=WAIT_S)
    assert (unsigned.code, loads) == (ResponseCode.NO_PERMISSION, [])
    sign(request, Credentials("consumer", "abcdefgh"))
    answer = await connection.request(request, timeout_s=WAIT_S)
    assert answer.code == 0
    assert next(iter_records(answer.body_bytes())).body == site.bodies[0]
    assert loads
    assert threading.get_ident() not in loads
    await connection.close()
    await site.broker.stop()
    site.store.close()
