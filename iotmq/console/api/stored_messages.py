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
# Of one answer. Brokers give as much at most, but bodies that are compressed may have a thousand times that.
BODIES_BYTES_MAX: Final = 8 * 1024 * 1024
_ENOUGH: Final = "the answer has enough payloads: ask for this message by itself"


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
    """The size of the whole payload; without a payload as it is stored, where it may be compressed."""
    problem: str = ""
    """Why there is no payload."""


class Shown:
    """The messages of one answer, which are shown one after the other."""

    def __init__(self, payload_bytes_max: int) -> None:
        """At most so many bytes of each payload are shown."""
        self._payload_bytes_max = payload_bytes_max
        self._left = BODIES_BYTES_MAX

    @property
    def is_full(self) -> bool:
        """Return whether those that are shown have taken enough: the next ones are without payloads."""
        return self._left <= 0

    def show(self, message: StoredMessage) -> ReadMessage:
        """Show a message."""
        shown = read_message(message, self._payload_bytes_max, has_payload=not self.is_full)
        self._left -= shown.payload_bytes
        return shown


def read_message(message: StoredMessage, payload_bytes_max: int, *, has_payload: bool = True) -> ReadMessage:
    """Show a message with at most so many bytes of its payload."""
    text: str | None = None
    encoded: str | None = None
    why = "" if has_payload else _ENOUGH
    try:
        body = message.body if has_payload else message.record.body
    except MessageFormatError as error:
        body, why = message.record.body, str(error)
    if not why:
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
