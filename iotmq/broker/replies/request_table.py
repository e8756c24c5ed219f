"""Find the request processor of a request code.

Every processor (sending, pulling, offsets, clients, locks, administration, ...) is one module with one
class that lists its codes; a new processor is a new module and one line in broker.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, TypeAlias

from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, request_name
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import Run
from iotmq.remoting.frames.pull_frames import PullFrame
from iotmq.remoting.frames.send_frames import SendRun
from iotmq.remoting.server import ServerConnection

Handler: TypeAlias = Callable[[ServerConnection, Command], Command | None]


class RequestProcessor(Protocol):
    """A group of request codes that belong together."""

    def handlers(self) -> Mapping[int, Handler]:
        """Return the codes served and by what. Asked once."""

    def connection_lost(self, connection: ServerConnection) -> None:
        """Forget what was kept for the connection: nothing, unless a processor says otherwise."""
        return


ServeRun: TypeAlias = Callable[[ServerConnection, SendRun, int], int]
ServePull: TypeAlias = Callable[[ServerConnection, PullFrame], bool]


_PULL: Final[int] = RequestCode.PULL_MESSAGE


def _serve_no_run(connection: ServerConnection, run: SendRun, at: int) -> int:
    return at


def _serve_no_pull(connection: ServerConnection, frame: PullFrame) -> bool:
    return False


def _nothing() -> None:
    pass


class RequestTable:
    """Hands each request to the processor that serves its code; implements remoting's RequestHandler."""

    def __init__(
        self,
        processors: Iterable[RequestProcessor] = (),
        *,
        serve_run: ServeRun = _serve_no_run,
        serve_pull: ServePull = _serve_no_pull,
        write_out: Callable[[], None] = _nothing,
    ) -> None:
        """The first two are the fast paths of plain sends and pulls, whose codes processors serve.

        `write_out` is called before any request but a plain send: what was answered before is there for it.
        """
        self._write_out = write_out
        self._serve_run = serve_run
        self._serve_pull = serve_pull
        self._handlers: dict[int, Handler] = {}
        self._processors: list[RequestProcessor] = []
        # Requests served by code; unknown codes count together under -1, so that a peer cannot grow it.
        self._counts: dict[int, int] = {-1: 0}
        for processor in processors:
            self.add(processor)

    def add(self, processor: RequestProcessor) -> None:
        """Serve the codes of one more processor. ValueError when another processor has one of them."""
        handlers = processor.handlers()
        for code in handlers:
            if code in self._handlers:
                raise ValueError(f"request code {code} is served twice")
        self._handlers.update(handlers)
        self._counts.update(dict.fromkeys(handlers, 0))
        self._processors.append(processor)

    @property
    def codes(self) -> list[int]:
        """Return all codes served."""
        return sorted(self._handlers)

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        code = request.code
        handler = self._handlers.get(code)
        if handler is None:
            self._counts[-1] += 1
            return request.not_supported()
        self._counts[code] += 1
        self._write_out()
        return handler(connection, request)

    def handle_run(self, connection: ServerConnection, run: Run, at: int) -> int:
        """Take plain requests of a run from number `at` on; the number of the first for `handle`."""
        if isinstance(run, PullFrame):
            self._write_out()
            if not self._serve_pull(connection, run):
                return at
            self._counts[_PULL] += 1
            return at + 1
        end = self._serve_run(connection, run, at)
        for code, count in run.codes(at, end):
            self._counts[code] += count
        return end

    def connection_lost(self, connection: ServerConnection) -> None:
        for processor in self._processors:
            processor.connection_lost(connection)

    def metrics(self) -> Iterable[Metric]:
        for code, count in self._counts.items():
            if count:
                name = "UNKNOWN" if code < 0 else request_name(code)
                if name == "UNKNOWN" and code > 0:
                    name = str(code)
                yield from samples(
                    ("iotmq_broker_requests_total", "Requests by code.", count), labels=(("code", name),)
                )
