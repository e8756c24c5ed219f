"""ali-ons 3.12 (npm), the Node.js client of the native protocol, as published: producer and push consumer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.publish
import pytest
from gateway_process import ROOT, GatewayProcess
from log_reader import StoredMessage, read_topic
from piped_client import ClientFailedError, PipedClient

from iotmq.client import ClientSettings, Message, SyncAdmin, SyncClient, SyncProducer

MODULES = ROOT / "build" / "interop" / "node" / "node_modules"
SCRIPT = Path(__file__).parent / "node" / "ali_ons_client.js"

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed"),
    pytest.mark.skipif(
        not (MODULES / "ali-ons").is_dir(), reason="ali-ons is not installed (tools/setup.sh dev, with npm)"
    ),
]


@pytest.fixture
def ons(gateway: GatewayProcess, tmp_path: Path) -> Iterator[PipedClient]:
    environment = {**os.environ, "HOME": str(tmp_path), "NODE_PATH": str(MODULES)}
    with PipedClient(
        ["node", str(SCRIPT), gateway.registry], directory=tmp_path, environment=environment
    ) as client:
        yield client


def bodies(lines: list[dict[str, Any]]) -> list[str]:
    return [line["body"] for line in lines]


def make_topic(gateway: GatewayProcess, topic: str) -> None:
    """Unlike the other clients it makes no topics."""
    with SyncClient(ClientSettings(registries=(gateway.registry,))) as client:
        SyncAdmin(client).create_topic(topic, queues=4)


def send_natively(gateway: GatewayProcess, topic: str, *sent: tuple[str, str]) -> None:
    with (
        SyncClient(ClientSettings(registries=(gateway.registry,))) as client,
        SyncProducer(client) as producer,
    ):
        for body, tag in sent:
            producer.send(Message(topic, body.encode(), tags=tag))


def stored(gateway: GatewayProcess, topic: str) -> dict[str, StoredMessage]:
    found = [each for queue in read_topic(gateway.registry, topic).values() for each in queue]
    return {each.body.decode("utf-8", "replace"): each for each in found}


def messages(topic: str, *bodies: str, **words: Any) -> list[dict[str, Any]]:
    return [{"topic": topic, "body": body, **words} for body in bodies]


def test_sends_are_in_the_log_with_all_they_carry(gateway: GatewayProcess, ons: PipedClient) -> None:
    make_topic(gateway, "OnsSend")
    names = [f"message-{number}" for number in range(20)]
    ons.call("producer", group="ons-send")
    sent = messages("OnsSend", *names, tags="red", keys=["k1", "k2"], properties={"colour": "blue"})
    results = ons.call("send", group="ons-send", messages=sent)
    assert {result["status"] for result in results} == {"SEND_OK"}
    found = stored(gateway, "OnsSend")
    assert set(found) == set(names)
    for name, result in zip(names, results, strict=True):
        each = found[name]
        assert (each.queue_id, each.offset) == (int(result["queue_id"]), result["offset"])
        # What it calls the message's id ends in the position in the log.
        assert int(result["id"][16:], 16) == each.position
        assert (each.properties["TAGS"], each.properties["KEYS"]) == ("red", "k1 k2")
        assert each.properties["colour"] == "blue"


def test_signed_requests_are_taken(gateway: GatewayProcess, ons: PipedClient) -> None:
    """With keys it signs every request; a broker without access control has to let the fields be."""
    make_topic(gateway, "OnsSigned")
    keys = {"accessKeyId": "id", "accessKeySecret": "secret"}
    ons.call("producer", group="ons-signed", keys=keys)
    ons.call("send", group="ons-signed", messages=messages("OnsSigned", "signed"))
    assert set(stored(gateway, "OnsSigned")) == {"signed"}


def test_an_unknown_topic_is_an_error_in_the_client(ons: PipedClient) -> None:
    ons.call("producer", group="ons-unknown")
    with pytest.raises(ClientFailedError, match="NoSuchTopic"):
        ons.call("send", group="ons-unknown", messages=messages("NoSuchTopic", "body"))


def test_the_push_consumer_gets_what_the_producer_sent(gateway: GatewayProcess, ons: PipedClient) -> None:
    """A body over 4 KiB travels compressed."""
    make_topic(gateway, "OnsPush")
    names = [*(f"message-{number}" for number in range(20)), "large;" * 4_000]
    ons.call("producer", group="ons-push-producer")
    ons.call("push", group="ons-push", topic="OnsPush")
    ons.call("send", group="ons-push-producer", messages=messages("OnsPush", *names, tags="t"))
    got = ons.wait_for("message", len(names))
    assert sorted(bodies(got)) == sorted(names)
    assert {line["tags"] for line in got} == {"t"}


def test_the_push_consumer_gets_native_messages_and_only_its_tags(
    gateway: GatewayProcess, ons: PipedClient
) -> None:
    make_topic(gateway, "OnsTags")
    ons.call("push", group="ons-tags", topic="OnsTags", expression="red || blue")
    send_natively(
        gateway, "OnsTags", *((f"{tag}-{n}", tag) for n in range(10) for tag in ("red", "green", "blue"))
    )
    got = ons.wait_for("message", 20)
    assert sorted(bodies(got)) == sorted(f"{tag}-{n}" for n in range(10) for tag in ("red", "blue"))


def test_the_push_consumer_gets_what_devices_publish(gateway: GatewayProcess, ons: PipedClient) -> None:
    ons.call("push", group="ons-devices", topic="mqtt")
    paho.mqtt.publish.multiple(
        [("devices/9/telemetry", f"t{number}", 1, False) for number in range(25)],
        hostname="127.0.0.1", port=gateway.mqtt_port, client_id="ons-device",
    )  # fmt: skip
    got = ons.wait_for("message", 25)
    assert bodies(got) == [f"t{number}" for number in range(25)]
    assert {line["properties"]["MQTT_TOPIC"] for line in got} == {"devices/9/telemetry"}


def test_a_failed_message_comes_back(gateway: GatewayProcess, ons: PipedClient) -> None:
    send_natively(gateway, "OnsRetry", ("good", "t"))
    ons.call("push", group="ons-retry", topic="OnsRetry", fail_first=1)
    got = ons.wait_for("message", 2)
    assert [(line["is_failing"], line["reconsume_times"], line["topic"]) for line in got] == [
        (True, 0, "OnsRetry"),
        (False, 1, "OnsRetry"),
    ]


def test_a_delayed_message_comes_later(gateway: GatewayProcess, ons: PipedClient) -> None:
    """Level 1 is a second here; the log has the message once it is due."""
    make_topic(gateway, "OnsDelay")
    ons.call("producer", group="ons-delay-producer")
    ons.call("push", group="ons-delay", topic="OnsDelay")
    sent = messages("OnsDelay", "late", delay_level=1)
    ons.call("send", group="ons-delay-producer", messages=sent)
    assert stored(gateway, "OnsDelay") == {}
    (late,) = ons.wait_for("message", 1)
    assert (late["topic"], late["body"]) == ("OnsDelay", "late")


def test_a_broadcast_consumer_gets_everything(gateway: GatewayProcess, ons: PipedClient) -> None:
    make_topic(gateway, "OnsBroadcast")
    for group in ("ons-broadcast-1", "ons-broadcast-2"):
        ons.call("push", group=group, topic="OnsBroadcast", broadcast=True)
    send_natively(gateway, "OnsBroadcast", *((f"m{number}", "t") for number in range(10)))
    for group in ("ons-broadcast-1", "ons-broadcast-2"):
        got = ons.wait_for("message", 10, consumer=group)
        assert sorted(bodies(got)) == sorted(f"m{number}" for number in range(10))


def test_a_group_goes_on_where_it_stopped(gateway: GatewayProcess, ons: PipedClient, tmp_path: Path) -> None:
    send_natively(gateway, "OnsAgain", *((f"first-{number}", "t") for number in range(8)))
    ons.call("push", group="ons-again", topic="OnsAgain")
    ons.wait_for("message", 8)
    ons.call("close", group="ons-again")
    environment = {**os.environ, "HOME": str(tmp_path), "NODE_PATH": str(MODULES)}
    with PipedClient(
        ["node", str(SCRIPT), gateway.registry], directory=tmp_path / "again", environment=environment
    ) as again:
        again.call("push", group="ons-again", topic="OnsAgain")
        send_natively(gateway, "OnsAgain", ("last", "t"))
        again.wait_for("message", 1, body="last")
        assert bodies(again.said("message")) == ["last"]
