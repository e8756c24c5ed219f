"""Retained messages on their way to a device that takes none of them, or some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from iotmq.client.session_ports import Refused, RetainedRead, RetainedRecords
from iotmq.mqtt_front.retained_egress import RetainedEgress


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
    def read_retained(
        self, request: RetainedRead, done: Callable[[RetainedRecords | Refused], None]
    ) -> None:
        done(RetainedRecords([b"1", b"2", b"3"], None))


class Device:
    close_reason = None
    client_id = "d"

    def __init__(self) -> None:
        self.room = 0
        self.got: list[bytes] = []

    def send_record(self, record: bytes, options: int, *, is_retained: bool) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.got.append(record)
        return True


def test_a_device_that_takes_nothing_is_looked_at_more_and_more_seldom() -> None:
    loop, device = Loop(), Device()
    egress = RetainedEgress(Port(), loop)  # type: ignore[arg-type]
    egress.send(device, [("#", 1)])  # type: ignore[arg-type, list-item]
    assert loop.next() == 0, "the page that was read"
    waited = [round(loop.next(), 3) for _ in range(9)]
    assert waited == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1, 1, 1]
    device.room = 1
    assert loop.next() == 1
    assert loop.next() == 0.02, "it reads: it is looked at often again"
    device.room = 2
    loop.next()
    assert device.got == [b"1", b"2", b"3"]
    assert loop.calls == []
