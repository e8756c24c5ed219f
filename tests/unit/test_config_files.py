"""Configuration files: the .bak rule, and what Java writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotmq.broker.config_files import read_json_file, write_json_file
from iotmq.errors import StoreCorruptError


def test_the_former_content_stays_as_bak(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    assert read_json_file(path, dict) is None
    write_json_file(path, b'{"a":1}', is_synced=True)
    write_json_file(path, b'{"a":2}', is_synced=False)
    assert read_json_file(path, dict) == {"a": 2}
    assert path.with_name("x.json.bak").read_bytes() == b'{"a":1}'
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["x.json", "x.json.bak"]


@pytest.mark.parametrize("damage", [b"", b" \n", b"{", b"[]", b"\xff"])
def test_a_bad_file_gives_way_to_its_bak(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "x.json"
    write_json_file(path, b'{"a":1}', is_synced=False)
    write_json_file(path, b'{"a":2}', is_synced=False)
    path.write_bytes(damage)
    assert read_json_file(path, dict) == {"a": 1}


def test_a_start_with_only_broken_files_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"{")
    with pytest.raises(StoreCorruptError, match=r"x\.json"):
        read_json_file(path, dict)


def test_an_empty_file_alone_is_a_new_start(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"")
    assert read_json_file(path, dict) is None


def test_a_write_that_fails_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json_file(path, b'{"a":1}', is_synced=False)
    (tmp_path / "x.json.tmp").mkdir()
    with pytest.raises(OSError, match=r"x\.json\.tmp"):
        write_json_file(path, b'{"a":2}', is_synced=False)
    assert read_json_file(path, dict) == {"a": 1}


def test_keys_java_leaves_bare_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{\n\t"t":{0:5,1:6\n\t}}')
    assert read_json_file(path, dict[str, dict[int, int]]) == {"t": {0: 5, 1: 6}}
