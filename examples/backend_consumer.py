"""A backend service: it prints what devices publish, as a member of the consumer group "dashboard".

python examples/backend_consumer.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from iotmq.client import ClientSettings, IotmqClient, PushConsumer, PushConsumerSettings, ReceivedMessage


async def print_readings(messages: list[ReceivedMessage]) -> None:
    """Print one batch; an exception would bring it back later."""
    for message in messages:
        print(message.properties["MQTT_TOPIC"], message.body.decode(), flush=True)


async def main(registry: str) -> None:
    """Consume until Ctrl-C. The broker remembers how far the group has read."""
    async with IotmqClient(ClientSettings(registries=(registry,))) as client:
        consumer = PushConsumer(
            client, "dashboard", print_readings, settings=PushConsumerSettings(consume_from="first")
        )
        await consumer.subscribe("mqtt")
        async with consumer:
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
