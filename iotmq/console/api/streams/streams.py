"""The streams of a process: how many there are, and the reader that they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

from iotmq import limits
from iotmq.client.client import IotmqClient
from iotmq.console.api.problems import TOO_MANY, ProblemError
from iotmq.console.api.streams.event_stream import EventStream, event
from iotmq.console.api.streams.message_reader import MessageReader, Wanted
from iotmq.console.server.messages import Answer, Sink
from iotmq.metrics import Metric, samples, samples_by

_TYPE: Final = "text/event-stream"
_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    # The proxies that would hold events back know this word, and the connection ends with the stream.
    ("X-Accel-Buffering", "no"),
    ("Connection", "close"),
)


class Streams:
    """Makes answers that are streams; one reader is shared by all that begin now."""

    def __init__(self, client: Callable[[], Awaitable[IotmqClient]]) -> None:
        self._client = client
        self._count_of: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._shared: MessageReader | None = None

    async def messages(self, caller: str, wanted: Wanted, positions: Mapping[str, int]) -> Answer:
        """Stream messages from now on, or from the positions on.

        ProblemError when there are too many streams, IotmqError when no registry can be asked.
        """
        client = await self._client()
        # Whoever cannot be served is told so with a status.
        await client.admin.brokers()
        stream = self.counted(caller, partial(self._stream_messages, client, wanted, positions))
        return Answer(content_type=_TYPE, headers=_HEADERS, stream=stream)

    def counted(
        self, caller: str, stream: Callable[[Sink], Awaitable[None]]
    ) -> Callable[[Sink], Awaitable[None]]:
        """Return the stream, which counts while it is written. ProblemError when there are too many."""
        if self._count_of.total() >= limits.HTTP_STREAMS_MAX:
            raise ProblemError(TOO_MANY, f"there are {limits.HTTP_STREAMS_MAX} streams already")
        if self._count_of[caller] >= limits.HTTP_STREAMS_PER_CALLER_MAX:
            detail = f"{caller} has {limits.HTTP_STREAMS_PER_CALLER_MAX} streams already"
            raise ProblemError(TOO_MANY, detail)

        async def write(sink: Sink) -> None:
            with self._counted(caller):
                await stream(sink)

        return write

    def metrics(self) -> Iterable[Metric]:
        """Report the streams."""
        yield from samples(("iotmq_http_streams", "Streams of events that are open.", self._count_of.total()))
        text = "Streams of events that the server has ended."
        yield from samples_by("reason", "iotmq_http_streams_ended_total", text, self._ended)

    async def _stream_messages(
        self, client: IotmqClient, wanted: Wanted, positions: Mapping[str, int], sink: Sink
    ) -> None:
        if positions:
            # A place of its own in the logs.
            reader = MessageReader(client, positions)
        else:
            reader = self._shared = self._shared or MessageReader(client)
        stream = EventStream(position=lambda: reader.position, drained=reader.resume)
        try:
            await reader.add(stream, wanted)
            stream.put(event("open", {"filter": wanted.topic_filter}, reader.position))
            await stream.write_to(sink)
        finally:
            if stream.end_reason:
                self._ended[stream.end_reason] += 1
            if not reader.remove(stream, wanted):
                if self._shared is reader:
                    self._shared = None
                await reader.stop()

    @contextmanager
    def _counted(self, caller: str) -> Iterator[None]:
        self._count_of[caller] += 1
        try:
            yield
        finally:
            self._count_of[caller] -= 1
            # Names of callers do not pile up.
            self._count_of += Counter()
