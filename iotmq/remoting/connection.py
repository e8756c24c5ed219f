"""Call brokers and registries on the event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TypeAlias

from iotmq.addresses import address_text
from iotmq.errors import ConnectionClosedError
from iotmq.remoting.channel import Channel
from iotmq.remoting.command import Command
from iotmq.remoting.signature import Credentials, sign
from iotmq.remoting.traffic import Traffic

OnRequest: TypeAlias = "Callable[[ClientConnection, Command], Command | None]"
OnLost: TypeAlias = "Callable[[ClientConnection], None]"


class ClientConnection(Channel):
    """One connection to a broker or registry, with any number of requests in flight.

    `request_nowait` never waits and never refuses: a caller that sends much awaits `drain()` now and then.
    """

    __slots__ = ("_credentials", "_lost", "_on_lost_call", "_on_request_call")

    def __init__(
        self,
        on_request: OnRequest | None = None,
        on_lost: OnLost | None = None,
        traffic: Traffic | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(traffic or Traffic(), holds_back=False)
        self._credentials = credentials
        self._on_request_call = on_request
        self._on_lost_call = on_lost
        self._lost: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        on_request: OnRequest | None = None,
        on_lost: OnLost | None = None,
        timeout_s: float = 3.0,
        traffic: Traffic | None = None,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> ClientConnection:
        """Connect; ConnectionClosedError naming the address when that fails or takes longer than `timeout_s`.

        With `credentials` every request is signed. With `tls` the connection is encrypted, and the server's
        certificate has to be for `host` where the context checks names.

        `on_request` answers the server's own requests as a server's handler would (without it they get
        "not supported"); `on_lost` is called once when the connection ends, whoever ended it. `traffic`
        lets several connections count together.
        """
        loop = asyncio.get_running_loop()
        address = address_text(host, port)
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: cls(on_request, on_lost, traffic, credentials),
                    host,
                    port,
                    ssl=tls,
                    server_hostname=host if tls is not None else None,
                    ssl_handshake_timeout=timeout_s if tls is not None else None,
                )
        except TimeoutError:
            raise ConnectionClosedError(f"no connection to {address} within {timeout_s} s") from None
        except ssl.SSLError as error:
            raise ConnectionClosedError(f"no connection by TLS to {address}: {error}") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: no host can have such a name
            # A server without TLS ends the handshake, and the error has no text.
            reason = str(error) or ("it ended the TLS handshake" if tls is not None else type(error).__name__)
            raise ConnectionClosedError(f"no connection to {address}: {reason}") from error
        return connection

    async def close(self) -> None:
        """End the connection once everything sent so far is written; unanswered requests fail."""
        self._close("closed")
        try:
            # Not wait_for: in Python 3.11 that loses a cancellation which comes with the end.
            async with asyncio.timeout(1.0):
                await asyncio.shield(self._lost)
        except TimeoutError:
            self.abort("closed")

    def send_oneway(self, command: Command) -> None:
        if self._credentials is not None:
            sign(command, self._credentials)
        super().send_oneway(command)

    def _request(self, command: Command, timeout_s: float | None) -> asyncio.Future[Command]:
        if self._credentials is not None:
            sign(command, self._credentials)
        return super()._request(command, timeout_s)

    def _on_request(self, request: Command) -> Command | None:
        if self._on_request_call is None:
            return request.not_supported()
        return self._on_request_call(self, request)

    def _on_lost(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)
        if self._on_lost_call is not None:
            try:
                self._on_lost_call(self)
            except Exception as error:
                self._traffic.handler_failed(0, error)
