"""Who is a member, in sync and eligible in the state that follows another one."""

from __future__ import annotations

from typing import Any

import pytest

from iotmq import limits
from iotmq.errors import MemberChangeError, StoreError
from iotmq.replication.cluster_state import ClusterState, Identity, MemberAddress, decode_state, state_of
from iotmq.replication.next_state import MemberChange, changed_members, next_state
from iotmq.replication.ports import MemberSettings

A, B, C = Identity(1, "a"), Identity(2, "b"), Identity(3, "c")
SETTINGS = MemberSettings()


def members(count: int, first: int = 1) -> tuple[MemberAddress, ...]:
    return tuple(MemberAddress(number, f"m{number}:10911") for number in range(first, first + count))


def state(*in_sync: Identity, count: int = 3, **changes: Any) -> ClusterState:
    return ClusterState(epoch=7, master=1, in_sync=in_sync, **{"members": members(count), **changes})


def refused(before: ClusterState, change: MemberChange, settings: MemberSettings = SETTINGS) -> str:
    with pytest.raises(MemberChangeError) as error:
        changed_members(before, settings, change)
    return str(error.value)


def test_a_new_member_is_not_in_sync_before_it_has_caught_up() -> None:
    after = changed_members(state(A, B, C), SETTINGS, MemberChange(4, "m4:10911"))
    assert after.members == members(4)
    assert (after.epoch, after.master, after.in_sync, after.eligible) == (7, 1, (A, B, C), ())


def test_a_removed_member_leaves_those_in_sync_by_the_same_change() -> None:
    after = changed_members(state(A, B, C), SETTINGS, MemberChange(3, ""))
    assert after.members == members(2)
    assert (after.in_sync, after.eligible) == ((A, B), ())
    again = changed_members(after, SETTINGS, MemberChange(3, "m3:10911"))
    assert again == state(A, B, reason="member 3 is added"), "what was said of it before is forgotten"


def test_a_removed_member_is_not_eligible_any_more() -> None:
    before = state(A, count=4, eligible=(B, C))
    after = changed_members(before, SETTINGS, MemberChange(3, "", is_confirmed=True))
    assert (after.in_sync, after.eligible) == ((A,), (B,))


def test_members_begin_with_those_of_the_settings() -> None:
    settings = MemberSettings(members=members(3))
    old = state(A, B, members=())
    assert changed_members(old, settings, MemberChange(4, "m4:10911")).members == members(4)
    assert next_state(old, settings, (A,), reason="").members == members(3)
    recorded = next_state(state(A, B, count=2), settings, (A,), reason="")
    assert recorded.members == members(2), "the settings do not matter any more"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (MemberChange(1, ""), "is master: hand over first"),
        (MemberChange(9, ""), "there is no member 9: members are 1, 2, 3"),
        (MemberChange(3, "m9:10911"), "is there already, at m3:10911"),
        (MemberChange(4, "m3:10911"), "members 3 and 4 have the same address"),
        (MemberChange(4, "[m3]:10911"), "members 3 and 4 have the same address"),
        (MemberChange(4, "m4"), "HOST:PORT"),
        (MemberChange(4, "m4:0"), "port"),
        (MemberChange(4, "m4:65536"), "port"),
        (MemberChange(0, "m4:1"), "numbers are 1 to 127"),
        (MemberChange(limits.REPLICATION_MEMBER_MAX + 1, "m4:1"), "numbers are 1 to 127"),
    ],
)
@pytest.mark.parametrize("is_confirmed", [False, True])
def test_what_cannot_be_is_refused(change: MemberChange, words: str, is_confirmed: bool) -> None:
    assert words in refused(state(A, B, C), change._replace(is_confirmed=is_confirmed))


def test_the_largest_number_and_the_longest_address_are_taken_and_no_larger_ones() -> None:
    longest = "m" * (limits.REPLICATION_ADDRESS_CHARACTERS_MAX - 2) + ":1"
    number = limits.REPLICATION_MEMBER_MAX
    after = changed_members(state(A, B), SETTINGS, MemberChange(number, longest))
    assert after.members[-1] == (number, longest)
    assert "characters" in refused(state(A, B), MemberChange(number, "m" + longest))


def test_there_are_so_many_members_and_no_more() -> None:
    most = limits.REPLICATION_MEMBERS_MAX
    full = changed_members(state(A, B, count=most - 1), SETTINGS, MemberChange(most, f"m{most}:10911"))
    assert len(full.members) == most
    assert f"{most + 1} members" in refused(full, MemberChange(most + 1, "another:1"))


@pytest.mark.parametrize(
    ("before", "change", "count"),
    [
        # The second of three goes, and the third is lost.
        (state(A, B), MemberChange(2, ""), 1),
        # One of three was alone; without the rule it would go on alone without a word.
        (state(A, eligible=(B, C)), MemberChange(3, ""), 1),
        # One of two is lost: with a third one two have to be in sync.
        (state(A, count=2), MemberChange(3, "m3:10911"), 1),
    ],
)
def test_a_change_after_which_too_few_are_in_sync_wants_to_be_confirmed(
    before: ClusterState, change: MemberChange, count: int
) -> None:
    assert "--yes" in refused(before, change)
    after = changed_members(before, SETTINGS, change._replace(is_confirmed=True))
    assert len(after.in_sync) == count


def test_the_last_two_may_become_one() -> None:
    after = changed_members(state(A, B, count=2), SETTINGS, MemberChange(2, ""))
    assert (after.members, after.in_sync) == (members(1), (A,))


def test_no_fewer_members_are_left_than_have_to_be_in_sync() -> None:
    settings = MemberSettings(in_sync_min=3, refuses_when_few=True)
    change = MemberChange(3, "", is_confirmed=True)
    assert "replication.in_sync_min is 3, and 2" in refused(state(A, B, C), change, settings)
    four = state(A, B, C, count=4)
    assert changed_members(four, settings, MemberChange(4, "")).members == members(3)


def test_who_leaves_a_set_that_takes_nothing_stays_eligible() -> None:
    settings = MemberSettings(in_sync_min=2, refuses_when_few=True)
    after = next_state(state(A, B), settings, (A,), reason="gone")
    assert (after.in_sync, after.eligible) == ((A,), (B,))
    assert next_state(after, settings, (A, B), reason="back").eligible == ()
    accepting = MemberSettings(in_sync_min=1, refuses_when_few=False)
    assert next_state(after, accepting, (A,), reason="other settings").eligible == ()


def test_members_survive_their_encoding_and_an_earlier_version_s_state_has_none() -> None:
    before = state(A, B)
    assert decode_state(before.encode()) == before
    old = b'{"format":1,"epoch":7,"master":1,"in_sync":[[1,"a"],[2,"b"]],"eligible":[]}'
    assert decode_state(old) == state(A, B, members=())


@pytest.mark.parametrize(
    "bad",
    [
        [[1, "m1:1"], [1, "m2:1"]],
        [[0, "m1:1"]],
        [[limits.REPLICATION_MEMBER_MAX + 1, "m1:1"]],
        [[1, "nowhere"]],
        [[1, "m" * limits.REPLICATION_ADDRESS_CHARACTERS_MAX + ":1"]],
        [[1, "m1:1"], [2, "m1:1"]],
        [[number, f"m{number}:1"] for number in range(1, limits.REPLICATION_MEMBERS_MAX + 2)],
        [[1]],
        "1",
    ],
)
def test_members_that_cannot_be_are_refused(bad: object) -> None:
    told: dict[str, object] = {"epoch": 1, "master": 1, "in_sync": [], "members": bad}
    with pytest.raises(StoreError, match="invalid replication state"):
        state_of(told)


@pytest.mark.parametrize(
    "told", [None, [], {"epoch": 1}, {"epoch": 1, "master": 1, "in_sync": [], "format": 2}]
)
def test_a_member_may_tell_what_is_no_state(told: object) -> None:
    with pytest.raises(StoreError):
        state_of(told)
