"""Mistakes that other systems have made, or that suggest themselves, as changes of the state machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest
import replication_sim
from msgspec.structs import replace

from iotmq.replication import leading, member
from iotmq.replication.cluster_state import ClusterState
from iotmq.replication.leading import Leading
from iotmq.replication.member import Member
from iotmq.replication.next_state import MemberChange, changed_members
from iotmq.replication.ports import MemberSettings
from iotmq.replication.state_change import StateChange

Mutant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def _property(patch: pytest.MonkeyPatch, owner: type, name: str, get: Callable[[Any], Any]) -> None:
    patch.setattr(owner, name, property(get))


def grown_before_effective(patch: pytest.MonkeyPatch) -> None:
    """RocketMQ 5663: a member counts only once its joining is answered."""
    _property(patch, Leading, "effective", lambda self: frozenset(self.state.in_sync))


def shrunk_before_recorded(patch: pytest.MonkeyPatch) -> None:
    """What is asked for counts at once."""
    _property(
        patch, Leading, "effective", lambda self: frozenset((*self._change.pending, self.state)[0].in_sync)
    )


def connections_instead_of_the_set(patch: pytest.MonkeyPatch) -> None:
    """RocketMQ 6662: the minimum over who is connected."""
    _property(
        patch,
        Leading,
        "effective",
        lambda self: frozenset(
            {self._own, *(each.identity for each in self.followers.values() if each.is_connected)}
        ),
    )


def unclean_start_keeps_its_incarnation(patch: pytest.MonkeyPatch) -> None:
    """KIP-966, NATS: what lost the end of its log is believed."""
    patch.setattr(replication_sim.Node, "new_incarnation", lambda self: None)


def cut_to_the_shorter_log(patch: pytest.MonkeyPatch) -> None:
    """KIP-101: epochs are not compared."""
    patch.setattr(leading, "common_point", lambda ours, our_end, theirs, their_end: min(our_end, their_end))


def newest_epoch_only(patch: pytest.MonkeyPatch) -> None:
    """KIP-279: only the follower's last epoch is looked for; if it is unknown its log is taken as it is."""

    def mutant(ours: Any, our_end: int, theirs: Any, their_end: int) -> int:
        if theirs and theirs[-1] in ours:
            return leading_common_point(ours, our_end, theirs, their_end) or 0
        return min(our_end, their_end)

    leading_common_point = leading.common_point
    patch.setattr(leading, "common_point", mutant)


def cut_not_synced(patch: pytest.MonkeyPatch) -> None:
    """RocketMQ 10666: a crash brings back what was cut off."""
    cut, stop = replication_sim.SimLog.cut, replication_sim.Node.stop

    def cut_mutant(self: Any, position: int) -> None:
        self.tail = (position, self.records[position:])
        cut(self, position)

    def stop_mutant(self: Any, *, is_power_cut: bool) -> None:
        position, tail = getattr(self.log, "tail", (0, []))
        stop(self, is_power_cut=is_power_cut)
        if tail and self.log.end < position + len(tail):
            cut(self.log, min(position, self.log.end))
            if self.log.end == position:
                for record in tail:
                    self.log.append(record)

    patch.setattr(replication_sim.SimLog, "cut", cut_mutant)
    patch.setattr(replication_sim.Node, "stop", stop_mutant)


def silence_means_failure(patch: pytest.MonkeyPatch) -> None:
    """A change nobody answered is taken as one that was not made."""

    def mutant(self: StateChange, now_s: float) -> None:
        if self._proposed is not None and now_s - self._asked_s >= self._retry_s:
            self._proposed = None

    patch.setattr(StateChange, "tick", mutant)


def unconfirmed_is_shown(patch: pytest.MonkeyPatch) -> None:
    """RocketMQ 6609: followers show all they have."""
    patch.setattr(
        Leading,
        "_send",
        lambda self, follower, position, end, now_s: self._do(
            member.Send(follower.identity.member, member.Data(self.epoch, position, end, end))
        ),
    )


def few_by_the_recorded_set_only(patch: pytest.MonkeyPatch) -> None:
    """Who has been asked to leave may be chosen while the others go on."""
    _property(patch, Leading, "has_few", lambda self: False)


def old_epoch_continued(patch: pytest.MonkeyPatch) -> None:
    """A master that was restarted goes on in its epoch."""
    patch.setattr(Member, "_has_won", lambda self, state: True)


def removed_member_stays_in_sync(patch: pytest.MonkeyPatch) -> None:
    """A member is removed by one change, and is in sync no more by the next."""

    def mutant(state: ClusterState, settings: MemberSettings, change: MemberChange) -> ClusterState:
        changed = changed_members(state, settings, change)
        return replace(changed, in_sync=state.in_sync, eligible=())

    patch.setattr(leading, "changed_members", mutant)


def who_is_no_member_is_taken(patch: pytest.MonkeyPatch) -> None:
    """A member that was removed goes on like any other that has fallen behind."""
    patch.setattr(MemberSettings, "has_member", lambda self, state, number: True)


def a_former_master_gives_on(patch: pytest.MonkeyPatch) -> None:
    """A master gives locks until it is told of the next one."""
    patch.setattr(Leading, "is_current", lambda self, now_s: not self.is_fenced)


# Each with the first seed whose run notices it. Another one may be the first when the simulation has changed.
MUTANTS: Mapping[Mutant, int] = {
    grown_before_effective: 1,
    shrunk_before_recorded: 0,
    connections_instead_of_the_set: 0,
    unclean_start_keeps_its_incarnation: 0,
    cut_to_the_shorter_log: 0,
    newest_epoch_only: 6,
    cut_not_synced: 90,
    silence_means_failure: 29,
    unconfirmed_is_shown: 3,
    few_by_the_recorded_set_only: 0,
    old_epoch_continued: 4,
    removed_member_stays_in_sync: 15,
    who_is_no_member_is_taken: 6,
    a_former_master_gives_on: 20,
}
