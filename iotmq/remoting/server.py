"""Listen for connections of the native protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from iotmq.clock import Clock, SystemClock
from iotmq.limits import NATIVE_CONNECTIONS_MAX, NATIVE_IDLE_S, WRITE_BUFFER_BYTES_MAX
from iotmq.metrics import Metric
from iotmq.remoting.channel import Channel
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import Run
from iotmq.remoting.tls.accepting import listening_sockets
from iotmq.remoting.tls.files import ServerTls
from iotmq.remoting.tls.first_byte import FirstByteListener
from iotmq.remoting.traffic import Traffic
from iotmq.supervised import supervise, surviving

# How long stop() waits for peers to take what was already answered.
_STOP_S: Final = 0.5
_BACKLOG: Final = 1024


class RequestHandler(Protocol):
    """Handle the requests of a role's listener. Both methods run on the event loop."""

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        """Answer now with a command, or later through `connection.reply` (None).

        RequestError is answered with its code; what is returned for a oneway request is dropped.
        """

    def connection_lost(self, connection: ServerConnection) -> None:
        """Handle the end of an accepted connection; called once for each."""


#: Takes requests of a run from a number on and returns the number of the first it leaves to `handle`.
RunHandler: TypeAlias = Callable[["ServerConnection", Run, int], int]


class Listening(msgspec.Struct, frozen=True, kw_only=True):
    """The address and the limits of a listener."""

    host: str = "127.0.0.1"
    port: int = 0
    idle_s: float = NATIVE_IDLE_S
    connections_max: int = NATIVE_CONNECTIONS_MAX
    write_buffer_bytes_max: int = WRITE_BUFFER_BYTES_MAX
    name: str = ""
    """Tells the listeners of one process apart in the metrics."""


class RemotingServer:
    """Accept native connections and hand their requests to one handler."""

    def __init__(
        self,
        handler: RequestHandler,
        listening: Listening | None = None,
        *,
        clock: Clock | None = None,
        handle_run: RunHandler | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """With `handle_run` usual sends and pulls are offered to it first; `handler` gets what it leaves.

        Leave it away where something has to look at every single request.
        """
        self._handler = handler
        self._handle_run = handle_run
        self._listening = listening = listening or Listening()
        self._clock: Clock = clock or SystemClock()
        self._labels = (("listener", listening.name),) if listening.name else ()
        self._traffic = Traffic()
        self._server: asyncio.Server | None = None
        # Instead of `_server` where connections may be encrypted, from start() to stop().
        self._tls = tls
        self._listeners: list[FirstByteListener] = []
        self._tls_reloads: asyncio.Task[None] | None = None
        self._scan_timer: asyncio.TimerHandle | None = None
        # When each connection was last seen active, by the coarse scan.
        self._active_s: dict[ServerConnection, float] = {}
        # Set while stop() waits for the last connection to end.
        self._emptied: asyncio.Future[None] | None = None
        self.port = listening.port

    @property
    def connections(self) -> Iterable[ServerConnection]:
        """Return the open connections."""
        return self._active_s.keys()

    @property
    def traffic(self) -> Traffic:
        """Return the counters behind `metrics`."""
        return self._traffic

    async def start(self) -> None:
        """Listen; afterwards `port` is the real one. OSError when the address is taken."""
        loop = asyncio.get_running_loop()
        if self._tls is None:
            self._server = await loop.create_server(
                self._accept, self._listening.host, self._listening.port, backlog=_BACKLOG
            )
            self.port = self._server.sockets[0].getsockname()[1]
        else:
            await self._listen_for_both(self._tls)
        self._schedule_scan(loop)

    async def stop(self) -> None:
        """Stop listening and end every connection; answers already given are written first, within 0.5 s."""
        if self._scan_timer is not None:
            self._scan_timer.cancel()
            self._scan_timer = None
        if self._server is not None:
            self._server.close()
            self._server = None
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._tls_reloads is not None:
            self._tls_reloads.cancel()
            self._tls_reloads = None
        for connection in list(self._active_s):
            connection.close()
        if self._active_s:
            self._emptied = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(_STOP_S):
                    await self._emptied
            except TimeoutError:
                for connection in list(self._active_s):
                    connection.abort("stopped")
                # The transports report the end in the next turn.
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    def metrics(self) -> Iterable[Metric]:
        yield from self._traffic.metrics(len(self._active_s), self._labels)
        if self._tls is not None:
            yield from self._tls.metrics(self._labels)

    def close_idle(self) -> None:
        """End connections on which nothing moved for the idle time; runs by itself eight times in it.

        Only whole commands and bytes the peer took count, so half a frame, or a peer that stopped reading,
        does not keep a connection open.
        """
        now_s = self._clock.monotonic_s()
        active_s = self._active_s
        for connection, seen_s in list(active_s.items()):
            if connection.take_activity():
                active_s[connection] = now_s
            elif now_s - seen_s >= self._listening.idle_s:
                self._traffic.closed["idle"] += 1
                if connection.is_closed or connection.is_congested:
                    connection.abort("idle")
                else:
                    connection.close("idle")
                    # Closing waits for the peer to take what is left; after another idle time it is aborted.
                    active_s[connection] = now_s

    def _schedule_scan(self, loop: asyncio.AbstractEventLoop) -> None:
        def scan() -> None:
            with surviving("end of idle connections"):
                self.close_idle()
            self._schedule_scan(loop)

        self._scan_timer = loop.call_later(self._listening.idle_s / 8, scan)

    async def _listen_for_both(self, tls: ServerTls) -> None:
        for each in await listening_sockets(self._listening.host, self._listening.port, backlog=_BACKLOG):
            self._listeners.append(
                FirstByteListener(each, self._accept, tls, self._traffic, has_room=self._has_room_for)
            )
            self.port = each.getsockname()[1]
        self._tls_reloads = supervise("reading of certificates", tls.reload_repeatedly)

    def _has_room_for(self, undecided_count: int) -> bool:
        return len(self._active_s) + undecided_count <= self._listening.connections_max

    def _accept(self) -> ServerConnection:
        return ServerConnection(
            self._handler,
            self._traffic,
            opened=self._opened,
            lost=self._lost,
            write_buffer_bytes_max=self._listening.write_buffer_bytes_max,
            handle_run=self._handle_run,
        )

    def _opened(self, connection: ServerConnection) -> bool:
        """Count a new connection; False when there is no room for it."""
        is_listening = self._server is not None or self._listeners
        if len(self._active_s) >= self._listening.connections_max or not is_listening:
            self._traffic.closed["refused"] += 1
            self._traffic.warn(
                "connection refused",
                connection.peer,
                "too many connections",
                f"{len(self._active_s)} are open, the maximum is {self._listening.connections_max}",
            )
            return False
        self._traffic.connections_opened += 1
        self._active_s[connection] = self._clock.monotonic_s()
        return True

    def _lost(self, connection: ServerConnection) -> None:
        if self._active_s.pop(connection, None) is not None:
            try:
                self._handler.connection_lost(connection)
            except Exception as error:
                self._traffic.handler_failed(0, error)
        if self._emptied is not None and not self._active_s and not self._emptied.done():
            self._emptied.set_result(None)


class ServerConnection(Channel):
    """One accepted connection. Hashed by identity, so a role can key its own tables by it."""

    __slots__ = ("_handle_run", "_handler", "_lost", "_opened")

    def __init__(
        self,
        handler: RequestHandler,
        traffic: Traffic,
        *,
        opened: Callable[[ServerConnection], bool],
        lost: Callable[[ServerConnection], None],
        write_buffer_bytes_max: int,
        handle_run: RunHandler | None = None,
    ) -> None:
        """`opened` says whether the listener has room; `lost` is told of every end, refused ones too."""
        super().__init__(
            traffic,
            write_buffer_bytes_max=write_buffer_bytes_max,
            holds_back=True,
            takes_runs=handle_run is not None,
        )
        self._handler = handler
        self._handle_run = handle_run
        self._opened = opened
        self._lost = lost

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """Return the client certificate that was verified, as ssl has it; None without one."""
        return None if self._transport is None else self._transport.get_extra_info("peercert") or None

    def close(self, reason: str = "closed") -> None:
        """End the connection once everything sent so far is written."""
        self._close(reason)

    def _on_opened(self) -> None:
        if not self._opened(self):
            self.abort("refused")

    def _on_request(self, request: Command) -> Command | None:
        return self._handler.handle(self, request)

    def _on_run(self, run: Run, at: int) -> int:
        assert self._handle_run is not None
        return self._handle_run(self, run, at)

    def _on_lost(self) -> None:
        self._lost(self)


class _Nobody:
    """Handle the requests of a connection that has none."""

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        return request.not_supported()

    def connection_lost(self, connection: ServerConnection) -> None:
        """Nothing was kept."""


def absent_connection() -> ServerConnection:
    """Return a connection that has ended: what is sent on it is dropped, and requests fail."""
    connection = ServerConnection(
        _Nobody(),
        Traffic(),
        opened=lambda _: False,
        lost=lambda _: None,
        write_buffer_bytes_max=WRITE_BUFFER_BYTES_MAX,
    )
    connection.abort("absent")
    return connection
