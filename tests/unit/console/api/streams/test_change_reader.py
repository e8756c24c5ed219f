"""What streams of changes get: records from their place on, alarms, and how slow readers fare."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from eventually import until

from iotmq.client.transport.routes import MessageQueue
from iotmq.console.api.streams import change_reader
from iotmq.console.api.streams.change_reader import ChangeReader, Changes, Shown
from iotmq.console.api.streams.event_stream import EventStream
from iotmq.errors import RequestTimeoutError, RouteNotFoundError
from iotmq.limits import HTTP_STREAM_WAITING_BYTES_MAX

BOTH = Changes(has_records=True, has_alarms=True)


class Site:
    """Brokers with audit records: texts, of which `None` is none."""

    def __init__(self) -> None:
        self.records: dict[str, list[str | None]] = {"a": []}
        self.is_away = False
        self.listeners: list[Callable[[Any], None]] = []
        self.readers: list[ChangeReader] = []

    def reader(self, positions: dict[str, int] | None = None) -> ChangeReader:
        shown = Shown(cast(Any, lambda message: message.text), lambda change: {"change": change})
        reader = ChangeReader(cast(Any, self), cast(Any, self), shown, positions)
        self.readers.append(reader)
        return reader

    # The client.

    @property
    def admin(self) -> Site:
        return self

    @property
    def messages(self) -> Site:
        return self

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        if self.is_away:
            raise RequestTimeoutError("no answer")
        if not self.records:
            raise RouteNotFoundError("no such topic")
        return tuple(MessageQueue(topic, name, 0) for name in self.records)

    async def max_offset(self, _client: object, queue: MessageQueue) -> int:
        return len(self.records[queue.broker_name])

    async def from_offset(
        self, queue: MessageQueue, offset: int, *, messages_max: int, bytes_max: int
    ) -> tuple[list[Any], int]:
        found = self.records[queue.broker_name][offset : offset + min(messages_max, 2)]
        messages = [SimpleNamespace(queue_offset=offset + at, text=text) for at, text in enumerate(found)]
        return messages, offset + len(found)


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    site = Site()
    monkeypatch.setattr(change_reader, "_ASK_S", 0.001)
    monkeypatch.setattr(change_reader.offsets, "max_offset", site.max_offset)
    yield site
    for reader in site.readers:
        await reader.stop()
    assert site.listeners == []


def stream_of(reader: ChangeReader) -> EventStream:
    return EventStream(position=lambda: reader.position, drained=reader.resume)


def told(stream: EventStream) -> list[tuple[str, str, Any]]:
    """The events that wait: kind, id and data."""
    text = b"".join(stream._waiting).decode()
    fields = [dict(line.split(": ", 1) for line in each.splitlines()) for each in text.split("\n\n") if each]
    return [(each["event"], each["id"], json.loads(each["data"])) for each in fields]


async def test_records_from_now_on_come_with_their_places_and_alarms_between_them(site: Site) -> None:
    site.records["a"] = ["old"]
    reader = site.reader()
    stream, records, alarms = (stream_of(reader) for _ in range(3))
    await reader.add(stream, BOTH)
    await reader.add(records, Changes(has_records=True, has_alarms=False))
    await reader.add(alarms, Changes(has_records=False, has_alarms=True))
    assert reader.position == "a%2F0=1"
    site.records["a"] += ["one", None, "two"]
    await until(lambda: len(told(stream)) == 2)
    (listener,) = site.listeners
    listener("fired")
    assert told(stream) == [
        ("record", "a%2F0=2", "one"),
        ("record", "a%2F0=4", "two"),
        ("alarm", "a%2F0=4", {"change": "fired"}),
    ]
    assert [kind for kind, _, _ in told(records)] == ["record", "record"]
    assert [kind for kind, _, _ in told(alarms)] == ["alarm"]
    assert reader.remove(records, BOTH)
    assert reader.remove(alarms, BOTH)
    assert not reader.remove(stream, BOTH)


async def test_a_reader_that_comes_back_goes_on_behind_its_place(site: Site) -> None:
    site.records["a"] = ["1", "2", "3", "4"]
    reader = site.reader({"a/0": 1})
    stream = stream_of(reader)
    await reader.add(stream, BOTH)
    await until(lambda: len(told(stream)) == 3)
    assert [data for _, _, data in told(stream)] == ["2", "3", "4"]


async def test_brokers_that_do_not_answer_are_asked_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_reader, "_BEGIN_S", 0.01)
    site.is_away = True
    reader = site.reader()
    stream = stream_of(reader)
    await reader.add(stream, BOTH)
    site.is_away = False
    await until(lambda: reader.position)
    site.records["a"].append("one")
    await until(lambda: told(stream))


async def test_the_first_records_of_a_new_queue_are_told_and_not_all_of_an_old_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_reader, "_RECORDS", 2)
    site.records.clear()
    reader = site.reader()
    stream = stream_of(reader)
    await reader.add(stream, BOTH)
    site.records["new"] = ["1", "2"]
    site.records["old"] = ["1", "2", "3"]
    await until(lambda: len(told(stream)) == 2)
    assert reader.position == "new%2F0=2,old%2F0=3"


@pytest.mark.parametrize("is_own", [True, False])
async def test_who_reads_its_own_place_is_waited_for_and_others_are_cut(site: Site, is_own: bool) -> None:
    text = "x" * (HTTP_STREAM_WAITING_BYTES_MAX // 4)
    reader = site.reader({"a/0": 0} if is_own else None)
    stream = stream_of(reader)
    await reader.add(stream, BOTH)
    site.records["a"] += [text] * 8
    if not is_own:
        await until(lambda: stream.end_reason)
        assert stream.end_reason == "too-slow"
        return
    await until(lambda: stream.is_filled)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(told(stream)) < 8
    taken = 0
    while taken < 8:
        await until(lambda: stream._waiting)
        taken += stream._take().count(b"event: record")
    assert not stream.end_reason
