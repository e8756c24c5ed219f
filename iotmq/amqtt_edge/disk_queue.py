"""Messages that wait on the disk, in order, in an SQLite file with a maximum of bytes.

One thread at a time calls it. What `put` has written survives the end of the process, and with `sync` that
of the machine. A file that is damaged is kept beside a new one.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple

_log: Final = logging.getLogger("iotmq.amqtt_edge")

# Beside topic, payload and client id: the row and its place in the tree.
_ROW_BYTES: Final = 64

_TABLE: Final = """
    create table if not exists waiting (
        number integer primary key autoincrement,
        topic text not null, payload blob not null, qos integer not null, retain integer not null,
        client_id text not null
    )
"""


_NAME: Final = "create table if not exists name (text text not null)"


class Waiting(NamedTuple):
    """A message in the queue; `number` tells it from all others, before and after it."""

    number: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    client_id: str

    @property
    def size(self) -> int:
        """Return what it counts in `bytes_max`."""
        return _ROW_BYTES + len(self.topic.encode()) + len(self.payload) + len(self.client_id.encode())


class DiskQueue:
    """The queue of one file. `drops` says which message goes when there is no room: the oldest, or the new
    one."""

    def __init__(
        self, file: Path, *, bytes_max: int, drops: Literal["oldest", "newest"], sync: bool = False
    ) -> None:
        self._bytes_max = bytes_max
        self._drops_oldest = drops == "oldest"
        self._database = _open(file)
        self._database.execute(f"pragma synchronous = {'full' if sync else 'normal'}")
        self.name = self._name()
        """Of this file and no other, for as long as it is there."""
        self.count = 0
        """Messages in the queue."""
        self.bytes = 0
        """Their bytes, as `bytes_max` counts."""
        self.dropped = 0
        """Messages for which there was no room, or that made room."""
        self._add_up()

    def _name(self) -> str:
        self._database.execute(_NAME)
        self._database.execute(
            "insert into name select ? where not exists (select * from name)", (secrets.token_hex(8),)
        )
        (name,) = self._database.execute("select text from name").fetchone()
        return str(name)

    def put(self, messages: Sequence[Waiting]) -> None:
        """Add messages at the end, all in one transaction; their numbers are given here."""
        with self._transaction():
            for message in messages:
                if self._make_room(message.size):
                    self._database.execute(
                        "insert into waiting (topic, payload, qos, retain, client_id) values (?, ?, ?, ?, ?)",
                        (message.topic, message.payload, message.qos, message.retain, message.client_id),
                    )
                    self.count += 1
                    self.bytes += message.size

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of what is done within, or nothing."""
        self._database.execute("begin immediate")
        try:
            yield
            self._database.execute("commit")
        except BaseException:
            # An error may have ended the transaction already, such as a full disk.
            if self._database.in_transaction:
                self._database.execute("rollback")
            self._add_up()
            raise

    def _add_up(self) -> None:
        self.count, self.bytes = self._database.execute(
            "select count(*), coalesce(sum(? + length(cast(topic as blob)) + length(payload)"
            " + length(cast(client_id as blob))), 0) from waiting",
            (_ROW_BYTES,),
        ).fetchone()

    def _make_room(self, size: int) -> bool:
        if size > self._bytes_max or (self.bytes + size > self._bytes_max and not self._drops_oldest):
            self.dropped += 1
            return False
        while self.bytes + size > self._bytes_max:
            (oldest,) = self.first(1)
            self._database.execute("delete from waiting where number = ?", (oldest.number,))
            self.count -= 1
            self.bytes -= oldest.size
            self.dropped += 1
        return True

    def first(self, count_max: int) -> list[Waiting]:
        """Return the oldest messages; they stay until `done`."""
        rows = self._database.execute(
            "select number, topic, payload, qos, retain, client_id from waiting order by number limit ?",
            (count_max,),
        )
        return [
            Waiting(number, topic, payload, qos, bool(retain), client_id)
            for number, topic, payload, qos, retain, client_id in rows
        ]

    def done(self, messages: Sequence[Waiting]) -> None:
        """Forget messages of `first`; those that made room meanwhile are passed over."""
        with self._transaction():
            for message in messages:
                found = self._database.execute("delete from waiting where number = ?", (message.number,))
                if found.rowcount:
                    self.count -= 1
                    self.bytes -= message.size

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def _open(file: Path) -> sqlite3.Connection:
    """Open the file. One that is damaged gets another name, and a new one its place."""
    try:
        return _opened(file)
    except sqlite3.OperationalError:
        # It says nothing of what is in the file: no such directory, a full disk, another process.
        raise
    except sqlite3.DatabaseError as error:
        aside = f"{file}.damaged-{time.time_ns()}"
        for ending in ("", "-wal"):
            source = Path(f"{file}{ending}")
            if source.exists():
                source.rename(f"{aside}{ending}")
        Path(f"{file}-shm").unlink(missing_ok=True)
        _log.error(
            "the queue of messages for the centre is damaged, and a new one begins: %s is kept: %s",
            aside,
            error,
        )
        return _opened(file)


def _opened(file: Path) -> sqlite3.Connection:
    database = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
    try:
        database.execute("pragma journal_mode = wal")
        (found,) = database.execute("pragma quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        database.execute(_TABLE)
    except BaseException:
        database.close()
        raise
    return database
