"""A broker's store and what stores each message once, started again at will; for unit tests."""

from __future__ import annotations

import threading
from pathlib import Path

from manual_clock import ManualClock
from store_model import open_small

from iotmq.broker.exactly_once.batch_numbers import BatchNumbers
from iotmq.broker.exactly_once.received_ids import ReceivedIds, encode_release
from iotmq.broker.exactly_once.stored_once import StoredOnce
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.statistics.statistics import Statistics
from iotmq.broker.tables.changed_settings import ChangedSettings
from iotmq.broker.tables.topics import TopicTable
from iotmq.broker.writing.message_writer import MessageWriter, RefusedBatch, StoredBatch
from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_batch, iter_records
from iotmq.store.store import Store

HOST = bytes.fromhex("7f00000100001388")
FLUSH_TIMEOUT_S = 5.0


class Bench:
    """A broker's store and what stands before it, started again at will."""

    def __init__(
        self,
        directory: Path,
        *,
        flush: str = "async",
        ids_max: int = 100,
        producers_max: int = 100,
        bytes_max: int = 1 << 20,
    ) -> None:
        self.directory = directory
        self.flush = flush
        self.ids_max, self.producers_max, self.bytes_max = ids_max, producers_max, bytes_max
        self.clock = ManualClock()
        self.disk_works = threading.Event()
        self.disk_works.set()
        # All lives have one table.
        self.topics = TopicTable(
            directory / "topics.json", self.clock, end_position=lambda: self.store.appended_position
        )
        self.start()

    def sync_file(self, descriptor: int) -> None:
        self.disk_works.wait(30)

    def start(self) -> None:
        self.store: Store = open_small(
            self.directory / "data", clock=self.clock, segment_bytes=1 << 20, allocation_step_bytes=1 << 18,
            queue_file_entries=5000, flush=self.flush, sync_file=self.sync_file,
        )  # fmt: skip
        self.topics.ensure("T", queues=2)
        key_values = self.store.key_values()
        self.received = ReceivedIds(key_values, ids_max=self.ids_max, bytes_max=self.bytes_max)
        self.numbers = BatchNumbers(
            key_values,
            producers_max=self.producers_max,
            bytes_max=self.bytes_max,
            made_at=self.topics.made_at,
        )
        self.store.add_projection(self.received)
        self.store.add_projection(self.numbers)
        settings = ChangedSettings(
            self.directory / "brokerSettings.json", BrokerSettings(), self.store.settings
        )
        self.writer = MessageWriter(self.store, self.topics, settings, self.clock, Statistics(self.clock))
        self.writer.open()
        self.once = StoredOnce(self.writer, self.received, self.numbers, host=HOST)
        self.once.start()

    def restart(self) -> None:
        self.store.close()
        self.start()

    def send(
        self,
        *elements: bytes,
        is_repeat: bool = False,
        has_packet_ids: bool = False,
        is_numbered: bool = False,
        queue_id: int = 0,
    ) -> list[StoredBatch | RefusedBatch]:
        answers: list[StoredBatch | RefusedBatch] = []

        def append(elements: bytes, *, done: object) -> None:
            self.writer.append(
                "T", queue_id, elements, born_timestamp_ms=1, born_host=HOST, done=done, is_patient=True
            )  # type: ignore[arg-type]

        self.once.append(
            ("T",), b"".join(elements), append, answers.append,
            is_repeat=is_repeat, has_packet_ids=has_packet_ids, is_numbered=is_numbered,
        )  # type: ignore[arg-type]  # fmt: skip
        self.received.check_invariants()
        self.numbers.check_invariants()
        return answers

    def publish(self, client: str, packet_id: int, body: bytes, *, topic: str = "t") -> None:
        [answer] = self.send(
            element(body, MQTT_TOPIC=topic, MQTT_CLIENT_ID=client, MQTT_PACKET_ID=str(packet_id)),
            has_packet_ids=True,
        )
        assert isinstance(answer, StoredBatch)

    def release(self, client: str, packet_id: int) -> None:
        answers: list[StoredBatch | RefusedBatch] = []
        self.once.release(encode_release(client.encode(), packet_id), answers.append, now_ms=1)
        self.received.check_invariants()
        [answer] = answers
        assert isinstance(answer, StoredBatch)

    def bodies(self, queue_id: int = 0) -> list[bytes]:
        self.writer.write_out()
        queue = self.store.queue("T", queue_id)
        found = self.store.read(queue, 0, records_max=1000, bytes_max=1 << 20)
        return [record.body for record in iter_records(b"".join(found.views))]


def element(body: bytes, **properties: str) -> bytes:
    """A batch of one message."""
    return encode_batch([(body, encode_properties(properties), 0)])
