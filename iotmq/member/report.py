"""Report on one run of a member: alarms, the status that operators and other members get, metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from iotmq.metrics import Metric, samples
from iotmq.ports.replication_state import Follower, ReplicationState
from iotmq.replicated.member_store import MemberStore
from iotmq.replication.member import Member, Role

_KEPT: Final = 16
# What still holds is said again before.
_SAID_S: Final = 10.0


class Alarms:
    """Sentences for the operator, with the time they were said last."""

    def __init__(self) -> None:
        self._said_s: dict[str, float] = {}
        self._is_held = True

    def say(self, text: str, now_s: float) -> bool:
        """Note a sentence; return whether it is a new one."""
        is_new = self._said_s.pop(text, None) is None
        while len(self._said_s) >= _KEPT:
            del self._said_s[next(iter(self._said_s))]
        self._said_s[text] = now_s
        return is_new

    def note_held(self, *, is_held: bool) -> None:
        """Note whether the member waits. When it does no more, what it has said is over, or is said again."""
        if self._is_held and not is_held:
            self._said_s.clear()
        self._is_held = is_held

    def said(self, now_s: float) -> list[str]:
        """Return what was said of late, the latest last; of a member that waits, all there is."""
        return [text for text, said_s in self._said_s.items() if self._is_held or now_s - said_s < _SAID_S]


def diverged_alarms(member: int, size_bytes: int, count: int) -> list[str]:
    """Return the sentence for bytes that were cut off and kept, if there are any."""
    if not count:
        return []
    files = "1 file" if count == 1 else f"{count} files"
    return [
        f"commitlog.diverged of member {member} has {size_bytes:,} bytes in {files}: records that were cut "
        "off its log, because the master does not have them. Look at each .bin file "
        "with `iotmq store salvage FILE`, then delete the files"
    ]


def hold_reason(member: Member) -> str | None:
    """Return why a master takes no messages just now; None while it does, and for who is not master."""
    leading = member.leading
    if leading is None or leading.takes_appends:
        return None
    if leading.has_few:
        count = leading.in_sync_count
        return (
            f"{count} {'member is' if count == 1 else 'members are'} in sync, and "
            f"replication.in_sync_min is {member.settings.in_sync_min_of(leading.state)}"
        )
    return "another member is about to be master"


def hand_over_refusal(member: Member, number: int, consensus_problem: str) -> str:
    """Return why no other member, or not member `number`, can be made master now.

    `consensus_problem` is why the consensus store does not answer; empty while it does.
    """
    leading = member.leading
    if leading is None or member.role is not Role.LEADING:
        return f"member {member.number} is not master"
    if consensus_problem:
        return f"the consensus store does not answer: {consensus_problem}"
    if number and not member.is_member(number):
        return f"there is no member {number}"
    if leading.successors(number):
        return "the consensus store has not answered of late"
    if number:
        return f"member {number} is not in sync, or not connected to the master"
    return "no other member is in sync and connected to the master"


def status(member: Member, opened: MemberStore, now_s: float) -> dict[str, Any]:
    """Return what a member says of itself, as JSON; positions are those of the log."""
    log, file, leading, state = opened.log, opened.file, member.leading, member.state
    followers = {}
    if leading is not None:
        followers = {
            str(number): {
                "incarnation": follower.identity.incarnation,
                "isConnected": follower.is_connected,
                "sent": follower.sent,
                "acknowledged": follower.acked,
                "isInSync": follower.identity in leading.state.in_sync,
            }
            for number, follower in leading.followers.items()
        }
    return {
        "member": file.identity.member,
        "incarnation": file.identity.incarnation,
        "role": member.role.value,
        "hearsMaster": member.hears_master(now_s),
        "promisedEpoch": file.promised_epoch,
        "lastEpoch": log.epochs[-1].epoch if log.epochs else 0,
        "oldest": log.oldest,
        "end": log.end,
        "confirmed": file.confirmed,
        "flushed": log.flushed,
        "members": file.members,
        "state": None if state is None else msgspec.to_builtins(state),
        "stateVersion": member.state_version,
        "followers": followers,
    }


def replication_state(
    member: Member, opened: MemberStore, told: Mapping[str, Any]
) -> ReplicationState | None:
    """Return what a master tells of its followers; None for who is not master. `told` is its whole status."""
    leading, end = member.leading, opened.log.end
    if leading is None:
        return None
    state, known = leading.state, leading.followers
    addresses = dict(state.members or opened.file.members)
    in_sync = {identity.member for identity in state.in_sync}
    followers = []
    for number in sorted({*addresses, *known} - {member.number}):
        follower = known.get(number)
        position = None if follower is None else follower.acked
        followers.append(
            Follower(
                name=str(number),
                address=addresses.get(number, ""),
                is_connected=follower is not None and follower.is_connected,
                is_in_sync=number in in_sync if follower is None else follower.identity in state.in_sync,
                position=position,
                behind_bytes=None if position is None else max(0, end - position),
            )
        )
    alarms = [f"the master takes no messages: {told['holds']}"] if told["holds"] else []
    if told["consensusProblem"]:
        alarms.append(f"the consensus store does not answer: {told['consensusProblem']}")
    return ReplicationState(
        mode="elected",
        master=member.number,
        epoch=state.epoch,
        in_sync=len(in_sync),
        in_sync_min=member.settings.in_sync_min_of(state),
        end=end,
        confirmed=opened.file.confirmed,
        followers=followers,
        alarms=[*alarms, *told["alarms"]],
    )


def metrics(
    member: Member, opened: MemberStore, *, consensus_failures: int, diverged_bytes: int, alarms: int
) -> Iterator[Metric]:
    """Yield the samples of a member: its role, its log, its followers, and what its driver counts."""
    log, state, leading = opened.log, member.state, member.leading
    for role in Role:
        yield Metric(
            "iotmq_replication_role",
            "gauge",
            "1 for the role this member has.",
            float(member.role is role),
            (("role", role.value),),
        )
    yield from samples(
        ("iotmq_replication_epoch", "The epoch of the recorded master.", state.epoch if state else 0),
        ("iotmq_replication_in_sync", "Members recorded as in sync.", len(state.in_sync) if state else 0),
        ("iotmq_replication_end", "Position behind the last byte of the log.", log.end),
        ("iotmq_replication_confirmed", "The confirmed position.", opened.file.confirmed),
        (
            "iotmq_replication_consensus_failures_total",
            "Requests to the consensus store without an answer.",
            consensus_failures,
        ),
        (
            "iotmq_replication_diverged_bytes",
            "Bytes cut off the log that nobody acknowledged, kept for `iotmq store salvage`.",
            diverged_bytes,
        ),
        ("iotmq_replication_alarms", "Sentences for the operator now.", alarms),
    )
    for number, follower in () if leading is None else leading.followers.items():
        yield Metric(
            "iotmq_replication_lag_bytes",
            "gauge",
            "Bytes of the master's log that a follower has not acknowledged.",
            log.end - (follower.acked or 0),
            (("member", str(number)),),
        )
