"""Idempotent producers over connections that break: a real broker stores every message once, in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

from local_cluster import LocalCluster

from iotmq.client import IotmqClient, Message, Producer, ProducerSettings, PullConsumer

MESSAGES = 600
KEYS = 3


async def test_every_message_is_stored_once_in_order_over_lost_connections(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    await cluster.start()
    settings = ProducerSettings(idempotent=True, tries_max=100, send_timeout_ms=60_000, batch_records_max=16)
    async with (
        IotmqClient(cluster.client_settings) as client,
        Producer(client, settings=settings) as producer,
    ):
        queues = (await client.admin.create_topic("T", queues=4)).writable

        async def send(number: int) -> None:
            key = "" if number % 2 else f"k{number % KEYS}"
            await producer.send(Message("T", b"%d" % number, key=key))
            if number % 30 == 0:
                # While other requests are on their way.
                for route in client.routes.all_known():
                    for broker in route.addresses:
                        connection = client.connections.ready(route.master(broker) or "")
                        if connection is not None:
                            connection.abort("a test")

        await asyncio.gather(*(send(number) for number in range(MESSAGES)))
        stored: list[int] = []
        async with PullConsumer(client) as consumer:
            await consumer.assign(queues)
            for queue in queues:
                await consumer.seek(queue, 0)
            while len(stored) < MESSAGES:
                stored += [int(message.body) for message in await consumer.getmany()]
        ends = await client.admin.offsets("T")
    assert sorted(stored) == list(range(MESSAGES))
    assert sum(offsets.end for offsets in ends.values()) == MESSAGES
    for key in range(KEYS):
        of_key = [number for number in stored if number % 2 == 0 and number % KEYS == key]
        assert of_key == sorted(of_key)
    await cluster.stop()
