"""Keep the tables of followers level with those of the master, beside the log, which has everything else.

A master sends each new follower a `snapshot`, and all of them the `changes` since; a follower takes the
pieces in the order in which they were made. Nothing here knows a connection.

Nothing is noted of any change before the first snapshot is asked for, or after `stop_tracking`. While
followers are there, a changed offset or lock costs its key in a set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from iotmq.broker.tables.copied_table import CopiedTable, Copy, Entries
from iotmq.broker.tables.table_pieces import CHANGED, TablePiece, encode_bodies
from iotmq.errors import TableCopyError
from iotmq.event_loop import NextTurn

Copier: TypeAlias = Callable[[Callable[[bool], None]], None]
"""Calls back with True once followers have what changed until now, with False when not in time."""


class TableCopies:
    """The tables of one broker, whether it is the master or follows. On the loop's thread."""

    def __init__(self, tables: Sequence[CopiedTable]) -> None:
        """Copy them in this order."""
        self._tables = {table.name: table for table in tables}
        self._is_tracking = False
        self._is_leading = False
        self._last_copy = CHANGED
        self._listeners: list[Callable[[], None]] = []
        self.copier: Copier | None = None
        """Sends what has changed, and calls back when followers have it, with False when not in time."""
        self._next_turn = NextTurn(self._tell)
        # At a follower, by table: the copy that is being filled, and its number.
        self._unfinished: dict[str, tuple[int, Copy]] = {}
        # Tables that were copied since `begin`.
        self._copied: set[str] = set()

    # At the master

    def snapshot(self) -> Iterator[TablePiece]:
        """Return everything for a new follower, piece by piece: each is made when it is asked for.

        From now on changes are noted. What `changes` yields between two pieces is sent between them.
        """
        if not self._is_tracking:
            self._is_tracking = True
            for table in self._tables.values():
                table.track()
        return self._snapshot()

    def changes(self) -> Iterator[TablePiece]:
        """Return what changed since the last call, for everybody who follows, made when it is asked for.

        To be called about once a second, and when a listener is told; all of it has to be sent. Nothing
        while nobody follows.
        """
        if not self._is_tracking:
            return iter(())
        changed = [(table, table.take_changes()) for table in self._tables.values()]
        return self._pieces([(table, read) for table, read in changed if read is not None])

    def stop_tracking(self) -> None:
        """Note nothing any more: nobody follows. The next follower begins with a snapshot as they all do."""
        self._is_tracking = False
        for table in self._tables.values():
            table.untrack()

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Tell, once in a turn of the loop, that `changes` has what should not wait for a second."""
        self._listeners.append(listener)

    def when_copied(self, call: Callable[[bool], None]) -> None:
        """Call back when every follower that is in sync has what changed until now; False: not in time."""
        if self.copier is not None:
            self.copier(call)
        else:
            call(True)

    def note_urgent(self) -> None:
        """Have the listeners told: something changed that a new master should know for sure."""
        if self._is_tracking and self._listeners:
            self._next_turn.schedule()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _snapshot(self) -> Iterator[TablePiece]:
        for table in self._tables.values():
            yield from self._pieces([(table, table.whole)])

    def _pieces(self, changed: Iterable[tuple[CopiedTable, Callable[[], Entries]]]) -> Iterator[TablePiece]:
        for table, read in changed:
            # Not before it is sent: what was sent meanwhile is newer than what was there.
            entries, is_whole, version = read()
            if is_whole:
                self._last_copy += 1
            copy = self._last_copy if is_whole else CHANGED
            is_first = is_whole
            for body, is_last in encode_bodies(entries):
                yield TablePiece(
                    table=table.name,
                    copy=copy,
                    is_first=is_first,
                    is_last=is_last and is_whole,
                    version=version(),
                    body=body,
                )
                is_first = False

    # At a follower

    def begin(self) -> None:
        """Note that a master is followed from here on: nothing of it is there yet."""
        self._unfinished.clear()
        self._copied.clear()

    @property
    def is_complete(self) -> bool:
        """Return whether every table was copied since `begin`: before, the broker must not become master."""
        return len(self._copied) == len(self._tables)

    def take(self, piece: TablePiece) -> None:
        """Apply a piece of the master's. The tables' files follow a while later (`Broker.follow`).

        A copy takes the place of a table with its last piece; one whose end does not come changes nothing.
        Raises TableCopyError for what cannot be, and when this broker is the master; nothing has changed
        then, and the rest of the same copy is passed over.
        """
        if self._is_leading:
            raise TableCopyError("this broker is the master: it takes no tables")
        table = self._tables.get(piece.table)
        if table is None:
            raise TableCopyError(f"no table has the name {piece.table[:40]!r}")
        if piece.copy == CHANGED and (piece.is_first or piece.is_last):
            raise TableCopyError(f"a piece of the table {piece.table} is of no copy, and begins or ends one")
        if piece.is_first:
            self._unfinished[piece.table] = piece.copy, table.begin_copy()
        number, copy = self._unfinished.get(piece.table, (CHANGED, None))
        if piece.copy == CHANGED:
            if copy is None:
                table.update(piece)
            else:
                # What is there is about to be replaced, and would not be by what this one knows.
                self._add(copy, piece)
        elif copy is not None and piece.copy == number:
            self._add(copy, piece)
            if piece.is_last:
                del self._unfinished[piece.table]
                copy.finish(piece.version)
                self._copied.add(piece.table)

    def lead(self) -> None:
        """Take nothing any more: this broker becomes the master."""
        self._is_leading = True
        self.begin()

    def _add(self, copy: Copy, piece: TablePiece) -> None:
        try:
            copy.add(piece)
        except TableCopyError:
            del self._unfinished[piece.table]
            raise
