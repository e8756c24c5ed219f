"""Requests of native clients that are for devices: what a device needs to answer is put into the message.

A request is a message with REPLY_TO_CLIENT and CORRELATION_ID; with MQTT_TOPIC it reaches devices. It gets
the topic to answer on (MQTT_RESPONSE_TOPIC) and the correlation id (MQTT_CORRELATION_DATA), which MQTT 5 has
fields for. When the last level of its MQTT topic is `{reply}`, it also gets the token of the reply topic in
its place: the topic is all of a message that MQTT 3.1.1 shows besides the payload.
"""

from __future__ import annotations

from typing import Final

from iotmq import limits
from iotmq.broker.scheduled.delay_levels import without_properties
from iotmq.errors import RequestError
from iotmq.message.properties import (
    CORRELATION_ID,
    MQTT_CORRELATION_DATA,
    MQTT_RESPONSE_TOPIC,
    MQTT_TOPIC,
    REPLY_TO_CLIENT,
    encode_correlation_data,
    encode_properties,
)
from iotmq.message.records.record import property_value
from iotmq.mqtt.topics.reply import REPLY_PLACEHOLDER, REPLY_PREFIX, ReplyAddress, reply_token
from iotmq.remoting.codes import ResponseCode

# Properties without it are not those of a request.
HINT: Final = REPLY_TO_CLIENT.encode()

_TOPIC: Final = MQTT_TOPIC.encode()
_CORRELATION_ID: Final = CORRELATION_ID.encode()
_RESPONSE_TOPIC: Final = MQTT_RESPONSE_TOPIC.encode()
_CORRELATION_DATA: Final = MQTT_CORRELATION_DATA.encode()


def with_reply_topic(properties: bytes, *, broker: str) -> bytes:
    """The properties of a message that comes to this broker; those of anything but such a request unchanged.

    A response topic the sender has given stays. Raises RequestError (13) when they become too long.
    """
    if HINT not in properties:
        return properties
    topic = property_value(properties, _TOPIC)
    client_id = property_value(properties, HINT)
    correlation_id = property_value(properties, _CORRELATION_ID)
    if not topic or not client_id or not correlation_id:
        return properties
    try:
        token = reply_token(ReplyAddress(broker, client_id.decode(), correlation_id.decode()))
    except ValueError:
        # Nobody could answer it, devices or not.
        return properties
    added = {}
    if property_value(properties, _RESPONSE_TOPIC) is None:
        added[MQTT_RESPONSE_TOPIC] = REPLY_PREFIX + token
        if property_value(properties, _CORRELATION_DATA) is None:
            added[MQTT_CORRELATION_DATA] = encode_correlation_data(correlation_id)
    levels = topic.decode("utf-8", "surrogateescape").split("/")
    kept = properties
    if levels[-1] == REPLY_PLACEHOLDER:
        full = "/".join((*levels[:-1], token)).encode("utf-8", "surrogateescape")
        if len(full) > limits.MQTT_TOPIC_BYTES_MAX:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the MQTT topic of the request has {len(full)} bytes with the token in the place of "
                f"{REPLY_PLACEHOLDER}, more than {limits.MQTT_TOPIC_BYTES_MAX}",
            )
        kept = without_properties(properties, _TOPIC) + _TOPIC + b"\x01" + full + b"\x02"
    if added and not kept.endswith(b"\x02"):
        kept += b"\x02"
    whole = kept + encode_properties(added)
    if len(whole) > limits.PROPERTIES_BYTES_MAX:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the properties of a request to a device have {len(whole)} bytes with what it needs to answer, "
            f"more than {limits.PROPERTIES_BYTES_MAX}",
        )
    return whole
