"""kill -9 of consumers under load: what was sent, acknowledged and consumed is compared, for each way.

Nothing acknowledged is lost; an offset that was committed had been handled; only what was handled after the
last commit comes twice; and in order, a queue goes back only where its last holder was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest
from eventually import soon
from local_cluster import LocalCluster

from iotmq.client import Admin, IotmqClient, Message, Producer

# Writes a line for each message that is handled: one write, so that a kill leaves it whole or not there.
CHILD = r"""
import asyncio, os, sys
import iotmq
from iotmq.client import PullConsumerSettings, PushConsumerSettings

address, way, name, log, offsets = sys.argv[1:]
log = os.open(log, os.O_WRONLY | os.O_APPEND)
own = os.getpid()

def note(message):
    os.write(log, b"%d %d %d %s\n" % (own, message.queue.queue_id, message.queue_offset, message.body))

async def main():
    async with iotmq.connect("iotmq://" + address, client_id=name, reconnect_ms_min=5) as client:
        common = {"consume_from": "first", "commit_ms": 20, "rebalance_ms": 1_000}
        if way == "broadcasting":
            common |= {"model": "broadcasting", "offsets_file": offsets}
        if way in ("pull", "pull in order"):
            settings = PullConsumerSettings(orderly=way == "pull in order", **common)
            consumer = client.pull_consumer("g", settings)
            await consumer.subscribe("T")
            async with consumer:
                async for message in consumer:
                    note(message)
                    if message.queue_offset % 16 == 0:
                        await asyncio.sleep(0.001)
        async def listen(messages):
            for message in messages:
                note(message)
            await asyncio.sleep(0.001)
        settings = PushConsumerSettings(orderly=way == "in order", batch_max=16, **common)
        consumer = client.push_consumer("g", listen, settings=settings)
        await consumer.subscribe("T")
        async with consumer:
            await asyncio.Event().wait()

asyncio.run(main())
"""

ROUNDS = int(os.environ.get("IOTMQ_CRASH_ROUNDS", "1"))
SEED = int(os.environ.get("IOTMQ_CRASH_SEED", "1"))
QUEUES = 2
WAYS = ("sharing", "in order", "broadcasting", "pull", "pull in order")
# Brokers keep the lock of a killed consumer for a minute.
LOCKED_S = 90.0


class Handled(NamedTuple):
    """One line of the log."""

    process_id: int
    queue_id: int
    offset: int
    body: bytes


class Kill(NamedTuple):
    """What was known when a consumer had just been killed."""

    lines: int
    """Of the log, before the next life began."""
    committed: dict[int, int]


def read(log: Path) -> list[Handled]:
    rows = [line.split(b" ", 3) for line in log.read_bytes().splitlines()]
    return [Handled(int(row[0]), int(row[1]), int(row[2]), row[3]) for row in rows]


class Members:
    """Consumers in processes of their own."""

    def __init__(self, cluster: LocalCluster, way: str, directory: Path) -> None:
        self._cluster = cluster
        self._way = way
        self._directory = directory
        self.log = directory / "handled"
        self.log.touch()
        self.offsets = directory / "offsets.json"
        self._children: dict[str, asyncio.subprocess.Process] = {}
        self.killed: set[int] = set()

    async def start(self, name: str) -> None:
        words = (self._cluster.address, self._way, name, str(self.log), str(self.offsets))
        # The same name again: so the broker gives it the locks of its former life at once.
        self._children[name] = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, *words)

    async def kill(self, name: str) -> None:
        child = self._children.pop(name)
        assert child.returncode is None, "it ended by itself"
        child.kill()
        await child.wait()
        self.killed.add(child.pid)

    async def kill_all(self) -> None:
        for name in list(self._children):
            await self.kill(name)

    async def committed(self, admin: Admin) -> dict[int, int]:
        if self._way == "broadcasting":
            text = self.offsets.read_text() if self.offsets.exists() else '{"offsets": []}'
            return {row["queue"]: row["offset"] for row in json.loads(text)["offsets"]}
        offsets = await admin.group_offsets("g", "T")
        return {queue.queue_id: offset or 0 for queue, offset in offsets.items()}

    async def grows(self, lines: int) -> None:
        wanted = self.log.read_bytes().count(b"\n") + lines
        await soon(
            lambda: self.log.read_bytes().count(b"\n") >= wanted,
            f"{lines} messages are handled",
            within_s=LOCKED_S,
        )

    async def share(self) -> None:
        """Wait until each has a queue: then the next life of each gets its lock back at once."""

        def holders() -> set[int]:
            return set({each.queue_id: each.process_id for each in read(self.log)}.values())

        living = {child.pid for child in self._children.values()}
        await soon(lambda: holders() == living, "each has a queue", within_s=LOCKED_S)


def check(log: list[Handled], kills: list[Kill], killed: set[int], *, in_order: bool) -> None:
    for kill in kills:
        before, after = log[: kill.lines], log[kill.lines :]
        for queue_id, committed in kill.committed.items():
            handled = {each.offset for each in before if each.queue_id == queue_id}
            assert handled >= set(range(committed)), "an offset was committed ahead of what was handled"
            again = [each.offset for each in after if each.queue_id == queue_id and each.offset < committed]
            assert again == [], "what was committed came again"
    if in_order:
        last: dict[int, Handled] = {}
        for each in log:
            before_it = last.get(each.queue_id)
            if before_it is not None and each.offset != before_it.offset + 1:
                assert each.offset <= before_it.offset, "a message was passed over"
                assert each.process_id != before_it.process_id, "a holder went back by itself"
                assert before_it.process_id in killed, "a queue was taken from a holder that lived"
            last[each.queue_id] = each


@pytest.mark.crash
@pytest.mark.parametrize("way", WAYS if ROUNDS > 1 else WAYS[:3])
async def test_killed_consumers_lose_nothing_and_repeat_what_was_not_committed(
    way: str, tmp_path: Path
) -> None:
    chance = random.Random(f"{SEED} {way}")
    cluster = LocalCluster(tmp_path, topics=("T",))
    await cluster.start()
    members = Members(cluster, way, tmp_path)
    names = ["one"] if way == "broadcasting" else ["one", "two"]
    acknowledged: dict[tuple[int, int], bytes] = {}
    kills: list[Kill] = []
    is_over = asyncio.Event()

    async def send(client: IotmqClient) -> None:
        async with Producer(client) as producer:
            number = 0
            while not is_over.is_set():
                queue = (await producer.queues("T"))[number % QUEUES]
                messages = [Message("T", b"%d" % (number + QUEUES * at)) for at in range(16)]
                for result in await producer.send_batch(messages, queue=queue):
                    for at in range(result.count):
                        acknowledged[queue.queue_id, result.queue_offset + at] = messages[at].body
                number += 16 * QUEUES + 1
                await asyncio.sleep(0.002)

    try:
        async with IotmqClient(cluster.client_settings) as client:
            for name in names:
                await members.start(name)
            sending = asyncio.ensure_future(send(client))
            for _ in range(ROUNDS):
                await members.grows(chance.randint(1, 300))
                if way.endswith("in order"):
                    await members.share()
                name = chance.choice(names)
                await members.kill(name)
                committed = await members.committed(client.admin)
                kills.append(Kill(len(read(members.log)), committed))
                await members.start(name)
            await members.grows(1)
            is_over.set()
            await sending

            def rest() -> set[tuple[int, int]]:
                return acknowledged.keys() - {(each.queue_id, each.offset) for each in read(members.log)}

            await soon(lambda: not rest(), "all is handled", within_s=LOCKED_S, step_s=0.05)
    finally:
        await members.kill_all()
        await cluster.stop()
    log = read(members.log)
    # Nothing else than what was sent, and each at its place.
    places = defaultdict(set)
    for each in log:
        places[each.queue_id, each.offset].add(each.body)
    assert places == {place: {body} for place, body in acknowledged.items()}
    check(log, kills, members.killed, in_order=way.endswith("in order"))
