"""Work out the state that is to follow another one, and what speaks against it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from iotmq.errors import MemberChangeError
from iotmq.replication.cluster_state import ClusterState, Identity, MemberAddress, check_members
from iotmq.replication.ports import MemberSettings


class MemberChange(NamedTuple):
    """One member more, or one fewer."""

    member: int
    address: str
    """HOST:PORT of the native port of a new member; empty to remove a member."""
    is_confirmed: bool = False
    """True: also when too few members would be in sync."""

    @property
    def text(self) -> str:
        """Return the change in words."""
        return f"member {self.member} is {'added' if self.address else 'removed'}"


def next_state(
    state: ClusterState, settings: MemberSettings, in_sync: Iterable[Identity], *, reason: str
) -> ClusterState:
    """Return the state with another set of members in sync.

    Where nothing is acknowledged by a set that is too small, those who leave it have everything that will
    have been acknowledged until it is large enough again: they stay eligible.
    """
    following = ClusterState(
        epoch=state.epoch,
        master=state.master,
        in_sync=tuple(sorted(in_sync)),
        members=settings.members_of(state),
        reason=reason,
    )
    if not settings.is_refusing(following):
        return following
    eligible = {*state.in_sync, *state.eligible}.difference(following.in_sync)
    return replace(
        following,
        eligible=tuple(sorted(each for each in eligible if settings.has_member(following, each.member))),
    )


def changed_members(state: ClusterState, settings: MemberSettings, change: MemberChange) -> ClusterState:
    """Return the state with one member more or one fewer; MemberChangeError says why there is none.

    A member that is removed is in sync no more by the same change, and a new one is not yet: it has to catch
    up. So a number that comes back finds nothing that was said of it before.
    """
    members = dict(settings.members_of(state))
    if change.address:
        if change.member in members:
            raise MemberChangeError(
                f"member {change.member} is there already, at {members[change.member]}: remove it first, or "
                "take another number"
            )
        members[change.member] = change.address
    elif change.member == state.master:
        raise MemberChangeError(
            f"member {change.member} is master: hand over first, by `iotmq replication hand-over`"
        )
    elif change.member not in members:
        names = ", ".join(map(str, sorted(members)))
        raise MemberChangeError(f"there is no member {change.member}: members are {names}")
    else:
        del members[change.member]
    addresses = tuple(MemberAddress(*each) for each in sorted(members.items()))
    try:
        check_members(addresses)
    except ValueError as error:
        raise MemberChangeError(str(error)) from None
    following = next_state(
        replace(state, members=addresses),
        settings,
        (each for each in state.in_sync if each.member in members),
        reason=change.text,
    )
    _check_in_sync(state, following, settings, change)
    return following


def _check_in_sync(
    state: ClusterState, following: ClusterState, settings: MemberSettings, change: MemberChange
) -> None:
    """Refuse a state with fewer members in sync than there have to be."""
    count = len(following.in_sync)
    if settings.in_sync_min_of(following) > len(following.members):
        raise MemberChangeError(
            f"replication.in_sync_min is {settings.in_sync_min}, and {len(following.members)} members would "
            "be left: lower it first, on all members"
        )
    least = max(settings.in_sync_min_of(state), settings.in_sync_min_of(following))
    if count < least and not change.is_confirmed:
        is_one = count == 1
        raise MemberChangeError(
            f"{count} member{' is' if is_one else 's are'} in sync then, and there should be {least}: wait "
            "until others have caught up, or remove those that are lost. With --yes it is done all the same"
        )
