"""What a front end says of how far a session came, as a record of the log."""

from __future__ import annotations

from collections.abc import Callable

from iotmq.broker.session_records import Flight, Progress
from iotmq.client.session_ports import NO_QUEUE_ID, SessionProgress


def progress_record(change: SessionProgress, filter_of: Callable[[int], str | None]) -> Progress:
    """With filters for queue ids; what is said of queues that are gone is left out."""
    cursors = [(filter_of(queue_id), cursor, sent) for queue_id, cursor, sent in change.cursors]
    done = [(filter_of(queue_id), position) for queue_id, position in change.done]
    flights: list[Flight] | None = None
    if change.in_flight is not None:
        named = [
            ("" if flight.queue_id == NO_QUEUE_ID else filter_of(flight.queue_id), flight)
            for flight in change.in_flight
        ]
        flights = [
            Flight(flight.packet_id, topic_filter, flight.position, flight.is_released)
            for topic_filter, flight in named
            if topic_filter is not None
        ]
    return Progress(
        change.client_id,
        change.epoch,
        [(topic_filter, cursor, sent) for topic_filter, cursor, sent in cursors if topic_filter is not None],
        change.received,
        flights,
        [(name, place) for name, place in done if name is not None],
    )
