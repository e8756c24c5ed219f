"""Handshakes of TLS that the front end drives itself, step by step, without transports of the event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from iotmq import limits
from iotmq.event_loop import SomePerTurn
from iotmq.mqtt_front.listen.sockets import Sockets
from iotmq.mqtt_front.listen.tls_link import TlsLink
from iotmq.remoting.tls.files import ServerTls
from iotmq.supervised import FAILURES


class OwnHandshakes:
    """Those of one listener. In the place of remoting.tls.accepting.Starting, for connections with TLS."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[TlsLink, _Handshake] = {}
        # Those whose devices have done their part. The last step has a certificate to verify.
        self._ready: SomePerTurn[TlsLink] = SomePerTurn(self._go_on, limits.TLS_HANDSHAKES_PER_TURN)

    @property
    def handshakes_count(self) -> int:
        """How many are under way."""
        return len(self._under_way)

    def cancel(self) -> None:
        """End them all."""
        for link, handshake in self._under_way.items():
            handshake.timer.cancel()
            link.abort()
        self._under_way.clear()

    def start(
        self,
        connection: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ServerTls | None,
        done: Callable[[OSError | ValueError | None], None],
    ) -> None:
        """Shake hands, and tell a protocol of the link. `done` hears of the end, with None for a good one."""
        assert tls is not None, "without TLS there is no handshake"
        try:
            link = TlsLink(self._sockets, connection, tls.context, self._ready.add)
        except (OSError, ValueError) as error:
            connection.close()
            done(error)
            return
        timer = self._loop.call_later(tls.handshake_timeout_s, self._overdue, link)
        self._under_way[link] = _Handshake(protocol, done, timer)
        self._step(link)

    def _go_on(self, link: TlsLink) -> None:
        if link in self._under_way:
            self._step(link)

    def _step(self, link: TlsLink) -> None:
        try:
            if not link.step():
                return
        except (OSError, ValueError) as error:
            self._fail(link, error)
            return
        handshake = self._under_way.pop(link)
        handshake.timer.cancel()
        try:
            handshake.protocol().connection_made(link)
        except Exception:
            FAILURES.note("accepted connections")
            link.abort()
        handshake.done(None)

    def _overdue(self, link: TlsLink) -> None:
        self._fail(link, ConnectionAbortedError("the handshake took too long"))

    def _fail(self, link: TlsLink, error: OSError | ValueError) -> None:
        handshake = self._under_way.pop(link)
        handshake.timer.cancel()
        link.abort()
        handshake.done(error)


class _Handshake:
    """One that is under way."""

    __slots__ = ("done", "protocol", "timer")

    def __init__(
        self,
        protocol: Callable[[], asyncio.BaseProtocol],
        done: Callable[[OSError | ValueError | None], None],
        timer: asyncio.TimerHandle,
    ) -> None:
        self.protocol = protocol
        self.done = done
        self.timer = timer
