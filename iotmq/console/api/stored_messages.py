"""Messages as the API shows them."""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from iotmq.client.transport.message import StoredMessage
from iotmq.message.bodies import text_beginning
from iotmq.message.errors import MessageFormatError
from iotmq.message.properties import MQTT_TOPIC

PAYLOAD_BYTES_MAX: Final = 1024 * 1024


class ReadMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message as it is stored."""

    message_id: str
    """The id of its sender."""
    offset_message_id: str
    """The id of its place."""
    topic: str
    broker: str
    queue: int
    offset: int
    stored_ms: int
    """When the broker stored it, in milliseconds since 1970."""
    born_ms: int
    """When its sender made it."""
    mqtt_topic: str = ""
    keys: list[str] = []
    tags: str = ""
    properties: dict[str, str] = {}
    payload: str | None = None
    """The payload, where it is text in UTF-8."""
    payload_base64: str | None = None
    """The payload, where it is no such text."""
    payload_bytes: int
    """The size of the whole payload."""
    problem: str = ""
    """Why there is no payload."""


def read_message(message: StoredMessage, payload_bytes_max: int) -> ReadMessage:
    """Show a message with at most so many bytes of its payload."""
    text: str | None = None
    encoded: str | None = None
    why = ""
    try:
        body = message.body
    except MessageFormatError as error:
        body, why = message.record.body, str(error)
    else:
        try:
            text = text_beginning(body, payload_bytes_max)
        except UnicodeDecodeError:
            encoded = base64.b64encode(body[:payload_bytes_max]).decode()
    properties = message.properties
    return ReadMessage(
        message_id=message.message_id,
        offset_message_id=message.offset_message_id,
        topic=message.topic,
        broker=message.queue.broker_name,
        queue=message.queue.queue_id,
        offset=message.queue_offset,
        stored_ms=message.store_timestamp_ms,
        born_ms=message.record.born_timestamp_ms,
        mqtt_topic=properties.get(MQTT_TOPIC, ""),
        keys=message.keys,
        tags=message.tags,
        properties=properties,
        payload=text,
        payload_base64=encoded,
        payload_bytes=len(body),
        problem=why,
    )
