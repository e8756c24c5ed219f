import os
import stat
from pathlib import Path

import pytest

from iotmq.files import data_end, make_directory, replace_file, replace_private_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "x"
    path.write_bytes(b"former")
    return path


def names(directory: Path) -> set[str]:
    return {each.name for each in directory.iterdir()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_former_content_is_there_until_the_new_one_is_whole(path: Path) -> None:
    seen = []
    replace_file(
        path, b"new", written=lambda: seen.append((path.read_bytes(), (path.parent / "x.tmp").read_bytes()))
    )
    assert seen == [(b"former", b"new")]
    assert path.read_bytes() == b"new"
    assert names(path.parent) == {"x"}


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_refuses_leaves_the_former_content(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        for replace in (replace_file, replace_private_file):
            with pytest.raises(OSError, match="No space left"):
                replace(path, b"new")
            assert path.read_bytes() == b"former"
    # What is left beside it is in nobody's way.
    replace_file(path, b"n")
    assert path.read_bytes() == b"n"


def test_only_what_is_to_be_synced_waits_for_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    replace_file(path, b"new", is_synced=False)
    assert synced == []
    replace_file(path, b"new")
    assert synced == [f"{path}.tmp", str(path.parent)]
    make_directory(path.parent / "there" / "below")
    assert synced[2:] == [str(path.parent / "there")]
    make_directory(path.parent / "there" / "below")
    assert len(synced) == 3


def test_secrets_are_for_their_owner_and_keep_the_former_ones(path: Path) -> None:
    path.chmod(0o644)
    replace_private_file(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", 0o600)
    assert path.with_name("x.bak").read_bytes() == b"former"
    replace_private_file(path, b"newer", mode=0o640)
    assert (path.read_bytes(), mode(path)) == (b"newer", 0o640)
    assert path.with_name("x.bak").read_bytes() == b"new"
    assert names(path.parent) == {"x", "x.bak"}


def test_a_file_left_behind_by_a_crash_does_not_open_the_next_one_to_others(path: Path) -> None:
    left = path.with_name("x.tmp")
    left.write_text("half")
    left.chmod(0o644)
    seen = []
    replace_file(path, b"new", private_mode=0o600, written=lambda: seen.append(mode(left)))
    assert (seen, mode(path)) == ([0o600], 0o600)


def test_the_end_of_the_data_is_found_without_reading_holes(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    assert data_end(path, 0) == 0
    os.truncate(path, 1 << 30)
    assert data_end(path, 1 << 30) == 0
    with path.open("r+b") as file:
        file.seek(100 << 20)
        file.write(b"x")
    end = data_end(path, 1 << 30)
    # File systems know of whole blocks.
    assert (100 << 20) < end <= (101 << 20)
    assert data_end(path, (100 << 20) + 1) == (100 << 20) + 1
