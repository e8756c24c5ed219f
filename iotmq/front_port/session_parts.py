"""Split a session's changes among the brokers that have parts of it, and merge their answers.

A front end calls a light queue by the number it gave the broker and the broker's own id of the queue.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from iotmq import limits
from iotmq.front_port.session_link import SessionLink
from iotmq.ports.sessions import (
    QUEUE_ID_BITS,
    InFlight,
    OpenedSession,
    SessionProgress,
    SessionSubscription,
)

_ID_MASK: Final = (1 << QUEUE_ID_BITS) - 1
# Connections begin with the packet id 1; one that may not know all that are in use, far behind that.
_FAR_PACKET_ID: Final = 1 << 15
_FAR_PACKET_IDS: Final = 1 << 14
# Cursors, packet ids and positions in one request, of some 24 bytes at most: a quarter of a frame.
_PROGRESS_PLACES_MAX: Final = limits.FRAME_BYTES_MAX // 4 // 24
BROKERS_MAX: Final = 1 << (32 - QUEUE_ID_BITS)


def broker_number_of(queue_id: int) -> int:
    """Return which broker has a queue."""
    return queue_id >> QUEUE_ID_BITS


def broker_queue_id(queue_id: int) -> int:
    """Return the broker's number of a queue of the front end."""
    return queue_id & _ID_MASK


def own_queue_id(number: int, queue_id: int) -> int:
    """Return the front end's id of a queue of the broker with that number."""
    return number << QUEUE_ID_BITS | queue_id


def own_subscriptions(link: SessionLink, found: Iterable[SessionSubscription]) -> list[SessionSubscription]:
    """Translate a broker's subscriptions to the front end's queue ids."""
    return [replace(entry, queue_id=own_queue_id(link.number, entry.queue_id)) for entry in found]


def own_pushes(number: int, pushes: memoryview) -> memoryview | bytes:
    """Translate a run of pushes (place 4 | queue id 4) to the front end's queue ids."""
    if not number or not len(pushes) or len(pushes) % 8:
        return pushes
    # All ids at once.
    base = own_queue_id(number, 0).to_bytes(8, "big") * (len(pushes) // 8)
    own = int.from_bytes(pushes, "big") | int.from_bytes(base, "big")
    return own.to_bytes(len(pushes), "big")


def progress_pages(changes: Iterable[SessionProgress]) -> Iterator[list[SessionProgress]]:
    """Split changes among requests, whose number of sessions and size are bounded.

    A session may have ten thousand filters, all of which move when a broker comes back.
    """
    page: list[SessionProgress] = []
    size = 0
    for change in changes:
        own = (
            len(change.cursors) + len(change.received or ()) + len(change.in_flight or ()) + len(change.done)
        )
        if page and (len(page) == limits.SESSIONS_PER_REQUEST_MAX or size + own > _PROGRESS_PLACES_MAX):
            yield page
            page, size = [], 0
        page.append(change)
        size += own
    if page:
        yield page


class SharedSession:
    """A connected client, and the brokers that have its session."""

    __slots__ = ("_others", "client_id", "epoch", "fence", "home", "is_incomplete", "is_kept", "is_opening")

    def __init__(self, client_id: str, epoch: int, home: SessionLink, *, is_kept: bool) -> None:
        self.client_id = client_id
        self.is_kept = is_kept
        # The home's; what the front end calls the session by.
        self.epoch = epoch
        self.home = home
        # Epochs at the other brokers that have the session. None for none: where there is one broker, a
        # hundred thousand devices have no use for a dictionary each.
        self._others: dict[SessionLink, int] | None = None
        self.is_opening = True
        # Some broker does not know all of its filters.
        self.is_incomplete = False
        # Why the session was lost while it was being opened.
        self.fence: str | None = None

    @property
    def parts(self) -> dict[SessionLink, int]:
        """Epochs at the brokers that have the session, the home first; a copy."""
        return {self.home: self.epoch} if self._others is None else {self.home: self.epoch} | self._others

    def add_part(self, link: SessionLink, epoch: int) -> None:
        """Add a broker that has the session."""
        if self._others is None:
            self._others = {}
        self._others[link] = epoch

    def drop_part(self, link: SessionLink) -> None:
        """Forget a broker that is not the home."""
        if self._others is not None:
            self._others.pop(link, None)

    def merged(
        self,
        opened: Mapping[SessionLink, OpenedSession],
        added: Mapping[SessionLink, Sequence[SessionSubscription]],
        *,
        are_all_known: bool,
    ) -> OpenedSession:
        """Merge the brokers' answers to the opening, and to filters that they lacked, into one.

        Not `are_all_known`: there may be a broker that nobody has named yet.
        """
        subscriptions: list[SessionSubscription] = []
        in_flight: list[InFlight] = []
        done: list[tuple[int, int]] = []
        for link, part in opened.items():
            number = link.number
            subscriptions += own_subscriptions(link, [*part.subscriptions, *added.get(link, ())])
            in_flight += [
                replace(flight, queue_id=own_queue_id(number, flight.queue_id)) for flight in part.in_flight
            ]
            done += [(own_queue_id(number, queue_id), position) for queue_id, position in part.done]
        is_present = any(part.is_present for part in opened.values())
        has_unknown = self.is_incomplete or (is_present and not are_all_known)
        return replace(
            opened[self.home],
            epoch=self.epoch,
            is_present=is_present,
            subscriptions=subscriptions,
            in_flight=in_flight,
            done=done,
            # Those that a broker knows which is away are not known here: they are most likely small.
            packet_ids_from=_FAR_PACKET_ID + random.randrange(_FAR_PACKET_IDS) if has_unknown else 0,
        )

    def parts_of(self, change: SessionProgress) -> Iterable[tuple[SessionLink, SessionProgress]]:
        """Split a change into the parts each broker has to know."""
        for link, epoch in self.parts.items():
            number = link.number
            cursors = [
                (queue_id & _ID_MASK, cursor, sent)
                for queue_id, cursor, sent in change.cursors
                if queue_id >> QUEUE_ID_BITS == number
            ]
            in_flight = change.in_flight
            if in_flight is not None:
                in_flight = [
                    replace(flight, queue_id=flight.queue_id & _ID_MASK)
                    for flight in in_flight
                    if flight.queue_id >> QUEUE_ID_BITS == number
                ]
            done = [
                (queue_id & _ID_MASK, position)
                for queue_id, position in change.done
                if queue_id >> QUEUE_ID_BITS == number
            ]
            received = change.received if link is self.home else None
            if cursors or received is not None or in_flight is not None:
                yield (
                    link,
                    replace(
                        change,
                        epoch=epoch,
                        cursors=cursors,
                        received=received,
                        in_flight=in_flight,
                        done=done,
                    ),
                )
