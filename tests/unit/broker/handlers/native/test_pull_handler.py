"""Pulls against a real store: checks in order, statuses, filters, limits, commits, holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_connection import FakeConnection
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.filters.consumer_filters import ConsumerFilters
from iotmq.broker.filters.subscription import decode_heartbeat
from iotmq.broker.handlers.native import pull
from iotmq.broker.handlers.native.parked_pulls import ParkedPulls
from iotmq.broker.handlers.native.pull import PullHandler
from iotmq.broker.parts import make_parts
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.subscription_groups import SubscriptionGroupConfig
from iotmq.broker.tables.topics import TopicConfig
from iotmq.errors import RequestError
from iotmq.event_loop import LoopSlice
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import encode_batch, iter_records
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)
PULL = {
    "consumerGroup": "g",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "0",
}
WAITS = {**PULL, "sysFlag": "6"}


class Bench:
    def __init__(self, store: Store, directory: Path, **settings: Any) -> None:
        self.clock = ManualClock()
        self.store = store
        settings = {"held_pulls_max": 100, "cold_reads_max": 10, "cold_read_threads": 1, **settings}
        parts = make_parts(
            BrokerSettings(**settings), store, directory=directory, host=HOST, clock=self.clock
        )
        self.parts = parts
        self.topics = parts.topics
        self.topics.ensure("T", queues=4)
        self.configs = parts.subscription_groups
        self.groups = parts.groups
        self.offsets = parts.offsets
        self.cold_reads = parts.cold_reads
        self.parked_pulls = ParkedPulls(lambda: parts.settings.held_pulls_max)
        self.filters = ConsumerFilters(
            directory / "filters.json", self.clock, is_enabled=parts.settings.property_filter_enabled
        )
        self.handler = PullHandler(parts, self.parked_pulls, self.filters)
        self.connection = FakeConnection()
        self.ask = self.handler.handlers()[RequestCode.PULL_MESSAGE]

    def put(self, *bodies: bytes, tag: str = "", queue_id: int = 0, topic: str = "T") -> None:
        """Append records and wake, as the writer does."""
        properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
        self.store.append(
            self.store.queue(topic, queue_id),
            encode_batch([(body, properties, 0) for body in bodies]),
            born_timestamp_ms=1,
            born_host=HOST,
        )
        self.handler.wake(self.store.take_dispatched())

    def pull(self, ext: dict[str, str] | None = None, **changes: str) -> Command | None:
        request = Command.request(RequestCode.PULL_MESSAGE, {**(ext or PULL), **changes})
        return self.ask(self.connection, request)  # type: ignore[arg-type]

    def answer(self, ext: dict[str, str] | None = None, **changes: str) -> Command:
        response = self.pull(ext, **changes)
        assert response is not None
        return response

    def refused(self, **changes: str) -> tuple[int, str]:
        with pytest.raises(RequestError) as caught:
            self.pull(**changes)
        return caught.value.code, str(caught.value)


def bodies(response: Command) -> list[bytes]:
    views = response.body if isinstance(response.body, list) else [response.body]
    return [record.body for view in views for record in iter_records(view)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path / "data", StoreSettings(segment_bytes=16 << 20), store_host=HOST)
    yield store
    assert store.check() == []
    store.close()


@pytest.fixture
async def bench(store: Store, tmp_path: Path) -> Bench:
    return Bench(store, tmp_path)


async def test_a_pull_gets_records_and_where_to_go_on(bench: Bench) -> None:
    bench.put(b"a", b"b", b"c")
    response = bench.answer(queueOffset="1")
    assert (response.code, response.remark) == (0, "FOUND")
    assert bodies(response) == [b"b", b"c"]
    assert response.ext == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "3",
        "minOffset": "0",
        "maxOffset": "3",
    }


async def test_a_lite_pull_is_a_pull(bench: Bench) -> None:
    bench.ask = bench.handler.handlers()[RequestCode.LITE_PULL_MESSAGE]
    bench.put(b"a", b"b")
    response = bench.answer(queueOffset="1")
    assert (response.code, bodies(response), response.ext["nextBeginOffset"]) == (0, [b"b"], "2")
    assert bench.pull(queueOffset="2", sysFlag="6", suspendTimeoutMillis="1000") is None
    bench.put(b"c")
    assert bodies(bench.connection.replies[-1]) == [b"c"]


@pytest.mark.parametrize("name", [name for name in PULL if name != "subscription"])
async def test_each_required_field_is_named_when_missing_or_not_a_number(bench: Bench, name: str) -> None:
    ext = {key: value for key, value in PULL.items() if key != name}
    with pytest.raises(RequestError, match=name) as caught:
        bench.pull(ext)
    assert caught.value.code == 1
    if name not in ("consumerGroup", "topic"):
        assert name in bench.refused(**{name: "x"})[1]


async def test_the_checks_come_in_the_protocols_order(store: Store, tmp_path: Path) -> None:
    """Each step repairs what the check before it found."""
    closed = Bench(store, tmp_path / "closed", is_readable=False)
    assert closed.refused(topic="nothing")[0] == 16

    bench = Bench(store, tmp_path / "open", auto_create_groups=False)
    wrong = {"topic": "nothing", "queueId": "9", "subscription": "||"}
    assert bench.refused(**wrong)[0] == 26
    bench.configs.put(SubscriptionGroupConfig(group_name="g", consume_enable=False))
    assert bench.refused(**wrong)[0] == 16
    bench.configs.put(SubscriptionGroupConfig(group_name="g"))
    assert bench.refused(**wrong)[0] == 17
    bench.topics.put(TopicConfig(topic_name="nothing", perm=2))
    assert bench.refused(**wrong)[0] == 16
    bench.topics.put(TopicConfig(topic_name="nothing", read_queue_nums=8))
    assert bench.refused(**wrong)[0] == 1
    assert bench.refused(**{**wrong, "queueId": "-1"})[0] == 1
    assert bench.refused(**{**wrong, "queueId": "7"})[0] == 23


async def test_a_group_is_made_by_its_first_pull(bench: Bench) -> None:
    bench.answer()
    assert bench.configs.find("g") is not None


async def test_without_a_subscription_in_the_request_the_heartbeats_counts(bench: Bench) -> None:
    bench.put(b"a", tag="TagA")
    bench.put(b"b", tag="TagB")
    assert bench.refused(sysFlag="0")[0] == 24
    beat = (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"%s","subscriptionDataSet":'
        b'[{"topic":"T","subString":"TagB","subVersion":5,"expressionType":"%s"}]}]}'
    )
    bench.groups.heartbeat(bench.connection, decode_heartbeat(beat % (b"CLUSTERING", b"TAG")))  # type: ignore[arg-type]
    assert bodies(bench.answer(sysFlag="0", subVersion="5")) == [b"b"]
    number, remark = bench.refused(sysFlag="0", subVersion="6")
    assert number == 25
    assert "subVersion" in remark
    bench.topics.ensure("U", queues=1)
    assert bench.refused(sysFlag="0", topic="U")[0] == 24

    bench.groups.heartbeat(bench.connection, decode_heartbeat(beat % (b"BROADCASTING", b"TAG")))  # type: ignore[arg-type]
    assert bench.answer(sysFlag="0", subVersion="5").code == 0
    bench.configs.put(SubscriptionGroupConfig(group_name="g", consume_broadcast_enable=False))
    assert bench.refused(sysFlag="0", subVersion="5")[0] == 16


async def test_filters_of_another_type_are_refused(bench: Bench) -> None:
    number, remark = bench.refused(expressionType="GROOVY", subscription="a > 1")
    assert number == 1
    assert "expressionType" in remark


@pytest.mark.parametrize(
    ("offset", "code", "remark", "next_offset"),
    [
        ("0", 19, "NO_MESSAGE_IN_QUEUE", "0"),
        ("5", 21, "NO_MESSAGE_IN_QUEUE", "0"),
    ],
)
async def test_an_empty_queue(bench: Bench, offset: str, code: int, remark: str, next_offset: str) -> None:
    bench.store.queue("T", 0)
    response = bench.answer(queueOffset=offset)
    assert (response.code, response.remark, response.ext["nextBeginOffset"]) == (code, remark, next_offset)


async def test_a_queue_never_written_to(bench: Bench) -> None:
    assert (bench.answer().code, bench.answer().remark) == (19, "NO_MATCHED_LOGIC_QUEUE")
    assert bench.answer(queueOffset="3").code == 21


async def test_offsets_outside_the_queue(bench: Bench) -> None:
    bench.put(b"a", b"b")
    end = bench.answer(queueOffset="2")
    assert (end.code, end.remark, end.ext["nextBeginOffset"]) == (19, "OFFSET_OVERFLOW_ONE", "2")
    past = bench.answer(queueOffset="3")
    assert (past.code, past.remark, past.ext["nextBeginOffset"]) == (21, "OFFSET_OVERFLOW_BADLY", "2")
    before = bench.answer(queueOffset="-1")
    assert (before.code, before.remark, before.ext["nextBeginOffset"]) == (21, "OFFSET_TOO_SMALL", "0")


async def test_nothing_for_the_filter_gets_20_and_moves_on(bench: Bench) -> None:
    bench.put(b"a", b"b", tag="TagA")
    response = bench.answer(subscription="TagB || TagC")
    assert (response.code, response.remark) == (20, "NO_MATCHED_MESSAGE")
    assert response.ext["nextBeginOffset"] == "2"
    assert bodies(bench.answer(subscription="TagB||TagA")) == [b"a", b"b"]


async def test_the_default_limits_hold_without_our_field_and_ours_with_it(bench: Bench) -> None:
    bench.put(*[b"x"] * 100)
    assert len(bodies(bench.answer(maxMsgNums="1000"))) == limits.PULL_RECORDS_DEFAULT_MAX
    assert len(bodies(bench.answer(maxMsgNums="3"))) == 3
    assert len(bodies(bench.answer(maxMsgNums="1000", maxMsgBytes="1000000"))) == 100
    assert len(bodies(bench.answer(maxMsgNums="1000", maxMsgBytes="1"))) == 1
    number, remark = bench.refused(maxMsgBytes="0")
    assert number == 1
    assert "maxMsgBytes" in remark


async def test_byte_limits(bench: Bench) -> None:
    bench.put(*[bytes(100_000)] * 60)
    assert len(bodies(bench.answer())) == 2
    response = bench.answer(maxMsgNums="60", maxMsgBytes=str(1 << 30))
    assert len(bodies(response)) == limits.PULL_BYTES_MAX // 100_100


async def test_an_offset_is_committed_by_the_pull_and_not_past_the_end(bench: Bench) -> None:
    bench.put(b"a", b"b")
    bench.answer(commitOffset="1")
    assert bench.offsets.find("g", "T", 0) is None
    bench.answer(sysFlag="5", commitOffset="1")
    assert bench.offsets.find("g", "T", 0) == 1
    bench.answer(sysFlag="5", commitOffset="9")
    assert bench.offsets.find("g", "T", 0) == 2


async def test_a_parked_pull_is_woken_by_the_append_it_waits_for(bench: Bench) -> None:
    assert bench.pull(WAITS) is None
    assert bench.pull(WAITS, queueId="1") is None
    bench.put(b"a", b"b")
    assert [bodies(response) for response in bench.connection.replies] == [[b"a", b"b"]]
    assert len(bench.parked_pulls) == 1
    bench.put(b"c", queue_id=1)
    assert bodies(bench.connection.replies[1]) == [b"c"]
    assert len(bench.parked_pulls) == 0
    assert bench.store.take_dispatched() == []


async def test_a_parked_pull_sleeps_through_records_its_filter_does_not_want(bench: Bench) -> None:
    assert bench.pull(WAITS, subscription="TagB") is None
    bench.put(b"a", tag="TagA")
    assert bench.connection.replies == []
    bench.put(b"b", tag="TagB")
    response = bench.connection.replies[0]
    assert bodies(response) == [b"b"]
    assert response.ext["nextBeginOffset"] == "2"


@pytest.fixture
def ten_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "LoopSlice", lambda: LoopSlice(10, slice_s=60.0))


@pytest.mark.usefixtures("ten_a_turn")
async def test_very_many_parked_pulls_are_woken_over_several_turns(bench: Bench) -> None:
    for _ in range(25):
        assert bench.pull(WAITS) is None
    other, bench.connection = bench.connection, FakeConnection()
    assert bench.pull(WAITS, queueId="1") is None
    bench.put(b"a")
    assert len(other.replies) == 10
    bench.put(b"b", queue_id=1)
    await asyncio.sleep(0)
    assert (len(other.replies), len(bench.connection.replies)) == (20, 0)
    # A queue of very many keeps the others waiting for one turn.
    await asyncio.sleep(0)
    assert (len(other.replies), len(bench.connection.replies)) == (25, 1)
    assert all(bodies(response) == [b"a"] for response in other.replies)
    assert len(bench.parked_pulls) == 0


@pytest.mark.usefixtures("ten_a_turn")
async def test_what_comes_while_very_many_parked_pulls_are_woken_wakes_them_again(bench: Bench) -> None:
    connections = []
    for _ in range(25):
        connections.append(bench.connection)
        assert bench.pull(WAITS, subscription="TagB") is None
        bench.connection = FakeConnection()
    bench.put(b"a", tag="TagA")
    # The first ten have been looked at, the last ten not yet.
    bench.put(b"b", tag="TagB")
    bench.handler.connection_lost(connections[-1])  # type: ignore[arg-type]
    for _ in range(6):
        await asyncio.sleep(0)
    answers = [bodies(response) for connection in connections for response in connection.replies]
    assert answers == [[b"b"]] * 24
    assert len(bench.parked_pulls) == 0


async def test_who_fails_at_the_waking_keeps_no_other_parked(bench: Bench) -> None:
    class Failing(FakeConnection):
        def reply(self, response: Command) -> None:
            raise ValueError("cannot take it")

    bench.connection = Failing()
    assert bench.pull(WAITS) is None
    bench.connection = FakeConnection()
    assert bench.pull(WAITS) is None
    with pytest.raises(ValueError, match="cannot take it"):
        bench.put(b"a")
    await asyncio.sleep(0)
    assert [bodies(response) for response in bench.connection.replies] == [[b"a"]]


@pytest.mark.usefixtures("ten_a_turn")
async def test_very_many_parked_pulls_whose_time_is_over_end_over_several_turns(bench: Bench) -> None:
    for _ in range(25):
        assert bench.pull(WAITS, suspendTimeoutMillis="100") is None
    bench.clock.advance(0.2)
    bench.handler.expire()
    assert len(bench.connection.replies) == 10
    # The rest is due already, so the timer asks for it: the first time as soon as the first pull set it.
    while len(bench.parked_pulls):  # noqa: ASYNC110 - a turn of the loop is what is waited for
        await asyncio.sleep(0)
    assert [response.code for response in bench.connection.replies] == [19] * 25


async def test_readers_with_offsets_of_their_own_get_expired_records_too(tmp_path: Path) -> None:
    clock = ManualClock()
    store = Store.open(tmp_path / "data", StoreSettings(segment_bytes=16 << 20), store_host=HOST, clock=clock)
    bench = Bench(store, tmp_path)

    def put(body: bytes) -> None:
        element = (body, b"MSG_TTL_MS\x01500\x02" if body == b"short" else b"", 0)
        store.append(store.queue("T", 0), encode_batch([element]), born_timestamp_ms=1, born_host=HOST)
        bench.handler.wake(store.take_dispatched())

    for body in (b"a", b"short", b"b", b"short"):
        put(body)
    clock.advance(1)
    assert bodies(bench.answer()) == [b"a", b"b"]
    response = bench.answer(withExpired="true")
    assert bodies(response) == [b"a", b"short", b"b", b"short"]
    assert response.ext["nextBeginOffset"] == "4"
    response = bench.answer(queueOffset="3")
    assert (response.code, response.ext["nextBeginOffset"]) == (20, "4")
    assert bodies(bench.answer(queueOffset="3", withExpired="true")) == [b"short"]
    # One that waits gets what is over by the time it is looked for, too.
    assert bench.pull({**WAITS, "withExpired": "true"}, queueOffset="4") is None
    element = (b"short", b"MSG_TTL_MS\x01500\x02", 0)
    store.append(store.queue("T", 0), encode_batch([element]), born_timestamp_ms=1, born_host=HOST)
    clock.advance(1)
    bench.handler.wake(store.take_dispatched())
    assert bodies(bench.connection.replies[0]) == [b"short"]
    with pytest.raises(RequestError, match="withExpired"):
        bench.pull(withExpired="maybe")
    assert store.check() == []
    store.close()


async def test_readers_with_offsets_of_their_own_are_told_what_is_missing(tmp_path: Path) -> None:
    clock = ManualClock()
    store = Store.open(tmp_path / "data", StoreSettings(segment_bytes=16 << 20), store_host=HOST, clock=clock)
    bench = Bench(store, tmp_path)
    stored_ms = clock.now_ms()
    for body in (b"a", b"short", b"b", b"short", b"c"):
        element = (body, b"MSG_TTL_MS\x01500\x02" if body == b"short" else b"", 0)
        store.append(store.queue("T", 0), encode_batch([element]), born_timestamp_ms=1, born_host=HOST)
    clock.advance(1)
    own = {"tellGaps": "true", "withExpired": "true"}
    # Unmodified clients see nothing of it.
    assert not {"passedOver", "lostOffsets"} & bench.answer().ext.keys()
    assert "passedOver" not in bench.answer(**own).ext
    # What has expired is judged by a time of the reader's, so that an answer does not depend on the moment.
    response = bench.answer(**own, expiredAt=str(stored_ms + 500))
    assert (bodies(response), response.ext["passedOver"]) == ([b"a", b"b", b"c"], "2")
    assert bodies(bench.answer(**own, expiredAt=str(stored_ms + 499))) == [
        b"a",
        b"short",
        b"b",
        b"short",
        b"c",
    ]
    response = bench.answer(**own, queueOffset="3", endOffset="4", expiredAt=str(stored_ms + 500))
    assert (response.code, response.ext["nextBeginOffset"], response.ext["passedOver"]) == (20, "4", "1")
    # Nothing behind the end is looked at.
    response = bench.answer(**own, endOffset="4", expiredAt=str(stored_ms + 500))
    assert (bodies(response), response.ext["nextBeginOffset"]) == ([b"a", b"b"], "4")
    for field, value in (("expiredAt", "-1"), ("endOffset", "x"), ("tellGaps", "maybe")):
        with pytest.raises(RequestError, match=field):
            bench.pull(**{**own, field: value})
    store.close()


@pytest.mark.parametrize("lost_count", [limits.PULL_LOST_RANGES_MAX, limits.PULL_LOST_RANGES_MAX + 1])
async def test_an_answer_ends_before_more_lost_ranges_than_it_may_name(
    tmp_path: Path, lost_count: int
) -> None:
    store = Store.open(tmp_path / "data", StoreSettings(segment_bytes=16 << 20), store_host=HOST)
    bench = Bench(store, tmp_path)
    queue = store.queue("T", 0)
    for number in range(2 * lost_count + 1):
        element = encode_batch([(b"%d" % number, b"", 0)])
        store.append(queue, element, born_timestamp_ms=1, born_host=HOST)
    places = [queue.entry(offset) for offset in range(queue.max_offset)]
    store.close()
    (log,) = [path for path in (tmp_path / "data" / "commitlog").iterdir() if path.name.isdigit()]
    with log.open("r+b") as file:
        for place in places[1::2]:
            assert place is not None
            file.seek(place[0])
            file.write(bytes(60))
    store = Store.open(tmp_path / "data", StoreSettings(segment_bytes=16 << 20), store_host=HOST)
    bench = Bench(store, tmp_path)
    own = {"tellGaps": "true", "withExpired": "true", "maxMsgNums": "1000", "maxMsgBytes": "1000000"}
    response = bench.answer(**own)
    ranges = response.ext["lostOffsets"].split(",")
    assert ranges == [f"{n}-{n}" for n in range(1, 2 * limits.PULL_LOST_RANGES_MAX, 2)]
    end = 2 * limits.PULL_LOST_RANGES_MAX + 1
    assert int(response.ext["nextBeginOffset"]) == end
    if lost_count > limits.PULL_LOST_RANGES_MAX:
        response = bench.answer(**own, queueOffset=str(end))
        assert response.ext["lostOffsets"] == f"{end}-{end}"
        assert bodies(response) == [b"%d" % (end + 1)]
    store.close()


async def test_a_pull_of_a_former_generation_gets_nothing_else(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "data", StoreSettings(segment_bytes=16 << 20), store_host=HOST)
    bench = Bench(store, tmp_path)
    log = bench.parts.log_generations
    assert log is not None
    log.begin(min_position=0, end_position=0)
    for number in range(3):
        element = encode_batch([(b"%d" % number, b"", 0)])
        store.append(store.queue("T", 0), element, born_timestamp_ms=1, born_host=HOST)
    topic = bench.parts.topics.find("T")
    assert topic is not None
    former = bench.parts.generations.current(topic)
    own = {"tellGaps": "true", "generation": former}
    assert bodies(bench.answer(**own)) == [b"0", b"1", b"2"]
    # The log has lost offset 2, and another record is there now.
    position = store.queue("T", 0).entry(2)
    assert position is not None
    log.begin(min_position=0, end_position=position[0])
    assert bodies(bench.answer(**own)) == [b"0", b"1"]
    response = bench.answer(**own, queueOffset="2")
    assert (response.code, response.ext["changedOffset"], response.ext["change"]) == (21, "2", "cut")
    now = {"tellGaps": "true", "generation": bench.parts.generations.current(topic)}
    assert bodies(bench.answer(**now, queueOffset="2")) == [b"2"]
    with pytest.raises(RequestError, match="generation"):
        bench.pull(**{**own, "generation": "x"})
    store.close()


async def test_a_parked_pull_ends_empty_when_its_time_is_over(bench: Bench) -> None:
    bench.put(b"a")
    assert bench.pull(WAITS, queueOffset="1") is None
    bench.clock.advance(14.9)
    bench.handler.expire()
    assert bench.connection.replies == []
    bench.clock.advance(0.2)
    bench.handler.expire()
    response = bench.connection.replies[0]
    assert (response.code, response.ext["nextBeginOffset"]) == (19, "1")
    assert len(bench.parked_pulls) == 0


async def test_nobody_waits_longer_than_the_maximum(bench: Bench) -> None:
    assert bench.pull(WAITS, suspendTimeoutMillis=str(10**9)) is None
    bench.clock.advance(limits.HOLD_MS_MAX / 1000 + 0.1)
    bench.handler.expire()
    assert len(bench.connection.replies) == 1


async def test_pulls_that_may_not_wait_or_find_no_room_are_answered_at_once(
    store: Store, tmp_path: Path
) -> None:
    bench = Bench(store, tmp_path, held_pulls_max=1)
    assert bench.answer().code == 19
    assert bench.answer(WAITS, suspendTimeoutMillis="0").code == 19
    assert bench.pull(WAITS) is None
    assert bench.answer(WAITS).code == 19


async def test_a_lost_connection_is_not_answered(bench: Bench) -> None:
    assert bench.pull(WAITS) is None
    bench.handler.connection_lost(bench.connection)  # type: ignore[arg-type]
    bench.put(b"a")
    assert bench.connection.replies == []
    assert len(bench.parked_pulls) == 0
