"""What a power cut may leave of a directory: a recorder of what was done to it, and the states it allows.

In the manner of ALICE (Pillai et al., OSDI 2014). `DiskRecorder` stands between a program and the
operating system: every create, rename, remove, truncate and sync of Python code is seen through the
functions of `os`, and what was stored into mapped files shows in a comparison of all files with what they
held before. `PowerCut` then picks a moment and decides, by what had been synced until then, what may be on
the disk:

- of every 4 KiB page any of its contents since its file was last synced, or a mixture by 512-byte sectors;
- the same for pages that were waiting when a sync failed, whatever syncs come later: the kernel counts them
  as written (as Linux does; PostgreSQL's "fsyncgate");
- of the names in a directory, and the sizes of files, what was last synced, and more of what came later: in
  the order of the operations (file systems with a journal), or any selection of them (what POSIX promises).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import random
import stat
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import iotmq.store.queues.consume_queue as consume_queue_module
import iotmq.store.recovery.recovery as recovery_module
from iotmq.store.log.segment import Segment

PAGE_BYTES = 4096
SECTOR_BYTES = 512
ROOT = 0

WAYS = ("nothing", "everything", "ordered", "pages", "pages", "torn", "torn")


class Write(NamedTuple):
    """A page of a file has new content."""

    node: int
    page: int
    data: bytes


class Resize(NamedTuple):
    node: int
    size: int


class Rename(NamedTuple):
    """Names that change in one step: (directory, name) -> node, or None for a name that goes."""

    names: dict[tuple[int, str], int | None]


class Sync(NamedTuple):
    """What was done to a node before operation `before` is on the disk; to every node when it is None."""

    node: int | None
    before: int


class FailedSync(NamedTuple):
    """What was done to a node before this may be on the disk or not, and no later sync changes that."""

    node: int


class Note(NamedTuple):
    """Something the workload wants to know about the moments after this one."""

    what: Any


class DiskRecorder:
    """Sees everything that happens below `root`; `operations` is the history.

    What is there when the recorder is made counts as synced.
    """

    def __init__(self, root: Path, *, ignored: Collection[str] = ()) -> None:
        """Entries of `root` with the names of `ignored` are not seen."""
        self.root = root
        self._root = str(root)
        self._ignored = ignored
        self.operations: list[Any] = []
        # node -> whether it is a directory
        self.is_directory: dict[int, bool] = {ROOT: True}
        # Called at the start of every sync, after its content was noted: what others do meanwhile.
        self.on_sync: Callable[[], None] | None = None
        # Whether the next sync is to fail.
        self.is_failing = False
        self._names: dict[tuple[int, str], int] = {}
        self._nodes: dict[int, int] = {os.stat(root).st_ino: ROOT}
        # node -> its path, and what it holds now; None when it is empty
        self._files: dict[int, tuple[str, mmap.mmap | None]] = {}
        # node -> what it held when it was last looked at
        self._contents: dict[int, bytes] = {}
        self.look()
        self._sync(None)
        # The first moment the power may go: operations before it only say what was there.
        self.start = len(self.operations)

    def look(self, *, hidden: tuple[Path, int, int] | None = None, has_names_changed: bool = True) -> None:
        """Note what has changed. `hidden` (path, at, size) is a piece stored last: once without it."""
        if has_names_changed:
            self._look_at_names()
        for node in self._files:
            self._compare(node, hidden)

    def _look_at(self, node: int, size: int) -> None:
        """Note what has changed in a file, which has this size."""
        path, mapping = self._files[node]
        if len(mapping or b"") != size:
            # Who writes by `write` makes files longer.
            self._files[node] = (path, _mapped(path, size))
        self._compare(node, None)

    def _compare(self, node: int, hidden: tuple[Path, int, int] | None) -> None:
        path, mapping = self._files[node]
        content = b"" if mapping is None else mapping[:]
        before = self._contents.get(node, b"")
        if content == before:
            return
        if hidden is not None and str(hidden[0]) == path:
            unfinished = bytearray(content)
            unfinished[hidden[1] : hidden[1] + hidden[2]] = bytes(hidden[2])
            self._change(node, before, bytes(unfinished))
            before = bytes(unfinished)
        self._change(node, before, content)
        self._contents[node] = content

    def _look_at_names(self) -> None:
        found: dict[tuple[int, str], int] = {}
        self._scan(str(self.root), ROOT, found)
        gone = {key: node for key, node in self._names.items() if found.get(key) != node}
        come = {key: node for key, node in found.items() if self._names.get(key) != node}
        moved = {node for node in come.values() if node in gone.values()}
        if moved:
            names: dict[tuple[int, str], int | None] = dict.fromkeys(gone)
            self.operations.append(Rename({**names, **come}))
        else:
            self.operations += [Rename({key: None}) for key in gone if key not in come]
            self.operations += [Rename({key: node}) for key, node in come.items()]
        self._names = found
        linked = set(found.values()) | {ROOT}
        self._nodes = {inode: node for inode, node in self._nodes.items() if node in linked}
        for node in self._files.keys() - linked:
            del self._files[node]

    def note(self, what: Any) -> None:
        self.operations.append(Note(what))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While it lasts, the functions of `os` report here."""
        with watching((self,)):
            yield

    def is_about(self, *arguments: Any) -> bool:
        """Whether a path or a descriptor of a call is one of what is seen here."""
        for argument in arguments:
            if isinstance(argument, (str, Path)):
                if str(argument).startswith(self._root):
                    return True
            elif isinstance(argument, int) and argument > 2:
                with contextlib.suppress(OSError):
                    if os.fstat(argument).st_ino in self._nodes:
                        return True
        return False

    def sync_file(self, descriptor: int) -> None:
        """In the place of fsync and fdatasync: what is there when it is called is on the disk afterwards."""
        status = os.fstat(descriptor)
        node = self._nodes.get(status.st_ino)
        if node in self._files:
            # Nothing is said of the others.
            self._look_at(node, status.st_size)
        else:
            self.look()
        before = len(self.operations)
        if self.is_failing and node in self._files and "/commitlog/" in self._files[node][0]:
            self.is_failing = False
            self.operations.append(FailedSync(node))
            raise OSError(errno.EIO, "Input/output error")
        self._others()
        if node is not None:
            self._sync(node, before)

    def sync_file_system(self, directory: str) -> None:
        self.look(has_names_changed=False)
        before = len(self.operations)
        self._others()
        self._sync(None, before)

    def write_again(self, segment: Segment, start_bytes: int, end_bytes: int) -> None:
        """In the place of the store's function: pages are written though nothing in them changes."""
        self.look()
        node = next(node for node, (path, _) in self._files.items() if path == segment.path)
        content = self._contents.get(node, b"")
        for page in range(start_bytes // PAGE_BYTES, -(-end_bytes // PAGE_BYTES)):
            data = content[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
            self.operations.append(Write(node, page, data.ljust(PAGE_BYTES, b"\0")))

    def _others(self) -> None:
        if self.on_sync is not None:
            on_sync, self.on_sync = self.on_sync, None
            try:
                on_sync()
            finally:
                self.on_sync = on_sync

    def _sync(self, node: int | None, before: int | None = None) -> None:
        self.operations.append(Sync(node, len(self.operations) if before is None else before))

    def _scan(self, path: str, directory: int, found: dict[tuple[int, str], int]) -> None:
        with os.scandir(path) as entries:
            for entry in entries:
                if directory == ROOT and entry.name in self._ignored:
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    # RocksDB deletes files in threads of its own.
                    continue
                node = self._nodes.get(status.st_ino)
                if node is None:
                    node = self._nodes[status.st_ino] = len(self.is_directory)
                    self.is_directory[node] = stat.S_ISDIR(status.st_mode)
                found[directory, entry.name] = node
                if self.is_directory[node]:
                    self._scan(entry.path, node, found)
                    continue
                known = self._files.get(node)
                if known is None or known[0] != entry.path or len(known[1] or b"") != status.st_size:
                    try:
                        self._files[node] = (entry.path, _mapped(entry.path, status.st_size))
                    except FileNotFoundError:
                        del found[directory, entry.name]

    def _change(self, node: int, before: bytes, after: bytes) -> None:
        size = max(len(before), len(after))
        for start in range(0, size, PAGE_BYTES):
            page = after[start : start + PAGE_BYTES].ljust(PAGE_BYTES, b"\0")
            if page != before[start : start + PAGE_BYTES].ljust(PAGE_BYTES, b"\0"):
                self.operations.append(Write(node, start // PAGE_BYTES, page))
        if len(before) != len(after):
            self.operations.append(Resize(node, len(after)))


def _mapped(path: str, size: int) -> mmap.mmap | None:
    if not size:
        return None
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)


@contextlib.contextmanager
def watching(recorders: Sequence[DiskRecorder]) -> Iterator[None]:
    """While it lasts, the functions of `os` report to those they are about, now or later on the list."""

    def concerned(*arguments: Any) -> list[DiskRecorder]:
        return [recorder for recorder in recorders if recorder.is_about(*arguments)]

    def seen(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            looking = concerned(*arguments[:2])
            for recorder in looking:
                recorder.look(has_names_changed=False)
            try:
                return function(*arguments, **more)
            finally:
                for recorder in looking:
                    recorder.look()

        return call

    def opened(function: Callable[..., int]) -> Callable[..., int]:
        seen_function = seen(function)

        def call(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
            makes = flags & (os.O_CREAT | os.O_TRUNC)
            return (seen_function if makes else function)(path, flags, *arguments, **more)

        return call

    def synced(function: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            for recorder in concerned(descriptor):
                recorder.sync_file(descriptor)
                return
            function(descriptor)

        return call

    def sync_file_system(directory: str) -> None:
        for recorder in concerned(directory):
            recorder.sync_file_system(directory)

    def write_again(segment: Segment, start_bytes: int, end_bytes: int) -> None:
        for recorder in concerned(segment.path):
            recorder.write_again(segment, start_bytes, end_bytes)

    with contextlib.ExitStack() as stack:
        for name in (
            "ftruncate", "truncate", "unlink", "remove", "rename", "replace", "mkdir", "rmdir", "pwrite",
            "posix_fallocate", "link", "symlink",
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(os, name, seen(getattr(os, name))))
        for name in ("fsync", "fdatasync"):
            stack.enter_context(mock.patch.object(os, name, synced(getattr(os, name))))
        stack.enter_context(mock.patch.object(os, "open", opened(os.open)))
        stack.enter_context(mock.patch.object(consume_queue_module, "sync_file_system", sync_file_system))
        stack.enter_context(mock.patch.object(recovery_module, "write_again", write_again))
        yield


class PowerCut:
    """One state the disk may be in when the power goes before operation `moment`."""

    def __init__(self, recorder: DiskRecorder, moment: int, source: random.Random, way: str) -> None:
        self.way = way
        self.is_journaled = source.random() < 0.5
        self._source = source
        self._is_directory = recorder.is_directory
        operations = recorder.operations[:moment]
        # Of node: operations before this one are on the disk.
        self._floors: dict[int | None, int] = defaultdict(int)
        # node -> (from, to): writes between these operations were never sure to reach the disk.
        self._doubtful: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, operation in enumerate(operations):
            if isinstance(operation, Sync):
                self._floors[operation.node] = max(self._floors[operation.node], operation.before)
            elif isinstance(operation, FailedSync):
                self._doubtful[operation.node].append((self._floor(operation.node), number))
        self._journal_floor = max(self._floors.values(), default=0)
        # Where an ordered loss begins.
        self._reached = source.randint(self._journal_floor, moment)
        self._newest_share = source.choice((0.1, 0.5, 0.9))
        self.names = self._choose_names(operations)
        self.files = self._choose_files(operations)

    def materialise(self, target: Path) -> None:
        """Write the state to `target`, an empty or missing directory."""
        target.mkdir(parents=True, exist_ok=True)
        is_sparse = self._source.random() < 0.7
        for (directory, name), node in self.names.items():
            if directory == ROOT:
                self._write_node(target / name, node, is_sparse)

    def _write_node(self, path: Path, node: int, is_sparse: bool) -> None:
        if self._is_directory[node]:
            path.mkdir()
            for (directory, name), below in self.names.items():
                if directory == node:
                    self._write_node(path / name, below, is_sparse)
            return
        size, pages = self.files.get(node, (0, {}))
        with path.open("wb", buffering=0) as file:
            for page, data in pages.items():
                piece = data[: max(0, size - page * PAGE_BYTES)]
                if any(piece) or (piece and not is_sparse):
                    file.seek(page * PAGE_BYTES)
                    file.write(piece)
            file.truncate(size)

    def _floor(self, node: int) -> int:
        return max(self._floors[node], self._floors[None])

    def _choose_names(self, operations: list[Any]) -> dict[tuple[int, str], int]:
        names: dict[tuple[int, str], int] = {}
        for number, operation in enumerate(operations):
            if isinstance(operation, Rename) and self._is_kept(number, operation):
                for key, node in operation.names.items():
                    if node is None:
                        names.pop(key, None)
                    else:
                        names[key] = node
        return names

    def _is_kept(self, number: int, operation: Rename) -> bool:
        if all(number < self._floor(directory) for directory, _ in operation.names):
            return True
        if self.is_journaled and number < self._journal_floor:
            return True
        if self.way == "nothing":
            return False
        if self.way == "everything":
            return True
        if self.way == "ordered" or self.is_journaled:
            return number < self._reached
        return self._source.random() < self._newest_share

    def _choose_files(self, operations: list[Any]) -> dict[int, tuple[int, dict[int, bytes]]]:
        pages: dict[tuple[int, int], list[tuple[int, bytes]]] = defaultdict(lambda: [(-1, bytes(PAGE_BYTES))])
        sizes: dict[int, list[tuple[int, int]]] = defaultdict(lambda: [(-1, 0)])
        for number, operation in enumerate(operations):
            if isinstance(operation, Write):
                pages[operation.node, operation.page].append((number, operation.data))
            elif isinstance(operation, Resize):
                sizes[operation.node].append((number, operation.size))
        files: dict[int, tuple[int, dict[int, bytes]]] = {
            node: (self._choose(node, versions), {}) for node, versions in sizes.items()
        }
        for (node, page), versions in pages.items():
            if node in files:
                files[node][1][page] = self._choose_page(node, versions)
        return files

    def _possible(self, node: int, versions: list[tuple[int, Any]]) -> list[Any]:
        """The last one that is surely on the disk, and all that came after it."""
        floor = self._floor(node)
        # Of pages. Sizes are the file system's own: without its journal it would not go on.
        doubtful = self._doubtful[node] if isinstance(versions[0][1], bytes) else []
        last = max(
            at
            for at, (number, _) in enumerate(versions)
            if number < floor and not any(start <= number < end for start, end in doubtful)
        )
        return versions[last:]

    def _choose(self, node: int, versions: list[tuple[int, Any]]) -> Any:
        possible = self._possible(node, versions)
        if self.way == "nothing":
            return possible[0][1]
        if self.way == "everything" or self._source.random() < self._newest_share * (self.way != "ordered"):
            return possible[-1][1]
        if self.way == "ordered":
            return [value for number, value in possible if number < self._reached or number < 0
                    or number == possible[0][0]][-1]  # fmt: skip
        return self._source.choice(possible)[1]

    def _choose_page(self, node: int, versions: list[tuple[int, bytes]]) -> bytes:
        if self.way != "torn" or self._source.random() < 0.3:
            chosen: bytes = self._choose(node, versions)
            return chosen
        possible = self._possible(node, versions)
        starts = range(0, PAGE_BYTES, SECTOR_BYTES)
        return b"".join(self._source.choice(possible)[1][at : at + SECTOR_BYTES] for at in starts)
