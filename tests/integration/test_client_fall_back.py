"""What a consumer does with a failed message that its broker does not take back, over a real broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.client import (
    ClientSettings,
    IotmqClient,
    Message,
    Producer,
    PushConsumer,
    PushConsumerSettings,
    ReceivedMessage,
)
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import Record, iter_records
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store


def records(store: Store, topic: str) -> list[Record]:
    queue = store.find_queue(topic, 0)
    if queue is None or queue.max_offset == queue.min_offset:
        return []
    read = store.read(queue, queue.min_offset, records_max=1_000, bytes_max=1 << 20)
    return [record for view in read.views for record in iter_records(view)]


async def test_a_failed_message_comes_back_and_ends_as_a_dead_letter_all_the_same(tmp_path: Path) -> None:
    registry = Registry(RegistrySettings(listen_port=0), directory=tmp_path / "registry")
    await registry.start()
    settings = BrokerSettings(
        listen_port=0, registries=(f"127.0.0.1:{registry.port}",), delay_levels="1s 1s 1s 1s 1s"
    )
    store = Store.open(
        tmp_path / "data", StoreSettings(segment_bytes=4 << 20), store_host=resolve_store_host(settings)
    )
    broker = Broker(settings, store, directory=tmp_path / "data")

    def refuse(connection: object, request: Command) -> Command:
        return request.reply(ResponseCode.SYSTEM_ERROR, remark="scripted")

    # A broker whose disk has lost the record, for example, takes nothing back.
    broker.requests._handlers[RequestCode.CONSUMER_SEND_MESSAGE_BACK] = refuse
    await broker.start()
    await broker.wait_registered(10)
    seen: list[tuple[bytes, str, int, str]] = []
    is_dead = asyncio.Event()

    def listen(batch: list[ReceivedMessage]) -> list[ReceivedMessage]:
        seen.extend((each.body, each.topic, each.redeliveries, each.message_id) for each in batch)
        if len(seen) == 3:
            is_dead.set()
        return batch

    client_settings = ClientSettings(registries=(f"127.0.0.1:{registry.port}",), missing_route_refresh_ms=50)
    async with IotmqClient(client_settings) as client:
        async with Producer(client) as producer:
            sent = await producer.send(Message("T", b"bad", tags="a", keys=["k"]))
        consumer = PushConsumer(
            client,
            "cg",
            listen,
            settings=PushConsumerSettings(consume_from="first", redeliveries_max=2, rebalance_ms=100),
        )
        await consumer.subscribe("T")
        async with consumer, asyncio.timeout(20):
            await is_dead.wait()
            while not records(store, "%DLQ%cg"):  # noqa: ASYNC110 - the broker has no event for it
                await asyncio.sleep(0.01)
    assert seen == [(b"bad", "T", times, sent.message_id) for times in range(3)]
    (dead,) = records(store, "%DLQ%cg")
    properties = decode_properties(dead.properties)
    assert (dead.body, dead.reconsume_times) == (b"bad", 3)
    assert (properties["RETRY_TOPIC"], properties["TAGS"], properties["KEYS"]) == ("T", "a", "k")
    assert properties["ORIGIN_MESSAGE_ID"] == sent.offset_message_ids[0]
    await broker.stop()
    store.close()
    await registry.stop()
