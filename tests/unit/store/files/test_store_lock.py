"""One process, one directory; and the mark of a stop that was none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_model import open_small, put

from iotmq.errors import StoreLockedError
from iotmq.store.files.lock import AbortMark, DirectoryLock

LOCK = (
    "import sys; from pathlib import Path; from iotmq.store.files.lock import DirectoryLock; "
    "DirectoryLock(Path(sys.argv[1]))"
)
POSIX_LOCK = (
    "import fcntl, sys; f = open(sys.argv[1] + '/lock', 'r+'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"
)


def run(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_second_store_is_refused_by_path_and_process(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    with pytest.raises(
        StoreLockedError, match=rf"{tmp_path}/lock is held by another process \(pid {os.getpid()}\)"
    ):
        open_small(tmp_path)
    # The attempt changed nothing.
    put(store, "T", 0, b"x")
    store.close()
    open_small(tmp_path).close()


def test_other_processes_are_refused_until_release(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    result = run(LOCK, tmp_path)
    assert result.returncode != 0
    assert f"pid {os.getpid()}" in result.stderr
    # The kind of lock a Java broker takes.
    assert "BlockingIOError" in run(POSIX_LOCK, tmp_path).stderr
    lock.release()
    assert run(LOCK, tmp_path).returncode == 0


def test_the_text_a_java_broker_writes_is_not_taken_for_a_pid(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    for text in (b"lock9\n", b"lock", b""):
        lock.path.write_bytes(text)
        with pytest.raises(StoreLockedError, match=r"process \(a broker that does not say its pid\)$"):
            DirectoryLock(tmp_path)
    lock.release()


def test_lock_of_a_dead_process_does_not_count(tmp_path: Path) -> None:
    assert run(LOCK + "; import os; os._exit(0)", tmp_path).returncode == 0
    DirectoryLock(tmp_path).release()


def test_abort_is_there_while_open(tmp_path: Path) -> None:
    store = open_small(tmp_path)
    assert (tmp_path / "abort").exists()
    store.close()
    assert not (tmp_path / "abort").exists()


def test_abort_remembers_the_run_before(tmp_path: Path) -> None:
    mark = AbortMark(tmp_path)
    assert not mark.was_set
    mark.set()
    assert not mark.was_set
    assert AbortMark(tmp_path).was_set
    mark.clear()
    mark.clear()
    assert not AbortMark(tmp_path).was_set
