"""A WebSocket client that sends any frame, wrong ones too, on a real socket; every read has a time limit."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import ssl
from collections.abc import Iterable, Sequence
from typing import Any

from fake_gateway import RawClient

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_ACCEPT_SALT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def frame(
    payload: bytes = b"",
    *,
    opcode: int = BINARY,
    is_final: bool = True,
    reserved: int = 0,
    mask: bytes | None = b"\x37\xfa\x21\x3d",
    length: bytes | None = None,
) -> bytes:
    """A frame of RFC 6455 section 5.2. `length` replaces the bytes that say it."""
    if length is None:
        size = len(payload)
        if size < 126:
            length = bytes([size])
        elif size < 1 << 16:
            length = b"\x7e" + size.to_bytes(2)
        else:
            length = b"\x7f" + size.to_bytes(8)
    first = is_final << 7 | reserved << 4 | opcode
    if mask is None:
        return bytes([first]) + length + payload
    key = (mask * (len(payload) // 4 + 1))[: len(payload)]
    masked = (int.from_bytes(payload) ^ int.from_bytes(key)).to_bytes(len(payload))
    return bytes([first, length[0] | 0x80]) + length[1:] + mask + masked


def request(
    path: str = "/mqtt",
    *,
    key: str = "dGhlIHNhbXBsZSBub25jZQ==",
    without: Sequence[str] = (),
    method: str = "GET",
    **headers: str,
) -> bytes:
    """A request for a WebSocket; `headers` (with _ for -) replace or add some, `without` leaves some out."""
    all_headers = {
        "Host": "127.0.0.1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in all_headers.items() if name not in without]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()


class WebSocketPeer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.wait_s = 10.0
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, port: int, tls: ssl.SSLContext | None = None) -> WebSocketPeer:
        """TCP only, or TLS."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))

    @classmethod
    async def connect(
        cls, port: int, path: str = "/mqtt", tls: ssl.SSLContext | None = None, **headers: str
    ) -> WebSocketPeer:
        """With the WebSocket open, and what the server said checked."""
        peer = await cls.dial(port, tls)
        key = base64.b64encode(os.urandom(16)).decode()
        peer.send(request(path, key=key, **headers))
        status, answered = await peer.response()
        assert status == 101
        accept = base64.b64encode(hashlib.sha1(key.encode() + _ACCEPT_SALT).digest()).decode()
        assert answered["sec-websocket-accept"] == accept
        assert answered["upgrade"].lower() == "websocket"
        assert "sec-websocket-extensions" not in answered
        return peer

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def response(self) -> tuple[int, dict[str, str]]:
        """The status and headers of the HTTP response."""
        async with asyncio.timeout(self.wait_s):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return int(status.split()[1]), {name.lower(): value for name, value in pairs}

    async def frame(self) -> tuple[int, bytes]:
        """The opcode and payload of the next frame, which is whole and unmasked as a server's has to be."""
        async with asyncio.timeout(self.wait_s):
            first, size = await self.reader.readexactly(2)
            assert first & 0xF0 == 0x80, "final, and no reserved bit"
            if size == 126:
                size = int.from_bytes(await self.reader.readexactly(2))
                assert size > 125
            elif size == 127:
                size = int.from_bytes(await self.reader.readexactly(8))
                assert size > 0xFFFF
            assert size < 1 << 32, "no mask"
            return first & 0x0F, await self.reader.readexactly(size)

    async def closed(self) -> int:
        """The code of the close frame that comes next; it is answered, and the server closes the socket."""
        opcode, payload = await self.frame()
        assert opcode == CLOSE
        self.send(frame(payload[:2], opcode=CLOSE))
        await self.end()
        return int.from_bytes(payload[:2])

    async def end(self) -> None:
        """Returns when the server has closed the socket; nothing may come before."""
        async with asyncio.timeout(self.wait_s):
            try:
                assert await self.reader.read(1) == b""
            except ConnectionError:
                pass

    def mqtt(self) -> RawClient:
        """A client of bare MQTT packets, each write of which is one frame."""
        return RawClient(_Payloads(self), _FrameWriter(self))  # type: ignore[arg-type]


class _Payloads:
    """The part of asyncio.StreamReader that RawClient uses, over the payloads of frames."""

    def __init__(self, peer: WebSocketPeer) -> None:
        self._peer = peer
        self._left = bytearray()

    async def readexactly(self, size: int) -> bytes:
        while len(self._left) < size:
            opcode, payload = await self._peer.frame()
            if opcode == CLOSE:
                raise asyncio.IncompleteReadError(bytes(self._left), size)
            assert opcode == BINARY
            self._left += payload
        taken = bytes(self._left[:size])
        del self._left[:size]
        return taken

    async def read(self) -> bytes:
        """What comes until the close frame, which is answered, or until the end."""
        try:
            while True:
                opcode, payload = await self._peer.frame()
                if opcode == CLOSE:
                    self._peer.send(frame(payload[:2], opcode=CLOSE))
                    break
                assert opcode == BINARY
                self._left += payload
        except asyncio.IncompleteReadError:
            pass
        return bytes(self._left)


class _FrameWriter:
    """The part of asyncio.StreamWriter that RawClient uses."""

    def __init__(self, peer: WebSocketPeer) -> None:
        self._peer = peer
        self.transport = peer.writer.transport

    def write(self, data: bytes) -> None:
        self._peer.send(frame(data))

    def writelines(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def close(self) -> None:
        self._peer.writer.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer.writer, name)
