"""The value that a consensus store holds for one broker name; only it decides who is master."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from iotmq.errors import StoreError

FORMAT = 1


class Identity(NamedTuple):
    """A member with the log it has now.

    `incarnation` is a random text in the member's data directory, made anew whenever the log may have lost
    what was acknowledged. A member that comes back with another one has to catch up first.
    """

    member: int
    incarnation: str


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """The master, its epoch, and the members that have everything that was acknowledged."""

    format: int = FORMAT
    epoch: int
    """Counts masters: each has a number of its own, without end."""
    master: int
    in_sync: tuple[Identity, ...]
    """Members that have every acknowledged record, the master among them; sorted."""
    eligible: tuple[Identity, ...] = ()
    """Members that have left a set too small to acknowledge anything since: they have everything, too."""
    reason: str = ""
    since_ms: int = 0
    is_forced: bool = False
    """True when an operator made a member master that may lack what was acknowledged."""

    def encode(self) -> bytes:
        """Return the state as JSON."""
        return msgspec.json.encode(self)

    def has_everything(self, identity: Identity) -> bool:
        """Return whether a member has every acknowledged record, so that it may become master."""
        return identity in self.in_sync or identity in self.eligible


def decode_state(data: bytes) -> ClusterState:
    """A state as the consensus store holds it; StoreError when it is not one of this format."""
    try:
        state = msgspec.json.decode(data, type=ClusterState)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"invalid replication state in the consensus store: {error}") from None
    if state.format != FORMAT:
        raise StoreError(
            f"the replication state in the consensus store has format {state.format}, not {FORMAT}: "
            "run the same version of iotmq on all members"
        )
    return state
