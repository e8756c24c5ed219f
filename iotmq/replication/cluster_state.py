"""The value that a consensus store holds for one broker name; only it decides who is master."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from iotmq import limits
from iotmq.addresses import parse_address
from iotmq.errors import StoreError

FORMAT = 1


class Identity(NamedTuple):
    """A member with the log it has now.

    `incarnation` is a random text in the member's data directory, made anew whenever the log may have lost
    what was acknowledged. A member that comes back with another one has to catch up first.
    """

    member: int
    incarnation: str


class MemberAddress(NamedTuple):
    """A member's number, and HOST:PORT of its native port."""

    member: int
    address: str


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """The master, its epoch, all members, and those that have everything that was acknowledged."""

    format: int = FORMAT
    epoch: int
    """Counts masters: each has a number of its own, without end."""
    master: int
    in_sync: tuple[Identity, ...]
    """Members that have every acknowledged record, the master among them; sorted."""
    eligible: tuple[Identity, ...] = ()
    """Members that have left a set too small to acknowledge anything since: they have everything, too."""
    members: tuple[MemberAddress, ...] = ()
    """All members, sorted. None in a state that an earlier version of iotmq has written: the settings name
    them then."""
    reason: str = ""
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
        return _checked(msgspec.json.decode(data, type=ClusterState))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise StoreError(f"invalid replication state in the consensus store: {error}") from None


def state_of(told: object) -> ClusterState:
    """A state as a member tells it, decoded from JSON; StoreError when it is not one of this format."""
    try:
        return _checked(msgspec.convert(told, ClusterState))
    except ValueError as error:
        raise StoreError(f"a member tells an invalid replication state: {error}") from None


def members_of(told: object) -> tuple[MemberAddress, ...]:
    """All members as one of them tells them, decoded from JSON; StoreError when they cannot be."""
    try:
        members = msgspec.convert(told, tuple[MemberAddress, ...])
        check_members(members)
    except ValueError as error:
        raise StoreError(f"a member tells of members that cannot be: {error}") from None
    return members


def _checked(state: ClusterState) -> ClusterState:
    """Refuse a state of another version with StoreError, and one that cannot be with ValueError."""
    if state.format != FORMAT:
        raise StoreError(
            f"the replication state in the consensus store has format {state.format}, not {FORMAT}: "
            "run the same version of iotmq on all members"
        )
    check_members(state.members)
    return state


def check_members(members: tuple[MemberAddress, ...]) -> None:
    """Refuse members that cannot be: ValueError says why."""
    if len(members) > limits.REPLICATION_MEMBERS_MAX:
        raise ValueError(f"{len(members)} members, and {limits.REPLICATION_MEMBERS_MAX} are the most")
    numbers: set[int] = set()
    places: dict[tuple[str, int], int] = {}
    for member, address in members:
        if not 1 <= member <= limits.REPLICATION_MEMBER_MAX:
            raise ValueError(f"member {member}: numbers are 1 to {limits.REPLICATION_MEMBER_MAX}")
        if member in numbers:
            raise ValueError(f"two members have the number {member}")
        if len(address) > limits.REPLICATION_ADDRESS_CHARACTERS_MAX:
            raise ValueError(
                f"the address of member {member} has {len(address)} characters, and "
                f"{limits.REPLICATION_ADDRESS_CHARACTERS_MAX} are the most"
            )
        place = parse_address(address)
        if place in places:
            raise ValueError(f"members {places[place]} and {member} have the same address, {address}")
        numbers.add(member)
        places[place] = member
