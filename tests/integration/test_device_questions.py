"""Questions of a native client to devices at front ends in processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mqtt_site import MqttSite, SessionDevice, open_site

from iotmq.client import ClientSettings, IotmqClient, Message, Requester

pytestmark = pytest.mark.uvloop


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[MqttSite]:
    made = await open_site(tmp_path, "one", "two", is_remote=True)
    yield made
    await made.close()


@pytest.mark.parametrize("is_kept", [False, True])
async def test_a_device_may_answer_at_another_front_end_than_it_was_asked_at(
    site: MqttSite, is_kept: bool
) -> None:
    assert site.registry is not None
    settings = ClientSettings(registries=(f"127.0.0.1:{site.registry.port}",))
    device = SessionDevice("dev")
    await device.connect(site.fronts["one"], clean_session=not is_kept)
    await device.subscribe(("dev/ask/+", 1))
    async with IotmqClient(settings) as client, Requester(client) as requester:
        question = Message("T", b"how warm?", properties={"MQTT_TOPIC": "dev/ask/{reply}"})
        answer = asyncio.ensure_future(requester.request(question, timeout_ms=10_000))
        ((topic, body),) = await device.receives(1)
        assert body == b"how warm?"
        await device.connect(site.fronts["two"], clean_session=not is_kept)
        await device.publish("$reply/" + topic.rpartition("/")[2], b"21.5", qos=2)
        reply = await answer
    assert reply.body == b"21.5"
    assert reply.properties["MQTT_CLIENT_ID"] == "dev"
    assert site.number("iotmq_mqtt_replies_total") == 1
    assert site.number("iotmq_mqtt_dropped_replies_total") == 0
    await device.disconnect()
