"""The topic table: names, templates, limits, versions and topics.json."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.tables.deleted_topics import DeletedTopic
from iotmq.broker.tables.system_topics import system_topics
from iotmq.broker.tables.topics import (
    TopicConfig,
    TopicConfigTable,
    TopicTable,
    check_topic_name,
    encode_topics,
)
from iotmq.errors import RequestError, StoreCorruptError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "topics.json"


@pytest.fixture
def topics(path: Path) -> TopicTable:
    table = TopicTable(path, ManualClock())
    table.add_listener(lambda _: table.check_invariants())
    for topic in system_topics(cluster="C", broker="b", template_queues=8, may_inherit=True):
        table.put(topic)
    return table


@pytest.mark.parametrize("name", ["a", "%RETRY%group", "A-b_c|9", "x" * limits.TOPIC_BYTES_MAX])
def test_legal_names_pass(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a.b", "ä", "a\n", "x" * (limits.TOPIC_BYTES_MAX + 1)])
def test_illegal_names_are_refused_with_code_1(name: str) -> None:
    with pytest.raises(RequestError, match="topic") as caught:
        check_topic_name(name)
    assert caught.value.code == 1


def test_the_smaller_queue_count_wins_and_the_inherit_bit_is_not_passed_on(topics: TopicTable) -> None:
    few = topics.create_from_template("few", "TBW102", 4)
    many = topics.create_from_template("many", "TBW102", 64)
    assert few is not None
    assert (few.read_queue_nums, few.write_queue_nums, few.perm) == (4, 4, 6)
    assert many is not None
    assert many.write_queue_nums == 8


def test_no_topic_is_made_after_a_template_that_is_missing_or_not_for_inheritance(
    topics: TopicTable,
) -> None:
    assert topics.create_from_template("t", "nothing", 4) is None
    assert topics.create_from_template("t", "SELF_TEST_TOPIC", 4) is None
    assert topics.find("t") is None


def test_without_auto_create_the_template_has_no_inherit_bit() -> None:
    made = {
        t.topic_name: t for t in system_topics(cluster="C", broker="b", template_queues=8, may_inherit=False)
    }
    assert made["TBW102"].perm == 6
    assert made["SCHEDULE_TOPIC_XXXX"].queue_count == 18
    assert made["BenchmarkTest"].queue_count == 1024
    assert "C_REPLY_TOPIC" in made


def test_each_change_counts_up_the_version_and_is_told(path: Path) -> None:
    clock = ManualClock()
    topics = TopicTable(path, clock)
    told: list[str] = []
    topics.add_listener(told.append)
    topics.put(TopicConfig(topic_name="t"))
    topics.put(TopicConfig(topic_name="t"))
    clock.advance(1)
    topics.put(TopicConfig(topic_name="t", write_queue_nums=2))
    assert topics.delete("t")
    assert not topics.delete("t")
    assert told == ["t", "t", "t"]
    assert topics.version.counter == 3
    assert topics.version.timestamp == clock.now_ms()


def test_the_maximum_of_topics_is_kept_and_named(path: Path) -> None:
    topics = TopicTable(path, ManualClock(), topics_max=2)
    topics.ensure("a", queues=1)
    topics.ensure("b", queues=1)
    with pytest.raises(RequestError, match="maximum of 2 topics"):
        topics.ensure("c", queues=1)
    assert topics.ensure("a", queues=9).queue_count == 1


def test_saved_topics_come_back_and_the_former_file_stays_as_bak(path: Path, topics: TopicTable) -> None:
    topics.write(topics.encode())
    topics.ensure("more", queues=3)
    topics.write(topics.encode())
    again = TopicTable(path, ManualClock())
    assert again.find("more") == topics.find("more")
    assert again.version == topics.version
    assert "more" not in json.loads(path.with_name("topics.json.bak").read_text())["topicConfigTable"]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"topicConfigTable":3}'])
def test_a_damaged_file_is_replaced_by_its_bak(path: Path, topics: TopicTable, damage: bytes) -> None:
    topics.write(topics.encode())
    topics.write(topics.encode())
    path.write_bytes(damage)
    assert TopicTable(path, ManualClock()).find("TBW102") is not None
    assert not path.exists()
    assert TopicTable(path, ManualClock()).find("TBW102") is not None


def test_two_damaged_files_stop_the_start_and_are_named(path: Path, topics: TopicTable) -> None:
    topics.write(topics.encode())
    path.write_bytes(b"{")
    path.with_name("topics.json.bak").write_bytes(b"nothing")
    with pytest.raises(StoreCorruptError, match=r"topics\.json"):
        TopicTable(path, ManualClock())


def test_a_file_written_by_java_is_read(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(
        """{
\t"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1700000000000},
\t"topicConfigTable":{"T":{"attributes":{},"order":true,"perm":6,"readQueueNums":4,
\t\t"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":2}}}"""
    )
    topics = TopicTable(path, ManualClock())
    topic = topics.find("T")
    assert topic is not None
    assert (topic.order, topic.read_queue_nums, topic.write_queue_nums) == (True, 4, 2)
    assert topics.version.counter == 7


def test_frozen_queues_and_deletions_are_counted(topics: TopicTable) -> None:
    topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=3, frozen_queues=(1, 3)))
    topics.deleted.add("U", DeletedTopic(position=1, version=1))
    found = {metric.name: metric.value for metric in topics.metrics()}
    assert found["iotmq_broker_frozen_queues"] == 2
    assert found["iotmq_broker_deleted_topics"] == 1


def test_a_message_for_a_queue_that_takes_none_has_one_queue_to_go_to() -> None:
    topic = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=3, frozen_queues=(1, 3))
    assert topic.open_queues == [0, 2]
    assert [topic.taking_queue(queue_id) for queue_id in range(6)] == [0, 2, 2, 2, 0, 2]
    assert topic.frozen_below(3) == (1,)
    assert topic.frozen_below(1) is msgspec.UNSET


def test_the_brokers_own_messages_for_a_deleted_topic_have_nowhere_to_go(topics: TopicTable) -> None:
    topics.deleted.add("U", DeletedTopic(position=1, version=1))
    assert topics.taking_queue("U", 0) is None
    assert topics.taking_queue("unknown", 7) == 7
    assert topics.taking_queue("SCHEDULE_TOPIC_XXXX", 40) == 40
    topics.ensure("U", queues=2)
    assert topics.taking_queue("U", 5) == 1


def test_topics_that_never_had_a_frozen_queue_are_written_as_before(topics: TopicTable) -> None:
    topics.ensure("T", queues=2)
    assert b"frozenQueues" not in topics.encode()
    topics.put(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=1, frozen_queues=(1,)))
    assert json.loads(topics.encode())["topicConfigTable"]["T"]["frozenQueues"] == [1]
    masked = json.loads(encode_topics(topics.version, topics.configs(), perm_mask=~2))
    assert masked["topicConfigTable"]["T"]["perm"] == 4


def test_a_masters_table_replaces_this_one_and_what_differs_is_told(path: Path) -> None:
    table = TopicTable(path, ManualClock())
    for name, queues in (("same", 1), ("changed", 1), ("gone", 1)):
        table.ensure(name, queues=queues)
    told: list[str] = []
    table.add_listener(told.append)
    other = TopicTable(path.with_name("other.json"), ManualClock())
    for name, queues in (("same", 1), ("changed", 2), ("new", 1)):
        other.ensure(name, queues=queues)
    table.take(TopicConfigTable(data_version=other.version, topic_config_table=dict(other._topics)))
    assert sorted(told) == ["changed", "gone", "new"]
    assert table.encode() == other.encode()
    table.check_invariants()
