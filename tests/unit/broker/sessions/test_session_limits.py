"""Limits of what waits for a session: number, bytes, age; oldest dropped or newest refused; counted."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from session_bench import FrontEnd, SessionBench, turns

from iotmq.broker.sessions.limits import CHECK_INTERVAL_S
from iotmq.message.records.record import decode_record, encode_record
from iotmq.ports.sessions import CloseRequest, OpenedSession, QueueRead, QueueRecords, SessionProgress


class Site:
    """A broker with limits, and a front end whose session gets its messages by reading."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.bench = SessionBench(
            directory, **{f"session_queue_{name}": value for name, value in settings.items()}
        )

    async def start(self) -> None:
        await self.bench.start()
        self.front = FrontEnd(self.bench, "one")

    async def open(self, *filters: str) -> OpenedSession:
        self.opened = await self.front.open("d")
        if filters:
            await self.front.subscribe("d", self.opened.epoch, *filters)
        return self.opened

    async def away(self, *, expiry_s: int = 3600) -> None:
        self.front.port.close_session(
            CloseRequest(client_id="d", epoch=self.opened.epoch, expiry_s=expiry_s, drops_will=True)
        )
        await turns()

    async def back(self) -> list[bytes]:
        """What the session still gets of its only filter."""
        opened = await self.open()
        (subscription,) = opened.subscriptions
        return await self.read(subscription.queue_id, subscription.cursor)

    async def read(self, queue_id: int, position: int) -> list[bytes]:
        bodies = []
        while True:
            found: asyncio.Queue[Any] = asyncio.Queue()
            wanted = QueueRead(
                queue_id=queue_id, position=position, records_max=3, bytes_max=1 << 20, client_id="d"
            )
            self.front.port.read_queue(wanted, found.put_nowait)
            records = await asyncio.wait_for(found.get(), 30)
            assert isinstance(records, QueueRecords)
            bodies += [decode_record(record).body for record in records.records]
            assert records.next_position > position or records.is_end
            position = records.next_position
            if records.is_end:
                await turns()
                return bodies

    def publish(self, *bodies: bytes, topic: str = "a") -> None:
        for body in bodies:
            self.bench.publish(topic, body)

    def pass_time(self, seconds: float) -> None:
        self.bench.pass_time(seconds)

    def dropped(self, reason: str = "full") -> float:
        (number,) = (
            metric.value
            for metric in self.bench.broker.sessions.metrics()
            if metric.name == "iotmq_broker_session_dropped_total" and (("reason", reason),) == metric.labels
        )
        return number

    @property
    def session_dropped(self) -> int:
        stored = self.bench.broker.sessions.stored("d")
        assert stored is not None
        return stored.dropped


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Any]:
    sites: list[Site] = []

    async def opener(**settings: Any) -> Site:
        site = Site(tmp_path, **settings)
        await site.start()
        sites.append(site)
        return site

    yield opener
    for site in sites:
        await site.bench.close()


def bodies(count: int, start: int = 0, size: int = 0) -> list[bytes]:
    return [b"%d" % number + bytes(size) for number in range(start, start + count)]


@pytest.mark.parametrize(
    ("policy", "count", "expected"),
    [
        ("drop-oldest", 5, bodies(5)),
        ("drop-oldest", 6, bodies(5, 1)),
        ("drop-oldest", 50, bodies(5, 45)),
        ("refuse-new", 5, bodies(5)),
        ("refuse-new", 6, bodies(5)),
        ("refuse-new", 50, bodies(5)),
    ],
)
async def test_messages_at_their_limit_and_past_it(
    opened: Any, policy: str, count: int, expected: list[bytes]
) -> None:
    site = await opened(messages_max=5, policy=policy)
    await site.open("a")
    await site.away()
    site.publish(*bodies(count))
    assert await site.back() == expected
    assert (site.dropped(), site.session_dropped) == (count - 5, count - 5)
    site.publish(b"more")
    assert site.front.pushed[-1][1] == b"more", "and what comes now comes"


RECORD_BYTES = len(encode_record(topic="T", body=bytes(501), properties=b"MQTT_TOPIC\x01a\x02"))


@pytest.mark.parametrize(
    ("policy", "bytes_max", "expected"),
    [
        ("drop-oldest", 10 * RECORD_BYTES, bodies(10, 0, 500)),
        ("drop-oldest", 10 * RECORD_BYTES - 1, bodies(9, 1, 500)),
        ("drop-oldest", 3 * RECORD_BYTES, bodies(3, 7, 500)),
        ("refuse-new", 10 * RECORD_BYTES, bodies(10, 0, 500)),
        ("refuse-new", 10 * RECORD_BYTES - 1, bodies(9, 0, 500)),
        ("refuse-new", 3 * RECORD_BYTES, bodies(3, 0, 500)),
        ("refuse-new", RECORD_BYTES - 1, []),
        ("drop-oldest", RECORD_BYTES - 1, []),
    ],
)
async def test_bytes_at_their_limit_and_past_it(
    opened: Any, policy: str, bytes_max: int, expected: list[bytes]
) -> None:
    site = await opened(bytes_max=bytes_max, policy=policy)
    await site.open("a")
    await site.away()
    site.publish(*bodies(10, 0, 500))
    assert await site.back() == expected
    assert site.dropped() == 10 - len(expected)


async def test_messages_that_have_waited_too_long(opened: Any) -> None:
    site = await opened(age_s_max=100)
    await site.open("a")
    await site.away()
    for second in range(0, 200, 10):
        site.publish(b"%d" % second)
        site.bench.clock.advance(10)
    assert await site.back() == [b"%d" % second for second in range(100, 200, 10)]
    assert (site.dropped("age"), site.dropped("full"), site.session_dropped) == (10, 0, 10)


@pytest.mark.parametrize("is_away", [False, True])
async def test_how_old_messages_are_is_read_off_the_loop(
    opened: Any, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    site = await opened(age_s_max=100)
    await site.open("a")
    await site.away()
    for second in range(0, 200, 10):
        site.publish(b"%d" % second)
        site.bench.clock.advance(10)
    store, may_go_on = site.bench.store, threading.Event()
    threads: set[int] = set()

    def cold_steps(position: int) -> Iterator[Any]:
        yield "what is not in memory"
        return store.read_record(position)

    def load(plan: Any) -> None:
        threads.add(threading.get_ident())
        assert may_go_on.wait(30)

    monkeypatch.setattr(store, "record_steps", cold_steps)
    monkeypatch.setattr(store, "load", load)
    if is_away:
        for _ in range(2):
            site.bench.broker.sessions.limits.enforce("d")
    reading = asyncio.ensure_future(site.back())
    await soon(lambda: threads, "the first load")
    assert (site.dropped("age"), reading.done()) == (0, False)
    may_go_on.set()
    assert await reading == [b"%d" % second for second in range(100, 200, 10)]
    assert (site.dropped("age"), site.session_dropped) == (10, 10)
    assert threading.get_ident() not in threads


async def test_the_limit_is_one_for_all_filters_of_a_session(opened: Any) -> None:
    site = await opened(messages_max=4)
    await site.open("a", "b")
    await site.away()
    for body in bodies(10):
        site.publish(body, topic=random.choice("ab"))
    session = await site.open()
    got = []
    for subscription in session.subscriptions:
        got += await site.read(subscription.queue_id, subscription.cursor)
    assert sorted(got) == bodies(4, 6)


@pytest.mark.parametrize("policy", ["drop-oldest", "refuse-new"])
async def test_what_is_in_flight_is_no_part_of_the_queue(opened: Any, policy: str) -> None:
    site = await opened(messages_max=2, policy=policy)
    session = await site.open("a")
    site.publish(*bodies(3))
    (queue_id,) = [queue_id for _, queue_id in site.bench.broker.sessions.queues_of("d")]
    end = site.front.read(queue_id, 0, records_max=10).next_position
    # All three were sent, none is acknowledged.
    await site.front.progress(SessionProgress("d", session.epoch, [(queue_id, 0, end)]))
    await site.away()
    site.publish(*bodies(5, 3))
    kept = bodies(2, 6) if policy == "drop-oldest" else bodies(2, 3)
    assert await site.back() == [*bodies(3), *kept]
    assert site.dropped() == 3


async def test_refused_until_there_is_room_and_then_taken_again(opened: Any) -> None:
    site = await opened(messages_max=3, policy="refuse-new")
    await site.open("a")
    await site.away()
    site.publish(*bodies(5))
    session = await site.open()
    (subscription,) = session.subscriptions
    found: list[Any] = []
    site.bench.broker.sessions.read_queue(
        QueueRead(
            queue_id=subscription.queue_id,
            position=subscription.cursor,
            records_max=1,
            bytes_max=1 << 20,
            client_id="d",
        ),
        found.append,
    )
    await turns()
    place = found[0].next_position
    await site.front.progress(SessionProgress("d", session.epoch, [(subscription.queue_id, place, place)]))
    await site.away()
    site.publish(*bodies(5, 5))
    site.pass_time(CHECK_INTERVAL_S)
    # 1 and 2 still wait, so there is room for one.
    assert await site.back() == [b"1", b"2", b"5"]
    assert site.dropped() == 2 + 4


@pytest.mark.parametrize("policy", ["drop-oldest", "refuse-new"])
async def test_what_was_dropped_stays_dropped_over_a_restart(opened: Any, policy: str) -> None:
    site = await opened(messages_max=3, policy=policy)
    await site.open("a")
    await site.away()
    site.publish(*bodies(9))
    got = await site.back()
    await site.away()
    await site.bench.close()
    site.bench.settings["session_queue_messages_max"] = 0
    await site.start()
    assert await site.back() == got
    assert site.session_dropped == 6


async def test_a_session_that_is_away_is_held_to_its_limits_in_turn(opened: Any) -> None:
    site = await opened(messages_max=3)
    await site.open("a")
    await site.away()
    site.publish(*bodies(9))
    sessions = site.bench.broker.sessions
    ((_, queue_id),) = sessions.queues_of("d")
    assert sessions.behind("d", queue_id)[1] == 9
    site.pass_time(1)
    await turns()
    assert sessions.behind("d", queue_id)[1] == 3
    assert site.session_dropped == 6
    assert await site.back() == bodies(3, 6)


async def test_without_limits_everything_waits(opened: Any) -> None:
    site = await opened()
    await site.open("a")
    await site.away()
    site.publish(*bodies(20))
    site.pass_time(3)
    assert await site.back() == bodies(20)
    assert (site.dropped(), site.session_dropped) == (0, 0)
