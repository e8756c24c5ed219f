"""The disk as the state machine needs it, and the settings of a member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from iotmq.replication.cluster_state import Identity
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
    in_sync_min: int = 1
    refuses_when_few: bool = False
    """True: nothing is acknowledged while fewer than `in_sync_min` members are in sync."""
    heartbeat_s: float = 0.25
    fall_behind_s: float = 2.0
    """A member that leaves bytes unacknowledged so long is in sync no more."""
    suspect_s: float = 1.25
    """Silence of the master after which a member acts."""
    beat_stale_s: float = 1.0
    """Age of a member's beat in the consensus store from which on the member may be gone."""
    rank_s: float = 0.15
    """How long a member lets each better one go first."""
    current_s: float = 3.0
    """A master that the consensus store has not answered for so long hands over to nobody."""
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
