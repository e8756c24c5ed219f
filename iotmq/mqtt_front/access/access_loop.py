"""The event loop of the authentication chain, in a thread of its own.

Operations: a storm of devices whose links have to be asked. Goals: nothing that a link does holds up the loop
of the front end, and threads are not crossed for each device. Plan: what a turn of the front end's loop asks
goes over in one call, and what a turn of this loop has decided comes back in one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Final

import uvloop

from iotmq.event_loop import NextTurn
from iotmq.mqtt_front.access.chain import Decision
from iotmq.mqtt_front.access.chain_link import ChainLink
from iotmq.supervised import surviving

# A link that does not stop within this time is left alone.
_CLOSE_S: Final = 0.5


class AccessLoop:
    """The thread, its loop and its links. Methods are for the thread of the front end."""

    def __init__(self, links: Sequence[ChainLink], front_loop: asyncio.AbstractEventLoop) -> None:
        self._links = links
        self._front_loop = front_loop
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="iotmq-access", daemon=True)
        self._asked: list[Decision] = []
        self._hand_over = NextTurn(self._send)
        # On the other thread: decisions on their way, and those that are through.
        self._tasks: set[asyncio.Task[None]] = set()
        self._decided: list[Decision] = []
        self._is_closed = False

    def start(self) -> None:
        """Begin; once."""
        self._thread.start()

    def ask(self, decision: Decision) -> None:
        """Have a decision made; its `done` is called on the loop of the front end."""
        self._asked.append(decision)
        self._hand_over.schedule()

    def close(self) -> None:
        """Stop, without waiting for it. May be called twice, and without a start."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
        else:
            self._loop.close()

    async def wait_closed(self) -> None:
        """Wait until its thread has ended, but not for long."""
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, 2 * _CLOSE_S)

    def _send(self) -> None:
        asked, self._asked = self._asked, []
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self._begin, asked)

    def _take(self, decided: list[Decision]) -> None:
        for decision in decided:
            with surviving("decision about a device"):
                decision.remember()
                decision.done(decision)

    # On its own thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.call_soon(self._start_links)
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    def _start_links(self) -> None:
        for link in self._links:
            link.start()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        closing = [asyncio.ensure_future(link.close()) for link in self._links]
        if closing:
            done, _ = await asyncio.wait(closing, timeout=_CLOSE_S)
            for task in done:
                with surviving("end of a link"):
                    task.result()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for each in rest:
            each.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_CLOSE_S)
        await self._loop.shutdown_asyncgens()

    def _begin(self, asked: list[Decision]) -> None:
        for decision in asked:
            task = self._loop.create_task(self._decide(decision))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _decide(self, decision: Decision) -> None:
        with surviving("the authentication chain"):
            await decision.ask()
        self._decided.append(decision)
        if len(self._decided) == 1:
            self._loop.call_soon(self._send_back)

    def _send_back(self) -> None:
        decided, self._decided = self._decided, []
        if not self._is_closed:
            self._front_loop.call_soon_threadsafe(self._take, decided)
