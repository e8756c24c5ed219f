"""Send a master's tables to its followers, and take them from a master, beside the stream of the log.

Pieces go out on each connection in the order in which they were made. A follower says how many it has taken
once its tables are whole, which is what an operator's change waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from iotmq.broker.tables.table_copies import TableCopies
from iotmq.broker.tables.table_pieces import decode_piece
from iotmq.errors import ConnectionClosedError
from iotmq.member.wire import decode_tables_taken, encode_table, encode_tables_taken
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.server import ServerConnection
from iotmq.replication.leading import Leading

# A change of an operator is answered when the members in sync have it, or after so long.
_COPIED_S: Final = 1.0


def reaches_next_master(leading: Leading | None) -> bool:
    """Return whether whoever becomes master next is among the followers that are told what changes.

    Not where too few members are in sync: those that have left may be elected. Nor where one that is in sync
    has no connection: it may be standing for election.
    """
    if leading is None or not leading.takes_appends:
        return False
    connected = {each.identity for each in leading.followers.values() if each.is_connected}
    return all(
        identity.member == leading.state.master or identity in connected for identity in leading.effective
    )


class _CopyWait:
    """Wait until followers have taken so many pieces of tables, each on its connection."""

    def __init__(self, targets: dict[ServerConnection, int], call: Callable[[bool], None]) -> None:
        self._targets = targets
        self._call: Callable[[bool], None] | None = call
        self.timer: asyncio.TimerHandle | None = None

    def taken(self, link: ServerConnection, count: int) -> bool:
        """Note what a follower has; return whether nobody is waited for any more."""
        if count >= self._targets.get(link, count + 1):
            del self._targets[link]
            if not self._targets:
                self.end(is_copied=True)
        return self._call is None

    def end(self, *, is_copied: bool) -> None:
        """Call back, once."""
        call, self._call = self._call, None
        if self.timer is not None:
            self.timer.cancel()
        if call is not None:
            call(is_copied)


class TableStream:
    """The tables of one run of a member, as master and as follower. On the loop's thread."""

    def __init__(self, tables: TableCopies) -> None:
        self._tables = tables
        # Connections of followers that were sent the tables, or are just now: pieces sent, and taken.
        self._sent: dict[ServerConnection, int] = {}
        self._taken: dict[ServerConnection, int] = {}
        self._waits: list[_CopyWait] = []
        # Pieces taken from the master that is followed now.
        self._taken_here = 0

    # At the master

    async def send_all(self, link: ServerConnection) -> bool:
        """Send a follower all tables, as fast as it takes them, and changes in between.

        Returns whether its connection still stands.
        """
        self._sent[link] = 0
        try:
            for piece in self._tables.snapshot():
                if link.is_closed:
                    # `send_changes` may have forgotten it since the last piece.
                    return False
                self._send(link, encode_table(piece.encode()))
                await link.drain()
                await asyncio.sleep(0)
        except ConnectionClosedError:
            return False
        return True

    def send_changes(self) -> None:
        """Send all followers what has changed; to be called every second, and when something is urgent."""
        for link in [link for link in self._sent if link.is_closed]:
            del self._sent[link]
            self._taken.pop(link, None)
        if not self._sent:
            self._tables.stop_tracking()
            return
        for piece in self._tables.changes():
            command = encode_table(piece.encode())
            for link in self._sent:
                self._send(link, command)

    def note_taken(self, link: ServerConnection, request: Command) -> None:
        """Note how many pieces a follower has taken. RequestError."""
        count = decode_tables_taken(request)
        if link in self._sent:
            self._taken[link] = count
            self._waits = [wait for wait in self._waits if not wait.taken(link, count)]

    def when_copied(self, links: Iterable[ServerConnection], call: Callable[[bool], None]) -> None:
        """Call back with True when these followers have what was sent them so far, with False after a second.

        `send_changes` was called before.
        """
        targets = {
            link: sent for link in links if self._taken.get(link, -1) < (sent := self._sent.get(link, 0))
        }
        if not targets:
            call(True)
            return
        wait = _CopyWait(targets, call)
        wait.timer = asyncio.get_running_loop().call_later(_COPIED_S, self._give_up, wait)
        self._waits.append(wait)

    def stop(self) -> None:
        """Tell those who wait that nothing is copied any more."""
        waits, self._waits = self._waits, []
        for wait in waits:
            wait.end(is_copied=False)

    def _send(self, link: ServerConnection, command: Command) -> None:
        self._sent[link] += 1
        link.send_oneway(command)

    def _give_up(self, wait: _CopyWait) -> None:
        self._waits.remove(wait)
        wait.end(is_copied=False)

    # At a follower

    def begin(self) -> None:
        """Follow another master, or the same one on another connection."""
        self._tables.begin()
        self._taken_here = 0

    def take(self, link: ClientConnection, request: Command) -> None:
        """Take a piece of the master's. TableCopyError."""
        self._tables.apply(decode_piece(request.body_bytes()))
        self._taken_here += 1
        if self._tables.is_complete:
            link.send_oneway(encode_tables_taken(self._taken_here))
