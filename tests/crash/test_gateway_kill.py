"""The gateway killed and started again under load: what was acknowledged is stored, in order, and consumed.

Sent, acknowledged, stored and received are sets that a checker compares at the end. `make crash` runs many
rounds (IOTMQ_CRASH_ROUNDS) from a seed of its own (IOTMQ_CRASH_SEED); a failure names the seed.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from crash_load import BACK_S, SMALL_FILES, Load, check_store
from eventually import STOP_S, soon
from gateway_process import ROOT, SMALL_STORE, GatewayProcess
from log_reader import read_topic

from iotmq.client import ClientSettings, IotmqClient, Message, Producer

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("IOTMQ_CRASH_ROUNDS", "4"))
SEED = int(os.environ.get("IOTMQ_CRASH_SEED", "20"))

Stop = Callable[[GatewayProcess, random.Random], Awaitable[None]]


async def kill_and_start(gateway: GatewayProcess, random_source: random.Random) -> None:
    """kill -9; sometimes once more while it starts, perhaps in the middle of its recovery."""
    gateway.kill()
    if random_source.random() < 0.3:
        gateway.launch()
        await asyncio.sleep(random_source.uniform(0.2, 0.8))
        gateway.kill()
    gateway.launch()
    await asyncio.to_thread(gateway.wait_ready, within_s=BACK_S)


async def stop_and_start(gateway: GatewayProcess, _random_source: random.Random) -> None:
    """SIGTERM, and a clean end in its own time."""
    took_s = await asyncio.to_thread(gateway.terminate)
    assert took_s < STOP_S
    assert not (gateway.data / "abort").exists()
    gateway.launch()
    await asyncio.to_thread(gateway.wait_ready, within_s=BACK_S)


@pytest.mark.timeout(60 + 30 * ROUNDS)
@pytest.mark.parametrize(
    ("flush", "stop", "rounds"),
    [
        pytest.param("async", kill_and_start, ROUNDS, id="kill-async"),
        pytest.param("sync", kill_and_start, max(1, ROUNDS // 2), id="kill-sync"),
        pytest.param("async", stop_and_start, max(1, ROUNDS // 2), id="sigterm"),
    ],
)
async def test_nothing_acknowledged_is_lost(tmp_path: Path, flush: str, stop: Stop, rounds: int) -> None:
    print(f"IOTMQ_CRASH_SEED={SEED}")
    random_source = random.Random(SEED)
    # A kill finds offsets that were just written, or not yet.
    gateway = GatewayProcess(
        tmp_path / "data", f"store.flush={flush}", "broker.offsets_interval_s=0.3",
        "store.checkpoint_interval_ms=500", *SMALL_FILES,
    )  # fmt: skip
    with gateway:
        load = Load(registry=gateway.registry, mqtt_port=gateway.mqtt_port)
        async with load.running():
            for _ in range(rounds):
                # The moment is a number of acknowledgements after the start, from none to many.
                target = load.acknowledged_count() + int(random_source.expovariate(1 / 1_500))
                await soon(
                    lambda target=target: load.acknowledged_count() >= target,
                    "messages are acknowledged after a start",
                    within_s=BACK_S, step_s=random_source.uniform(0.001, 0.02),
                )  # fmt: skip
                await stop(gateway, random_source)
            # Everybody came back and goes on.
            for sender in load.senders:
                before = len(sender.acknowledged)
                await soon(
                    lambda sender=sender, before=before: len(sender.acknowledged) > before,
                    "every sender goes on after the last start",
                    within_s=BACK_S,
                )
        assert all(publisher.connections > 1 for publisher in load.publishers)
        await load.check()
        again = [sum(sender.resent.values()) for sender in load.senders]
        print(f"{load.acknowledged_count()} acknowledged, {load.received.total()} received, again: {again}")
    check_store(gateway.data)


def test_a_second_process_on_the_data_is_refused_by_the_name_of_the_lock(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "data") as gateway:
        words = [
            word
            for name in (*(f"{part}.listen_port=0" for part in gateway.ports), *SMALL_STORE)
            for word in ("--set", name)
        ]
        second = subprocess.run(
            [sys.executable, "-m", "iotmq", "serve", "--data", str(gateway.data), *words],
            cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert str(gateway.data / "lock") in second.stderr
        assert str(gateway.pid) in second.stderr
        assert "Traceback" not in second.stderr
        # The first one has not noticed.
        assert gateway.http("/readyz")[0] == 200
    # A lock that a killed process left behind holds nobody up.
    with GatewayProcess(tmp_path / "data") as gateway:
        gateway.restart()


async def test_messages_of_a_topic_that_was_not_saved_are_found_again(tmp_path: Path) -> None:
    """A power cut may take topics.json back to before the topic, while its messages are on the disk."""
    with GatewayProcess(tmp_path / "data") as gateway:
        async with (
            IotmqClient(ClientSettings(registries=(gateway.registry,))) as client,
            Producer(client) as producer,
        ):
            for number in range(20):
                await producer.send(Message("Young", b"%d" % number, key=str(number)))
        gateway.kill()
        for file in (gateway.data / "config").glob("topics.json*"):
            file.unlink()
        gateway.start()
        queues = await asyncio.to_thread(read_topic, gateway.registry, "Young")
        bodies = [message.body for messages in queues.values() for message in messages]
        assert sorted(bodies) == sorted(b"%d" % number for number in range(20))
        assert "topic Young was not in topics.json" in gateway.log_text()
