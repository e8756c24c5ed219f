"""The replication port of a master: slaves connect, and are sent the log as far as it is confirmed.

What is sent is as durable here as `store.flush` promises. With `store.flush = "sync"` no slave has what a
power cut could take from its master.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeAlias, cast

import msgspec

from iotmq import limits
from iotmq.addresses import address_text
from iotmq.clock import Clock
from iotmq.metrics import Metric, samples
from iotmq.ports.replication_state import Follower, ReplicationState
from iotmq.replication.rocketmq.ha_master import HaMaster, HaRefusedError, LogRange
from iotmq.store.store import Store
from iotmq.supervised import end, repeat, supervise

logger = logging.getLogger("iotmq.replication")

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# A slave further behind is not waited for.
FALL_BEHIND_BYTES: Final = 256 * 1024 * 1024
# How often heartbeats and silence are looked at.
_LOOK_S: Final = 1.0
# One connection has so much of a turn of the loop.
_TURN_BYTES: Final = 1024 * 1024
# Connections that are closed at once are logged so often at most.
_LOG_S: Final = 60.0


class HaListening(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a replication port, and who may connect."""

    host: str
    port: int
    allow: tuple[Network, ...]
    connections_max: int = limits.HA_CONNECTIONS_MAX


class HaServer:
    """Listens from `start` to `stop`. It is what a sync master's sends wait for (`broker_role.Slaves`)."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        listening: HaListening,
        *,
        fall_behind_bytes: int = FALL_BEHIND_BYTES,
    ) -> None:
        self._store = store
        self._clock = clock
        self._listening = listening
        self._fall_behind_bytes = fall_behind_bytes
        self._listeners: list[Callable[[], None]] = []
        self._server: asyncio.Server | None = None
        self._work: list[asyncio.Task[None]] = []
        self._links: set[_SlaveLink] = set()
        self._next_log_s = 0.0
        self._last_refusal = ""
        self.port = listening.port
        self.reported_position = -1
        self.strangers_count = 0
        self.crowded_count = 0
        self.refused_count = 0
        self.sent_bytes = 0

    # What sends to a sync master ask.

    def is_ok(self, end_position: int) -> bool:
        """Return whether a slave is connected that is near enough to `end_position` to wait for it.

        Only those that have reported a position that can be are slaves.
        """
        return self._is_near(self.reported_position, end_position)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """`listener` is called when `reported_position` has changed."""
        self._listeners.append(listener)

    # Life.

    async def start(self) -> None:
        """Listen. OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _SlaveLink(self), self._listening.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._work = [supervise("replication heartbeats", lambda: repeat(_LOOK_S, self.look))]

    async def stop(self) -> None:
        """End all connections."""
        await end(self._work)
        if self._server is not None:
            self._server.close()
            self._server = None
        links = list(self._links)
        for link in links:
            link.abort()
        # A thread that reads from the disk cannot be told to end.
        await asyncio.gather(*(link.loading for link in links if link.loading is not None))

    def log_grew(self) -> None:
        """Send what is confirmed by now."""
        for link in list(self._links):
            link.send()

    def look(self) -> None:
        """Send heartbeats that are due, and end connections that are silent; called every second."""
        for link in list(self._links):
            link.look()

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("connections", "Connections of slaves.", len(self._links)),
            (
                "reported_position_bytes",
                "Where the nearest slave's log ends, -1 without.",
                self.reported_position,
            ),
            ("sent_bytes_total", "Bytes of the log sent to slaves.", self.sent_bytes),
            (
                "refused_addresses_total",
                "Connections from outside of replication.allow.",
                self.strangers_count,
            ),
            ("refused_crowded_total", "Connections past the maximum.", self.crowded_count),
            (
                "refused_slaves_total",
                "Connections ended because of what the other side reported.",
                self.refused_count,
            ),
            prefix="iotmq_ha_",
        )
        for link in self._links:
            if link.core.reported_position >= 0:
                behind = max(0, self._store.confirmed_position - link.core.reported_position)
                yield Metric(
                    "iotmq_ha_slave_behind_bytes",
                    "gauge",
                    "Bytes of the log that a slave has not reported.",
                    behind,
                    (("slave", link.peer),),
                )

    def replication_state(self) -> ReplicationState:
        """Return what operators are told of the slaves."""
        confirmed = self._store.confirmed_position
        slaves = [
            Follower(
                name=link.peer,
                is_connected=True,
                is_in_sync=self._is_near(link.core.reported_position, confirmed),
                position=link.core.reported_position,
                behind_bytes=max(0, confirmed - link.core.reported_position),
            )
            for link in sorted(self._links, key=lambda each: each.peer)
            if link.core.reported_position >= 0
        ]
        return ReplicationState(
            mode="master_slave",
            in_sync=1 + sum(each.is_in_sync for each in slaves),
            end=self._store.appended_position,
            confirmed=confirmed,
            followers=slaves,
        )

    # For connections.

    @property
    def store(self) -> Store:
        return self._store

    @property
    def now_s(self) -> float:
        return self._clock.monotonic_s()

    def log_range(self) -> LogRange:
        """Return what slaves may have of the log."""
        store = self._store
        return LogRange(store.min_position, store.confirmed_position, store.settings.segment_bytes)

    def opened(self, link: _SlaveLink, host: str) -> bool:
        """Count a connection; False when it is to be closed at once."""
        if not self._is_allowed(host):
            self.strangers_count += 1
            self._warn("connection of %s to the replication port refused: replication.allow", link.peer)
            return False
        if len(self._links) >= self._listening.connections_max:
            self.crowded_count += 1
            self._warn("connection of %s to the replication port refused: too many", link.peer)
            return False
        self._links.add(link)
        return True

    def closed(self, link: _SlaveLink) -> None:
        """Forget a connection. Who waits for its reports waits for another slave's."""
        if link in self._links:
            self._links.remove(link)
            if link.core.reported_position >= 0:
                logger.warning("slave %s is gone", link.peer)
            self._reported()

    def refused(self, link: _SlaveLink, reason: str) -> None:
        """Count a connection that is ended; the log says so once as long as it is the same each time."""
        self.refused_count += 1
        if reason != self._last_refusal:
            self._last_refusal = reason
            logger.warning("the connection of slave %s is ended: %s", link.peer, reason)

    def reported(self) -> None:
        """Note that some connection has reported."""
        self._reported()

    def _reported(self) -> None:
        # Of those that are connected: what a slave had that was replaced by an empty one says nothing.
        position = max((link.core.reported_position for link in self._links), default=-1)
        if position != self.reported_position:
            self.reported_position = position
            for listener in self._listeners:
                listener()

    def _is_near(self, position: int, end_position: int) -> bool:
        return position >= 0 and end_position - position < self._fall_behind_bytes

    def _is_allowed(self, host: str) -> bool:
        address = ipaddress.ip_address(host.partition("%")[0])
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(
            address.version == network.version and address in network for network in self._listening.allow
        )

    def _warn(self, text: str, peer: str) -> None:
        if self.now_s >= self._next_log_s:
            self._next_log_s = self.now_s + _LOG_S
            logger.warning(text, peer)


class _SlaveLink(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: HaServer) -> None:
        self._server = server
        self.core = HaMaster(now_s=server.now_s, full_copy=True)
        self.peer = ""
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._is_send_scheduled = False
        # While what comes next is brought into memory.
        self.loading: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_TURN_BYTES)
        host, port = transport.get_extra_info("peername")[:2]
        self.peer = address_text(host, port)
        if not self._server.opened(self, host):
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        is_new = self.core.reported_position < 0
        try:
            self.core.receive_data(data, self._server.log_range(), now_s=self._server.now_s)
        except HaRefusedError as error:
            self._refuse(str(error))
            return
        if is_new and self.core.reported_position >= 0:
            logger.info("slave %s copies from position %d on", self.peer, self.core.sent_position)
        self._server.reported()
        self.send()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._server.closed(self)

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def send(self, *, is_loaded: bool = False) -> None:
        """Send what there is to send, as much as the connection takes and as a turn of the loop may have."""
        store = self._server.store
        left = _TURN_BYTES
        while self._transport is not None and not self._is_paused and self.loading is None:
            if left <= 0:
                self._send_soon()
                return
            try:
                position, size = self.core.next_range(self._server.log_range())
            except HaRefusedError as error:
                self._refuse(str(error))
                return
            if not size:
                return
            plan = None if is_loaded else store.plan_raw(position, size)
            if plan is not None:
                self.loading = asyncio.ensure_future(self._load(partial(store.load, plan)))
                return
            is_loaded = False
            view = store.read_raw(position, size)
            self._transport.write(self.core.send_data(len(view), now_s=self._server.now_s))
            self._transport.write(view)
            self._server.sent_bytes += len(view)
            left -= len(view)

    def look(self) -> None:
        """Send a heartbeat when it is due; end the connection when nothing was heard for long."""
        if self._transport is None:
            return
        now_s = self._server.now_s
        if self.core.is_silent(now_s):
            self._refuse("it reports nothing")
        elif self.core.is_heartbeat_due(now_s) and not self._is_paused:
            self._transport.write(self.core.send_data(0, now_s=now_s))

    def _send_soon(self) -> None:
        if not self._is_send_scheduled:
            self._is_send_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_next)

    def _send_next(self) -> None:
        self._is_send_scheduled = False
        self.send()

    async def _load(self, load: Callable[[], None]) -> None:
        """Have the disk read what comes next, in a thread."""
        try:
            await asyncio.to_thread(load)
        except OSError as error:
            self.loading = None
            self._refuse(f"the disk does not give what it needs: {error}")
            return
        self.loading = None
        self.send(is_loaded=True)

    def _refuse(self, reason: str) -> None:
        self._server.refused(self, reason)
        self.abort()
