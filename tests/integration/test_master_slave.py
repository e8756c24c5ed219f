"""Master and slave in the way of RocketMQ 4.9: what a send is told, what a slave has, serves and refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from broker_site import SEND
from eventually import soon
from static_pair import SEGMENT_BYTES, Node, Pair

from iotmq.errors import StoreError
from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import NUMBERED_FIELD, RequestCode, ResponseCode
from iotmq.replication.rocketmq.ha_master import FRAME_HEADER, REPORT
from iotmq.replication.settings import ReplicationSettings

NO_WAIT = "WAIT\x01false\x02"


def log_bytes(node: Node, end_position: int) -> bytes:
    """The first bytes of a log's files, one behind the other."""
    files = sorted((node.directory / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files)[:end_position]


async def test_a_slave_has_the_masters_log_to_the_byte_and_serves_it(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        for number in range(40):
            assert await pair.master.send(b"%d " % number + b"b" * 60_000) == 0
        await pair.level()
        await pair.poll()
        end_position = pair.master.store.appended_position
        assert end_position > 2 * SEGMENT_BYTES, "there are blanks among it"
        assert log_bytes(pair.slave, end_position) == log_bytes(pair.master, end_position)
        first, second = await pair.slave.bodies(), await pair.master.bodies()
        assert first == second != []
        assert pair.slave.store.check() == []


async def test_a_slave_that_was_away_goes_on_where_its_log_ends(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        assert await pair.master.send(b"1") == 0
        await pair.level()
        await pair.slave.stop()
        await soon(lambda: pair.master.role.ha.reported_position < 0, "the slave is gone")
        assert await pair.master.send(b"2") == 0
        await pair.slave.start()
        await pair.level()
        await pair.poll()
        assert await pair.slave.bodies() == [b"1", b"2"]


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_a_pull_parked_at_a_slave_wakes_when_the_message_comes(tmp_path: Path, flush: str) -> None:
    pair = Pair(tmp_path)
    pair.slave.store_settings["flush"] = flush
    async with pair:
        await pair.master.send(b"1")
        await pair.level()
        await pair.poll()
        waiting = asyncio.ensure_future(
            pair.slave.pull(queueOffset="1", sysFlag="6", suspendTimeoutMillis="20000")
        )
        parked = pair.slave.broker.native.parked_pulls
        await soon(lambda: len(parked) == 1, "the pull is parked")
        await pair.master.send(b"2")
        async with asyncio.timeout(10):
            answer = await waiting
        assert answer.code == 0
        assert answer.ext["nextBeginOffset"] == "2"


# What sends to a sync master are told.


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_a_send_to_a_sync_master_is_answered_when_the_slave_has_it(tmp_path: Path, flush: str) -> None:
    pair = Pair(tmp_path, "sync_master")
    pair.master.store_settings["flush"] = pair.slave.store_settings["flush"] = flush
    async with pair:
        # The first makes the topic and goes the general path, the others the fast one.
        for number in range(5):
            assert await pair.master.send(b"%d" % number) == 0
            assert pair.slave.store.appended_position == pair.master.store.appended_position
            if flush == "sync":
                assert pair.slave.store.flushed_position == pair.slave.store.appended_position


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_without_a_slave_it_is_told_so_at_once_and_stored(tmp_path: Path, flush: str) -> None:
    master = Node(tmp_path, role="sync_master", slave_timeout_ms=100_000)
    master.store_settings["flush"] = flush
    await master.start()
    async with asyncio.timeout(20):
        codes = [await master.send(b"%d" % number) for number in range(3)]
        assert codes == [ResponseCode.SLAVE_NOT_AVAILABLE] * 3
        assert await master.send(b"3", i=NO_WAIT) == 0
    await soon(lambda: master.store.queue("T", 0).max_offset == 4, "all of them are on the disk")
    assert await master.bodies() == [b"0", b"1", b"2", b"3"]
    await master.stop()


class SilentSlave:
    """Connects, reports what it is told to, and takes no notice of the rest."""

    async def connect(self, master: Node, position: int) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", master.port + 1)
        self.report(position)
        await soon(lambda: master.role.ha.reported_position == position, "it is heard")

    def report(self, position: int) -> None:
        self.writer.write(REPORT.pack(position))

    def close(self) -> None:
        self.writer.close()


@pytest.mark.parametrize("flush", ["async", "sync"])
async def test_a_slave_that_is_too_slow_is_waited_for_until_the_timeout(tmp_path: Path, flush: str) -> None:
    master = Node(tmp_path, role="sync_master", slave_timeout_ms=150)
    master.store_settings["flush"] = flush
    await master.start()
    slave = SilentSlave()
    await slave.connect(master, 0)
    codes = [await master.send(b"%d" % number) for number in range(3)]
    assert codes == [ResponseCode.FLUSH_SLAVE_TIMEOUT] * 3
    assert await master.send(b"3", i=NO_WAIT) == 0
    await soon(lambda: master.store.queue("T", 0).max_offset == 4, "all of them are on the disk")
    assert await master.bodies() == [b"0", b"1", b"2", b"3"]
    slave.close()
    await soon(lambda: master.role.ha.reported_position < 0, "the slave is gone")
    assert await master.send(b"4") == ResponseCode.SLAVE_NOT_AVAILABLE
    await master.stop()


async def test_sends_wait_until_the_slave_reports_their_end(tmp_path: Path) -> None:
    master = Node(tmp_path, role="sync_master", slave_timeout_ms=100_000)
    await master.start()
    slave = SilentSlave()
    await slave.connect(master, 0)
    sends = [asyncio.ensure_future(master.send(b"%d" % number)) for number in range(3)]
    store = master.store
    await soon(lambda: store.queue("T", 0).max_offset == 3, "they are stored")
    assert not any(send.done() for send in sends), "stored, and at no slave"
    end_position = store.appended_position
    # It was sent all of it.
    header = FRAME_HEADER.size
    await slave.reader.readexactly(header)
    slave.report(end_position - 1)
    await soon(lambda: sends[0].done() and sends[1].done(), "the slave has the first two")
    assert not sends[2].done()
    slave.report(end_position)
    assert await asyncio.gather(*sends) == [0, 0, 0]
    slave.close()
    await master.stop()


async def test_a_stop_tells_those_who_wait_that_no_slave_has_it(tmp_path: Path) -> None:
    master = Node(tmp_path, role="sync_master", slave_timeout_ms=100_000)
    await master.start()
    slave = SilentSlave()
    await slave.connect(master, 0)
    send = asyncio.ensure_future(master.send(b"1"))
    await soon(lambda: master.store.queue("T", 0).max_offset == 1, "it is stored")
    stopping = asyncio.ensure_future(master.role.stop())
    assert await send == ResponseCode.FLUSH_SLAVE_TIMEOUT
    await stopping
    await master.client.close()
    slave.close()
    master.store.close()


# What a slave refuses and serves.


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (RequestCode.SEND_MESSAGE, 14),
        (RequestCode.SEND_MESSAGE_V2, 14),
        (RequestCode.SEND_BATCH_MESSAGE, 14),
        (RequestCode.CONSUMER_SEND_MESSAGE_BACK, 14),
        (RequestCode.END_TRANSACTION, 11),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, 1),
        (RequestCode.DELETE_TOPIC_IN_BROKER, 1),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, 1),
        (RequestCode.DELETE_SUBSCRIPTION_GROUP, 1),
        (RequestCode.ADD_QUEUES, 1),
        (RequestCode.ATTACH_FILTERS, 14),
        (RequestCode.OPEN_SESSION, 14),
    ],
)
async def test_a_slave_refuses_what_is_its_masters(tmp_path: Path, code: int, expected: int) -> None:
    async with Pair(tmp_path) as pair:
        answer = await pair.slave.ask(code, dict(SEND), b"x")
        assert answer.code == expected
        assert "slave" in (answer.remark or "")
        assert pair.slave.store.appended_position == 0


async def test_a_slave_serves_heartbeats_consumer_lists_offsets_and_queries(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        await pair.master.send(b"1", i="UNIQ_KEY\x01K1\x02")
        await pair.level()
        await pair.poll()
        slave = pair.slave
        beat = {
            "clientID": "c1",
            "consumerDataSet": [
                {
                    "groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [],
                }
            ],
            "producerDataSet": [],
        }  # fmt: skip
        assert (await slave.ask(RequestCode.HEART_BEAT, {}, json.dumps(beat).encode())).code == 0
        members = await slave.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
        assert json.loads(members.body_bytes()) == {"consumerIdList": ["c1"]}
        queue = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
        assert (await slave.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**queue, "commitOffset": "1"})).code == 0
        assert (await slave.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue)).ext["offset"] == "1"
        assert (await slave.ask(RequestCode.GET_MAX_OFFSET, queue)).ext["offset"] == "1"
        fields = {
            "topic": "T",
            "key": "K1",
            "maxNum": "1",
            "beginTimestamp": "0",
            "endTimestamp": str(1 << 60),
        }
        found = await slave.ask(RequestCode.QUERY_MESSAGE, {**fields, "_UNIQUE_KEY_QUERY": "true"})
        assert found.code == 0


async def test_a_slave_ignores_the_commit_of_a_pull_and_corrects_no_offset(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        await pair.master.send(b"1")
        await pair.level()
        await pair.poll()
        await pair.slave.pull(sysFlag="5", commitOffset="1")
        assert pair.slave.broker.offsets.find("g", "T", 0) is None
        answer = await pair.slave.pull(queueOffset="9")
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.ext["suggestWhichBrokerId"] == "0"
        assert (await pair.master.pull(queueOffset="9")).code == ResponseCode.PULL_OFFSET_MOVED


async def test_a_reader_far_behind_is_sent_to_a_slave_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("master", "slave"):
        monkeypatch.setattr(f"iotmq.master_slave.{module}.slave_read_behind_bytes", lambda: 100_000)
    pair = Pair(tmp_path, slave_read_enabled=True)
    pair.slave.replication["slave_read_enabled"] = True
    async with pair:
        for _ in range(4):
            await pair.master.send(b"b" * 50_000)
        await pair.level()
        await pair.poll()
        for node in (pair.master, pair.slave):
            far = await node.pull(maxMsgNums="1")
            near = await node.pull(maxMsgNums="1", queueOffset="3")
            assert (far.ext["suggestWhichBrokerId"], near.ext["suggestWhichBrokerId"]) == ("1", "0")
            config = (await node.ask(RequestCode.GET_BROKER_CONFIG)).body_bytes().decode()
            assert "slaveReadEnable=true" in config


async def test_nobody_is_sent_to_a_slave_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotmq.master_slave.master.slave_read_behind_bytes", lambda: 0)
    async with Pair(tmp_path) as pair:
        for _ in range(4):
            await pair.master.send(b"b" * 50_000)
        assert (await pair.master.pull(maxMsgNums="1")).ext["suggestWhichBrokerId"] == "0"


# Tables.


async def test_the_masters_tables_come_over_and_offsets_never_go_back(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        topic = {
            "topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3",
            "perm": "6", "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip
        assert (await pair.master.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
        group = b'{"groupName":"workers","retryMaxTimes":7}'
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP
        assert (await pair.master.ask(code, {}, group)).code == 0
        await pair.master.send(b"1", b="Orders", i="DELAY\x011\x02")
        await pair.level()
        master, slave = pair.master.broker, pair.slave.broker
        master.offsets.commit("g", "T", 0, 5)
        slave.offsets.commit("g", "T", 0, 9)
        slave.offsets.commit("g", "T", 1, 1)
        master.offsets.commit("g", "T", 1, 2)
        await pair.poll()
        assert slave.topics.find("Orders") == master.topics.find("Orders")
        assert slave.topics.encode() == master.topics.encode()
        assert slave.subscription_groups.encode() == master.subscription_groups.encode()
        assert (slave.offsets.find("g", "T", 0), slave.offsets.find("g", "T", 1)) == (9, 2)
        written = json.loads((pair.slave.directory / "config" / "delayOffset.json").read_text())
        assert written == json.loads(master.delay_offsets.encode())
        # The same version again: what the slave has made itself meanwhile stays only until another one.
        former = slave.topics.find("Orders")
        await pair.poll()
        assert slave.topics.find("Orders") is former
        assert (await pair.master.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Orders"})).code == 0
        await pair.poll()
        assert slave.topics.find("Orders") is None


async def test_a_master_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        await pair.poll()
        assert pair.slave.role.tables.failures_count == 0
        await pair.master.stop()
        await pair.poll()
        assert pair.slave.role.tables.failures_count == 1
        await pair.master.start()
        await pair.poll()
        assert pair.slave.role.tables.failures_count == 1


# Roles change by a restart.


async def test_a_slave_goes_on_as_master_of_everything(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        for number in range(3):
            await pair.master.send(b"%d" % number)
        await pair.master.send(b"late", i="DELAY\x011\x02")
        await pair.level()
        pair.master.broker.offsets.commit("g", "T", 0, 2)
        await pair.poll()
        await pair.master.stop()
        assert await pair.slave.bodies() == [b"0", b"1", b"2"], "it serves without its master"
        await pair.slave.stop()
        promoted = pair.slave
        promoted.replication = {"role": "async_master"}
        await promoted.start()
        assert await promoted.send(b"3") == 0
        assert promoted.broker.offsets.find("g", "T", 0) == 2
        await soon(lambda: promoted.store.queue("T", 0).max_offset == 5, "the delayed message is delivered")
        assert sorted(await promoted.bodies()) == [b"0", b"1", b"2", b"3", b"late"]


async def numbered(node: Node, *numbers: int) -> list[int]:
    """Send numbered batches of one message, as a task of Spark's sink does; the codes of the answers."""
    codes = []
    for number in numbers:
        mark = {"BATCH_NUMBER": f"query/0 5 {number} 0 1 words"}
        body = encode_batch([(b"number %d" % number, encode_properties(mark), 0)])
        fields = {**SEND, "m": "true", NUMBERED_FIELD: "true"}
        codes.append((await node.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body)).code)
    return codes


async def test_a_promoted_slave_knows_which_numbered_batches_it_has(tmp_path: Path) -> None:
    """A sender goes on where that is all of them, and else repeats its batch; nothing is stored twice."""
    last = {"topic": "T", "producer": "query/0"}
    async with Pair(tmp_path) as pair:
        assert await pair.master.send(b"first") == 0
        assert await numbered(pair.master, 0, 1, 2) == [0, 0, 0]
        await pair.level()
        await pair.poll()
        refused = await pair.slave.ask(RequestCode.LAST_BATCH_NUMBER, last)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE, "it may be behind"
        await pair.slave.stop()
        # Acknowledged by the master alone.
        assert await numbered(pair.master, 3) == [0]
        await pair.master.stop()
        promoted = pair.slave
        promoted.replication = {"role": "async_master"}
        await promoted.start()
        answer = await promoted.ask(RequestCode.LAST_BATCH_NUMBER, last)
        assert (answer.ext["batch"], answer.ext["number"]) == ("5", "2")
        assert await numbered(promoted, 4) == [ResponseCode.BATCH_OUT_OF_ORDER]
        assert await numbered(promoted, 0, 1, 2, 3, 4) == [0] * 5
        assert await promoted.bodies() == [b"first", *(b"number %d" % n for n in range(5))]


# The replication port.


async def test_who_is_not_allowed_gets_nothing(tmp_path: Path) -> None:
    master = Node(tmp_path, role="sync_master", allow=("10.0.0.0/8", "::1"))
    await master.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", master.port + 1)
    writer.write(REPORT.pack(0))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await reader.readexactly(1)
    assert master.role.ha.strangers_count == 1
    assert await master.send(b"1") == ResponseCode.SLAVE_NOT_AVAILABLE, "it counts as no slave"
    writer.close()
    await master.stop()


async def test_a_report_that_cannot_be_ends_the_connection_and_counts_as_no_slave(tmp_path: Path) -> None:
    master = Node(tmp_path, role="sync_master")
    await master.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", master.port + 1)
    writer.write(REPORT.pack(1 << 40))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await reader.readexactly(1)
    assert master.role.ha.refused_count == 1
    assert await master.send(b"1") == ResponseCode.SLAVE_NOT_AVAILABLE
    writer.close()
    await master.stop()


async def test_a_log_of_other_files_is_not_copied(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.slave.store_settings["segment_bytes"] = 2 * SEGMENT_BYTES
    with pytest.raises(StoreError, match=r"have 1048576 bytes, and store.segment_bytes is 2097152"):
        async with pair:
            pass


async def test_a_new_slave_begins_where_its_masters_log_begins(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    await pair.master.start()
    for _ in range(40):
        await pair.master.send(b"b" * 60_000)
    await pair.master.stop()
    min(pair.master.directory.joinpath("commitlog").iterdir()).unlink()
    async with pair:
        await pair.level()
        assert pair.slave.store.min_position == pair.master.store.min_position == SEGMENT_BYTES
        assert pair.slave.store.check() == []


async def test_a_slave_follows_a_master_that_has_another_address(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        await pair.master.send(b"1")
        await pair.level()
        await pair.master.stop()
        moved = pair.master
        moved.port = Node(tmp_path).port
        await moved.start()
        await moved.send(b"2")
        pair.slave.role.ha.follow(("127.0.0.1", moved.port + 1))
        await pair.level()
        assert pair.slave.role.ha.connects_count == 2


async def test_the_configured_address_wins_over_what_registries_tell(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        slave, port = pair.slave.role, pair.master.port
        told = {"haServerAddr": "127.0.0.1:9", "masterAddr": f"localhost:{port}"}
        slave._registered(told)
        assert slave.ha._address == ("127.0.0.1", port + 1)
        assert slave._calls._address == ("localhost", port)
        slave._replication = ReplicationSettings(mode="static", role="slave", broker_id=1)
        # A registry that does not know the master now says nothing of it.
        slave._registered({"haServerAddr": "", "masterAddr": ""})
        assert slave.ha._address == ("127.0.0.1", port + 1)
        slave._registered(told)
        assert slave.ha._address == ("127.0.0.1", 9)


async def test_a_slave_signs_its_questions_where_the_master_has_accounts(tmp_path: Path) -> None:
    account = {"access_key": "replicator", "secret_key": "12345678"}
    pair = Pair(tmp_path)
    acl = tmp_path / "plain_acl.yml"
    acl.write_text("accounts:\n- accessKey: replicator\n  secretKey: '12345678'\n  admin: true\n")
    acl.chmod(0o600)
    pair.master.broker_settings |= {"acl_enabled": True, "acl_file": str(acl)}
    pair.slave.replication |= account
    async with pair:
        await pair.poll()
        assert pair.slave.role.tables.failures_count == 0
        assert pair.slave.broker.topics.encode() == pair.master.broker.topics.encode()


async def test_a_slave_that_is_ahead_is_refused_and_both_sides_say_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(tmp_path)
    async with pair:
        await pair.master.send(b"1")
        await pair.level()
    # The slave was master for a while.
    other = Node(tmp_path / "slave")
    await other.start()
    await other.send(b"2")
    await other.stop()
    await pair.master.start()
    await pair.slave.start()
    pair.slave.role.ha._retry_s = 0.01
    ha = pair.master.role.ha
    await soon(lambda: ha.refused_count >= 5, "it is refused again and again")
    assert ha.reported_position == -1
    for text in ("past the end", "the connection has ended"):
        assert caplog.text.count(text) == 1
    for node in (pair.slave, pair.master):
        await node.stop()


async def test_a_new_slave_waits_until_its_master_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair(tmp_path)
    starting = asyncio.ensure_future(pair.slave.start())
    await soon(lambda: "a new slave waits for its master: no connection" in caplog.text, "it says so")
    assert not starting.done()
    await pair.master.start()
    await starting
    await pair.connected()
    for node in (pair.slave, pair.master):
        await node.stop()


async def test_a_slave_deletes_nothing_that_its_master_may_have(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.slave.store_settings |= {"retention_hours": 1, "disk_delete_percent": 100, "disk_force_percent": 100}
    async with pair:
        for _ in range(40):
            await pair.master.send(b"b" * 60_000)
        await pair.level()
        store, tables = pair.slave.store, pair.slave.role.tables
        store.change_retention(type(store.settings)(retention_hours=1))
        await pair.poll()
        held = store.held_position
        assert held is not None
        assert held() == tables.oldest_position == 0
        # The master's first file is gone: the slave may let it go, too.
        tables.oldest_position = SEGMENT_BYTES
        assert held() == SEGMENT_BYTES
