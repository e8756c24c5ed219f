"""Changed files are noticed once, and never read half written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from iotmq.files import replace_file
from iotmq.watched_file import WatchedFiles


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    return path


async def test_each_change_is_reported_once(path: Path) -> None:
    watched = WatchedFiles(path, path.with_name("other"))
    assert not await watched.have_changed()
    for change in (
        lambda: replace_file(path, b"two", is_synced=False),
        lambda: path.write_bytes(b"three"),
        path.unlink,
        lambda: path.write_bytes(b"four"),
        lambda: path.with_name("other").write_bytes(b""),
        watched.forget,
    ):
        change()
        assert await watched.have_changed()
        assert not await watched.have_changed()
    write(path, b"five five")
    watched.remember()
    assert not await watched.have_changed()


async def test_a_file_that_is_written_in_place_is_left_until_it_is_whole(path: Path) -> None:
    watched = WatchedFiles(path)
    is_over = False

    async def write_slowly() -> None:
        lines = b""
        while not is_over:
            write(path, lines)
            lines += b"line\n"
            await asyncio.sleep(0.005)

    writing = asyncio.ensure_future(write_slowly())
    await asyncio.sleep(0)
    for _ in range(3):
        assert not await watched.have_changed()
    is_over = True
    await writing
    assert await watched.have_changed()


async def test_what_was_read_while_the_file_changed_is_not_used(path: Path) -> None:
    watched = WatchedFiles(path)
    assert await watched.read_changed(path.read_bytes) is None, "it is as it was"

    def interrupted() -> bytes:
        half = path.read_bytes()
        path.write_bytes(b"whole at last")
        return half

    def broken() -> bytes:
        path.write_bytes(b"half once more")
        raise ValueError("half a file")

    replace_file(path, b"half", is_synced=False)
    assert await watched.read_changed(interrupted) is None
    assert await watched.read_changed(broken) is None
    assert await watched.read_changed(path.read_bytes) == b"half once more"
    assert await watched.read_changed(path.read_bytes) is None


async def test_what_is_wrong_with_a_changed_file_is_raised(path: Path) -> None:
    watched = WatchedFiles(path)
    replace_file(path, b"wrong", is_synced=False)

    def refuse() -> bytes:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await watched.read_changed(refuse)
    assert await watched.read_changed(path.read_bytes) is None, "it was reported"
