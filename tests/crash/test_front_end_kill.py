"""Two front ends in processes of their own: one is killed, and its devices go on at the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_load import CommandSender, KeptDevice, Watcher, check_received
from eventually import eventually
from gateway_process import GatewayProcess
from mqtt_roles import mqtt_roles

pytestmark = pytest.mark.crash

DEVICES = 8
MESSAGES = 1_500


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[dict[str, GatewayProcess]]:
    with mqtt_roles(tmp_path) as started:
        yield started


@pytest.mark.timeout(120)
def test_devices_of_a_killed_front_end_lose_nothing_and_their_wills_are_published_once(
    roles: dict[str, GatewayProcess],
) -> None:
    one, two = roles["one"], roles["two"]
    devices = [KeptDevice(number) for number in range(DEVICES)]
    for device in devices:
        device.connect(one.mqtt_port)
        device.subscribe()
    watcher = Watcher(two.mqtt_port, "wills", qos=1)
    wills = watcher.got
    sender = CommandSender(two.mqtt_port, devices=DEVICES)
    for count in range(MESSAGES):
        sender.publish(count)
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
    eventually(lambda: len(sender.acknowledged) == MESSAGES, "everything is stored", within_s=30)
    eventually(lambda: len(wills) >= DEVICES // 2, "wills", within_s=30)
    for device in devices[DEVICES // 2 :]:
        device.connect(two.mqtt_port)
        assert device.is_present
    check_received(devices, messages=MESSAGES, within_s=30)
    late = {b"device-%d" % number for number in range(DEVICES // 2, DEVICES)}
    # A broker that was killed before they were due gives front ends time to come back first.
    eventually(lambda: late <= set(wills), "the wills of those who were late", within_s=30)
    assert max(Counter(wills).values()) == 1, "once each"
    for client in (*devices, watcher, sender):
        client.disconnect()
