"""The stream of one reader: what it is given, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from eventually import until

from iotmq.console.api.streams.event_stream import EventStream, event
from iotmq.limits import HTTP_STREAM_WAITING_BYTES_MAX

RETRY = b"retry: 2000\n\n"


class Reader:
    """A sink that takes pieces while `can_read` is set."""

    def __init__(self) -> None:
        self.can_read = asyncio.Event()
        self.can_read.set()
        self.got: list[bytes] = []
        self.leave: Callable[[], None]

    async def write(self, data: bytes) -> None:
        await self.can_read.wait()
        self.got.append(data)

    def when_peer_ends(self, call: Callable[[], None]) -> None:
        self.leave = call

    @property
    def text(self) -> bytes:
        return b"".join(self.got)


class Site:
    def __init__(self, *, heartbeat_s: float = 60, seconds_max: float = 60) -> None:
        self.position = "b=1"
        self.drained_count = 0
        self.stream = EventStream(
            position=lambda: self.position,
            drained=self._drained,
            heartbeat_s=heartbeat_s,
            seconds_max=seconds_max,
        )
        self.reader = Reader()
        self.writing = asyncio.ensure_future(self.stream.write_to(self.reader))

    def _drained(self) -> None:
        self.drained_count += 1


async def test_events_are_written_in_their_order_and_the_last_one_says_why() -> None:
    site = Site()
    site.stream.put(b"one\n\n")
    await until(lambda: site.reader.text.endswith(b"one\n\n"))
    site.stream.put(b"two\n\n")
    site.stream.put(b"three\n\n")
    site.stream.end("closed")
    site.stream.end("a second reason")
    site.stream.put(b"too late\n\n")
    await site.writing
    last = b'event: end\nid: b=1\ndata: {"reason":"closed"}\n\n'
    assert site.reader.text == RETRY + b"one\n\ntwo\n\nthree\n\n" + last


async def test_a_reader_that_leaves_too_much_is_cut_with_a_last_event_and_without_a_place() -> None:
    site = Site()
    await until(lambda: site.reader.got)
    site.reader.can_read.clear()
    site.stream.put(b"first")
    await asyncio.sleep(0)
    half = bytes(HTTP_STREAM_WAITING_BYTES_MAX // 2)
    site.stream.put(half)
    assert not site.stream.is_filled
    site.stream.put(half)
    assert site.stream.is_filled
    assert not site.stream.end_reason
    site.stream.put(b"x")
    assert site.stream.end_reason == "too-slow"
    site.reader.can_read.set()
    await site.writing
    # It comes back to the last id that it has got.
    assert site.reader.text == RETRY + b'firstevent: end\ndata: {"reason":"too-slow"}\n\n'


async def test_one_event_may_be_larger_than_all_that_may_wait() -> None:
    site = Site()
    site.stream.put(bytes(HTTP_STREAM_WAITING_BYTES_MAX + 1))
    site.stream.end("closed")
    await site.writing
    assert len(site.reader.text) > HTTP_STREAM_WAITING_BYTES_MAX


async def test_who_is_paced_is_not_cut_and_told_when_there_is_room() -> None:
    site = Site()
    for _ in range(3):
        site.stream.put(bytes(HTTP_STREAM_WAITING_BYTES_MAX // 2), is_paced=True)
    assert site.stream.is_filled
    assert site.drained_count == 0
    await until(lambda: site.drained_count)
    site.stream.end("closed")
    await site.writing
    assert len(site.reader.text) > 3 * (HTTP_STREAM_WAITING_BYTES_MAX // 2)


async def test_a_heartbeat_moves_the_place_of_a_reader_that_gets_nothing() -> None:
    site = Site(heartbeat_s=0)
    await until(lambda: len(site.reader.got) > 2)
    site.position = "b=2"
    await until(lambda: b"id: b=2\n\n" in site.reader.text)
    site.stream.end("closed")
    await site.writing
    assert site.reader.text.startswith(RETRY + b"id: b=1\n\n:\n\n")
    assert site.reader.text.count(b"id: b=2\n\n") == 1


async def test_a_stream_ends_after_its_time() -> None:
    site = Site(seconds_max=0)
    await site.writing
    assert b'data: {"reason":"time"}' in site.reader.text


async def test_a_stream_ends_when_its_reader_leaves() -> None:
    site = Site()
    await until(lambda: site.reader.got)
    site.reader.leave()
    await site.writing
    assert site.reader.text == RETRY


@pytest.mark.parametrize(
    ("kind", "event_id", "encoded"),
    [
        ("", "", b'data: {"a":"line\\nline"}\n\n'),
        ("gap", "b=1", b'event: gap\nid: b=1\ndata: {"a":"line\\nline"}\n\n'),
    ],
)
def test_an_event_is_never_more_than_one(kind: str, event_id: str, encoded: bytes) -> None:
    assert event(kind, {"a": "line\nline"}, event_id) == encoded
