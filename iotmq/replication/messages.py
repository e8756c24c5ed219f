"""Messages between members, and actions the state machine wants done: plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from iotmq.replication.cluster_state import ClusterState, Identity, MemberAddress
from iotmq.replication.epochs import EpochStart


class Open(NamedTuple):
    """A follower to its master: the log it has."""

    identity: Identity
    promised_epoch: int
    oldest: int
    end: int
    confirmed: int
    epochs: Sequence[EpochStart]


class FollowFrom(NamedTuple):
    """The master's answer: cut the log there, then take what comes."""

    epoch: int
    position: int
    is_forced: bool


class CopyNeeded(NamedTuple):
    """The master's answer to a log that has nothing in common with its own: take a copy of it first."""

    epoch: int


class Data(NamedTuple):
    """The master to a follower: the bytes of the log from `position` to `end`; without any it is a heartbeat.

    Who sends it puts the bytes in.
    """

    epoch: int
    position: int
    end: int
    confirmed: int
    content: object = None
    oldest: int = 0
    """Where the master's log begins: followers keep what it keeps."""


class Ack(NamedTuple):
    """A follower to its master: up to where it has the log of this epoch, and has it on the disk."""

    epoch: int
    received: int
    flushed: int


class Released(NamedTuple):
    """A master that stops, to its followers: another one may be chosen at once."""

    epoch: int


class HandedOver(NamedTuple):
    """A master to the follower it has made master."""

    epoch: int


Message: TypeAlias = Open | FollowFrom | CopyNeeded | Data | Ack | Released | HandedOver


class Send(NamedTuple):
    """Send a message on the connection with a member; drop it when there is none."""

    member: int
    message: Message


class Connect(NamedTuple):
    """Connect to the master; `link_opened` or `link_closed` follows."""

    member: int


class Disconnect(NamedTuple):
    """Close the connection to a master (`is_outgoing`), or that of a follower."""

    member: int
    is_outgoing: bool


class ReadState(NamedTuple):
    """Read the state, linearizably; `state_read` with the same number follows, if anything does."""

    number: int


class ReplaceState(NamedTuple):
    """Replace the state if it still has that version; `state_replaced` with the same number follows."""

    number: int
    version: int
    state: ClusterState


class KnowMembers(NamedTuple):
    """These are all members now: where each is to be found."""

    members: tuple[MemberAddress, ...]


class AskOthers(NamedTuple):
    """Ask members whether they hear the master; `hearing_told` follows for each answer."""

    members: tuple[int, ...]


class LoadLog(NamedTuple):
    """Have the log from a position on at hand, for a follower; `log_loaded` follows."""

    member: int
    position: int


class CopyLog(NamedTuple):
    """Replace the whole log by a copy of the master's; `log_copied` follows."""

    member: int


class Confirmed(NamedTuple):
    """Everything below this position may be shown and acknowledged."""

    position: int


class Lead(NamedTuple):
    """Start what only a master does: its epoch's record is confirmed."""

    epoch: int


class Resign(NamedTuple):
    """Stop what only a master does, and fail what waits to be acknowledged."""

    epoch: int


class Alarm(NamedTuple):
    """Tell the operator."""

    text: str


Action: TypeAlias = (
    Send
    | Connect
    | Disconnect
    | ReadState
    | ReplaceState
    | KnowMembers
    | AskOthers
    | LoadLog
    | CopyLog
    | Confirmed
    | Lead
    | Resign
    | Alarm
)
