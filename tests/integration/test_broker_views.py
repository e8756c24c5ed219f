"""What administrators look at, over the wire: who is there, how far groups are, what was counted, stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from broker_site import HOST, PULL, SEND, WAIT_S, Site
from eventually import soon

from iotmq import limits
from iotmq.message.hosts import encode_host
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import decode_record, encode_batch, iter_records
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import LanguageCode, RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.frames.frame import encode

MQ = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
MQ_TEXT = json.dumps(MQ, separators=(",", ":")).encode()
FIND = {"topic": "T", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.start()
    yield site
    await site.stop()


def body_of(response: Command) -> Any:
    assert response.code == 0, response.remark
    return json.loads(lenient_json.standard_json(response.body_bytes()))


async def view(site: Site, code: int, **ext: str) -> Any:
    return body_of(await site.ask(code, ext))


async def commit(site: Site, offset: int, *, group: str = "g", topic: str = "T", queue_id: int = 0) -> None:
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    assert (await site.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)).code == 0


class Client:
    """A client that answers the broker's questions as a test tells it to."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.asked: list[Command] = []
        self.answer: Callable[[Command], Command | None] = lambda request: None
        self.connection: ClientConnection

    async def connect(
        self,
        site: Site,
        *,
        group: str = "g",
        topics: tuple[str, ...] = ("T",),
        producer: str = "p",
        version: int = 409,
        expression: str = "A || B",
    ) -> Client:
        def on_request(connection: ClientConnection, request: Command) -> Command | None:
            self.asked.append(request)
            return self.answer(request)

        self.connection = await ClientConnection.connect("127.0.0.1", site.broker.port, on_request=on_request)
        subscriptions = [{"topic": topic, "subString": expression, "subVersion": 7} for topic in topics]
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": subscriptions,
        }
        body = {
            "clientID": self.client_id,
            "producerDataSet": [{"groupName": producer}] if producer else [],
            "consumerDataSet": [consumer] if group else [],
        }
        command = Command.request(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
        command.language, command.version = LanguageCode.GO, version
        assert (await self.connection.request(command, timeout_s=WAIT_S)).code == 0
        return self

    @property
    def address(self) -> str:
        host, port = self.connection._transport.get_extra_info("sockname")  # type: ignore[union-attr]
        return f"{host}:{port}"


async def test_the_consumers_of_a_group_are_there_right_after_the_heartbeat(site: Site) -> None:
    client = await Client("c1").connect(site)
    shown = await view(site, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
    assert shown == {
        "connectionSet": [{"clientAddr": client.address, "clientId": "c1", "language": "GO", "version": 409}],
        "subscriptionTable": {
            "T": {
                "classFilterMode": False,
                "codeSet": [65, 66],
                "expressionType": "TAG",
                "subString": "A || B",
                "subVersion": 7,
                "tagsSet": ["A", "B"],
                "topic": "T",
            }
        },
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    }
    await client.connection.close()
    await soon(lambda: site.broker.groups.consumer_group("g") is None, "the group is empty")
    gone = await site.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    assert gone.code == 206
    assert "consumerGroup" in (gone.remark or "")


async def test_producers_of_a_group_and_of_all(site: Site) -> None:
    client = await Client("c1").connect(site)
    member = {"clientAddr": client.address, "clientId": "c1", "language": "GO", "version": 409}
    shown = await view(site, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="p")
    assert shown == {"connectionSet": [member]}
    unknown = await site.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "q"})
    assert (unknown.code, "producerGroup" in (unknown.remark or "")) == (1, True)
    everybody = await view(site, RequestCode.GET_ALL_PRODUCER_INFO)
    (producer,) = everybody["data"]["p"]
    assert (producer["clientId"], producer["remoteIP"]) == ("c1", client.address)
    assert producer["lastUpdateTimestamp"] == site.clock.now_ms()
    await client.connection.close()
    await soon(lambda: not site.broker.groups.producers("p"), "the producer is gone")
    assert (await view(site, RequestCode.GET_ALL_PRODUCER_INFO)) == {"data": {}}


async def test_members_hear_of_a_member_whose_connection_ended(site: Site) -> None:
    first, second = await Client("c1").connect(site), await Client("c2").connect(site)
    await soon(lambda: len(first.asked) == 2, "told of the second member")
    await second.connection.close()
    await soon(lambda: len(first.asked) == 3, "told that it left")
    assert {request.code for request in first.asked} == {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
    ids = await view(site, RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    assert ids == {"consumerIdList": ["c1"]}
    await first.connection.close()


async def test_clients_expire_in_silence(site: Site) -> None:
    client = await Client("c1").connect(site)
    site.clock.advance(121)
    site.broker.expire()
    assert (await site.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})).code == 206
    assert (await site.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})).code == 1
    await client.connection.close()


async def test_every_client_is_listed_with_its_groups_in_parts(site: Site) -> None:
    clients = [await Client(f"c{number}").connect(site, topics=("T", "U")) for number in range(3)]
    first = await view(site, RequestCode.LIST_CLIENTS, maxNums="2")
    assert (first["count"], first["nextAfter"]) == (3, "c1")
    assert first["clients"][0] == {
        "clientId": "c0",
        "clientAddr": clients[0].address,
        "language": "GO",
        "version": 409,
        "lastUpdateTimestamp": site.clock.now_ms(),
        "producerGroups": ["p"],
        "consumers": [
            {
                "group": "g",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "topics": ["T", "U"],
            }
        ],
    }
    rest = await view(site, RequestCode.LIST_CLIENTS, maxNums="2", after=first["nextAfter"])
    assert ([client["clientId"] for client in rest["clients"]], rest["nextAfter"]) == (["c2"], None)
    one = await view(site, RequestCode.LIST_CLIENTS, clientId="c1")
    assert [client["clientId"] for client in one["clients"]] == ["c1"]
    assert (await view(site, RequestCode.LIST_CLIENTS, clientId="c9"))["clients"] == []
    most = limits.CLIENTS_LISTED_MAX
    assert (await site.ask(RequestCode.LIST_CLIENTS, {"maxNums": str(most)})).code == 0
    refused = await site.ask(RequestCode.LIST_CLIENTS, {"maxNums": str(most + 1)})
    assert (refused.code, "maxNums" in (refused.remark or "")) == (1, True)
    for client in clients:
        await client.connection.close()


async def test_the_groups_of_a_topic_are_the_live_and_those_with_offsets(site: Site) -> None:
    await site.send(b"one")
    client = await Client("c1").connect(site, group="live")
    await commit(site, 1, group="stored")
    shown = await view(site, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")
    assert shown == {"groupList": ["live", "stored"]}
    assert (await site.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "none"})).code == 17
    await client.connection.close()


async def test_how_far_a_group_is(site: Site) -> None:
    for _ in range(3):
        site.clock.advance(1)
        await site.send(b"one")
    await site.send(b"two", b="U")
    await commit(site, 2)
    await commit(site, 1, topic="U")
    response = await site.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "T"})
    row = b'%s:{"brokerOffset":3,"consumerOffset":2,"lastTimestamp":%d}'
    assert row % (MQ_TEXT, site.clock.now_ms() - 1_000) in response.body_bytes()
    whole = body_of(response)
    assert (len(whole["offsetTable"]), whole["consumeTps"]) == (4, 0.0)
    everything = await view(site, RequestCode.GET_CONSUME_STATS, consumerGroup="g")
    assert len(everything["offsetTable"]) == 8
    assert await view(site, RequestCode.GET_CONSUME_STATS, consumerGroup="unknown") == {
        "consumeTps": 0.0,
        "offsetTable": {},
    }
    # A live group that is not subscribed to U any more.
    client = await Client("c1").connect(site)
    assert len((await view(site, RequestCode.GET_CONSUME_STATS, consumerGroup="g"))["offsetTable"]) == 4
    await client.connection.close()


async def test_a_retry_topic_without_an_offset_belongs_to_how_far_a_group_is(site: Site) -> None:
    await site.send(b"one")
    await site.send(b"again", b="%RETRY%g")
    await commit(site, 1)
    whole = await view(site, RequestCode.GET_CONSUME_STATS, consumerGroup="g")
    (retry,) = [row for queue, row in whole["offsetTable"].items() if "%RETRY%g" in queue]
    assert (retry["brokerOffset"], retry["consumerOffset"]) == (1, 0)
    every = await view(site, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    assert every["totalDiff"] == 1


@pytest.mark.parametrize(
    ("code", "ext", "field"),
    [
        (RequestCode.QUERY_CONSUMER_OFFSET, {"topic": "T", "queueId": "0"}, "consumerGroup"),
        (RequestCode.GET_CONSUME_STATS, {}, "consumerGroup"),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T"}, "group"),
        (RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "T"}, "compareGroup"),
        (RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "T", "compareGroup": "g"}, "filterGroups"),
    ],
)
async def test_a_group_with_too_long_a_name_is_refused_by_its_field(
    site: Site, code: int, ext: dict[str, str], field: str
) -> None:
    await site.send(b"one")
    assert (await site.ask(code, {**ext, field: "g" * 255})).code == 0
    refused = await site.ask(code, {**ext, field: "g" * 256})
    assert refused.code == 1
    assert field in (refused.remark or "")


async def test_pulling_shows_as_the_speed_of_a_group(site: Site) -> None:
    for _ in range(20):
        await site.send(b"one")
    assert (await site.ask(RequestCode.PULL_MESSAGE, PULL)).code == 0
    site.clock.advance(10)
    await commit(site, 20)
    assert (await view(site, RequestCode.GET_CONSUME_STATS, consumerGroup="g"))["consumeTps"] == 2.0


async def test_how_far_all_groups_are(site: Site) -> None:
    await site.send(b"one")
    await site.send(b"two", b="U")
    await commit(site, 1)
    await commit(site, 0, topic="U", group="h")
    shown = await view(site, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    assert (shown["totalDiff"], shown["brokerAddr"]) == (1, site.broker.address)
    assert [list(entry) for entry in shown["consumeStatsList"]] == [["g"], ["h"]]
    assert len(shown["consumeStatsList"][0]["g"][0]["offsetTable"]) == 4
    ordered = await view(site, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true")
    assert ordered["consumeStatsList"] == []
    refused = await site.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "perhaps"})
    assert (refused.code, "isOrder" in (refused.remark or "")) == (1, True)


async def test_answers_about_thousands_of_queues_come_in_slices(site: Site) -> None:
    for number in range(20):
        site.broker.topics.ensure(f"W{number}", queues=1_024)
        site.broker.offsets.commit("g", f"W{number}", 0, 0)
    waiting = asyncio.ensure_future(site.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}))
    quick = await site.ask(RequestCode.GET_MAX_OFFSET, {"topic": "W0", "queueId": "0"})
    assert quick.code == 0
    assert not waiting.done()
    assert len(body_of(await waiting)["offsetTable"]) == 20 * 1_024


async def test_an_answer_that_fits_no_frame_is_an_error_that_says_what_to_ask(site: Site) -> None:
    name = "W" * 100
    for number in range(120):
        site.broker.topics.ensure(f"{name}{number}", queues=1_024)
        site.broker.offsets.commit("g", f"{name}{number}", 0, 0)
    refused = await site.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})
    assert (refused.code, "topic" in (refused.remark or "")) == (1, True)
    one = await view(site, RequestCode.GET_CONSUME_STATS, consumerGroup="g", topic=f"{name}7")
    assert len(one["offsetTable"]) == 1_024
    refused = await site.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert (refused.code, "one group" in (refused.remark or "")) == (1, True)


async def test_the_times_of_a_group(site: Site) -> None:
    began_ms = site.clock.now_ms()
    for _ in range(3):
        await site.send(b"one")
        site.clock.advance(1)
    await commit(site, 1)
    shown = await view(site, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="g")
    assert shown["consumeTimeSpanSet"][0] == {
        "messageQueue": MQ,
        "minTimeStamp": began_ms,
        "maxTimeStamp": began_ms + 2_000,
        "consumeTimeStamp": began_ms,
        "delayTime": 2_000,
    }
    assert shown["consumeTimeSpanSet"][1]["minTimeStamp"] == -1
    await commit(site, 3)
    shown = await view(site, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="g")
    assert shown["consumeTimeSpanSet"][0]["delayTime"] == 0
    unknown = await site.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "none", "group": "g"})
    assert unknown.code == 17


async def test_offsets_corrected_by_those_of_other_groups(site: Site) -> None:
    for _ in range(9):
        await site.send(b"one")
    for group, offset in (("g", 5), ("h", 7), ("slow", 2), ("ahead", 9)):
        await commit(site, offset, group=group)
    ask = {"topic": "T", "filterGroups": "slow"}
    shown = await view(site, RequestCode.QUERY_CORRECTION_OFFSET, **ask, compareGroup="ahead")
    assert shown == {"correctionOffsets": {"0": 5}}
    shown = await view(site, RequestCode.QUERY_CORRECTION_OFFSET, **ask, compareGroup="slow")
    assert shown == {"correctionOffsets": {"0": 2**63 - 1}}
    shown = await view(site, RequestCode.QUERY_CORRECTION_OFFSET, topic="T", compareGroup="unknown")
    assert shown == {"correctionOffsets": {"0": 2}}
    unknown = await site.ask(RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "none", "compareGroup": "g"})
    assert unknown.code == 17


async def test_messages_are_found_by_key_and_by_unique_key(site: Site) -> None:
    await site.send(b"one", i="KEYS\x01k1 k2\x02UNIQ_KEY\x01U1\x02")
    await site.send(b"two", i="KEYS\x01k2\x02UNIQ_KEY\x01U2\x02")
    await site.send(b"other", i="KEYS\x01U1\x02UNIQ_KEY\x01U3\x02")

    async def find(key: str, **changes: str) -> Command:
        return await site.ask(RequestCode.QUERY_MESSAGE, {**FIND, "key": key, **changes})

    async def bodies(key: str, **changes: str) -> list[bytes]:
        response = await find(key, **changes)
        assert response.code == 0, response.remark
        assert int(response.ext["indexLastUpdateTimestamp"]) == site.clock.now_ms()
        assert int(response.ext["indexLastUpdatePhyoffset"]) == site.store.appended_position
        return [record.body for record in iter_records(memoryview(response.body_bytes()))]

    assert await bodies("k2") == [b"two", b"one"]
    assert await bodies("k2", maxNum="1") == [b"two"]
    assert await bodies("U1", _UNIQUE_KEY_QUERY="false") == [b"other", b"one"]
    assert await bodies("U1", _UNIQUE_KEY_QUERY="true") == [b"one"]
    for changes in ({"key": "none"}, {"topic": "U"}, {"endTimestamp": "5"}, {"beginTimestamp": "9" * 18}):
        response = await site.ask(RequestCode.QUERY_MESSAGE, {**FIND, "key": "k2", **changes})
        assert (response.code, bool(response.remark)) == (22, True)
    missing = await site.ask(RequestCode.QUERY_MESSAGE, FIND)
    assert (missing.code, "key" in (missing.remark or "")) == (1, True)


async def test_what_is_found_is_limited_in_bytes_but_never_to_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(10):
        await site.send(b"x" * 1_000_000, i="KEYS\x01big\x02")
    response = await site.ask(RequestCode.QUERY_MESSAGE, {**FIND, "key": "big"})
    assert response.code == 0
    found = list(iter_records(memoryview(response.body_bytes())))
    size = len(response.body_bytes())
    assert len(found) == limits.QUERY_BYTES_MAX // found[0].size == 8
    assert size <= limits.QUERY_BYTES_MAX < size + found[0].size
    monkeypatch.setattr(limits, "QUERY_BYTES_MAX", 1_000)
    response = await site.ask(RequestCode.QUERY_MESSAGE, {**FIND, "key": "big"})
    assert len(list(iter_records(memoryview(response.body_bytes())))) == 1


async def test_the_entries_of_a_queue_and_whether_a_group_gets_them(site: Site) -> None:
    positions = [
        int((await site.send(b"one", i=f"TAGS\x01{tag}\x02")).ext["msgId"][16:], 16) for tag in ("A", "C")
    ]
    queue = {"topic": "T", "queueId": "0", "index": "0", "count": "10"}
    shown = await view(site, RequestCode.QUERY_CONSUME_QUEUE, **queue)
    assert (shown["minQueueIndex"], shown["maxQueueIndex"]) == (0, 2)
    assert [entry["physicOffset"] for entry in shown["queueData"]] == positions
    assert [entry["tagsCode"] for entry in shown["queueData"]] == [65, 67]
    client = await Client("c1").connect(site)
    shown = await view(site, RequestCode.QUERY_CONSUME_QUEUE, **queue, consumerGroup="g")
    assert [entry["eval"] for entry in shown["queueData"]] == [True, False]
    assert shown["subscriptionData"]["tagsSet"] == ["A", "B"]
    shown = await view(site, RequestCode.QUERY_CONSUME_QUEUE, **queue, consumerGroup="other")
    assert shown["filterData"] == "other@T is not online"
    behind = await site.ask(RequestCode.QUERY_CONSUME_QUEUE, {**queue, "index": "2"})
    assert (body_of(behind)["queueData"], "index" in (behind.remark or "")) == ([], True)
    for changes, code, field in (
        ({"count": str(limits.QUEUE_ENTRIES_LISTED_MAX + 1)}, 1, "count"),
        ({"queueId": "3"}, 1, "queueId"),
        ({"topic": "none"}, 17, "topic"),
    ):
        refused = await site.ask(RequestCode.QUERY_CONSUME_QUEUE, {**queue, **changes})
        assert (refused.code, field in (refused.remark or "")) == (code, True)
    most = {**queue, "count": str(limits.QUEUE_ENTRIES_LISTED_MAX)}
    assert (await site.ask(RequestCode.QUERY_CONSUME_QUEUE, most)).code == 0
    await client.connection.close()


async def test_what_was_counted_is_asked_by_name(site: Site) -> None:
    body = encode_batch([(b"x" * 50, b"", 0) for _ in range(10)])
    assert (await site.ask(RequestCode.SEND_BATCH_MESSAGE, SEND, body)).code == 0
    assert (await site.ask(RequestCode.PULL_MESSAGE, PULL)).code == 0
    site.clock.advance(10)

    async def statistic(name: str, key: str) -> Any:
        return await view(site, RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)

    put = await statistic("TOPIC_PUT_NUMS", "T")
    counted = {"avgpt": 10.0, "sum": 10, "tps": 1.0}
    assert put == {"statsMinute": counted, "statsHour": counted, "statsDay": counted}
    assert (await statistic("GROUP_GET_NUMS", "T@g"))["statsDay"]["sum"] == 10
    assert (await statistic("BROKER_PUT_NUMS", "DefaultCluster"))["statsHour"]["sum"] == 10
    await commit(site, 4)
    behind = (await statistic("GROUP_GET_FALL_SIZE", "0@T@g"))["statsMinute"]["sum"]
    assert 6 * 50 < behind < site.store.appended_position
    assert (await statistic("GROUP_GET_FALL_TIME", "0@T@g"))["statsDay"]["sum"] == 10_000
    await commit(site, 10)
    assert (await statistic("GROUP_GET_FALL_SIZE", "0@T@g"))["statsMinute"]["sum"] == 0
    for name, key, field in (
        ("TOPIC_PUT_NUMS", "unknown", "statsKey"),
        ("GROUP_GET_FALL_SIZE", "0@T@unknown", "statsKey"),
        ("GROUP_GET_FALL_SIZE", "T", "statsKey"),
        ("BROKER_PUT_NUMS", "other", "statsKey"),
        ("NO_SUCH_NAME", "T", "statsName"),
    ):
        refused = await site.ask(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
        assert (refused.code, field in (refused.remark or "")) == (1, True)


async def test_messages_given_back_are_counted(site: Site) -> None:
    sent = await site.send(b"hard")
    ext = {"offset": str(int(sent.ext["msgId"][16:], 16)), "group": "g", "delayLevel": "0"}
    assert (await site.ask(RequestCode.CONSUMER_SEND_MESSAGE_BACK, ext)).code == 0
    shown = await view(site, RequestCode.VIEW_BROKER_STATS_DATA, statsName="SNDBCK_PUT_NUMS", statsKey="T@g")
    assert shown["statsMinute"]["sum"] == 1


async def test_the_topics_the_broker_made_itself(site: Site) -> None:
    shown = await view(site, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster"} <= set(shown["topicList"])
    assert shown["brokerAddr"] == site.broker.address


async def test_runtime_info_is_of_what_happened(site: Site) -> None:
    for _ in range(5):
        await site.send(b"one")
    assert (await site.ask(RequestCode.PULL_MESSAGE, PULL)).code == 0
    assert (await site.ask(RequestCode.PULL_MESSAGE, {**PULL, "queueOffset": "5"})).code == 19
    site.clock.advance(3_661)
    table = (await view(site, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert table["runtime"] == "[ 0 days, 1 hours, 1 minutes, 1 seconds ]"
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("5", "5")
    assert (table["getMessageFoundTimes"], table["getMessageMissTimes"]) == ("1", "1")
    counted = [int(part.rpartition(":")[2]) for part in table["putMessageDistributeTime"].split()]
    assert sum(counted) >= 5
    assert 0 < float(table["putLatency99"]) <= float(table["putLatency999"])
    assert int(table["pullThreadPoolQueueSize"]) == 0
    assert f"commitLogDiskRatio_{site.directory / 'commitlog'}" in table
    assert "B, Free : " in table["commitLogDirCapacity"]
    sums = await view(site, RequestCode.GET_ALL_DELAY_OFFSET)
    assert "offsetTable" in sums
    for name in (
        "bootTimestamp", "brokerVersion", "brokerVersionDesc", "putTps", "getFoundTps", "getMissTps",
        "getTotalTps", "getTransferedTps", "putMessageTimesTotal", "putMessageSizeTotal",
        "putMessageAverageSize", "putMessageEntireTimeMax", "getMessageEntireTimeMax",
        "putMessageFailedTimes", "commitLogMinOffset", "commitLogMaxOffset", "commitLogDiskRatio",
        "consumeQueueDiskRatio", "scheduleMessageOffset_1", "dispatchBehindBytes", "dispatchMaxBuffer",
        "pageCacheLockTimeMills", "remainHowManyDataToFlush", "remainTransientStoreBufferNumbs",
        "earliestMessageTimeStamp", "startAcceptSendRequestTimeStamp", "msgPutTotalYesterdayMorning",
        "msgPutTotalTodayMorning", "sendThreadPoolQueueSize", "sendThreadPoolQueueCapacity",
        "sendThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueSize", "EndTransactionQueueSize",
    ):  # fmt: skip
        assert name in table


async def test_midnight_moves_the_totals_of_the_day(site: Site) -> None:
    await site.send(b"one")
    site.broker.sample()
    site.clock.advance(86_400)
    site.broker.sample()
    await site.send(b"two")
    table = (await view(site, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert (table["msgPutTotalTodayMorning"], table["msgPutTotalTodayNow"]) == ("1", "2")


async def test_a_moved_offset_is_an_event(site: Site) -> None:
    await site.send(b"one")
    assert (await site.ask(RequestCode.PULL_MESSAGE, {**PULL, "queueOffset": "7"})).code == 21
    response = await site.ask(RequestCode.PULL_MESSAGE, {**PULL, "topic": "OFFSET_MOVED_EVENT"})
    (record,) = iter_records(memoryview(response.body_bytes()))
    properties = decode_properties(record.properties)
    assert (properties["TAGS"], properties["KEYS"]) == ("g", "g")
    assert json.loads(record.body) == {
        "consumerGroup": "g",
        "messageQueue": MQ,
        "offsetNew": 1,
        "offsetRequest": 7,
    }


async def test_a_broken_consumer_makes_only_so_many_events_a_second(site: Site) -> None:
    site.broker.topics.ensure("T", queues=4)
    most = limits.OFFSET_MOVED_EVENTS_PER_S_MAX
    for _ in range(most + 5):
        assert (await site.ask(RequestCode.PULL_MESSAGE, {**PULL, "queueOffset": "7"})).code == 21
    end = {"topic": "OFFSET_MOVED_EVENT", "queueId": "0"}
    assert (await site.ask(RequestCode.GET_MAX_OFFSET, end)).ext["offset"] == str(most)
    site.clock.advance(1)
    assert (await site.ask(RequestCode.PULL_MESSAGE, {**PULL, "queueOffset": "7"})).code == 21
    assert (await site.ask(RequestCode.GET_MAX_OFFSET, end)).ext["offset"] == str(most + 1)


async def test_a_clients_running_info_is_passed_on_as_it_is(site: Site) -> None:
    client = await Client("c1").connect(site)
    client.answer = lambda request: (
        None
        if request.is_oneway
        else request.reply(0, remark="fine", ext={"x": "y"}, body=b'{"properties":{}}')
    )
    ask = {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "true"}
    response = await site.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, ask)
    assert (response.code, response.remark, response.ext) == (0, "fine", {"x": "y"})
    assert response.body_bytes() == b'{"properties":{}}'
    assert client.asked[-1].ext == ask
    proofs = {"AccessKey": "key", "Signature": "c2lnbmF0dXJl", "SecurityToken": "t", "OnsChannel": "ALIYUN"}
    assert (await site.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {**ask, **proofs})).code == 0
    assert client.asked[-1].ext == ask
    for changes in ({"clientId": "c2"}, {"consumerGroup": "h"}):
        offline = await site.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {**ask, **changes})
        assert (offline.code, "clientId" in (offline.remark or "")) == (206, True)
    missing = await site.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g"})
    assert (missing.code, "clientId" in (missing.remark or "")) == (1, True)
    await client.connection.close()


async def test_a_client_that_is_too_old_is_not_asked(site: Site) -> None:
    client = await Client("c1").connect(site, version=61)
    refused = await site.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "c1"})
    assert (refused.code, "3.1.8" in (refused.remark or "")) == (1, True)
    await client.connection.close()


async def test_a_client_that_goes_or_is_silent_does_not_keep_the_asker_waiting(tmp_path: Path) -> None:
    site = Site(tmp_path, relay_timeout_s=0.05)
    await site.start()
    silent, leaving = await Client("c1").connect(site), await Client("c2").connect(site)
    ask = {"consumerGroup": "g"}
    late = await site.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {**ask, "clientId": "c1"})
    assert (late.code, "c1" in (late.remark or "")) == (207, True)

    def leave(request: Command) -> None:
        if not request.is_oneway:
            leaving.connection.abort("gone")

    leaving.answer = leave
    gone = await site.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {**ask, "clientId": "c2"})
    assert (gone.code, "c2" in (gone.remark or "")) == (206, True)
    await silent.connection.close()
    await site.stop()


async def test_an_asker_that_goes_harms_nobody(site: Site) -> None:
    client = await Client("c1").connect(site)
    asker = await Client("a").connect(site, group="", producer="x")
    question = Command.request(
        RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g", "clientId": "c1"}
    )
    asked = asker.connection.request(question)
    await soon(lambda: any(request.code == 307 for request in client.asked), "the client is asked")
    asker.connection.abort("gone")
    await soon(lambda: not site.broker.groups.producers("x"), "the asker is gone")
    (request,) = [request for request in client.asked if request.code == 307]
    client.connection.reply(request.reply(0, body=b"{}"))
    client.answer = lambda request: None if request.is_oneway else request.reply(0, body=b"{}")
    assert (await site.ask(307, {"consumerGroup": "g", "clientId": "c1"})).code == 0
    with pytest.raises(Exception, match="connection"):
        await asked
    await client.connection.close()


async def test_only_so_many_questions_wait_for_clients(site: Site) -> None:
    client = await Client("c1").connect(site)
    ask = {"consumerGroup": "g", "clientId": "c1"}
    waiting = [asyncio.ensure_future(site.ask(307, ask)) for _ in range(limits.RELAYS_MAX)]
    await soon(
        lambda: sum(request.code == 307 for request in client.asked) == limits.RELAYS_MAX, "all are asked"
    )
    busy = await site.ask(307, ask)
    assert (busy.code, bool(busy.remark)) == (2, True)
    for request in client.asked:
        if request.code == 307:
            client.connection.reply(request.reply(0))
    assert {response.code for response in await asyncio.gather(*waiting)} == {0}
    client.answer = lambda request: None if request.is_oneway else request.reply(0)
    assert (await site.ask(307, ask)).code == 0
    await client.connection.close()


async def test_a_question_too_large_to_pass_on_is_answered_and_takes_no_place(site: Site) -> None:
    client = await Client("c1").connect(site)
    ask = {"consumerGroup": "g", "clientId": "c1", "brokerName": ""}
    # Fits a frame with two bytes left; the broker's name needs more.
    empty = encode(Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, ask))
    header_size = sum(len(buffer) for buffer in empty)
    body = b"x" * (limits.FRAME_BYTES_MAX - header_size - 2)
    response = await site.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ask, body)
    assert (response.code, bool(response.remark)) == (1, True)
    assert [request.code for request in client.asked] == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    assert site.broker._admin._relays._running == 0
    await client.connection.close()


async def test_a_message_is_given_to_one_client_and_its_result_comes_back(site: Site) -> None:
    client = await Client("c1").connect(site)
    result = (
        b'{"order":false,"autoCommit":true,"consumeResult":"CR_SUCCESS","remark":null,"spentTimeMills":3}'
    )
    client.answer = lambda request: None if request.is_oneway else request.reply(0, body=result)
    message_id = (await site.send(b"again")).ext["msgId"]
    ask = {"consumerGroup": "g", "clientId": "c1", "msgId": message_id}
    response = await site.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, ask)
    assert response.body_bytes() == result
    asked = client.asked[-1]
    assert decode_record(asked.body_bytes()).body == b"again"
    assert asked.ext == {**ask, "brokerName": "broker-a"}
    other_host = encode_host("10.0.0.1", 10911).hex().upper()
    for bad in ("nonsense", message_id[:-1] + "F", other_host + message_id[len(HOST) * 2 :]):
        refused = await site.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, {**ask, "msgId": bad})
        assert (refused.code, "msgId" in (refused.remark or "")) == (1, True)
    await client.connection.close()


async def test_the_offsets_of_all_clients_of_a_group_come_together(site: Site) -> None:
    first, second = await Client("c1").connect(site), await Client("c2").connect(site)

    def status(table: bytes) -> Callable[[Command], Command | None]:
        return lambda request: (
            None if request.is_oneway else request.reply(0, body=b'{"messageQueueTable":%s}' % table)
        )

    first.answer = status(b"{{%s}:5}" % MQ_TEXT[1:-1])
    second.answer = status(b"{}")
    ask = {"topic": "T", "group": "g"}
    response = await site.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ask)
    assert b'"c1":{%s:5}' % MQ_TEXT in response.body_bytes()
    shown = body_of(response)
    assert (set(shown["consumerTable"]), shown["messageQueueTable"]) == ({"c1", "c2"}, {})
    assert first.asked[-1].code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    assert first.asked[-1].ext == ask
    only = await view(site, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **ask, clientAddr="c2")
    assert set(only["consumerTable"]) == {"c2"}
    # One that cannot tell leaves the other's answer; when nobody can, that is the answer.
    first.answer = lambda request: None if request.is_oneway else request.reply(1, remark="not started")
    shown = await view(site, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **ask)
    assert set(shown["consumerTable"]) == {"c2"}
    second.answer = status(b'{"nonsense":1}')
    failed = await site.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ask)
    assert failed.code == 1
    for changes in ({"group": "h"}, {"clientAddr": "c9"}):
        offline = await site.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {**ask, **changes})
        assert offline.code == 206
    await first.connection.close()
    await second.connection.close()


async def test_a_group_is_asked_with_so_many_clients_and_no_more(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits.RELAYED_CLIENTS_MAX == 1_024
    monkeypatch.setattr(limits, "RELAYED_CLIENTS_MAX", 2)
    clients = []
    for name in ("c1", "c2", "c3"):
        clients.append(await Client(name).connect(site))
        clients[-1].answer = lambda request: (
            None if request.is_oneway else request.reply(0, body=b'{"messageQueueTable":{}}')
        )
        response = await site.ask(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g"}
        )
        assert response.code == (1 if name == "c3" else 0)
    assert "has 3 clients" in (response.remark or "")
    only = await view(
        site, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="g", clientAddr="c3"
    )
    assert set(only["consumerTable"]) == {"c3"}
    for client in clients:
        await client.connection.close()


async def test_a_message_track_is_three_questions(site: Site) -> None:
    """As mqadmin follows a message: who consumes its topic, who is connected, who is past it."""
    offset = int((await site.send(b"tracked")).ext["queueOffset"])
    await site.send(b"later")
    client = await Client("c1").connect(site)
    await commit(site, offset + 1)
    await commit(site, offset, group="offline")
    states = {}
    for group in (await view(site, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T"))["groupList"]:
        connected = await site.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
        stats = await view(site, RequestCode.GET_CONSUME_STATS, consumerGroup=group, topic="T")
        row = stats["offsetTable"][MQ_TEXT.decode()]
        states[group] = (connected.code, row["consumerOffset"] > offset)
    assert states == {"g": (0, True), "offline": (206, False)}
    await client.connection.close()


async def test_a_deleted_topic_leaves_no_statistics(site: Site) -> None:
    await site.send(b"one")
    ask = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
    assert (await site.ask(RequestCode.VIEW_BROKER_STATS_DATA, ask)).code == 0
    assert (await site.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    assert (await site.ask(RequestCode.VIEW_BROKER_STATS_DATA, ask)).code == 1


async def test_what_is_looked_for_by_key_is_brought_into_memory_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [await site.send(b"x" * 500, i="KEYS\x01k\x02") for _ in range(2)]
    positions = [int(answer.ext["msgId"][16:], 16) for answer in reversed(sent)]
    planned: list[list[tuple[int, int]]] = []
    loaded: list[str] = []
    plans = iter(["where sizes stand", "records"])

    def plan(places: Any) -> Any:
        planned.append(list(places))
        return next(plans, None)

    monkeypatch.setattr(site.store, "plan_records", plan)
    monkeypatch.setattr(site.store, "load", loaded.append)
    response = await site.ask(RequestCode.QUERY_MESSAGE, {**FIND, "key": "k"})
    records = list(iter_records(memoryview(response.body_bytes())))
    assert [record.position for record in records] == positions
    assert loaded == ["where sizes stand", "records"]
    assert planned == [
        [(position, 4) for position in positions],
        [(record.position, record.size) for record in records],
    ]


async def test_a_disk_that_gives_nothing_is_the_answer_to_a_query(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.send(b"x", i="KEYS\x01k\x02")

    def fail(plan: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(site.store, "plan_records", lambda places: "a plan")
    monkeypatch.setattr(site.store, "load", fail)
    response = await site.ask(RequestCode.QUERY_MESSAGE, {**FIND, "key": "k"})
    assert (response.code, "Input/output error" in (response.remark or "")) == (1, True)
