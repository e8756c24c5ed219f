"""A real registry and broker in this process, and between it and its clients what makes it misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from local_cluster import LocalCluster

from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import decode_one, encode

Answer = Callable[[Command], Command | bytes | None]
"""What a client gets instead of an answer: another one, any bytes, or nothing."""

# What keeps a client known to a broker goes on whatever the broker answers to other requests.
KEPT_UP: Final = frozenset(
    {RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.GET_CONSUMER_LIST_BY_GROUP}
)


def silence(answer: Command) -> None:
    """Never answer."""


def no_frame(answer: Command) -> bytes:
    """Bytes that are no frame."""
    return b"\xff" * 64


def nonsense(answer: Command) -> Command:
    """Success, but nothing in it is what it should be."""
    reply = Command.request(answer.code, dict.fromkeys(answer.ext, "x"), b"\x00\x00\x00\x50garbage" * 10)
    reply.opaque, reply.flag, reply.code = answer.opaque, answer.flag, 0
    return reply


class FaultyBroker(LocalCluster):
    """The broker `broker-a` with topic T of 2 queues. `answer` misbehaves while it is set."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory,
            topics=("T",),
            client={"request_timeout_ms": 300, "reconnect_ms_min": 5, "reconnect_ms_max": 20},
        )
        self.answer: Answer | None = None
        self._proxy: asyncio.Server | None = None
        self._carried: set[asyncio.Task[None]] = set()

    async def start_broker(self) -> None:
        await self._open()
        await super().start_broker()

    async def stop_broker(self) -> None:
        await self.vanish()
        await super().stop_broker()

    async def vanish(self) -> None:
        """Be away: nobody listens, and connections end."""
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        for task in self._carried:
            task.cancel()
        await asyncio.gather(*self._carried, return_exceptions=True)

    async def come_back(self, *, elsewhere: bool = False) -> None:
        """Be there again, at the same address or another one."""
        if elsewhere:
            self.settings.pop("advertised_port")
            await self.stop_broker()
            await self.start_broker()
        else:
            await self._open()

    async def heal(self) -> None:
        """Do what a broker does."""
        self.answer = None

    async def _open(self) -> None:
        port = self.settings.get("advertised_port", 0)
        self._proxy = await asyncio.start_server(self._accepted, "127.0.0.1", port)
        self.settings["advertised_port"] = self._proxy.sockets[0].getsockname()[1]

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            own_reader, own_writer = await asyncio.open_connection("127.0.0.1", self.port)
            asked: dict[int, int] = {}
            ways = [
                asyncio.ensure_future(self._requests(reader, own_writer, asked)),
                asyncio.ensure_future(self._answers(own_reader, writer, asked)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                own_writer.close()
                writer.close()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, int]
    ) -> None:
        while True:
            frame = await _frame(reader)
            command = decode_one(frame, 0)
            if not command.is_oneway and not command.is_response:
                asked[command.opaque] = command.code
            writer.write(frame)

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, int]
    ) -> None:
        while True:
            frame = await _frame(reader)
            command = decode_one(frame, 0)
            code = asked.pop(command.opaque, None) if command.is_response else None
            if self.answer is not None and code is not None and code not in KEPT_UP:
                given = self.answer(command)
                if given is None:
                    continue
                frame = given if isinstance(given, bytes) else b"".join(encode(given))
            writer.write(frame)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head))
