"""A broker and its pop consumers killed again and again: what was sent, got and done is compared."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest
from crash_load import BACK_S, SMALL_FILES, check_store
from eventually import soon
from gateway_process import ROOT, GatewayProcess

from iotmq.client import ClientSettings, IotmqClient, Message, Producer, ProducerSettings
from iotmq.errors import IotmqError

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("IOTMQ_CRASH_ROUNDS", "1"))
SEED = int(os.environ.get("IOTMQ_CRASH_SEED", "22"))
WORKERS = 3
TOPIC = "Popped"
GROUP = "workers"
# Longer than a broker is away, as a rule: what is held then is nobody else's.
INVISIBLE_MS = 2_000
# What a worker writes when it acknowledges, and when the broker has said yes.
DONE = ("asked", "acked")


class Line(NamedTuple):
    """A line that a worker wrote."""

    word: str
    place: tuple[int, int]
    body: str
    popped_ms: int


class Workers:
    """Pop consumers as processes, each with a file."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._url = url
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int) -> None:
        script = ROOT / "tests" / "oracles" / "pop_worker.py"
        command = [
            sys.executable,
            str(script),
            self._url,
            TOPIC,
            GROUP,
            str(INVISIBLE_MS),
            self._path(number),
        ]
        self._processes[number] = subprocess.Popen(command, cwd=ROOT)

    def kill(self, number: int) -> None:
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        for number in list(self._processes):
            self.kill(number)

    def have_begun(self) -> bool:
        paths = [Path(self._path(number)) for number in range(WORKERS)]
        return all(path.exists() and path.stat().st_size for path in paths)

    def lines(self) -> list[Line]:
        found = []
        for number in range(WORKERS):
            path = Path(self._path(number))
            text = path.read_text() if path.exists() else ""
            # The last line of a killed worker may be cut; its next life goes on behind it.
            for line in text.splitlines()[: None if text.endswith("\n") else -1]:
                words = line.split(" ")
                if len(words) == 5:
                    found.append(Line(words[0], (int(words[1]), int(words[2])), words[3], int(words[4])))
        return found

    def _path(self, number: int) -> str:
        return str(self._directory / f"worker-{number}")


class Sender:
    """Sends numbers, each once; knows which the broker has acknowledged."""

    def __init__(self) -> None:
        self.sent_count = 0
        self.acknowledged: set[str] = set()

    async def run(self, producer: Producer) -> None:
        while True:
            number = str(self.sent_count)
            self.sent_count += 1
            try:
                await producer.send(Message(TOPIC, number.encode()))
                self.acknowledged.add(number)
            except IotmqError:
                await asyncio.sleep(0.05)


@pytest.mark.timeout(60 + 30 * ROUNDS)
async def test_every_message_is_done_once_its_holder_says_so_and_has_one_holder_at_a_time(
    tmp_path: Path,
) -> None:
    print(f"IOTMQ_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    sender = Sender()
    gateway = GatewayProcess(tmp_path / "data", "broker.offsets_interval_s=0.1", *SMALL_FILES)
    with gateway:
        workers = Workers(tmp_path, f"iotmq://{gateway.registry}")
        settings = ClientSettings(
            registries=(gateway.registry,),
            reconnect_ms_min=10,
            reconnect_ms_max=100,
            request_timeout_ms=1_000,
        )
        producer_settings = ProducerSettings(send_timeout_ms=2_000)
        try:
            async with IotmqClient(settings) as client:
                await client.admin.create_topic(TOPIC, queues=2)
                async with client.producer(settings=producer_settings) as producer:
                    for number in range(WORKERS):
                        workers.start(number)
                    sending = asyncio.ensure_future(sender.run(producer))
                    await soon(workers.have_begun, "every worker gets something", within_s=BACK_S)
                    for _ in range(ROUNDS):
                        for what in chance.sample(["broker", *range(WORKERS)], 2):
                            target = len(sender.acknowledged) + 30 + int(chance.expovariate(1 / 50))
                            await soon(
                                lambda target=target: len(sender.acknowledged) >= target,
                                "sends",
                                within_s=BACK_S,
                            )
                            if what == "broker":
                                await asyncio.to_thread(gateway.restart)
                            else:
                                workers.kill(what)
                                workers.start(what)
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)

                def are_done() -> bool:
                    # Of an acknowledgement whose answer was lost the message comes again, or it counts.
                    done = {line.body for line in workers.lines() if line.word in DONE}
                    return sender.acknowledged <= done

                await soon(are_done, "everything is acknowledged by somebody", within_s=BACK_S, step_s=0.1)
        finally:
            workers.kill_all()
    lines = workers.lines()
    assert {line.body for line in lines} <= {str(number) for number in range(sender.sent_count)}
    pops: dict[tuple[int, int], list[int]] = defaultdict(list)
    held_from: dict[tuple[int, int], list[int]] = defaultdict(list)
    for line in lines:
        if line.word == "got":
            pops[line.place].append(line.popped_ms)
        if line.word in ("got", "extended"):
            held_from[line.place].append(line.popped_ms)
    # A receipt that came too late is told of success where the next holder has acknowledged before.
    ended_by = {line.place: 0 for line in lines if line.word == "acked"}
    for line in lines:
        if line.word in DONE and line.place in ended_by:
            ended_by[line.place] = max(ended_by[line.place], line.popped_ms)
    for place, popped_ms in ended_by.items():
        assert max(pops[place]) <= popped_ms, f"{place} came again after it was done"
    for place, times in pops.items():
        assert len(set(times)) == len(times), f"{place} was given twice by one pop"
        for time_ms in times:
            before = [each for each in held_from[place] if each < time_ms]
            assert all(time_ms - each >= INVISIBLE_MS for each in before), f"{place} had two holders: {times}"
    repeated = sum(len(times) - 1 for times in pops.values())
    print(f"{len(sender.acknowledged)} of {sender.sent_count} acknowledged, {repeated} came again")
    check_store(gateway.data)
