"""Messages of plug-ins come onto the loop of the front end, and devices to the plug-ins."""

from __future__ import annotations

import asyncio
import threading

import pytest
from eventually import until

from iotmq import limits
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt_front.plugins.context import PluginRefusedError
from iotmq.mqtt_front.plugins.front_plugins import PluginMessages


async def test_messages_of_other_threads_are_published_in_order() -> None:
    published: list[Will] = []
    messages = PluginMessages(asyncio.get_running_loop(), published.append)
    thread = threading.Thread(
        target=lambda: [messages.put("a", str(number).encode(), 1, False) for number in range(500)]
    )
    thread.start()
    await until(lambda: len(published) == 500)
    thread.join()
    assert [int(message.payload) for message in published] == list(range(500))
    assert [metric.value for metric in messages.metrics()] == [500]


async def test_messages_wait_up_to_their_maximum() -> None:
    published: list[Will] = []
    messages = PluginMessages(asyncio.get_running_loop(), published.append)
    size = limits.MQTT_PLUGIN_MESSAGE_BYTES_MAX
    count = limits.MQTT_PLUGIN_MESSAGES_BYTES_MAX // size
    for _ in range(count):
        messages.put("a", bytes(size - 1), 0, True)
    with pytest.raises(PluginRefusedError):
        messages.put("a", b"", 0, True)
    await until(lambda: len(published) == count)
    messages.put("a", b"", 0, True)
    await until(lambda: len(published) == count + 1)
