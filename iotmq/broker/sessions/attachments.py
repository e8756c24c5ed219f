"""Keep the light queues of sessions attached to the channels of the front ends that own them.

A front end is pushed the records of the queues attached to its channel. When the database is opened again the
queues may have other numbers, a new generation of them: then all owners are attached anew, some in each turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from iotmq.broker.session_store.channel import SessionChannel
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.session_store.sessions import StoredSession
from iotmq.broker.session_store.shares import is_share
from iotmq.errors import StoreError
from iotmq.event_loop import LoopSlice
from iotmq.ports.sessions import Will
from iotmq.store.store import Store

# Sessions ended, attached again, or looked at after a start, in one turn.
PER_TURN: Final = 256
# In place of the epoch of a kept session that the log does not have yet.
OPENING: Final = -1


class Owner:
    """Say which front end has a client, and what is attached to the front end's channel for it."""

    __slots__ = ("channel", "epoch", "generation", "is_durable", "queue_ids", "will")

    def __init__(self, channel: SessionChannel, epoch: int, will: Will | None, *, is_durable: bool) -> None:
        self.channel = channel
        self.epoch = epoch
        self.will = will
        self.is_durable = is_durable
        # The light queues attached for it, in the order of its filters. Their numbers are those of one
        # generation of the queues; -1 when nothing was attached yet.
        self.queue_ids: tuple[int, ...] = ()
        self.generation = -1

    @property
    def is_granted(self) -> bool:
        """Return False until the log has that a kept session was opened."""
        return self.epoch != OPENING


class Attachments:
    """The queues that are attached for the owners of a broker's sessions. On the loop's thread."""

    def __init__(
        self,
        projection: SessionProjection,
        store: Store,
        owners: Mapping[str, Owner],
        *,
        refused: Callable[[StoreError], None],
    ) -> None:
        """`owners` by client id change meanwhile. `refused` is told when the database cannot be read."""
        self._projection = projection
        self._store = store
        self._owners = owners
        self._refused = refused
        # In which generation of the queues those of all owners are attached; None while that is under way.
        self._attached_generation: int | None = projection.queues.generation

    def is_attached(self, owner: Owner) -> bool:
        """Return False from when the queues were made again until the owner's are attached again."""
        return not owner.is_durable or owner.generation == self._projection.queues.generation

    def attach(self, owner: Owner, queue_ids: Sequence[int]) -> None:
        """Attach more queues for an owner; those of a former generation are forgotten."""
        if not self.is_attached(owner):
            owner.queue_ids = ()
            owner.generation = self._projection.queues.generation
        # Of thousands each would be looked for among thousands.
        known = set(owner.queue_ids)
        missing = [queue_id for queue_id in dict.fromkeys(queue_ids) if queue_id not in known]
        for queue_id in missing:
            self._projection.queues.attach(owner.channel.light, queue_id)
        owner.queue_ids += tuple(missing)

    def detach(self, owner: Owner, queue_ids: Sequence[int]) -> None:
        """Detach queues of an owner, as far as they are attached."""
        unwanted = set(queue_ids).intersection(owner.queue_ids)
        if self.is_attached(owner) and owner.channel.is_open:
            for queue_id in unwanted:
                self._projection.queues.detach(owner.channel.light, queue_id)
        owner.queue_ids = tuple(queue_id for queue_id in owner.queue_ids if queue_id not in unwanted)

    def follow_projection(self) -> None:
        """Attach all queues again after the database was reopened: they may have other numbers."""
        generation = self._projection.queues.generation
        is_level = self._projection.applied_position >= self._store.confirmed_position
        if self._attached_generation not in (generation, None) and is_level:
            self._attached_generation = None
            self._attach_again(generation, list(self._owners))

    def _attach_again(self, generation: int, client_ids: list[str]) -> None:
        """Attach the queues of some of these owners, and those of the others in the turns that follow."""
        if generation == self._projection.queues.generation:
            try:
                turn = LoopSlice(PER_TURN)
                while client_ids and turn.take():
                    self._attach_one_again(client_ids[-1])
                    client_ids.pop()
            except StoreError as error:
                self._refused(error)
                generation = -1
            else:
                if client_ids:
                    asyncio.get_running_loop().call_soon(self._attach_again, generation, client_ids)
                    return
        self._attached_generation = generation

    def _attach_one_again(self, client_id: str) -> None:
        owner = self._owners.get(client_id)
        if owner is None or not owner.is_durable or not owner.is_granted or self.is_attached(owner):
            return
        if not owner.channel.is_open:
            # It is looked at again when its front end is back and claims it.
            return
        stored = self._projection.session(client_id)
        known_ids = owner.queue_ids
        is_same = stored is not None and stored.epoch == owner.epoch and queue_ids_of(stored) == known_ids
        self.attach(owner, known_ids if is_same else ())
        if is_same:
            owner.channel.receiver.missed(known_ids)
        else:
            # The client comes anew and learns of them.
            owner.channel.receiver.fenced(client_id, owner.epoch, "its queues have changed")


def queue_ids_of(session: StoredSession) -> tuple[int, ...]:
    """Return the light queues of a session's own, in the order of its filters."""
    return tuple(
        subscription.queue_id
        for topic_filter, subscription in session.subscriptions.items()
        if not is_share(topic_filter)
    )
