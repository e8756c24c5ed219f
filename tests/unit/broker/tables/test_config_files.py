"""Configuration files: the .bak rule, damage, the order of what reaches the disk, and what Java writes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from iotmq.broker.tables.config_files import ConfigFile
from iotmq.errors import StoreCorruptError

A, B, C = b'{"a":1}', b'{"a":2}', b'{"a":3}'


def written(path: Path, *contents: bytes) -> ConfigFile:
    file = ConfigFile(path)
    for content in contents:
        file.write(content, is_synced=True)
    return file


def names_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_the_former_content_stays_as_bak(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    assert ConfigFile(path).read(dict) is None
    written(path, A, B)
    assert ConfigFile(path).read(dict) == {"a": 2}
    assert path.with_name("x.json.bak").read_bytes() == A
    assert names_in(path.parent) == ["x.json", "x.json.bak"]


@pytest.mark.parametrize("damage", [b"", b" \n", bytes(20), b"{", b"[]", b"\xff", None])
def test_a_bad_file_gives_way_to_its_bak_and_is_kept(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.json"
    written(path, A, B)
    if damage is None:
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(damage)
    file = ConfigFile(path)
    assert file.read(dict) == {"a": 1}
    assert f"using {path}.bak" in caplog.text
    # The next write does not put what was damaged in the place of the good one.
    file.write(C, is_synced=True)
    assert path.with_name("x.json.bak").read_bytes() == A
    assert path.with_name("x.json.damaged").exists()
    assert ConfigFile(path).read(dict) == {"a": 3}


def test_a_file_that_cannot_be_moved_aside_is_read_past_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.json"
    written(path, A, B)
    path.write_bytes(b"{")
    (tmp_path / "x.json.damaged").mkdir()
    assert ConfigFile(path).read(dict) == {"a": 1}
    assert "stays where it is" in caplog.text


@pytest.mark.parametrize("bak", [None, b"", b"[]"])
def test_a_start_with_only_broken_files_is_refused_by_name_and_says_what_to_do(
    tmp_path: Path, bak: bytes | None
) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"{")
    if bak is not None:
        path.with_name("x.json.bak").write_bytes(bak)
    with pytest.raises(StoreCorruptError, match=r"x\.json: .*Put back a copy of .*x\.json, or delete it"):
        ConfigFile(path).read(dict)


def test_two_empty_files_are_a_loss_and_not_a_new_start(tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_bytes(b"")
    path.with_name("empty.json.bak").write_bytes(b"")
    with pytest.raises(StoreCorruptError, match="is empty"):
        ConfigFile(path).read(dict)


@pytest.mark.parametrize("content", [b"", bytes(7)])
def test_an_empty_file_alone_is_a_new_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert ConfigFile(path).read(dict) is None


def test_a_write_that_fails_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    file = written(path, A)
    (tmp_path / "x.json.tmp").mkdir()
    with pytest.raises(OSError, match=r"x\.json\.tmp"):
        file.write(B, is_synced=False)
    assert ConfigFile(path).read(dict) == {"a": 1}


def test_keys_java_leaves_bare_are_read_however_many(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    pairs = ",\n".join(f'\t"t{number}":{{0:5,1:6\n\t}}' for number in range(60_000))
    path.write_text(f"{{\n{pairs}\n}}")
    assert path.stat().st_size > 1 << 20
    content = ConfigFile(path).read(dict[str, dict[int, int]])
    assert content is not None
    assert len(content) == 60_000
    assert content["t59999"] == {0: 5, 1: 6}


class Disk:
    """Notes syncs and renames in their order, as a device sees them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.steps: list[tuple[str, ...]] = []
        real_fsync, real_replace = os.fsync, os.replace

        def fsync(descriptor: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            self.steps.append(("sync", "." if path == directory else path.name))
            real_fsync(descriptor)

        def replace(source: Path, target: Path) -> None:
            real_replace(source, target)
            self.steps.append(("rename", source.name, target.name))

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", replace)

    def take(self) -> list[tuple[str, ...]]:
        steps, self.steps = self.steps, []
        return steps


def test_a_synced_write_is_on_the_disk_before_its_name_and_its_name_by_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, tmp_path)
    file = ConfigFile(tmp_path / "x")
    file.write(A, is_synced=True)
    assert disk.take() == [("sync", "x.tmp"), ("rename", "x.tmp", "x"), ("sync", ".")]
    file.write(B, is_synced=True)
    assert disk.take() == [
        ("sync", "x.tmp"), ("rename", "x", "x.bak"), ("rename", "x.tmp", "x"), ("sync", "."),
    ]  # fmt: skip
    # What a former process left may be in memory only.
    ConfigFile(tmp_path / "x").write(C, is_synced=True)
    assert disk.take() == [
        ("sync", "x.tmp"), ("sync", "x"), ("rename", "x", "x.bak"), ("rename", "x.tmp", "x"), ("sync", "."),
    ]  # fmt: skip


def test_what_was_never_on_the_disk_does_not_become_the_bak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bak = tmp_path / "x", tmp_path / "x.bak"
    file = written(path, A, B)
    disk = Disk(monkeypatch, tmp_path)
    file.write(C, is_synced=False)
    assert disk.take() == [("rename", "x", "x.bak"), ("rename", "x.tmp", "x")]
    assert bak.read_bytes() == B
    for content in (A, B):
        file.write(content, is_synced=False)
        assert disk.take() == [("rename", "x.tmp", "x")]
    # A power cut: what was not synced is gone.
    path.write_bytes(b"")
    assert ConfigFile(path).read(dict) == {"a": 2}


def damages(data: bytes) -> list[bytes]:
    """Every file cut at each byte, and with each byte flipped in one bit or set to zero."""
    source = random.Random(1)
    cut = [data[:at] for at in range(len(data))]
    flipped = []
    for at in range(len(data)):
        flipped.append(data[:at] + bytes((data[at] ^ 1 << source.randrange(8),)) + data[at + 1 :])
        flipped.append(data[:at] + b"\0" + data[at + 1 :])
    return cut + flipped


def outcome_of(path: Path) -> str:
    try:
        content = ConfigFile(path).read(dict[str, dict[str, dict[int, int]]])
    except StoreCorruptError as error:
        return "refused" if str(path) in str(error) else "refused without a name"
    assert isinstance(content, dict)
    return "read" if path.exists() else "bak"


@pytest.mark.parametrize("is_bak_damaged", [False, True])
def test_no_damage_does_more_than_fall_back_or_be_named(tmp_path: Path, is_bak_damaged: bool) -> None:
    data = b'{"offsetTable":{"T@g":{"0":12,"1":3}}}'
    path = tmp_path / "x.json"
    bak = path.with_name("x.json.bak")
    outcomes = set()
    for damaged in damages(data):
        path.write_bytes(damaged)
        bak.write_bytes(damaged[: len(damaged) // 2] if is_bak_damaged else data)
        outcomes.add(outcome_of(path))
    assert outcomes == ({"refused", "read"} if is_bak_damaged else {"bak", "read"})
