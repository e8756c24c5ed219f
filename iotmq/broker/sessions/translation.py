"""Sessions as front ends speak of them, by queue ids, and as the log and its projection do, by filters."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from iotmq.broker.session_store.records import DoneOfFilter, Flight, Progress
from iotmq.broker.session_store.sessions import StoredSession
from iotmq.limits import SESSION_NAMES_PER_CHANGE_MAX
from iotmq.ports.sessions import (
    NO_QUEUE_ID,
    InFlight,
    OpenedSession,
    SessionProgress,
    SessionSubscription,
)


def progress_records(change: SessionProgress, filter_of: Callable[[int], str | None]) -> list[Progress]:
    """With filters for queue ids, in as many changes as fit a record each; of gone queues nothing."""
    named = [(filter_of(queue_id), cursor, sent) for queue_id, cursor, sent in change.cursors]
    cursors = [(name, cursor, sent) for name, cursor, sent in named if name is not None]
    positions: dict[str, list[int]] = {}
    for queue_id, position in change.done:
        name = filter_of(queue_id)
        if name is not None:
            positions.setdefault(name, []).append(position)
    flights: list[Flight] | None = None
    if change.in_flight is not None:
        flights = []
        for flight in change.in_flight:
            name = "" if flight.queue_id == NO_QUEUE_ID else filter_of(flight.queue_id)
            if name is not None:
                flights.append(Flight(flight.packet_id, name, flight.position, flight.is_released))
    done: list[DoneOfFilter] = list(positions.items())
    whole = Progress(change.client_id, change.epoch, cursors, change.received, flights, done)
    if len(cursors) + len(flights or ()) + len(done) <= SESSION_NAMES_PER_CHANGE_MAX:
        return [whole]
    return _split(whole)


def _split(whole: Progress) -> list[Progress]:
    """The same in changes that fit a record each, however long filters are; they apply in this order."""
    more = Progress(whole.client_id, whole.epoch, [], is_more=True)
    in_flight = whole.in_flight or []
    step = SESSION_NAMES_PER_CHANGE_MAX
    return [
        replace(whole, cursors=[], in_flight=None if whole.in_flight is None else [], done=[]),
        *(replace(more, done=whole.done[at : at + step]) for at in range(0, len(whole.done), step)),
        *(replace(more, in_flight=in_flight[at : at + step]) for at in range(0, len(in_flight), step)),
        *(replace(more, cursors=whole.cursors[at : at + step]) for at in range(0, len(whole.cursors), step)),
    ]


def opened_session(
    epoch: int, session: StoredSession, subscriptions: list[SessionSubscription], *, is_present: bool
) -> OpenedSession:
    """Make the answer for a front end that has opened a session."""
    queue_ids = {found.topic_filter: found.queue_id for found in subscriptions}
    return OpenedSession(
        epoch,
        is_present,
        subscriptions,
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
        [
            (queue_ids[name], position)
            for name, found in session.done
            if name in queue_ids
            for position in ([found] if isinstance(found, int) else found)
        ],
    )
