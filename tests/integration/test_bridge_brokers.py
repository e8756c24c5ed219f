"""The stream reader of format iotmq over real registries and brokers, driven as Spark drives it."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import threading
import zlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("pyspark")

from eventually import eventually
from manual_clock import ManualClock
from msgspec.structs import replace
from sink_harness import record_batches, sink

from iotmq.bridge.sink.errors import SinkRowError, SinkUnavailableError
from iotmq.bridge.source import DataLossError, IotmqDataSource, IotmqStreamReader
from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.client.admin.changes import AdminChanges
from iotmq.client.admin.queue_scaling import QueueScaling
from iotmq.client.client import IotmqClient
from iotmq.client.transport.settings import ClientSettings
from iotmq.errors import BrokerError, ConnectionClosedError
from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_batch
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

START_MS = 1_700_000_000_000
Result = TypeVar("Result")


class Brokers:
    """A registry and two brokers, `a` and `b`, with one clock, in a thread with a loop of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock(START_MS)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._registry = Registry(RegistrySettings(listen_port=0))
        self.call(self._registry.start())
        self.address = f"127.0.0.1:{self._registry.port}"
        self._ports = {"a": 0, "b": 0}
        self.brokers: dict[str, Broker] = {}
        self._stores: dict[str, Store] = {}
        for name in self._ports:
            self.start(name)

    def start(self, name: str) -> None:
        settings = BrokerSettings(
            name=name,
            listen_port=self._ports[name],
            registries=(self.address,),
            default_topic_queues=2,
            registration_interval_s=0.5,
        )
        host = resolve_store_host(settings)
        self._stores[name] = Store.open(
            self.directory / name,
            StoreSettings(
                segment_bytes=1 << 20,
                checkpoint_interval_ms=3_600_000,
                retention_delay_ms=0,
                delete_pause_ms=0,
                protect_unconsumed=True,
            ),
            store_host=host,
            clock=self.clock,
        )
        broker = Broker(
            settings, self._stores[name], directory=self.directory / name, store_host=host, clock=self.clock
        )
        self.call(broker.start())
        self.call(broker.wait_registered(10))
        self.brokers[name] = broker
        self._ports[name] = broker.port

    def stop(self, name: str) -> None:
        self.call(self.brokers.pop(name).stop())
        self._stores.pop(name).close()

    def end(self) -> None:
        for name in list(self.brokers):
            self.stop(name)
        self.call(self._registry.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def keep(self, name: str) -> Path:
        """What the disk of a broker has now, for sure: a power cut takes back what comes later."""
        kept = self.directory / f"{name}.kept"

        async def write() -> None:
            store = self._stores[name]
            flushed = asyncio.Event()
            store.when_flushed(store.appended_position, flushed.set)
            store.request_flush()
            await flushed.wait()
            store.write_checkpoint()
            shutil.copytree(self.directory / name, kept)

        self.call(write())
        return kept

    def cut_power(self, name: str, kept: Path) -> None:
        """The broker starts with what its disk had."""
        self.stop(name)
        shutil.rmtree(self.directory / name)
        shutil.move(kept, self.directory / name)
        (self.directory / name / "lock").unlink(missing_ok=True)
        self.clock.advance(1)
        self.start(name)

    def store(self, name: str, topic: str, count: int, *, queue_id: int = 0, **properties: str) -> None:
        elements = [(b"%s %d" % (name.encode(), n), encode_properties(properties), 0) for n in range(count)]
        stored: list[StoredBatch | RefusedBatch] = []

        async def append() -> None:
            self.brokers[name].writer.append(
                topic,
                queue_id,
                encode_batch(elements),
                born_timestamp_ms=START_MS,
                born_host=bytes(8),
                done=stored.append,
            )

        self.call(append())
        assert isinstance(stored[0], StoredBatch), stored[0]

    def make(self, topic: str, *names: str, queues: int = 1) -> None:
        for name in names:
            self.on_loop(lambda name=name: self.brokers[name].topics.ensure(topic, queues=queues))
        self.await_queues(topic, queues * len(names))

    def delete(self, topic: str) -> None:
        self.admin(lambda changes: changes.delete_topic(topic))
        self.await_queues(topic, 0)

    def admin(self, change: Callable[[AdminChanges], Coroutine[Any, Any, object]]) -> None:
        async def call() -> None:
            async with IotmqClient(ClientSettings(registries=(self.address,))) as client:
                await change(AdminChanges(client))

        self.call(call())

    def delete_expired(self, name: str, topic: str) -> int:
        """Delete what is past its age and is not protected; where queue 0 begins then."""

        async def delete() -> int:
            store = self._stores[name]
            for _ in self.brokers[name].consumed.look():
                pass
            flushed = asyncio.Event()
            store.when_flushed(store.appended_position, flushed.set)
            store.request_flush()
            await flushed.wait()
            store.delete_expired()
            return store.queue(topic, 0).min_offset

        return self.call(delete())

    def shrink(self, topic: str, queue_count: int, frozen: list[int], *, names: list[str]) -> None:
        """Freeze queues of a topic and remove them, which the brokers do when they are drained only."""

        async def shrink() -> None:
            async with IotmqClient(ClientSettings(registries=(self.address,))) as client:
                scaling = QueueScaling(client)
                await scaling.freeze(topic, frozen, names)
                await scaling.remove(topic, queue_count, names)

        self.call(shrink())

    def await_queues(self, topic: str, count: int) -> None:
        def there() -> bool:
            route = self._registry.routes.route(topic)
            return (sum(queues.read_queue_count for _, queues in route.queues) if route else 0) == count

        eventually(there, f"{count} queues of {topic}")

    def on_loop(self, work: Callable[[], Result]) -> Result:
        async def call() -> Result:
            return work()

        return self.call(call())

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    started = Brokers(tmp_path)
    yield started
    started.end()


class Stream:
    """A query: its reader, and the offsets that Spark would have in its checkpoint."""

    def __init__(self, brokers: Brokers, topics: str, **options: str) -> None:
        self._options = {
            "iotmq.bootstrap.servers": brokers.address,
            "subscribe": topics,
            "startingOffsets": "earliest",
            "retryTimeoutMs": "1000",
            "requestTimeoutMs": "5000",
            **options,
        }
        self.reader = self._reader()
        self.at = self.reader.initialOffset()
        self.read: list[tuple[str, int, int, str]] = []

    def _reader(self) -> IotmqStreamReader:
        source = IotmqDataSource(self._options)
        return source.streamReader(source.schema().add("broker", "string"))

    def start_again(self, **options: str) -> None:
        """As from the checkpoint, by another process."""
        self.reader.stop()
        self._options |= options
        self.reader = self._reader()

    def plan(self) -> tuple[dict[str, Any], Any]:
        end = self.reader.latestOffset(self.at, self.reader.getDefaultReadLimit())
        return end, self.reader.partitions(self.at, end)

    def rows(self, partitions: Any) -> list[tuple[str, int, int, str]]:
        found = []
        for partition in partitions:
            reader, part = pickle.loads(pickle.dumps((self.reader, partition)))
            for batch in reader.read(part):
                found += [
                    (row["broker"], row["partition"], row["offset"], row["value"].decode())
                    for row in batch.to_pylist()
                ]
        return found

    def step(self) -> list[tuple[str, int, int]]:
        """One batch, and the commit of it; what was read."""
        end, partitions = self.plan()
        rows = self.rows(partitions)
        self.read += rows
        self.at = end
        self.reader.commit(end)
        return [row[:3] for row in rows]

    def offsets(self, topic: str) -> dict[str, int]:
        found: dict[str, int] = self.at["topics"].get(topic, {})
        return found


def of(name: str, queue_id: int, start: int, end: int) -> list[tuple[str, int, int]]:
    return [(name, queue_id, n) for n in range(start, end)]


def test_a_power_cut_is_told_with_the_offsets_it_took_back_and_nothing_is_passed_over(
    brokers: Brokers,
) -> None:
    brokers.make("t", "a", "b")
    brokers.store("a", "t", 5)
    kept = brokers.keep("a")
    brokers.store("a", "t", 3)
    brokers.store("b", "t", 4)
    stream = Stream(brokers, "t")
    assert stream.step() == of("a", 0, 0, 8) + of("b", 0, 0, 4)
    brokers.store("a", "t", 2)
    _, planned = stream.plan()
    brokers.cut_power("a", kept)
    # Longer than before: offsets alone would not show it.
    brokers.store("a", "t", 7)
    assert brokers.on_loop(lambda: brokers._stores["a"].queue("t", 0).max_offset) == 12
    with pytest.raises(DataLossError, match=r"topic 't' queue a:0 offset 8 to 9: the broker has lost them"):
        stream.rows(planned)
    stream.start_again()
    with pytest.raises(DataLossError, match=r"topic 't' queue a:0 offset 5 to 7: the broker has lost them"):
        stream.step()
    stream.start_again(failOnDataLoss="false")
    assert stream.step() == []
    assert stream.offsets("t") == {"a:0": 5, "b:0": 4}
    assert stream.step() == of("a", 0, 5, 12)
    stream.start_again(failOnDataLoss="true")
    brokers.store("b", "t", 1)
    assert stream.step() == of("b", 0, 4, 5)


def test_a_killed_or_restarted_broker_has_lost_nothing(brokers: Brokers) -> None:
    brokers.make("t", "a", "b")
    stream = Stream(brokers, "t")
    read = []
    for number in range(4):
        brokers.store("a", "t", 3)
        brokers.store("b", "t", 2)
        read += stream.step()
        brokers.stop("a")
        if number % 2:
            (brokers.directory / "a" / "abort").touch()
        brokers.clock.advance(1)
        brokers.start("a")
        stream.start_again()
    assert sorted(read) == of("a", 0, 0, 12) + of("b", 0, 0, 8)


def test_a_topic_that_was_deleted_and_made_anew_loses_what_was_not_read_and_no_more(brokers: Brokers) -> None:
    for topic in ("t", "u", "other"):
        brokers.make(topic, "a", "b")
    stream = Stream(brokers, "t,u,other")
    for topic in ("t", "u", "other"):
        brokers.store("a", topic, 5)
    assert len(stream.step()) == 15
    brokers.store("a", "u", 2)
    for topic in ("t", "u"):
        brokers.delete(topic)
        brokers.make(topic, "a", "b")
        brokers.store("a", topic, 3)
    stream.start_again()
    with pytest.raises(DataLossError) as raised:
        stream.step()
    assert "topic 'u' queue a:0 offset 5 to 6: the topic was deleted and made anew" in str(raised.value)
    assert "'t'" not in str(raised.value)
    assert "'other'" not in str(raised.value)
    stream.start_again(failOnDataLoss="false")
    assert sorted(stream.step()) == sorted(of("a", 0, 5, 8) + of("a", 0, 7, 10))
    # Deleted for good, after it was read: it takes nothing but itself.
    stream.start_again(failOnDataLoss="true")
    brokers.delete("u")
    brokers.store("b", "other", 1)
    assert stream.step() == of("b", 0, 0, 1)
    assert "u" not in stream.at["topics"]


def test_a_queue_is_drained_by_a_stream_and_leaves(brokers: Brokers) -> None:
    brokers.make("t", "a", "b", queues=2)
    brokers.store("a", "t", 4, queue_id=1)
    stream = Stream(brokers, "t")
    stream.plan()
    # A stream that has begun counts as a consumer.
    with pytest.raises(BrokerError, match=r"group iotmq-spark-[0-9a-f]{8} has 4 messages to go"):
        brokers.shrink("t", 1, [1], names=["a"])
    assert stream.step() == of("a", 1, 0, 4)
    brokers.shrink("t", 1, [1], names=["a"])
    brokers.await_queues("t", 3)
    brokers.store("a", "t", 2)
    stream.start_again()
    assert stream.step() == of("a", 0, 0, 2)
    assert stream.offsets("t") == {"a:0": 2, "b:0": 0, "b:1": 0}
    assert stream.at["left"] == {"t": {"a:1": 4}}
    # It is back where it was.
    grown = brokers.on_loop(lambda: brokers.brokers["a"].topics.find("t"))
    assert grown is not None
    brokers.on_loop(
        lambda: brokers.brokers["a"].topics.put(replace(grown, read_queue_nums=2, write_queue_nums=2))
    )
    brokers.await_queues("t", 4)
    brokers.store("a", "t", 1, queue_id=1)
    assert stream.step() == of("a", 1, 4, 5)


def test_retention_keeps_what_a_stream_has_not_committed_until_its_group_is_deleted(brokers: Brokers) -> None:
    """With `store.protect_unconsumed`; the group is there by its offsets alone."""
    brokers.make("t", "a")
    padding = {"padding": "x" * 30_000}
    brokers.store("a", "t", 60, **padding)
    # One that begins at the end has read what was before.
    ahead = Stream(brokers, "t", groupId="ahead", startingOffsets="latest")
    ahead.step()
    ahead.step()
    stream = Stream(brokers, "t", groupId="lake", maxOffsetsPerTrigger="40")
    end, planned = stream.plan()
    brokers.clock.advance(200 * 3600)
    assert brokers.delete_expired("a", "t") == 0
    assert len(stream.rows(planned)) == 40
    assert brokers.delete_expired("a", "t") == 0, "it was read, and may be read once more"
    stream.at = end
    stream.reader.commit(end)
    assert 0 < eventually(lambda: brokers.delete_expired("a", "t"), "what is committed goes") <= 40
    stream.start_again()
    assert stream.step() == of("a", 0, 40, 60)
    # What is given up for good.
    brokers.store("a", "t", 60, **padding)
    brokers.clock.advance(200 * 3600)
    ahead.step()
    assert brokers.delete_expired("a", "t") <= 60
    brokers.admin(lambda changes: changes.delete_group("lake"))
    assert brokers.on_loop(lambda: brokers.brokers["a"].offsets.topics_of("lake")) == []
    eventually(lambda: brokers.delete_expired("a", "t") > 60, "what nobody waits for goes")


def test_expired_records_are_passed_over_by_the_time_of_the_batch(brokers: Brokers) -> None:
    brokers.make("t", "a")
    for number in range(6):
        ttl = {"MSG_TTL_MS": "5000"} if number % 2 else {}
        brokers.store("a", "t", 2, **ttl)
    brokers.clock.advance(4)
    stream = Stream(brokers, "t")
    _, planned = stream.plan()
    brokers.clock.advance(60)
    # They were not over when the batch was planned, so it has them whenever it is read.
    everything = of("a", 0, 0, 12)
    assert [row[:3] for row in stream.rows(planned)] == everything
    again = Stream(brokers, "t")
    rest = [row for row in everything if row[2] % 4 < 2]
    assert again.step() == rest
    assert again.step() == []
    assert Stream(brokers, "t", includeExpired="true").step() == everything
    # A batch of nothing else goes on behind it.
    brokers.store("a", "t", 3, MSG_TTL_MS="10")
    brokers.clock.advance(1)
    assert again.step() == []
    assert again.offsets("t") == {"a:0": 15}


def test_what_a_repaired_log_has_lost_is_told_as_that(brokers: Brokers) -> None:
    brokers.make("t", "a")
    brokers.store("a", "t", 20)
    places = brokers.on_loop(
        lambda: [brokers._stores["a"].queue("t", 0).entry(offset)[0] for offset in range(20)]  # type: ignore[index]
    )
    brokers.stop("a")
    (log,) = [path for path in (brokers.directory / "a" / "commitlog").iterdir() if path.name.isdigit()]
    with log.open("r+b") as file:
        for offset in (7, 8, 10, 12):
            file.seek(places[offset])
            file.write(bytes(60))
    brokers.start("a")
    stream = Stream(brokers, "t")
    with pytest.raises(DataLossError, match=r"offset 7 to 8: they are damaged in the broker's log"):
        stream.step()
    stream.start_again(failOnDataLoss="false")
    left = [n for n in range(20) if n not in (7, 8, 10, 12)]
    assert [row[2] for row in stream.step()] == left
    # Nothing is passed over where a time is looked for and the record in the middle is one of them.
    since = Stream(brokers, "t", startingTimestamp=str(START_MS), failOnDataLoss="false")
    since.step()
    assert [row[2] for row in since.step()] == left


def test_latest_waits_for_a_broker_that_is_away_and_never_reads_its_backlog(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    brokers.make("t", "a", "b")
    brokers.store("a", "t", 5)
    brokers.store("b", "t", 5)
    brokers.stop("b")
    brokers.clock.advance(60)
    source = IotmqDataSource(
        {"iotmq.bootstrap.servers": brokers.address, "subscribe": "t", "retryTimeoutMs": "200"}
    )
    with pytest.raises(ConnectionClosedError, match="broker b of topic 't' is away"):
        source.reader(source.schema()).partitions()
    stream = Stream(brokers, "t", startingOffsets="latest")
    done = threading.Event()
    found: list[list[tuple[str, int, int]]] = []

    def begin() -> None:
        found.append(stream.step())
        done.set()

    thread = threading.Thread(target=begin, daemon=True)
    thread.start()
    eventually(lambda: "broker b of topic 't' is away" in caplog.text, "a word about the broker")
    assert not done.is_set()
    brokers.start("b")
    assert done.wait(20)
    thread.join(5)
    assert found == [[]]
    assert stream.offsets("t") == {"a:0": 5, "b:0": 5}
    brokers.store("b", "t", 1)
    assert stream.step() == of("b", 0, 5, 6)


def test_a_batch_that_is_repeated_waits_for_a_broker_that_is_away(brokers: Brokers) -> None:
    """It may have the rows, and who does not ask it stores them elsewhere once more."""
    brokers.make("t", "a", "b")
    # Queues in order: a:0, b:0.
    of_b = next(key for key in map(str, range(9)) if zlib.crc32(key.encode()) % 2)
    rows = record_batches([{"value": b"%d" % n, "key": of_b} for n in range(20)])
    assert sink(brokers.address, rows, topic="t") == 20
    brokers.stop("b")
    with pytest.raises(SinkUnavailableError, match="broker b of topic 't' stayed away for the time"):
        sink(brokers.address, rows, topic="t", retryTimeoutMs="300")
    brokers.start("b")
    brokers.await_queues("t", 2)
    assert sink(brokers.address, rows, topic="t") == 20
    assert sorted(Stream(brokers, "t").step()) == of("b", 0, 0, 20)


def test_rows_name_their_queue_by_broker_and_number_where_there_are_several_brokers(brokers: Brokers) -> None:
    brokers.make("t", "a", "b", queues=2)
    brokers.make("alone", "b", queues=2)
    rows = [
        {"value": b"%d" % n, "topic": "t", "partition": n % 2, "broker": "ab"[n // 2 % 2]} for n in range(40)
    ]
    of_one = {"topic": "alone", "partition": 1}
    rows += [
        {"value": b"40", "topic": "t", "partition": None, "broker": None},
        {"value": b"41", "broker": None, **of_one},
        {"value": b"42", "broker": "b", **of_one},
    ]
    assert sink(brokers.address, record_batches(rows, rows_max=7)) == 43
    stream = Stream(brokers, "t,alone")
    stream.step()
    found = {value: (broker, queue_id) for broker, queue_id, _, value in stream.read}
    del found["40"]
    assert found == {
        row["value"].decode(): (row["broker"] or "b", row["partition"])
        for row in rows
        if row["value"] != b"40"
    }
    for row, problem in [
        (
            {"partition": 1, "broker": None},
            "column broker is missing: topic 't' is at a, b, and each numbers",
        ),
        ({"partition": 1, "broker": "c"}, "column broker is 'c', and topic 't' has no queue there"),
        ({"partition": 2, "broker": "b"}, "column partition is 2, and topic 't' has no such queue"),
        ({"partition": None, "broker": "b"}, "column broker is given without a partition"),
    ]:
        bad = record_batches([{"value": b"x", "partition": None, "broker": None}, {"value": b"y", **row}])
        with pytest.raises(SinkRowError, match=f"partition 0: row 1: {problem}"):
            sink(brokers.address, bad, topic="t", producer="bad/0")
    without = record_batches([{"value": b"x", "partition": 0}])
    with pytest.raises(SinkRowError, match="row 0: column broker is missing"):
        sink(brokers.address, without, topic="t", producer="bad/0")


def test_a_topic_that_was_made_anew_has_no_batches_of_the_former_one(brokers: Brokers) -> None:
    """An import that is done over, under the same name and number, is not taken for what was deleted."""
    rows = record_batches([{"value": b"%d" % n} for n in range(20)])
    for _ in range(2):
        brokers.make("t", "a")
        for _ in range(2):
            assert sink(brokers.address, rows, topic="t", producer="import/0", batch=7) == 20
        stream = Stream(brokers, "t")
        assert len(stream.step()) == 20
        brokers.delete("t")
    # So it is when the broker knows the numbers from its log alone.
    brokers.make("t", "a")
    brokers.stop("a")
    brokers.start("a")
    brokers.await_queues("t", 1)
    assert sink(brokers.address, rows, topic="t", producer="import/0", batch=7) == 20
    assert len(Stream(brokers, "t").step()) == 20
