"""Sessions as front ends speak of them, by queue ids, and as the log and its projection do, by filters."""

from __future__ import annotations

from collections.abc import Callable

from iotmq.broker.session_records import Flight, Progress
from iotmq.broker.stored_sessions import StoredSession
from iotmq.client.session_ports import (
    NO_QUEUE_ID,
    InFlight,
    OpenedSession,
    SessionProgress,
    SessionSubscription,
)


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


def opened_session(
    epoch: int,
    session: StoredSession,
    cursor_of: Callable[[int], tuple[int, int]],
    *,
    is_present: bool,
) -> OpenedSession:
    """What a front end that has opened a session goes on with; `cursor_of` a queue id is (cursor, sent)."""
    queue_ids = {name: subscription.queue_id for name, subscription in session.subscriptions.items()}
    return OpenedSession(
        epoch,
        is_present,
        [
            SessionSubscription(name, subscription.options, queue_ids[name], *cursor_of(queue_ids[name]))
            for name, subscription in session.subscriptions.items()
        ],
        list(session.received),
        [
            InFlight(
                flight.packet_id,
                queue_ids[flight.topic_filter] if flight.topic_filter else NO_QUEUE_ID,
                flight.position,
                flight.is_released,
            )
            for flight in session.in_flight
            if not flight.topic_filter or flight.topic_filter in queue_ids
        ],
        [(queue_ids[name], position) for name, position in session.done if name in queue_ids],
    )
