"""What a member remembers, and when its log counts as another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iotmq.errors import StoreCorruptError, StoreError
from iotmq.replicated.member_file import EPOCHS_MAX, FILE_NAME, MemberFile, open_member_file
from iotmq.replication.cluster_state import MemberAddress
from iotmq.replication.epochs import EpochStart


def open_file(directory: Path, **changes: Any) -> MemberFile:
    return open_member_file(
        directory,
        **{
            "cluster": "C",
            "broker": "b",
            "member": 2,
            "keeps_acknowledged": False,
            "boot_id": "first",
            **changes,
        },
    )


def test_what_was_noted_is_there_after_a_start(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    assert (file.promised_epoch, file.confirmed, file.epochs) == (0, 0, ())
    file.promise(7)
    file.note_epochs([EpochStart(6, 0), EpochStart(7, 500)])
    file.note_confirmed(900)
    members = (MemberAddress(1, "a:1"), MemberAddress(2, "[::1]:2"))
    file.note_members(members)
    file.save()
    again = open_file(tmp_path)
    assert (again.promised_epoch, again.confirmed) == (7, 900)
    assert again.epochs == (EpochStart(6, 0), EpochStart(7, 500))
    assert again.identity == file.identity
    assert again.identity.member == 2
    assert again.members == members


def test_a_promise_is_on_the_disk_at_once_and_the_confirmed_position_later(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    file.note_confirmed(10)
    file.promise(3)
    file.note_confirmed(20)
    again = open_file(tmp_path)
    assert (again.promised_epoch, again.confirmed) == (3, 10)


def test_a_file_that_says_nothing_new_is_not_written(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    members = (MemberAddress(2, "a:1"),)
    file.note_members(members)
    before = (tmp_path / FILE_NAME).stat().st_ino
    file.save()
    file.note_members(members)
    assert (tmp_path / FILE_NAME).stat().st_ino == before


@pytest.mark.parametrize(
    ("is_clean", "boot_id", "keeps_acknowledged", "is_same"),
    [
        (False, "first", False, True),
        (False, "second", False, False),
        (False, "second", True, True),
        (True, "second", False, True),
    ],
)
def test_a_log_that_may_have_lost_its_end_is_another_one(
    tmp_path: Path, is_clean: bool, boot_id: str, keeps_acknowledged: bool, is_same: bool
) -> None:
    file = open_file(tmp_path)
    if is_clean:
        file.close()
    again = open_file(tmp_path, boot_id=boot_id, keeps_acknowledged=keeps_acknowledged)
    assert (again.identity == file.identity) == is_same
    # A run that has begun is not a clean stop.
    third = open_file(tmp_path, boot_id="third")
    assert third.identity != again.identity


def test_directories_do_not_share_an_incarnation(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert open_file(tmp_path / "a").identity != open_file(tmp_path / "b").identity


@pytest.mark.parametrize("changes", [{"member": 3}, {"broker": "other"}, {"cluster": "D"}])
def test_a_directory_of_another_member_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    open_file(tmp_path)
    with pytest.raises(
        StoreError, match=r"belongs to member 2 of broker b in cluster C.*replication\.member"
    ):
        open_file(tmp_path, **changes)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    open_file(tmp_path)
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for data in (b"", whole[:-1], whole[:20] + b"x" + whole[21:], b"{}" * 40):
        path.write_bytes(data)
        with pytest.raises(StoreCorruptError, match="is damaged"):
            open_file(tmp_path)
    path.write_bytes(whole)
    open_file(tmp_path)


def test_a_disk_that_refuses_leaves_the_promise_unmade(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    (tmp_path / (FILE_NAME + ".tmp")).mkdir()
    with pytest.raises(StoreError, match="cannot write"):
        file.promise(5)
    assert file.promised_epoch == 0


def test_only_the_newest_epochs_are_kept(tmp_path: Path) -> None:
    file = open_file(tmp_path)
    file.note_epochs(EpochStart(number, number) for number in range(EPOCHS_MAX + 1))
    assert file.epochs[0] == EpochStart(1, 1)
    assert len(file.epochs) == EPOCHS_MAX
