"""Two front ends in processes of their own: one is killed, and its devices go on at the other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from crash_load import SMALL_FILES
from eventually import eventually
from gateway_process import GatewayProcess
from kept_device import KeptDevice

pytestmark = pytest.mark.crash

DEVICES = 8
MESSAGES = 1_500


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[dict[str, GatewayProcess]]:
    registry = GatewayProcess(tmp_path / "registry", role="registry")
    broker = GatewayProcess(
        tmp_path / "broker", f"broker.registries={registry.registry}", "broker.registration_interval_s=0.3",
        *SMALL_FILES, role="broker",
    )  # fmt: skip
    fronts = [
        GatewayProcess(
            tmp_path / name,
            f"mqtt.registries={registry.registry}",
            "mqtt.retry_interval_s=0.1",
            f"mqtt.name={name}",
            role="mqtt",
        )
        for name in ("one", "two")
    ]
    with registry, broker, fronts[0], fronts[1]:
        yield {"broker": broker, "one": fronts[0], "two": fronts[1]}


@pytest.mark.timeout(120)
def test_devices_of_a_killed_front_end_lose_nothing_and_their_wills_are_published_once(
    roles: dict[str, GatewayProcess],
) -> None:
    one, two = roles["one"], roles["two"]
    devices = [KeptDevice(number) for number in range(DEVICES)]
    for device in devices:
        device.connect(one.mqtt_port)
        device.subscribe()
    wills: list[bytes] = []
    watcher = paho.Client(paho.CallbackAPIVersion.VERSION2, "watcher", protocol=paho.MQTTv311)
    watcher.on_message = lambda client, data, message: wills.append(message.payload)
    subscribed = threading.Event()
    watcher.on_subscribe = lambda *_: subscribed.set()
    watcher.connect("127.0.0.1", two.mqtt_port)
    watcher.loop_start()
    watcher.subscribe("wills", qos=1)
    assert subscribed.wait(10)
    sender = paho.Client(paho.CallbackAPIVersion.VERSION2, "sender", protocol=paho.MQTTv311)
    sender.max_queued_messages_set(0)
    acknowledged: list[int] = []
    sender.on_publish = lambda client, data, packet_id, *_: acknowledged.append(packet_id)
    sender.connect("127.0.0.1", two.mqtt_port)
    sender.loop_start()
    for count in range(MESSAGES):
        sender.publish(f"cmd/{count % DEVICES}/x", b"%d" % count, qos=2 if count % 3 else 1)
        if count == MESSAGES // 3:
            eventually(lambda: sum(len(device.got) for device in devices) > 50, "messages before the kill")
            one.kill()
            for device in devices:
                device.leave()
        if count == MESSAGES // 2:
            # Half of them are back in time, the others' wills are due.
            for device in devices[: DEVICES // 2]:
                device.connect(two.mqtt_port)
                assert device.is_present
        if count == MESSAGES * 2 // 3:
            roles["broker"].kill()
            roles["broker"].start()
    eventually(lambda: len(acknowledged) == MESSAGES, "everything is stored", within_s=30)
    eventually(lambda: len(wills) >= DEVICES // 2, "wills", within_s=30)
    for device in devices[DEVICES // 2 :]:
        device.connect(two.mqtt_port)
        assert device.is_present
    for device in devices:
        wanted = {b"%d" % count for count in range(MESSAGES) if count % DEVICES == device.number}
        eventually(
            lambda device=device, wanted=wanted: set(device.got) >= wanted,
            f"all messages of device {device.number}",
            within_s=30,
        )
        assert set(device.got) == wanted
    late = {b"device-%d" % number for number in range(DEVICES // 2, DEVICES)}
    assert late <= set(wills)
    assert max(Counter(wills).values()) == 1, "once each"
    for client in (*[device.client for device in devices], watcher, sender):
        client.disconnect()
        client.loop_stop()
