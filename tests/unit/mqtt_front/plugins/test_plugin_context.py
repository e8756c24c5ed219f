"""What plug-ins may use of the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from iotmq import limits
from iotmq.mqtt_front.plugins.context import PluginContext, PluginRefusedError
from iotmq.mqtt_front.plugins.light_session import LightSession

SESSIONS = {"c": LightSession("c", "u")}


def context(published: list[tuple[str, bytes, int, bool]]) -> PluginContext:
    return PluginContext(
        "P", object(), asyncio.get_running_loop(), SESSIONS, lambda *message: published.append(message)
    )


async def test_messages_are_published() -> None:
    published: list[tuple[str, bytes, int, bool]] = []
    it = context(published)
    await it.broadcast_message("a/b", b"x")
    await it.broadcast_message("a/b", b"x", 2)
    await it.retain_message("a/c", bytearray(b"y"), 1)
    assert published == [("a/b", b"x", 0, False), ("a/b", b"x", 2, False), ("a/c", b"y", 1, True)]
    assert it.logger.name == "iotmq.mqtt.plugins.P"
    assert it.get_session("c") is SESSIONS["c"]
    assert it.get_session("d") is None


@pytest.mark.parametrize(
    ("topic", "data", "qos"),
    [("a/#", b"", 0), ("", b"", 0), (None, b"", 0), ("a", "text", 0), ("a", b"", 3), ("a\0b", b"", 0)],
)
async def test_what_cannot_be_published_is_an_error(topic: Any, data: Any, qos: Any) -> None:
    published: list[tuple[str, bytes, int, bool]] = []
    with pytest.raises(PluginRefusedError):
        await context(published).broadcast_message(topic, data, qos)
    assert published == []


async def test_a_message_has_a_largest_size() -> None:
    published: list[tuple[str, bytes, int, bool]] = []
    largest = bytes(limits.MQTT_PLUGIN_MESSAGE_BYTES_MAX)
    await context(published).broadcast_message("a", largest)
    assert len(published) == 1
    with pytest.raises(PluginRefusedError, match="bytes"):
        await context(published).broadcast_message("a", largest + b"x")


async def test_what_a_gateway_does_not_have_is_named() -> None:
    it = context([])
    for name in ("sessions", "retained_messages", "subscriptions"):
        with pytest.raises(PluginRefusedError, match=name):
            getattr(it, name)
    with pytest.raises(PluginRefusedError, match="add_subscription"):
        await it.add_subscription("c", "a", 0)
