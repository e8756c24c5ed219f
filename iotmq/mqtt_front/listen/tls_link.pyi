import socket
import ssl
from collections.abc import Callable

from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.listen.sockets import SocketLink, Sockets

def can_shake_hands() -> bool: ...

class TlsLink(SocketLink):
    def __init__(
        self,
        sockets: Sockets,
        connection: socket.socket,
        context: ssl.SSLContext,
        ready: Callable[[TlsLink], object],
    ) -> None: ...
    context: ssl.SSLContext
    def step(self) -> bool: ...
    def set_protocol(self, device: Device) -> None: ...  # type: ignore[override]
