"""The places where devices connect: opening them, what is open, and closing them."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
import uvloop

from iotmq.addresses import address_text
from iotmq.errors import ConfigError
from iotmq.metrics import Metric, samples
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.connection.peer import Peer
from iotmq.mqtt_front.limiting.limiter import Refusal
from iotmq.mqtt_front.listen.sockets import Sockets
from iotmq.mqtt_front.settings.listeners import ListenerSettings

if TYPE_CHECKING:
    from iotmq.mqtt_front.listen.handshakes import Enter, Handshakes
    from iotmq.mqtt_front.listen.websocket_listener import WebSocketListener

MakeDevice: TypeAlias = Callable[[Peer], Device]
MakeProtocol: TypeAlias = Callable[[Peer], asyncio.BaseProtocol]

_BACKLOG: Final = 4096


class Doors(NamedTuple):
    """Hold what a front end decides about connections before they are devices."""

    has_room: Callable[[int], bool] = lambda _: True
    """Whether so many connections that are not MQTT yet may be open beside the devices."""
    enter: Enter = lambda listener, address: None
    """Why one from an address may not be open."""
    is_turned_away: Callable[[str, str | None], bool] = lambda listener, address: False
    """Whether one without TLS is closed because of its address, without a word."""
    overload: Callable[[], Refusal | None] = lambda: None
    """Why such a one is told that there is no room."""


class Listeners:
    """The listeners of one front end. Every connection gets a device of its own, made by `make_device`."""

    def __init__(
        self,
        settings: Iterable[ListenerSettings],
        make_device: MakeDevice,
        *,
        is_shared: bool = False,
        doors: Doors | None = None,
        ticket_secret: str = "",
    ) -> None:
        """With `is_shared` other processes may listen on the same ports; with the same `ticket_secret` each
        resumes the TLS sessions of all.

        Without `doors` everybody is let in.
        """
        self._settings = tuple(settings)
        self._make_device = make_device
        self._is_shared = is_shared
        self._doors = Doors() if doors is None else doors
        self._ticket_secret = ticket_secret
        self._servers: list[asyncio.AbstractServer] = []
        # Of those where MQTT comes at once and as it is; made by `open`.
        self._sockets: Sockets | None = None
        self._plain: set[str] = set()
        # Of those where something comes before MQTT, by the listener's name.
        self._handshakes: dict[str, Handshakes] = {}
        # Sockets in the file system that are ours to remove.
        self._socket_paths: list[Path] = []
        self._connections: Counter[str] = Counter()
        self._websockets: list[WebSocketListener] = []
        self.addresses: dict[str, str] = {}
        """Name of a listener that is open -> HOST:PORT, or the path of its socket; in their order."""

    async def open(self) -> None:
        """Listen everywhere. OSError says where that cannot be done, ConfigError what stands against it.

        What is open then is left to `close`.
        """
        loop = asyncio.get_running_loop()
        self._sockets = Sockets(loop)
        for settings in self._settings:
            listener = self._listening_socket(settings)
            peer = Peer(settings.name)
            try:
                await self._serve(loop, settings, listener, peer)
            except BaseException:
                listener.close()
                raise
            if settings.is_on_network:
                settings = msgspec.structs.replace(settings, listen_port=int(listener.getsockname()[1]))
            self.addresses[settings.name] = settings.shown_address

    async def _serve(
        self, loop: asyncio.AbstractEventLoop, settings: ListenerSettings, listener: socket.socket, peer: Peer
    ) -> None:
        protocol_for = self._protocol_maker(settings)

        def make() -> asyncio.BaseProtocol:
            return protocol_for(peer)

        if settings.is_encrypted:
            _refuse_slow_loop(loop, settings)
        if settings.is_encrypted or settings.proxy_protocol:
            # Loaded only where there is such a listener.
            from iotmq.mqtt_front.listen.handshakes import Door, Handshakes
            from iotmq.mqtt_front.listen.tls_link import can_shake_hands

            self._handshakes[settings.name] = Handshakes(
                settings,
                listener,
                protocol_for,
                door=Door(self._has_room_for_one, self._doors.enter),
                ticket_secret=self._ticket_secret,
                sockets=self._sockets if settings.transport == "tls" and can_shake_hands() else None,
            )
        elif not settings.is_websocket:
            assert self._sockets is not None
            self._sockets.listen(
                listener,
                partial(self._make_device, peer),
                partial(self._doors.is_turned_away, settings.name),
            )
            self._plain.add(settings.name)
        else:
            self._servers.append(await loop.create_server(make, sock=listener, backlog=_BACKLOG))

    def _protocol_maker(self, settings: ListenerSettings) -> MakeProtocol:
        if not settings.is_websocket:
            return self._make_device
        # Nobody else needs its libraries.
        from iotmq.mqtt_front.listen.websocket_listener import WebSocketListener

        listener = WebSocketListener(settings, self._make_device)
        self._websockets.append(listener)
        return listener.protocol

    def close(self) -> None:
        """Take no more connections; those that are open stay."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._sockets is not None:
            self._sockets.close()
        for handshakes in self._handshakes.values():
            handshakes.close()
        for path in self._socket_paths:
            path.unlink(missing_ok=True)
        self._socket_paths.clear()

    @property
    def arriving_count(self) -> int:
        """Connections that are open and no devices yet."""
        return sum(handshakes.count for handshakes in self._handshakes.values())

    def refusal_of(self, device: Device, address: str | None) -> Refusal | None:
        """Return why a new connection is to be closed, as far as that was not decided before."""
        listener = device.peer.listener
        if listener in self._handshakes:
            return None
        return self._doors.overload() if listener in self._plain else self._doors.enter(listener, address)

    def connected(self, device: Device) -> None:
        """A connection of one of the listeners is open."""
        self._connections[device.peer.listener] += 1

    def lost(self, device: Device) -> None:
        """Note that the connection is lost."""
        self._connections[device.peer.listener] -= 1

    def metrics(self) -> Iterable[Metric]:
        """Open connections by listener, and what comes before them."""
        for settings in self._settings:
            labels = (("listener", settings.name),)
            count = self._connections[settings.name]
            yield from samples(
                ("iotmq_mqtt_listener_connections", "Open MQTT connections of a listener.", count),
                labels=labels,
            )
            if settings.name in self._handshakes:
                yield from self._handshakes[settings.name].metrics(labels)
        for websocket in self._websockets:
            yield from websocket.metrics()

    def _has_room_for_one(self) -> bool:
        return self._doors.has_room(self.arriving_count + 1)

    def _listening_socket(self, settings: ListenerSettings) -> socket.socket:
        if settings.transport == "unix":
            path = Path(settings.socket_path)
            listener = _listen_unix(path, int(settings.socket_mode, 8))
            self._socket_paths.append(path)
            return listener
        return _listen_tcp(settings.listen_host, settings.listen_port, is_shared=self._is_shared)


def _refuse_slow_loop(loop: asyncio.AbstractEventLoop, settings: ListenerSettings) -> None:
    if not isinstance(loop, uvloop.Loop):
        # A connection takes 24 KB under uvloop and 278 KB under asyncio.
        raise ConfigError(
            f"listener {settings.name}: transport {settings.transport!r} needs the event loop of uvloop, not "
            f"{type(loop).__module__}.{type(loop).__name__}; iotmq's own commands use it"
        )


def network_address(
    host: str, port: int
) -> tuple[socket.AddressFamily, socket.SocketKind, int, tuple[Any, ...]]:
    """Family, type, protocol and address to bind a listener to; OSError when nobody knows the host."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return family, kind, protocol, address


def cannot_listen(host: str, port: int, error: OSError) -> OSError:
    """Return the error for an operator."""
    return OSError(error.errno, f"cannot listen on {address_text(host, port)} for MQTT: {error.strerror}")


def _listen_tcp(host: str, port: int, *, is_shared: bool) -> socket.socket:
    """A listening socket whose connections have the kernel look for peers that vanished, and send at once.

    Connections inherit SO_KEEPALIVE and TCP_NODELAY from their listener, which saves calls for each.
    """
    family, kind, protocol, address = network_address(host, port)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise cannot_listen(host, port, error) from error
    return listener


def _listen_unix(path: Path, mode: int) -> socket.socket:
    """A listening socket at `path`, in the place of one that a process left when it was killed."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_dead_socket(path)
        # Nobody else is to connect before the mode is set, nor to see the socket with more than it allows.
        former = os.umask(0o777 & ~mode)
        try:
            listener.bind(str(path))
        finally:
            os.umask(former)
        path.chmod(mode)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {path} for MQTT: {error.strerror}") from error
    return listener


def _remove_dead_socket(path: Path) -> None:
    """OSError when somebody listens there, or when it is something else than a socket."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise FileExistsError(errno.EEXIST, "a file that is not a socket is in its place")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
