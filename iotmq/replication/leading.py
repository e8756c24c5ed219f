"""Lead an epoch: feed followers, confirm what all members in sync have, change the sets of members.

Rules of docs/explanation/replication.md: R1 confirms, R2 grows, R3 shrinks, R4 is about changes that nobody
answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from iotmq.errors import MemberChangeError, StoreCorruptError
from iotmq.replication.cluster_state import ClusterState, Identity
from iotmq.replication.epochs import common_point
from iotmq.replication.messages import (
    Ack,
    Action,
    Alarm,
    Confirmed,
    CopyNeeded,
    Data,
    Disconnect,
    FollowFrom,
    LoadLog,
    Open,
    Send,
)
from iotmq.replication.next_state import MemberChange, changed_members, next_state
from iotmq.replication.ports import MemberFile, MemberLog, MemberSettings
from iotmq.replication.state_change import StateChange

# A follower that is sent the log at a rate may make up for so much time.
_BURST_S: Final = 0.1


class Follower:
    """One follower of this epoch. What it has acknowledged stays true when its connection ends."""

    def __init__(self, identity: Identity, now_s: float) -> None:
        self.identity = identity
        self.is_connected = True
        # Nothing listens where it was.
        self.is_refused = False
        # It is recorded as in sync, and its log is shorter than it was.
        self.has_lost = False
        # Up to where it was sent the log, once it is told where to follow from, and where that was.
        self.sent: int | None = None
        self.sent_from = 0
        # The ends of the pieces it was sent on this connection and has not received yet, as far as is known.
        self.in_flight: deque[int] = deque()
        # As `sent`, over all its connections: one that comes again and again must not count as new each time.
        self.sent_most = 0
        # Up to where it has the log of this epoch.
        self.acked: int | None = None
        # What it is sent next is being brought into memory.
        self.is_loading = False
        # Until then it was sent what it may be sent while it catches up.
        self.spent_s = now_s
        # When it last had everything, or came nearer to that.
        self.progress_s = now_s
        self.heard_s = now_s
        self.sent_s = now_s


class Leading:
    """One epoch of a master, from the record that begins it."""

    def __init__(
        self,
        settings: MemberSettings,
        log: MemberLog,
        file: MemberFile,
        change: StateChange,
        do: Callable[[Action], None],
        *,
        now_s: float,
    ) -> None:
        """`change.state` is recorded, and names this member as master; the epoch's record is appended."""
        self._settings = settings
        self._log = log
        self._file = file
        self._own = file.identity
        self._change = change
        self._do = do
        self._began_s = now_s
        # When the state was asked for that named this master last.
        self.recorded_s = float("-inf")
        # When `tick` was called last, and when that was after a pause.
        self._tick_s = now_s
        self._awake_s = float("-inf")
        self.epoch = change.state.epoch
        log.append_epoch(self.epoch, self._own)
        self.record_end = log.end
        """Behind the record that begins the epoch: when it is confirmed, so is what earlier epochs left."""
        self.followers: dict[int, Follower] = {}
        self.is_fenced = False
        """True when it has promised a later epoch and must not confirm anything any more."""
        self._hand_over_to: int | None = None
        self._hand_over_end_s = 0.0
        self._is_broken = False
        # What an operator wants, until it is asked for, and until when that has to be.
        self._member_change: MemberChange | None = None
        self._member_change_end_s = 0.0

    @property
    def state(self) -> ClusterState:
        """Return the state that is recorded, as far as is known."""
        return self._change.state

    @property
    def is_confirmed(self) -> bool:
        """Return whether the record that begins the epoch is confirmed."""
        return self._file.confirmed >= self.record_end

    @property
    def takes_appends(self) -> bool:
        """Return whether new records may be appended: enough members, and no hand-over under way."""
        return not (self.has_few or self.is_handing_over)

    @property
    def is_handing_over(self) -> bool:
        """Return whether another member is about to be made master, or has been."""
        return self.is_fenced or self._hand_over_to is not None

    @property
    def effective(self) -> frozenset[Identity]:
        """The members without which nothing is confirmed: those recorded, and those being recorded (R1)."""
        return frozenset(self.state.in_sync).union(*(state.in_sync for state in self._change.pending))

    @property
    def has_few(self) -> bool:
        """Return whether too few members are in sync to acknowledge anything."""
        return any(map(self._settings.is_refusing, (self.state, *self._change.pending)))

    def is_current(self, now_s: float) -> bool:
        """Return whether nobody else has been made master until a moment ago.

        Who could be is in the effective set, or eligible, and acknowledges nothing of this epoch any more.
        """
        limit_s = self._settings.current_s
        if self.is_fenced:
            return False
        if now_s - self.recorded_s < limit_s:
            return True
        return now_s - self._tick_s <= limit_s / 2 and self.is_heard(now_s - limit_s)

    def is_heard(self, since_s: float) -> bool:
        """Return whether all who could be made master have acknowledged something since then."""
        if self.has_few:
            return False
        # What has waited while this process was stopped may be old, and is read all at once.
        since_s = max(since_s, self._awake_s + self._settings.heartbeat_s)
        for identity in self.effective - {self._own}:
            follower = self.followers.get(identity.member)
            if follower is None or follower.identity != identity or not follower.is_connected:
                return False
            if follower.acked is None or follower.heard_s < since_s:
                return False
        return True

    @property
    def in_sync_count(self) -> int:
        """Return how many members are in sync: the fewer of what is recorded and what is being recorded."""
        return min(len(state.in_sync) for state in (self.state, *self._change.pending))

    def is_member(self, number: int) -> bool:
        """Return whether a number is that of a member, or of one that is about to be recorded as such."""
        return any(self._settings.has_member(state, number) for state in (self.state, *self._change.pending))

    def opened(self, message: Open, now_s: float) -> None:
        """Tell a follower where its log and this one part."""
        log = self._log
        member = message.identity.member
        follower = self.followers.get(member)
        if follower is None or follower.identity != message.identity:
            follower = self.followers[member] = Follower(message.identity, now_s)
        follower.is_connected, follower.is_refused, follower.heard_s = True, False, now_s
        follower.sent = None
        follower.in_flight.clear()
        known = max(self._file.confirmed, follower.acked or 0)
        if follower.identity in self.effective and message.end < known:
            follower.has_lost, follower.acked = True, None
            self._do(
                Alarm(
                    f"the log of member {member} ends at {message.end}, and had everything up to {known}: "
                    "was an older copy of its data directory put back? It is in sync no more until it has "
                    "caught up"
                )
            )
        point = common_point(log.epochs, log.end, message.epochs, message.end)
        if point is None and log.oldest == 0:
            point = 0
        if (point or 0) < (follower.acked or 0):
            # It has lost what it had: nothing counts but what it acknowledges from now on.
            follower.acked = None
        if point is None or point < log.oldest:
            self._do(Send(member, CopyNeeded(self.epoch)))
            return
        follower.sent = follower.sent_from = point
        self._do(Send(member, FollowFrom(self.epoch, point, self.state.is_forced)))
        self._feed(follower, now_s)

    def acked(self, member: int, message: Ack, now_s: float) -> None:
        """Take note of how far a follower is."""
        follower = self.followers.get(member)
        if follower is None or not follower.is_connected or message.epoch != self.epoch:
            return
        position = message.flushed if self._settings.acknowledge_flushed else message.received
        if max(message.received, position) > max(follower.sent_most, follower.sent_from):
            # Its log has something there that is not of this one.
            self._do(Disconnect(member, is_outgoing=False))
            return
        follower.heard_s = now_s
        if follower.acked is None or position > follower.acked or position == self._log.end:
            follower.progress_s = now_s
        follower.acked = max(position, follower.acked or 0)
        while follower.in_flight and follower.in_flight[0] <= message.received:
            follower.in_flight.popleft()
        self._feed(follower, now_s)
        self.confirm()

    def link_closed(self, member: int, *, is_refused: bool, now_s: float) -> None:
        """Take note that the connection of a follower has ended. `is_refused`: its process has, too."""
        follower = self.followers.get(member)
        if follower is not None:
            if follower.is_connected:
                follower.heard_s = now_s
            follower.is_connected, follower.is_refused = False, is_refused
            follower.sent, follower.is_loading = None, False

    def log_grew(self, now_s: float) -> None:
        """Send what is new, and confirm what needs nobody else."""
        for follower in self.followers.values():
            self._feed(follower, now_s)
        self.confirm()

    def log_loaded(self, member: int, position: int, now_s: float) -> None:
        """Go on with a follower for whom the log was loaded from a position on."""
        follower = self.followers.get(member)
        if follower is not None and follower.is_loading:
            follower.is_loading = False
            self._feed(follower, now_s, is_loaded=follower.sent == position)

    def confirm(self) -> None:
        """Confirm what the effective set has (R1)."""
        if self.is_fenced or self.has_few:
            return
        position = self._log.flushed if self._settings.acknowledge_flushed else self._log.end
        for identity in self.effective - {self._own}:
            follower = self.followers.get(identity.member)
            if follower is None or follower.identity != identity or follower.acked is None:
                return
            position = min(position, follower.acked)
        if position >= self.record_end and position > self._file.confirmed:
            self._file.note_confirmed(position)
            self._do(Confirmed(position))

    def state_recorded(self) -> None:
        """Do what follows from another state of this epoch."""
        for number in [number for number in self.followers if not self.is_member(number)]:
            del self.followers[number]
            self._do(Disconnect(number, is_outgoing=False))
        self.confirm()

    def change_members(self, change: MemberChange, now_s: float) -> None:
        """Add a member or remove one, as soon as no other change is open. MemberChangeError says why not."""
        if self.is_handing_over:
            raise MemberChangeError("another member is about to be master: ask again")
        if self._member_change is not None:
            raise MemberChangeError("another change of the members is under way: ask again")
        changed_members(self.state, self._settings, change)
        self._member_change = change
        self._member_change_end_s = now_s + self._settings.hand_over_s

    def successors(self, member: int = 0) -> list[Follower]:
        """Return the followers that may be made master: all of them, or that member if it is one."""
        return [
            follower
            for number, follower in self.followers.items()
            if follower.is_connected and follower.identity in self.state.in_sync and member in (0, number)
        ]

    def hand_over(self, member: int, now_s: float, *, is_broken: bool = False) -> bool:
        """Begin to make a follower master; False when it is not in sync.

        It has everything first, unless `is_broken`: the disk here will not have all of the log any more, so
        what is not confirmed never would be. A follower in sync has all that is, as after an election.
        """
        if not self.successors(member):
            return False
        self._is_broken = is_broken
        self._hand_over_to = member
        self._hand_over_end_s = now_s + self._settings.hand_over_s
        return True

    def tick(self, now_s: float) -> None:
        """Send heartbeats, and change the set of members in sync where that is due."""
        if now_s - self._tick_s > self._settings.current_s / 2:
            self._awake_s = now_s
        self._tick_s = now_s
        for follower in self.followers.values():
            if follower.is_connected and now_s - follower.sent_s >= self._settings.heartbeat_s:
                self._beat(follower, now_s)
            # Once it is recorded as out of sync, it is like any other that comes.
            follower.has_lost = follower.has_lost and follower.identity in self.effective
            if self._settings.catch_up_bytes_per_s:
                self._feed(follower, now_s)
        if self._hand_over_to is not None and now_s >= self._hand_over_end_s and not self.is_fenced:
            # Also while a change is not answered: clients wait meanwhile.
            self._hand_over_to = None
        if self._member_change is not None and now_s >= self._member_change_end_s:
            # Who has asked for it believes that it will not come about.
            self._member_change = None
        if self._change.is_pending:
            return
        if self._hand_over_to is not None and self._may_hand_over(self._hand_over_to, now_s):
            return
        if self._member_change is not None and self._may_change_members(self._member_change, now_s):
            return
        gone = [identity for identity in self.state.in_sync if self._is_gone(identity, now_s)]
        if gone:
            self._propose(set(self.state.in_sync) - set(gone), f"not in sync: {_names(gone)}", now_s)
            return
        new = [
            follower.identity for follower in self.followers.values() if self._has_caught_up(follower, now_s)
        ]
        if new:
            self._propose({*self.state.in_sync, *new}, f"caught up: {_names(new)}", now_s)
            return
        # What another version has not recorded, or other settings have.
        settled = next_state(self.state, self._settings, self.state.in_sync, reason="as the settings say")
        if (settled.members, settled.eligible) != (self.state.members, self.state.eligible):
            self._change.propose(settled, now_s)

    def _may_change_members(self, change: MemberChange, now_s: float) -> bool:
        """Replace the state by one with other members; return whether it was asked for."""
        self._member_change = None
        try:
            state = changed_members(self.state, self._settings, change)
        except MemberChangeError as error:
            # Who is in sync has changed since it was asked for.
            self._do(Alarm(f"not done, that {change.text}: {error}"))
            return False
        self._change.propose(state, now_s)
        return True

    def _may_hand_over(self, member: int, now_s: float) -> bool:
        """Replace the state in favour of a follower that has everything; return whether it was asked for."""
        follower = self.followers.get(member)
        end = self._log.end
        if follower is None or not follower.is_connected or follower.identity not in self.state.in_sync:
            return False
        has_all = follower.acked == end == self._file.confirmed and self.is_confirmed
        if has_all or self._is_broken:
            # R5: nothing of this epoch is confirmed from here on, whatever becomes of the change.
            self._file.promise(self.epoch + 1)
            self.is_fenced = True
            in_sync = set(self.state.in_sync)
            if len(in_sync) > self._settings.in_sync_min_of(self.state):
                # It begins anew as a follower, and nobody should wait for that.
                in_sync.discard(self._own)
            state = next_state(self.state, self._settings, in_sync, reason="handed over")
            self._change.propose(replace(state, epoch=self.epoch + 1, master=member), now_s)
            return True
        return False

    def _propose(self, in_sync: Iterable[Identity], reason: str, now_s: float) -> None:
        self._change.propose(next_state(self.state, self._settings, in_sync, reason=reason), now_s)

    def _is_gone(self, identity: Identity, now_s: float) -> bool:
        """Return whether one in sync does not answer, has another log now, or is no member."""
        if identity == self._own:
            return False
        if not self._settings.has_member(self.state, identity.member):
            # Written by a version that knows no members beside those of its settings.
            return True
        limit_s = self._settings.fall_behind_s
        follower = self.followers.get(identity.member)
        if follower is None:
            return now_s - self._began_s > limit_s
        if follower.identity != identity or follower.is_refused or follower.has_lost:
            return True
        return now_s - min(follower.heard_s, follower.progress_s) > limit_s

    def _has_caught_up(self, follower: Follower, now_s: float) -> bool:
        # One that has everything and is silent would be recorded as in sync and as gone in turn, without end.
        is_heard = now_s - min(follower.heard_s, follower.progress_s) <= self._settings.fall_behind_s / 2
        return (
            is_heard
            and follower.is_connected
            and follower.identity not in self.state.in_sync
            and self._settings.has_member(self.state, follower.identity.member)
            and follower.acked is not None
            and follower.acked >= max(self._file.confirmed, self.record_end)
        )

    def _feed(self, follower: Follower, now_s: float, *, is_loaded: bool = False) -> None:
        """Send a follower what it may be sent ahead of its acknowledgements.

        What would have to come from the disk is loaded first, unless that was just done (`is_loaded`).
        """
        settings = self._settings
        is_in_sync = follower.identity in self.state.in_sync
        window_bytes = settings.window_bytes if is_in_sync else settings.catch_up_window_bytes
        while follower.is_connected and follower.sent is not None and follower.sent < self._log.end:
            if follower.sent < self._log.oldest:
                # Retention was faster than it is.
                follower.sent, follower.is_loading = None, False
                self._do(Send(follower.identity.member, CopyNeeded(self.epoch)))
                return
            if follower.sent - max(follower.acked or 0, follower.sent_from) >= window_bytes:
                return
            if follower.is_loading or (not is_in_sync and follower.spent_s > now_s):
                return
            if not is_loaded and not self._log.is_at_hand(follower.sent, settings.chunk_bytes):
                follower.is_loading = True
                self._do(LoadLog(follower.identity.member, follower.sent))
                return
            is_loaded = False
            if follower.acked is not None and follower.acked >= follower.sent_most:
                follower.progress_s = now_s
            try:
                end = self._log.piece_end(follower.sent, settings.chunk_bytes)
            except StoreCorruptError as error:
                # Of no concern to others: they have what is damaged here.
                member, follower.sent, follower.is_connected = follower.identity.member, None, False
                self._do(Alarm(f"the log cannot be read for member {member}: {error}"))
                self._do(Disconnect(member, is_outgoing=False))
                return
            if end == self._log.end and len(follower.in_flight) >= settings.pieces_max:
                # What is appended until it has received those goes in one piece.
                return
            follower.in_flight.append(end)
            self._send(follower, follower.sent, end, now_s)
            if settings.catch_up_bytes_per_s:
                since_s = max(follower.spent_s, now_s - _BURST_S)
                follower.spent_s = since_s + (end - follower.sent) / settings.catch_up_bytes_per_s
            follower.sent = end
            follower.sent_most = max(follower.sent_most, end)

    def _beat(self, follower: Follower, now_s: float) -> None:
        if follower.sent is not None:
            self._send(follower, follower.sent, follower.sent, now_s)

    def _send(self, follower: Follower, position: int, end: int, now_s: float) -> None:
        follower.sent_s = now_s
        confirmed = min(self._file.confirmed, end)
        data = Data(self.epoch, position, end, confirmed, oldest=self._log.oldest)
        self._do(Send(follower.identity.member, data))


def _names(identities: Iterable[Identity]) -> str:
    return ", ".join(f"member {identity.member}" for identity in identities)
