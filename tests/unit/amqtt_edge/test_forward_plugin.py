"""The plug-in of amqtt with a file that fails, and a centre that refuses: nothing is lost or stalls."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from amqtt.session import ApplicationMessage
from eventually import soon

from iotmq.amqtt_edge import plugin as edge
from iotmq.amqtt_edge.disk_queue import DiskQueue, Waiting
from iotmq.amqtt_edge.plugin import ForwardPlugin
from iotmq.errors import IotmqError, MessageRefusedError
from iotmq.mqtt_client.client import MqttClient
from iotmq.mqtt_client.errors import PublishRefusedError, ServerRefusedError


class Centre:
    """Takes what the plug-in publishes, or fails with the error given for a topic."""

    def __init__(self, **errors: IotmqError) -> None:
        self.errors = errors
        self.taken: list[str] = []

    async def publish(self, topic: str, *_: object, **__: object) -> None:
        if topic in self.errors:
            raise self.errors[topic]
        self.taken.append(topic)


class FailingQueue(DiskQueue):
    """Its file is full until `is_full` is taken back."""

    is_full = True

    def put(self, messages: Sequence[Waiting]) -> None:
        if self.is_full:
            raise sqlite3.OperationalError("database or disk is full")
        super().put(messages)


def waiting(topic: str) -> Waiting:
    return Waiting(0, topic, b"x", 1, False, "device")


def made(file: Path, kind: type[DiskQueue] = DiskQueue) -> ForwardPlugin:
    config = ForwardPlugin.Config(address="mqtt://127.0.0.1:1", queue_file=str(file / "queue.db"))
    found = ForwardPlugin(cast(Any, SimpleNamespace(config=config)))
    found._queue = kind(file / "queue.db", bytes_max=1 << 20, drops="oldest")
    return found


async def comes(plugin: ForwardPlugin, topic: str, payload: bytes = b"x") -> None:
    message = SimpleNamespace(topic=topic, data=payload, qos=1, retain=False, publish_packet=None)
    await plugin.on_broker_message_broadcast(client_id="device", message=cast(ApplicationMessage, message))


async def forward(plugin: ForwardPlugin, centre: Centre) -> IotmqError | None:
    """Forward until that fails, or everything is done."""
    task = asyncio.ensure_future(plugin._forward(cast(MqttClient, centre)))
    await soon(lambda: task.done() or not plugin.queue.count, "an end")
    task.cancel()
    with suppress(asyncio.CancelledError):
        try:
            await task
        except IotmqError as error:
            return error
    return None


def left(plugin: ForwardPlugin) -> list[str]:
    return [message.topic for message in plugin.queue.first(1_000)]


async def test_the_end_of_a_connection_is_no_refusal_of_the_messages_on_it(tmp_path: Path) -> None:
    plugin = made(tmp_path)
    plugin.queue.put([waiting("a"), waiting("b")])
    banned = ServerRefusedError(0x8A, "the server disconnected: banned")
    assert await forward(plugin, Centre(a=banned, b=banned)) is banned
    assert left(plugin) == ["a", "b"]
    assert plugin.refused == 0


async def test_the_file_is_let_go_of_when_the_last_messages_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = made(tmp_path)
    queue = plugin.queue
    await comes(plugin, "a")

    def full(messages: Sequence[Waiting]) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(queue, "put", full)
    with pytest.raises(sqlite3.OperationalError):
        await plugin.on_broker_pre_shutdown()
    with pytest.raises(sqlite3.ProgrammingError):
        queue.first(1)


@pytest.mark.parametrize(
    ("error", "is_left"),
    [
        (PublishRefusedError(0x97, "quota exceeded"), True),
        (PublishRefusedError(0x80, "unspecified"), True),
        (PublishRefusedError(0x87, "not authorized"), False),
        (PublishRefusedError(0x95, "packet too large"), False),
        (MessageRefusedError("a topic has at most 65,535 bytes"), False),
    ],
)
async def test_only_what_would_be_refused_for_ever_is_left_out(
    tmp_path: Path, error: IotmqError, is_left: bool
) -> None:
    plugin = made(tmp_path)
    plugin.queue.put([waiting("a"), waiting("b")])
    centre = Centre(a=error)
    assert await forward(plugin, centre) is (error if is_left else None)
    assert centre.taken == ["b"]
    assert left(plugin) == (["a"] if is_left else [])
    assert plugin.refused == (not is_left)


class Ending(Centre):
    """Ends the connection for some topics, and with it all that is on its way."""

    def __init__(self, code: int, *topics: str) -> None:
        super().__init__()
        self.error = ServerRefusedError(code, "the server disconnected")
        self.topics = topics
        self.is_over = False

    async def publish(self, topic: str, *_: object, **__: object) -> None:
        self.is_over = self.is_over or topic in self.topics
        await asyncio.sleep(0)
        if self.is_over:
            raise self.error
        self.taken.append(topic)


async def test_a_message_that_ends_every_connection_does_not_keep_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one with a control character in its topic, which amqtt takes."""
    plugin = made(tmp_path)
    topics = ["a", "b\x01", "c", "d\x01", "e"]
    plugin.queue.put([waiting(topic) for topic in topics])
    taken = []
    for connection in range(1 + 2 * edge._TRIES_MAX):
        centre = Ending(0x81, "b\x01", "d\x01")
        assert await forward(plugin, centre) is centre.error
        taken += centre.taken
        assert plugin.refused == connection // edge._TRIES_MAX
    assert taken == ["a", "c"]
    centre = Ending(0x81)
    assert await forward(plugin, centre) is None
    assert centre.taken == ["e"]
    assert left(plugin) == []
    assert plugin.forwarded == 3
    assert "left out" in caplog.text


async def test_no_message_is_left_out_because_of_other_ends(tmp_path: Path) -> None:
    plugin = made(tmp_path)
    plugin.queue.put([waiting("a")])
    for _ in range(2 * edge._TRIES_MAX):
        centre = Ending(0x8A, "a")
        assert await forward(plugin, centre) is centre.error
    assert left(plugin) == ["a"]


async def test_what_comes_while_the_file_is_full_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(edge, "_PAUSE_S", 0.01)
    plugin = made(tmp_path, FailingQueue)
    task = asyncio.ensure_future(plugin._keep())
    await comes(plugin, "a")
    await soon(lambda: "cannot be written" in caplog.text, "it is said")
    await comes(plugin, "b")
    cast(FailingQueue, plugin.queue).is_full = False
    await soon(lambda: plugin.queue.count == 2, "both are in the file")
    assert left(plugin) == ["a", "b"]
    assert plugin._arrived_bytes == 0
    task.cancel()


async def test_what_is_in_no_file_is_bounded(tmp_path: Path) -> None:
    plugin = made(tmp_path)
    size = 1 << 20
    for _ in range(edge._ARRIVED_BYTES_MAX // size + 5):
        await comes(plugin, "a", bytes(size))
    assert plugin._arrived_bytes <= edge._ARRIVED_BYTES_MAX
    assert len(plugin._arrived) == edge._ARRIVED_BYTES_MAX // size - 1
    assert plugin.dropped == 6


async def test_one_message_may_be_larger_than_that(tmp_path: Path) -> None:
    plugin = made(tmp_path)
    await comes(plugin, "a", bytes(edge._ARRIVED_BYTES_MAX))
    assert (len(plugin._arrived), plugin.dropped) == (1, 0)


async def test_a_file_that_cannot_be_opened_is_said_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(edge, "_PAUSE_S", 0.01)
    file = tmp_path / "later" / "queue.db"
    config = ForwardPlugin.Config(address="mqtt://127.0.0.1:1", queue_file=str(file))
    plugin = ForwardPlugin(cast(Any, SimpleNamespace(config=config)))
    await plugin.on_broker_post_start()
    assert f"{file} cannot be opened" in caplog.text
    await comes(plugin, "a")
    file.parent.mkdir()
    await soon(lambda: plugin._queue is not None and plugin.queue.count == 1, "it is in the file")
    await plugin.on_broker_pre_shutdown()
