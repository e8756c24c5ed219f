"""Retained messages on their way to a device that takes none of them, or some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iotmq.mqtt_front.deliver.retained_egress import RetainedEgress
from iotmq.ports.sessions import Refused, RetainedRead, RetainedRecords


class Loop:
    """Keeps what is to be called, and after how long; the test calls it."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return 0.0

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.call_later(0.0, callback, *arguments)

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> None:
        self.calls.append((delay_s, lambda: callback(*arguments)))

    def next(self) -> float:
        """Make the one call that waits, and say how long it waited."""
        [(delay_s, call)] = self.calls
        self.calls.clear()
        call()
        return delay_s


class Port:
    def read_retained(self, request: RetainedRead, done: Callable[[RetainedRecords | Refused], None]) -> None:
        done(RetainedRecords([b"1", b"2", b"3"], None))


class RefusingPort(Port):
    """Says no so many times."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    def read_retained(self, request: RetainedRead, done: Callable[[RetainedRecords | Refused], None]) -> None:
        if self.refusals:
            self.refusals -= 1
            done(Refused(1, "retained messages cannot be read: goes on from 0"))
            return
        super().read_retained(request, done)


class Device:
    close_reason = None
    client_id = "d"

    def __init__(self) -> None:
        self.room = 0
        self.got: list[bytes] = []
        self.waiting: Callable[[], None]

    def call_when_room(self, callback: Callable[[], None]) -> None:
        self.waiting = callback

    def send_record(self, record: bytes, options: int, *, is_retained: bool) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.got.append(record)
        return True


def test_a_device_that_takes_nothing_is_left_alone_until_it_has_room() -> None:
    loop, device = Loop(), Device()
    egress = RetainedEgress(Port(), loop)  # type: ignore[arg-type]
    egress.send(device, [("#", 1)])  # type: ignore[arg-type, list-item]
    assert loop.next() == 0, "the page that was read"
    for room in (0, 1, 2):
        assert loop.calls == [], "nobody polls"
        device.room = room
        device.waiting()
    assert device.got == [b"1", b"2", b"3"]
    assert loop.calls == []


def test_what_a_broker_does_not_give_now_is_asked_for_again() -> None:
    loop, device, port = Loop(), Device(), RefusingPort(6)
    device.room = 6
    egress = RetainedEgress(port, loop)  # type: ignore[arg-type]
    egress.send(device, [("#", 1), ("a", 1)])  # type: ignore[arg-type, list-item]
    pauses = [loop.next() for _ in range(6)]
    assert 0.25 <= pauses[0] <= 0.5 < pauses[2] < pauses[4] <= 10
    while loop.calls:
        loop.next()
    assert device.got == [b"1", b"2", b"3"] * 2


def test_nobody_is_asked_for_a_device_that_is_gone_or_a_filter_it_has_no_more() -> None:
    for leaves in (True, False):
        loop, device, port = Loop(), Device(), RefusingPort(1)
        device.room = 3
        egress = RetainedEgress(port, loop)  # type: ignore[arg-type]
        egress.send(device, [("#", 1)])  # type: ignore[arg-type, list-item]
        if leaves:
            egress.forget(device)  # type: ignore[arg-type]
        else:
            egress.unsubscribe(device, ["#"])  # type: ignore[arg-type]
        loop.next()
        assert loop.calls == []
        assert device.got == []
        assert not egress._jobs


def test_a_device_has_one_look_up_under_way_however_much_it_subscribes() -> None:
    asked: list[tuple[str, Callable[[RetainedRecords | Refused], None]]] = []

    class SlowPort(Port):
        def read_retained(
            self, request: RetainedRead, done: Callable[[RetainedRecords | Refused], None]
        ) -> None:
            asked.append((request.topic_filter, done))

    loop, device = Loop(), Device()
    device.room = 100
    egress = RetainedEgress(SlowPort(), loop)  # type: ignore[arg-type]
    for number in range(10):
        egress.send(device, [(f"{number}/#", 1), ("#", 1)])  # type: ignore[arg-type, list-item]
    for _ in range(11):
        ((_, done),) = asked
        asked.clear()
        done(RetainedRecords([], None))
        loop.next()
    assert asked == []
    assert not egress._jobs
