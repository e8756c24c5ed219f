import asyncio
import socket
from collections.abc import Callable

from iotmq.mqtt_front.connection.device import Device

class Sockets:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None: ...
    @property
    def count(self) -> int: ...
    def listen(
        self,
        listener: socket.socket,
        make_device: Callable[[], Device],
        is_turned_away: Callable[[str | None], bool] | None = None,
    ) -> None: ...
    def close(self) -> None: ...

class SocketLink(asyncio.Transport):
    def __init__(self, sockets: Sockets, device: Device) -> None: ...
    @property
    def buffer_bytes(self) -> int: ...
