"""Compressed bodies and batches between the native client and a broker."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from local_cluster import LocalCluster

from iotmq.client import (
    Columns,
    IotmqClient,
    Message,
    MessageQueue,
    ProducerSettings,
    PullConsumer,
    PushConsumerSettings,
    ReceivedMessage,
)
from iotmq.errors import ListenerError
from iotmq.message.compression import Compression
from iotmq.message.errors import CompressionMissingError

METHODS: list[tuple[Compression, int]] = [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)]
BODY = b"telemetry " * 1_000


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[IotmqClient]:
    cluster = LocalCluster(tmp_path, topics=["T"])
    await cluster.start()
    try:
        async with IotmqClient(cluster.client_settings) as client:
            yield client
    finally:
        await cluster.stop()


@asynccontextmanager
async def reading(client: IotmqClient) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(client) as consumer:
        await consumer.assign(await consumer.queues("T"))
        yield consumer


async def read(client: IotmqClient, count: int) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    async with reading(client) as consumer:
        while len(messages) < count:
            messages += await consumer.getmany()
    return messages


async def send(client: IotmqClient, method: Compression) -> None:
    async with client.producer(method, ProducerSettings(compression=method)) as producer:
        await producer.send(Message("T", BODY), queue=lambda queues: queues[0])


async def test_every_consumer_opens_every_method(client: IotmqClient) -> None:
    for method, _ in METHODS:
        await send(client, method)
    messages = await read(client, len(METHODS))
    assert [message.record.sys_flag & 0x701 for message in messages] == [flag for _, flag in METHODS]
    assert {message.body for message in messages} == {BODY}
    assert max(len(message.record.body) for message in messages) < len(BODY) / 10
    async with reading(client) as consumer:
        result = await consumer.getmany_columns(columns=("body",))
        assert result is not None
        assert [result[1].value("body", at) for at in range(3)] == [BODY] * 3


@pytest.mark.parametrize("method", ["zlib", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_compressed_batch_is_stored_plain(
    client: IotmqClient, method: Compression, idempotent: bool
) -> None:
    settings = ProducerSettings(compression=method, compress_batches=True, idempotent=idempotent)
    producer = await client.producer("batches", settings)
    queue = (await producer.queues("T"))[0]
    await producer.send(Message("T", b"first"), queue=queue)
    route = client.routes.known("T")
    assert route is not None
    assert client.opens_batches(route.master(queue.broker_name) or "", method)
    bodies = [b"telemetry %d" % number for number in range(2_000)]
    [result] = await producer.send_batch([Message("T", body) for body in bodies], queue=queue)
    assert (result.count, result.queue_offset) == (2_000, 1)
    messages = await read(client, 2_001)
    assert [message.body for message in messages] == [b"first", *bodies]
    assert {message.record.sys_flag & 0x701 for message in messages} == {0}


async def test_without_the_library_columns_wait_and_nothing_is_lost(
    client: IotmqClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await send(client, "zstd")
    got: asyncio.Queue[Columns] = asyncio.Queue()

    def listen(queue: MessageQueue, columns: Columns) -> None:
        got.put_nowait(columns)

    consumer = client.push_consumer(
        "columns", columns_listener=listen, settings=PushConsumerSettings(consume_from="first")
    )
    await consumer.subscribe("T")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "zstandard", None)
        async with reading(client) as asked:
            for _ in range(2):
                with pytest.raises(CompressionMissingError, match=r"record 0 .*iotmq\[compression\]"):
                    await asked.getmany_columns()
        async with asyncio.timeout(30), consumer:
            while "answer cannot be read: record 0" not in caplog.text:  # noqa: ASYNC110 - a log has no event
                await asyncio.sleep(0.01)
            assert got.empty()
            patch.undo()
            assert (await got.get()).value("body", 0) == BODY


async def test_without_the_library_a_listener_fails_and_the_message_comes_again(
    client: IotmqClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(client, "lz4")
    failures: asyncio.Queue[ListenerError] = asyncio.Queue()
    got: asyncio.Queue[bytes] = asyncio.Queue()

    def listen(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            got.put_nowait(message.body)

    consumer = client.push_consumer(
        "messages",
        listen,
        settings=PushConsumerSettings(consume_from="first", orderly=True, local_retry_ms=1),
    )
    consumer.on_failure(failures.put)
    await consumer.subscribe("T")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "lz4.frame", None)
        async with asyncio.timeout(30), consumer:
            failure = await failures.get()
            assert isinstance(failure.__cause__, CompressionMissingError)
            assert got.empty()
            patch.undo()
            assert await got.get() == BODY
