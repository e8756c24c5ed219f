"""The latest message of an MQTT topic."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq.client.admin.devices.retained import RetainedAdmin
from iotmq.client.transport.message import StoredMessage
from iotmq.console.api.problems import NOT_FOUND, ProblemError
from iotmq.console.api.route import Call, route
from iotmq.console.api.routes.names import MqttTopicText
from iotmq.console.api.services import Services
from iotmq.console.api.stored_messages import PAYLOAD_BYTES_MAX, ReadMessage, read_message
from iotmq.errors import RouteNotFoundError
from iotmq.message.properties import MQTT_TOPIC

# Messages with the key of the topic that are looked at: where many topics share a key, its own may be older.
LOOKED_AT_MAX: Final = 64


class LatestArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One MQTT topic."""

    mqtt_topic: MqttTopicText
    """The MQTT topic, without wildcards."""
    payload_bytes_max: Annotated[int, Meta(ge=0, le=PAYLOAD_BYTES_MAX)] = PAYLOAD_BYTES_MAX
    """A longer payload is cut."""


class Latest(msgspec.Struct, frozen=True, kw_only=True):
    """The latest message of an MQTT topic."""

    message: ReadMessage
    is_retained: bool
    """Whether it is the retained message, which every new subscriber gets."""


async def show_latest(services: Services, call: Call[LatestArguments, None]) -> Latest:
    """Show the latest message of an MQTT topic that is stored: its retained one, or a later one."""
    each = call.arguments
    stored = await _last_stored(services, each.mqtt_topic)
    page = await RetainedAdmin(await services.client()).page(each.mqtt_topic, count=1)
    retained = page.messages[0] if page.messages else None
    known = [message for message in (stored, retained) if message is not None]
    found = max(known, key=lambda message: message.store_timestamp_ms, default=None)
    if found is None:
        raise ProblemError(NOT_FOUND, f"no message of {each.mqtt_topic[:200]} is known")
    is_retained = retained is not None and found.offset_message_id == retained.offset_message_id
    return Latest(message=read_message(found, each.payload_bytes_max), is_retained=is_retained)


async def _last_stored(services: Services, mqtt_topic: str) -> StoredMessage | None:
    place = (await services.publisher()).place_of(mqtt_topic)
    if place is None:
        # Each message may have another topic and key.
        return None
    views = (await services.client()).admin.messages
    try:
        messages = await views.by_key(place.topic, place.key, messages_max=LOOKED_AT_MAX)
    except RouteNotFoundError:
        return None
    name = place.properties[MQTT_TOPIC]
    return next((message for message in messages if message.properties.get(MQTT_TOPIC) == name), None)


ROUTES: Final = (route("GET", "/latest/{mqtt_topic...}", show_latest, tag="messages", problems=(NOT_FOUND,)),)
