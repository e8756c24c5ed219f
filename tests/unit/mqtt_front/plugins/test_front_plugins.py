"""Messages of plug-ins come onto the loop of the front end, and devices to the plug-ins."""

from __future__ import annotations

import asyncio
import threading

import pytest
from eventually import until

from iotmq import limits
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt_front.plugins.context import PluginRefusedError
from iotmq.mqtt_front.plugins.front_plugins import _EACH_BYTES, PluginMessages


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
        messages.put("a", bytes(size - 1 - _EACH_BYTES), 0, True)
    with pytest.raises(PluginRefusedError):
        messages.put("a", b"", 0, True)
    await until(lambda: len(published) == count)
    messages.put("a", b"", 0, True)
    await until(lambda: len(published) == count + 1)


async def test_small_messages_count_what_holds_them() -> None:
    messages = PluginMessages(asyncio.get_running_loop(), lambda _: None)
    count = limits.MQTT_PLUGIN_MESSAGES_BYTES_MAX // (_EACH_BYTES + 1)
    for _ in range(count):
        messages.put("a", b"", 0, False)
    with pytest.raises(PluginRefusedError):
        messages.put("a", b"", 0, False)
    await until(lambda: [metric.value for metric in messages.metrics()] == [count])
    messages.put("a", b"", 0, False)
