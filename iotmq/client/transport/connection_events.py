"""Tell functions of the application what becomes of a client's connections, one event after the other."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from iotmq.client.transport.application_calls import call_application
from iotmq.limits import CONNECTION_EVENTS_MAX
from iotmq.metrics import Metric, samples
from iotmq.supervised import end, supervise

_log = logging.getLogger(__name__)

_LOG_PAUSE_S: Final = 1.0


class ConnectionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a client's connections to registries and brokers."""

    kind: Literal["connected", "disconnected", "reconnecting", "master_changed"]
    """connected: a connection stands. disconnected: one has ended. reconnecting: another try begins, after a
    lost connection or a try that failed. master_changed: a broker has another master, which is used now."""
    address: str
    """HOST:PORT of the connection, or of the master."""
    broker_name: str = ""
    """The broker there, as far as it is known; empty for registries."""
    reason: str = ""
    """Why a connection has ended, or is made again."""
    former_address: str = ""
    """HOST:PORT of the master before, of a broker that has another one."""


ConnectionListener: TypeAlias = Callable[[ConnectionEvent], Awaitable[None] | None]
"""Told about each event."""


class ConnectionEvents:
    """Functions of the application, and the events that they have not been told yet."""

    def __init__(self, broker_name: Callable[[str], str]) -> None:
        """`broker_name` says which broker is at HOST:PORT."""
        self._broker_name = broker_name
        self._listeners: list[ConnectionListener] = []
        self._waiting: deque[ConnectionEvent] = deque()
        self._has_waiting = asyncio.Event()
        self._teller: asyncio.Task[None] | None = None
        self._last_log_s = -_LOG_PAUSE_S
        self.told_total = 0
        """Events that all functions were told."""
        self.dropped_total = 0
        """Events that nobody was told, the oldest of too many."""
        self.failed_total = 0
        """Calls of functions that have raised an exception."""

    def start(self) -> None:
        """Begin to tell."""
        self._teller = supervise("connection events", self._tell_forever)

    async def stop(self) -> None:
        """Tell no more; a function that is at work is cancelled."""
        if self._teller is not None:
            await end([self._teller])

    def listen(self, call: ConnectionListener) -> None:
        """Tell one more function."""
        self._listeners.append(call)

    def note(
        self,
        kind: Literal["connected", "disconnected", "reconnecting"],
        address: str,
        reason: str = "",
    ) -> None:
        """Have an event told."""
        if self._listeners:
            name = self._broker_name(address)
            self._add(ConnectionEvent(kind=kind, address=address, broker_name=name, reason=reason))

    def note_master(self, name: str, former: str, address: str) -> None:
        """Have told that a broker has another master."""
        if self._listeners:
            self._add(
                ConnectionEvent(
                    kind="master_changed", address=address, broker_name=name, former_address=former
                )
            )

    def metrics(self) -> Iterable[Metric]:
        """Report the counters."""
        prefix = "iotmq_client_connection_events"
        yield from samples(
            (f"{prefix}_told_total", "Connection events told to the application", self.told_total),
            (f"{prefix}_dropped_total", "Connection events dropped: too many waited", self.dropped_total),
            (f"{prefix}_failed_total", "Calls about connection events that failed", self.failed_total),
        )

    def _add(self, event: ConnectionEvent) -> None:
        if len(self._waiting) >= CONNECTION_EVENTS_MAX:
            self._waiting.popleft()
            self.dropped_total += 1
        self._waiting.append(event)
        self._has_waiting.set()

    async def _tell_forever(self) -> None:
        while True:
            while self._waiting:
                event = self._waiting.popleft()
                for call in tuple(self._listeners):
                    await self._tell(call, event)
                self.told_total += 1
            self._has_waiting.clear()
            await self._has_waiting.wait()

    async def _tell(self, call: ConnectionListener, event: ConnectionEvent) -> None:
        try:
            await call_application(call, event)
        except Exception:
            self.failed_total += 1
            # One that fails for everything must not fill the disk with tracebacks.
            now_s = asyncio.get_running_loop().time()
            if now_s - self._last_log_s >= _LOG_PAUSE_S:
                self._last_log_s = now_s
                _log.exception("%r, told about %s, failed; %d so far", call, event, self.failed_total)
