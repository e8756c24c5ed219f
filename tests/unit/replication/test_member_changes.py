"""Members that are added and removed, as the state machine of one of them sees it."""

from __future__ import annotations

from typing import Any

import pytest
from replication_sim import SimFile, SimLog

from iotmq.errors import MemberChangeError
from iotmq.replication.cluster_state import ClusterState, Identity, MemberAddress
from iotmq.replication.member import Member, Role
from iotmq.replication.messages import (
    Ack,
    Action,
    Alarm,
    Connect,
    Disconnect,
    KnowMembers,
    Open,
    ReadState,
    ReplaceState,
)
from iotmq.replication.next_state import MemberChange
from iotmq.replication.ports import MemberSettings

A, B, C = Identity(1, "a"), Identity(2, "b"), Identity(3, "c")


def members(*numbers: int) -> tuple[MemberAddress, ...]:
    return tuple(MemberAddress(number, f"m{number}:1") for number in numbers)


def state(*in_sync: Identity, master: int = 1, **changes: Any) -> ClusterState:
    return ClusterState(epoch=1, master=master, in_sync=in_sync, **{"members": members(1, 2), **changes})


class Bench:
    """One member over a log and a file in memory."""

    def __init__(self, identity: Identity = A, **settings: Any) -> None:
        self.log, self.file = SimLog(), SimFile(identity)
        self.done: list[Action] = []
        made = MemberSettings(**{"members": members(1, 2), **settings})
        self.member = Member(made, self.log, self.file, self.done.append)
        self.version = 0

    def take(self) -> list[Action]:
        done, self.done[:] = list(self.done), []
        return done

    def told(self, state: ClusterState, now_s: float = 0.0) -> None:
        self.version += 1
        self.member.poked(now_s)
        read = self.take()[-1]
        assert isinstance(read, ReadState)
        self.member.beaten({}, now_s)
        self.member.state_read(read.number, self.version, state, now_s)

    def asked(self) -> ClusterState:
        """Return what the consensus store is asked to record, and the actions before it are forgotten."""
        (asked,) = [action for action in self.take() if isinstance(action, ReplaceState)]
        self.number = asked.number
        return asked.state

    def recorded(self, now_s: float = 0.0) -> None:
        self.version += 1
        self.member.state_replaced(self.number, self.version, now_s)

    def is_followed_by(self, identity: Identity, now_s: float = 0.0) -> None:
        self.member.received(identity.member, Open(identity, 0, 0, 0, 0, ()), now_s)
        self.member.received(identity.member, Ack(1, self.log.end, self.log.end), now_s)

    def append(self, now_s: float = 0.0) -> int:
        self.log.append(("message", 1, self.log.end))
        self.member.log_grew(now_s)
        return self.log.end


def lead(*followers: Identity, **changes: Any) -> Bench:
    """A master whose followers are in sync."""
    bench = Bench()
    bench.told(state(A, *followers, **changes))
    for identity in followers:
        bench.is_followed_by(identity)
    assert bench.member.role is Role.LEADING
    bench.take()
    return bench


def test_one_that_is_no_member_waits_and_says_how_it_is_added() -> None:
    bench = Bench(C, members=members(1, 2, 3))
    bench.told(state(A, B))
    known, alarm = bench.take()
    assert known == KnowMembers(members(1, 2))
    assert isinstance(alarm, Alarm)
    assert "`iotmq replication add 3=m3:1`" in alarm.text
    for tenths in range(1, 30):
        bench.member.tick(tenths / 10)
    assert bench.member.role is Role.HELD
    assert not [action for action in bench.take() if not isinstance(action, ReadState)], "it takes no part"
    bench.told(state(A, B, members=members(1, 2, 3)), 3.0)
    bench.member.tick(3.0)
    assert bench.member.role is Role.FOLLOWING
    assert Connect(1) in bench.take()


def test_a_follower_that_is_removed_waits() -> None:
    bench = Bench(B)
    bench.told(state(A, B))
    assert bench.member.role is Role.FOLLOWING
    bench.told(state(A, members=members(1)), 1.0)
    assert bench.member.role is Role.HELD
    assert Disconnect(1, is_outgoing=True) in bench.take()


def test_a_master_that_was_replaced_and_removed_serves_no_more() -> None:
    bench = lead(B)
    bench.told(ClusterState(epoch=2, master=2, in_sync=(B,), members=members(2)), 1.0)
    assert bench.member.role is Role.HELD
    assert bench.member.leading is None


def test_a_new_member_follows_once_it_is_about_to_be_recorded_and_is_in_sync_afterwards() -> None:
    bench = lead(B)
    bench.is_followed_by(C)
    assert bench.take() == [Disconnect(3, is_outgoing=False)]
    bench.member.change_members(MemberChange(3, "m3:1"), 0.0)
    bench.member.tick(0.0)
    asked = bench.asked()
    assert (asked.members, asked.in_sync) == (members(1, 2, 3), (A, B))
    # It may have read the state before the master has its answer.
    bench.is_followed_by(C)
    assert Disconnect(3, is_outgoing=False) not in bench.take()
    bench.recorded()
    assert KnowMembers(members(1, 2, 3)) in bench.take()
    bench.member.tick(0.1)
    assert bench.asked().in_sync == (A, B, C)


def test_a_removed_member_counts_until_that_is_recorded() -> None:
    bench = lead(B, C, members=members(1, 2, 3))
    bench.member.change_members(MemberChange(3, ""), 0.0)
    bench.member.tick(0.0)
    asked = bench.asked()
    assert (asked.members, asked.in_sync) == (members(1, 2), (A, B))
    end = bench.append()
    bench.member.received(2, Ack(1, end, end), 0.0)
    assert bench.file.confirmed < end, "the other one may be elected still"
    bench.take()
    bench.recorded()
    assert bench.file.confirmed == end
    assert Disconnect(3, is_outgoing=False) in bench.take()
    bench.is_followed_by(C)
    assert bench.take() == [Disconnect(3, is_outgoing=False)]


def test_one_change_at_a_time() -> None:
    bench = lead(B)
    bench.member.change_members(MemberChange(3, "m3:1"), 0.0)
    with pytest.raises(MemberChangeError, match="under way"):
        bench.member.change_members(MemberChange(4, "m4:1"), 0.0)
    bench.member.tick(0.0)
    assert bench.asked().members == members(1, 2, 3)
    # It is asked for until it is answered, and the next one waits.
    bench.member.change_members(MemberChange(4, "m4:1"), 0.1)
    bench.member.tick(0.1)
    assert not [action for action in bench.take() if isinstance(action, ReplaceState)]
    bench.recorded(0.2)
    bench.member.tick(0.2)
    assert bench.asked().members == members(1, 2, 3, 4)


def test_a_change_that_has_waited_too_long_is_not_made() -> None:
    bench = lead(B)
    bench.member.change_members(MemberChange(3, "m3:1"), 0.0)
    bench.member.tick(0.0)
    bench.asked()
    bench.member.change_members(MemberChange(4, "m4:1"), 0.0)
    bench.member.tick(bench.member.settings.hand_over_s - 0.1)
    bench.member.tick(bench.member.settings.hand_over_s)
    bench.take()
    bench.recorded(1.1)
    bench.member.tick(1.1)
    assert not [action for action in bench.take() if isinstance(action, ReplaceState)]


def test_a_change_that_cannot_be_made_any_more_raises_an_alarm() -> None:
    bench = lead(B, C, members=members(1, 2, 3))
    # The third one is about to be recorded as not in sync.
    bench.member.link_closed(3, 0.0, is_outgoing=False, is_refused=True)
    bench.member.tick(0.0)
    assert bench.asked().in_sync == (A, B)
    bench.member.change_members(MemberChange(2, ""), 0.0)
    bench.recorded()
    bench.take()
    bench.member.tick(0.1)
    (alarm,) = [action for action in bench.take() if not hasattr(action, "message")]
    assert isinstance(alarm, Alarm)
    assert "not done, that member 2 is removed: 1 member is in sync then" in alarm.text


def test_changes_are_refused_by_who_is_not_master_or_hands_over_or_hears_no_consensus_store() -> None:
    change = MemberChange(3, "m3:1")
    follower = Bench(B)
    follower.told(state(A, B))
    with pytest.raises(MemberChangeError, match="not master"):
        follower.member.change_members(change, 0.0)
    bench = lead(B)
    with pytest.raises(MemberChangeError, match="consensus store does not answer"):
        bench.member.change_members(change, 3.1)
    bench.append()
    assert bench.member.hand_over(2, 0.0)
    with pytest.raises(MemberChangeError, match="about to be master"):
        bench.member.change_members(change, 0.0)


def test_a_hand_over_to_who_is_removed_meanwhile_comes_to_nothing() -> None:
    bench = lead(B, C, members=members(1, 2, 3))
    bench.member.change_members(MemberChange(3, ""), 0.0)
    bench.append()
    assert bench.member.hand_over(3, 0.0)
    bench.member.tick(0.0)
    assert bench.asked().members == members(1, 2)
    bench.recorded()
    bench.member.tick(0.1)
    bench.member.tick(bench.member.settings.hand_over_s)
    leading = bench.member.leading
    assert leading is not None
    assert not leading.is_handing_over


def test_the_members_of_the_settings_are_recorded_where_there_are_none() -> None:
    bench = lead(B, members=())
    bench.member.tick(0.0)
    asked = bench.asked()
    assert (asked.members, asked.in_sync) == (members(1, 2), (A, B))
    bench.recorded()
    bench.member.tick(0.1)
    assert not [action for action in bench.take() if isinstance(action, ReplaceState)]


def test_while_somebody_is_eligible_nothing_is_confirmed_whatever_the_settings_are_now() -> None:
    bench = Bench(in_sync_min=1, refuses_when_few=False)
    bench.told(state(A, eligible=(B,)))
    assert bench.member.role is Role.TAKING_OVER
    end = bench.append()
    assert bench.file.confirmed == 0
    bench.take()
    bench.member.tick(0.0)
    assert bench.asked().eligible == ()
    assert bench.file.confirmed == 0, "not before that is recorded"
    bench.recorded()
    assert bench.file.confirmed == end


def test_who_is_in_sync_and_no_member_is_recorded_as_neither() -> None:
    """As a master of an earlier version may have it, which has lost who was added."""
    bench = Bench()
    bench.told(state(A, B, C))
    bench.is_followed_by(B)
    bench.take()
    bench.member.tick(0.0)
    assert bench.asked().in_sync == (A, B)
    assert bench.member.role is Role.TAKING_OVER, "it counts until that is recorded"
    bench.recorded()
    assert bench.member.role is Role.LEADING
