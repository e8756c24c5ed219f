"""A service manager is told of this process by datagrams, and nobody is where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from eventually import soon

from iotmq.limits import SERVICE_STATUS_BYTES_MAX
from iotmq.service_manager import ServiceManager

WATCHDOG_S = 0.05


class Listener:
    """The manager's side: a datagram socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setblocking(False)

    def next(self, within_s: float = 10) -> dict[str, str]:
        """The lines of the next datagram; none when none comes."""
        if not select.select([self.socket], [], [], within_s)[0]:
            return {}
        return dict(line.split("=", 1) for line in self.socket.recv(4_096).decode().split("\n"))

    def fill(self) -> None:
        """Have another one send until there is no room."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    other.sendto(b"X=1", self.socket.getsockname())

    def waiting(self) -> list[bytes]:
        """The datagrams that have come."""
        found: list[bytes] = []
        while True:
            try:
                found.append(self.socket.recv(4_096))
            except BlockingIOError:
                return found


def always(status: str) -> Callable[[], Awaitable[str]]:
    async def answer() -> str:
        return status

    return answer


async def heard(listener: Listener, is_enough: Callable[[list[bytes]], bool]) -> list[bytes]:
    """The datagrams that come until they are enough."""
    told: list[bytes] = []

    def has_heard() -> bool:
        told.extend(listener.waiting())
        return is_enough(told)

    await soon(has_heard, "the manager is told")
    return told


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "path" else f"@iotmq-test-{tmp_path}"


@pytest.fixture
def listener(address: str) -> Iterator[Listener]:
    listening = Listener("\0" + address[1:] if address.startswith("@") else address)
    yield listening
    listening.socket.close()


async def test_each_state_is_told(address: str, listener: Listener) -> None:
    async with ServiceManager(address, watchdog_s=None) as manager:
        manager.report(always("store: the log is being opened"))
        (told,) = await heard(listener, lambda told: len(told) == 1)
        assert told == b"STATUS=store: the log is being opened\nEXTEND_TIMEOUT_USEC=180000000"
        manager.ready()
        assert listener.next() == {"READY": "1", "STATUS": "ready"}
        manager.stopping()
        assert listener.next() == {"STOPPING": "1", "STATUS": "stopping"}
        assert listener.waiting() == []


async def test_a_status_is_told_when_it_changes_and_only_then(
    address: str, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iotmq.service_manager._STATUS_INTERVAL_S", 0.001)
    reasons = iter(["ready", "ready", "store: the disk is full", "store: the disk is full"])
    asked = 0

    async def status() -> str:
        nonlocal asked
        asked += 1
        return next(reasons, "ready")

    async with ServiceManager(address, watchdog_s=None) as manager:
        manager.ready()
        manager.report(status)
        await soon(lambda: asked >= 8, "it is asked again and again")
    assert [datagram.decode() for datagram in listener.waiting()] == [
        "READY=1\nSTATUS=ready",
        "STATUS=store: the disk is full",
        "STATUS=ready",
    ]


async def test_a_start_asks_for_more_time_as_long_as_the_loop_turns(
    address: str, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iotmq.service_manager._STATUS_INTERVAL_S", 0.001)
    async with ServiceManager(address, watchdog_s=None) as manager:
        manager.report(always("process: starting"))
        told = await heard(listener, lambda told: len(told) >= 3)
        manager.ready()
    assert told[0].startswith(b"STATUS=process: starting\n")
    assert set(told[1:]) == {b"EXTEND_TIMEOUT_USEC=180000000"}


async def test_the_watchdog_hears_of_a_loop_that_turns_and_not_of_one_that_stalls(
    address: str, listener: Listener
) -> None:
    async with ServiceManager(address, watchdog_s=WATCHDOG_S) as manager:
        manager.ready()
        manager.report(always("ready"))
        beats = await heard(listener, lambda told: len(told) > 3)
        assert set(beats[1:]) == {b"WATCHDOG=1"}
        # This holds the loop: what came now could only come from elsewhere.
        listener.waiting()
        assert listener.next(within_s=4 * WATCHDOG_S) == {}
        await soon(listener.waiting, "the loop turns again, and so does the watchdog hear of it")


async def test_it_beats_at_half_of_the_interval(address: str, listener: Listener) -> None:
    loop = asyncio.get_running_loop()
    async with ServiceManager(address, watchdog_s=0.4) as manager:
        began_s = loop.time()
        manager.report(always("ready"))
        await heard(listener, lambda told: told.count(b"WATCHDOG=1") == 3)
        assert loop.time() - began_s >= 0.4


async def test_no_room_at_the_manager_loses_no_state_and_holds_nothing_up(
    address: str, listener: Listener
) -> None:
    async with ServiceManager(address, watchdog_s=None) as manager:
        listener.fill()
        manager.ready()
        assert set(listener.waiting()) == {b"X=1"}
        manager.report(always("ready"))
        assert await heard(listener, lambda told: len(told) == 1) == [b"READY=1\nSTATUS=ready"]


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("x" * SERVICE_STATUS_BYTES_MAX, "x" * SERVICE_STATUS_BYTES_MAX),
        ("x" * (SERVICE_STATUS_BYTES_MAX + 1), "x" * SERVICE_STATUS_BYTES_MAX),
        # No character is cut in two, and no status can pretend a state.
        ("x" * (SERVICE_STATUS_BYTES_MAX - 1) + "é", "x" * (SERVICE_STATUS_BYTES_MAX - 1)),
        ("store: \nSTOPPING=1\n\udcff", "store: STOPPING=1 ?"),
    ],
)
async def test_a_status_is_one_line_of_bounded_size(
    address: str, listener: Listener, status: str, told: str
) -> None:
    async with ServiceManager(address, watchdog_s=None) as manager:
        manager.ready()
        manager.report(always(status))
        datagrams = await heard(listener, lambda told: len(told) == 2)
    assert datagrams[1].decode() == f"STATUS={told}"


def taken(**environment: str) -> tuple[ServiceManager, dict[str, str]]:
    return ServiceManager.taken_from(environment), environment


async def test_the_variables_are_taken_from_the_environment(address: str, listener: Listener) -> None:
    manager, environment = taken(
        NOTIFY_SOCKET=address, WATCHDOG_USEC="50000", WATCHDOG_PID=str(os.getpid()), HOME="/"
    )
    assert environment == {"HOME": "/"}
    async with manager:
        manager.ready()
        manager.report(always("ready"))
        assert listener.next() == {"READY": "1", "STATUS": "ready"}
        assert listener.next() == {"WATCHDOG": "1"}


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WATCHDOG_USEC": ""},
        {"WATCHDOG_USEC": "50000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "9" * 5_000},
    ],
)
async def test_a_watchdog_of_nobody_or_of_another_process_hears_nothing(
    address: str, listener: Listener, variables: dict[str, str]
) -> None:
    manager, environment = taken(NOTIFY_SOCKET=address, **variables)
    assert environment == {}
    async with manager:
        manager.ready()
        manager.report(always("ready"))
        assert listener.waiting() == [b"READY=1\nSTATUS=ready"]


async def test_without_a_manager_nothing_is_told_or_asked(caplog: pytest.LogCaptureFixture) -> None:
    async def status() -> str:
        raise AssertionError("nobody wants to know")

    manager, _ = taken(WATCHDOG_USEC="50000")
    async with manager:
        manager.report(status)
        manager.ready()
        manager.stopping()
        assert len(asyncio.all_tasks()) == 1
    assert caplog.records == []


@pytest.mark.parametrize(
    "address", ["/nowhere/notify", "@nobody-listens", "/" + 200 * "x", "vsock:2:1", "notify"]
)
async def test_a_manager_that_cannot_be_told_is_one_warning(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    manager, _ = taken(NOTIFY_SOCKET=address, WATCHDOG_USEC="50000")
    async with manager:
        with caplog.at_level(logging.DEBUG):
            manager.report(always("ready"))
            manager.ready()
            manager.stopping()
    assert [record.levelno for record in caplog.records if record.name == "iotmq.service_manager"] == [
        logging.WARNING
    ]


async def test_a_manager_that_is_started_anew_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    first = Listener(path)
    async with ServiceManager(path, watchdog_s=None) as manager:
        manager.ready()
        assert first.next() == {"READY": "1", "STATUS": "ready"}
        first.socket.close()
        os.unlink(path)
        second = Listener(path)
        manager.stopping()
        assert second.next() == {"STOPPING": "1", "STATUS": "stopping"}
        second.socket.close()
