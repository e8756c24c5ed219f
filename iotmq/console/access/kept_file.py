"""A small file that this process changes, and others do: its content in memory follows it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from iotmq.errors import IotmqError
from iotmq.files import changing, is_open_to_others, make_directory, replace_private_file
from iotmq.supervised import supervise
from iotmq.watched_file import WatchedFiles

logger = logging.getLogger("iotmq.http")

LOOK_S: Final = 2.0
_PROBLEMS_SHOWN_MAX: Final = 10

_Item = TypeVar("_Item")


class KeptFileError(IotmqError):
    """The file, or a change to it, breaks a rule; the text says in which lines and what."""


class KeptFile(Generic[_Item]):
    """Named items in a file. A role: `start` reads them, and from then on changes of the file count."""

    def __init__(
        self,
        path: Path,
        *,
        parse: Callable[[bytes], dict[str, _Item]],
        encode: Callable[[dict[str, _Item]], bytes],
        bytes_max: int,
    ) -> None:
        """`parse` raises KeptFileError."""
        self.path = path
        self._parse = parse
        self._encode = encode
        self._bytes_max = bytes_max
        self._watched = WatchedFiles(path)
        self._watching: asyncio.Task[None] | None = None
        self.items: dict[str, _Item] = {}
        """By name; another dict after a change."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when `items` has become another."""
        self.is_read = False
        """Whether the file, or that there is none, has been seen as it should be."""
        self.failed_reads_total = 0

    async def start(self) -> None:
        """Read the file; one that is wrong has no items, and is read again when it changes."""
        await self.look()
        self._watching = supervise(f"reading of {self.path.name}", self._repeat)

    async def stop(self) -> None:
        """Look no more."""
        if self._watching is not None:
            self._watching.cancel()

    async def look(self) -> None:
        """Read the file if it has changed. One that cannot be used changes nothing, and is logged."""
        try:
            changed = await self._watched.read_changed(self.read) if self.is_read else await self._first()
        except (OSError, KeptFileError) as error:
            self.failed_reads_total += 1
            logger.error(
                "a file of the console cannot be used, so what it said before counts",
                extra={"file": str(self.path), "detail": str(error)},
            )
            return
        if changed is not None and changed != self.items:
            self.items = changed
            self.on_change()

    async def change(self, change: Callable[[dict[str, _Item]], None]) -> None:
        """Change the file, in a thread; what `change` raises is raised, and changes nothing."""
        self.items = await asyncio.to_thread(self.change_now, change)
        self.on_change()

    def change_now(self, change: Callable[[dict[str, _Item]], None]) -> dict[str, _Item]:
        """Change the file, with nobody else at it meanwhile, and return what it has then.

        `change` gets the items in a dict of its own. OSError and KeptFileError leave the file as it was.
        """
        make_directory(self.path.parent)
        with changing(self.path):
            items = self.read()
            change(items)
            data = self._encode(items)
            # What is written has to be read again.
            checked = self._checked(data)
            replace_private_file(self.path, data)
        return checked

    def read(self) -> dict[str, _Item]:
        """Return what the file has; nothing without a file. OSError, KeptFileError."""
        try:
            with self.path.open("rb") as file:
                data = file.read(self._bytes_max + 1)
        except FileNotFoundError:
            return {}
        if is_open_to_others(self.path):
            logger.warning(
                "%s holds secrets and others on this machine may read or change it: chmod 600 it", self.path
            )
        return self._checked(data)

    def _checked(self, data: bytes) -> dict[str, _Item]:
        if len(data) > self._bytes_max:
            raise KeptFileError(f"it has more than {self._bytes_max:,} bytes")
        return self._parse(data)

    async def _first(self) -> dict[str, _Item]:
        found = await asyncio.to_thread(self.read)
        self.is_read = True
        return found

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()


def parse_lines(data: bytes, parse: Callable[[str], tuple[str, _Item]], *, most: int) -> dict[str, _Item]:
    """Return the items of a file of lines, with comments and empty lines between.

    KeptFileError says which lines are wrong.
    """
    items: dict[str, _Item] = {}
    problems: list[str] = []
    for number, raw in enumerate(data.splitlines(), start=1):
        if not raw.strip() or raw.startswith(b"#"):
            continue
        try:
            name, item = parse(raw.decode())
            if name in items:
                raise ValueError(f"{name} is there twice")
        except ValueError as error:
            # The text of a UnicodeDecodeError has bytes of the line.
            said = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
            problems.append(f"line {number}: {said}")
            continue
        items[name] = item
    if len(items) > most:
        problems.insert(0, f"it has more than {most} lines")
    if problems:
        raise KeptFileError("\n".join(problems[:_PROBLEMS_SHOWN_MAX]))
    return items
