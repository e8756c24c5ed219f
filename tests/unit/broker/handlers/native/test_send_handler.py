"""Sends against a real store: fields, checks in order with their codes, answers, batches, auto-create."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_connection import FakeConnection
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.handlers.native.send import SendHandler
from iotmq.broker.parts import make_parts
from iotmq.broker.replies.request_table import RequestTable
from iotmq.broker.scheduled.scheduling import DelayDelivery
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.config_saver import Saved
from iotmq.broker.tables.subscription_groups import SubscriptionGroupConfig
from iotmq.broker.tables.system_topics import system_topics
from iotmq.broker.tables.topics import TopicConfig
from iotmq.errors import RequestError
from iotmq.message.compression import Compression, compress
from iotmq.message.hosts import encode_host
from iotmq.message.message_ids import parse_offset_message_id
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import Record, decode_record, encode_batch, iter_records
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

SHORT = {
    "a": "pg",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "7",
    "i": "TAGS\x01TagA",
}
LONG = {
    "producerGroup": "pg",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "7",
    "properties": "TAGS\x01TagA",
}


class Bench:
    def __init__(self, store: Store, directory: Path, **settings: Any) -> None:
        names = {"name": "broker-a", "cluster": "C", "region": "R"}
        parts = make_parts(
            BrokerSettings(**names, delay_levels="1s 5s 10s", **settings),
            store,
            directory=directory,
            host=encode_host("127.0.0.1", 10911),
            clock=ManualClock(),
        )
        self.store = store
        self.topics = parts.topics
        for topic in system_topics(cluster="C", broker="b", template_queues=8, may_inherit=True):
            self.topics.put(topic)
        self.topics.ensure("T", queues=4)
        self.groups = parts.subscription_groups
        self.writer = parts.writer
        self.delays = DelayDelivery(parts)
        # Who waits for topics.json; at first it has every topic at once.
        self.waiting_for_disk: list[Saved] | None = None
        self.handler = SendHandler(parts, self.delays, when_topics_saved=self.when_topics_saved)
        self.table = RequestTable([self.handler])
        self.connection = FakeConnection()

    def when_topics_saved(self, saved: Saved) -> None:
        if self.waiting_for_disk is None:
            saved(None)
        else:
            self.waiting_for_disk.append(saved)

    def topics_written(self, error: OSError | None = None) -> None:
        assert self.waiting_for_disk is not None
        waiting, self.waiting_for_disk = self.waiting_for_disk, []
        for saved in waiting:
            saved(error)

    def send(
        self,
        ext: dict[str, str],
        body: bytes = b"hello",
        *,
        code: int = RequestCode.SEND_MESSAGE_V2,
        **kw: Any,
    ) -> Command | None:
        version = kw.pop("version", 409)
        request = Command.request(code, ext, body, **kw)
        request.version = version
        return self.table.handle(self.connection, request)  # type: ignore[arg-type]

    def ok(self, ext: dict[str, str], body: bytes = b"hello", **kw: Any) -> dict[str, str]:
        response = self.send(ext, body, **kw)
        assert response is not None
        assert response.code == 0, response.remark
        return response.ext

    def refused(self, ext: dict[str, str], body: bytes = b"hello", **kw: Any) -> tuple[int, str]:
        try:
            response = self.send(ext, body, **kw)
        except RequestError as error:
            return error.code, str(error)
        assert response is not None
        assert response.code != 0
        return response.code, response.remark or ""

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        queue = self.store.find_queue(topic, queue_id)
        if queue is None:
            return []
        read = self.store.read(queue, 0, records_max=1_000, bytes_max=1 << 24)
        return [record for view in read.views for record in iter_records(view)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(
        tmp_path / "data", StoreSettings(segment_bytes=8 << 20), store_host=encode_host("127.0.0.1", 10911)
    )
    yield store
    assert store.check() == []
    store.close()


@pytest.fixture
async def bench(store: Store, tmp_path: Path) -> Bench:
    bench = Bench(store, tmp_path)
    bench.writer.open()
    return bench


@pytest.mark.parametrize(
    ("code", "ext"), [(RequestCode.SEND_MESSAGE_V2, SHORT), (RequestCode.SEND_MESSAGE, LONG)]
)
async def test_a_send_is_stored_and_its_answer_says_where(
    bench: Bench, code: int, ext: dict[str, str]
) -> None:
    bench.ok(ext, code=code)
    answer = bench.ok(ext, b"second", code=code)
    assert answer["queueId"] == "0"
    assert answer["queueOffset"] == "1"
    assert (answer["MSG_REGION"], answer["TRACE_ON"]) == ("R", "true")
    host, port, position = parse_offset_message_id(answer["msgId"])
    assert (host, port) == ("127.0.0.1", 10911)
    view = bench.store.read_record(position)
    assert view is not None
    record = decode_record(view)
    assert (record.topic, record.body, record.flag) == ("T", b"second", 7)
    assert record.born_timestamp_ms == 1_700_000_000_000
    assert record.born_host == encode_host("127.0.0.1", 5000)
    assert decode_properties(record.properties) == {"TAGS": "TagA", "CLUSTER": "C"}


@pytest.mark.parametrize("ext", [SHORT, LONG])
@pytest.mark.parametrize("at", range(8))
async def test_each_required_field_is_named_when_it_is_missing(
    bench: Bench, ext: dict[str, str], at: int
) -> None:
    name = list(ext)[at]
    code = RequestCode.SEND_MESSAGE if ext is LONG else RequestCode.SEND_MESSAGE_V2
    number, remark = bench.refused({key: value for key, value in ext.items() if key != name}, code=code)
    assert number == 1
    assert f" {name} " in remark


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("d", "four"),
        ("d", str(2**31)),
        ("e", "x"),
        ("e", str(2**31)),
        ("f", "-1"),
        ("f", str(2**31)),
        ("g", "-1"),
        ("g", str(2**63)),
        ("h", "1.5"),
        ("h", str(-(2**31) - 1)),
        ("j", "-1"),
        ("j", "many"),
    ],
)
async def test_each_bad_number_is_named(bench: Bench, name: str, value: str) -> None:
    number, remark = bench.refused({**SHORT, name: value})
    assert number == 1
    assert f" {name} " in remark


async def test_a_missing_number_of_template_queues_below_one_makes_one_queue(bench: Bench) -> None:
    bench.ok({**SHORT, "b": "N", "d": "0"})
    topic = bench.topics.find("N")
    assert topic is not None
    assert topic.queue_count == 1


@pytest.mark.parametrize("name", ["", "a b", "x" * 128])
async def test_bad_topic_names_get_code_1(bench: Bench, name: str) -> None:
    number, remark = bench.refused({**SHORT, "b": name})
    assert number == 1
    assert "topic" in remark


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "SELF_TEST_TOPIC"])
async def test_topics_of_the_broker_take_no_sends(bench: Bench, name: str) -> None:
    assert bench.refused({**SHORT, "b": name})[0] == 16


@pytest.mark.parametrize(("name", "size_max"), [("a", limits.GROUP_BYTES_MAX), ("c", limits.TOPIC_BYTES_MAX)])
async def test_a_group_or_template_with_too_long_a_name_gets_1(
    bench: Bench, name: str, size_max: int
) -> None:
    bench.ok({**SHORT, name: "x" * size_max})
    bench.ok({**SHORT, name: "ü" * (size_max // 2)})
    for value in ("x" * (size_max + 1), "ü" * (size_max // 2 + 1)):
        number, remark = bench.refused({**SHORT, name: value})
        assert number == 1
        assert f" {name} " in remark
        assert str(size_max) in remark


@pytest.mark.parametrize(
    "wait", ["WAIT\x01true\x02TAGS\x01a", "TAGS\x01a\x02WAIT\x01false", "TAGS\x01a\x02WAIT\x01true\x02"]
)
async def test_wait_is_stored_of_batches_and_of_what_waits_only(bench: Bench, wait: str) -> None:
    """As in the original."""
    bench.ok({**SHORT, "i": wait})
    bench.ok({**SHORT, "i": wait}, encode_batch([(b"", b"", 0)]), code=RequestCode.SEND_BATCH_MESSAGE)
    bench.ok({**SHORT, "i": wait + "\x02DELAY\x011"})
    first, second = bench.records("T")
    (waiting,) = bench.records("SCHEDULE_TOPIC_XXXX")
    for record, is_kept in ((first, False), (second, True), (waiting, True)):
        found = decode_properties(record.properties)
        assert found["TAGS"] == "a"
        assert ("WAIT" in found) is is_kept


@pytest.mark.parametrize(
    "delivery_time", [b"DELAY\x013", b"k\x01v\x02TIMER_DELAY_MS\x015000\x02", b"TIMER_DEL_UNIQKEY\x01k"]
)
async def test_a_message_of_a_batch_cannot_wait_for_a_time(bench: Bench, delivery_time: bytes) -> None:
    body = encode_batch([(b"one", b"", 0), (b"two", delivery_time, 0)])
    number, remark = bench.refused(SHORT, body, code=RequestCode.SEND_BATCH_MESSAGE)
    assert number == 13
    assert "batch" in remark
    assert bench.records("T") == []
    for none in (b"DELAY\x010", b"MODEL\x01DELAY\x02"):
        bench.ok(SHORT, encode_batch([(b"one", none, 0)]), code=RequestCode.SEND_BATCH_MESSAGE)


async def test_a_send_that_makes_a_topic_is_answered_once_it_is_announced(bench: Bench) -> None:
    waiting: list[Callable[[], None]] = []
    bench.handler._when_told = waiting.append
    assert bench.send({**SHORT, "b": "New"}) is None
    assert bench.connection.replies == []
    waiting.pop()()
    (answer,) = bench.connection.replies
    assert answer.code == 0
    assert len(bench.records("New")) == 1
    bench.ok({**SHORT, "b": "New"})
    assert waiting == []


async def test_an_unknown_topic_is_made_after_its_template(bench: Bench) -> None:
    bench.ok({**SHORT, "b": "New"})
    topic = bench.topics.find("New")
    assert topic is not None
    assert (topic.write_queue_nums, topic.perm) == (4, 6)
    assert len(bench.records("New")) == 1


@pytest.mark.parametrize("template", ["nothing", "SELF_TEST_TOPIC"])
async def test_an_unknown_topic_without_a_template_gets_17(bench: Bench, template: str) -> None:
    number, remark = bench.refused({**SHORT, "b": "New", "c": template})
    assert number == 17
    assert "New" in remark
    assert bench.topics.find("New") is None


async def test_a_queue_the_topic_does_not_have_gets_1(bench: Bench) -> None:
    bench.ok({**SHORT, "e": "3"})
    number, remark = bench.refused({**SHORT, "e": "4"})
    assert number == 1
    assert "queueId" in remark


async def test_a_negative_queue_is_any_queue(bench: Bench) -> None:
    assert {bench.ok({**SHORT, "e": "-1"})["queueId"] for _ in range(100)} == {"0", "1", "2", "3"}


async def test_a_topic_without_write_permission_gets_16(bench: Bench) -> None:
    bench.topics.put(TopicConfig(topic_name="T", perm=4))
    assert bench.refused(SHORT)[0] == 16


async def test_a_broker_that_does_not_write_gets_16(store: Store, tmp_path: Path) -> None:
    bench = Bench(store, tmp_path, is_writable=False)
    assert bench.refused(SHORT)[0] == 16


@pytest.mark.parametrize("given", ["TAGS\x01a", "TAGS\x01a\x02", "TAGS\x01a\x02WAIT\x01true"])
async def test_no_separator_stands_behind_the_last_property(bench: Bench, given: str) -> None:
    """As in records of the original, so that they have the same sizes."""
    bench.ok({**SHORT, "i": given})
    assert bench.records("T")[-1].properties == b"TAGS\x01a\x02CLUSTER\x01C"


async def test_properties_and_bodies_have_maxima(bench: Bench) -> None:
    room = limits.PROPERTIES_BYTES_MAX - len("CLUSTER\x01C") - 1
    bench.ok({**SHORT, "i": "k\x01" + "v" * (room - 2)})
    assert bench.refused({**SHORT, "i": "k\x01" + "v" * (room - 1)})[0] == 13
    number, remark = bench.refused({**SHORT, "i": "k\x01" + "v" * limits.PROPERTIES_BYTES_MAX})
    assert number == 13
    assert "properties" in remark
    assert bench.refused(SHORT, bytes(limits.RECORD_BYTES_MAX))[0] == 13


async def test_transactional_messages_are_refused(bench: Bench) -> None:
    assert bench.refused({**SHORT, "i": "TRAN_MSG\x01true\x02PGROUP\x01pg"})[0] == 16
    bench.ok({**SHORT, "i": "KEYS\x01TRAN_MSG"})


async def test_a_oneway_send_is_stored_and_not_answered(bench: Bench) -> None:
    assert bench.send(SHORT, oneway=True) is None
    assert bench.connection.replies == []
    assert len(bench.records("T")) == 1


@pytest.mark.parametrize(
    ("code", "extra"), [(RequestCode.SEND_BATCH_MESSAGE, {}), (RequestCode.SEND_MESSAGE_V2, {"m": "true"})]
)
async def test_a_batch_becomes_records_of_one_queue(bench: Bench, code: int, extra: dict[str, str]) -> None:
    body = encode_batch([(b"one", b"KEYS\x01k1", 1), (b"two", b"", 2), (b"three", b"KEYS\x01k3\x02", 3)])
    answer = bench.ok({**SHORT, "e": "1", **extra}, body, code=code)
    assert (answer["queueId"], answer["queueOffset"]) == ("1", "0")
    records = bench.records("T", 1)
    assert [(record.body, record.flag) for record in records] == [(b"one", 1), (b"two", 2), (b"three", 3)]
    positions = [parse_offset_message_id(text)[2] for text in answer["msgId"].split(",")]
    assert positions == [record.position for record in records]
    assert decode_properties(records[0].properties) == {"KEYS": "k1", "TAGS": "TagA", "CLUSTER": "C"}
    assert decode_properties(records[1].properties) == {"TAGS": "TagA", "CLUSTER": "C"}


async def test_a_v1_batch_flag_as_the_cpp_client_writes_it(bench: Bench) -> None:
    body = encode_batch([(b"one", b"", 0), (b"two", b"", 0)])
    bench.ok({**LONG, "batch": "1"}, body, code=RequestCode.SEND_MESSAGE)
    bench.ok({**LONG, "batch": "0"}, b"plain", code=RequestCode.SEND_MESSAGE)
    assert [record.body for record in bench.records("T")] == [b"one", b"two", b"plain"]


async def test_broken_batches_are_refused_whole(bench: Bench) -> None:
    good = encode_batch([(b"one", b"", 0), (b"two", b"", 0)])
    for body in (b"", good[:-1], good + b"x", b"garbage" * 9):
        assert bench.refused(SHORT, body, code=RequestCode.SEND_BATCH_MESSAGE)[0] == 13
    assert bench.records("T") == []


@pytest.mark.parametrize(
    ("method", "flag"), [("zlib", "1"), ("zlib", "769"), ("lz4", "257"), ("zstd", "513")]
)
async def test_a_batch_compressed_as_a_whole_becomes_plain_records(
    bench: Bench, method: Compression, flag: str
) -> None:
    """The C++ client compresses the body of a batch past 4 KiB like that of a single message."""
    code = RequestCode.SEND_BATCH_MESSAGE

    def compressed(data: bytes) -> bytes:
        return compress(data, method, 5)

    body = compressed(encode_batch([(b"one" * 999, b"", 0), (b"two", b"", 0)]))
    bench.ok({**SHORT, "f": flag}, body, code=code)
    assert [record.body for record in bench.records("T")] == [b"one" * 999, b"two"]
    assert {record.sys_flag & 0x701 for record in bench.records("T")} == {0}
    too_much = compressed(bytes(limits.INFLATED_BODY_BYTES_MAX + 1))
    for bad in (body[:-1], body[:1], compressed(b"no elements"), too_much):
        assert bench.refused({**SHORT, "f": flag}, bad, code=code)[0] == 13
    # Elements whose bodies are compressed one by one stay what they are.
    bench.ok({**SHORT, "e": "1", "f": flag}, encode_batch([(compressed(b"one"), b"", 0)]), code=code)
    assert bench.records("T", 1)[0].sys_flag & 0x701 == int(flag)


async def test_batches_to_retry_topics_and_long_names_get_13(bench: Bench) -> None:
    body = encode_batch([(b"one", b"", 0)])
    code = RequestCode.SEND_BATCH_MESSAGE
    assert bench.refused({**SHORT, "b": "%RETRY%g"}, body, code=code)[0] == 13
    assert bench.refused({**SHORT, "b": "x" * 128}, body, code=code)[0] == 13


async def test_a_consumers_own_retry_goes_to_the_retry_topic_and_at_last_to_the_dead_letters(
    bench: Bench,
) -> None:
    bench.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=3))
    retry = {**SHORT, "b": "%RETRY%g"}
    bench.ok({**retry, "j": "3"})
    bench.ok({**retry, "j": "4"})
    bench.ok({**retry, "j": "4", "l": "5"})
    bench.ok({**retry, "j": "5", "l": "5"})
    bench.ok({**retry, "j": "4", "l": "5"}, version=120)
    assert [record.reconsume_times for record in bench.records("%RETRY%g")] == [3, 4]
    assert len(bench.records("%DLQ%g")) == 3


async def test_a_retry_for_a_group_that_may_not_be_made_gets_26(store: Store, tmp_path: Path) -> None:
    bench = Bench(store, tmp_path, auto_create_groups=False)
    bench.writer.open()
    assert bench.refused({**SHORT, "b": "%RETRY%g"})[0] == 26


async def test_an_ipv6_sender_is_recorded(bench: Bench) -> None:
    bench.connection = FakeConnection(("::1", 5000))
    bench.ok(SHORT)
    assert bench.records("T")[0].born_host == encode_host("::1", 5000)
    bench.table.connection_lost(bench.connection)  # type: ignore[arg-type]
    assert bench.handler._born_hosts == {}


async def test_compressed_bodies_keep_their_flags(bench: Bench) -> None:
    bench.ok({**SHORT, "f": str(0x301)})
    assert bench.records("T")[0].sys_flag & 0x301 == 0x301


async def test_a_batch_is_bounded_as_a_whole(tmp_path: Path) -> None:
    store = Store.open(
        tmp_path / "small",
        StoreSettings(segment_bytes=8 << 20, record_bytes_max=4_096),
        store_host=encode_host("127.0.0.1", 10911),
    )
    bench = Bench(store, tmp_path)
    bench.writer.open()
    element = encode_batch([(b"x" * 106, b"", 0)])
    assert len(element) == 128
    bench.ok({**SHORT, "m": "true"}, element * 32)
    code, remark = bench.refused({**SHORT, "m": "true"}, element * 33)
    assert code == 13
    assert "4224 bytes" in remark
    assert "store.record_bytes_max is 4096" in remark
    assert len(bench.records("T")) == 32
    store.close()


class TestSendsThatMakeATopic:
    """A topic that topics.json lacks may have more queues after a crash: keys would change theirs."""

    @pytest.fixture
    def late(self, bench: Bench) -> Bench:
        bench.waiting_for_disk = []
        return bench

    async def test_they_wait_until_the_file_has_it_and_go_on_in_order(self, late: Bench) -> None:
        new = {**SHORT, "b": "New"}
        assert late.send(new, b"1") is None
        assert late.send(new, b"2", oneway=True) is None
        assert late.send(new, b"3") is None
        assert late.records("New") == []
        late.ok(SHORT, b"other topics do not wait")
        late.topics_written()
        assert [record.body for record in late.records("New")] == [b"1", b"2", b"3"]
        assert [reply.ext["queueOffset"] for reply in late.connection.replies] == ["0", "2"]
        assert late.ok(new, b"4")["queueOffset"] == "3", "at once from now on"

    async def test_a_disk_that_refuses_the_file_stops_none_of_them(self, late: Bench) -> None:
        new = {**SHORT, "b": "New"}
        for body in (b"1", b"2"):
            assert late.send(new, body) is None
        late.topics_written(OSError(errno.ENOSPC, "No space left on device"))
        assert [reply.code for reply in late.connection.replies] == [0, 0]
        late.ok(new, b"3")
        assert [record.body for record in late.records("New")] == [b"1", b"2", b"3"]

    async def test_too_many_bytes_of_them_are_refused(
        self, late: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        new = {**SHORT, "b": "New"}
        size = 100 + len(SHORT["i"]) + 2_048
        monkeypatch.setattr(limits, "SENDS_WAITING_FOR_TOPIC_BYTES_MAX", 2 * size)
        assert late.send(new, bytes(100)) is None
        assert late.send(new, bytes(100)) is None
        assert late.refused(new, bytes(100))[0] == 2
        late.topics_written()
        assert len(late.records("New")) == 2
        late.ok(new, bytes(100))

    async def test_a_topic_that_is_deleted_meanwhile_is_made_again(self, late: Bench) -> None:
        new = {**SHORT, "b": "New"}
        assert late.send(new, b"1") is None
        late.topics.delete("New")
        late.topics_written()
        assert late.records("New") == []
        late.topics_written()
        assert [record.body for record in late.records("New")] == [b"1"]
        assert len(late.connection.replies) == 1
