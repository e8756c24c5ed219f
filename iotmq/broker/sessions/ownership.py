"""Own the sessions of clients: claim, open, take over, close and end them, also when a front end dies.

Owners, and takeovers that wait for a former owner, are in memory alone. The stored part of sessions is in
`session_store.projection`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import islice
from typing import Final

from iotmq.broker.parts import BrokerParts
from iotmq.broker.session_store.channel import SessionChannel
from iotmq.broker.session_store.log import LoggedDone, SessionLog, log_refusal, refusal_of
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.session_store.records import Close, End, Open
from iotmq.broker.session_store.sessions import StoredSession
from iotmq.broker.session_store.shares import is_share
from iotmq.broker.sessions.attachments import OPENING, PER_TURN, Attachments, Owner, queue_ids_of
from iotmq.broker.sessions.refusals import LOST, NOT_READY, unreadable
from iotmq.broker.sessions.translation import opened_session
from iotmq.broker.sessions.unclaimed import UnclaimedSessions
from iotmq.broker.sessions.wills import Wills
from iotmq.errors import StoreError
from iotmq.event_loop import DueAction, DueActions, LoopSlice
from iotmq.ports.sessions import (
    ENDED_BY_OPERATOR,
    TAKEN_OVER,
    CloseRequest,
    OpenedSession,
    OpenRequest,
    Refused,
    SessionSubscription,
    Will,
)

# How long a front end has to give a session up that another one wants.
FENCE_TIMEOUT_S: Final = 1.0
# A front end whose channel closes has so long to come back before its clients count as gone.
OWNER_GRACE_S: Final = 2.0
# Filters of a session that is opened, in one step.
_OPENED_AT_ONCE: Final = 64


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


class Ownership:
    """Say which front end owns which client's session at one broker. On the loop's thread.

    That the log has the opening of a session, that its owner's channel is open, and that a request waits for
    it are independent of each other: three facts, and no states of one machine.
    """

    def __init__(
        self,
        parts: BrokerParts,
        projection: SessionProjection,
        log: SessionLog,
        *,
        publish: Callable[[Will], None],
        left: Callable[[str, bool], None],
        refused: Callable[[StoreError], None],
    ) -> None:
        """`publish` stores, or delivers, a will.

        `left(client id, is durable)` hears that a session has an owner no more, `refused` of a database that
        cannot be read.
        """
        self._projection = projection
        self._log = log
        self._left = left
        self._clock = parts.clock
        self._stored_once = parts.stored_once
        self._actions = DueActions(parts.clock, refused=refused)
        self.wills = Wills(projection, log, self._actions, publish=publish)
        self._owners: dict[str, Owner] = {}
        self.attachments = Attachments(projection, parts.store, self._owners, refused=refused)
        self._unclaimed = UnclaimedSessions(parts, projection, log, self.wills, owners=self._owners)
        # By client id: those that wait until the owner gives the session up.
        self._requests: dict[str, _Request] = {}
        # Epochs of sessions whose end is on its way into the log.
        self._ending: dict[str, int] = {}
        # Epochs of sessions that are not kept count down from here.
        self._transient_epoch = OPENING
        self.takeovers_total = 0
        self.expired_total = 0

    def start(self) -> None:
        """Count the time that front ends have to come back from now on."""
        self._unclaimed.start()

    def __len__(self) -> int:
        """Return how many clients are connected."""
        return len(self._owners)

    def __contains__(self, client_id: str) -> bool:
        """Return whether some front end has the client."""
        return client_id in self._owners

    def get(self, client_id: str) -> Owner | None:
        """Return the owner of a client's session."""
        return self._owners.get(client_id)

    def owned_by(self, channel: SessionChannel, client_id: str, epoch: int) -> Owner | None:
        """Return the owner of a session if that is this front end, and the session of this epoch."""
        owner = self._owners.get(client_id)
        return owner if owner is not None and owner.channel is channel and owner.epoch == epoch else None

    def front_end_of(self, client_id: str) -> str | None:
        """Return the front end that a client is connected to."""
        owner = self._owners.get(client_id)
        return None if owner is None else owner.channel.name

    def front_ends(self) -> Iterator[str]:
        """Yield the front end of each client that is connected."""
        return (owner.channel.name for owner in self._owners.values())

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
        if owner is None:
            self._unclaimed.claim(client_id)
        owner = self._owners[client_id] = Owner(channel, epoch, will, is_durable=True)
        self.attachments.attach(owner, queue_ids_of(stored))
        return True

    def channel_closed(self, channel: SessionChannel) -> None:
        """Take a front end for gone, and its clients, unless it is back in OWNER_GRACE_S."""
        orphans = [client_id for client_id, owner in self._owners.items() if owner.channel is channel]
        for request in [request for request in self._requests.values() if request.channel is channel]:
            self._pop_request(request.wanted.client_id)
        if orphans:
            self._actions.do_later(OWNER_GRACE_S, partial(self._drop_orphans, channel, orphans))

    def open(
        self, channel: SessionChannel, wanted: OpenRequest, done: Callable[[OpenedSession | Refused], None]
    ) -> None:
        """Take a session over; another front end that has it has FENCE_TIMEOUT_S to give it up."""
        request = _Request(channel, wanted, done)
        try:
            self._open(request)
        except StoreError as error:
            if self._requests.get(wanted.client_id) is request:
                self._pop_request(wanted.client_id)
            done(unreadable(error))

    def _open(self, request: _Request) -> None:
        client_id, channel = request.wanted.client_id, request.channel
        former = self._pop_request(client_id)
        if former is not None:
            former.done(LOST)
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
            owner.channel.receiver.fenced(client_id, owner.epoch, TAKEN_OVER)
        else:
            self._take_over(request)

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
        former = self._projection.session(client_id)
        stored = self._unended(client_id)
        # A session that is about to end does not go on, and another one begins [MQTT-3.1.2-6].
        is_clean = wanted.is_clean or (former is not None and stored is None)
        is_present = stored is not None and not wanted.is_clean
        if wanted.expiry_s != 0 and not is_present and not wanted.is_known:
            # Before the client hears that its session is new, and uses them.
            self._stored_once.forget(client_id, now_ms=self._clock.now_ms())
        self.wills.client_is_back(client_id, ends=is_clean)
        if stored is not None:
            self._unclaimed.keep_left_will(client_id, stored, is_clean=wanted.is_clean)
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
                    self.attachments.detach(owner, owner.queue_ids)
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
            outcome = unreadable(error)
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
            session = self._projection.session(client_id)
            if self._owners.get(client_id) is not owner or not request.channel.is_open:
                return LOST
            if session is None or session.epoch != position:
                return NOT_READY
            if not self.attachments.is_attached(owner):
                # At first, and when the queues have got other numbers meanwhile.
                found.clear()
                self.attachments.attach(owner, ())
            names = islice(session.subscriptions, len(found), len(found) + _OPENED_AT_ONCE)
            some = [self._subscription(client_id, name, session) for name in names]
            if not some:
                break
            found += some
            self.attachments.attach(
                owner, [entry.queue_id for entry in some if not is_share(entry.topic_filter)]
            )
            yield
        owner.epoch = position
        return opened_session(position, session, found, is_present=is_present)

    def _subscription(self, client_id: str, topic_filter: str, session: StoredSession) -> SessionSubscription:
        subscription = session.subscriptions[topic_filter]
        queue_id = subscription.queue_id
        place = self._projection.cursor(queue_id, client_id)
        return SessionSubscription(topic_filter, subscription.options, queue_id, *place)

    def close(self, owner: Owner, gone: CloseRequest) -> None:
        """Close the session of a client that has gone, once the database lets it."""

        def close() -> None:
            if self._owners.get(gone.client_id) is owner:
                self._close(gone.client_id, expiry_s=gone.expiry_s, drops_will=gone.drops_will)

        self._actions.do_surely(close)

    def drop_will(self, client_id: str, epoch: int) -> None:
        """Drop the will of a client that has gone, once the database lets it."""
        self._actions.do_surely(partial(self.wills.drop, client_id, epoch))

    def kick(self, client_id: str) -> bool:
        """Have the client disconnected; False when it is not connected."""
        owner = self._owners.get(client_id)
        if owner is None:
            return False
        if owner.channel.is_open:
            owner.channel.receiver.fenced(client_id, owner.epoch, ENDED_BY_OPERATOR)
        return True

    def purge(self, client_id: str, done: Callable[[Refused | None], None]) -> bool:
        """End a durable session, and disconnect its client; False when there is none."""
        stored = self._projection.session(client_id)
        if stored is None:
            return False
        self.kick(client_id)
        owner = self._owners.get(client_id)
        if owner is not None:
            self.attachments.detach(owner, owner.queue_ids)
        self.wills.session_ends(client_id)
        self._end(client_id, stored.epoch, lambda result: done(refusal_of(result)))
        return True

    def stop(self) -> None:
        """Stop the timers: nothing more is done by itself."""
        self._actions.stop()

    def act(self) -> None:
        """Do what is due; called about once a second, beside its own timer."""
        self._actions.run()

    def expire(self) -> None:
        """Attach queues that are new, and end sessions that have expired; called about once a second."""
        self.attachments.follow_projection()
        for client_id, epoch in self._projection.due(self._clock.now_ms(), LoopSlice(PER_TURN)):
            if client_id not in self._owners and client_id not in self._ending:
                self.expired_total += 1
                self.wills.session_ends(client_id)
                self._end(client_id, epoch)
        self._unclaimed.close()

    @property
    def wills_total(self) -> int:
        """Wills that were published."""
        return self.wills.sent_total

    def _close(self, client_id: str, *, expiry_s: int | None, drops_will: bool) -> None:
        """Close the session of an owner; `expiry_s` None keeps the expiry it was opened with.

        StoreError, with nothing done, while the database refuses.
        """
        owner = self._owners[client_id]
        stored = self._projection.session(client_id) if owner.is_durable else None
        del self._owners[client_id]
        self._left(client_id, owner.is_durable)
        self.attachments.detach(owner, owner.queue_ids)
        # A will is one only when its CONNECT was accepted [MQTT-3.1.2-8].
        will = None if drops_will or not owner.is_granted else owner.will
        if stored is not None and stored.epoch == owner.epoch:
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
                request.done(unreadable(error))

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

    def _unended(self, client_id: str) -> StoredSession | None:
        """Return the stored session of a client, unless its end is on its way into the log."""
        stored = self._projection.session(client_id)
        return None if stored is None or self._ending.get(client_id) == stored.epoch else stored

    def _pop_request(self, client_id: str) -> _Request | None:
        """Remove and return the request that waits for a session."""
        request = self._requests.pop(client_id, None)
        if request is not None and request.fence is not None:
            self._actions.cancel(request.fence)
        return request

    def check_invariants(self) -> None:
        """Raise AssertionError when owners, requests and what is attached for them do not agree."""
        self._actions.check_invariants()
        generation = self._projection.queues.generation
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
