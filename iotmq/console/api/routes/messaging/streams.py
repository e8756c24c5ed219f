"""Streams of server-sent events."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq.console.api.arguments import header
from iotmq.console.api.problems import TOO_MANY, invalid
from iotmq.console.api.route import Call, route
from iotmq.console.api.routes.names import MqttTopicText, check_filter
from iotmq.console.api.services import Services
from iotmq.console.api.stored_messages import PAYLOAD_BYTES_MAX
from iotmq.console.api.streams.message_reader import Wanted
from iotmq.console.api.streams.positions import EVENT_ID_CHARACTERS_MAX, decode_positions
from iotmq.console.server.messages import Answer

_EventId = Annotated[str, Meta(max_length=EVENT_ID_CHARACTERS_MAX)]


class StreamArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The messages of a stream."""

    filter: MqttTopicText
    """Messages whose MQTT topics match this filter, in which + and # may stand."""
    payload_bytes_max: Annotated[int, Meta(ge=0, le=PAYLOAD_BYTES_MAX)] = 65_536
    """Longer payloads are cut."""
    since: _EventId = ""
    """The id of an event: the stream begins behind it. Empty: with what is stored from now on."""
    last_event_id: Annotated[_EventId, header("Last-Event-ID")] = ""
    """As `since`, and wins over it: browsers send it when they come back."""


async def stream_messages(services: Services, call: Call[StreamArguments, None]) -> Answer:
    """Stream messages as they are stored, as server-sent events; a reader that comes back misses none."""
    each = call.arguments
    check_filter(each.filter)
    event_id = each.last_event_id or each.since
    try:
        positions = decode_positions(event_id) if event_id else {}
    except ValueError as error:
        parameter = "Last-Event-ID" if each.last_event_id else "since"
        raise invalid(str(error), parameter=parameter) from None
    wanted = Wanted(each.filter, each.payload_bytes_max)
    return await services.streams.messages(call.caller.name, wanted, positions)


ROUTES: Final = (
    route(
        "GET",
        "/stream/messages",
        stream_messages,
        tag="streams",
        answer_type="text/event-stream",
        problems=(TOO_MANY,),
    ),
)
