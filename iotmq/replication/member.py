"""The state machine of a member: it follows a master, stands for election, leads.

It is told what happens, with the time of a clock that only has to run forwards, and hands out actions. Its
promises hold whatever any clock says: clocks only decide when something is tried. Of the rules of
docs/explanation/replication.md R1 to R4 and R8 are in `leading`, R5 to R7 and R9 here.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from iotmq import limits
from iotmq.errors import MemberChangeError, StoreCorruptError
from iotmq.replication.cluster_state import ClusterState, Identity, MemberAddress
from iotmq.replication.leading import Leading
from iotmq.replication.messages import (
    Ack,
    Action,
    Alarm,
    AskOthers,
    Confirmed,
    Connect,
    CopyLog,
    CopyNeeded,
    Data,
    Disconnect,
    FollowFrom,
    HandedOver,
    KnowMembers,
    Lead,
    Message,
    Open,
    ReadState,
    Released,
    Resign,
    Send,
)
from iotmq.replication.next_state import MemberChange, next_state
from iotmq.replication.ports import MemberFile, MemberLog, MemberSettings
from iotmq.replication.state_change import StateChange


class Role(enum.Enum):
    """The roles of a member."""

    HELD = "held"
    """Waiting: the state is not known, or the member may neither lead nor follow."""
    FOLLOWING = "following"
    CANDIDATE = "candidate"
    """Has promised a new epoch and asks to be its master."""
    TAKING_OVER = "taking over"
    """Is master; the record that begins its epoch is not confirmed yet."""
    LEADING = "leading"


_NEXT: Final[Mapping[Role, frozenset[Role]]] = {
    Role.HELD: frozenset({Role.FOLLOWING, Role.CANDIDATE, Role.TAKING_OVER}),
    Role.FOLLOWING: frozenset({Role.HELD, Role.CANDIDATE, Role.TAKING_OVER}),
    Role.CANDIDATE: frozenset({Role.HELD, Role.FOLLOWING, Role.TAKING_OVER}),
    Role.TAKING_OVER: frozenset({Role.LEADING, Role.HELD, Role.FOLLOWING, Role.CANDIDATE}),
    Role.LEADING: frozenset({Role.HELD, Role.FOLLOWING, Role.CANDIDATE}),
}


# Reads of the state without an answer whose time is known; later ones say more.
_READS_KEPT: Final = 16


class Beat(NamedTuple):
    """A member's sign of life as the consensus store has it."""

    age_s: float
    end: int
    """The end of its log then."""
    leads: int
    """The epoch it was master of; 0 for none, and for a master that can acknowledge nothing."""
    confirmed: int
    """The confirmed position of its log then."""


class Member:
    """One member of a broker name."""

    def __init__(
        self, settings: MemberSettings, log: MemberLog, file: MemberFile, do: Callable[[Action], None]
    ) -> None:
        """`do` is given each action, in order; it must not call back."""
        self.settings = settings
        self._log = log
        self._file = file
        self._do = do
        self.role = Role.HELD
        self.leading: Leading | None = None
        self._change: StateChange | None = None
        # What was said last of who the members are.
        self._members: tuple[MemberAddress, ...] = ()
        # Numbers the requests to the consensus store.
        self._numbers = itertools.count(1)
        self._read_s = float("-inf")
        # When the last reads of the state were asked for.
        self._reads_s: dict[int, float] = {}
        self._following = _Following()
        # The epoch to stand for, and the read after which this may be asked for.
        self._stands_for = 0
        self._stands_after = 0
        self._is_master_gone = False
        self._beats: Mapping[Identity, Beat] = {}
        self._beats_s = float("-inf")

    @property
    def number(self) -> int:
        """Return the member's number."""
        return self._file.identity.member

    @property
    def state(self) -> ClusterState | None:
        """Return the state of the consensus store, as far as is known."""
        return None if self._change is None else self._change.state

    @property
    def state_version(self) -> int:
        """Return the version of that state; 0 while none is known."""
        return 0 if self._change is None else self._change.version

    def is_member(self, number: int) -> bool:
        """Return whether a number is that of a member, as far as is known."""
        if self.leading is not None:
            return self.leading.is_member(number)
        return self.state is not None and self.settings.has_member(self.state, number)

    @property
    def leads(self) -> int:
        """Return the epoch it may acknowledge something in; 0 for none.

        A master without enough members in sync goes on, but is no reason for others not to stand: perhaps
        they are well, and only its own network is not.
        """
        leading = self.leading
        return 0 if leading is None or leading.has_few else leading.epoch

    @property
    def master_oldest(self) -> int:
        """Return where the log of the master begins that is followed; 0 while that is not known."""
        return self._following.master_oldest

    # What happens.

    def start(self, now_s: float) -> None:
        """Begin; the log is as the last run left it."""
        self._read(now_s)

    def poked(self, now_s: float) -> None:
        """Look at the state: it may have changed."""
        self._read(now_s)

    def state_read(self, number: int, version: int, state: ClusterState, now_s: float) -> None:
        """Take a state as it was at some time after it was asked for."""
        if self._change is None:
            self._change = StateChange(
                state, version, self._do, numbers=self._numbers, retry_s=self.settings.retry_s
            )
            self._new_state(now_s)
        elif self._change.seen(state, version):
            self._new_state(now_s)
        self._note_read(number, version)
        if self.role is Role.CANDIDATE and number >= self._stands_after and not self._change.is_pending:
            self._ask_for_title(now_s)

    def _note_read(self, number: int, version: int) -> None:
        """Take note that this master was recorded as such when a read was asked for."""
        assert self._change is not None
        asked_s = self._reads_s.pop(number, None)
        if self.leading is not None and asked_s is not None and version == self._change.version:
            self.leading.recorded_s = max(self.leading.recorded_s, asked_s)

    def state_replaced(self, number: int, version: int | None, now_s: float) -> None:
        """Take the answer of the consensus store to a change: the new version, or None for a refusal."""
        if self._change is not None and self._change.replaced(number, version, now_s):
            self._new_state(now_s)

    def beaten(self, beats: Mapping[Identity, Beat], now_s: float) -> None:
        """Take the signs of life of all members, read just now."""
        self._beats, self._beats_s = beats, now_s

    def link_opened(self, member: int, now_s: float) -> None:
        """The connection to a master is there."""
        following = self._following
        if member != following.master or self.role is not Role.FOLLOWING:
            self._do(Disconnect(member, is_outgoing=True))
            return
        following.is_linked, following.is_refused, following.linked_s = True, False, now_s
        file, log = self._file, self._log
        message = Open(
            file.identity, file.promised_epoch, log.oldest, log.end, file.confirmed, tuple(log.epochs)
        )
        self._do(Send(member, message))

    def link_closed(self, member: int, now_s: float, *, is_outgoing: bool, is_refused: bool = False) -> None:
        """A connection to a master, or one of a follower, has ended or could not be made.

        `is_refused`: the host is there, and nothing listens any more.
        """
        if not is_outgoing:
            if self.leading is not None:
                self.leading.link_closed(member, is_refused=is_refused, now_s=now_s)
        elif member == self._following.master:
            following = self._following
            following.is_linked, following.epoch = False, None
            following.is_refused = is_refused
            following.connect_s = now_s + self.settings.retry_s

    def received(self, member: int, message: Message, now_s: float) -> None:
        """Take a message of another member."""
        if isinstance(message, Open):
            self._opened(message, now_s)
        elif isinstance(message, Ack):
            if self.leading is not None:
                self.leading.acked(member, message, now_s)
                self._look_at_confirmed()
        elif self.role is Role.FOLLOWING and member == self._following.master:
            self._following.heard_s = now_s
            if isinstance(message, FollowFrom):
                self._follow_from(message)
            elif isinstance(message, Data):
                self._take(message)
            elif isinstance(message, CopyNeeded):
                if message.epoch >= self._file.promised_epoch:
                    self._do(CopyLog(member))
            elif isinstance(message, Released):
                self._following.is_released = message.epoch == self._following.epoch
            elif isinstance(message, HandedOver):
                self._read(now_s)

    def is_current(self, now_s: float) -> bool:
        """Return whether it is master, and may give what only one master may give."""
        return self.leading is not None and self.leading.is_current(now_s)

    def hears_master(self, now_s: float) -> bool:
        """Return whether the master was heard lately, for another member that asks."""
        if self.leading is not None:
            return True
        following = self._following
        return following.epoch is not None and now_s - following.heard_s < self.settings.suspect_s / 2

    def hearing_told(self, is_heard: bool, now_s: float) -> None:
        """Take another member's answer to whether it hears the master."""
        if is_heard:
            self._following.others_heard_s = now_s

    def log_copied(self, now_s: float) -> None:
        """The log is a copy of the master's now."""
        self._following.connect_s = now_s
        self._do(Disconnect(self._following.master, is_outgoing=True))

    def log_loaded(self, member: int, position: int, now_s: float) -> None:
        """The log from a position on is at hand for a follower."""
        if self.leading is not None:
            self.leading.log_loaded(member, position, now_s)

    def log_grew(self, now_s: float) -> None:
        """The master has appended records."""
        assert self.leading is not None
        self.leading.log_grew(now_s)
        self._look_at_confirmed()

    def flushed(self) -> None:
        """The disk has more of the log."""
        if self.leading is not None:
            self.leading.confirm()
            self._look_at_confirmed()
        elif self._following.epoch is not None and self.settings.acknowledge_flushed:
            self._acknowledge()

    def hand_over(self, member: int, now_s: float, *, is_broken: bool = False) -> bool:
        """Make an in-sync follower master; False when that is not possible now.

        `is_broken`: the disk of this member will never have what it has not flushed.
        """
        leading = self.leading
        if leading is None or self.role is not Role.LEADING:
            return False
        if now_s - self._beats_s >= self.settings.store_silent_s:
            # The change would not be answered, and nothing of this epoch is confirmed once it is asked for.
            return False
        return leading.hand_over(member, now_s, is_broken=is_broken)

    def change_members(self, change: MemberChange, now_s: float) -> None:
        """Add a member or remove one, soon: `state` tells. MemberChangeError says why it cannot be done."""
        if self.leading is None:
            raise MemberChangeError("this member is not master: see `iotmq replication status`")
        if now_s - self._beats_s >= self.settings.store_silent_s:
            raise MemberChangeError("the consensus store does not answer")
        self.leading.change_members(change, now_s)

    def release(self) -> None:
        """Tell followers that this master stops. The member does nothing afterwards."""
        if self.leading is not None:
            for member in self.leading.followers:
                self._do(Send(member, Released(self.leading.epoch)))

    def tick(self, now_s: float) -> None:
        """Do what is due; to be called every 50 ms or so."""
        if now_s - self._read_s >= self._read_interval_s(now_s):
            self._read(now_s)
        if self._change is not None:
            self._change.tick(now_s)
        if self.leading is not None:
            self.leading.tick(now_s)
        elif self.role is Role.FOLLOWING:
            self._tick_following(now_s)

    # The state.

    @property
    def _is_unsure(self) -> bool:
        return self._change is None or (self.role is Role.CANDIDATE and not self._change.is_pending)

    def _read_interval_s(self, now_s: float) -> float:
        settings, leading = self.settings, self.leading
        if self._is_unsure:
            return settings.retry_s
        if leading is not None and not leading.is_heard(now_s - settings.current_s / 2):
            # Followers do not show that it is master still, or not for much longer.
            return settings.current_s / 4
        return settings.poll_s

    def _read(self, now_s: float) -> int:
        self._read_s = now_s
        number = next(self._numbers)
        self._reads_s[number] = now_s
        if len(self._reads_s) > _READS_KEPT:
            del self._reads_s[next(iter(self._reads_s))]
        self._do(ReadState(number))
        return number

    def _new_state(self, now_s: float) -> None:
        """Do what the state says, which is another one than before."""
        assert self._change is not None
        state = self._change.state
        if (members := self.settings.members_of(state)) != self._members:
            self._members = members
            self._do(KnowMembers(members))
        leading = self.leading
        if leading is not None and (state.epoch, state.master) == (leading.epoch, self.number):
            if leading.is_fenced:
                self.stand(now_s)
            else:
                leading.state_recorded()
                self._look_at_confirmed()
        elif self._log.epochs and state.epoch < self._log.epochs[-1].epoch:
            self._do(
                Alarm(
                    f"the consensus store has epoch {state.epoch}, the log of member {self.number} has "
                    f"{self._log.epochs[-1].epoch}: was the store restored from a backup? See "
                    "`iotmq replication adopt`"
                )
            )
            self._become(Role.HELD)
        elif not (self.is_member(self.number) or state.master == self.number):
            address = dict(self.settings.members).get(self.number, "HOST:PORT")
            self._do(
                Alarm(
                    f"member {self.number} is no member of this broker, or none any more. To have it follow: "
                    f"`iotmq replication add {self.number}={address}`"
                )
            )
            self._become(Role.HELD)
        elif state.master != self.number:
            if leading is not None:
                # Sooner than the consensus store may tell it.
                self._do(Send(state.master, HandedOver(state.epoch)))
            self._follow(state.master, state.epoch, now_s)
        elif not state.has_everything(self._file.identity):
            self._do(
                Alarm(
                    f"member {self.number} is recorded as master, and its log may have lost what was "
                    "acknowledged. See `iotmq replication force`"
                )
            )
            self._become(Role.HELD)
        elif self._file.promised_epoch < state.epoch or self._has_won(state):
            # By hand-over, or by its own candidature.
            self._take_over(now_s)
        else:
            # It may have led that epoch before it stopped.
            self.stand(now_s)

    def _has_won(self, state: ClusterState) -> bool:
        return self.role is Role.CANDIDATE and state.epoch == self._stands_for

    def _become(self, role: Role) -> None:
        if role is self.role:
            return
        assert role in _NEXT[self.role], f"{self.role} -> {role}"
        if role not in (Role.LEADING, Role.TAKING_OVER) and self.leading is not None:
            self._do(Resign(self.leading.epoch))
            for member in self.leading.followers:
                self._do(Disconnect(member, is_outgoing=False))
            self.leading = None
        if self.role is Role.FOLLOWING:
            self._do(Disconnect(self._following.master, is_outgoing=True))
            self._following = _Following()
        self.role = role

    # Standing for election.

    def stand(self, now_s: float) -> None:
        """Stand for election: promise a new epoch, then read the state.

        Whatever the master recorded before the promise is seen by that read (R5, R7).
        """
        assert self._change is not None
        following = self._following
        # A beat may be younger than what is known better, or that of a master that can acknowledge nothing.
        is_led = self._is_led(self._change.state)
        self._is_master_gone = following.is_refused or following.is_released or not is_led
        self._become(Role.CANDIDATE)
        self._stands_for = max(self._file.promised_epoch, self._change.state.epoch) + 1
        self._file.promise(self._stands_for)
        self._stands_after = self._read(now_s)

    def _ask_for_title(self, now_s: float) -> None:
        assert self._change is not None
        state, own = self._change.state, self._file.identity
        if not state.has_everything(own):
            # R6. The master has gone on without this member.
            self._follow(state.master, state.epoch, now_s)
            return
        if self._beats_s == float("-inf"):
            # It is asked for again when the signs of life are known.
            return
        ahead = [i for i in state.in_sync if i in self._beats and self._beats[i].confirmed > self._log.end]
        if ahead:
            # A member in sync has what any of them has confirmed.
            self._do(
                Alarm(
                    f"the log of member {self.number} ends at {self._log.end}, and member "
                    f"{ahead[0].member} has confirmed {self._beats[ahead[0]].confirmed}: was an older copy "
                    "of its data directory put back? To have it follow, stop it, delete its file "
                    "`replication` and start it"
                )
            )
            self._become(Role.HELD)
            return
        in_sync = {own, *(identity for identity in state.in_sync if self._is_heard_of(identity))}
        if self._is_master_gone:
            # Or nothing would be confirmed before it is missed.
            in_sync = {own, *(identity for identity in in_sync if identity.member != state.master)}
        reason = f"member {state.master} was not heard of"
        following = next_state(state, self.settings, in_sync, reason=reason)
        self._change.propose(replace(following, epoch=self._stands_for, master=self.number), now_s)

    def _take_over(self, now_s: float) -> None:
        assert self._change is not None
        self._become(Role.TAKING_OVER)
        if self._file.promised_epoch < self._change.state.epoch:
            self._file.promise(self._change.state.epoch)
        self.leading = Leading(self.settings, self._log, self._file, self._change, self._do, now_s=now_s)
        self.leading.confirm()
        self._look_at_confirmed()

    def _look_at_confirmed(self) -> None:
        if self.role is Role.TAKING_OVER and self.leading is not None and self.leading.is_confirmed:
            self._become(Role.LEADING)
            self._do(Lead(self.leading.epoch))

    def _opened(self, message: Open, now_s: float) -> None:
        """A follower asks to follow."""
        member = message.identity.member
        if self.leading is None or not self.leading.is_member(member):
            self._do(Disconnect(member, is_outgoing=False))
        elif message.promised_epoch > self.leading.epoch + limits.REPLICATION_EPOCHS_AHEAD_MAX:
            # Epochs that were used up once are so for ever.
            self._do(
                Alarm(
                    f"member {member} says to have promised epoch {message.promised_epoch}, and the latest "
                    f"is {self.leading.epoch}: its file `replication` is damaged, or it is no member"
                )
            )
            self._do(Disconnect(member, is_outgoing=False))
        elif message.promised_epoch > self.leading.epoch:
            # It will take nothing of this epoch any more: a later one is needed.
            if message.promised_epoch > self._file.promised_epoch:
                self._file.promise(message.promised_epoch)
            self.stand(now_s)
        else:
            self.leading.opened(message, now_s)

    # Following.

    def _follow(self, master: int, epoch: int, now_s: float) -> None:
        following = self._following
        if self.role is Role.FOLLOWING and (following.master, following.wanted_epoch) == (master, epoch):
            return
        if self.role is Role.FOLLOWING and following.master == master:
            following.wanted_epoch = epoch
            return
        if self.role is Role.FOLLOWING:
            self._do(Disconnect(following.master, is_outgoing=True))
        self._become(Role.FOLLOWING)
        self._following = _Following(master=master, wanted_epoch=epoch, connect_s=now_s, heard_s=now_s)

    def _follow_from(self, message: FollowFrom) -> None:
        log, file = self._log, self._file
        known = max(file.promised_epoch, self._following.wanted_epoch)
        is_possible = file.promised_epoch <= message.epoch <= known + limits.REPLICATION_EPOCHS_AHEAD_MAX
        if not is_possible or message.position > log.end:
            self._do(Disconnect(self._following.master, is_outgoing=True))
            return
        if message.epoch > file.promised_epoch:
            file.promise(message.epoch)
        if message.position < file.confirmed:
            # R9. Nobody may cut what was confirmed, and what was derived from it does not go back.
            why = "an operator made a member master that has it not" if message.is_forced else "and may not"
            self._do(
                Alarm(
                    f"the log of member {self.number} differs from that of the master below the confirmed "
                    f"position {file.confirmed}, from {message.position} on: {why}. To have it follow, stop "
                    "it, move its data directory away and start it: it begins with a copy of the master's"
                )
            )
            self._become(Role.HELD)
            return
        if message.position < log.end:
            try:
                log.cut(message.position)
            except StoreCorruptError as error:
                self._refuse_master(error)
                return
        self._following.epoch = message.epoch
        self._acknowledge()

    def _take(self, message: Data) -> None:
        following, log = self._following, self._log
        if message.epoch != following.epoch or message.epoch < self._file.promised_epoch:
            return
        if message.position != log.end:
            self._do(Disconnect(following.master, is_outgoing=True))
            return
        following.master_oldest = message.oldest
        if message.end > message.position:
            try:
                log.append_copy(message.position, message.end, message.content)
            except StoreCorruptError as error:
                self._refuse_master(error)
                return
        confirmed = min(message.confirmed, log.end)
        if confirmed > self._file.confirmed:
            self._file.note_confirmed(confirmed)
            self._do(Confirmed(confirmed))
        self._acknowledge()

    def _refuse_master(self, error: StoreCorruptError) -> None:
        """End the connection to a master that is wrong about its log or misheard; this log is as it was."""
        master = self._following.master
        self._do(Alarm(f"member {master} sends what is no log: {error}"))
        self._do(Disconnect(master, is_outgoing=True))

    def _acknowledge(self) -> None:
        following, log = self._following, self._log
        assert following.epoch is not None
        self._do(Send(following.master, Ack(following.epoch, log.end, min(log.flushed, log.end))))

    def _tick_following(self, now_s: float) -> None:
        following = self._following
        silent_s = now_s - max(following.heard_s, following.linked_s)
        if following.is_linked and silent_s > self.settings.fall_behind_s:
            # A connection may be dead for long before its end is told.
            self._do(Disconnect(following.master, is_outgoing=True))
            following.is_linked, following.epoch = False, None
        if not following.is_linked and now_s >= following.connect_s:
            following.connect_s = now_s + self.settings.retry_s
            self._do(Connect(following.master))
        state = self.state
        if state is None or not state.has_everything(self._file.identity):
            return
        if not self._suspects(state, now_s):
            following.stand_s = None
        elif following.stand_s is None:
            following.stand_s = now_s + self._rank(state) * self.settings.rank_s
        if following.stand_s is not None and now_s >= following.stand_s:
            self.stand(now_s)

    def _suspects(self, state: ClusterState, now_s: float) -> bool:
        """Return whether this member should try to become master."""
        following, settings = self._following, self.settings
        first = [identity for identity in state.in_sync if identity.member != state.master]
        if self._file.identity not in state.in_sync and any(map(self._is_heard_of, first)):
            return False
        if following.is_released or (following.is_refused and not following.is_linked):
            return True
        if now_s - following.heard_s < settings.suspect_s:
            following.asked_first_s = None
            return False
        if following.asked_first_s is None or now_s - following.asked_s >= settings.retry_s:
            following.asked_s = now_s
            if following.asked_first_s is None:
                following.asked_first_s = now_s
            others = tuple(
                identity.member
                for identity in state.in_sync
                if identity.member not in (self.number, state.master)
            )
            if others:
                self._do(AskOthers(others))
        if now_s - following.asked_first_s < settings.retry_s / 2:
            return False
        if now_s - following.others_heard_s < settings.suspect_s / 2:
            return False
        is_known = now_s - self._beats_s < settings.beat_stale_s
        return is_known and not self._is_led(state)

    def _is_led(self, state: ClusterState) -> bool:
        """Return whether a member says in the consensus store that it leads the epoch of the state."""
        return any(
            beat.leads == state.epoch and self._is_heard_of(identity)
            for identity, beat in self._beats.items()
        )

    def _is_heard_of(self, identity: Identity) -> bool:
        beat = self._beats.get(identity)
        return beat is not None and beat.age_s < self.settings.beat_stale_s

    def _rank(self, state: ClusterState) -> int:
        """Count the members that should go first: those with longer logs, then those with lower numbers."""
        own = (-self._log.end, self.number)
        return sum(
            (-self._beats[identity].end, identity.member) < own
            for identity in (*state.in_sync, *state.eligible)
            if identity.member not in (state.master, self.number) and self._is_heard_of(identity)
        )


class _Following:
    """The master that is followed, as a member knows it."""

    def __init__(
        self, *, master: int = 0, wanted_epoch: int = 0, connect_s: float = 0.0, heard_s: float = 0.0
    ) -> None:
        self.master = master
        # What the state says; the master may lead a later one already.
        self.wanted_epoch = wanted_epoch
        # What the master has told it to follow; None before.
        self.epoch: int | None = None
        # Where its log begins, as far as it has told.
        self.master_oldest = 0
        self.is_linked = False
        self.linked_s = float("-inf")
        self.is_refused = False
        self.is_released = False
        self.heard_s = heard_s
        self.connect_s = connect_s
        self.asked_s = float("-inf")
        self.asked_first_s: float | None = None
        self.others_heard_s = float("-inf")
        self.stand_s: float | None = None
