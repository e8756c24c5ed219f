"""The event loop of one simulated process: its time is the world's, its sockets are the world's network.

`turn` runs one turn. Nothing waits: the world moves its time to the next timer when no loop has anything
to do.
"""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from asyncio import events
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from sim_world import Process


# Of a second: floats of this grain lose nothing when whole seconds are added.
_PARTS: Final = 1 << 24

_unended: list[Any] = []


class ProcessLoop(asyncio.BaseEventLoop):
    """Runs the callbacks of one process. A process that is killed is one whose loop has no further turn."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self.process = process
        self._selector = _NothingToWaitFor()
        self._clock_resolution = 1e-6
        self._thread_id = threading.get_ident()

    def time(self) -> float:
        return self.process.world.now_s + self.process.ahead_s

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """At a time that is the same number of seconds since the boot and since the world began."""
        return super().call_at(math.ceil(when * _PARTS) / _PARTS, callback, *args, context=context)

    def turn(self) -> None:
        """Run what is ready and due."""
        events._set_running_loop(self)
        try:
            cast(Any, self)._run_once()
        finally:
            events._set_running_loop(None)

    # What BaseEventLoop asks of its heirs.

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run it at a time of its own, as a thread would, and in one piece."""
        future = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self.process.world.random.expovariate(500), run)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str | None = None, port: int = 0, **_: Any
    ) -> Any:
        assert host is not None
        return self.process.world.network.listen(self.process, protocol_factory, host, port)

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], Any],
        host: str | None = None,
        port: int = 0,
        sock: Any = None,
        **_: Any,
    ) -> Any:
        if sock is not None:
            # What `start_connection` has given.
            host, port = sock
        assert host is not None
        return await self.process.world.network.connect(self.process, protocol_factory, host, port)

    def bury(self) -> None:
        """Have what a killed process had under way never go on."""
        for task in asyncio.all_tasks(self):
            cast(Any, task)._log_destroy_pending = False
            # Who forgot it would have it do what it does at its end.
            _unended.append(task)
        cast(Any, self)._ready.clear()
        cast(Any, self)._scheduled.clear()
        self._thread_id = None
        self.close()


async def start_connection(addr_infos: Any, **_: Any) -> tuple[str, int]:
    """In the place of what connects sockets for a client of HTTP: tells the loop whom to connect to."""
    address: tuple[str, int] = addr_infos[0][4][:2]
    return address


class _NothingToWaitFor:
    """In the place of a selector: the world knows when the next turn is."""

    def select(self, timeout: float | None) -> list[Any]:
        return []

    def close(self) -> None:
        pass
