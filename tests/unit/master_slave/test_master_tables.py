"""What a slave takes of its master's tables, and what it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.scheduled.delay_offsets import DelayOffsetTable
from iotmq.broker.tables.config_files import DataVersion
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets
from iotmq.broker.tables.subscription_groups import SubscriptionGroups
from iotmq.broker.tables.topics import TopicTable
from iotmq.errors import BrokerError
from iotmq.master_slave.master_calls import MasterCalls, told_address
from iotmq.master_slave.master_tables import MasterTables
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode

# As a Java broker writes it: keys that are numbers have no quotes.
OFFSETS = b'{"offsetTable":{"T@g":{0:5,1:7}}}'


def topic(queues: int, **changes: Any) -> dict[str, Any]:
    return {"topicName": "T", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6, **changes}


class FakeCalls:
    """A master that answers what it is told to; a code without an answer is refused."""

    def __init__(self) -> None:
        self.oldest = 0
        self.end_position = 0
        self.bodies: dict[int, bytes] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: b'{"dataVersion":{"counter":0,"timestamp":0}}',
            RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG: b'{"dataVersion":{"counter":0,"timestamp":0}}',
            RequestCode.GET_ALL_CONSUMER_OFFSET: b"{}",
            RequestCode.GET_ALL_DELAY_OFFSET: b"{}",
        }

    async def table(self, code: int, shape: type[Any]) -> Any:
        if code not in self.bodies:
            raise BrokerError(1, "no")
        return lenient_json.decode(self.bodies[code], shape)

    async def log_range(self) -> tuple[int, int]:
        return self.oldest, self.end_position


class Bench:
    def __init__(self, directory: Path) -> None:
        clock = ManualClock()
        self.topics = TopicTable(directory / "topics.json", clock)
        self.groups = SubscriptionGroups(directory / "groups.json", clock, may_create=True)
        self.offsets = ConsumerOffsets(directory / "offsets.json")
        self.written: list[DelayOffsetTable] = []
        self.calls = FakeCalls()
        self.store = SimpleNamespace(appended_position=1_000, confirmed_position=1_000)
        self.tables = MasterTables(
            SimpleNamespace(  # type: ignore[arg-type]
                topics=self.topics, subscription_groups=self.groups, offsets=self.offsets, store=self.store
            ),
            SimpleNamespace(write_copy=self.written.append),  # type: ignore[arg-type]
            self.calls,  # type: ignore[arg-type]
        )

    def tell_topics(self, counter: int, table: dict[str, Any]) -> None:
        body = {"dataVersion": {"counter": counter, "timestamp": 9}, "topicConfigTable": table}
        self.calls.bodies[RequestCode.GET_ALL_TOPIC_CONFIG] = json.dumps(body).encode()

    def tell_groups(self, counter: int, table: dict[str, Any]) -> None:
        body = {"dataVersion": {"counter": counter, "timestamp": 9}, "subscriptionGroupTable": table}
        self.calls.bodies[RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG] = json.dumps(body).encode()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_topics_are_taken_with_another_version_only(bench: Bench) -> None:
    bench.tell_topics(3, {"T": topic(2)})
    await bench.tables.poll()
    assert bench.topics.version == DataVersion(3, 9)
    # As a heartbeat to the slave does.
    bench.topics.ensure("%RETRY%g", queues=1)
    await bench.tables.poll()
    assert bench.topics.names() == ["T"], "another version than the master's, so its table counts"
    taken = bench.topics.find("T")
    await bench.tables.poll()
    assert bench.topics.find("T") is taken, "the same version"
    bench.tell_topics(4, {})
    await bench.tables.poll()
    assert bench.topics.names() == []


async def test_topics_past_a_limit_are_left_out(bench: Bench) -> None:
    longest, most = "t" * limits.TOPIC_BYTES_MAX, limits.QUEUES_PER_TOPIC_MAX
    table = {
        longest: topic(most, topicName=longest),
        longest + "t": topic(1, topicName=longest + "t"),
        "M": topic(most + 1, topicName="M"),
        "N": topic(-1, topicName="N"),
        "O": topic(1, topicName="another"),
        "no name": topic(1, topicName="no name"),
    }
    bench.tell_topics(1, table)
    await bench.tables.poll()
    assert bench.topics.names() == [longest]
    assert bench.tables.left_out_count == 5
    bench.topics.check_invariants()


async def test_groups_past_a_limit_are_left_out(bench: Bench) -> None:
    longest, most = "g" * limits.GROUP_BYTES_MAX, limits.QUEUES_PER_TOPIC_MAX
    table = {
        longest: {"groupName": longest, "retryQueueNums": most},
        longest + "g": {"groupName": longest + "g"},
        "M": {"groupName": "M", "retryQueueNums": most + 1},
        "N": {"groupName": "N", "retryQueueNums": -1},
        "O": {"groupName": "another"},
    }
    bench.tell_groups(1, table)
    await bench.tables.poll()
    assert list(bench.groups._groups) == [longest]
    assert bench.tables.left_out_count == 4
    bench.groups.check_invariants()


async def test_offsets_of_a_java_master_are_raised_and_never_lowered(bench: Bench) -> None:
    bench.offsets.commit("g", "T", 0, 6)
    bench.calls.bodies[RequestCode.GET_ALL_CONSUMER_OFFSET] = OFFSETS
    await bench.tables.poll()
    assert [bench.offsets.find("g", "T", queue) for queue in (0, 1)] == [6, 7]


async def test_offsets_past_a_limit_are_left_out(bench: Bench) -> None:
    longest = "t" * limits.TOPIC_BYTES_MAX + "@" + "g" * limits.GROUP_BYTES_MAX
    queue_max, offset_max = limits.QUEUES_PER_TOPIC_MAX - 1, limits.QUEUE_OFFSET_MAX
    table = {
        longest: {"0": 1},
        longest + "g": {"0": 1},
        "none": {"0": 1},
        "T@g@h": {"0": 1},
        "T@g": {"0": offset_max, "1": offset_max + 1, "2": -1, str(queue_max): 1, str(queue_max + 1): 1},
    }
    bench.calls.bodies[RequestCode.GET_ALL_CONSUMER_OFFSET] = json.dumps({"offsetTable": table}).encode()
    await bench.tables.poll()
    assert json.loads(bench.offsets.encode()) == {
        "offsetTable": {longest: {"0": 1}, "T@g": {"0": offset_max, str(queue_max): 1}}
    }
    assert bench.tables.left_out_count == 3


async def test_delay_offsets_are_written_when_they_have_changed(bench: Bench) -> None:
    for text in (b'{"offsetTable":{1:4}}', b'{"offsetTable":{1:4}}', b'{"offsetTable":{1:5}}'):
        bench.calls.bodies[RequestCode.GET_ALL_DELAY_OFFSET] = text
        await bench.tables.poll()
    assert [table.offset_table for table in bench.written] == [{1: 4}, {1: 5}]


async def test_delay_offsets_wait_until_what_they_count_is_here(bench: Bench) -> None:
    def tell(offset: int, end_position: int) -> None:
        body = b'{"offsetTable":{1:%d}}' % offset
        bench.calls.bodies[RequestCode.GET_ALL_DELAY_OFFSET] = body
        bench.calls.end_position = end_position

    def written() -> list[int]:
        return [table.offset_table[1] for table in bench.written]

    tell(4, 1_001)
    await bench.tables.poll()
    assert written() == [], "the slave's log ends at 1000"
    # The master's log grows all the time: what was told first is what the slave comes up with.
    tell(5, 2_000)
    bench.store.confirmed_position = 1_001
    await bench.tables.poll()
    assert written() == [4]
    tell(6, 3_000)
    bench.store.confirmed_position = 2_000
    await bench.tables.poll()
    assert written() == [4, 5]
    del bench.calls.bodies[RequestCode.GET_ALL_DELAY_OFFSET]
    bench.store.confirmed_position = 3_000
    await bench.tables.poll()
    assert written() == [4, 5, 6]


async def test_one_question_without_an_answer_does_not_stop_the_others(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    del bench.calls.bodies[RequestCode.GET_ALL_TOPIC_CONFIG]
    bench.calls.bodies[RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG] = b"no JSON"
    bench.calls.bodies[RequestCode.GET_ALL_CONSUMER_OFFSET] = OFFSETS
    for _ in range(2):
        await bench.tables.poll()
    assert bench.offsets.find("g", "T", 0) == 5
    assert (bench.tables.polls_count, bench.tables.failures_count) == (2, 2)
    assert caplog.text.count("tables are not as they were asked for") == 1, "said once"


async def test_a_master_whose_log_begins_behind_the_copys_end_is_told_of(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for oldest in (0, 1_000):
        bench.calls.oldest = oldest
        await bench.tables.poll()
    assert caplog.text == ""
    bench.calls.oldest = 1_001
    for _ in range(2):
        await bench.tables.poll()
    assert caplog.text.count("empty data directory") == 1
    assert bench.tables.oldest_position == 1_001


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1.2.3.4:10912", ("1.2.3.4", 10912)), ("", None), ("nonsense", None), ("1.2.3.4:70000", None)],
)
def test_an_address_that_a_registry_tells_may_be_none(text: str, expected: tuple[str, int] | None) -> None:
    assert told_address({"haServerAddr": text}, "haServerAddr") == expected
    assert told_address({}, "haServerAddr") is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("mappedFileSizeCommitLog=1024\nx=1\n", 1024),
        ("mapedFileSizeCommitLog=2048\n", 2048),
        ("x=1\n", None),
        ("mappedFileSizeCommitLog=large\n", None),
    ],
)
async def test_the_size_of_the_masters_files_is_read_from_its_settings(
    monkeypatch: pytest.MonkeyPatch, body: str, expected: int | None
) -> None:
    async def answer(self: MasterCalls, code: int) -> bytes:
        return body.encode() if code == RequestCode.GET_BROKER_CONFIG else msgspec.json.encode({"table": {}})

    monkeypatch.setattr(MasterCalls, "body", answer)
    calls = MasterCalls.__new__(MasterCalls)
    if expected is None:
        with pytest.raises(BrokerError, match="how large"):
            await calls.segment_bytes()
    else:
        assert await calls.segment_bytes() == expected
    with pytest.raises(BrokerError, match="where its log begins"):
        await calls.log_range()
