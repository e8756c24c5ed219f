"""How many streams there may be, and what they share."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, cast

import pytest
from eventually import until

from iotmq.client.client import IotmqClient
from iotmq.console.api.problems import TOO_MANY, ProblemError
from iotmq.console.api.streams import streams as streams_module
from iotmq.console.api.streams.change_reader import Changes
from iotmq.console.api.streams.event_stream import EventStream
from iotmq.console.api.streams.message_reader import Wanted
from iotmq.console.api.streams.streams import Streams
from iotmq.console.server.messages import Answer
from iotmq.limits import HTTP_STREAMS_MAX, HTTP_STREAMS_PER_CALLER_MAX

WANTED = Wanted("a/#", 10)


class Client:
    """Knows no brokers."""

    @property
    def admin(self) -> Client:
        return self

    async def brokers(self) -> dict[str, dict[int, str]]:
        return {}


class Reader:
    """Stands for a reader of the brokers."""

    made: ClassVar[list[Reader]] = []

    def __init__(self, _client: object, positions: object = None) -> None:
        self.positions = positions
        self.streams: set[EventStream] = set()
        self.is_stopped = False
        Reader.made.append(self)

    position = "b=1"

    async def add(self, stream: EventStream, _wanted: Wanted) -> None:
        self.streams.add(stream)

    def remove(self, stream: EventStream, _wanted: Wanted) -> bool:
        self.streams.discard(stream)
        return bool(self.streams)

    def resume(self) -> None: ...

    async def stop(self) -> None:
        self.is_stopped = True


class Sink:
    def __init__(self) -> None:
        self.text = b""

    async def write(self, data: bytes) -> None:
        self.text += data

    def when_peer_ends(self, _call: object) -> None: ...


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    monkeypatch.setattr(Reader, "made", [])
    monkeypatch.setattr(streams_module, "MessageReader", Reader)

    async def client() -> IotmqClient:
        return cast(IotmqClient, Client())

    return Streams(client)


def run(answer: Answer) -> tuple[asyncio.Task[Any], Sink]:
    assert answer.stream is not None
    sink = Sink()
    return asyncio.ensure_future(answer.stream(sink)), sink  # type: ignore[arg-type]


async def test_a_caller_has_so_many_and_an_answer_that_is_not_written_counts_not(streams: Streams) -> None:
    async def ask() -> Answer:
        return await streams.messages("me", WANTED, {})

    for _ in range(HTTP_STREAMS_PER_CALLER_MAX + 1):
        await ask()
    tasks = [run(await ask())[0] for _ in range(HTTP_STREAMS_PER_CALLER_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(ProblemError, match="me has 16 streams") as raised:
        await ask()
    assert raised.value.kind is TOO_MANY
    assert await streams.messages("somebody else", WANTED, {})
    tasks.pop().cancel()
    await asyncio.sleep(0)
    await ask()
    for task in tasks:
        task.cancel()


async def test_there_are_so_many_in_all(streams: Streams) -> None:
    tasks = []
    for number in range(HTTP_STREAMS_MAX):
        tasks.append(run(await streams.messages(str(number), WANTED, {}))[0])
        await asyncio.sleep(0)
    with pytest.raises(ProblemError, match="64 streams already"):
        await streams.messages("one more", WANTED, {})
    for task in tasks:
        task.cancel()


async def test_changes_and_messages_have_readers_of_their_own(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OfChanges(Reader):
        def __init__(self, client: object, _alarms: object, _shown: object, positions: object = None) -> None:
            super().__init__(client, positions)

    monkeypatch.setattr(streams_module, "ChangeReader", OfChanges)
    changes = Changes(has_records=True, has_alarms=False)

    async def ask(positions: dict[str, int]) -> Answer:
        return await streams.changes("me", changes, positions, None, cast(Any, None))

    running = [run(await streams.messages("me", WANTED, {})), *[run(await ask({})) for _ in range(2)]]
    running.append(run(await ask({"b/0": 1})))
    await until(lambda: all(b"event: open" in sink.text for _, sink in running))
    assert sorted(len(each.streams) for each in Reader.made) == [1, 1, 2]
    assert b'data: {"records":true,"alarms":false}' in running[1][1].text
    for task, _ in running:
        task.cancel()
    await until(lambda: all(each.is_stopped for each in Reader.made))


async def test_new_streams_share_a_reader_that_ends_with_the_last_and_others_have_their_own(
    streams: Streams,
) -> None:
    first, sink = run(await streams.messages("a", WANTED, {}))
    second, _ = run(await streams.messages("b", WANTED, {}))
    third, _ = run(await streams.messages("c", WANTED, {"b": 1}))
    await until(lambda: b"event: open" in sink.text)
    shared, own = Reader.made
    assert (len(shared.streams), len(own.streams), own.positions) == (2, 1, {"b": 1})
    assert b'event: open\nid: b=1\ndata: {"filter":"a/#"}\n\n' in sink.text
    third.cancel()
    first.cancel()
    await until(lambda: own.is_stopped)
    assert not shared.is_stopped
    for stream in shared.streams:
        stream.end("too-slow")
    await second
    assert shared.is_stopped
    found = {each.name: (each.value, each.labels) for each in streams.metrics()}
    assert found["iotmq_http_streams"][0] == 0
    assert found["iotmq_http_streams_ended_total"] == (1, (("reason", "too-slow"),))
    fourth, _ = run(await streams.messages("a", WANTED, {}))
    await until(lambda: len(Reader.made) == 3)
    fourth.cancel()
