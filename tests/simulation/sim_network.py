"""The network of a simulated world: connections of byte streams between processes on machines with addresses.

Bytes of one direction come in their order, in pieces of any size, after a delay. What the network does to a
connection is what TCP shows of it: bytes of a blocked direction wait and come when it is free again; a
connection is reset for both ends at different times; of a machine that lost its power nobody hears anything,
until it has started again and refuses what comes for a connection it does not know.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sim_world import Process, World

# What a socket takes from a writer while the reader does not read.
WINDOW_BYTES: Final = 256 * 1024
# Tries to connect, and bytes nobody confirms, are given up after so long.
GIVE_UP_S: Final = (4.0, 12.0)
CONNECT_GIVE_UP_S: Final = 8.0
_ORDER_S: Final = 1e-7


class Network:
    """All listeners and connections."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random
        self.listeners: dict[tuple[str, int], Listener] = {}
        # In the order they were made.
        self.connections: dict[int, Connection] = {}
        # (from, to): addresses of machines between which nothing passes in this direction.
        self.blocked: set[tuple[str, str]] = set()
        # Seconds a piece is under way, at most.
        self.delay_s_max = 0.002
        self._next_port = 40_000
        self._next_number = 0

    def listen(self, process: Process, make: Callable[[], Any], host: str, port: int) -> Listener:
        if not port:
            port = self._port()
        known = self.listeners.get((host, port))
        if known is not None and known.process.is_alive:
            raise OSError(98, f"address {host}:{port} is taken")
        listener = self.listeners[host, port] = Listener(self, process, make, host, port)
        return listener

    async def connect(
        self, process: Process, make: Callable[[], Any], host: str, port: int
    ) -> tuple[Transport, Any]:
        world = self.world
        asked: asyncio.Future[Listener] = process.loop.create_future()

        def arrive() -> None:
            listener = self.listeners.get((host, port))
            if (process.host, host) in self.blocked or host in world.dark_hosts:
                return  # nobody answers
            if listener is None or not listener.process.is_alive:
                process.later(self.delay_s(), lambda: refuse(ConnectionRefusedError(111, "refused")))
            elif (host, process.host) not in self.blocked:
                process.later(self.delay_s(), lambda: None if asked.done() else asked.set_result(listener))

        def refuse(error: OSError) -> None:
            if not asked.done():
                asked.set_exception(error)

        world.later(self.delay_s(), arrive)
        process.later(CONNECT_GIVE_UP_S, lambda: refuse(TimeoutError(110, "timed out")))
        listener = await asked
        if not listener.process.is_alive or listener.is_closed:
            raise ConnectionRefusedError(111, "refused")
        self._next_number += 1
        connection = Connection(self, self._next_number, process, listener, self._port())
        self.connections[connection.number] = connection
        near, far = connection.ends
        world.note("connect", connection.number, process.name, listener.process.name)
        protocol = make()
        near.begin(protocol)
        listener.process.later(self.delay_s(), lambda: far.accept(listener))
        return near, protocol

    def delay_s(self) -> float:
        return self.random.uniform(0.000_05, self.delay_s_max)

    def heal(self) -> None:
        """Everything passes again."""
        self.blocked.clear()
        for connection in list(self.connections.values()):
            for end in connection.ends:
                end.flow()

    def process_ended(self, process: Process, *, is_silent: bool) -> None:
        """A process was killed: its kernel says so to its peers, unless it has lost its power as well."""
        for connection in list(self.connections.values()):
            for end in connection.ends:
                if end.process is process:
                    end.is_dead = True
                    if not is_silent:
                        end.send_end(ConnectionResetError(104, "reset by peer"))

    def host_is_back(self, host: str) -> None:
        """Peers that kept connections to a machine that lost its power learn it when they send something."""
        for connection in list(self.connections.values()):
            for end in connection.ends:
                if end.process.host == host and end.is_dead:
                    end.is_forgotten = True
                    if end.other.unacknowledged:
                        end.send_end(ConnectionResetError(104, "reset by peer"))

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection.number, None)

    def _port(self) -> int:
        self._next_port += 1
        return self._next_port


class Listener:
    """A listening socket; has what the product uses of `asyncio.Server`."""

    def __init__(
        self, network: Network, process: Process, make: Callable[[], Any], host: str, port: int
    ) -> None:
        self.network = network
        self.process = process
        self.make = make
        self.address = (host, port)
        self.is_closed = False

    @property
    def sockets(self) -> list[Any]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        self.is_closed = True
        if self.network.listeners.get(self.address) is self:
            del self.network.listeners[self.address]

    async def wait_closed(self) -> None:
        pass


class Connection:
    """Two ends: of who connected, and of who accepted."""

    def __init__(
        self, network: Network, number: int, process: Process, listener: Listener, port: int
    ) -> None:
        self.network = network
        self.number = number
        near = Transport(self, process, (process.host, port), listener.address)
        far = Transport(self, listener.process, listener.address, (process.host, port))
        near.other, far.other = far, near
        self.ends = (near, far)

    def reset(self, first: Transport, later_s: float) -> None:
        """One end learns that the connection is gone, the other one only later, or when it sends."""
        first.lost(ConnectionResetError(104, "reset by peer"), after_s=0.0)
        first.other.is_peer_gone = True
        first.other.lost(ConnectionResetError(104, "reset by peer"), after_s=later_s)


class Transport(asyncio.Transport):
    """One end, as asyncio and uvloop show it to a protocol."""

    other: Transport

    def __init__(
        self, connection: Connection, process: Process, own: tuple[str, int], peer: tuple[str, int]
    ) -> None:
        super().__init__()
        self._connection = connection
        self._network = connection.network
        self.process = process
        self._names = {"sockname": own, "peername": peer}
        self._protocol: Any = None
        # Written and not taken by the other end's kernel yet; None stands for the end of the stream.
        self._unsent: deque[bytes | None] = deque()
        self._unsent_bytes = 0
        # Under way to the other end, or waiting there to be read.
        self.unacknowledged = 0
        # Come, and not read.
        self._unread: deque[bytes | None] = deque()
        self._arrives_s = 0.0
        self._limits = (64 * 1024, 16 * 1024)
        self._is_write_paused = False
        self._is_reading = True
        self._is_closing = False
        self._is_lost = False
        self._is_over = False
        self._gives_up: Any = None
        # Of a process that was killed.
        self.is_dead = False
        # Its machine has started again and knows nothing of it.
        self.is_forgotten = False
        # The other end is gone: who sends something learns it.
        self.is_peer_gone = False

    def begin(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def accept(self, listener: Listener) -> None:
        if listener.is_closed:
            self._is_over = True
            self.send_end(ConnectionResetError(104, "reset by peer"))
            return
        if self._is_lost:
            return
        self.begin(listener.make())
        self._deliver()

    # For the protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._names.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        high = 64 * 1024 if high is None else high
        self._limits = (high, high // 4 if low is None else low)

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def is_reading(self) -> bool:
        return self._is_reading and not self.is_closing()

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading and not self._is_closing:
            self._is_reading = True
            self.process.soon(self._deliver)

    def write(self, data: Any) -> None:
        if self._is_lost or self._is_closing or self.is_dead or not len(data):
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        if self.is_peer_gone or self.other.is_forgotten:
            self.lost(ConnectionResetError(104, "reset by peer"), after_s=2 * self._network.delay_s())
        self.flow()
        if not self._is_write_paused and self._unsent_bytes > self._limits[0]:
            self._is_write_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._is_closing:
            self._unsent.append(None)
            self.flow()

    def close(self) -> None:
        if self._is_closing or self._is_lost:
            return
        self._is_closing = True
        self._is_reading = False
        self._unsent.append(None)
        self.flow()
        if not self._unsent_bytes:
            self.process.soon(lambda: self._end(None))

    def abort(self) -> None:
        if self._is_lost:
            return
        self._is_closing = True
        self._unsent.clear()
        self._unsent_bytes = 0
        self.send_end(ConnectionResetError(104, "reset by peer"))
        self.process.soon(lambda: self._end(None))

    # For the network

    @property
    def _is_blocked(self) -> bool:
        pair = (self.process.host, self.other.process.host)
        return pair in self._network.blocked or self.other.process.host in self._network.world.dark_hosts

    def flow(self) -> None:
        """Send on its way what may go."""
        network = self._network
        if self.is_dead or not self._unsent:
            return
        if self._is_blocked or self.other.is_dead:
            self._give_up_later()
            return
        had_bytes = self._unsent_bytes
        while self._unsent and self.unacknowledged < WINDOW_BYTES:
            data = self._unsent.popleft()
            if data is not None:
                if len(data) > 1 and network.random.random() < 0.1:
                    # As segments of TCP and reads of a socket cut it.
                    cut = network.random.randrange(1, len(data))
                    self._unsent.appendleft(data[cut:])
                    data = data[:cut]
                self._unsent_bytes -= len(data)
                self.unacknowledged += len(data)
                network.world.note("send", self._connection.number, data)
            self._arrives_s = self._next_arrival_s()
            self.other.process.at(self._arrives_s, lambda data=data: self.other.arrive(data))
        if had_bytes and not self._is_lost:
            self.process.soon(self._flowed)

    def _next_arrival_s(self) -> float:
        # Timers of the same time come in no order.
        return max(self._arrives_s + _ORDER_S, self._network.world.now_s + self._network.delay_s())

    def _flowed(self) -> None:
        if self._is_write_paused and self._unsent_bytes <= self._limits[1]:
            self._is_write_paused = False
            if not self._is_lost:
                self._protocol.resume_writing()
        if self._is_closing and not self._unsent:
            self._end(None)

    def _give_up_later(self) -> None:
        """TCP sends again and again, and then no more."""
        if self._gives_up is None:

            def give_up() -> None:
                self._gives_up = None
                if self._unsent and (self._is_blocked or self.other.is_dead):
                    self.lost(TimeoutError(110, "timed out"), after_s=0.0)

            self._gives_up = self.process.later(self._network.random.uniform(*GIVE_UP_S), give_up)

    def arrive(self, data: bytes | None) -> None:
        self._unread.append(data)
        self._deliver()

    def _deliver(self) -> None:
        protocol = self._protocol
        while self._unread and self._is_reading and protocol is not None and not self._is_lost:
            data = self._unread.popleft()
            if data is None:
                self._is_reading = False
                if not protocol.eof_received():
                    self.close()
                return
            self._acknowledge(len(data))
            if hasattr(protocol, "get_buffer"):
                view = memoryview(data)
                while view and not self._is_lost:
                    room = protocol.get_buffer(len(view))
                    size = min(len(room), len(view))
                    room[:size] = view[:size]
                    del room
                    view = view[size:]
                    protocol.buffer_updated(size)
                    if view and not self._is_reading:
                        self._unread.appendleft(bytes(view))
                        # Not read yet after all.
                        self.other.unacknowledged += len(view)
                        return
            else:
                protocol.data_received(data)
            protocol = self._protocol

    def _acknowledge(self, size: int) -> None:
        other = self.other
        other.unacknowledged -= size
        if other._unsent:
            other.flow()

    def send_end(self, error: Exception) -> None:
        """Have the other end learn that this one is gone."""
        other = self.other
        if not self._is_blocked and not other.is_dead:
            other.process.at(self._next_arrival_s(), lambda: other.end_by_peer(error))
        else:
            other.is_peer_gone = True

    def end_by_peer(self, error: Exception) -> None:
        if not self._is_lost:
            self._end(error)

    def lost(self, error: Exception, *, after_s: float) -> None:
        """The network has lost it."""
        if not self.is_dead:
            self.process.later(after_s, lambda: self.end_by_peer(error))

    def _end(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        if self._gives_up is not None:
            self._gives_up.cancel()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._network.world.note("end", self._connection.number, self.process.name, repr(error))
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)
        if self.other._is_lost or self.other.is_dead:
            self._network.forget(self._connection)
        else:
            self.other.is_peer_gone = True


class VirtualSockets:
    """In the place of `mqtt_front.listen.sockets.Sockets`: devices of plain listeners are on this network."""

    def __init__(self, loop: Any) -> None:
        self._process: Process = loop.process
        self._listeners: list[Listener] = []

    def listen(self, listener: VirtualListeningSocket, make_device: Any, is_turned_away: Any = None) -> None:
        network = self._process.world.network
        self._listeners.append(network.listen(self._process, make_device, *listener.address))

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()


class VirtualListeningSocket:
    """What `VirtualSockets` is given in the place of a listening socket."""

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        pass
