"""Unmodified clients against a broker with access control: right keys, wrong keys, keys that may less."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cpp_process import cpp_process
from eventually import eventually
from gateway_process import ROOT, GatewayProcess
from mqtt_listener import MqttListener
from piped_client import ClientFailedError, PipedClient

from iotmq.client import ClientSettings, Message, SyncAdmin, SyncClient, SyncProducer

NODE_MODULES = ROOT / "build" / "interop" / "node" / "node_modules"
HERE = Path(__file__).parent
FILE = """
accounts:
  - {accessKey: operator, secretKey: abcdefgh, admin: true}
  - accessKey: device-account
    secretKey: 12345678
    topicPerms: [Open=PUB|SUB, Sent=PUB, Commands=PUB, Closed=DENY]
    groupPerms: [foreign-push=SUB, foreign-send=SUB]
    mqttTopicPerms: [devices/+/commands=PUB]
"""
RIGHT, WRONG = ("device-account", "12345678"), ("device-account", "87654321")

pytestmark = pytest.mark.interop
has_cpp = pytest.mark.skipif(
    importlib.util.find_spec("rocketmq") is None, reason="the package rocketmq==0.4.4 is not installed"
)
has_ons = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE_MODULES / "ali-ons").is_dir(), reason="ali-ons is not installed"
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway whose broker carries out what accounts may do."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    accounts = data / "config" / "plain_acl.yml"
    accounts.parent.mkdir(parents=True)
    accounts.touch(0o600)
    accounts.write_text(FILE)
    with GatewayProcess(data, "broker.acl_enabled=true") as running:
        with SyncClient(operator(running)) as client:
            for topic in ("Open", "Sent", "Commands", "Closed"):
                SyncAdmin(client).create_topic(topic, queues=2)
        yield running


def operator(gateway: GatewayProcess) -> ClientSettings:
    return ClientSettings(registries=(gateway.registry,), access_key="operator", secret_key="abcdefgh")


@pytest.fixture
def cpp(guarded: GatewayProcess, tmp_path: Path) -> Iterator[PipedClient]:
    with cpp_process(guarded.registry, tmp_path) as client:
        yield client


@pytest.fixture
def ons(guarded: GatewayProcess, tmp_path: Path) -> Iterator[PipedClient]:
    with PipedClient(
        ["node", str(HERE / "node" / "ali_ons_client.js"), guarded.registry],
        directory=tmp_path,
        environment={**os.environ, "HOME": str(tmp_path), "NODE_PATH": str(NODE_MODULES)},
    ) as client:
        yield client


def ons_keys(keys: tuple[str, str]) -> dict[str, str]:
    return {"accessKeyId": keys[0], "accessKeySecret": keys[1]}


def messages(topic: str, *bodies: str) -> list[dict[str, Any]]:
    return [{"topic": topic, "body": body, "tags": "t"} for body in bodies]


def end_offsets(gateway: GatewayProcess, topic: str) -> int:
    with SyncClient(operator(gateway)) as client:
        return sum(offsets.end for offsets in SyncAdmin(client).offsets(topic).values())


def send_natively(gateway: GatewayProcess, topic: str, *bodies: str) -> None:
    with SyncClient(operator(gateway)) as client, SyncProducer(client) as producer:
        for body in bodies:
            producer.send(Message(topic, body.encode()))


def refused(gateway: GatewayProcess, reason: str) -> float:
    text = gateway.http("/metrics")[1]
    name = f'iotmq_broker_acl_refused_total{{reason="{reason}"}}'
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name)))


@has_cpp
def test_the_cpp_client_sends_with_the_right_keys_only(guarded: GatewayProcess, cpp: PipedClient) -> None:
    cpp.call("producer", group="right", keys=RIGHT)
    results = cpp.call("send", group="right", messages=messages("Sent", *(f"{n}" for n in range(10))))
    assert {result["status"] for result in results} == {0}
    before = refused(guarded, "signature")
    cpp.call("producer", group="wrong", keys=WRONG)
    with pytest.raises(ClientFailedError):
        cpp.call("send", group="wrong", messages=messages("Sent", "wrong"), connecting_s=1)
    assert refused(guarded, "signature") > before
    cpp.call("producer", group="unsigned")
    with pytest.raises(ClientFailedError):
        cpp.call("send", group="unsigned", messages=messages("Sent", "unsigned"), connecting_s=1)
    with pytest.raises(ClientFailedError):
        cpp.call("send", group="right", messages=messages("Closed", "closed"), connecting_s=1)


@has_cpp
def test_the_cpp_client_reaches_the_devices_it_may(guarded: GatewayProcess, cpp: PipedClient) -> None:
    def to(*topics: str) -> list[dict[str, Any]]:
        return [
            {"topic": "Commands", "body": "open", "properties": {"MQTT_TOPIC": topic}} for topic in topics
        ]

    cpp.call("producer", group="devices", keys=RIGHT)
    with MqttListener(guarded.mqtt_port, "devices/#") as device:
        before = refused(guarded, "permission")
        with pytest.raises(ClientFailedError):
            cpp.call("send", group="devices", messages=to("devices/7/reset"), connecting_s=1)
        with pytest.raises(ClientFailedError):
            cpp.call("send_batch", group="devices", messages=to("devices/7/commands", "devices/7/reset"))
        assert refused(guarded, "permission") > before
        cpp.call("send", group="devices", messages=to("devices/7/commands"))
        assert device.next() == ("devices/7/commands", b"open")
        cpp.call("send_batch", group="devices", messages=to("devices/8/commands", "devices/9/commands"))
        assert {device.next()[0] for _ in range(2)} == {"devices/8/commands", "devices/9/commands"}
        assert device.is_empty()


@has_cpp
def test_the_cpp_client_consumes_with_the_right_keys(guarded: GatewayProcess, cpp: PipedClient) -> None:
    cpp.call("push", group="foreign-push", topic="Open", keys=RIGHT, instance="cpp")
    names = [f"cpp-{number}" for number in range(10)]
    cpp.call("producer", group="foreign-send", keys=RIGHT)
    cpp.call("send", group="foreign-send", messages=messages("Open", *names))
    got = cpp.wait_for("message", len(names))
    assert sorted(line["body"] for line in got) == sorted(names)


@has_ons
def test_ali_ons_sends_with_the_right_keys(guarded: GatewayProcess, ons: PipedClient) -> None:
    ons.call("producer", group="right", keys=ons_keys(RIGHT))
    results = ons.call("send", group="right", messages=messages("Sent", *(f"{n}" for n in range(10))))
    assert {result["status"] for result in results} == {"SEND_OK"}
    before = refused(guarded, "permission")
    # It does not say why: it tries other brokers first, as it does for all errors of this code.
    with pytest.raises(ClientFailedError, match="still failed"):
        ons.call("send", group="right", messages=messages("Closed", "closed"))
    assert refused(guarded, "permission") > before


@has_ons
@pytest.mark.parametrize(("keys", "reason"), [(ons_keys(WRONG), "signature"), ({}, "unsigned")])
def test_ali_ons_cannot_send_with_other_keys(
    guarded: GatewayProcess, ons: PipedClient, keys: dict[str, str], reason: str
) -> None:
    """In a process of its own: all producers of one process share their keys there."""
    before = refused(guarded, reason)
    ons.call("producer", group="other", keys=keys)
    with pytest.raises(ClientFailedError, match="still failed"):
        ons.call("send", group="other", messages=messages("Sent", "other"))
    assert refused(guarded, reason) > before


@has_ons
def test_ali_ons_consumes_with_the_right_keys(guarded: GatewayProcess, ons: PipedClient) -> None:
    ons.call("push", group="foreign-push", topic="Open", keys=ons_keys(RIGHT))
    names = [f"ons-{number}" for number in range(10)]
    send_natively(guarded, "Open", *names)
    eventually(
        lambda: {line["body"] for line in ons.said("message")} >= set(names), "all have come", within_s=30
    )


@has_ons
def test_ali_ons_with_wrong_keys_gets_nothing(guarded: GatewayProcess, ons: PipedClient) -> None:
    before = refused(guarded, "signature")
    try:
        ons.call("push", group="foreign-push", topic="Open", keys=ons_keys(WRONG))
    except ClientFailedError as error:
        assert "signature" in str(error)  # noqa: PT017 - it may fail or go on trying
    eventually(lambda: refused(guarded, "signature") > before, "its requests are refused", within_s=30)
    assert ons.said("message") == []


def test_nothing_refused_was_stored(guarded: GatewayProcess) -> None:
    assert end_offsets(guarded, "Closed") == 0


@has_cpp
def test_the_cpp_client_signs_what_it_asks_a_registry(tmp_path: Path) -> None:
    accounts = tmp_path / "data" / "config" / "plain_acl.yml"
    accounts.parent.mkdir(parents=True)
    secret = tmp_path / "secret"
    for file, text in ((accounts, FILE), (secret, "abcdefgh")):
        file.touch(0o600)
        file.write_text(text)
    guarded = GatewayProcess(
        tmp_path / "data",
        "broker.acl_enabled=true",
        "registry.access=everything",
        f"registry.acl_file={accounts}",
        "broker.registry_access_key=operator",
        f'broker.registry_secret_key={{file = "{secret}"}}',
    )
    with guarded:
        with SyncClient(operator(guarded)) as client:
            SyncAdmin(client).create_topic("Sent", queues=2)
        for keys, is_let_in in ((WRONG, False), (RIGHT, True)):
            # The producers of one process share what they know of a topic.
            directory = tmp_path / keys[1]
            directory.mkdir()
            before = guarded.metric("iotmq_registry_refused_total")
            with cpp_process(guarded.registry, directory) as cpp:
                cpp.call("producer", group="signing", keys=keys)
                if is_let_in:
                    (result,) = cpp.call("send", group="signing", messages=messages("Sent", "x"))
                    assert result["status"] == 0
                else:
                    with pytest.raises(ClientFailedError):
                        cpp.call("send", group="signing", messages=messages("Sent", "x"), connecting_s=1)
            assert (guarded.metric("iotmq_registry_refused_total") == before) is is_let_in
