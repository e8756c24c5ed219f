"""Move bytes between a link and the protocol core of one connection, and keep its deadlines."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from iotmq.mqtt.client.connection import CLOSED, ClientConnection
from iotmq.mqtt.client.events import ClientEvent, Ending
from iotmq.mqtt_client.links import Link

# Packets of one turn of the loop leave together, or when they are this many bytes.
_FLUSH_BYTES: Final = 64 * 1024
# How long a link that was closed may take to get rid of what was written.
_CLOSE_S: Final = 2.0
_CLOSE_TRIES: Final = 10


class ConnectionOwner(Protocol):
    """The owner of a connection, which is told of its events."""

    def events_came(self, connection: MqttConnection, events: list[ClientEvent], size: int) -> None:
        """Handle events in order; they arrived in `size` bytes."""

    def room_changed(self) -> None:
        """Send on: more can be written than before."""

    def connection_ended(self, connection: MqttConnection, ending: Ending) -> None:
        """Handle the end of the connection; called once."""


class MqttConnection(asyncio.Protocol):
    """One connection, from `begin` until its owner's `connection_ended`."""

    def __init__(self, core: ClientConnection, owner: ConnectionOwner) -> None:
        self.core = core
        self.is_writing_paused = False
        # Done when the link is gone.
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._is_flush_due = False
        self._is_reading_paused = False
        self._has_ended = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, link: Link) -> None:
        """Send CONNECT."""
        self._link = link
        self.flush()

    # What the owner does ---------------------------------------------------------------------------------

    def send_soon(self) -> None:
        """Send the core's output at the end of this turn of the loop."""
        if self.core.output_bytes >= _FLUSH_BYTES:
            self.flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what the core has, and see whether it has ended."""
        self._is_flush_due = False
        data = self.core.data_to_send(self._loop.time())
        if data and self._link is not None and not self.lost.done():
            self._link.write(data)
        self._keep_time()
        if self.core.state == CLOSED:
            self._end()

    def pause_reading(self) -> None:
        if self._link is not None and not self._is_reading_paused and not self._has_ended:
            self._is_reading_paused = True
            self._link.pause_reading()

    def resume_reading(self) -> None:
        if self._link is not None and self._is_reading_paused and not self.lost.done():
            self._is_reading_paused = False
            self._link.resume_reading()

    async def leave(self, *, session_expiry_s: int | None) -> None:
        """Say good-bye, when what was written has left, and wait a moment for the server to close.

        Closing a socket with unread bytes resets it: the server would lose the DISCONNECT.
        """
        self.core.disconnect(session_expiry_s=session_expiry_s)
        self.resume_reading()
        self.flush()
        link = self._link
        for _ in range(_CLOSE_TRIES):
            await asyncio.wait([self.lost], timeout=_CLOSE_S)
            if link is None or self.lost.done() or not link.get_write_buffer_size():
                break
        if link is not None and not self.lost.done():
            link.close()

    def abort(self) -> None:
        """Drop the link without a DISCONNECT."""
        if self._link is not None and not self.lost.done():
            self._link.abort()

    # What the link does ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        core = self.core
        core.receive_data(data, self._loop.time())
        size = len(data)
        while events := core.events_received():
            # Owners that trust the server only now get what that brings, too.
            self._owner.events_came(self, events, size)
            size = 0
        if core.state == CLOSED:
            self.flush()
        elif core.output_bytes:
            # Whoever waits for these events sends in this turn, too.
            self.send_soon()
        elif self._timer is None:
            self._keep_time()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        self.core.receive_eof(str(error) if error is not None else "")
        self._end()

    def pause_writing(self) -> None:
        self.is_writing_paused = True

    def resume_writing(self) -> None:
        self.is_writing_paused = False
        self._owner.room_changed()

    # Inside ----------------------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        """One timer for the core's next deadline; one that is too early asks again, none may be too late."""
        deadline_s = self.core.next_deadline()
        if self._timer is not None:
            if deadline_s is not None and self._timer.when() <= deadline_s:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_s is not None and not self._has_ended:
            self._timer = self._loop.call_at(deadline_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.core.tick(self._loop.time(), is_reading=not self._is_reading_paused)
        self.flush()

    def _end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ending = self.core.ending
        assert ending is not None
        if self._link is not None and not self.lost.done() and not ending.is_ours:
            self._link.close()
            self._loop.call_later(_CLOSE_S, self.abort)
        self._owner.connection_ended(self, ending)
