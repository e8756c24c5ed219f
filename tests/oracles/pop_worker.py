"""A pop consumer in a process of its own, to be killed: `pop_worker.py URL TOPIC GROUP INVISIBLE_MS FILE`.

Writes what it gets (`got QUEUE OFFSET BODY POPPED_MS`), what it has held longer (`extended ...`), what it is
about to acknowledge (`asked ...`) and what the broker has said yes to (`acked ...`): a line each, written at
once.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TextIO

import iotmq
from iotmq.client import PopConsumerSettings, PoppedMessage
from iotmq.errors import IotmqError


async def main(url: str, topic: str, group: str, invisible_ms: str, file: TextIO) -> None:
    settings = PopConsumerSettings(invisible_ms=int(invisible_ms), held_max=8, consume_from="first")

    def note(word: str, message: PoppedMessage) -> None:
        queue_id, offset, popped_ms = message.queue.queue_id, message.queue_offset, message.receipt.popped_ms
        file.write(f"{word} {queue_id} {offset} {message.body.decode()} {popped_ms}\n")

    async with iotmq.connect(url, reconnect_ms_min=10, reconnect_ms_max=200) as client:
        consumer = client.pop_consumer(group, settings)
        await consumer.subscribe(topic)
        async with consumer:
            while True:
                messages = await consumer.getmany(records_max=8)
                for message in messages:
                    note("got", message)
                for message in messages:
                    # Some work, in which it may be killed with the others in hand.
                    await asyncio.sleep(0.002)
                    try:
                        if message.queue_offset % 5 == 0:
                            await message.in_progress()
                            note("extended", message)
                        note("asked", message)
                        await message.ack()
                        note("acked", message)
                    except IotmqError:
                        # Too late, or the broker was away for too long: it comes again.
                        continue


if __name__ == "__main__":
    *words, path = sys.argv[1:]
    with Path(path).open("a", buffering=1) as file:
        asyncio.run(main(*words, file))
