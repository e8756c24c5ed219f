"""Keep one connection per address, shared by all producers and consumers of a client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from iotmq.addresses import parse_address
from iotmq.backoff import Backoff
from iotmq.client.transport.connection_events import ConnectionEvents
from iotmq.client.transport.settings import ClientSettings
from iotmq.clock import Clock
from iotmq.errors import ClientClosedError, ConnectionClosedError
from iotmq.limits import ADDRESSES_KNOWN_MAX
from iotmq.metrics import Metric, samples
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.traffic import Traffic

# A connection that ends sooner than this counts as a failed try, so that a peer that accepts and
# closes at once is not asked again and again without a pause.
LIFE_S_MIN = 1.0

T = TypeVar("T")


class _Address:
    """Hold the state of one address."""

    __slots__ = ("backoff", "connected_s", "connecting", "connection", "last_error", "not_before_s")

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.connection: ClientConnection | None = None
        self.connected_s = 0.0
        """When `connection` was made, in monotonic seconds."""
        self.connecting: asyncio.Task[ClientConnection] | None = None
        """Set while a try is running; all who want the address wait for this one."""
        self.not_before_s = 0.0
        """No new try before this time."""
        self.last_error = ""
        """Why there is no connection, with the address."""

    @property
    def is_idle(self) -> bool:
        """Return whether there is no connection, and none being made."""
        return self.connecting is None and (self.connection is None or self.connection.is_closed)


class ConnectionCallbacks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that `Connections` calls."""

    requested: Callable[[ClientConnection, Command], Command | None]
    """Answers a request of the peer."""
    connected: Callable[[str, ClientConnection], None]
    """Told of a new connection to an address before anybody else can use it, so what it sends comes first."""
    lost: Callable[[str], None]
    """Told that the connection to an address ended."""
    events: ConnectionEvents
    """Told what the application may want to know."""


class Connections:
    """Make, share and remember connections; a failing address is tried again after growing pauses."""

    def __init__(
        self,
        settings: ClientSettings,
        callbacks: ConnectionCallbacks,
        *,
        clock: Clock,
        chance: Callable[[], float] = random.random,
        addresses_max: int = ADDRESSES_KNOWN_MAX,
    ) -> None:
        self._settings = settings
        self._tls = settings.tls_context()
        self._callbacks = callbacks
        self._addresses_max = addresses_max
        self._clock = clock
        self._chance = chance
        self._addresses: dict[str, _Address] = {}
        """At most `addresses_max`, beside those with a connection."""
        self.is_closed = False
        """True after `close`, for good."""
        self.opened_total = 0
        self.lost_total = 0
        """Connections that have ended before `close`."""
        self.failed_total = 0
        """Tries to connect that failed."""
        self.traffic = Traffic()
        """The counters that all connections share."""

    def ready(self, address: str) -> ClientConnection | None:
        """Return the open connection to HOST:PORT, if there is one now."""
        known = self._addresses.get(address)
        if known is None or known.connection is None or known.connection.is_closed:
            return None
        return known.connection

    async def get(self, address: str) -> ClientConnection:
        """Return the open connection to HOST:PORT, made if needed.

        ConnectionClosedError at once while the address rests after a failure (see `rest_s`), and
        when the try fails.
        """
        if self.is_closed:
            raise ClientClosedError("the client is stopped")
        known = self._addresses.get(address)
        if known is None:
            self._make_room()
            known = self._addresses[address] = _Address(
                Backoff(
                    min_s=self._settings.reconnect_ms_min / 1000,
                    max_s=self._settings.reconnect_ms_max / 1000,
                    chance=self._chance,
                )
            )
        if known.connection is not None and not known.connection.is_closed:
            return known.connection
        if known.connecting is None:
            rest_s = known.not_before_s - self._clock.monotonic_s()
            if rest_s > 0:
                raise ConnectionClosedError(f"{known.last_error}; next try in {rest_s:.1f} s")
            known.connecting = asyncio.ensure_future(self._connect(address, known))
            known.connecting.add_done_callback(_see_exception)
        try:
            return await shared_result(known.connecting)
        except ClientClosedError:
            if self.is_closed:
                raise
            raise ConnectionClosedError(f"{address} is not tried any more") from None

    def drop(self, address: str) -> None:
        """End the connection to HOST:PORT at once, or the try to make one: all that waits for it fails.

        A new one may be made at once, and `lost` is not told.
        """
        known = self._addresses.get(address)
        if known is None:
            return
        # Not left to the task: one that has not begun to run ends without a word.
        connecting, known.connecting = known.connecting, None
        if connecting is not None:
            connecting.cancel()
        connection, known.connection = known.connection, None
        if connection is not None:
            connection.abort("dropped")
            reason = "given up here: it is silent, or not master any more"
            self._callbacks.events.note("disconnected", address, reason)
            self.lost_total += 1
        self.hasten(address)

    def hasten(self, address: str) -> None:
        """Allow a new try of HOST:PORT at once."""
        known = self._addresses.get(address)
        if known is not None:
            known.not_before_s = 0.0
            known.backoff.reset()

    def rest_s(self, address: str) -> float:
        """Return the seconds until a new try of HOST:PORT is allowed; 0 when it is."""
        known = self._addresses.get(address)
        return 0.0 if known is None else max(0.0, known.not_before_s - self._clock.monotonic_s())

    def open_addresses(self) -> list[str]:
        """List the addresses with an open connection."""
        return [address for address in self._addresses if self.ready(address) is not None]

    def metrics(self) -> Iterable[Metric]:
        """Report the counters."""
        open_count = sum(self.ready(address) is not None for address in tuple(self._addresses))
        yield from samples(
            ("connections", "Open connections to registries and brokers", open_count),
            ("connections_opened_total", "Connections made", self.opened_total),
            ("connections_lost_total", "Connections that ended while the client ran", self.lost_total),
            ("connections_failed_total", "Tries to connect that failed", self.failed_total),
            ("sent_bytes_total", "Bytes sent to registries and brokers", self.traffic.bytes_sent),
            ("received_bytes_total", "Bytes received from them", self.traffic.bytes_received),
            prefix="iotmq_client_",
        )

    async def close(self) -> None:
        """Close all connections; further `get` calls fail."""
        self.is_closed = True
        for known in list(self._addresses.values()):
            if known.connecting is not None:
                known.connecting.cancel()
                await asyncio.wait([known.connecting])
            if known.connection is not None:
                await known.connection.close()

    def _make_room(self) -> None:
        """Forget the oldest address without a connection when there are too many."""
        if len(self._addresses) >= self._addresses_max:
            idle = (name for name, known in self._addresses.items() if known.is_idle)
            self._addresses.pop(next(idle, ""), None)

    async def _connect(self, address: str, known: _Address) -> ClientConnection:
        if known.last_error:
            self._callbacks.events.note("reconnecting", address, known.last_error)
        try:
            host, port = parse_address(address)
            connection = await ClientConnection.connect(
                host,
                port,
                on_request=self._callbacks.requested,
                on_lost=lambda connection, *_: self._lost(address, known, connection),
                timeout_s=self._settings.connect_timeout_ms / 1000,
                traffic=self.traffic,
                credentials=self._settings.credentials,
                tls=self._tls,
            )
        except (ConnectionClosedError, ValueError) as error:
            self.failed_total += 1
            known.last_error = str(error)
            known.not_before_s = self._clock.monotonic_s() + known.backoff.next_s()
            raise ConnectionClosedError(known.last_error) from error
        finally:
            # After a drop it is another try's.
            if known.connecting is asyncio.current_task():
                known.connecting = None
        self.opened_total += 1
        known.connection = connection
        known.connected_s = self._clock.monotonic_s()
        known.not_before_s = 0.0
        self._callbacks.events.note("connected", address)
        self._callbacks.connected(address, connection)
        return connection

    def _lost(self, address: str, known: _Address, connection: ClientConnection) -> None:
        if known.connection is not connection:
            return
        known.connection = None
        now_s = self._clock.monotonic_s()
        if now_s - known.connected_s >= LIFE_S_MIN:
            known.backoff.reset()
        known.last_error = f"the connection to {address} was lost"
        known.not_before_s = now_s + known.backoff.next_s()
        if not self.is_closed:
            self.lost_total += 1
            reason = connection.close_reason or "ended by the other side, or by the network"
            self._callbacks.events.note("disconnected", address, reason)
            self._callbacks.lost(address)


async def shared_result(task: asyncio.Task[T]) -> T:
    """Wait for a task of the client that others wait for, too: who gives up does not cancel it.

    ClientClosedError when the client is stopped meanwhile.
    """
    await asyncio.wait([task])
    if task.cancelled():
        # By the stop, which is no cancellation of who waits.
        raise ClientClosedError("the client is stopped")
    return task.result()


def _see_exception(task: asyncio.Task[ClientConnection]) -> None:
    # All who waited may have given up; asyncio would then complain that nobody saw the failure.
    if not task.cancelled():
        task.exception()
