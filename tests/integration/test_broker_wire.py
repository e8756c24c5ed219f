"""A real broker over a real store, driven through real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from eventually import STOP_S, soon, until
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.broker import Broker
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.writing import message_writer
from iotmq.errors import StoreFullError, StoreReadOnlyError
from iotmq.message.hosts import encode_host
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import decode_record, encode_batch, iter_records
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.server import Listening, RemotingServer
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)
WAIT_S = 30.0

SEND = {
    "a": "pg",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "",
}
PULL = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "6",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "0",
}
QUEUE = {"topic": "T", "queueId": "0"}


class Site:
    """One broker and the connections a test opens to it."""

    def __init__(self, directory: Path, *, flush: str = "async", **settings: Any) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.store = Store.open(
            directory,
            StoreSettings(segment_bytes=8 << 20, flush=flush),  # type: ignore[arg-type]
            store_host=HOST,
            clock=self.clock,
        )
        defaults: dict[str, Any] = {"listen_port": 0, "registries": (), **settings}
        self.broker = Broker(
            BrokerSettings(**defaults), self.store, directory=directory, store_host=HOST, clock=self.clock
        )
        self.connections: list[ClientConnection] = []

    async def connect(self, told: list[Command] | None = None) -> ClientConnection:
        def on_request(connection: ClientConnection, request: Command) -> None:
            if told is not None:
                told.append(request)

        connection = await ClientConnection.connect("127.0.0.1", self.broker.port, on_request=on_request)
        self.connections.append(connection)
        return connection

    async def stop(self) -> None:
        for connection in self.connections:
            await connection.close()
        await self.broker.stop()
        assert self.store.check() == []
        self.store.close()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path / "data")
    await site.broker.start()
    yield site
    await site.stop()


@pytest.fixture
async def client(site: Site) -> ClientConnection:
    return await site.connect()


async def ask(
    connection: ClientConnection, code: int, ext: dict[str, str] | None = None, body: bytes = b""
) -> Command:
    return await connection.request(Command.request(code, ext or {}, body), timeout_s=WAIT_S)


async def ok(
    connection: ClientConnection, code: int, ext: dict[str, str] | None = None, body: bytes = b""
) -> Command:
    response = await ask(connection, code, ext, body)
    assert response.code == 0, response
    return response


async def send(connection: ClientConnection, body: bytes = b"hello", **changes: str) -> Command:
    return await ok(connection, RequestCode.SEND_MESSAGE_V2, {**SEND, **changes}, body)


async def pull(connection: ClientConnection, **changes: str) -> Command:
    return await ask(connection, RequestCode.PULL_MESSAGE, {**PULL, **changes})


def bodies(response: Command) -> list[bytes]:
    return [record.body for record in iter_records(response.body_bytes())]


def beat(client_id: str = "c1", group: str = "g", topic: str = "T") -> bytes:
    subscription = {"topic": topic, "subString": "*", "subVersion": 1}
    consumer = {"groupName": group, "messageModel": "CLUSTERING", "subscriptionDataSet": [subscription]}
    return json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode()


async def test_what_is_sent_can_be_pulled(site: Site, client: ClientConnection) -> None:
    first = await send(client, b"one")
    second = await send(client, b"two")
    assert (first.ext["queueOffset"], second.ext["queueOffset"]) == ("0", "1")
    response = await pull(client)
    assert response.code == 0
    assert bodies(response) == [b"one", b"two"]
    assert (response.ext["nextBeginOffset"], response.ext["maxOffset"]) == ("2", "2")


async def test_a_batch_and_large_pulls(site: Site, client: ClientConnection) -> None:
    body = encode_batch([(b"%d" % number, b"", 0) for number in range(1_000)])
    answer = await ok(client, RequestCode.SEND_BATCH_MESSAGE, SEND, body)
    assert len(answer.ext["msgId"].split(",")) == 1_000
    assert len(bodies(await pull(client, maxMsgNums="5000"))) == 32
    response = await pull(client, maxMsgNums="5000", maxMsgBytes=str(1 << 22))
    assert bodies(response) == [b"%d" % number for number in range(1_000)]


async def test_a_parked_pull_is_woken_by_the_append_it_waits_for(site: Site) -> None:
    consumer, producer = await site.connect(), await site.connect()
    await send(producer, b"first")
    waiting = asyncio.ensure_future(pull(consumer, queueOffset="1"))
    other = asyncio.ensure_future(pull(consumer, queueId="1"))
    await until(lambda: len(site.broker.native.parked_pulls) == 2)
    await send(producer, b"second")
    assert bodies(await waiting) == [b"second"]
    assert not other.done()
    await send(producer, b"third", e="1")
    assert bodies(await other) == [b"third"]


async def test_a_parked_pull_ends_empty(site: Site, client: ClientConnection) -> None:
    await send(client)
    waiting = asyncio.ensure_future(pull(client, queueOffset="1"))
    await until(lambda: len(site.broker.native.parked_pulls) == 1)
    site.clock.advance(15.1)
    site.broker.expire()
    response = await waiting
    assert (response.code, response.remark) == (19, "OFFSET_OVERFLOW_ONE")


async def test_a_closed_connection_leaves_no_parked_pull(site: Site, client: ClientConnection) -> None:
    await send(client)
    consumer = await site.connect()
    waiting = asyncio.ensure_future(pull(consumer, queueOffset="1"))
    await until(lambda: len(site.broker.native.parked_pulls) == 1)
    await consumer.close()
    await until(lambda: len(site.broker.native.parked_pulls) == 0)
    with pytest.raises(Exception, match="connection"):
        await waiting


async def test_thousands_of_parked_pulls_wake_one_by_one(site: Site, client: ClientConnection) -> None:
    await ok(
        client,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {
            "topic": "Wide",
            "defaultTopic": "TBW102",
            "readQueueNums": "1000",
            "writeQueueNums": "1000",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
        },
    )
    # Their time is that of the manual clock; the timer that looks at the rest of them runs by the real one.
    words = {"topic": "Wide", "suspendTimeoutMillis": "500"}
    waiting = [
        asyncio.ensure_future(pull(client, **words, queueId=str(queue_id))) for queue_id in range(1_000)
    ]
    await until(lambda: len(site.broker.native.parked_pulls) == 1_000)
    await send(client, b"x", b="Wide", e="777")
    assert bodies(await waiting[777]) == [b"x"]
    assert len(site.broker.native.parked_pulls) == 999
    assert sum(future.done() for future in waiting) == 1
    site.clock.advance(1)
    site.broker.expire()
    assert {response.code for response in await asyncio.gather(*waiting)} == {0, 19}


async def test_under_synchronous_flush_the_answer_comes_after_the_flush(tmp_path: Path) -> None:
    site = Site(tmp_path / "data", flush="sync")
    await site.broker.start()
    client = await site.connect()
    answers = await asyncio.gather(*(send(client, b"%d" % number) for number in range(50)))
    assert site.store.flushed_position == site.store.appended_position
    assert [answer.ext["queueOffset"] for answer in answers] == [str(number) for number in range(50)]
    assert len(bodies(await pull(client, maxMsgNums="50", maxMsgBytes="1000000"))) == 50
    await site.stop()


async def test_a_stop_finishes_what_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long the disk takes, which other tests are using.
    monkeypatch.setattr(message_writer, "_DRAIN_S", STOP_S / 2)
    site = Site(tmp_path / "data", flush="sync")
    await site.broker.start()
    client = await site.connect()
    taken = [asyncio.ensure_future(send(client, b"%d" % number)) for number in range(20)]
    await until(lambda: site.broker.writer.records_count == 20)
    async with asyncio.timeout(STOP_S):
        await site.broker.stop()
    assert [(await answer).ext["queueOffset"] for answer in taken] == [str(number) for number in range(20)]
    assert site.store.flushed_position == site.store.appended_position
    await site.stop()


@pytest.mark.parametrize("error", [StoreFullError("no space left"), StoreReadOnlyError("a flush failed")])
async def test_a_disk_that_takes_nothing_refuses_sends_and_serves_pulls(
    site: Site, client: ClientConnection, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await send(client, b"before")

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(site.store, "append", refuse)
        # What a store that refuses says to those who append many batches.
        patch.setattr(site.store, "begin_appends", lambda: -1)
        refused = await ask(client, RequestCode.SEND_MESSAGE_V2, SEND, b"lost")
        assert refused.code == 14
        assert str(error) in (refused.remark or "")
        assert str(site.directory) in (refused.remark or "")
        assert not site.broker.writer.is_writable
        assert bodies(await pull(client)) == [b"before"]
    site.clock.advance(1)
    await send(client, b"after")
    assert bodies(await pull(client)) == [b"before", b"after"]


async def test_topics_that_cannot_be_saved_still_serve(
    site: Site, client: ClientConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site.directory / "config" / "topics.json.tmp").mkdir()
    await send(client, b"kept", b="New")
    assert bodies(await pull(client, topic="New")) == [b"kept"]
    (site.directory / "config" / "topics.json.tmp").rmdir()


async def test_a_topic_made_by_a_send_survives_a_restart(tmp_path: Path) -> None:
    site = Site(tmp_path / "data")
    await site.broker.start()
    await send(await site.connect(), b"kept", b="New", e="3")
    await site.stop()

    again = Site(tmp_path / "data")
    await again.broker.start()
    client = await again.connect()
    assert bodies(await pull(client, topic="New", queueId="3")) == [b"kept"]
    answer = await ask(client, RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "New", "e": "4"})
    assert answer.code == 1
    await again.stop()


async def test_auto_create_can_be_turned_off(tmp_path: Path) -> None:
    site = Site(tmp_path / "data", auto_create_topics=False)
    await site.broker.start()
    client = await site.connect()
    response = await ask(client, RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "New"})
    assert response.code == 17
    assert "New" in (response.remark or "")
    await site.stop()


async def test_topics_are_on_the_disk_without_a_clean_stop(site: Site, client: ClientConnection) -> None:
    await send(client, b="New")

    def stored() -> dict[str, Any]:
        table = json.loads((site.directory / "config" / "topics.json").read_text())["topicConfigTable"]
        found: dict[str, Any] = table.get("New", {})
        return found

    assert (await soon(stored, "the topic in topics.json"))["writeQueueNums"] == 4


async def test_offsets_of_groups(site: Site, client: ClientConnection) -> None:
    of_group = {**QUEUE, "consumerGroup": "g"}
    for _ in range(3):
        await send(client)
    # A young queue is consumed from its beginning by a new group.
    assert (await ok(client, RequestCode.QUERY_CONSUMER_OFFSET, of_group)).ext == {"offset": "0"}
    await ok(client, RequestCode.UPDATE_CONSUMER_OFFSET, {**of_group, "commitOffset": "2"})
    assert (await ok(client, RequestCode.QUERY_CONSUMER_OFFSET, of_group)).ext == {"offset": "2"}
    await ok(client, RequestCode.UPDATE_CONSUMER_OFFSET, {**of_group, "commitOffset": "99"})
    assert (await ok(client, RequestCode.QUERY_CONSUMER_OFFSET, of_group)).ext == {"offset": "3"}
    table = msgspec.json.decode((await ok(client, RequestCode.GET_ALL_CONSUMER_OFFSET)).body_bytes())
    assert table == {"offsetTable": {"T@g": {"0": 3}}}


async def test_offsets_are_written_every_few_seconds_and_on_stop(tmp_path: Path) -> None:
    site = Site(tmp_path / "data", offsets_interval_s=0.05)
    await site.broker.start()
    client = await site.connect()
    await send(client)
    await send(client)
    path = site.directory / "config" / "consumerOffset.json"
    commit = {**QUEUE, "consumerGroup": "g", "commitOffset": "1"}
    await ok(client, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    await until(path.exists)
    await ok(client, RequestCode.UPDATE_CONSUMER_OFFSET, {**commit, "commitOffset": "2"})
    await site.stop()
    assert json.loads(path.read_text()) == {"offsetTable": {"T@g": {"0": 2}}}


async def test_offsets_past_the_end_after_a_loss_are_set_back(tmp_path: Path) -> None:
    path = tmp_path / "data" / "config" / "consumerOffset.json"
    first = Site(tmp_path / "data")
    await first.broker.start()
    await send(await first.connect())
    await first.stop()
    path.write_text('{"offsetTable":{"T@g":{0:7}}}')
    again = Site(tmp_path / "data")
    await again.broker.start()
    assert again.broker.offsets.find("g", "T", 0) == 1
    await again.stop()


async def test_offsets_of_queues(site: Site, client: ClientConnection) -> None:
    assert (await ask(client, RequestCode.GET_MAX_OFFSET, QUEUE)).code == 17
    await send(client, e="1")
    assert (await ok(client, RequestCode.GET_MAX_OFFSET, QUEUE)).ext == {"offset": "0"}
    assert (await ok(client, RequestCode.GET_EARLIEST_MESSAGE_STORE_TIME, QUEUE)).ext == {"timestamp": "-1"}
    stored_ms = [site.clock.now_ms()]
    await send(client)
    site.clock.advance(10)
    stored_ms.append(site.clock.now_ms())
    await send(client)
    assert (await ok(client, RequestCode.GET_MAX_OFFSET, QUEUE)).ext == {"offset": "2"}
    assert (await ok(client, RequestCode.GET_MIN_OFFSET, QUEUE)).ext == {"offset": "0"}
    earliest = await ok(client, RequestCode.GET_EARLIEST_MESSAGE_STORE_TIME, QUEUE)
    assert earliest.ext == {"timestamp": str(stored_ms[0])}
    for timestamp_ms, offset in [(0, "0"), (stored_ms[1], "1"), (stored_ms[1] + 9_999, "1")]:
        search = {**QUEUE, "timestamp": str(timestamp_ms)}
        assert (await ok(client, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)).ext == {"offset": offset}


async def test_a_consumer_is_listed_right_after_its_heartbeat(site: Site, client: ClientConnection) -> None:
    listing = {"consumerGroup": "g"}
    unknown = await ask(client, RequestCode.GET_CONSUMER_LIST_BY_GROUP, listing)
    assert unknown.code == 1
    assert "no consumer for this group" in (unknown.remark or "")
    await ok(client, RequestCode.HEART_BEAT, body=beat())
    response = await ok(client, RequestCode.GET_CONSUMER_LIST_BY_GROUP, listing)
    assert msgspec.json.decode(response.body_bytes()) == {"consumerIdList": ["c1"]}
    retry = site.broker.topics.find("%RETRY%g")
    assert retry is not None
    assert (retry.queue_count, retry.perm) == (1, 6)


async def test_members_are_told_of_every_change(site: Site) -> None:
    told: list[Command] = []
    first, second = await site.connect(told), await site.connect()
    await ok(first, RequestCode.HEART_BEAT, body=beat("c1"))
    await until(lambda: len(told) == 1)
    await ok(second, RequestCode.HEART_BEAT, body=beat("c2"))
    await until(lambda: len(told) == 2)
    await ok(second, RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "g"})
    await until(lambda: len(told) == 3)
    await ok(second, RequestCode.HEART_BEAT, body=beat("c2"))
    await second.close()
    await until(lambda: len(told) == 5)
    assert {(request.code, request.ext["consumerGroup"], request.is_oneway) for request in told} == {
        (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, "g", True)
    }
    listing = await ok(first, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
    assert msgspec.json.decode(listing.body_bytes()) == {"consumerIdList": ["c1"]}


async def test_a_silent_member_expires(site: Site, client: ClientConnection) -> None:
    await ok(client, RequestCode.HEART_BEAT, body=beat())
    site.clock.advance(121)
    site.broker.expire()
    assert (await ask(client, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})).code == 1


async def test_queue_locks(site: Site, client: ClientConnection) -> None:
    await send(client)
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}

    async def lock(client_id: str, queues: list[Any], code: int = RequestCode.LOCK_BATCH_QUEUES) -> bytes:
        body = {"clientId": client_id, "consumerGroup": "g", "mqSet": queues}
        return (await ok(client, code, body=json.dumps(body).encode())).body_bytes()

    assert json.loads(await lock("c1", [queue, {**queue, "queueId": 99}])) == {"lockOKMQSet": [queue]}
    assert json.loads(await lock("c2", [queue])) == {"lockOKMQSet": []}
    await lock("c1", [queue], RequestCode.UNLOCK_BATCH_QUEUES)
    assert json.loads(await lock("c2", [queue])) == {"lockOKMQSet": [queue]}


async def test_a_lock_request_names_at_most_so_many_queues(site: Site, client: ClientConnection) -> None:
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
    for count, code in (
        (limits.LOCKED_QUEUES_PER_REQUEST_MAX, 0),
        (limits.LOCKED_QUEUES_PER_REQUEST_MAX + 1, 1),
    ):
        body = {"clientId": "c", "consumerGroup": "g", "mqSet": [queue] * count}
        response = await ask(client, RequestCode.LOCK_BATCH_QUEUES, body=json.dumps(body).encode())
        assert response.code == code, response


async def test_a_topic_has_at_most_so_many_queues(site: Site, client: ClientConnection) -> None:
    topic = {"topic": "Wide", "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    most = str(limits.QUEUES_PER_TOPIC_MAX)
    more = str(limits.QUEUES_PER_TOPIC_MAX + 1)
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    await ok(client, code, {**topic, "readQueueNums": most, "writeQueueNums": most})
    for name in ("readQueueNums", "writeQueueNums"):
        refused = await ask(
            client, code, {**topic, "readQueueNums": most, "writeQueueNums": most, name: more}
        )
        assert refused.code == 1
        assert name in (refused.remark or "")


async def test_administration_of_topics_and_groups(site: Site, client: ClientConnection) -> None:
    topic = {
        "topic": "Made",
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "3",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "true",
    }
    await ok(client, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
    table = msgspec.json.decode((await ok(client, RequestCode.GET_ALL_TOPIC_CONFIG)).body_bytes())
    assert table["topicConfigTable"]["Made"] == {
        "order": True,
        "perm": 6,
        "readQueueNums": 2,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "Made",
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }
    assert table["dataVersion"]["counter"] > 0
    one = await ok(client, RequestCode.GET_TOPIC_CONFIG, {"topic": "Made", "lo": "true"})
    assert msgspec.json.decode(one.body_bytes()) == table["topicConfigTable"]["Made"]
    missing = await ask(client, RequestCode.GET_TOPIC_CONFIG, {"topic": "Missing"})
    assert (missing.code, missing.remark) == (17, "the field topic names Missing, which does not exist")
    fixed = await ask(client, RequestCode.UPDATE_AND_CREATE_TOPIC, {**topic, "topic": "TBW102"})
    assert fixed.code == 1

    group = b'{"groupName":"g2","retryMaxTimes":3,"brokerId":0,"unknown":{0:1}}\n'
    await ok(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=group)
    groups = msgspec.json.decode(
        (await ok(client, RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG)).body_bytes()
    )
    assert groups["subscriptionGroupTable"]["g2"]["retryMaxTimes"] == 3
    assert groups["subscriptionGroupTable"]["g2"]["retryQueueNums"] == 1
    assert (site.directory / "config" / "subscriptionGroup.json").exists()


async def test_topic_stats_have_queues_as_keys(site: Site, client: ClientConnection) -> None:
    await send(client, e="1")
    body = (await ok(client, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})).body_bytes()
    key = b'{"brokerName":"broker-a","queueId":1,"topic":"T"}'
    row = b'{"lastUpdateTimestamp":%d,"maxOffset":1,"minOffset":0}' % site.clock.now_ms()
    assert body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:')
    assert key + b":" + row in body
    assert (await ask(client, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "U"})).code == 17


async def test_runtime_info_has_what_the_cluster_list_reads(site: Site, client: ClientConnection) -> None:
    await send(client)
    table = msgspec.json.decode((await ok(client, RequestCode.GET_BROKER_RUNTIME_INFO)).body_bytes())["table"]
    assert all(isinstance(value, str) for value in table.values())
    for name in ("putTps", "getTransferedTps"):
        assert len([float(part) for part in table[name].split(" ")]) == 3
    assert int(table["earliestMessageTimeStamp"]) == site.clock.now_ms()
    assert 0 <= float(table["commitLogDiskRatio"]) <= 1
    assert table["putMessageTimesTotal"] == "1"
    assert int(table["msgPutTotalTodayNow"]) == 1


async def test_a_record_can_be_viewed_by_its_position(site: Site, client: ClientConnection) -> None:
    position = int((await send(client, b"seen")).ext["msgId"][16:], 16)
    view = await ok(client, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position)})
    assert decode_record(view.body_bytes()).body == b"seen"
    wrong = await ask(client, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position + 1)})
    assert wrong.code == 1
    assert "offset" in (wrong.remark or "")


async def test_a_delayed_send_waits_for_its_level(site: Site, client: ClientConnection) -> None:
    answer = await send(client, b"later", e="2", i="KEYS\x01k\x02DELAY\x012")
    assert answer.ext["queueId"] == "2"
    assert (await ok(client, RequestCode.GET_MAX_OFFSET, {**QUEUE, "queueId": "2"})).ext == {"offset": "0"}
    site.clock.advance(5)
    site.broker.expire()
    assert bodies(await pull(client, queueId="2")) == [b"later"]
    delays = await ok(client, RequestCode.GET_ALL_DELAY_OFFSET)
    assert msgspec.json.decode(delays.body_bytes())["offsetTable"]["2"] == 1


async def give_back(client: ClientConnection, position: int, **changes: str) -> Command:
    ext = {"offset": str(position), "group": "g", "delayLevel": "0", "maxReconsumeTimes": "2", **changes}
    return await ask(client, RequestCode.CONSUMER_SEND_MESSAGE_BACK, ext)


async def test_a_message_that_was_sent_with_the_most_tries_is_given_back(
    site: Site, client: ClientConnection
) -> None:
    await ok(client, RequestCode.HEART_BEAT, body=beat())
    answer = await send(client, b"hard", j=str(2**31 - 1))
    assert (await give_back(client, int(answer.ext["msgId"][16:], 16))).code == 0
    (dead,) = await retries(client, "%DLQ%g")
    assert (dead.body, dead.reconsume_times) == (b"hard", 2**31 - 1)


async def retries(client: ClientConnection, topic: str) -> list[Any]:
    response = await pull(client, topic=topic, sysFlag="4")
    return list(iter_records(response.body_bytes())) if response.code == 0 else []


async def test_a_message_given_back_is_tried_again_later_and_at_last_a_dead_letter(
    site: Site, client: ClientConnection
) -> None:
    await ok(client, RequestCode.HEART_BEAT, body=beat())
    answer = await send(client, b"hard", i="KEYS\x01k\x02")
    position = int(answer.ext["msgId"][16:], 16)
    assert (await give_back(client, position)).code == 0
    assert await retries(client, "%RETRY%g") == []
    site.clock.advance(10)
    site.broker.expire()
    (first,) = await retries(client, "%RETRY%g")
    properties = decode_properties(first.properties)
    assert (first.body, first.reconsume_times) == (b"hard", 1)
    assert properties["RETRY_TOPIC"] == "T"
    assert properties["ORIGIN_MESSAGE_ID"] == answer.ext["msgId"]
    assert (properties["DELAY"], properties["REAL_TOPIC"], properties["WAIT"]) == ("3", "%RETRY%g", "false")

    assert (await give_back(client, first.position)).code == 0
    site.clock.advance(29.9)
    site.broker.expire()
    assert len(await retries(client, "%RETRY%g")) == 1
    site.clock.advance(0.1)
    site.broker.expire()
    second = (await retries(client, "%RETRY%g"))[1]
    assert second.reconsume_times == 2

    assert (await give_back(client, second.position)).code == 0
    (dead,) = await retries(client, "%DLQ%g")
    assert (dead.body, dead.reconsume_times) == (b"hard", 3)
    properties = decode_properties(dead.properties)
    assert properties["ORIGIN_MESSAGE_ID"] == answer.ext["msgId"]
    # As in the original: it waits no more, and it tells where it had waited for last.
    assert (properties["DELAY"], properties["REAL_TOPIC"], properties["WAIT"]) == ("0", "%RETRY%g", "false")
    assert not dead.properties.endswith(b"\x02")


async def test_giving_back_by_level_and_what_is_refused(site: Site, client: ClientConnection) -> None:
    position = int((await send(client)).ext["msgId"][16:], 16)
    assert (await give_back(client, position, delayLevel="1")).code == 0
    assert (await give_back(client, position, delayLevel="-1")).code == 0
    site.clock.advance(1)
    site.broker.expire()
    assert len(await retries(client, "%RETRY%g")) == 1
    assert len(await retries(client, "%DLQ%g")) == 1
    wrong = await give_back(client, position + 1)
    assert wrong.code == 1
    assert "offset" in (wrong.remark or "")
    none = b'{"groupName":"none","retryQueueNums":0}'
    await ok(client, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=none)
    assert (await give_back(client, position, group="none")).code == 0
    assert site.broker.topics.find("%RETRY%none") is None


async def test_codes_nobody_serves_get_3(client: ClientConnection) -> None:
    response = await ask(client, 9_999)
    assert response.code == 3
    assert "9999" in (response.remark or "")


REQUIRED: list[tuple[int, dict[str, str]]] = [
    (RequestCode.SEND_MESSAGE_V2, {key: value for key, value in SEND.items() if key != "i"}),
    (RequestCode.SEND_BATCH_MESSAGE, {key: value for key, value in SEND.items() if key != "i"}),
    (RequestCode.PULL_MESSAGE, {key: value for key, value in PULL.items() if key != "subscription"}),
    (RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "g", **QUEUE}),
    (RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g", **QUEUE, "commitOffset": "0"}),
    (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**QUEUE, "timestamp": "0"}),
    (RequestCode.GET_MAX_OFFSET, QUEUE),
    (RequestCode.GET_MIN_OFFSET, QUEUE),
    (RequestCode.GET_EARLIEST_MESSAGE_STORE_TIME, QUEUE),
    (RequestCode.UNREGISTER_CLIENT, {"clientID": "c"}),
    (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}),
    (RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
    (RequestCode.CONSUMER_SEND_MESSAGE_BACK, {"offset": "0", "group": "g", "delayLevel": "0"}),
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {
            "topic": "T2",
            "defaultTopic": "TBW102",
            "readQueueNums": "1",
            "writeQueueNums": "1",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
        },
    ),
]
TEXTS = {"group", "a", "b", "c", "topic", "consumerGroup", "clientID", "defaultTopic", "topicFilterType"}


async def test_each_required_field_is_named_when_it_is_missing_or_no_number(
    site: Site, client: ClientConnection
) -> None:
    await send(client)
    for code, ext in REQUIRED:
        for name in ext:
            missing = await ask(client, code, {key: value for key, value in ext.items() if key != name})
            assert missing.code == 1, (code, name)
            assert name in (missing.remark or ""), (code, name)
            if name not in TEXTS:
                wrong = await ask(client, code, {**ext, name: "12x"})
                assert wrong.code == 1, (code, name)
                assert name in (wrong.remark or ""), (code, name)
    assert len(bodies(await pull(client))) == 1


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_QUEUES,
        RequestCode.UNLOCK_BATCH_QUEUES,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP,
    ],
)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"{}", b"\xff\xfe", b'{"clientID":3}', b'{"mqSet":[{}]}']
)
async def test_bad_bodies_get_code_1_and_a_reason(client: ClientConnection, code: int, body: bytes) -> None:
    response = await ask(client, code, body=body)
    assert response.code == 1
    assert response.remark


async def test_a_oneway_request_gets_no_answer(site: Site, client: ClientConnection) -> None:
    client.send_oneway(Command.request(RequestCode.SEND_MESSAGE_V2, SEND, b"quiet", oneway=True))
    client.send_oneway(Command.request(9_999, oneway=True))
    assert bodies(await pull(client)) == [b"quiet"]


class FakeRegistry:
    """Answers registrations; remembers what it was told."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.requests: list[Command] = []
        self.server = RemotingServer(self)

    def handle(self, connection: Any, request: Command) -> Command:
        self.requests.append(request)
        return request.reply(self.code, remark="no" if self.code else None, body=b'{"table":{}}')

    def connection_lost(self, connection: Any) -> None:
        pass


async def test_every_registry_is_told_at_start_on_change_and_at_the_end(tmp_path: Path) -> None:
    registries = [FakeRegistry(), FakeRegistry(code=1), FakeRegistry()]
    for registry in registries:
        await registry.server.start()
    dead_port = registries[2].server.port
    await registries[2].server.stop()
    addresses = tuple(f"127.0.0.1:{registry.server.port}" for registry in registries)
    site = Site(tmp_path / "data", registries=addresses)
    await site.broker.start()
    good = registries[0]
    await until(lambda: len(good.requests) == 1)
    told = good.requests[0]
    assert told.code == RequestCode.REGISTER_BROKER
    assert told.ext == {
        "brokerName": "broker-a",
        "brokerAddr": f"127.0.0.1:{site.broker.port}",
        "clusterName": "DefaultCluster",
        "haServerAddr": "",
        "brokerId": "0",
        "compressed": "false",
        "bodyCrc32": "0",
        "isWhole": "true",
    }
    wrapper = msgspec.json.decode(told.body_bytes())["topicConfigSerializeWrapper"]
    assert wrapper["topicConfigTable"]["TBW102"]["perm"] == 7

    await send(await site.connect(), b="New")
    await until(lambda: len(good.requests) == 2)
    newer = msgspec.json.decode(good.requests[1].body_bytes())["topicConfigSerializeWrapper"]
    assert "New" in newer["topicConfigTable"]
    assert newer["dataVersion"]["counter"] > wrapper["dataVersion"]["counter"]

    samples = {
        (metric.name, metric.labels): metric.value
        for metric in site.broker.metrics()
        if "regist" in metric.name
    }
    dead = (("registry", f"127.0.0.1:{dead_port}"),)
    assert samples[("iotmq_broker_registered", dead)] == 0
    assert samples[("iotmq_broker_failed_registrations_total", dead)] >= 1
    await site.stop()
    assert good.requests[-1].code == RequestCode.UNREGISTER_BROKER
    for registry in registries[:2]:
        await registry.server.stop()


async def test_a_registry_that_comes_back_is_told_again(tmp_path: Path) -> None:
    first = FakeRegistry()
    await first.server.start()
    port = first.server.port
    site = Site(tmp_path / "data", registries=(f"127.0.0.1:{port}",))
    await site.broker.start()
    await site.broker.wait_registered(5.0)
    assert len(first.requests) == 1
    assert site.broker.not_ready_reason is None
    await first.server.stop()
    reason = f"not registered with any registry (127.0.0.1:{port})"
    await until(lambda: site.broker.not_ready_reason == reason)
    second = FakeRegistry()
    second.server = RemotingServer(second, Listening(port=port))
    await second.server.start()
    await until(lambda: site.broker.not_ready_reason is None)
    assert second.requests
    await site.stop()
    await second.server.stop()
