"""A kept connection is made again when it is told to, and only while it is kept."""

from __future__ import annotations

import asyncio

from iotmq.front_port.kept_connection import KeptConnection
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection


class Kept(KeptConnection):
    """Counts how often it is made, and connects to nobody."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", credentials=None, tls=None)
        self.made = asyncio.Queue[str]()

    async def _keep_open_here(self, stay: asyncio.Timeout) -> None:
        self.made.put_nowait(self.address)
        await asyncio.Event().wait()

    def _requested(self, connection: ClientConnection, request: Command) -> Command | None:
        return None


async def test_it_is_made_again_at_another_address_and_not_when_nobody_keeps_it_any_more() -> None:
    kept = Kept()
    kept.retry(is_renewed=True)
    task = asyncio.create_task(kept._keep_open())
    assert await kept.made.get() == "127.0.0.1:1"
    kept.move("127.0.0.1:2")
    kept.move("127.0.0.1:3")
    assert await kept.made.get() == "127.0.0.1:3"
    task.cancel()
    await asyncio.wait([task])
    # As the registry says, while the front end stops.
    kept.retry(is_renewed=True)
    kept.move("127.0.0.1:4")
    assert kept.made.empty()
