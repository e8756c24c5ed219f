"""A file of named items: read, changed here and by others, and never half."""

from __future__ import annotations

import asyncio
import logging
import stat
from pathlib import Path

import pytest
from eventually import soon

from iotmq.console.access import kept_file
from iotmq.console.access.kept_file import KeptFile, KeptFileError, parse_lines

BYTES_MAX = 100


def parse(data: bytes) -> dict[str, str]:
    def line(text: str) -> tuple[str, str]:
        name, colon, value = text.partition(":")
        if not colon:
            raise ValueError("it has no colon")
        return name, value

    return parse_lines(data, line, most=3)


def encode(items: dict[str, str]) -> bytes:
    return "".join(f"{name}:{value}\n" for name, value in items.items()).encode()


def kept(path: Path) -> KeptFile[str]:
    return KeptFile(path, parse=parse, encode=encode, bytes_max=BYTES_MAX)


async def test_what_one_process_changes_another_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_file, "LOOK_S", 0.01)
    path = tmp_path / "new" / "file"
    first, second = kept(path), kept(path)
    seen: list[dict[str, str]] = []
    second.on_change = lambda: seen.append(second.items)
    for each in (first, second):
        await each.start()
    try:
        assert first.is_read
        await first.change(lambda items: items.update(a="1"))
        assert first.items == {"a": "1"}
        await soon(lambda: seen == [{"a": "1"}], "the other has read it")
        await second.change(lambda items: items.update(b="2"))
        await soon(lambda: first.items == {"a": "1", "b": "2"}, "and the first what that has written")
    finally:
        for each in (first, second):
            await each.stop()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = kept(tmp_path / "file")
    await file.change(lambda items: items.update(a="1"))
    before = file.path.read_bytes()

    def fail(items: dict[str, str]) -> None:
        items["b"] = "2"
        raise LookupError

    with pytest.raises(LookupError):
        await file.change(fail)
    with pytest.raises(KeptFileError, match="more than 3 lines"):
        await file.change(lambda items: items.update(b="2", c="3", d="4"))
    with pytest.raises(KeptFileError, match="more than 100 bytes"):
        await file.change(lambda items: items.update(b="2" * BYTES_MAX))
    assert file.path.read_bytes() == before
    assert file.items == {"a": "1"}


async def test_a_broken_file_at_the_start_has_nothing_and_later_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch(0o600)
    path.write_bytes(b"a:1\nbroken\n")
    file = kept(path)
    await file.look()
    assert (file.items, file.is_read, file.failed_reads_total) == ({}, False, 1)
    assert "line 2: it has no colon" in caplog.records[0].__dict__["detail"]
    path.write_bytes(b"a:1\n")
    await file.look()
    assert (file.items, file.is_read) == ({"a": "1"}, True)
    path.write_bytes(b"a:1\na:2\n")
    await file.look()
    assert (file.items, file.failed_reads_total) == ({"a": "1"}, 2)
    path.unlink()
    await file.look()
    assert file.items == {}


async def test_two_who_change_it_at_once_lose_nothing(tmp_path: Path) -> None:
    files = [kept(tmp_path / "file") for _ in range(3)]
    changes = [
        each.change(lambda items, name=name: items.update({name: "1"}))
        for name, each in zip("abc", files, strict=True)
    ]
    await asyncio.gather(*changes)
    assert files[0].read() == {"a": "1", "b": "1", "c": "1"}


def test_who_else_may_read_secrets_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a:1\n")
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        kept(path).read()
    assert "chmod 600" in caplog.text


def test_lines_that_are_wrong_are_named_and_their_bytes_are_not(tmp_path: Path) -> None:
    with pytest.raises(KeptFileError) as raised:
        parse(b"# fine\n\n\xff\xfe:secret\nnothing\na:1\na:2\n")
    assert str(raised.value).splitlines() == [
        "line 3: it is not UTF-8",
        "line 4: it has no colon",
        "line 6: a is there twice",
    ]
    with pytest.raises(KeptFileError) as raised:
        parse(b"x\n" * 50)
    assert len(str(raised.value).splitlines()) == 10
