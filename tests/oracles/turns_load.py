"""A broker with many sessions and retained messages, and what peers may ask of it, with the longest turn
of the loop that each costs. The benchmark and the test differ in the numbers alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from eventually import soon
from loop_turns import LoopTurns
from session_bench import HOST, FrontEnd, SessionBench, turns

from iotmq import limits
from iotmq.broker.handlers.mqtt.session_views import SessionViewsHandler
from iotmq.broker.session_store.records import Close, Open, Subscribe, encode_changes
from iotmq.broker.sessions.sessions import OWNER_GRACE_S
from iotmq.broker.tables.topics import SESSION_TOPIC
from iotmq.broker.writing.single_message_batch import encode_element
from iotmq.cycles import short_collections
from iotmq.message.records.record import encode_batch
from iotmq.ports.sessions import Refused, RetainedRead, RetainedRecords, Will
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command

BATCH = 250
# Devices that connect in one turn of the loop.
AT_ONCE = 64
EXPIRY_S = 100_000
TELLING = "fleet/all/news"


class Load(NamedTuple):
    """How many of each there are."""

    retained: int
    sessions: int
    # Of the sessions, those on one filter.
    on_one_filter: int
    # Of devices that are connected and go all at once.
    connected: int
    # Filters of all sessions beside the one.
    filters: int


class LoadedBroker:
    """Use `fill` first; each step returns the longest turn in seconds."""

    def __init__(self, directory: Path, load: Load) -> None:
        self.load = load
        self.bench = SessionBench(directory)
        self._cleaning = ExitStack()

    async def fill(self) -> None:
        await self.bench.start()
        self._retain()
        self._make_sessions()
        self.front = FrontEnd(self.bench, "front")
        self._cleaning.enter_context(short_collections())

    async def close(self) -> None:
        self._cleaning.close()
        await self.bench.close()

    def steps(self) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
        yield "SUBSCRIBE of wildcards", self._subscribe
        yield "wildcards over what is retained", self._look_up
        yield "publish to a filter of many sessions", self._publish
        yield "cursors of one filter", self._tidy
        yield "a page of sessions", self.list_sessions
        yield "disconnects", self._disconnect
        yield "a front end that dies", self._die
        yield "sessions that expire", self._expire

    async def longest_turns(self) -> AsyncIterator[tuple[str, float]]:
        """Each step with its longest turn."""
        for name, step in self.steps():
            await turns(20)
            with LoopTurns() as looked:
                await turns(2)
                await step()
                await turns(2)
            yield name, looked.longest_s

    def _append(self, topic: str, elements: list[tuple[bytes, bytes, int]]) -> list[int]:
        store = self.bench.store
        appended = store.append(
            store.queue(topic, 0), encode_batch(elements), born_timestamp_ms=1, born_host=HOST
        )
        return list(appended.positions())

    def _retain(self) -> None:
        flags = b"MQTT_RETAIN\x011\x02MQTT_QOS\x011\x02"
        for first in range(0, self.load.retained, BATCH):
            self._append(
                "T",
                [
                    (b"x", b"MQTT_TOPIC\x01dev/%07d/status\x02" % number + flags, 0)
                    for number in range(first, min(first + BATCH, self.load.retained))
                ],
            )

    def _filter_of(self, number: int) -> str:
        return (
            "fleet/all/#" if number < self.load.on_one_filter else f"dev/{number % self.load.filters}/cmd/#"
        )

    def _make_sessions(self) -> None:
        for first in range(0, self.load.sessions, BATCH):
            numbers = range(first, min(first + BATCH, self.load.sessions))
            opened = [encode_changes([Open(f"d{number:07}", "gone", False, EXPIRY_S)]) for number in numbers]
            epochs = self._append(SESSION_TOPIC, [(body, b"", 0) for body in opened])
            changes = [
                encode_changes(
                    [
                        Subscribe(f"d{number:07}", epoch, [(self._filter_of(number), 1)]),
                        Close(f"d{number:07}", epoch, EXPIRY_S, True),
                    ]
                )
                for number, epoch in zip(numbers, epochs, strict=True)
            ]
            self._append(SESSION_TOPIC, [(body, b"", 0) for body in changes])

    async def _subscribe(self) -> None:
        opened = await self.front.open("wild")
        names = ["/".join(["+"] * depth + [f"w{number}"]) for number in range(128) for depth in range(1, 5)]
        assert not isinstance(await self.front.subscribe("wild", opened.epoch, *names), Refused)
        self.bench.publish("a/b/c/d/w1", b"to all shapes")
        assert await self.front.unsubscribe("wild", opened.epoch, *names) is None

    async def _look_up(self) -> None:
        await asyncio.gather(
            self._read_all("+/+/nothing"), self._read_all("dev/+/nothing"), self._read_some("dev/#")
        )

    async def _read_page(self, topic_filter: str, after: str | None) -> RetainedRecords:
        answered: asyncio.Future[RetainedRecords | Refused] = asyncio.get_running_loop().create_future()
        self.front.port.read_retained(
            RetainedRead(topic_filter=topic_filter, after=after, records_max=1_024, bytes_max=1 << 20),
            answered.set_result,
        )
        page = await answered
        assert isinstance(page, RetainedRecords)
        return page

    async def _read_all(self, topic_filter: str) -> None:
        page = await self._read_page(topic_filter, None)
        while page.after is not None:
            page = await self._read_page(topic_filter, page.after)

    async def _read_some(self, topic_filter: str) -> None:
        page = await self._read_page(topic_filter, None)
        for _ in range(20):
            if page.after is None:
                break
            page = await self._read_page(topic_filter, page.after)

    async def _publish(self) -> None:
        for _ in range(50):
            self.bench.publish(TELLING, *([b"news"] * 20))
            await asyncio.sleep(0)

    async def _tidy(self) -> None:
        opened = await self.front.open("d0000000", expiry_s=EXPIRY_S)
        assert opened.is_present
        for _ in range(max(60, self.load.on_one_filter // 1_000)):
            self.bench.publish(TELLING, b"more")
            await asyncio.sleep(0)
            self.bench.pass_time(1)
            await asyncio.sleep(0)

    async def list_sessions(self, count: int = limits.SESSIONS_LISTED_MAX) -> None:
        """As many as one answer may have, unless told."""
        views = SessionViewsHandler(self.bench.broker.sessions).handlers()
        request = Command.request(RequestCode.LIST_SESSIONS, {"maxNums": str(count)})
        connection: Any = None
        answer = views[RequestCode.LIST_SESSIONS](connection, request)
        assert answer is not None
        page = msgspec.json.decode(answer.body_bytes())
        assert len(page["sessions"]) == count

    async def _connect(self, front: FrontEnd, name: str) -> list[int]:
        """Devices with a will, as a front end has them."""
        will = Will("T", 0, encode_element(b"gone", b"MQTT_TOPIC\x01wills\x02", 0), is_stored=True)
        epochs = []
        for first in range(0, self.load.connected, AT_ONCE):
            opened = await asyncio.gather(
                *(
                    front.open(f"{name}{number}", will=will)
                    for number in range(first, min(first + AT_ONCE, self.load.connected))
                )
            )
            epochs += [one.epoch for one in opened]
        return epochs

    async def _disconnect(self) -> None:
        epochs = await self._connect(self.front, "c")
        for number, epoch in enumerate(epochs):
            self.front.close(f"c{number}", epoch, expiry_s=0)
            if number % 64 == 0:
                await asyncio.sleep(0)
        await turns(20)

    async def _die(self) -> None:
        front = FrontEnd(self.bench, "dies")
        await self._connect(front, "e")
        await turns(2)
        front.stop()
        await asyncio.sleep(0)
        self.bench.pass_time(OWNER_GRACE_S + 1)
        sessions = self.bench.broker.sessions
        await soon(lambda: sessions.wills.sent_total == self.load.connected, "the wills")

    async def _expire(self) -> None:
        self.bench.clock.advance(EXPIRY_S + 1)
        for _ in range(60):
            self.bench.broker.sessions.expire()
            await asyncio.sleep(0)
