"""A backend service: it prints what devices publish, as a member of the consumer group "dashboard".

python examples/backend_consumer.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

import iotmq
from iotmq.client import PushConsumerSettings, ReceivedMessage


async def print_readings(messages: list[ReceivedMessage]) -> None:
    """Print one batch; an exception would bring it back later."""
    for message in messages:
        print(message.properties["MQTT_TOPIC"], message.body.decode(), flush=True)


async def main(registry: str) -> None:
    """Consume until Ctrl-C. The broker remembers how far the group has read."""
    async with iotmq.connect(f"iotmq://{registry}") as client:
        settings = PushConsumerSettings(consume_from="first")
        consumer = client.push_consumer("dashboard", print_readings, settings=settings)
        await consumer.subscribe("mqtt")
        await consumer.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
