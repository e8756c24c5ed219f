"""When a master may give what only one master may give, at both sides of each limit."""

from __future__ import annotations

from typing import Any

import pytest
from replication_sim import SimFile, SimLog

from iotmq.replication.cluster_state import ClusterState, Identity
from iotmq.replication.member import Member, Role
from iotmq.replication.messages import Ack, Action, Open, ReadState, ReplaceState
from iotmq.replication.ports import MemberSettings

A, B, C = Identity(1, "a"), Identity(2, "b"), Identity(3, "c")
LIMIT_S = MemberSettings().current_s
STEP_S = 0.05


class Master:
    """Member 1, master of epoch 1, whose state was read before the time 0."""

    def __init__(self, *followers: Identity, eligible: tuple[Identity, ...] = (), **settings: Any) -> None:
        self.state = ClusterState(epoch=1, master=1, in_sync=(A, *followers), eligible=eligible)
        self.log, self.file = SimLog(), SimFile(A)
        self.done: list[Action] = []
        self.member = Member(MemberSettings(**settings), self.log, self.file, self.done.append)
        self.now_s = -2.0
        self.member.start(self.now_s)
        self.member.beaten({}, self.now_s)
        self.answer()
        self.now_s = 0.0
        for identity in followers:
            self.member.received(identity.member, Open(identity, 0, 0, 0, 0, ()), 0.0)
        # As after any pause: what has waited in it is not believed.
        self.member.tick(0.0)
        self.done.clear()

    def reads(self) -> list[int]:
        found = [action.number for action in self.done if isinstance(action, ReadState)]
        self.done.clear()
        return found

    def answer(self) -> None:
        """Answer the last read of the state."""
        self.member.state_read(self.reads()[-1], 1, self.state, self.now_s)

    def pass_until(self, now_s: float) -> None:
        while self.now_s < now_s:
            self.now_s = min(now_s, self.now_s + STEP_S)
            self.member.tick(self.now_s)

    def acked_by(self, *identities: Identity) -> None:
        for identity in identities:
            self.member.received(identity.member, Ack(1, self.log.end, self.log.end), self.now_s)

    @property
    def is_current(self) -> bool:
        return self.member.is_current(self.now_s)


def test_it_is_for_a_second_after_all_in_sync_have_acknowledged() -> None:
    master = Master(B, C)
    assert not master.is_current
    master.pass_until(0.5)
    master.acked_by(B)
    assert not master.is_current, "the other one could be master"
    master.acked_by(C)
    assert master.is_current
    master.pass_until(0.9)
    master.acked_by(C)
    master.pass_until(0.5 + LIMIT_S)
    assert master.is_current
    master.pass_until(0.5 + LIMIT_S + STEP_S)
    assert not master.is_current
    master.acked_by(B)
    assert master.is_current


def test_it_is_no_more_when_the_connection_of_one_has_ended() -> None:
    master = Master(B, C)
    master.pass_until(0.5)
    master.acked_by(B, C)
    master.member.link_closed(2, 0.5, is_outgoing=False)
    assert not master.is_current


def test_it_is_for_a_second_after_it_has_asked_who_is_master() -> None:
    master = Master(B)
    master.pass_until(0.5)
    master.reads()
    master.pass_until(0.5 + LIMIT_S / 4)
    (number,) = master.reads()
    master.pass_until(1.2)
    master.reads()
    assert not master.is_current
    # The answer says nothing about the time in which it was on its way.
    master.member.state_read(number, 1, master.state, 1.2)
    assert master.is_current
    master.pass_until(0.5 + LIMIT_S / 4 + LIMIT_S - STEP_S)
    assert master.is_current
    master.pass_until(0.5 + LIMIT_S / 4 + LIMIT_S + STEP_S)
    assert not master.is_current


def test_an_answer_with_another_master_does_not_count() -> None:
    master = Master(B)
    master.pass_until(0.5)
    master.state = ClusterState(epoch=2, master=2, in_sync=(A, B))
    master.member.state_read(master.reads()[-1], 2, master.state, 0.5)
    assert master.member.role is Role.FOLLOWING
    assert not master.is_current


def test_it_asks_often_only_while_followers_do_not_show_it() -> None:
    master = Master(B)
    for _ in range(40):
        master.pass_until(master.now_s + STEP_S)
        master.acked_by(B)
    assert len(master.reads()) <= 3
    master.pass_until(master.now_s + 2.0)
    assert len(master.reads()) >= 4


def test_one_that_is_alone_in_the_set_needs_no_sign() -> None:
    master = Master()
    master.pass_until(5.0)
    assert master.is_current


def test_one_with_eligible_members_needs_the_consensus_store() -> None:
    master = Master(eligible=(B,), in_sync_min=2, refuses_when_few=True)
    master.pass_until(1.0)
    assert not master.is_current, "an eligible one may have been made master"
    master.answer()
    assert master.is_current


def test_one_that_hands_over_is_not() -> None:
    master = Master(B)
    master.pass_until(0.5)
    master.acked_by(B)
    assert master.is_current
    master.member.beaten({}, 0.5)
    assert master.member.hand_over(2, 0.5)
    master.member.tick(0.5)
    assert any(isinstance(action, ReplaceState) for action in master.done)
    assert not master.is_current


@pytest.mark.parametrize(("pause_s", "is_believed"), [(LIMIT_S / 2, True), (LIMIT_S / 2 + STEP_S, False)])
def test_what_has_waited_while_the_process_was_stopped_is_not_believed(
    pause_s: float, is_believed: bool
) -> None:
    master = Master(B)
    master.pass_until(0.5)
    master.acked_by(B)
    master.now_s += pause_s
    assert master.is_current is is_believed, "it does not even tick"
    # An acknowledgement that was sent before is read now.
    master.acked_by(B)
    assert master.is_current is is_believed
    master.member.tick(master.now_s)
    assert master.is_current is is_believed
    master.pass_until(master.now_s + master.member.settings.heartbeat_s)
    master.acked_by(B)
    assert master.is_current


def test_times_of_reads_that_are_never_answered_are_forgotten() -> None:
    master = Master(B)
    master.pass_until(20.0)
    assert len(master.member._reads_s) == 16
