"""How many bytes wake a bridge while its window is full."""

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from iotmq.mqtt_bridge.wakes import Wakes


class Timers:
    """A loop whose timers the test fires."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def call_later(self, _: float, callback: Any) -> SimpleNamespace:
        self.waiting.append(callback)
        return SimpleNamespace(cancel=self.waiting.clear)

    def fire(self) -> None:
        callbacks, self.waiting = self.waiting, []
        for callback in callbacks:
            callback()


class Transport:
    """What it was told of its socket."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.is_closed = False

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str) -> SimpleNamespace:
        assert name == "socket"
        return SimpleNamespace(setsockopt=self._set)

    def _set(self, level: int, option: int, size: int) -> None:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT)
        self.sizes.append(size)


def wakes_of() -> tuple[Wakes, Transport, Timers]:
    transport, timers = Transport(), Timers()
    return Wakes(transport, timers), transport, timers  # type: ignore[arg-type]


@pytest.mark.parametrize(("in_flight", "sizes"), [(1, []), (63, []), (64, [64]), (1_000, [1_000])])
def test_a_quarter_of_a_full_window_comes_together(in_flight: int, sizes: list[int]) -> None:
    wakes, transport, timers = wakes_of()
    wakes.begin(in_flight)
    wakes.begin(in_flight)
    assert transport.sizes == sizes
    assert len(timers.waiting) == len(sizes)


def test_what_comes_is_read_soon_when_the_window_is_not_full_again() -> None:
    wakes, transport, timers = wakes_of()
    wakes.begin(1_000)
    timers.fire()
    wakes.begin(1_000)
    timers.fire()
    assert transport.sizes == [1_000], "it goes on"
    timers.fire()
    assert transport.sizes == [1_000, 1]
    assert not timers.waiting


def test_every_byte_wakes_when_there_is_nothing_to_send() -> None:
    wakes, transport, timers = wakes_of()
    wakes.begin(1_000)
    wakes.end()
    assert transport.sizes == [1_000, 1]
    assert not timers.waiting


def test_a_closed_socket_is_left_alone() -> None:
    wakes, transport, timers = wakes_of()
    wakes.begin(1_000)
    transport.is_closed = True
    timers.fire()
    timers.fire()
    wakes.end()
    assert transport.sizes == [1_000]
    assert not timers.waiting


async def test_fewer_bytes_than_are_waited_for_are_read_all_the_same() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    peer, _ = listener.accept()
    with listener, peer:
        wakes = Wakes(writer.transport, asyncio.get_running_loop())
        wakes.begin(1_000)
        peer.sendall(b"four")
        async with asyncio.timeout(10):
            assert await reader.readexactly(4) == b"four"
        wakes.end()
        writer.close()
