"""Call brokers and registries over a plain socket, for code without an event loop."""

from __future__ import annotations

import socket
import ssl
import time
from types import TracebackType
from typing import Final, Self

from iotmq.addresses import address_text
from iotmq.errors import ConnectionClosedError, RequestTimeoutError
from iotmq.remoting.codes import Flag
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import FrameReader, encode
from iotmq.remoting.signature import Credentials, sign

_RECEIVE_BYTES_MIN: Final = 64 * 1024
_RECEIVE_BYTES_MAX: Final = 4 * 1024 * 1024
_OPAQUE_MAX: Final = 2**31 - 1


class BlockingConnection:
    """One connection, used by one thread at a time.

    `request` is one exchange. `send` and `receive` taken apart keep requests in flight ahead: send the next
    one before working on the answer to the last.
    """

    def __init__(
        self,
        host: str,
        port: int,
        timeout_s: float = 3.0,
        *,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect; ConnectionClosedError names the address. `timeout_s` bounds every call.

        With `credentials` every request is signed; with `tls` the connection is encrypted.
        """
        self._address = address_text(host, port)
        self._timeout_s = timeout_s
        self._credentials = credentials
        # Encrypted, and the server has not said anything yet.
        self._is_unheard = tls is not None
        try:
            self._socket = _connect(host, port, timeout_s, tls)
        except OSError as error:
            raise ConnectionClosedError(f"no connection to {self._address}: {error}") from error
        self._reader = FrameReader()
        self._next_opaque = 0
        # Opaques sent and not received; None until the answer is there.
        self._answers: dict[int, Command | None] = {}
        self.is_closed = False

    def request(self, command: Command, timeout_s: float | None = None) -> Command:
        """Send and wait for the answer; RequestTimeoutError, ConnectionClosedError."""
        return self.receive(self.send(command), timeout_s)

    def send(self, command: Command) -> int:
        """Send a request; returns the opaque to call `receive` with."""
        opaque = self._write(command)
        self._answers[opaque] = None
        return opaque

    def send_oneway(self, command: Command) -> None:
        """Send a request nobody answers."""
        command.flag |= Flag.ONEWAY
        self._write(command)

    def receive(self, opaque: int, timeout_s: float | None = None) -> Command:
        """Wait for the answer to the request `send` returned `opaque` for; answers come in any order.

        After RequestTimeoutError that answer is dropped when it comes; the connection stays usable.
        """
        has_come = self.wait(opaque, self._timeout_s if timeout_s is None else timeout_s)
        answer = self._answers.pop(opaque)
        if not has_come or answer is None:
            raise RequestTimeoutError(f"no answer from {self._address} in time")
        return answer

    def wait(self, opaque: int, timeout_s: float) -> bool:
        """Wait until `receive` will not have to; False when the answer is not there after so long."""
        deadline_s = time.monotonic() + timeout_s
        while self._answers[opaque] is None:
            if self.is_closed:
                raise ConnectionClosedError(f"the connection to {self._address} is closed")
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                return False
            self._read(remaining_s)
        return True

    def close(self) -> None:
        """End the connection; may be called again."""
        self.is_closed = True
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, command: Command) -> int:
        if self.is_closed:
            raise ConnectionClosedError(f"the connection to {self._address} is closed")
        if not command.is_response:
            if self._credentials is not None:
                sign(command, self._credentials)
            while self._next_opaque in self._answers:
                self._next_opaque = (self._next_opaque + 1) & _OPAQUE_MAX
            command.opaque = self._next_opaque
            self._next_opaque = (self._next_opaque + 1) & _OPAQUE_MAX
        buffers = encode(command)
        try:
            self._socket.settimeout(self._timeout_s)
            for buffer in buffers:
                self._socket.sendall(buffer)
        except OSError as error:
            # Part of a frame may be out, so nothing more can follow.
            self.close()
            raise ConnectionClosedError(f"the connection to {self._address} ended: {error}") from error
        return command.opaque

    def _read(self, timeout_s: float) -> None:
        """Receive once, for at most `timeout_s`."""
        size = min(max(self._reader.missing_size, _RECEIVE_BYTES_MIN), _RECEIVE_BYTES_MAX)
        try:
            self._socket.settimeout(timeout_s)
            data = self._socket.recv(size)
        except TimeoutError:
            return
        except OSError as error:
            self.close()
            raise ConnectionClosedError(f"the connection to {self._address} ended: {error}") from error
        if not data:
            self._reader.receive_eof()
            self.close()
            if self._is_unheard:
                # By TLS 1.3 the handshake is over before the server judges the client.
                raise ConnectionClosedError(
                    f"{self._address} ended the TLS connection without an answer, as servers do that ask for "
                    "a client certificate and got none, or one that they do not trust"
                )
        self._is_unheard = False
        self._reader.receive_data(data)
        for command in self._reader.commands_received():
            if not command.is_response:
                # Servers tell group members about changes; a caller that only pulls has no use for it.
                if not command.is_oneway:
                    self._write(command.not_supported())
            elif command.opaque in self._answers:
                self._answers[command.opaque] = command
        if self._reader.error is not None:
            self.close()
            raise ConnectionClosedError(f"{self._address} sent no valid frame: {self._reader.error}")


def _connect(host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
    connected = socket.create_connection((host, port), timeout_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls is None:
        return connected
    try:
        return tls.wrap_socket(connected, server_hostname=host)
    except BaseException:
        connected.close()
        raise
