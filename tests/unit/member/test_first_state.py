"""The first state of a broker: made only when nobody can lose anything by it."""

from __future__ import annotations

from typing import Any

from iotmq.member.consensus_requests import BeatValue, first_state
from iotmq.replication.cluster_state import Identity, MemberAddress
from iotmq.replication.consensus.port import SignOfLife

MEMBERS = tuple(MemberAddress(number, f"m{number}:10911") for number in (1, 2, 3))


def beats(*, age_s: float = 0.1, **changes: dict[str, Any]) -> dict[int, tuple[SignOfLife, BeatValue]]:
    return {
        number: (
            SignOfLife(age_s, b""),
            BeatValue(
                **{  # type: ignore[arg-type]
                    "incarnation": f"i{number}", "address": "", "leads": 0, "end": 0, "confirmed": 0,
                    "promised": 0, **changes.get(f"m{number}", {}),
                }
            ),
        )
        for number, _ in MEMBERS
    }  # fmt: skip


def test_empty_members_are_all_in_sync_and_the_first_is_master() -> None:
    state = first_state(MEMBERS, beats())
    assert state is not None
    assert (state.epoch, state.master) == (1, 1)
    assert state.in_sync == (Identity(1, "i1"), Identity(2, "i2"), Identity(3, "i3"))
    assert state.members == MEMBERS


def test_the_one_with_a_log_is_master_and_alone_in_sync() -> None:
    state = first_state(MEMBERS, beats(m2={"end": 100}))
    assert state is not None
    assert state.master == 2
    assert state.in_sync == (Identity(2, "i2"),)


def test_there_is_none_while_it_is_not_clear() -> None:
    assert first_state(MEMBERS, beats(m2={"end": 100}, m3={"end": 100})) is None
    assert first_state(MEMBERS, beats(m2={"promised": 1})) is None
    assert first_state(MEMBERS, beats(age_s=2.0)) is None
    assert first_state((*MEMBERS, MemberAddress(4, "m4:10911")), beats()) is None
    assert first_state(MEMBERS[:2], beats()) is None, "others are there that the settings do not name"
