"""The way of notifications to a receiver."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest
from manual_clock import ManualClock

from iotmq.alarms import delivery as delivery_module
from iotmq.alarms.delivery import Delivery, notification_of_test
from iotmq.alarms.notification import Notification
from iotmq.alarms.receivers.sender import DeliveryError
from iotmq.alarms.settings import WebhookSettings


class Receiver:
    """A Sender; `answers` says whether it takes the next ones, True for all others."""

    def __init__(self) -> None:
        self.answers: deque[bool | asyncio.Event] = deque()
        self.got: asyncio.Queue[Notification] = asyncio.Queue()
        self.tries: asyncio.Queue[bool] = asyncio.Queue()
        self.is_closed = False

    async def send(self, notification: Notification) -> None:
        answer = self.answers.popleft() if self.answers else True
        self.tries.put_nowait(answer is True)
        if isinstance(answer, asyncio.Event):
            await answer.wait()
        if answer is False:
            raise DeliveryError("it answers with status 500")
        self.got.put_nowait(notification)

    async def close(self) -> None:
        self.is_closed = True


class Bench:
    def __init__(self, *, timeout_s: float = 10) -> None:
        self.clock = ManualClock()
        self.receiver = Receiver()
        self.waiting: deque[Notification] = deque()
        # Set when it was asked what to tell, and there was nothing.
        self.idle = asyncio.Event()
        settings = WebhookSettings(name="ops", url="http://localhost/", timeout_s=timeout_s)
        self.delivery = Delivery(settings, self.receiver, self._next, self._told, self.clock)

    def _next(self) -> tuple[Notification | None, int | None]:
        if self.waiting:
            return self.waiting[0], None
        self.idle.set()
        return None, None

    def _told(self, notification: Notification) -> None:
        assert self.waiting.popleft() == notification

    def put(self) -> Notification:
        notification = notification_of_test(len(self.waiting))
        self.waiting.append(notification)
        self.delivery.changed()
        return notification


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(delivery_module, "_RETRY_S_MIN", 0.0)
    monkeypatch.setattr(delivery_module, "_RETRY_S_MAX", 0.0)
    return Bench()


async def test_what_is_to_be_told_is_told_once(bench: Bench) -> None:
    running = asyncio.ensure_future(bench.delivery.run())
    one = bench.put()
    assert await bench.receiver.got.get() == one
    two = bench.put()
    assert await bench.receiver.got.get() == two
    assert not bench.waiting
    assert bench.receiver.got.empty()
    running.cancel()


async def test_a_dead_receiver_is_tried_until_it_is_back(bench: Bench) -> None:
    bench.receiver.answers += [False, False]
    running = asyncio.ensure_future(bench.delivery.run())
    one = bench.put()
    for _ in range(2):
        assert await bench.receiver.tries.get() is False
    bench.clock.advance(70)
    assert bench.delivery.failing_s >= 70
    assert bench.delivery.failed_reason == "it answers with status 500"
    assert await bench.receiver.got.get() == one
    assert (bench.delivery.failing_s, bench.delivery.failed_reason) == (0, None)
    assert (bench.delivery.failed_count, bench.delivery.delivered_count) == (2, 1)
    running.cancel()


async def test_a_receiver_fails_no_more_when_nobody_wants_it_told(bench: Bench) -> None:
    bench.receiver.answers += [False]
    running = asyncio.ensure_future(bench.delivery.run())
    bench.put()
    assert await bench.receiver.tries.get() is False
    bench.waiting.clear()
    bench.idle.clear()
    await bench.idle.wait()
    assert (bench.delivery.failing_s, bench.delivery.failed_reason) == (0, None)
    running.cancel()


async def test_a_receiver_that_does_not_answer_is_given_up_in_time() -> None:
    bench = Bench(timeout_s=0.001)
    bench.receiver.answers.append(asyncio.Event())
    with pytest.raises(DeliveryError, match=r"not taken within 0\.001 s"):
        await bench.delivery.test()


async def test_a_test_is_marked(bench: Bench) -> None:
    await bench.delivery.test()
    notification = bench.receiver.got.get_nowait()
    assert (notification.why, notification.firing[0].name) == ("tested", "test")
    bench.receiver.answers.append(False)
    with pytest.raises(DeliveryError, match="500"):
        await bench.delivery.test()


async def test_it_ends_its_connections(bench: Bench) -> None:
    await bench.delivery.close()
    assert bench.receiver.is_closed
