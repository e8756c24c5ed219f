"""One HTTP/1.1 connection, around a site that tells what it was asked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
from eventually import soon

from iotmq import limits
from iotmq.console.server.messages import Answer, Later, Reply, Request, Sink
from iotmq.console.server.port import HttpPort
from iotmq.console.settings import HttpSettings
from iotmq.metrics import Metric
from iotmq.supervised import FAILURES

BODY_BYTES_MAX = 1000


class Echo:
    """Answers with what was asked; /later does it in a task, /stream in pieces."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.go_on = asyncio.Event()
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.sinks: list[Sink] = []
        self.ended: list[str] = []

    def body_bytes_max(self, head: Request) -> int:
        return BODY_BYTES_MAX if head.path.startswith("/body") else 0

    def answer(self, request: Request) -> Reply:
        self.asked.append(request)
        if request.path == "/fails":
            raise RuntimeError("a fault of the site")
        if request.path == "/later":
            return self._later(request)
        if request.path == "/future":
            return Later(self.future, self._made)
        if request.path == "/stream":
            return Answer(status=200, content_type="text/event-stream", stream=self._stream)
        if request.path == "/unchanged":
            return Answer(b"", 304, headers=(("ETag", '"a"'),))
        if request.path == "/large":
            return Answer(bytes(32_000_000))
        if request.path == "/quiet":
            return Answer(status=200, stream=self._quiet)
        if request.path == "/broken":
            return Answer(status=200, stream=self._broken)
        if request.path == "/endless":
            return Answer(status=200, stream=self._endless)
        return Answer(f"{request.method} {request.path} {request.query} ".encode() + request.body)

    def _made(self, future: asyncio.Future[bytes]) -> Answer:
        return Answer(b"future " + future.result())

    async def _later(self, request: Request) -> Answer:
        await self.go_on.wait()
        return Answer(b"later " + request.query.encode())

    async def _stream(self, sink: Sink) -> None:
        for piece in (b"one\n", b"", b"two\n"):
            await sink.write(piece)
        self.ended.append("whole")

    async def _quiet(self, sink: Sink) -> None:
        self.sinks.append(sink)
        left = asyncio.Event()
        await sink.write(b"begun")
        sink.when_peer_ends(left.set)
        await left.wait()
        self.ended.append("left")

    async def _broken(self, sink: Sink) -> None:
        await sink.write(b"begun")
        raise RuntimeError("a fault of the site")

    async def _endless(self, sink: Sink) -> None:
        self.sinks.append(sink)
        try:
            while True:
                await sink.write(bytes(65_536))
                await asyncio.sleep(0)
        except ConnectionError as error:
            self.ended.append(str(error))
            raise

    def metrics(self) -> Iterable[Metric]:
        return ()


@asynccontextmanager
async def serving(request_timeout_s: float = 60) -> AsyncIterator[tuple[Echo, HttpPort]]:
    site = Echo()
    port = HttpPort(HttpSettings(listen_port=0, request_timeout_s=request_timeout_s), site)
    await port.start()
    try:
        yield site, port
    finally:
        await port.stop()


async def exchange(port: HttpPort, *sent: bytes, eof: bool = False) -> bytes:
    """Send pieces and return all that comes until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    for piece in sent:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    if eof:
        writer.write_eof()
    received = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    return received


def head(method: bytes, path: bytes, *fields: bytes, version: bytes = b"1.1") -> bytes:
    lines = (method + b" " + path + b" HTTP/" + version, b"Host: x", *fields)
    return b"\r\n".join(lines) + b"\r\n\r\n"


CLOSE = b"Connection: close"


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


async def test_a_request_is_handed_over_with_all_its_parts() -> None:
    async with serving() as (site, port):
        fields = (b"X-A: 1", b"x-a: 2", b"Cookie: c=1", b"Cookie: d=2", b"Content-Length: 3", CLOSE)
        answer = await exchange(port, head(b"PUT", b"/body/%C3%A4?q=%20&r", *fields) + b"abc")
        (request,) = site.asked
    assert body_of(answer) == b"PUT /body/%C3%A4 q=%20&r abc"
    assert (request.headers["x-a"], request.headers["cookie"]) == ("1, 2", "c=1; d=2")
    assert (request.peer, request.is_encrypted) == ("127.0.0.1", False)


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(("size", "status"), [(BODY_BYTES_MAX, b"200"), (BODY_BYTES_MAX + 1, b"413")])
async def test_a_body_is_taken_up_to_its_limit(size: int, status: bytes, is_chunked: bool) -> None:
    async with serving() as (site, port):
        body = b"b" * size
        if is_chunked:
            chunks = [body[at : at + 300] for at in range(0, size, 300)]
            sent = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"
            answer = await exchange(port, head(b"POST", b"/body", b"Transfer-Encoding: chunked", CLOSE), sent)
        else:
            length = b"Content-Length: %d" % size
            answer = await exchange(port, head(b"POST", b"/body", length, CLOSE), body[:400], body[400:])
        assert answer.split()[1] == status
        assert len(site.asked) == (status == b"200")
        assert not site.asked or site.asked[0].body == body


async def test_who_asks_before_sending_a_body_is_told_to_send_it_or_refused() -> None:
    async with serving() as (_site, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(head(b"POST", b"/body", b"Expect: 100-continue", b"Content-Length: 2"))
        assert (await reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ok")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
        length = b"Content-Length: %d" % (BODY_BYTES_MAX + 1)
        refused = await exchange(port, head(b"POST", b"/body", b"Expect: 100-continue", length))
        assert refused.startswith(b"HTTP/1.1 413 ")
        assert b"at most 1000" in refused


async def test_answers_keep_the_order_of_requests_when_one_takes_its_time() -> None:
    async with serving() as (site, port):
        sent = (
            head(b"GET", b"/a") + head(b"GET", b"/later?x") + head(b"GET", b"/b") + head(b"GET", b"/c", CLOSE)
        )
        answers = asyncio.ensure_future(exchange(port, sent))
        await soon(lambda: len(site.asked) == 2, "the second request")
        await asyncio.sleep(0)
        assert len(site.asked) == 2
        site.go_on.set()
        assert re.findall(rb"GET /\w|later x", await answers) == [b"GET /a", b"later x", b"GET /b", b"GET /c"]


async def test_what_was_whole_before_garbage_is_answered_first() -> None:
    async with serving() as (site, port):
        site.go_on.set()
        answers = await exchange(port, head(b"GET", b"/later?x") + b"\x00garbage\r\n\r\n")
        assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"400"]


async def test_who_has_closed_its_direction_gets_its_answers() -> None:
    async with serving() as (site, port):
        answers = asyncio.ensure_future(
            exchange(port, head(b"GET", b"/later?x") + head(b"GET", b"/b"), eof=True)
        )
        await soon(lambda: len(site.asked) == 1, "the first request")
        site.go_on.set()
        assert re.findall(rb"HTTP/1.1 (\d+)", await answers) == [b"200", b"200"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", b"400"),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\nHost: x\n\n", b"400"),
        (b"GET / HTTP/3.7\r\nHost: x\r\n\r\n", b"400"),
        (b"POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nLong:" + b" " * 9000 + b"x\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nLong:" + b" " * 9000, b"431"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 2000 + b"Long:", b"431"),
    ],
)
async def test_what_two_servers_could_read_differently_is_refused(sent: bytes, status: bytes) -> None:
    async with serving() as (site, port):
        answer = await exchange(port, sent, eof=status == b"200")
        assert answer.split()[1] == status
        assert bool(site.asked) == (status == b"200")


async def test_fields_behind_a_body_say_nothing_and_have_an_end() -> None:
    async with serving() as (site, port):
        chunked = head(b"POST", b"/body", b"Transfer-Encoding: chunked", b"X-User: me", CLOSE)
        body = b"1\r\na\r\n0\r\n"
        trailers = b"X-User: root\r\nAuthorization: Bearer x\r\n"
        answer = await exchange(port, chunked + body + trailers + b"\r\n")
        assert body_of(answer) == b"POST /body  a"
        assert (site.asked[0].headers["x-user"], "authorization" in site.asked[0].headers) == ("me", False)
        for field in (b"X: " + b"y" * 1000, b"X%d: y\r\n" % 1 * 200):
            endless = await exchange(port, chunked + body, *[field] * 30)
            assert endless.split()[1] == b"431"
    assert len(site.asked) == 1


async def test_reads_full_of_requests_may_end_within_a_head() -> None:
    async with serving() as (site, port):
        many = head(b"POST", b"/body", b"Content-Length: 900") + b"x" * 900
        last = head(b"GET", b"/last", CLOSE)
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(many * 50 + last[:20])
        await soon(lambda: len(site.asked) == 50, "those that are whole")
        writer.write(last[20:])
        answers = await asyncio.wait_for(reader.read(), 30)
        writer.close()
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200"] * 51
    assert site.asked[-1].path == "/last"


async def test_an_answer_has_its_time_however_long_the_connection_was_quiet() -> None:
    async with serving() as (site, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        await soon(lambda: port._connections, "the connection")
        (connection,) = port._connections
        connection._deadline_s = asyncio.get_running_loop().time()
        writer.write(head(b"GET", b"/later?x", CLOSE))
        await soon(lambda: site.asked, "the request")
        connection._time_is_up()
        site.go_on.set()
        assert body_of(await asyncio.wait_for(reader.read(), 30)) == b"later x"
        writer.close()


async def test_nothing_follows_a_stream_that_breaks() -> None:
    before = FAILURES.count("http")
    async with serving() as (site, port):
        answer = await exchange(port, head(b"GET", b"/broken") + head(b"GET", b"/a", CLOSE))
    assert answer.endswith(b"\r\n\r\n5\r\nbegun\r\n")
    assert [request.path for request in site.asked] == ["/broken"]
    assert FAILURES.count("http") == before + 1


async def test_another_protocol_is_not_switched_to() -> None:
    async with serving() as (site, port):
        upgrade = head(b"GET", b"/a", b"Upgrade: websocket", b"Connection: upgrade")
        answer = await exchange(port, upgrade + b"\x00\x01 frames")
        assert body_of(answer).startswith(b"GET /a")
        assert len(site.asked) == 1


async def test_a_fault_of_the_site_is_a_500_and_the_connection_goes_on() -> None:
    before = FAILURES.count("http")
    async with serving() as (_site, port):
        answers = await exchange(port, head(b"GET", b"/fails") + head(b"GET", b"/a", CLOSE))
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"500", b"200"]
    assert FAILURES.count("http") == before + 1


async def test_a_head_alone_is_answered_without_a_body() -> None:
    async with serving() as (site, port):
        answers = await exchange(
            port, head(b"HEAD", b"/a") + head(b"HEAD", b"/stream") + head(b"GET", b"/b", CLOSE)
        )
        assert answers.count(b"\r\n\r\n") == 3
        assert body_of(answers[answers.rindex(b"HTTP/1.1") :]) == b"GET /b  "
        assert not site.ended


async def test_what_has_not_changed_has_no_length_of_its_own() -> None:
    async with serving() as (_site, port):
        answers = await exchange(port, head(b"GET", b"/unchanged") + head(b"GET", b"/a", CLOSE))
    unchanged, _, rest = answers.partition(b"\r\n\r\n")
    assert unchanged.startswith(b"HTTP/1.1 304 ")
    assert b"content-length" not in unchanged.lower()
    assert rest.startswith(b"HTTP/1.1 200 ")


async def test_a_stream_is_sent_in_chunks_and_the_connection_goes_on() -> None:
    async with serving() as (site, port):
        answers = await exchange(port, head(b"GET", b"/stream") + head(b"GET", b"/a", CLOSE))
        assert b"\r\n\r\n4\r\none\n\r\n4\r\ntwo\n\r\n0\r\n\r\nHTTP/1.1 200" in answers
        assert site.ended == ["whole"]


async def test_the_end_of_a_stream_for_http_1_0_is_the_end_of_the_connection() -> None:
    async with serving() as (_site, port):
        answer = await exchange(port, head(b"GET", b"/stream", b"Connection: keep-alive", version=b"1.0"))
        assert body_of(answer) == b"one\ntwo\n"
        assert b"Connection: close" in answer
        kept = await exchange(
            port,
            head(b"GET", b"/a", b"Connection: keep-alive", version=b"1.0")
            + head(b"GET", b"/b", version=b"1.0"),
        )
        assert kept.count(b"HTTP/1.1 200") == 2
        assert kept.count(b"Connection: keep-alive") == 1


async def test_who_does_not_read_a_stream_ends_it_and_holds_little() -> None:
    async with serving(request_timeout_s=0.3) as (site, port):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port.port, limit=1)
        writer.write(head(b"GET", b"/endless"))
        await soon(lambda: bool(site.ended), "the end of the stream")
        assert site.ended == ["the peer does not read"]
        writer.close()


async def test_who_leaves_a_stream_ends_it() -> None:
    async with serving() as (_site, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(head(b"GET", b"/endless"))
        await reader.readexactly(100_000)
        writer.transport.abort()
        await soon(lambda: not port._connections, "the end of the connection")


async def test_a_stop_ends_answers_that_are_not_ready() -> None:
    async with serving() as (site, port):
        answer = asyncio.ensure_future(exchange(port, head(b"GET", b"/later?x")))
        await soon(lambda: len(site.asked) == 1, "the request")
        await asyncio.wait_for(port.stop(), 10)
        (ended,) = await asyncio.gather(answer, return_exceptions=True)
        assert not ended or isinstance(ended, ConnectionError)


async def test_a_future_is_answered_with_when_it_is_done() -> None:
    async with serving() as (site, port):
        requests = head(b"GET", b"/future") + head(b"GET", b"/next", CLOSE)
        answering = asyncio.ensure_future(exchange(port, requests))
        await soon(lambda: len(site.asked) == 1, "the request")
        site.future.set_result(b"made")
        answer = await answering
        assert answer.index(b"future made") < answer.index(b"GET /next")
        assert await Later(site.future, site._made) == Answer(b"future made")


async def test_a_future_that_fails_is_a_fault_of_the_site() -> None:
    async with serving() as (site, port):
        site.future.set_exception(ValueError("a fault"))
        before = FAILURES.count("http")
        answer = await exchange(port, head(b"GET", b"/future", CLOSE))
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert FAILURES.count("http") == before + 1


async def test_a_future_is_given_up_with_the_connection() -> None:
    async with serving() as (site, port):
        answer = asyncio.ensure_future(exchange(port, head(b"GET", b"/future")))
        await soon(lambda: len(site.asked) == 1, "the request")
        await asyncio.wait_for(port.stop(), 10)
        assert site.future.cancelled()
        await asyncio.gather(answer, return_exceptions=True)


async def test_many_requests_at_once_leave_turns_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that came together are answered for milliseconds of a turn, not all in one."""
    async with serving() as (site, port):
        slow = site.answer

        def answer(request: Request) -> Reply:
            end_s = asyncio.get_running_loop().time() + 0.001
            while asyncio.get_running_loop().time() < end_s:
                pass
            turns[-1] += 1
            return slow(request)

        monkeypatch.setattr(site, "answer", answer)
        turns = [0]
        is_over = False

        def count_turns() -> None:
            turns.append(0)
            if not is_over:
                asyncio.get_running_loop().call_soon(count_turns)

        count_turns()
        await exchange(port, head(b"GET", b"/a") * 99 + head(b"GET", b"/b", CLOSE))
        is_over = True
    assert len(site.asked) == 100
    assert max(turns) <= 5


async def test_bodies_of_all_connections_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_BODIES_BYTES_MAX", 1500)
    async with serving() as (_site, port):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(head(b"POST", b"/body", b"Content-Length: 1000") + b"x" * 999)
        await soon(lambda: port.bodies_bytes == 999, "the first body")
        more = head(b"POST", b"/body", b"Content-Length: %d", CLOSE)
        assert (await exchange(port, more % 501 + b"y" * 501)).split()[1] == b"200"
        assert port.bodies_bytes == 999
        assert (await exchange(port, more % 502 + b"y" * 502)).split()[1] == b"503"
        writer.close()
        await soon(lambda: port.bodies_bytes == 0, "the end of the first")


async def test_what_is_not_read_of_all_answers_together_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_UNREAD_BYTES_MAX", 40_000_000)
    async with serving() as (_site, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port, limit=1)
        writer.write(head(b"GET", b"/large"))
        await soon(lambda: port.unread_bytes > 20_000_000, "an answer that nobody reads")
        refused = await exchange(port, head(b"GET", b"/large", CLOSE))
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in refused
        assert (await exchange(port, head(b"GET", b"/a", CLOSE))).startswith(b"HTTP/1.1 200 ")
        assert len(await reader.readexactly(1000)) == 1000
        writer.transport.abort()


@pytest.mark.parametrize("is_before", [False, True])
async def test_a_stream_with_nothing_to_say_sees_its_reader_go(is_before: bool) -> None:
    async with serving() as (site, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
        writer.write(head(b"GET", b"/quiet"))
        if is_before:
            writer.write_eof()
        await reader.readuntil(b"begun")
        # What it says meanwhile is nobody's.
        if not is_before:
            writer.write(head(b"GET", b"/a"))
            writer.write_eof()
        await soon(lambda: site.ended == ["left"], "the end of the stream")
        assert await reader.read() == b"\r\n0\r\n\r\n"
        assert [each.path for each in site.asked] == ["/quiet"]
        writer.close()
