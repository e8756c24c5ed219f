"""Retained messages as the log makes them, and looking them up by filter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_turns import LoopTurns, turn_s_max
from manual_clock import ManualClock
from store_model import BORN_HOST, open_small

from iotmq import limits
from iotmq.broker.delivery.retained import RetainedProjection
from iotmq.broker.delivery.retained_expiry import SWEEP_PAUSE_S, SWEEP_RECORDS_MAX
from iotmq.broker.delivery.retained_reads import RetainedReads
from iotmq.errors import StoreError, StoreFullError
from iotmq.message.records.record import decode_record, encode_batch
from iotmq.mqtt.topics.topics import matches
from iotmq.ports.sessions import Refused, RetainedRead, RetainedRecords
from iotmq.store.kv import kv_projection
from iotmq.store.store import Store


class Broker:
    def __init__(self, directory: Path, *, messages_max: int = 1000, bytes_max: int = 1 << 20) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.limits = {"messages_max": messages_max, "bytes_max": bytes_max}
        self.start()

    def start(self) -> None:
        self.store: Store = open_small(
            self.directory,
            clock=self.clock,
            segment_bytes=1 << 20,
            allocation_step_bytes=1 << 18,
            queue_file_entries=5000,
        )
        self.projection = RetainedProjection(self.store.key_values(), self.clock, **self.limits)
        self.store.add_projection(self.projection)

    def restart(self) -> None:
        self.store.close()
        self.start()

    def publish(
        self,
        *messages: tuple[str, bytes],
        topic: str = "mqtt",
        flag: bytes = b"1",
        time_to_live_ms: str | None = None,
    ) -> None:
        limit = b"" if time_to_live_ms is None else b"MSG_TTL_MS\x01%s\x02" % time_to_live_ms.encode()
        elements = [
            (body, b"MQTT_TOPIC\x01%s\x02MQTT_RETAIN\x01%s\x02" % (name.encode(), flag) + limit, 0)
            for name, body in messages
        ]
        self.store.append(
            self.store.queue(topic, 0), encode_batch(elements), born_timestamp_ms=1, born_host=BORN_HOST
        )

    def body(self, name: str) -> bytes | None:
        record = self.projection.get(name)
        return None if record is None else decode_record(record).body

    def find(self, topic_filter: str, *, records_max: int = 1000, bytes_max: int = 1 << 20) -> list[bytes]:
        """All bodies, page by page."""
        found: list[bytes] = []
        after = None
        while True:
            page = self.projection.find(
                topic_filter, after=after, records_max=records_max, bytes_max=bytes_max
            )
            assert len(page.records) <= records_max
            found += [decode_record(record).body for record in page.records]
            after = page.after
            if after is None:
                return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.store.close()


def test_the_last_message_with_the_flag_is_kept_and_an_empty_one_takes_it_away(broker: Broker) -> None:
    broker.publish(("a", b"1"), ("b", b"1"))
    broker.publish(("a", b"2"))
    broker.publish(("a", b"not retained"), flag=b"0")
    assert (broker.body("a"), broker.body("b"), broker.body("c")) == (b"2", b"1", None)
    assert broker.projection.count == 2
    broker.publish(("b", b""), ("c", b""))
    assert (broker.body("b"), broker.projection.count) == (None, 1)
    broker.restart()
    assert (broker.body("a"), broker.body("b"), broker.projection.count) == (b"2", None, 1)
    broker.publish(("a", b""))
    broker.restart()
    assert (broker.projection.count, broker.projection.size_bytes) == (0, 0)
    assert broker.find("#") == []


def test_a_write_that_is_refused_while_records_are_applied_has_the_database_opened_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB takes no more writes after one that met a full disk, until it is opened again."""
    monkeypatch.setattr(kv_projection, "REOPEN_S", 0.0)
    monkeypatch.setattr(kv_projection, "PENDING_KEYS_MAX", 1)
    generation = broker.store.key_values().generation
    broker.publish(("a", b"1"))

    def refuse(*_arguments: object, **_more: object) -> None:
        raise StoreFullError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(broker.projection._space, "write", refuse)
        broker.publish(("b", b"2"))
    broker.publish(("c", b"3"))
    assert broker.store.key_values().generation == generation + 1
    broker.publish(("d", b"4"))
    assert sorted(broker.find("#")) == [b"1", b"2", b"3", b"4"]


def test_a_database_that_starts_again_finds_nothing_until_it_has_caught_up(broker: Broker) -> None:
    broker.publish(("a", b"1"), ("b", b"1"))
    assert sorted(broker.find("#")) == [b"1", b"1"]
    broker.store.key_values().start_over()
    for _ in range(2):
        with pytest.raises(StoreError, match="goes on from 0"):
            broker.find("#")
    broker.store.retain()
    assert sorted(broker.find("#")) == [b"1", b"1"]


def test_copies_on_their_way_are_not_retained(broker: Broker) -> None:
    for topic in ("%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
        broker.publish(("a", b"1"), topic=topic)
    assert broker.projection.count == 0


def test_past_the_limits_known_topics_go_on_and_new_ones_are_counted(tmp_path: Path) -> None:
    broker = Broker(tmp_path, messages_max=2)
    broker.publish(("a", b"1"), ("b", b"1"), ("c", b"1"), ("a", b"2"))
    assert (broker.body("a"), broker.body("b"), broker.body("c")) == (b"2", b"1", None)
    assert broker.projection.refused_total == 1
    broker.publish(("b", b""), ("c", b"2"))
    assert broker.body("c") == b"2"
    broker.store.close()
    size = broker.projection.size_bytes
    narrow = Broker(tmp_path, bytes_max=size)
    narrow.publish(("d", b"1"))
    assert narrow.body("d") is None
    narrow.store.close()


def test_everything_comes_back_from_the_log_when_the_database_is_gone(tmp_path: Path) -> None:
    import shutil

    broker = Broker(tmp_path)
    broker.publish(("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", b""))
    broker.store.close()
    shutil.rmtree(tmp_path / "kv")
    broker.start()
    assert (broker.find("#"), broker.projection.count) == ([b"3"], 1)
    broker.store.close()


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("a", [b"a"]),
        ("a/#", [b"a", b"a/b", b"a/b/c", b"a/x"]),
        ("+", [b"a", b"a-b"]),
        ("+/b", [b"a/b", b"a-b/b"]),
        ("#", [b"a", b"a-b", b"a-b/b", b"a/b", b"a/b/c", b"a/x"]),
        ("a/+", [b"a/b", b"a/x"]),
        ("$SYS/#", [b"$SYS/x"]),
        ("+/x", [b"a/x"]),
        ("none/#", []),
    ],
)
@pytest.mark.parametrize("records_max", [1, 2, 100])
def test_filters_find_their_topics(
    broker: Broker, topic_filter: str, expected: list[bytes], records_max: int
) -> None:
    names = ("a", "a-b", "a-b/b", "a/b", "a/b/c", "a/x", "$SYS/x")
    broker.publish(*((name, name.encode()) for name in names))
    assert sorted(broker.find(topic_filter, records_max=records_max)) == sorted(expected)
    assert sorted(broker.find(topic_filter, bytes_max=1)) == sorted(expected)


def test_what_is_no_filter_is_refused(broker: Broker) -> None:
    with pytest.raises(ValueError, match="not a topic filter"):
        broker.projection.find("a/#/b", records_max=1, bytes_max=1)


LEVEL = st.sampled_from(["", "a", "b", "a-", "$s", "é", "0"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)
FILTER = st.tuples(st.lists(st.one_of(LEVEL, st.just("+")), max_size=4), st.sampled_from([[], ["#"]])).map(
    lambda parts: "/".join(parts[0] + parts[1]) or "+"
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    topics=st.sets(TOPIC, max_size=25),
    filters=st.lists(FILTER, min_size=1, max_size=6),
    records_max=st.sampled_from([1, 3, 100]),
)
def test_looking_up_finds_what_matching_one_by_one_finds(
    broker: Broker, topics: set[str], filters: list[str], records_max: int
) -> None:
    broker.projection.clear(broker.store.confirmed_position)
    if topics:
        broker.publish(*((topic, topic.encode()) for topic in topics))
    broker.projection.check_invariants()
    for topic_filter in filters:
        expected = sorted(topic.encode() for topic in topics if matches(topic_filter, topic))
        assert broker.find(topic_filter, records_max=records_max) == expected, topic_filter


# Messages with an end


def test_a_message_whose_time_is_over_is_not_found_and_leaves(broker: Broker) -> None:
    broker.publish(("a/1", b"x"), ("a/2", b"x"), time_to_live_ms="5000")
    broker.publish(("a/3", b"stays"))
    assert broker.find("a/#") == [b"x", b"x", b"stays"]
    broker.clock.advance(4.999)
    assert len(broker.find("a/#")) == 3
    broker.clock.advance(0.001)
    assert broker.find("a/1") == []
    assert (broker.projection.count, broker.projection.expired_total) == (2, 1)
    assert broker.find("a/+") == [b"stays"]
    assert (broker.projection.count, broker.projection.expired_total) == (1, 2)
    assert broker.projection.size_bytes == len("a/3") + len(broker.projection.get("a/3") or b"")
    broker.restart()
    assert (broker.body("a/1"), broker.body("a/3")) == (None, b"stays")


@pytest.mark.parametrize("time_to_live_ms", ["", "-1", "x", "9" * 19, "1e3"])
def test_what_is_no_time_is_none(broker: Broker, time_to_live_ms: str) -> None:
    broker.publish(("a", b"MSG_TTL_MS\x011\x02"), time_to_live_ms=time_to_live_ms)
    broker.clock.advance(1e9)
    assert broker.find("a") == [b"MSG_TTL_MS\x011\x02"]


def test_a_page_passes_over_no_more_of_them_than_it_may_look_at(broker: Broker) -> None:
    broker.publish(*((f"a/{number:02}", b"x") for number in range(20)), time_to_live_ms="1")
    broker.publish(("a/99", b"stays"))
    broker.clock.advance(1)
    work = looking_at(8, broker.projection.get("a/00") or b"")
    page = broker.projection.find("a/#", records_max=8, bytes_max=1 << 20, work_bytes_max=work)
    assert (page.records, page.after, page.work_bytes) == ([], "a/07", work)
    assert broker.projection.expired_total == 8
    assert broker.find("a/#", records_max=8) == [b"stays"]
    assert broker.projection.expired_total == 20


def looking_at(count: int, record: bytes) -> int:
    """The work of a page that looks at so many topics with such records."""
    return limits.RETAINED_LOOK_BYTES * (count + 1) + len(record) * count


def test_a_page_ends_where_its_work_is_done_though_nothing_was_found(broker: Broker) -> None:
    broker.publish(*((f"dev/{number:03}/status", b"x") for number in range(100)))
    work = looking_at(10, broker.projection.get("dev/000/status") or b"")
    page = broker.projection.find("dev/+/x", records_max=9, bytes_max=1 << 20, work_bytes_max=work)
    assert (page.records, page.after) == ([], "dev/009/status")
    page = broker.projection.find("dev/+/x", records_max=9, bytes_max=1 << 20, work_bytes_max=work + 1)
    assert (page.records, page.after) == ([], "dev/010/status")
    page = broker.projection.find("dev/+/x", records_max=9, bytes_max=1 << 20, work_bytes_max=1)
    assert (page.records, page.after) == ([], "dev/000/status"), "each page comes some way"


def test_what_is_no_topic_name_is_not_retained(broker: Broker) -> None:
    for name in ("a/#", "a/+", "a\x7f", "/".join("a" * 129)):
        broker.publish((name, b"poison"))
    assert broker.projection.count == 0
    broker.publish(("/".join("a" * 128), b"1"))
    assert broker.projection.count == 1


def test_what_was_retained_under_no_topic_name_before_is_not_found_and_leaves(broker: Broker) -> None:
    broker.publish(("a/b", b"sound"), ("c/d", b"poison"))
    poison = broker.projection.get("c/d") or b""
    for name in (b"a/#", b"a/+", b"a/\xff", b"z/#"):
        broker.projection.put(name, poison)
    assert broker.projection.count == 6
    assert broker.find("a/+") == broker.find("a/#") == [b"sound"]
    assert broker.projection.count == 3, "who looks finds them"
    broker.projection.write_out()
    broker.projection.sweep()
    assert broker.projection.count == 2, "and the sweep finds the rest"
    broker.projection.check_invariants()


@pytest.mark.slow
async def test_a_filter_that_looks_at_very_many_topics_holds_nobody_up(tmp_path: Path) -> None:
    broker = Broker(tmp_path, messages_max=1_000_000, bytes_max=1 << 30)
    for first in range(0, 20_000, 500):
        broker.publish(*((f"dev/{number:06}/status", b"x") for number in range(first, first + 500)))
    broker.publish(("dev/019999/x", b"found"))
    broker.projection.write_out()
    assert broker.projection.count == 20_001
    reads = RetainedReads(broker.projection)
    order: list[str] = []

    async def read_all(topic_filter: str) -> list[bytes]:
        after, found = None, []
        while True:
            answered: asyncio.Future[RetainedRecords | Refused] = asyncio.get_running_loop().create_future()
            reads.read(
                RetainedRead(topic_filter=topic_filter, after=after, records_max=64, bytes_max=1 << 18),
                answered.set_result,
            )
            page = await answered
            assert isinstance(page, RetainedRecords)
            found += [decode_record(record).body for record in page.records]
            after = page.after
            if after is None:
                order.append(topic_filter)
                return found

    with LoopTurns() as turns:
        wide = asyncio.gather(read_all("+/+/x"), read_all("dev/+/x"), read_all("+/+/nothing"))
        await asyncio.sleep(0)
        assert await read_all("dev/000007/status") == [b"x"]
        assert await wide == [[b"found"], [b"found"], []]
    assert order[0] == "dev/000007/status", "a small one does not wait for the wide ones"
    assert turns.count > 200
    assert turns.longest_s < turn_s_max()
    broker.store.close()


def test_the_sweep_comes_to_all_of_them_some_at_a_time(broker: Broker) -> None:
    count = SWEEP_RECORDS_MAX + 44
    broker.publish(*((f"gone/{number:04}", b"x") for number in range(count)), time_to_live_ms="5000")
    broker.publish(("stays", b"x"))
    broker.projection.write_out()
    broker.projection.sweep()
    broker.projection.sweep()
    assert broker.projection.count == count + 1
    broker.clock.advance(SWEEP_PAUSE_S - 1)
    broker.projection.sweep()
    assert broker.projection.count == count + 1, "a round is over, and the next has not begun"
    broker.clock.advance(1)
    broker.projection.sweep()
    assert broker.projection.count == count + 1 - SWEEP_RECORDS_MAX
    broker.projection.sweep()
    assert (broker.projection.count, broker.projection.expired_total) == (1, count)


def test_the_sweep_leaves_what_was_published_since(broker: Broker) -> None:
    broker.publish(("a", b"old"), ("b", b"old"), time_to_live_ms="1000")
    broker.projection.write_out()
    broker.clock.advance(2)
    broker.publish(("a", b"new"), ("b", b""))
    broker.projection.sweep()
    assert (broker.body("a"), broker.body("b"), broker.projection.expired_total) == (b"new", None, 0)
