"""One HTTP/1.1 connection: heads and bodies within their limits, answers in the order of the requests.

The parser is llhttp (RFC 9110, RFC 9112), without its lenient modes. A request is handed over when it is
whole; while it is answered, and while the peer does not read, nothing more is read from the socket. What had
come with it waits here: no more than one read of the socket.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, Protocol, cast

import httptools

from iotmq import limits
from iotmq.console.server.messages import REASONS, Answer, Later, Reply, Request, Sink, Site
from iotmq.supervised import FAILURES, surviving

logger = logging.getLogger("iotmq.http")

# Who was refused may still be sending: closed at once, the connection could take the answer with it.
_LINGER_S: Final = 1.0
# Requests that came together are answered for so long in one turn of the loop.
_TURN_S: Final = 0.003
# The ends of lines and the spaces of a head, beside what the parser tells: METHOD SP target SP HTTP/1.1 CRLF,
# name: SP value CRLF, and an empty line.
_REQUEST_LINE_BYTES: Final = len("  HTTP/1.1\r\n")
_FIELD_BYTES: Final = len(": \r\n")
_HEAD_END_BYTES: Final = len("\r\n")
# The names of fields as most programs write them.
_NAMES: Final = {
    text.encode(): name
    for name in (
        *("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type"),
        *("cookie", "host", "origin", "sec-fetch-site", "user-agent"),
    )
    for text in (name, name.title())
}
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
# Larger answers are looked at: there must be room for them.
_SMALL_BYTES: Final = 65_536
_UNREAD: Final = Answer(b"too much of other answers is not read yet\n", 503, headers=(("Retry-After", "1"),))
_FAILED: Final = Answer(b"internal error; the log of the server says more\n", 500)


class Counts:
    """Counts of what connections of one port have met."""

    def __init__(self) -> None:
        self.bad = 0
        self.silent = 0


class Port(Protocol):
    """The parts of its port that a connection needs."""

    @property
    def site(self) -> Site: ...

    @property
    def counts(self) -> Counts: ...

    @property
    def head_bytes_max(self) -> int: ...

    @property
    def request_timeout_s(self) -> float: ...

    @property
    def unread_bytes(self) -> int: ...

    bodies_bytes: int
    """The bodies that all connections hold; each adds and takes away its own."""

    def connected(self, connection: HttpConnection) -> None: ...

    def disconnected(self, connection: HttpConnection) -> None: ...


class _Refused(NamedTuple):
    """The peer's fault; its answer is the last one of the connection."""

    status: int
    detail: str


class _Whole(NamedTuple):
    request: Request
    is_kept_alive: bool
    is_1_0: bool


class HttpConnection(asyncio.Protocol):
    """A protocol of asyncio. `abort()` ends it."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._site = port.site
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._peer = ""
        self._is_encrypted = False
        # The request that is coming in: its head, and its body as far as the site wants it.
        self._target = b""
        self._headers: dict[str, str] = {}
        self._head: Request | None = None
        self._head_bytes = 0
        self._body = bytearray()
        self._body_bytes_max = 0
        # Of bodies of requests that are not answered yet.
        self._held_bytes = 0
        # The bytes of reads since the last end of a head, while one is open, or the fields behind a body.
        self._is_in_head = False
        self._unfinished_bytes = 0
        self._waiting: deque[_Whole | _Refused] = deque()
        # Set while a request is answered by a task or a future, and while the rest waits for the next turn.
        self._answering: asyncio.Future[Any] | None = None
        self._next_turn: asyncio.Handle | None = None
        # The kind of the answer before, and the part of its head that another one of the kind has, too.
        self._answered = _FAILED
        self._answered_head = _lasting_head(_FAILED)
        self._can_write = asyncio.Event()
        self._can_write.set()
        # The peer sends no more; and who is told so, while a stream wants to know.
        self._has_peer_ended = False
        self._peer_ended: Callable[[], None] | None = None
        # Nothing more is taken in; the connection ends behind the answers to what has come.
        self._is_ending = False
        self._deadline_s = self._loop.time() + port.request_timeout_s
        self._timer = self._loop.call_at(self._deadline_s, self._time_is_up)

    def abort(self) -> None:
        """End at once."""
        self._transport.abort()

    @property
    def quiet_until_s(self) -> float:
        """Return when it is closed if no request comes; infinity while one is answered, and at the end."""
        is_quiet = self._answering is None and not self._waiting and not self._transport.is_closing()
        return self._deadline_s if is_quiet else math.inf

    # asyncio ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; called by the transport, as all of these."""
        # One of uvloop's, which is none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        peername = transport.get_extra_info("peername")
        self._peer = str(peername[0]) if peername else ""
        self._is_encrypted = transport.get_extra_info("ssl_object") is not None
        self._port.connected(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Forget what was not answered."""
        if error is not None:
            logger.debug("connection lost: %s", error)
        self._is_ending = True
        self._timer.cancel()
        self._waiting.clear()
        self._hold(-self._held_bytes)
        self._can_write.set()
        if self._answering is not None:
            self._answering.cancel()
        if self._next_turn is not None:
            self._next_turn.cancel()
        self._port.disconnected(self)

    def pause_writing(self) -> None:
        """Answer nothing more until the peer reads."""
        self._can_write.clear()

    def resume_writing(self) -> None:
        """Go on."""
        self._can_write.set()
        self._go_on()

    def eof_received(self) -> bool:
        """Answer what is whole; then the connection ends."""
        self._is_ending = self._has_peer_ended = True
        if self._peer_ended is not None:
            self._peer_ended()
        self._go_on()
        return self._answering is not None or bool(self._waiting)

    def data_received(self, data: bytes) -> None:
        """Take what was read from the socket."""
        if self._is_ending:
            return
        self._unfinished_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Answered as any other request; what follows it is another protocol.
            self._is_ending = True
        except httptools.HttpParserError as error:
            # After a request that closes the connection there may be anything.
            if not self._is_ending:
                self._refuse(400, str(error))
        if not self._is_in_head:
            self._unfinished_bytes = 0
        elif self._unfinished_bytes > self._port.head_bytes_max:
            self._refuse(431, "a head without an end")
        self._go_on()

    # The parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request; called by the parser, as all of these."""
        self._is_in_head = True
        self._target = b""
        self._headers = {}
        self._head_bytes = _REQUEST_LINE_BYTES + _HEAD_END_BYTES
        self._body = bytearray()

    def on_url(self, target: bytes) -> None:
        """Take a piece of the target."""
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head; those behind a body say nothing (RFC 9110 section 6.5.1)."""
        if self._is_ending or self._head is not None:
            return
        self._head_bytes += len(name) + len(value) + _FIELD_BYTES
        if self._head_bytes > self._port.head_bytes_max:
            self._refuse(431, "a head that is too large")
            return
        key = _NAMES.get(name) or name.decode("latin-1").lower()
        former = self._headers.get(key)
        text = value.decode("latin-1")
        if former is not None:
            if key == "host":
                self._refuse(400, "two Host fields")
            text = f"{former}{'; ' if key == 'cookie' else ', '}{text}"
        self._headers[key] = text

    def on_headers_complete(self) -> None:
        """Ask the site how much of a body it wants."""
        self._is_in_head = False
        self._unfinished_bytes = 0
        if self._is_ending:
            return None
        method = self._parser.get_method()
        self._head_bytes += len(method) + len(self._target)
        version = self._parser.get_http_version()
        if self._head_bytes > self._port.head_bytes_max:
            return self._refuse(431, "a head that is too large")
        if version not in ("1.0", "1.1"):
            return self._refuse(400, "another version of HTTP")
        if version == "1.1" and "host" not in self._headers:
            return self._refuse(400, "no Host field")
        path, _, query = self._target.decode("latin-1").partition("?")
        head = Request(method.decode(), path, query, self._headers, self._peer, self._is_encrypted)
        self._head = head
        declared = self._headers.get("content-length", "0")
        has_body = declared != "0" or "transfer-encoding" in self._headers
        self._body_bytes_max = maximum = self._site.body_bytes_max(head) if has_body else 0
        if maximum and int(declared) > maximum:
            return self._refuse(413, f"a body of {declared} bytes: at most {maximum} are taken here")
        is_asked = version == "1.1" and self._headers.get("expect", "").lower() == "100-continue"
        if is_asked and self._answering is None and not self._waiting:
            self._transport.write(_CONTINUE)
        return None

    def on_chunk_header(self) -> None:
        """Begin a chunk: behind the last one there may be fields."""
        self._is_in_head = True

    def on_body(self, data: bytes) -> None:
        """Keep a piece of the body where the site wants one."""
        self._is_in_head = False
        self._unfinished_bytes = 0
        if self._is_ending or not self._body_bytes_max:
            return
        if len(self._body) + len(data) > self._body_bytes_max:
            self._refuse(413, f"a body of more than {self._body_bytes_max} bytes")
            return
        if self._port.bodies_bytes + len(data) > limits.HTTP_BODIES_BYTES_MAX:
            self._refuse(503, "too many bodies at once")
            return
        self._hold(len(data))
        self._body += data

    def on_message_complete(self) -> None:
        """Hand a request over."""
        head = self._head
        self._is_in_head = False
        if self._is_ending or head is None:
            return
        is_kept_alive = self._parser.should_keep_alive()
        self._is_ending = not is_kept_alive
        request = head
        if self._body:
            # `_replace` takes five times as long.
            method, path, query, headers, peer, is_encrypted, _, proxy = head
            body = bytes(self._body)
            request = Request(method, path, query, headers, peer, is_encrypted, body, proxy)
        self._waiting.append(_Whole(request, is_kept_alive, self._parser.get_http_version() == "1.0"))
        self._head = None
        self._body = bytearray()

    def _refuse(self, status: int, detail: str) -> None:
        """Take nothing more; the refusal is answered behind what came before it."""
        self._is_ending = True
        self._is_in_head = False
        self._waiting.append(_Refused(status, detail))

    def _hold(self, size: int) -> None:
        """Count bytes of bodies that this connection holds, or lets go of."""
        self._held_bytes += size
        self._port.bodies_bytes += size

    # Answers ------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Answer what waits, as long as the peer reads; then read on, or end."""
        end_s = self._loop.time() + _TURN_S
        while self._waiting and self._answering is None and self._can_write.is_set():
            if self._next_turn is not None or self._loop.time() > end_s:
                self._next_turn = self._next_turn or self._loop.call_soon(self._begin_turn)
                break
            whole = self._waiting.popleft()
            if isinstance(whole, _Refused):
                self._end_with(whole)
                return
            reply: Reply = _FAILED
            with surviving("http"):
                reply = self._site.answer(whole.request)
            if isinstance(reply, Later):
                self._restart_deadline()
                self._answering = reply.future
                reply.future.add_done_callback(partial(self._answer_of, whole, reply))
            elif isinstance(reply, Answer) and reply.stream is None:
                self._write(whole, reply)
            else:
                self._restart_deadline()
                self._answering = self._loop.create_task(self._answer_later(whole, reply))
        is_idle = self._answering is None and not self._waiting
        if not is_idle:
            if self._peer_ended is None:
                self._transport.pause_reading()
        elif self._is_ending:
            self._transport.close()
        else:
            self._transport.resume_reading()

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._go_on()

    def _answer_of(self, whole: _Whole, reply: Later, future: asyncio.Future[Any]) -> None:
        """Answer with what a future has led to; cancelled it is when the connection is lost."""
        self._answering = None
        answer = _FAILED
        if not future.cancelled():
            with surviving("http"):
                answer = reply.make(future)
        if not self._transport.is_closing():
            self._write(whole, answer)
            self._go_on()

    async def _answer_later(self, whole: _Whole, reply: Answer | Awaitable[Answer]) -> None:
        try:
            answer = _FAILED
            with surviving("http"):
                answer = reply if isinstance(reply, Answer) else await reply
            if answer.stream is None:
                self._write(whole, answer)
            else:
                await self._stream(whole, answer, answer.stream)
        except ConnectionError as error:
            logger.debug("connection lost: %s", error)
            self._transport.abort()
        except Exception:
            # Without its last chunk nobody takes what was written for a whole answer.
            FAILURES.note("http")
            self._transport.abort()
        finally:
            self._answering = None
            if not self._transport.is_closing():
                self._go_on()

    def _write(self, whole: _Whole, answer: Answer) -> None:
        if self._transport.is_closing():
            return
        self._hold(-len(whole.request.body))
        size = len(answer.body)
        if size > _SMALL_BYTES and self._port.unread_bytes + size > limits.HTTP_UNREAD_BYTES_MAX:
            answer = _UNREAD
            size = len(answer.body)
        # What has not changed has the length it had (RFC 9110 section 8.6).
        framing = "" if answer.status == 304 else f"Content-Length: {size}\r\n"
        head = self._head_of(whole, answer, framing)
        self._transport.write(head if whole.request.method == "HEAD" else head + answer.body)
        self._restart_deadline()

    async def _stream(self, whole: _Whole, answer: Answer, stream: Callable[[Sink], Awaitable[None]]) -> None:
        self._hold(-len(whole.request.body))
        # HTTP/1.0 knows no chunks: there the end of the connection is that of the body.
        is_chunked = not whole.is_1_0
        if not is_chunked:
            self._is_ending = True
            whole = whole._replace(is_kept_alive=False)
        framing = "Transfer-Encoding: chunked\r\n" if is_chunked else ""
        self._transport.write(self._head_of(whole, answer, framing))
        self._deadline_s = math.inf
        try:
            if whole.request.method != "HEAD":
                await stream(_Chunks(self, is_chunked=is_chunked))
                self._transport.write(_LAST_CHUNK if is_chunked else b"")
        finally:
            self._peer_ended = None
            self._restart_deadline()

    def when_peer_ends(self, call: Callable[[], None]) -> None:
        """Call at the peer's end, and take nothing more of it."""
        self._peer_ended = call
        self._is_ending = True
        if self._has_peer_ended:
            call()
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    async def write_piece(self, data: bytes) -> None:
        """Write a piece of a stream. Waits while the peer does not read, as long as for a request at most."""
        if self._transport.is_closing():
            raise ConnectionResetError("the peer has gone")
        self._transport.write(data)
        if not self._can_write.is_set():
            try:
                async with asyncio.timeout(self._port.request_timeout_s):
                    await self._can_write.wait()
            except TimeoutError:
                raise ConnectionAbortedError("the peer does not read") from None

    @property
    def unread_bytes(self) -> int:
        """Return how many bytes of answers the transport holds."""
        return self._transport.get_write_buffer_size()

    # Ends ---------------------------------------------------------------------------------------------

    def _end_with(self, refused: _Refused) -> None:
        """Write the last answer and read what still comes, for a moment, until the peer has it and closes."""
        self._port.counts.bad += 1
        detail = ascii(refused.detail)[:100]
        logger.warning("bad request", extra={"code": refused.status, "detail": detail})
        headers = (("Retry-After", "1"),) if refused.status == 503 else ()
        text = f"{REASONS[refused.status].lower()}: {refused.detail}\n"
        answer = Answer(text.encode(), refused.status, headers=headers)
        self._waiting.clear()
        head = self._head_of(None, answer, f"Content-Length: {len(answer.body)}\r\n")
        self._transport.write(head + answer.body)
        if self._transport.can_write_eof():
            # TLS has no end of one direction.
            self._transport.write_eof()
        self._transport.resume_reading()
        self._timer.cancel()
        self._timer = self._loop.call_later(_LINGER_S, self._transport.abort)

    def _head_of(self, whole: _Whole | None, answer: Answer, framing: str) -> bytes:
        former = self._answered
        is_alike = answer.headers is former.headers and answer.status == former.status
        if not is_alike or answer.content_type != former.content_type:
            self._answered_head = _lasting_head(answer)
            self._answered = answer._replace(body=b"", stream=None)
        connection = ""
        if whole is None or not whole.is_kept_alive:
            connection = "Connection: close\r\n"
        elif whole.is_1_0:
            connection = "Connection: keep-alive\r\n"
        return b"%b%b%b\r\n" % (
            self._answered_head,
            _date(int(time.time())),
            (framing + connection).encode(),
        )

    def _restart_deadline(self) -> None:
        self._deadline_s = self._loop.time() + self._port.request_timeout_s

    def _time_is_up(self) -> None:
        """The timer is set anew when it fires, and not with each request."""
        now_s = self._loop.time()
        if now_s < self._deadline_s:
            at_s = min(self._deadline_s, now_s + self._port.request_timeout_s)
            self._timer = self._loop.call_at(at_s, self._time_is_up)
            return
        self._port.counts.silent += 1
        self._transport.abort()


class _Chunks:
    """The sink of a stream."""

    def __init__(self, connection: HttpConnection, *, is_chunked: bool) -> None:
        self._connection = connection
        self._is_chunked = is_chunked

    async def write(self, data: bytes) -> None:
        if data:
            piece = b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data
            await self._connection.write_piece(piece)

    def when_peer_ends(self, call: Callable[[], None]) -> None:
        self._connection.when_peer_ends(call)


def _lasting_head(answer: Answer) -> bytes:
    """Return the part of a head that is the same for all answers of a kind."""
    fields = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
    status = f"{answer.status} {REASONS[answer.status]}"
    return f"HTTP/1.1 {status}\r\nContent-Type: {answer.content_type}\r\n{fields}".encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> bytes:
    return time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT\r\n", time.gmtime(second)).encode()
