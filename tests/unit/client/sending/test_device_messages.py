"""Messages for devices: what their records have, and what devices cannot get."""

from __future__ import annotations

import pytest
from fake_broker import FakeBroker
from running_producer import running

from iotmq.client.sending.device_messages import device_message
from iotmq.errors import MessageRefusedError
from iotmq.limits import MQTT_TOPIC_BYTES_MAX
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import decode_record


async def test_a_message_to_a_device_has_all_that_a_device_is_told() -> None:
    broker = FakeBroker()
    broker.add_topic("commands", 1)
    async with running(broker) as producer:
        await producer.send_to_device("dev/7/set", b"21", qos=2, retain=True, expiry_s=1.5)
        result = await producer.send_to_device("dev/7/set", b"", qos=0)
    first, second = (decode_record(record) for record in broker.topics["commands"][0])
    properties = decode_properties(first.properties)
    del properties["UNIQ_KEY"]
    assert properties == {
        "KEYS": "dev/7/set",
        "MQTT_TOPIC": "dev/7/set",
        "MQTT_QOS": "2",
        "MQTT_RETAIN": "1",
        "MSG_TTL_MS": "1500",
    }
    assert decode_properties(second.properties) == {
        "KEYS": "dev/7/set",
        "MQTT_TOPIC": "dev/7/set",
        "MQTT_QOS": "0",
        "UNIQ_KEY": result.message_id,
    }


@pytest.mark.parametrize(
    "mqtt_topic", ["", "a/+/b", "a/#", "a\x00b", "\ud800", "x" * (MQTT_TOPIC_BYTES_MAX + 1)]
)
def test_what_is_no_topic_is_refused(mqtt_topic: str) -> None:
    with pytest.raises(MessageRefusedError, match="invalid MQTT topic"):
        device_message(mqtt_topic, b"", topic="commands", qos=1)


def test_limits_are_allowed_and_what_is_past_them_is_refused() -> None:
    assert device_message("x" * MQTT_TOPIC_BYTES_MAX, b"", topic="c", qos=1).ttl_ms == 0
    assert device_message("x", b"", topic="c", qos=1, expiry_s=2**32 - 1).ttl_ms == (2**32 - 1) * 1000
    assert device_message("x", b"", topic="c", qos=1, expiry_s=0.0001).ttl_ms == 1
    for expiry_s in (-1, 2**32):
        with pytest.raises(MessageRefusedError, match="expiry"):
            device_message("x", b"", topic="c", qos=1, expiry_s=expiry_s)
    for qos in (-1, 3):
        with pytest.raises(MessageRefusedError, match="QoS"):
            device_message("x", b"", topic="c", qos=qos)
