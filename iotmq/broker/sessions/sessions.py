"""Answer what front ends ask about sessions: open and close them, subscribe, report progress, read queues.

The stored part of sessions is in `session_store.projection`. Which front end owns which client is in
`ownership`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from typing_extensions import Buffer

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.session_store.channel import SessionChannel
from iotmq.broker.session_store.log import SessionLog, refusal_of
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.session_store.queue_reader import LightQueueReader
from iotmq.broker.session_store.records import Subscribe, Unsubscribe
from iotmq.broker.session_store.sessions import StoredSession
from iotmq.broker.session_store.shares import is_share
from iotmq.broker.sessions.attachments import Owner
from iotmq.broker.sessions.exclusives import Exclusives
from iotmq.broker.sessions.front_ends import FrontEnds, FrontEndView
from iotmq.broker.sessions.limits import SessionLimits
from iotmq.broker.sessions.ownership import Ownership
from iotmq.broker.sessions.refusals import LOST, NOT_READY, unreadable
from iotmq.broker.sessions.translation import progress_records
from iotmq.broker.shares.shares import Shares
from iotmq.errors import StoreError
from iotmq.metrics import Metric, samples
from iotmq.mqtt.topics.topics import wildcard_shape
from iotmq.ports.sessions import (
    ClientCounts,
    CloseRequest,
    ExclusiveClaim,
    OpenedSession,
    OpenRequest,
    QueueRead,
    QueueRecords,
    Refused,
    SessionProgress,
    SessionReceiver,
    SessionSubscription,
    ShareJoin,
    ShareOutlet,
    ShareReport,
    SubscribeRequest,
    UnsubscribeRequest,
    Will,
)
from iotmq.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)


class Sessions:
    """The sessions of one broker, durable or not. On the loop's thread.

    `publish` stores, or delivers, a will.
    """

    def __init__(
        self,
        parts: BrokerParts,
        projection: SessionProjection,
        reader: LightQueueReader,
        *,
        publish: Callable[[Will], None],
    ) -> None:
        self.projection = projection
        self._reader = reader
        self._counters = parts.statistics.counters
        self._log = SessionLog(parts.writer, parts.clock, host=parts.host)
        self.front_ends = FrontEnds()
        self.owners = Ownership(
            parts, projection, self._log, publish=publish, left=self._left, refused=self._refused
        )
        self.limits = SessionLimits(
            parts.settings.session_limits, projection, reader, parts.store, self._log, parts.clock
        )
        self.shares = Shares(parts, projection, reader, self._log, front_end_of=self.owners.front_end_of)
        self.exclusives = Exclusives(
            projection,
            self._log,
            parts.clock,
            count_max=parts.settings.exclusive_subscriptions_max,
            is_connected=self.owners.__contains__,
        )
        # So that a database that refuses is in the log once.
        self._has_failed = False
        self.fenced_total = 0
        # New shapes of filters that wait for the log, and those that were refused.
        self._coming_shapes = 0
        self.refused_shapes_total = 0

    def start(self) -> None:
        """Count the time that front ends have to come back from now on; before the first request.

        Until then the log was followed: what it says of owners was so at another master, or in a former life.
        """
        self.owners.start()
        self.shares.start()
        self.exclusives.start()

    # Front ends

    def open_channel(self, name: str, receiver: SessionReceiver, shares: ShareOutlet) -> SessionChannel:
        """Open a channel for a front end that has no sessions here yet."""

        def deliver(records: Buffer, pushes: bytes) -> None:
            try:
                receiver.deliver_queued(records, pushes)
            except Exception:
                # Sessions that were up to date would go on behind it.
                receiver.missed(_pushed_queue_ids(pushes))
                raise

        light = self.projection.queues.open_channel(deliver)
        channel = SessionChannel(name, receiver, light, shares)
        self.front_ends.add(channel)
        return channel

    def close_channel(self, channel: SessionChannel) -> None:
        """Close the channel of a front end; its clients count as gone unless it is soon back."""
        channel.is_open = False
        self.front_ends.remove(channel)
        self.projection.queues.close_channel(channel.light)
        self.shares.channel_closed(channel)
        self.owners.channel_closed(channel)

    def count_clients(self, counts: Iterable[ClientCounts]) -> None:
        """Count what a front end has counted."""
        for each in counts:
            self._counters.count_clients(*each)

    def queues_of(self, client_id: str) -> list[tuple[str, int]]:
        """Return (filter, queue id) for each filter of a durable session."""
        session = self.projection.session(client_id)
        if session is None:
            return []
        return [(name, subscription.queue_id) for name, subscription in session.subscriptions.items()]

    # Sessions (ports.sessions)

    def open_session(
        self, channel: SessionChannel, wanted: OpenRequest, done: Callable[[OpenedSession | Refused], None]
    ) -> None:
        """Take a session over; another front end that has it has some time to give it up."""

        def opened(outcome: OpenedSession | Refused) -> None:
            if wanted.expiry_s and not isinstance(outcome, Refused):
                self.limits.opened(wanted.client_id)
            done(outcome)

        self.owners.open(channel, wanted, opened)

    def close_session(self, channel: SessionChannel, gone: CloseRequest) -> None:
        """Close the session of a client that has gone; of one that is closed, drop the will that waits."""
        owner = self.owners.owned_by(channel, gone.client_id, gone.epoch)
        if owner is not None:
            self.owners.close(owner, gone)
        elif gone.drops_will and gone.client_id not in self.owners:
            self.owners.drop_will(gone.client_id, gone.epoch)
        else:
            self.fenced_total += 1

    def subscribe(
        self,
        channel: SessionChannel,
        wanted: SubscribeRequest,
        done: Callable[[list[SessionSubscription] | Refused], None],
    ) -> None:
        """Add filters to a durable session."""
        client_id, epoch = wanted.client_id, wanted.epoch
        if self.owners.owned_by(channel, client_id, epoch) is None:
            done(LOST)
            return
        filters = [name for name, _ in wanted.subscriptions]
        new_shapes = self._new_shapes(filters)
        refused = self.shares.check(filters) or self._check_shapes(new_shapes)
        if refused is not None:
            done(refused)
            return
        self._coming_shapes += new_shapes

        def logged(position: int | Refused) -> None:
            self._coming_shapes -= new_shapes
            try:
                found = position if isinstance(position, Refused) else self._subscribed(channel, wanted)
            except StoreError as error:
                found = unreadable(error)
            done(found)

        self._log.write([Subscribe(client_id, epoch, wanted.subscriptions)], logged)

    def _new_shapes(self, filters: Iterable[str]) -> int:
        """Return how many shapes these filters have that no filter of a kept session has yet."""
        shapes = {wildcard_shape(name) for name in filters if not is_share(name)}
        known = self.projection.queues.filters
        return sum(shape is not None and not known.has_shape(shape) for shape in shapes)

    def _check_shapes(self, new_count: int) -> Refused | None:
        count = self.projection.queues.filters.shape_count + self._coming_shapes + new_count
        if not new_count or count <= limits.FILTER_SHAPES_MAX:
            return None
        self.refused_shapes_total += new_count
        return Refused(
            ResponseCode.NO_PERMISSION,
            f"filters of kept sessions have no more than {limits.FILTER_SHAPES_MAX} shapes of wildcards",
        )

    def _subscribed(
        self, channel: SessionChannel, wanted: SubscribeRequest
    ) -> list[SessionSubscription] | Refused:
        """Attach filters that are stored now, if the client and its front end are still there."""
        client_id = wanted.client_id
        session = self.projection.session(client_id)
        owner = self.owners.owned_by(channel, client_id, wanted.epoch)
        if session is None or session.epoch != wanted.epoch or not channel.is_open or owner is None:
            return LOST
        if not self.owners.attachments.is_attached(owner):
            return NOT_READY
        found = []
        for topic_filter, options in wanted.subscriptions:
            subscription = session.subscriptions.get(topic_filter)
            if subscription is None:
                return NOT_READY
            cursor, sent = self.projection.cursor(subscription.queue_id, client_id)
            found.append(SessionSubscription(topic_filter, options, subscription.queue_id, cursor, sent))
        self.owners.attachments.attach(
            owner, [entry.queue_id for entry in found if not is_share(entry.topic_filter)]
        )
        return found

    def unsubscribe(
        self,
        channel: SessionChannel,
        unwanted: UnsubscribeRequest,
        done: Callable[[Refused | None], None],
    ) -> None:
        """Take filters back."""
        client_id, epoch = unwanted.client_id, unwanted.epoch
        owner = self.owners.owned_by(channel, client_id, epoch)
        if owner is None:
            done(LOST)
            return
        try:
            session = self.projection.session(client_id)
        except StoreError as error:
            done(unreadable(error))
            return
        self.shares.leave(client_id, unwanted.filters)
        self.exclusives.release(client_id, unwanted.filters)
        if session is None:
            # A session that is not kept has nothing else here.
            done(None)
            return
        names = {name for name in unwanted.filters if not is_share(name)}
        known = names & session.subscriptions.keys()
        self.owners.attachments.detach(owner, [session.subscriptions[name].queue_id for name in known])

        def logged(result: int | Refused) -> None:
            # When the database is opened again everything is attached anew.
            with suppress(StoreError):
                if self.owners.get(client_id) is owner:
                    self._unsubscribed(client_id, owner, names)
            done(refusal_of(result))

        self._log.write([Unsubscribe(client_id, epoch, unwanted.filters)], logged)

    def _unsubscribed(self, client_id: str, owner: Owner, names: set[str]) -> None:
        """Attach what the log still has (nothing was stored), detach what a subscribe attached meanwhile."""
        session = self.projection.session(client_id)
        if session is None or session.epoch != owner.epoch or not self.owners.attachments.is_attached(owner):
            return
        kept = names & session.subscriptions.keys()
        self.owners.attachments.attach(owner, [session.subscriptions[name].queue_id for name in kept])
        others = map(self.projection.queues.id_of, names - kept)
        self.owners.attachments.detach(owner, [queue_id for queue_id in others if queue_id is not None])

    def progress(
        self,
        channel: SessionChannel,
        changes: Sequence[SessionProgress],
        done: Callable[[Refused | None], None],
    ) -> None:
        """Write how far sessions have come."""
        owners = [self.owners.owned_by(channel, change.client_id, change.epoch) for change in changes]
        heard = [(owner, change) for owner, change in zip(owners, changes, strict=True) if owner is not None]
        self.fenced_total += len(changes) - len(heard)
        if not heard:
            done(None)
            return
        if not all(self.owners.attachments.is_attached(owner) for owner, _ in heard):
            # The numbers of its queues may be those of others now.
            done(NOT_READY)
            return
        self._log.write_apart(
            [
                record
                for _, change in heard
                for record in progress_records(change, self.projection.queues.filter_of)
            ],
            done,
        )

    def claim_exclusive(
        self,
        channel: SessionChannel,
        wanted: ExclusiveClaim,
        done: Callable[[list[Refused | None]], None],
    ) -> None:
        """A client wants filters to itself, before it subscribes them; an outcome for each."""
        is_there = partial(self._is_owner, channel, wanted.client_id, wanted.epoch)
        if is_there():
            self.exclusives.claim(wanted.client_id, wanted.filters, is_there=is_there, done=done)
        else:
            done([LOST] * len(wanted.filters))

    def join_shares(
        self,
        channel: SessionChannel,
        joins: Sequence[ShareJoin],
        done: Callable[[list[Refused | None]], None],
    ) -> None:
        """Clients take part in shared subscriptions; an outcome for each."""
        outcomes: list[Refused | None] = [None] * len(joins)
        waiting = len(joins)

        def joined(place: int, outcome: Refused | None) -> None:
            nonlocal waiting
            outcomes[place] = outcome
            waiting -= 1
            if not waiting:
                done(outcomes)

        if not joins:
            done(outcomes)
        for place, wanted in enumerate(joins):
            self._join_share(channel, wanted, partial(joined, place))

    def _join_share(
        self, channel: SessionChannel, wanted: ShareJoin, done: Callable[[Refused | None], None]
    ) -> None:
        """A kept session has subscribed the filter before."""
        client_id, epoch = wanted.client_id, wanted.epoch
        owner = self.owners.owned_by(channel, client_id, epoch)
        if owner is None:
            done(LOST)
            return
        is_kept = owner.is_durable
        try:
            session = self.projection.session(client_id) if is_kept else None
        except StoreError as error:
            done(unreadable(error))
            return
        if is_kept and (session is None or wanted.topic_filter not in session.subscriptions):
            done(Refused(ResponseCode.QUERY_NOT_FOUND, "the session does not subscribe that filter"))
            return
        self.shares.join(
            channel,
            wanted,
            is_kept=is_kept,
            is_there=partial(self._is_owner, channel, client_id, epoch),
            done=done,
        )

    def report_shares(self, channel: SessionChannel, reports: Sequence[ShareReport]) -> Refused | None:
        """Take the acknowledgements of members of shared subscriptions."""
        return self.shares.report(channel, reports)

    def read_queue(self, wanted: QueueRead, done: Callable[[QueueRecords | Refused], None]) -> None:
        """Read records of a light queue: at once when they are in memory, without those that the log lost."""
        owner = self.owners.get(wanted.client_id)
        if owner is not None and not self.owners.attachments.is_attached(owner):
            done(NOT_READY)
            return

        def read(stretch: tuple[int, tuple[int, int] | None]) -> None:
            position, skip = stretch
            self._reader.read(msgspec.structs.replace(wanted, position=position), done, skip=skip)

        self._reader.finish(
            self.limits.stretch(wanted.client_id, wanted.queue_id, wanted.position),
            read,
            lambda error: done(Refused(error.code, str(error))),
        )

    # Operators

    def front_end_views(self) -> list[FrontEndView]:
        """List the connected front ends and how many clients each has."""
        return self.front_ends.views(self.owners.front_ends())

    @property
    def count(self) -> int:
        """Sessions that are kept."""
        return self.projection.count

    def stored(self, client_id: str) -> StoredSession | None:
        """Return a kept session, to look at and not to change."""
        return self.projection.session(client_id)

    def stored_after(self, client_id: str | None) -> Iterator[tuple[str, StoredSession]]:
        """Sessions that are kept in the order of their client ids, from behind `client_id` on."""
        return self.projection.sessions(after=client_id)

    def behind(self, client_id: str, queue_id: int) -> tuple[int, int]:
        """Return up to which position a session is done with a queue, and how many messages are left."""
        cursor, _ = self.projection.cursor(queue_id, client_id)
        return cursor, self.limits.waiting(client_id, queue_id)

    def is_wide(self, queue_id: int) -> bool:
        """Return whether the queue's filter matches so much that it is read from the log."""
        return self._reader.is_scanned(queue_id)

    def stop(self) -> None:
        """Stop the timers: nothing more is done by itself."""
        self.owners.stop()
        self.shares.stop()

    def expire(self) -> None:
        """Do what is due; called about once a second."""
        self.owners.act()
        self.shares.expire()
        try:
            self.exclusives.expire()
            self.owners.expire()
            self.limits.sweep()
            self.projection.tidy()
            self._has_failed = False
        except StoreError as error:
            # A full disk: what is due stays due.
            self._refused(error)

    def tidy(self) -> None:
        """Drop what no session needs any more; called about once a second before `start`."""
        try:
            self.projection.tidy()
        except StoreError as error:
            self._refused(error)

    def _refused(self, error: StoreError) -> None:
        if not self._has_failed:
            self._has_failed = True
            logger.warning("sessions wait for the key-value database: %s", error)

    def _left(self, client_id: str, is_durable: bool) -> None:
        """Free what a client has beside its session, which has an owner no more."""
        self.shares.leave(client_id)
        self.limits.closed(client_id)
        if not is_durable:
            self.exclusives.release(client_id)

    def _is_owner(self, channel: SessionChannel, client_id: str, epoch: int) -> bool:
        return self.owners.owned_by(channel, client_id, epoch) is not None

    def metrics(self) -> Iterable[Metric]:
        """Sessions, queues, and what happened to them."""
        queues = self.projection.queues
        yield from samples(
            ("sessions", "Durable sessions.", self.projection.count),
            ("connected_clients", "Clients connected through front ends.", len(self.owners)),
            ("light_queues", "Filters with durable subscribers.", len(queues)),
            ("light_queue_bytes", "Memory of light queues in bytes.", queues.memory_bytes),
            ("filter_shapes", "Shapes of wildcards in filters of kept sessions.", queues.filters.shape_count),
            ("light_queue_entries_total", "Records put into light queues.", queues.matched_total),
            ("session_records_total", "Changes of sessions stored.", self._log.records_total),
            ("session_takeovers_total", "Sessions taken from another owner.", self.owners.takeovers_total),
            ("sessions_expired_total", "Sessions that expired.", self.owners.expired_total),
            ("wills_total", "Wills published for vanished clients.", self.owners.wills_total),
            (
                "filter_shapes_refused_total",
                "New shapes of filters that kept sessions did not get.",
                self.refused_shapes_total,
            ),
            ("fenced_requests_total", "Requests of former owners of a session.", self.fenced_total),
            (
                "malformed_session_records_total",
                "Session records that cannot be read; the log has where.",
                self.projection.malformed_records,
            ),
            prefix="iotmq_broker_",
        )
        yield from self.shares.metrics()
        yield from self.exclusives.metrics()
        yield from self.limits.metrics()
        yield from self._reader.metrics()


def _pushed_queue_ids(pushes: bytes) -> list[int]:
    """Return the queues in a run of pushes (place 4 | queue id 4)."""
    return sorted({int.from_bytes(pushes[at : at + 4], "big") for at in range(4, len(pushes), 8)})
