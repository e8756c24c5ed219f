"""One broker without sockets, and front ends that record what they are told of their sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from manual_clock import ManualClock

from iotmq.broker.broker import Broker
from iotmq.broker.handlers.mqtt.local_sessions import LocalSessions
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import decode_record
from iotmq.ports.sessions import (
    CloseRequest,
    OpenedSession,
    OpenRequest,
    QueueRead,
    QueueRecords,
    Refused,
    SessionProgress,
    SessionSubscription,
    ShareJoin,
    ShareReport,
    SubscribeRequest,
    UnsubscribeRequest,
    Will,
)
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)


class FrontEnd:
    """A front end without devices: `sessions` is its port, and what it is told is kept."""

    def __init__(self, bench: SessionBench, name: str) -> None:
        self.bench = bench
        self.name = name
        self.pushed: list[tuple[int, bytes]] = []
        self.fences: list[tuple[str, int]] = []
        # Queues it is to read because their records were not pushed.
        self.missing: list[int] = []
        # (member, body) of shared subscriptions, and (member, position) in the same order.
        self.handed: list[tuple[int, bytes]] = []
        self.held: list[tuple[int, int]] = []
        self.withdrawn: list[tuple[int, int]] = []
        self.port: LocalSessions = bench.broker.local_sessions(name)
        self.port.serve_shares(self)
        _at_once(self.port.start(self))

    def stop(self) -> None:
        """As when the process dies."""
        _at_once(self.port.stop())

    def deliver_queued(self, records: Any, pushes: Any) -> None:
        for at in range(0, len(pushes), 8):
            place = int.from_bytes(pushes[at : at + 4], "big")
            queue_id = int.from_bytes(pushes[at + 4 : at + 8], "big")
            self.pushed.append((queue_id, decode_record(records, place).body))

    def missed(self, queue_ids: Sequence[int]) -> None:
        self.missing += queue_ids

    def fenced(self, client_id: str, epoch: int, reason: str) -> None:
        self.fences.append((client_id, epoch))

    def hand_out(self, source: int, handouts: Sequence[tuple[int, int]], records: Sequence[Any]) -> None:
        for (member, _), record in zip(handouts, records, strict=True):
            found = decode_record(record)
            self.handed.append((member, found.body))
            self.held.append((member, found.position))

    def withdraw(self, source: int, positions: Sequence[tuple[int, int]]) -> None:
        self.withdrawn += positions

    def rejoin(self, source: int, client_id: str | None) -> None:
        raise AssertionError("a front end in the same process loses nothing")

    async def join(
        self,
        client_id: str,
        epoch: int,
        share: str,
        member: int,
        *,
        credit: int = 10,
        held: Sequence[int] = (),
    ) -> Refused | None:
        future: asyncio.Future[list[Refused | None]] = asyncio.get_running_loop().create_future()
        wanted = ShareJoin(
            client_id=client_id,
            epoch=epoch,
            topic_filter=share,
            member=member,
            credit=credit,
            held=list(held),
        )
        self.port.join_shares(None, [wanted], future.set_result)
        (outcome,) = await asyncio.wait_for(future, 30)
        return outcome

    def report(self, member: int, *done: int, limit: int = 0) -> None:
        self.port.report_shares(0, [ShareReport(member=member, limit=limit, done=list(done))], lambda _: None)

    def begin_open(
        self, client_id: str, *, is_clean: bool = False, expiry_s: int = 60, will: Will | None = None
    ) -> asyncio.Future[OpenedSession | Refused]:
        future: asyncio.Future[OpenedSession | Refused] = asyncio.get_running_loop().create_future()
        self.port.open_session(
            OpenRequest(client_id=client_id, is_clean=is_clean, expiry_s=expiry_s, will=will),
            future.set_result,
        )
        return future

    async def open(self, client_id: str, **words: Any) -> OpenedSession:
        opened = await asyncio.wait_for(self.begin_open(client_id, **words), 30)
        assert isinstance(opened, OpenedSession), opened
        return opened

    async def subscribe(
        self, client_id: str, epoch: int, *filters: str
    ) -> list[SessionSubscription] | Refused:
        future: asyncio.Future[list[SessionSubscription] | Refused] = (
            asyncio.get_running_loop().create_future()
        )
        self.port.subscribe(
            SubscribeRequest(client_id=client_id, epoch=epoch, subscriptions=[(name, 1) for name in filters]),
            future.set_result,
        )
        return await asyncio.wait_for(future, 30)

    async def unsubscribe(self, client_id: str, epoch: int, *filters: str) -> Refused | None:
        future: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()
        self.port.unsubscribe(
            UnsubscribeRequest(client_id=client_id, epoch=epoch, filters=list(filters)), future.set_result
        )
        return await asyncio.wait_for(future, 30)

    async def progress(self, *changes: SessionProgress) -> Refused | None:
        future: asyncio.Future[Refused | None] = asyncio.get_running_loop().create_future()
        self.port.progress(changes, future.set_result)
        return await asyncio.wait_for(future, 30)

    def close(self, client_id: str, epoch: int, *, expiry_s: int = 60, drops_will: bool = True) -> None:
        self.port.close_session(
            CloseRequest(client_id=client_id, epoch=epoch, expiry_s=expiry_s, drops_will=drops_will)
        )

    def read(self, queue_id: int, position: int, *, records_max: int = 1000) -> QueueRecords:
        found: list[QueueRecords | Refused] = []
        self.port.read_queue(
            QueueRead(queue_id=queue_id, position=position, records_max=records_max, bytes_max=1 << 20),
            found.append,
        )
        (result,) = found
        assert isinstance(result, QueueRecords), result
        return result

    def backlog(self, subscription: SessionSubscription) -> list[bytes]:
        """The bodies a session still has to get of a filter."""
        return [
            decode_record(record).body
            for record in self.read(subscription.queue_id, subscription.cursor).records
        ]


class SessionBench:
    """Use `open_bench` or `making_benches`."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.settings: dict[str, Any] = {"listen_port": 0, "registries": (), "cluster": "C", **settings}
        # Taken by the next start.
        self.store_settings: dict[str, Any] = {"segment_bytes": 16 << 20}

    async def start(self) -> None:
        self.make()
        await self.broker.start()
        self.broker.topics.ensure("T", queues=1)

    def make(self) -> None:
        """Open the store and make the broker, which is not started."""
        self.store = Store.open(
            self.directory / "data",
            StoreSettings(**self.store_settings),
            store_host=HOST,
            clock=self.clock,
        )
        self.broker = Broker(
            BrokerSettings(**self.settings),
            self.store,
            directory=self.directory,
            store_host=HOST,
            clock=self.clock,
        )

    async def close(self) -> None:
        await self.broker.stop()
        self.store.close()

    async def restart(self) -> None:
        await self.close()
        await self.start()

    def publish(self, mqtt_topic: str, *bodies: bytes) -> None:
        """Store messages as a front end would."""
        elements = b"".join(
            encode_element(body, b"MQTT_TOPIC\x01%s\x02" % mqtt_topic.encode(), 0) for body in bodies
        )
        results: list[Any] = []
        self.broker.writer.append("T", 0, elements, born_timestamp_ms=1, born_host=HOST, done=results.append)
        assert [result.status for result in results] == [0]

    def stored(self, topic: str = "T") -> list[bytes]:
        """The bodies of all records of a topic."""
        return [record.body for record in self.stored_records(topic)]

    def stored_records(self, topic: str = "T") -> list[Any]:
        queue = self.store.find_queue(topic, 0)
        if queue is None:
            return []
        read = self.store.read(queue, queue.min_offset, records_max=10_000, bytes_max=1 << 24)
        return [record for view in read.views for record in _records(view)]

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and everything happen whose time has come."""
        self.clock.advance(seconds)
        self.broker.sessions.expire()


def _records(view: Any) -> list[Any]:
    from iotmq.message.records.record import iter_records

    return list(iter_records(view))


def _at_once(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run what has nothing to wait for: the port is in this process."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("a port in the same process waited for something")


async def turns(count: int = 3) -> None:
    """Let the loop do what it has been asked to."""
    for _ in range(count):
        await asyncio.sleep(0)


MakeBench = Callable[..., Awaitable[SessionBench]]


@asynccontextmanager
async def making_benches(directory: Path) -> AsyncIterator[MakeBench]:
    """Starts benches over one directory, by their settings; all are closed at the end."""
    made: list[SessionBench] = []

    async def make(**settings: Any) -> SessionBench:
        made.append(SessionBench(directory, **settings))
        await made[-1].start()
        return made[-1]

    try:
        yield make
    finally:
        for bench in made:
            await bench.close()


async def open_bench(directory: Path) -> SessionBench:
    bench = SessionBench(directory)
    await bench.start()
    return bench
