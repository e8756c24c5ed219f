"""Offsets of broadcasting consumers in a file."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from eventually import until
from fake_broker import FakeBroker, FakeRegistry

from iotmq.client.consuming.offsets.offsets_file import OffsetsFile
from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import ClientSettings, PullConsumerSettings, PushConsumerSettings
from iotmq.errors import ClientError, SubscriptionError
from iotmq.files import replace_file

QUEUE = MessageQueue("T", "broker-a", 0)


def broker_with(count: int) -> FakeBroker:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    for number in range(count):
        broker.store("T", 0, b"%d" % number)
    return broker


@asynccontextmanager
async def client_of(broker: FakeBroker):
    registry = FakeRegistry(broker)
    await broker.start()
    await registry.start()
    try:
        async with ClientTransport(ClientSettings(registries=(registry.address,))) as client:
            yield client
    finally:
        await broker.stop()
        await registry.stop()


async def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    file = OffsetsFile(path, "g")
    assert file.open() == {}
    await file.save({})
    assert not path.exists()
    offsets = {QUEUE: 7, MessageQueue("ü", "b", 3): 2**40}
    await file.save(offsets)
    with pytest.raises(ClientError, match="is used by another consumer"):
        OffsetsFile(path, "g").open()
    file.close()
    assert OffsetsFile(path, "g").open() == offsets


async def test_a_file_that_is_none_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    for data in (b"", b"{", b'{"group":"g"}', b'{"group":"g","offsets":[{"topic":1}]}'):
        path.write_bytes(data)
        for _ in range(2):
            with pytest.raises(ClientError, match="cannot be read"):
                OffsetsFile(path, "g").open()
        assert path.read_bytes() == data
    path.write_bytes(b'{"group":"other","offsets":[]}')
    with pytest.raises(ClientError, match="belongs to group other"):
        OffsetsFile(path, "g").open()
    with pytest.raises(ClientError, match="No such file"):
        OffsetsFile(tmp_path / "nowhere" / "offsets.json", "g").open()


async def test_a_disk_that_refuses_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError("no space left")

    file = OffsetsFile(tmp_path / "offsets.json", "g")
    file.open()
    with monkeypatch.context() as patch:
        patch.setattr("iotmq.client.consuming.offsets.offsets_file.replace_file", refuse)
        await file.save({QUEUE: 1})
    assert "are not saved" in caplog.text
    await file.save({QUEUE: 1})
    file.close()
    assert OffsetsFile(tmp_path / "offsets.json", "g").open() == {QUEUE: 1}


async def test_broadcasting_consumers_go_on_where_they_were(tmp_path: Path) -> None:
    broker = broker_with(3)
    options = {"model": "broadcasting", "consume_from": "first"}
    async with client_of(broker) as client:
        pushed: list[bytes] = []
        push_settings = PushConsumerSettings(offsets_file=str(tmp_path / "push.json"), **options)
        pulled: list[bytes] = []
        pull_settings = PullConsumerSettings(offsets_file=str(tmp_path / "pull.json"), **options)
        for count in (3, 4):
            push = PushConsumer(
                client, "push", lambda batch: pushed.extend(m.body for m in batch), settings=push_settings
            )
            await push.subscribe("T")
            async with push:
                await until(lambda: len(pushed) == count)  # noqa: B023 - ends in its turn
            pull = PullConsumer(client, "pull", pull_settings)
            await pull.subscribe("T")
            async with pull:
                while len(pulled) < count:
                    pulled += [message.body for message in await pull.getmany()]
            broker.store("T", 0, b"%d" % count)
    assert pushed == pulled == [b"0", b"1", b"2", b"3"]
    assert broker.offsets == {}


async def test_a_consumer_that_does_not_start_leaves_the_file_to_others(tmp_path: Path) -> None:
    path = str(tmp_path / "offsets.json")
    async with client_of(broker_with(0)) as client:
        push_settings = PushConsumerSettings(offsets_file=path, model="broadcasting")
        for _ in range(2):
            with pytest.raises(SubscriptionError):
                await PushConsumer(client, "g", lambda batch: None, settings=push_settings).start()
        with pytest.raises(ClientError, match="offsets_file is for broadcasting"):
            PullConsumer(client, "g", PullConsumerSettings(offsets_file=path))


async def test_a_save_that_is_cancelled_lets_no_other_one_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "offsets.json"
    entered, may_go_on = threading.Event(), threading.Event()
    at_work: list[int] = []

    def slow(path: Path, data: bytes) -> None:
        at_work.append(len(at_work) + 1)
        entered.set()
        assert may_go_on.wait(30)
        assert len(at_work) == 1
        replace_file(path, data)
        at_work.pop()

    monkeypatch.setattr("iotmq.client.consuming.offsets.offsets_file.replace_file", slow)
    file = OffsetsFile(path, "g")
    file.open()
    first = asyncio.ensure_future(file.save({QUEUE: 1}))
    await asyncio.to_thread(entered.wait, 30)
    first.cancel()
    second = asyncio.ensure_future(file.save({QUEUE: 2}))
    done, _ = await asyncio.wait([first, second], timeout=0.05)
    # Not over before its thread is: who closes the file now would leave it to others too early.
    assert not done
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    file.close()
    assert OffsetsFile(path, "g").open() == {QUEUE: 2}
