"""Registry, broker and front end as processes of their own, killed one at a time under load."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from crash_load import BACK_S, SMALL_FILES, Load, check_store
from eventually import eventually, soon
from gateway_process import GatewayProcess

pytestmark = pytest.mark.crash

ROUNDS = int(os.environ.get("IOTMQ_CRASH_ROUNDS", "4"))
SEED = int(os.environ.get("IOTMQ_CRASH_SEED", "20"))

Roles = dict[str, GatewayProcess]


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[Roles]:
    registry = GatewayProcess(tmp_path / "registry", role="registry")
    broker = GatewayProcess(
        tmp_path / "broker", f"broker.registries={registry.registry}", "broker.registration_interval_s=0.3",
        "broker.offsets_interval_s=0.3", *SMALL_FILES, role="broker",
    )  # fmt: skip
    front = GatewayProcess(
        tmp_path / "front", f"mqtt.registries={registry.registry}", "mqtt.retry_interval_s=0.1", role="mqtt"
    )
    with registry, broker, front:
        yield {"registry": registry, "broker": broker, "mqtt": front}


def restart(process: GatewayProcess) -> None:
    process.kill()
    process.launch()
    process.wait_ready(within_s=BACK_S)


@pytest.mark.timeout(60 + 30 * ROUNDS)
async def test_a_role_that_dies_takes_nothing_acknowledged_with_it(roles: Roles) -> None:
    """Devices of a front end whose broker dies stay connected and wait."""
    print(f"IOTMQ_CRASH_SEED={SEED}")
    random_source = random.Random(SEED)
    load = Load(registry=roles["registry"].registry, mqtt_port=roles["mqtt"].mqtt_port)
    victims = ["broker", "registry", "mqtt", *random_source.choices(list(roles), k=max(0, ROUNDS - 3))]
    killed = Counter(victims)
    async with load.running():
        for victim in victims:
            target = load.acknowledged_count() + int(random_source.expovariate(1 / 1_000))
            await soon(
                lambda target=target: load.acknowledged_count() >= target, "messages are acknowledged",
                within_s=BACK_S,
            )  # fmt: skip
            connections = [publisher.connections for publisher in load.publishers]
            await asyncio.to_thread(restart, roles[victim])
            for sender in load.senders:
                before = len(sender.acknowledged)
                await soon(
                    lambda sender=sender, before=before: len(sender.acknowledged) > before + 10,
                    f"every sender goes on after {victim} died",
                    within_s=BACK_S,
                )
            if victim != "mqtt":
                assert [publisher.connections for publisher in load.publishers] == connections
    # A front end whose broker died sends its unanswered batch again.
    await load.check(copies_more=killed["broker"])
    broker = roles["broker"]
    assert await asyncio.to_thread(broker.terminate) < 2.0
    check_store(broker.data)
    broker.start()


def test_subscribers_get_messages_again_after_their_broker_died(roles: Roles) -> None:
    """Their subscriptions are attached to the new process without their doing."""
    got: list[bytes] = []
    subscribed: list[int] = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="watcher", protocol=paho.MQTTv311)
    client.on_message = lambda _client, _data, message: got.append(message.payload)
    client.on_subscribe = lambda *_: subscribed.append(1)
    client.connect("127.0.0.1", roles["mqtt"].mqtt_port)
    client.loop_start()
    try:
        client.subscribe("watch/+/exact", 1)
        client.subscribe("watch/#", 0)
        eventually(lambda: len(subscribed) == 2, "subscribed")
        client.publish("watch/1/exact", b"before", 1)
        eventually(lambda: b"before" in got, "live delivery")
        for name in ("broker", "registry"):
            restart(roles[name])

            def delivered(name: str = name) -> bool:
                client.publish("watch/2/exact", name.encode(), 1).wait_for_publish(BACK_S)
                return name.encode() in got

            eventually(delivered, f"live delivery after {name} died", within_s=BACK_S, step_s=0.2)
        assert client.is_connected()
    finally:
        client.disconnect()
        client.loop_stop()
