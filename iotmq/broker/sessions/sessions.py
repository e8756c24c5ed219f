"""Own sessions of clients: open, take over, close and expire them, also when a front end dies.

The stored part of sessions is in `session_store.projection`. Here is the part in memory: which front end owns
which client, which takeovers wait for the former owner, and what is due when.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

import msgspec
from typing_extensions import Buffer

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.session_store.channel import SessionChannel
from iotmq.broker.session_store.log import LoggedDone, SessionLog, log_refusal, refusal_of
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.session_store.queue_reader import LightQueueReader
from iotmq.broker.session_store.records import Close, End, Open, Subscribe, Unsubscribe
from iotmq.broker.session_store.sessions import StoredSession
from iotmq.broker.session_store.shares import is_share
from iotmq.broker.sessions.attachments import OPENING, PER_TURN, Attachments, Owner, queue_ids_of
from iotmq.broker.sessions.exclusives import Exclusives
from iotmq.broker.sessions.front_ends import FrontEnds, FrontEndView
from iotmq.broker.sessions.limits import SessionLimits
from iotmq.broker.sessions.translation import opened_session, progress_records
from iotmq.broker.sessions.wills import Wills
from iotmq.broker.shares.shares import Shares
from iotmq.errors import StoreError
from iotmq.event_loop import DueAction, DueActions, LoopSlice
from iotmq.metrics import Metric, samples
from iotmq.mqtt.topics.topics import wildcard_shape
from iotmq.ports.sessions import (
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

# How long a front end has to give a session up that another one wants.
FENCE_TIMEOUT_S: Final = 1.0
# A front end whose channel closes has so long to come back before its clients count as gone.
OWNER_GRACE_S: Final = 2.0
# The same after a start of the broker, when front ends come back by and by.
START_GRACE_S: Final = 10.0
# Filters of a session that is opened, in one step.
_OPENED_AT_ONCE: Final = 64
_NOT_READY: Final = Refused(
    ResponseCode.SERVICE_NOT_AVAILABLE,
    "sessions are behind the log, see the broker's log; kv/ may have met a full disk",
)
_LOST: Final = Refused(ResponseCode.SESSION_LOST, "the session belongs to somebody else now")


class _Request:
    """Hold an OpenRequest while another front end gives the session up."""

    __slots__ = ("channel", "done", "fence", "wanted")

    def __init__(
        self, channel: SessionChannel, wanted: OpenRequest, done: Callable[[OpenedSession | Refused], None]
    ) -> None:
        self.channel = channel
        self.wanted = wanted
        self.done = done
        # What is done when the owner has had its time; set while it has that.
        self.fence: DueAction | None = None


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
        clock = self._clock = parts.clock
        store = self._store = parts.store
        self._log = SessionLog(parts.writer, clock, host=parts.host)
        self._stored_once = parts.stored_once
        self._actions = DueActions(clock, refused=self._refused)
        self.limits = SessionLimits(
            parts.settings.session_limits, projection, reader, store, self._log, clock
        )
        self.wills = Wills(projection, self._log, self._actions, publish=publish)
        self.shares = Shares(parts, projection, reader, self._log, front_end_of=self.owner_of)
        self.front_ends = FrontEnds()
        self._owners: dict[str, Owner] = {}
        self.exclusives = Exclusives(
            projection,
            self._log,
            clock,
            count_max=parts.settings.exclusive_subscriptions_max,
            is_connected=self._owners.__contains__,
        )
        self._requests: dict[str, _Request] = {}
        # Epochs of sessions whose end is on its way into the log.
        self._ending: dict[str, int] = {}
        self._attachments = Attachments(projection, store, self._owners, refused=self._refused)
        # Epochs of sessions that are not kept count down from here.
        self._transient_epoch = OPENING
        self._started_s = clock.monotonic_s()
        # Sessions opened from here on had their owner in this life of the broker, as those that were claimed.
        self._start_position = store.appended_position
        self._claimed: set[str] = set()
        # Up to which client id sessions that had an owner at the start were looked at; None when all were.
        self._unclaimed_after: str | None = ""
        # So that a database that refuses is in the log once.
        self._has_failed = False
        self.takeovers_total = 0
        self.expired_total = 0
        self.fenced_total = 0
        # New shapes of filters that wait for the log, and those that were refused.
        self._coming_shapes = 0
        self.refused_shapes_total = 0

    def start(self) -> None:
        """Count the time that front ends have to come back from now on; before the first request.

        Until then the log was followed: what it says of owners was so at another master, or in a former life.
        """
        self._started_s = self._clock.monotonic_s()
        self._start_position = self._store.appended_position
        self._attached_generation = self.projection.queues.generation
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
        """Close the channel of a front end; its clients count as gone unless it is back in OWNER_GRACE_S."""
        channel.is_open = False
        self.front_ends.remove(channel)
        self.projection.queues.close_channel(channel.light)
        self.shares.channel_closed(channel)
        orphans = [client_id for client_id, owner in self._owners.items() if owner.channel is channel]
        for request in [request for request in self._requests.values() if request.channel is channel]:
            self._pop_request(request.wanted.client_id)
        if orphans:
            self._actions.do_later(OWNER_GRACE_S, partial(self._drop_orphans, channel, orphans))

    def claim(self, channel: SessionChannel, client_id: str, epoch: int, will: Will | None) -> bool:
        """Take back a session that a returning front end says it has; False when it has lost it."""
        stored = self._unended(client_id) if epoch >= 0 else None
        self.wills.release(client_id, epoch)
        owner = self._owners.get(client_id)
        if owner is not None and (owner.epoch != epoch or owner.channel.is_open):
            return owner.epoch == epoch and owner.channel is channel
        if epoch < 0:
            # When the broker was started again it knows nothing of sessions that are not kept.
            self._transient_epoch = min(self._transient_epoch, epoch)
            self._owners[client_id] = Owner(channel, epoch, will, is_durable=False)
            return True
        if stored is None or stored.epoch != epoch or stored.owner != channel.name:
            return False
        if owner is None and self._unclaimed_after is not None:
            self._claimed.add(client_id)
        owner = self._owners[client_id] = Owner(channel, epoch, will, is_durable=True)
        self._attachments.attach(owner, queue_ids_of(stored))
        return True

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
        """Take a session over; another front end that has it has FENCE_TIMEOUT_S to give it up."""
        request = _Request(channel, wanted, done)
        try:
            self._open(request)
        except StoreError as error:
            if self._requests.get(wanted.client_id) is request:
                self._pop_request(wanted.client_id)
            done(_unreadable(error))

    def _open(self, request: _Request) -> None:
        client_id, channel = request.wanted.client_id, request.channel
        former = self._pop_request(client_id)
        if former is not None:
            former.done(_LOST)
        owner = self._owners.get(client_id)
        if owner is None:
            self._grant(request)
            return
        self.takeovers_total += 1
        self._requests[client_id] = request
        if owner.channel is channel:
            # It knows what it does, and has seen to the will.
            self._close(client_id, expiry_s=None, drops_will=True)
            return
        request.fence = self._actions.do_later(FENCE_TIMEOUT_S, partial(self._take_over, request))
        if owner.channel.is_open:
            owner.channel.receiver.fenced(client_id, owner.epoch, "taken over")
        else:
            self._take_over(request)

    def subscribe(
        self,
        channel: SessionChannel,
        wanted: SubscribeRequest,
        done: Callable[[list[SessionSubscription] | Refused], None],
    ) -> None:
        """Add filters to a durable session."""
        client_id, epoch = wanted.client_id, wanted.epoch
        if not self._owns(channel, client_id, epoch):
            done(_LOST)
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
                found = _unreadable(error)
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
        owner = self._owners.get(client_id)
        if session is None or session.epoch != wanted.epoch or not channel.is_open or owner is None:
            return _LOST
        if not self._owns(channel, client_id, wanted.epoch):
            return _LOST
        if not self._attachments.is_attached(owner):
            return _NOT_READY
        found = []
        for topic_filter, options in wanted.subscriptions:
            subscription = session.subscriptions.get(topic_filter)
            if subscription is None:
                return _NOT_READY
            cursor, sent = self.projection.cursor(subscription.queue_id, client_id)
            found.append(SessionSubscription(topic_filter, options, subscription.queue_id, cursor, sent))
        self._attachments.attach(
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
        owner = self._owners.get(client_id)
        if owner is None or not self._owns(channel, client_id, epoch):
            done(_LOST)
            return
        try:
            session = self.projection.session(client_id)
        except StoreError as error:
            done(_unreadable(error))
            return
        self.shares.leave(client_id, unwanted.filters)
        self.exclusives.release(client_id, unwanted.filters)
        if session is None:
            # A session that is not kept has nothing else here.
            done(None)
            return
        names = {name for name in unwanted.filters if not is_share(name)}
        known = names & session.subscriptions.keys()
        self._attachments.detach(owner, [session.subscriptions[name].queue_id for name in known])

        def logged(result: int | Refused) -> None:
            # When the database is opened again everything is attached anew.
            with suppress(StoreError):
                if self._owners.get(client_id) is owner:
                    self._unsubscribed(client_id, owner, names)
            done(refusal_of(result))

        self._log.write([Unsubscribe(client_id, epoch, unwanted.filters)], logged)

    def _unsubscribed(self, client_id: str, owner: Owner, names: set[str]) -> None:
        """Attach what the log still has (nothing was stored), detach what a subscribe attached meanwhile."""
        session = self.projection.session(client_id)
        if session is None or session.epoch != owner.epoch or not self._attachments.is_attached(owner):
            return
        kept = names & session.subscriptions.keys()
        self._attachments.attach(owner, [session.subscriptions[name].queue_id for name in kept])
        others = map(self.projection.queues.id_of, names - kept)
        self._attachments.detach(owner, [queue_id for queue_id in others if queue_id is not None])

    def progress(
        self,
        channel: SessionChannel,
        changes: Sequence[SessionProgress],
        done: Callable[[Refused | None], None],
    ) -> None:
        """Write how far sessions have come."""
        heard = [change for change in changes if self._owns(channel, change.client_id, change.epoch)]
        self.fenced_total += len(changes) - len(heard)
        if not heard:
            done(None)
            return
        if not all(self._attachments.is_attached(self._owners[change.client_id]) for change in heard):
            # The numbers of its queues may be those of others now.
            done(_NOT_READY)
            return
        self._log.write_apart(
            [
                record
                for change in heard
                for record in progress_records(change, self.projection.queues.filter_of)
            ],
            done,
        )

    def close_session(self, channel: SessionChannel, gone: CloseRequest) -> None:
        """Close the session of a client that has gone."""
        if not self._owns(channel, gone.client_id, gone.epoch):
            self.fenced_total += 1
            return
        owner = self._owners[gone.client_id]

        def close() -> None:
            if self._owners.get(gone.client_id) is owner:
                self._close(gone.client_id, expiry_s=gone.expiry_s, drops_will=gone.drops_will)

        self._actions.do_surely(close)

    def claim_exclusive(
        self,
        channel: SessionChannel,
        wanted: ExclusiveClaim,
        done: Callable[[list[Refused | None]], None],
    ) -> None:
        """A client wants filters to itself, before it subscribes them; an outcome for each."""
        is_there = partial(self._owns, channel, wanted.client_id, wanted.epoch)
        if is_there():
            self.exclusives.claim(wanted.client_id, wanted.filters, is_there=is_there, done=done)
        else:
            done([_LOST] * len(wanted.filters))

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
        if not self._owns(channel, client_id, epoch):
            done(_LOST)
            return
        is_kept = self._owners[client_id].is_durable
        try:
            session = self.projection.session(client_id) if is_kept else None
        except StoreError as error:
            done(_unreadable(error))
            return
        if is_kept and (session is None or wanted.topic_filter not in session.subscriptions):
            done(Refused(ResponseCode.QUERY_NOT_FOUND, "the session does not subscribe that filter"))
            return
        self.shares.join(
            channel,
            wanted,
            is_kept=is_kept,
            is_there=lambda: self._owns(channel, client_id, epoch),
            done=done,
        )

    def report_shares(self, channel: SessionChannel, reports: Sequence[ShareReport]) -> Refused | None:
        """Take the acknowledgements of members of shared subscriptions."""
        return self.shares.report(channel, reports)

    def read_queue(self, wanted: QueueRead, done: Callable[[QueueRecords | Refused], None]) -> None:
        """Read records of a light queue: at once when they are in memory, without those that the log lost."""
        owner = self._owners.get(wanted.client_id)
        if owner is not None and not self._attachments.is_attached(owner):
            done(_NOT_READY)
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

    def owner_of(self, client_id: str) -> str | None:
        """Return the front end that a client is connected to."""
        owner = self._owners.get(client_id)
        return None if owner is None else owner.channel.name

    def front_end_views(self) -> list[FrontEndView]:
        """List the connected front ends and how many clients each has."""
        return self.front_ends.views(owner.channel.name for owner in self._owners.values())

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

    def kick(self, client_id: str, reason: str = "administrative action") -> bool:
        """Have the client disconnected; False when it is not connected."""
        owner = self._owners.get(client_id)
        if owner is None:
            return False
        if owner.channel.is_open:
            owner.channel.receiver.fenced(client_id, owner.epoch, reason)
        return True

    def purge(self, client_id: str, done: Callable[[Refused | None], None]) -> bool:
        """End a durable session, and disconnect its client; False when there is none."""
        stored = self.projection.session(client_id)
        if stored is None:
            return False
        self.kick(client_id)
        owner = self._owners.get(client_id)
        if owner is not None:
            self._attachments.detach(owner, owner.queue_ids)
        self.wills.session_ends(client_id)
        self._end(client_id, stored.epoch, lambda result: done(refusal_of(result)))
        return True

    def stop(self) -> None:
        """Stop the timers: nothing more is done by itself."""
        self._actions.stop()
        self.shares.stop()

    def expire(self) -> None:
        """Do what is due; called about once a second."""
        self._actions.run()
        self.shares.expire()
        try:
            self.exclusives.expire()
            self._look_after_sessions()
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

    def _look_after_sessions(self) -> None:
        self._attachments.follow_projection()
        for client_id, epoch in self.projection.due(self._clock.now_ms(), LoopSlice(PER_TURN)):
            if client_id not in self._owners and client_id not in self._ending:
                self.expired_total += 1
                self.wills.session_ends(client_id)
                self._end(client_id, epoch)
        is_settled = self._clock.monotonic_s() - self._started_s >= START_GRACE_S
        if self._unclaimed_after is not None and is_settled:
            self._close_unclaimed()
        self.limits.sweep()
        self.projection.tidy()

    def metrics(self) -> Iterable[Metric]:
        """Sessions, queues, and what happened to them."""
        queues = self.projection.queues
        yield from samples(
            ("sessions", "Durable sessions.", self.projection.count),
            ("connected_clients", "Clients connected through front ends.", len(self._owners)),
            ("light_queues", "Filters with durable subscribers.", len(queues)),
            ("light_queue_bytes", "Memory of light queues in bytes.", queues.memory_bytes),
            ("filter_shapes", "Shapes of wildcards in filters of kept sessions.", queues.filters.shape_count),
            ("light_queue_entries_total", "Records put into light queues.", queues.matched_total),
            ("session_records_total", "Changes of sessions stored.", self._log.records_total),
            ("session_takeovers_total", "Sessions taken from another owner.", self.takeovers_total),
            ("sessions_expired_total", "Sessions that expired.", self.expired_total),
            ("wills_total", "Wills published for vanished clients.", self.wills.sent_total),
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

    def _owns(self, channel: SessionChannel, client_id: str, epoch: int) -> bool:
        owner = self._owners.get(client_id)
        return owner is not None and owner.channel is channel and owner.epoch == epoch

    def _unended(self, client_id: str) -> StoredSession | None:
        """Return the stored session of a client, unless its end is on its way into the log."""
        stored = self.projection.session(client_id)
        return None if stored is None or self._ending.get(client_id) == stored.epoch else stored

    def _pop_request(self, client_id: str) -> _Request | None:
        """Remove and return the request that waits for a session."""
        request = self._requests.pop(client_id, None)
        if request is not None and request.fence is not None:
            self._actions.cancel(request.fence)
        return request

    def _take_over(self, request: _Request) -> None:
        """Close the session of an owner that has had its time, which grants the request."""
        wanted = request.wanted
        if self._requests.get(wanted.client_id) is request:
            owner = self._owners.get(wanted.client_id)
            if owner is not None:
                self._close(wanted.client_id, expiry_s=0 if wanted.is_clean else None, drops_will=False)

    def _grant(self, request: _Request) -> None:
        wanted, channel = request.wanted, request.channel
        client_id = wanted.client_id
        former = self.projection.session(client_id)
        stored = self._unended(client_id)
        # A session that is about to end does not go on, and another one begins [MQTT-3.1.2-6].
        is_clean = wanted.is_clean or (former is not None and stored is None)
        is_present = stored is not None and not wanted.is_clean
        if wanted.expiry_s != 0 and not is_present and not wanted.is_known:
            # Before the client hears that its session is new, and uses them.
            self._stored_once.forget(client_id, now_ms=self._clock.now_ms())
        self.wills.client_is_back(client_id, ends=is_clean)
        if stored is not None:
            self._keep_left_will(client_id, stored, is_clean=wanted.is_clean)
        if wanted.expiry_s == 0:
            if stored is not None:
                self._end(client_id, stored.epoch)
            self._transient_epoch -= 1
            epoch = self._transient_epoch
            self._owners[client_id] = Owner(channel, epoch, wanted.will, is_durable=False)
            request.done(OpenedSession(epoch, False, [], [], []))
            return
        # From now on: what comes meanwhile for the same client waits for this owner.
        owner = self._owners[client_id] = Owner(channel, OPENING, wanted.will, is_durable=True)

        def opened(position: int | Refused, outcome: OpenedSession | Refused) -> None:
            if isinstance(outcome, Refused):
                if self._owners.get(client_id) is owner:
                    self._attachments.detach(owner, owner.queue_ids)
                    del self._owners[client_id]
                if not isinstance(position, Refused):
                    # Nobody has what this record opens.
                    self._log.write([Close(client_id, position, wanted.expiry_s, True)], log_refusal)
            request.done(outcome)
            if client_id not in self._owners:
                self._grant_waiting(client_id)

        def logged(position: int | Refused) -> None:
            if isinstance(position, Refused):
                opened(position, position)
            else:
                steps = self._open_steps(request, owner, position, is_present=is_present)
                self._go_on_opening(steps, partial(opened, position))

        change = Open(
            client_id,
            channel.name,
            is_clean,
            wanted.expiry_s,
            wanted.will,
            None if is_clean or stored is None else stored.epoch,
        )
        if is_clean and former is not None:
            self._write_end(client_id, former.epoch, change, logged)
        else:
            self._log.write([change], logged)

    def _go_on_opening(
        self,
        steps: Generator[None, None, OpenedSession | Refused],
        done: Callable[[OpenedSession | Refused], None],
    ) -> None:
        """Open a session, one of very many filters over several turns."""
        try:
            turn = LoopSlice()
            while turn.take():
                next(steps)
        except StopIteration as finished:
            outcome: OpenedSession | Refused = finished.value
        except StoreError as error:
            outcome = _unreadable(error)
        else:
            asyncio.get_running_loop().call_soon(self._go_on_opening, steps, done)
            return
        done(outcome)

    def _open_steps(
        self, request: _Request, owner: Owner, position: int, *, is_present: bool
    ) -> Generator[None, None, OpenedSession | Refused]:
        """Find the cursors of a session whose Open is stored, and attach its queues."""
        client_id = request.wanted.client_id
        found: list[SessionSubscription] = []
        while True:
            session = self.projection.session(client_id)
            if self._owners.get(client_id) is not owner or not request.channel.is_open:
                return _LOST
            if session is None or session.epoch != position:
                return _NOT_READY
            if not self._attachments.is_attached(owner):
                # At first, and when the queues have got other numbers meanwhile.
                found.clear()
                self._attachments.attach(owner, ())
            names = islice(session.subscriptions, len(found), len(found) + _OPENED_AT_ONCE)
            some = [self._subscription(client_id, name, session) for name in names]
            if not some:
                break
            found += some
            self._attachments.attach(
                owner, [entry.queue_id for entry in some if not is_share(entry.topic_filter)]
            )
            yield
        owner.epoch = position
        self.limits.opened(client_id)
        return opened_session(position, session, found, is_present=is_present)

    def _subscription(self, client_id: str, topic_filter: str, session: StoredSession) -> SessionSubscription:
        subscription = session.subscriptions[topic_filter]
        queue_id = subscription.queue_id
        place = self.projection.cursor(queue_id, client_id)
        return SessionSubscription(topic_filter, subscription.options, queue_id, *place)

    def _keep_left_will(self, client_id: str, stored: StoredSession, *, is_clean: bool) -> None:
        """Hold back the will of a client whose former front end may still claim it after the start.

        If it does not, the will is due, as for every client that nobody claims.
        """
        is_settled = self._unclaimed_after is None or client_id in self._claimed
        if is_settled or stored.epoch >= self._start_position:
            return
        will = stored.will
        # One with a delay is not due when its session goes on in time [MQTT-3.1.3-9].
        if will is None or not stored.owner or (will.delay_s and not is_clean):
            return
        settled_s = self._started_s + START_GRACE_S - self._clock.monotonic_s()
        self.wills.hold(client_id, stored.epoch, will, for_s=max(0.0, settled_s))

    # Ends

    def _close(self, client_id: str, *, expiry_s: int | None, drops_will: bool) -> None:
        """Close the session of an owner; `expiry_s` None keeps the expiry it was opened with.

        StoreError, with nothing done, while the database refuses.
        """
        owner = self._owners[client_id]
        stored = self.projection.session(client_id) if owner.is_durable else None
        del self._owners[client_id]
        self.shares.leave(client_id)
        self.limits.closed(client_id)
        self._attachments.detach(owner, owner.queue_ids)
        # A will is one only when its CONNECT was accepted [MQTT-3.1.2-8].
        will = None if drops_will or not owner.is_granted else owner.will
        if not owner.is_durable:
            self.exclusives.release(client_id)
        elif stored is not None and stored.epoch == owner.epoch:
            lasting_s = stored.expiry_s if expiry_s is None else expiry_s
            if lasting_s == 0:
                self._end(client_id, owner.epoch)
            else:
                self._log.write([Close(client_id, owner.epoch, lasting_s, drops_will)], log_refusal)
            if will is not None and will.delay_s and lasting_s:
                self.wills.delay(client_id, owner.epoch, will, min(will.delay_s, lasting_s))
                will = None
        if will is not None:
            self.wills.send(client_id, owner.epoch, will, is_durable=owner.is_durable)
        self._grant_waiting(client_id)

    def _grant_waiting(self, client_id: str) -> None:
        """The session has no owner any more: it is for the request that waits for it, if one does."""
        request = self._pop_request(client_id)
        if request is not None:
            try:
                self._grant(request)
            except StoreError as error:
                request.done(_unreadable(error))

    def _end(self, client_id: str, epoch: int, done: LoggedDone = log_refusal) -> None:
        self._write_end(client_id, epoch, End(client_id, epoch), done)

    def _write_end(self, client_id: str, epoch: int, change: End | Open, done: LoggedDone) -> None:
        """Store what ends a session; requests that come meanwhile find it ended."""
        self._ending[client_id] = epoch

        def logged(position: int | Refused) -> None:
            if self._ending.get(client_id) == epoch:
                del self._ending[client_id]
            done(position)

        self._log.write([change], logged)

    def _drop_orphans(self, channel: SessionChannel, client_ids: list[str]) -> None:
        """Close the sessions of a front end that did not come back, some in each turn."""
        turn = LoopSlice(PER_TURN)
        while client_ids and turn.take():
            owner = self._owners.get(client_ids[-1])
            if owner is not None and owner.channel is channel:
                self._close(client_ids[-1], expiry_s=None, drops_will=False)
            client_ids.pop()
        if client_ids:
            self._actions.do_later(0.0, partial(self._drop_orphans, channel, client_ids))

    def _close_unclaimed(self) -> None:
        """Close sessions that had an owner before the start and that nobody has claimed."""
        unclaimed = self.projection.unsettled(after=self._unclaimed_after or None)
        turn = LoopSlice(PER_TURN)
        for client_id, session in unclaimed:
            if not turn.take():
                return
            self._unclaimed_after = client_id
            # Who had an owner in this life is looked after when that goes, its will included.
            was_claimed = client_id in self._owners or client_id in self._claimed
            if was_claimed or session.epoch >= self._start_position:
                continue
            if session.owner:
                self._log.write([Close(client_id, session.epoch, session.expiry_s, False)], log_refusal)
            if session.will is not None:
                self.wills.delay(client_id, session.epoch, session.will, session.will.delay_s)
        self._unclaimed_after = None
        self._claimed.clear()

    def check_invariants(self) -> None:
        """Raise AssertionError when owners, requests and what is attached for them do not agree."""
        self._actions.check_invariants()
        generation = self.projection.queues.generation
        attached: dict[SessionChannel, dict[int, int]] = {}
        for owner in self._owners.values():
            assert owner.is_durable or not owner.queue_ids
            assert len(set(owner.queue_ids)) == len(owner.queue_ids)
            if owner.generation == generation and owner.channel.is_open:
                counts = attached.setdefault(owner.channel, {})
                for queue_id in owner.queue_ids:
                    counts[queue_id] = counts.get(queue_id, 0) + 1
        for channel, counts in attached.items():
            assert channel.light.filter_ids == sorted(counts)
        for client_id, request in self._requests.items():
            assert request.wanted.client_id == client_id
            assert client_id in self._owners
            assert request.fence is not None
            assert request.fence.action is not None
        self.wills.check_invariants()


def _pushed_queue_ids(pushes: bytes) -> list[int]:
    """Return the queues in a run of pushes (place 4 | queue id 4)."""
    return sorted({int.from_bytes(pushes[at : at + 4], "big") for at in range(4, len(pushes), 8)})


def _unreadable(error: StoreError) -> Refused:
    return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"sessions cannot be read: {error}")
