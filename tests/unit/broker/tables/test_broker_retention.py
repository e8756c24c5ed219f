"""What the broker tells the store about consumption, and deletion by hand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from loop_turns import LoopTurns, turn_s_max
from manual_clock import ManualClock
from store_model import open_small, put, wait_allocated, wait_flushed

from iotmq.broker.broker import Broker
from iotmq.broker.handlers.admin.deletion import RetentionHandler
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.consumed import ConsumedPosition
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets
from iotmq.broker.tables.topics import SCHEDULE_TOPIC, SELF_TEST_TOPIC
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.store.log.queue import Queue
from iotmq.store.retention.decide import DiskUsage
from iotmq.store.store import Store

WAIT_S = 20.0


class Disk:
    percent = 10

    def __call__(self, path: Path) -> DiskUsage:
        return DiskUsage(str(path), self.percent, 100)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, disk: Disk) -> Iterator[Store]:
    store = open_small(
        tmp_path / "data",
        clock=clock,
        read_usage=disk,
        retention_delay_ms=0,
        retention_hours=1,
        protect_unconsumed=True,
    )
    yield store
    wait_flushed(store)
    assert store.check() == []
    store.close()


@pytest.fixture
def offsets(tmp_path: Path) -> ConsumerOffsets:
    return ConsumerOffsets(tmp_path / "consumerOffset.json")


def fill(store: Store, topic: str, count: int, queue_id: int = 0) -> list[int]:
    positions = [put(store, topic, queue_id, b"x" * 1000).start_position for _ in range(count)]
    wait_allocated(store)
    return positions


def lowest_consumed_position(store: Store, offsets: ConsumerOffsets, **options: Any) -> int | None:
    """None when everything was consumed."""
    consumed = ConsumedPosition(store, offsets, **options)
    assert consumed.position == 0
    for _ in consumed.look():
        assert consumed.position == 0
    return None if consumed.position == store.confirmed_position else consumed.position


def test_nothing_stored_is_nothing_to_wait_for(store: Store, offsets: ConsumerOffsets) -> None:
    store.queue("T", 0)
    assert lowest_consumed_position(store, offsets) is None


def test_a_queue_without_offsets_was_not_consumed_at_all(store: Store, offsets: ConsumerOffsets) -> None:
    positions = fill(store, "A", 2) + fill(store, "B", 2)
    offsets.commit("g", "A", 0, 2)
    assert lowest_consumed_position(store, offsets) == positions[2]
    assert lowest_consumed_position(store, offsets, ignored_topics={"B"}) is None
    assert lowest_consumed_position(store, offsets, is_read=lambda queue: queue.topic != "B") is None


def test_the_group_furthest_behind_counts(store: Store, offsets: ConsumerOffsets) -> None:
    positions = fill(store, "A", 6)
    offsets.commit("fast", "A", 0, 6)
    offsets.commit("slow", "A", 0, 2)
    assert lowest_consumed_position(store, offsets) == positions[2]
    offsets.commit("slow", "A", 0, 5)
    assert lowest_consumed_position(store, offsets) == positions[5]
    offsets.forget_group("slow")
    assert lowest_consumed_position(store, offsets) is None


def test_the_queue_furthest_behind_counts(store: Store, offsets: ConsumerOffsets) -> None:
    positions = [position for queue_id in (1, 0, 2) for position in fill(store, "A", 2, queue_id)]
    for queue_id, offset in ((0, 1), (1, 2), (2, 0)):
        offsets.commit("g", "A", queue_id, offset)
    assert lowest_consumed_position(store, offsets) == positions[3]


def test_an_offset_before_what_is_stored_counts_from_there(
    store: Store, offsets: ConsumerOffsets, clock: ManualClock
) -> None:
    fill(store, "A", 12)
    offsets.commit("g", "A", 0, 0)
    wait_flushed(store)
    clock.advance(3700)
    store.delete_expired()
    assert lowest_consumed_position(store, offsets) == store.min_position == 3 * 4096


def test_queues_the_broker_consumes_itself(store: Store, offsets: ConsumerOffsets) -> None:
    positions = fill(store, "Waiting", 3)
    queue = store.queue("Waiting", 0)
    assert lowest_consumed_position(store, offsets, delivered=lambda: [(queue, 2)]) == positions[2]
    assert lowest_consumed_position(store, offsets, delivered=lambda: [(queue, 3)]) is None


def test_what_comes_while_it_is_looked_is_not_consumed(store: Store, offsets: ConsumerOffsets) -> None:
    fill(store, "A", 1)
    offsets.commit("g", "A", 0, 1)
    consumed = ConsumedPosition(store, offsets)
    steps = consumed.look()
    next(steps)
    later = fill(store, "B", 1)
    offsets.commit("g", "B", 0, 1)
    deque(steps, maxlen=0)
    assert consumed.position == later[0]


def test_a_topic_that_is_deleted_while_it_is_looked(store: Store, offsets: ConsumerOffsets) -> None:
    positions = fill(store, "A", 1) + fill(store, "B", 1)
    consumed = ConsumedPosition(store, offsets)
    steps = consumed.look()
    next(steps)
    store.hide_topics({"A": store.confirmed_position})
    deque(steps, maxlen=0)
    assert consumed.position == positions[1]


async def test_very_many_offsets_are_looked_through_in_many_turns(
    store: Store, offsets: ConsumerOffsets
) -> None:
    position = fill(store, "A", 1)[0]
    for number in range(60_000):
        offsets.commit("g", f"t{number}", 0, 1)
    consumed = ConsumedPosition(store, offsets)
    looked = asyncio.Event()
    is_read = consumed._is_read

    def note(queue: Queue) -> bool:
        looked.set()
        return is_read(queue)

    consumed._is_read = note
    with LoopTurns() as turns:
        looking = asyncio.create_task(consumed.look_repeatedly())
        await looked.wait()
        looking.cancel()
    assert turns.count > 3
    assert consumed.position <= position
    assert turns.longest_s < turn_s_max()


class Connection:
    """Nobody asks it anything."""


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.TRIGGER_DELETE_FILES,
        RequestCode.CLEAN_EXPIRED_CONSUME_QUEUE,
        RequestCode.DELETE_EXPIRED_COMMIT_LOG,
    ],
)
def test_deletion_by_hand_does_not_wait_for_the_hour(store: Store, clock: ManualClock, code: int) -> None:
    fill(store, "A", 9)
    wait_flushed(store)
    store.retain()
    clock.advance(3700)
    handler = RetentionHandler(store)
    connection: Any = Connection()
    reply = handler.handlers()[code](connection, Command.request(code, {}))
    assert reply is not None
    assert reply.code == ResponseCode.SUCCESS
    assert store.min_position == 2 * 4096
    handler.connection_lost(connection)
    assert store._trimmer.remover.wait_idle(WAIT_S)


def make_broker(directory: Path, store: Store, clock: ManualClock, **settings: Any) -> Broker:
    return Broker(
        BrokerSettings(listen_port=0, registries=[], **settings), store, directory=directory, clock=clock
    )


def delete_expired_up_to(position: int, store: Store, clock: ManualClock) -> None:
    """Passes until the log begins there: the first have the projections brought to the disk, in a thread."""
    store.delete_expired()

    def is_done() -> bool:
        clock.advance(1)
        store.retain()
        assert store.min_position <= position
        return store.min_position == position

    eventually(is_done, f"the log begins at {position}")


def test_the_broker_keeps_what_its_groups_have_not_consumed(
    tmp_path: Path, store: Store, clock: ManualClock, disk: Disk
) -> None:
    broker = make_broker(tmp_path / "data", store, clock)
    fill(store, SELF_TEST_TOPIC, 2)
    fill(store, "A", 7)
    broker.offsets.commit("g", "A", 0, 2)
    wait_flushed(store)
    clock.advance(3700)
    # Before it has been looked, nothing counts as consumed.
    store.delete_expired()
    store.retain()
    assert store.min_position == 0
    deque(broker.consumed.look(), maxlen=0)
    delete_expired_up_to(4096, store, clock)
    broker.offsets.commit("g", "A", 0, 7)
    deque(broker.consumed.look(), maxlen=0)
    delete_expired_up_to(2 * 4096, store, clock)


def test_delayed_messages_count_until_they_are_delivered(
    tmp_path: Path, store: Store, clock: ManualClock
) -> None:
    broker = make_broker(tmp_path / "data", store, clock)
    waiting = fill(store, SCHEDULE_TOPIC, 2)
    deque(broker.consumed.look(), maxlen=0)
    assert store.consumed_position is not None
    assert store.consumed_position() == waiting[0]


async def test_a_full_disk_is_code_14_until_it_is_not(
    tmp_path: Path, store: Store, clock: ManualClock, disk: Disk
) -> None:
    broker = make_broker(tmp_path / "data", store, clock)
    broker.writer.open()
    broker.topics.ensure("A", queues=1)
    results: list[StoredBatch | RefusedBatch] = []

    def send() -> StoredBatch | RefusedBatch:
        broker.writer.append(
            "A",
            0,
            encode_element(b"body", b"", 0),
            born_timestamp_ms=1,
            born_host=b"\x7f\0\0\1\0\0\0\1",
            done=results.append,
        )
        return results[-1]

    assert isinstance(send(), StoredBatch)
    disk.percent = 91
    store.retain()
    refused = send()
    assert isinstance(refused, RefusedBatch)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE == 14
    assert "store.disk_full_percent = 90" in refused.remark
    assert str(tmp_path) in refused.remark
    disk.percent = 86
    clock.advance(10)
    store.retain()
    assert isinstance(send(), RefusedBatch)
    disk.percent = 85
    clock.advance(10)
    store.retain()
    assert isinstance(send(), StoredBatch)
    broker.writer.close()
