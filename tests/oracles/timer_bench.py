"""A store, a writer and everything about waiting messages, on a clock that tests move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventually import soon
from manual_clock import ManualClock

from iotmq.broker.parts import make_parts
from iotmq.broker.scheduled.delivery_time import DeliveryTime
from iotmq.broker.scheduled.scheduling import DelayDelivery
from iotmq.broker.scheduled.timers import Timers
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import Record, iter_records
from iotmq.store.kv.timer_index import TimerIndex
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)
LEVELS = "1s 5s 10s 30s 1m"
SETTINGS = {"segment_bytes": 1 << 20, "record_bytes_max": 65_536, "allocation_step_bytes": 65_536}


class TimerBench:
    """Open a directory (again); `stop` and `close` leave it."""

    def __init__(
        self, directory: Path, clock: ManualClock, *, pending_max: int = 1_000_000, **store: Any
    ) -> None:
        self.clock = clock
        self.is_closed = False
        self.store = Store.open(
            directory, StoreSettings(**{**SETTINGS, **store}), store_host=HOST, clock=clock
        )
        settings = BrokerSettings(delay_levels=LEVELS, timers_pending_max=pending_max)
        parts = make_parts(settings, self.store, directory=directory, host=HOST, clock=clock)
        self.topics = parts.topics
        self.topics.ensure(SCHEDULE_TOPIC, queues=18)
        self.topics.ensure(TIMER_TOPIC, queues=1)
        self.topics.ensure("T", queues=4)
        self.writer = parts.writer
        self.writer.open()
        self.delays = DelayDelivery(parts)
        self.levels = self.delays.levels
        self.delays.start()

    @property
    def timers(self) -> Timers:
        return self.delays.timers

    @property
    def index(self) -> TimerIndex:
        return self.store.timers()

    def put(
        self,
        body: bytes,
        *,
        in_ms: int = 0,
        level: int = 0,
        key: str = "",
        topic: str = "T",
        queue_id: int = 0,
    ) -> StoredBatch:
        """Store a message that waits so long, or for a level."""
        due_ms = self.clock.now_ms() + in_ms
        delivery_time = DeliveryTime(level=level) if level else DeliveryTime(due_ms=due_ms)
        properties = b"UNIQ_KEY\x01%s\x02" % key.encode() if key else b""
        waiting = self.timers.divert(topic, queue_id, properties, delivery_time)
        results: list[StoredBatch | RefusedBatch] = []
        self.writer.append(
            waiting.topic,
            waiting.queue_id,
            encode_element(body, waiting.properties, 0),
            born_timestamp_ms=self.clock.now_ms(),
            born_host=HOST,
            done=results.append,
            waits_for_flush=False,
        )
        assert isinstance(results[0], StoredBatch)
        return results[0]

    def cancel(self, key: str, topic: str = "T") -> StoredBatch | RefusedBatch:
        results: list[StoredBatch | RefusedBatch] = []
        self.timers.cancel(topic, key, results.append)
        return results[0]

    def pass_time(self, seconds: float) -> None:
        """Move the clock and deliver everything that is due by then."""
        self.clock.advance(seconds)
        self.deliver()

    def deliver(self) -> None:
        before = -1
        while self.timers.delivered_count + self.timers.skipped_count != before:
            before = self.timers.delivered_count + self.timers.skipped_count
            self.delays.deliver()

    def records(self, topic: str = "T", queue_id: int = 0) -> list[Record]:
        queue = self.store.find_queue(topic, queue_id)
        if queue is None:
            return []
        records: list[Record] = []
        offset = queue.min_offset
        while offset < queue.max_offset:
            read = self.store.read(queue, offset, records_max=10_000, bytes_max=1 << 24)
            records += [record for view in read.views for record in iter_records(view)]
            offset = read.next_offset
        return records

    def bodies(self, queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(queue_id=queue_id)]

    async def flushed(self) -> None:
        self.store.request_flush()
        await soon(
            lambda: self.store.flushed_position == self.store.appended_position, "everything is on the disk"
        )
        self.writer.confirm()

    def stop(self) -> None:
        self.writer.close()
        self.writer.finish()
        self.delays.stop()

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.stop()
            assert self.store.check() == []
            self.store.close()
