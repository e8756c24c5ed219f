"""The disk as the state machine needs it, and the settings of a member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from iotmq.replication.cluster_state import ClusterState, Identity, MemberAddress
from iotmq.replication.epochs import EpochStart


class MemberLog(Protocol):
    """A log as bytes in one order: no topics and no messages, but for the records that begin epochs."""

    @property
    def oldest(self) -> int:
        """Return the position of the first byte that is there."""

    @property
    def end(self) -> int:
        """Return the position behind the last byte."""

    @property
    def flushed(self) -> int:
        """Return the position up to which the disk has it."""

    @property
    def epochs(self) -> Sequence[EpochStart]:
        """Return where the epochs of the log began, oldest first."""

    def append_epoch(self, epoch: int, identity: Identity) -> None:
        """Append the record that begins an epoch."""

    def piece_end(self, position: int, bytes_max: int) -> int:
        """Return the end of a piece of whole records from `position` on: `bytes_max`, or one record.

        StoreCorruptError where no record is to be found.
        """

    def is_at_hand(self, position: int, bytes_max: int) -> bool:
        """Return whether the piece from there on can be had without waiting for the disk."""

    def append_copy(self, position: int, end: int, content: object) -> None:
        """Append what a master sent. StoreCorruptError for bytes that are no log; whole records may stay."""

    def cut(self, position: int) -> None:
        """Remove everything from there on, for good: a crash afterwards does not bring it back.

        StoreCorruptError when no record ends there.
        """


class MemberFile(Protocol):
    """The facts a member remembers beside its log."""

    @property
    def identity(self) -> Identity:
        """Return the member's number and the incarnation of its log."""

    @property
    def promised_epoch(self) -> int:
        """Return the latest epoch promised; nothing of an earlier one is accepted."""

    @property
    def confirmed(self) -> int:
        """A position below which everything is confirmed; after a crash it may be an earlier one."""

    def promise(self, epoch: int) -> None:
        """Remember a later epoch; it is on the disk when this returns."""

    def note_confirmed(self, position: int) -> None:
        """Remember a later confirmed position, some time soon."""


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How members follow and suspect each other; the same on all of them."""

    acknowledge_flushed: bool = False
    """True: a record counts as received by a member when its disk has it."""
    members: tuple[MemberAddress, ...] = ()
    """All members, for a state that does not name them."""
    in_sync_min: int = 0
    """Members that must be in sync, or there are few; 0 means 1 of up to two members and 2 of more."""
    refuses_when_few: bool | None = None
    """True: nothing is acknowledged while there are few. None means with more than two members."""
    heartbeat_s: float = 0.25
    fall_behind_s: float = 2.0
    """A member that leaves bytes unacknowledged so long is in sync no more."""
    suspect_s: float = 1.25
    """Silence of the master after which a member acts."""
    beat_stale_s: float = 1.0
    """Age of a member's beat in the consensus store from which on the member may be gone."""
    rank_s: float = 0.15
    """How long a member lets each better one go first."""
    current_s: float = 1.0
    """A master that has had no sign for so long that nobody else is master gives nothing that only one may
    give. Less than what others wait before they stand."""
    store_silent_s: float = 3.0
    """A master whose signs of life the consensus store has not answered for so long begins no change that
    others wait for."""
    retry_s: float = 0.2
    poll_s: float = 2.0
    hand_over_s: float = 1.0
    chunk_bytes: int = 256 * 1024
    pieces_max: int = 2
    """With so many pieces on the way, a follower is sent what is new once it has received one: under load a
    piece then has the records of many turns, and costs no more than that of one."""
    window_bytes: int = 8 * 1024 * 1024
    """A follower is sent so much ahead of its acknowledgements."""
    catch_up_window_bytes: int = 2 * 1024 * 1024
    """One that is not in sync is sent less, so that those in sync do not wait behind it."""
    catch_up_bytes_per_s: int = 0
    """The rate at which such a follower is sent the log at most; 0 is as fast as it goes."""

    def members_of(self, state: ClusterState) -> tuple[MemberAddress, ...]:
        """Return all members: those of the state, or of the settings where it does not name them."""
        return state.members or self.members

    def has_member(self, state: ClusterState, number: int) -> bool:
        """Return whether a number is that of a member."""
        members = self.members_of(state)
        return not members or any(member == number for member, _ in members)

    def in_sync_min_of(self, state: ClusterState) -> int:
        """Return how many members must be in sync, or there are few."""
        return self.in_sync_min or (2 if len(self.members_of(state)) > 2 else 1)

    def refuses_when_few_of(self, state: ClusterState) -> bool:
        """Return whether nothing is acknowledged while there are few."""
        if self.refuses_when_few is None:
            return len(self.members_of(state)) > 2
        return self.refuses_when_few

    def is_refusing(self, state: ClusterState) -> bool:
        """Return whether nothing may be acknowledged while this state is recorded.

        Whatever the settings say now: who is eligible has everything only because nothing was acknowledged
        since it became so.
        """
        has_few = len(state.in_sync) < self.in_sync_min_of(state)
        return bool(state.eligible) or (has_few and self.refuses_when_few_of(state))
