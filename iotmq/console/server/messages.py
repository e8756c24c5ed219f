"""A request and its answer, as the site sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from iotmq.metrics import Metric

REASONS: Final = {
    200: "OK",
    201: "Created",
    202: "Accepted",
    204: "No Content",
    302: "Found",
    303: "See Other",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    406: "Not Acceptable",
    409: "Conflict",
    412: "Precondition Failed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


class Request(NamedTuple):
    """A whole request; its body is empty where the site has asked for none."""

    method: str
    path: str
    """As it was sent, percent-encoded, without the query."""
    query: str
    """As it was sent, without its question mark."""
    headers: Mapping[str, str]
    """By lower-case name; fields of one name are joined with ", ", cookies with "; "."""
    peer: str
    """The address it came from, without the port."""
    is_encrypted: bool = False
    body: bytes = b""
    proxy: str = ""
    """The address of the named proxy that it came through; then `peer` is what that says."""


class Answer(NamedTuple):
    """An answer; with `stream` its body is what that writes, in chunks, until it returns."""

    body: bytes = b""
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    stream: Callable[[Sink], Awaitable[None]] | None = None


class Sink(Protocol):
    """The body of an answer that is written piece by piece."""

    async def write(self, data: bytes) -> None:
        """Send a piece; waits while the peer does not read. ConnectionError when it has gone."""

    def when_peer_ends(self, call: Callable[[], None]) -> None:
        """Call when the peer sends no more, which is most often the first to be seen of its going.

        For streams without an end: what else the peer sends is thrown away, and the connection ends with
        the stream.
        """


class Later:
    """An answer that is made of a future when that is done: it needs no task."""

    __slots__ = ("future", "make")

    def __init__(self, future: asyncio.Future[Any], make: Callable[[asyncio.Future[Any]], Answer]) -> None:
        """`make` is given the future, which is not cancelled."""
        self.future = future
        self.make = make

    def __await__(self) -> Generator[Any, None, Answer]:
        yield from asyncio.wait((self.future,)).__await__()
        return self.make(self.future)


Reply: TypeAlias = Answer | Later | Awaitable[Answer]


class Site(Protocol):
    """The pages and requests that a port serves."""

    def body_bytes_max(self, head: Request) -> int:
        """Return how large the body of a request may be that has this head; 0: it is read and not kept."""

    def answer(self, request: Request) -> Reply:
        """Answer at once, or later. Must not raise."""

    def metrics(self) -> Iterable[Metric]:
        """Report the site's own numbers."""
