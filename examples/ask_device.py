"""A request to a device: it waits for the answer and prints it.

python examples/ask_device.py 127.0.0.1:9876 pump-7 "how warm?"
"""

from __future__ import annotations

import asyncio
import sys

import iotmq


async def main(registry: str, device: str, question: str) -> None:
    """Ask once. A device that is away, or does not answer in time, is a RequestTimeoutError."""
    async with iotmq.connect(f"iotmq://{registry}") as client:
        requester = await client.requester()
        reply = await requester.ask_device(f"devices/{device}/ask", question.encode(), timeout_ms=5_000)
        print(reply.properties["MQTT_CLIENT_ID"], "answers", reply.body.decode())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
