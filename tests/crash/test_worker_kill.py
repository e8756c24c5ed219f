"""`iotmq mqtt --workers N`: processes on one port; one of them, all of them, and their broker killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_load import CommandSender, KeptDevice, Watcher, check_exactly_once, check_received
from crash_load import BACK_S, SMALL_FILES
from eventually import STOP_S, eventually
from gateway_process import ROOT, GatewayProcess

from iotmq.client import ClientSettings, SyncClient
from iotmq.client.admin.devices.sessions import SessionAdmin

pytestmark = pytest.mark.crash

DEVICES = 16
MESSAGES = 1_500

Roles = dict[str, GatewayProcess]


@pytest.fixture
def roles(tmp_path: Path) -> Iterator[Roles]:
    registry = GatewayProcess(tmp_path / "registry", role="registry")
    broker = GatewayProcess(
        tmp_path / "broker", f"broker.registries={registry.registry}", "broker.registration_interval_s=0.3",
        *SMALL_FILES, role="broker",
    )  # fmt: skip
    front = GatewayProcess(
        tmp_path / "front", f"mqtt.registries={registry.registry}", "mqtt.retry_interval_s=0.1",
        "mqtt.workers=2", "mqtt.name=front", role="mqtt",
    )  # fmt: skip
    with registry, broker, front:
        yield {"registry": registry, "broker": broker, "front": front}


@pytest.fixture
def devices(roles: Roles) -> Iterator[list[KeptDevice]]:
    """Connected and subscribed."""
    made = [KeptDevice(number) for number in range(DEVICES)]
    for device in made:
        device.connect(roles["front"].mqtt_port)
        device.subscribe()
    yield made
    for device in made:
        device.disconnect()


def worker_pids(front: GatewayProcess) -> dict[int, int]:
    """Number -> process id of the workers that run."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = re.search(r"^PPid:\s+(\d+)$", (entry / "status").read_text(), re.M)
            except OSError:
                continue
            if b"iotmq.commands.mqtt_worker" in words and parent is not None and int(parent[1]) == front.pid:
                found[int(words[words.index(b"iotmq.commands.mqtt_worker") + 1])] = int(entry.name)
    return found


def is_there(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def owners(roles: Roles) -> dict[str, str]:
    """Client id -> the front end it is connected to, as the broker knows it."""
    with SyncClient(ClientSettings(registries=(roles["registry"].registry,))) as client:
        sessions = SessionAdmin(client.asynchronous)

        async def ask() -> dict[str, str]:
            return {each.client_id: each.front_end async for each in sessions.kept()}

        return client.run(ask())


def test_connections_are_spread_and_one_page_shows_all_workers(
    roles: Roles, devices: list[KeptDevice]
) -> None:
    front = roles["front"]
    assert set(worker_pids(front)) == {1, 2}
    assert front.metric("iotmq_mqtt_workers") == 2
    metrics = front.metrics()
    counts = [metrics[f'iotmq_mqtt_connections{{worker="{number}"}}'] for number in (1, 2)]
    assert sum(counts) == DEVICES
    assert all(counts), "all connections at one of two workers: once in thirty thousand runs"
    by_owner = Counter(owners(roles).values())
    assert by_owner == {f"front-{number}": count for number, count in enumerate(counts, 1)}
    status, text = front.http("/readyz")
    assert status == 200
    assert '"worker-1":"ready"' in text
    stuck = worker_pids(front)[2]
    os.kill(stuck, signal.SIGSTOP)
    try:
        status, text = front.http("/healthz")
        assert (status, text) == (503, "workers that do not answer: 2\n")
        status, text = front.http("/readyz")
        assert status == 200, "the other one serves"
        assert '"worker-2":"it does not answer"' in text
    finally:
        os.kill(stuck, signal.SIGCONT)
    eventually(lambda: front.http("/healthz") == (200, "ok\n"), "it answers again")


@pytest.mark.timeout(180)
def test_devices_of_a_killed_worker_go_on_at_others_and_it_comes_back(
    roles: Roles, devices: list[KeptDevice]
) -> None:
    front = roles["front"]
    watcher = Watcher(front.mqtt_port, "wills", qos=1, clean_session=False)
    wills = watcher.got
    sender = CommandSender(front.mqtt_port, devices=DEVICES)
    of_worker = owners(roles)
    victims = [device for device in devices if of_worker[device.client_id] == "front-1"]
    assert 0 < len(victims) < DEVICES
    # These do not come back before their wills are due.
    silent = victims[: len(victims) // 2]
    for count in range(MESSAGES):
        sender.publish(count)
        if count == MESSAGES // 3:
            eventually(lambda: sum(len(device.got) for device in devices) > 50, "messages before the kill")
            for device in silent:
                device.leave()
            pid = worker_pids(front)[1]
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: len(sender.acknowledged) == MESSAGES, "everything is stored", within_s=BACK_S)
    eventually(lambda: worker_pids(front).get(1, pid) != pid, "it is started again", within_s=BACK_S)
    eventually(
        lambda: front.metrics().get('iotmq_mqtt_worker_ready{worker="1"}') == 1, "it serves", within_s=BACK_S
    )
    assert front.metric("iotmq_mqtt_worker_restarts_total") == 1
    assert "a worker ended and is started again" in front.log_text()
    eventually(
        lambda: {device.client_id.encode() for device in silent} <= set(wills), "wills", within_s=BACK_S
    )
    for device in silent:
        device.connect(front.mqtt_port)
    check_received(devices, messages=MESSAGES, within_s=BACK_S)
    check_exactly_once(devices, roles["registry"].registry)
    assert all(device.is_present for device in victims)
    assert all(device.lost_connections == 0 for device in devices if device not in victims)
    assert max(Counter(wills).values(), default=0) <= 1, "once each"
    assert set(wills) <= {device.client_id.encode() for device in victims}
    watcher.disconnect()
    sender.disconnect()


@pytest.mark.timeout(180)
def test_devices_stay_connected_while_their_broker_is_killed_and_nothing_is_lost(
    roles: Roles, devices: list[KeptDevice]
) -> None:
    sender = CommandSender(roles["front"].mqtt_port, devices=DEVICES)
    broker = roles["broker"]
    # With a clean session: what it gets is in no session's queue.
    watcher = Watcher(roles["front"].mqtt_port, "cmd/#", qos=2)
    for count in range(MESSAGES):
        sender.publish(count)
        if count == MESSAGES // 3:
            eventually(lambda: sum(len(device.got) for device in devices) > 50, "messages before the kill")
            broker.kill()
    # What comes while nobody can store it is not acknowledged.
    held_back = MESSAGES - len(sender.acknowledged)
    assert held_back > 0
    broker.start(within_s=BACK_S)
    eventually(lambda: len(sender.acknowledged) == MESSAGES, "everything is stored", within_s=BACK_S)
    check_received(devices, messages=MESSAGES, within_s=BACK_S)
    check_exactly_once(devices, roles["registry"].registry)
    assert [device.lost_connections for device in devices] == [0] * DEVICES
    assert sender.lost_connections == 0
    everything = {b"%d" % count for count in range(MESSAGES)}
    eventually(lambda: set(watcher.got) >= everything, "the clean session's messages", within_s=BACK_S)
    assert watcher.client.is_connected()
    watcher.disconnect()
    sender.disconnect()


def test_one_worker_can_be_told_to_stop_and_is_started_again(roles: Roles) -> None:
    front = roles["front"]
    before = worker_pids(front)
    os.kill(before[2], signal.SIGTERM)
    eventually(lambda: worker_pids(front).get(2, before[2]) != before[2], "it is started again")
    eventually(lambda: front.metrics().get('iotmq_mqtt_worker_ready{worker="2"}') == 1, "it serves")
    assert worker_pids(front)[1] == before[1]
    assert not is_there(before[2])


def test_workers_do_not_outlive_a_supervisor_that_is_killed(roles: Roles) -> None:
    front = roles["front"]
    pids = worker_pids(front)
    assert len(pids) == 2
    front.kill()
    eventually(lambda: not any(is_there(pid) for pid in pids.values()), "all are gone", within_s=10)
    front.start()
    assert set(worker_pids(front).values()).isdisjoint(pids.values())


def test_sigterm_ends_all_of_them_in_time(roles: Roles, devices: list[KeptDevice]) -> None:
    front = roles["front"]
    pids = worker_pids(front)
    assert front.terminate() < STOP_S
    assert not any(is_there(pid) for pid in pids.values())
    front.start()
    eventually(lambda: all(device.client.is_connected() for device in devices), "devices are back")


def test_a_port_that_is_taken_is_said_and_nothing_runs_on(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        began_s = time.monotonic()
        ended = subprocess.run(
            [
                sys.executable, "-m", "iotmq", "mqtt", "--workers", "2", "--data", str(tmp_path),
                "--set", f"mqtt.listen_port={port}", "--set", "http.listen_port=0",
            ],
            cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port} for MQTT" in ended.stderr
    assert time.monotonic() - began_s < 20
