"""Open byte streams to a server: TCP, TLS, Unix socket or WebSocket, each used like an asyncio transport."""

from __future__ import annotations

import asyncio
import ssl
from typing import Protocol

from iotmq.errors import ClientError
from iotmq.mqtt_client.address import Address


class Link(Protocol):
    """The part of an asyncio transport that a client uses."""

    def write(self, data: bytes) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def open_link(
    address: Address,
    receiver: asyncio.Protocol | asyncio.BufferedProtocol,
    context: ssl.SSLContext | None,
) -> Link:
    """Connect; `receiver` is the protocol of the transport. OSError when the server cannot be reached."""
    loop = asyncio.get_running_loop()
    if address.scheme in ("ws", "wss"):
        # Only now: the library takes a moment to import.
        from iotmq.mqtt_client.websocket_link import open_websocket

        assert isinstance(receiver, asyncio.Protocol)
        return await open_websocket(address, receiver, context)
    if address.scheme == "unix":
        transport, _ = await loop.create_unix_connection(lambda: receiver, address.path)
        return transport
    try:
        transport, _ = await loop.create_connection(
            lambda: receiver, address.host, address.port, ssl=context if address.is_secure else None
        )
    except ssl.SSLCertVerificationError as error:
        raise ClientError(f"{address}: its certificate is not trusted: {error.verify_message}") from None
    return transport
