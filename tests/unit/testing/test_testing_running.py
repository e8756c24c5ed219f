"""The gateway for the tests of users: devices and services meet in it, and it leaves nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

import pytest

from iotmq.client import Message, PullConsumerSettings
from iotmq.errors import BrokerError, ConfigError
from iotmq.mqtt_client import Address, MqttClient, MqttClientSettings
from iotmq.testing import Gateway, gateway

TESTS_OF_A_USER = """
import pytest


@pytest.mark.parametrize("number", [1, 2])
def test_of_its_own(iotmq_gateway, number):
    with iotmq_gateway.connect_sync() as client, client.producer() as producer:
        from iotmq.client import Message

        assert producer.send(Message("t", b"x")).queue_offset == 0


def test_shared(shared_iotmq_gateway):
    assert shared_iotmq_gateway.url.startswith("iotmq://127.0.0.1:")
"""


async def test_devices_and_services_meet_in_it() -> None:
    with gateway() as running:
        address = Address(host=running.mqtt_host, port=running.mqtt_port)
        async with running.connect() as client, MqttClient(MqttClientSettings(address=address)) as device:
            consumer = client.pull_consumer("service", PullConsumerSettings(consume_from="first"))
            await device.publish("devices/7/state", b"on", qos=1)
            await consumer.subscribe("mqtt")
            await consumer.start()
            async for message in consumer:
                assert (message.properties["MQTT_TOPIC"], message.body) == ("devices/7/state", b"on")
                break


def test_without_asyncio_and_with_settings() -> None:
    with (
        gateway("broker.auto_create_topics=false") as running,
        running.connect_sync() as client,
        client.producer() as producer,
        pytest.raises(BrokerError, match="auto_create_topics"),
    ):
        producer.send(Message("unknown", b""))


def test_two_at_a_time_know_nothing_of_each_other() -> None:
    with gateway() as one, gateway() as other:
        assert one.url != other.url
        for each in (one, other):
            with each.connect_sync() as client, client.producer() as producer:
                assert producer.send(Message("t", b"x")).queue_offset == 0
            with urllib.request.urlopen(f"{each.http_url}/readyz", timeout=10) as answer:
                assert answer.status == 200


def test_nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("iotmq.testing.running._MEMORY", tmp_path)

    def fail(running: Gateway) -> None:
        assert list(tmp_path.iterdir())
        raise ValueError(running.mqtt_port)

    with pytest.raises(ValueError, match=r"\d+") as caught, gateway() as running:
        fail(running)
    assert list(tmp_path.iterdir()) == []
    assert not [thread for thread in threading.enumerate() if thread.name == "iotmq-client"]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(str(caught.value)))) != 0


def test_without_memory_for_files_they_are_where_all_temporary_ones_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("iotmq.testing.running._MEMORY", tmp_path / "none")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with gateway():
        assert [path.name[:14] for path in tmp_path.iterdir()] == ["iotmq-testing-"]


def test_a_wrong_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"broker\.nonsense"), gateway("broker.nonsense=1"):
        pass


def test_the_fixtures_are_those_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["iotmq.testing.fixtures"]\n')
    (tmp_path / "test_of_a_user.py").write_text(TESTS_OF_A_USER)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
