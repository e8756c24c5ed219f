"""The compiled connection core, run the way its twin in `mqtt_oracle` is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqtt_oracle import Outcome

from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt.server.connection import CONNECTED, ServerConnection
from iotmq.mqtt.server.connection_settings import ConnectionSettings
from iotmq.mqtt.server.publish_sink import CollectingSink

PACKET_BYTES_MAX = 100_000


def new_connection(**settings: Any) -> tuple[ServerConnection, CollectingSink]:
    """A connection that takes packets of PACKET_BYTES_MAX, unless the settings say otherwise."""
    sink = CollectingSink()
    known = ConnectionSettings(**({"packet_bytes_max": PACKET_BYTES_MAX} | settings))
    return ServerConnection(known, sink, 0.0), sink


def feed(chunks: Sequence[bytes], **settings: Any) -> Outcome:
    """As its owner would: sessions open, and messages are durable, after each chunk."""
    connection, sink = new_connection(**settings)
    outcome = Outcome()
    acknowledged = 0
    for chunk in chunks:
        connection.receive_data(chunk, 0.0)
        outcome.chunks_taken += connection.close_reason is None
        while connection.has_events:
            events = connection.events_received()
            outcome.events += events
            if any(isinstance(event, Connect) for event in events):
                connection.open_session(session_present=False)
        for one in sink.published[acknowledged:]:
            if one[2] and connection.state == CONNECTED:
                connection.acknowledge_published(one[4])
        acknowledged = len(sink.published)
    outcome.published = sink.published
    outcome.output = connection.data_to_send()
    outcome.close_reason = connection.close_reason
    return outcome
