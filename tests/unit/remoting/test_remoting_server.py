"""The listener: requests answered in batches, bad peers ended, limits held; on asyncio and on uvloop."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import uvloop
from eventually import STOP_S, until
from loop_turns import LoopTurns, turn_s_max
from manual_clock import ManualClock

from iotmq.errors import ConnectionClosedError, RequestError, RequestTimeoutError
from iotmq.event_loop import LoopSlice
from iotmq.limits import FRAME_BYTES_MAX, REQUESTS_IN_FLIGHT_MAX
from iotmq.remoting import channel
from iotmq.remoting.codes import ResponseCode, Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.frames.frame import FrameReader, encode
from iotmq.remoting.server import Listening, RemotingServer, ServerConnection

WAIT_S = 30.0

ECHO, HOLD, FAIL, REFUSE, LARGE, ASK, LEAVE, HOLD_AND_REPLY, TOO_LARGE, SLOW = range(1, 11)
LARGE_BYTES = 256 * 1024
SLOW_S = 0.001


class Handler:
    """Answers by the code of the request."""

    def __init__(self) -> None:
        self.held: list[tuple[ServerConnection, Command]] = []
        self.handled = 0
        self.lost: list[ServerConnection] = []
        self.asked: asyncio.Future[Command] | None = None
        self.large = memoryview(bytes(LARGE_BYTES))

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        self.handled += 1
        match request.code:
            case 1:
                return request.reply(0, ext=request.ext, body=request.body)
            case 2:
                self.held.append((connection, request))
            case 3:
                raise KeyError("a fault of the handler\nin two lines")
            case 4:
                raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
            case 5:
                return request.reply(0, body=[self.large])
            case 6:
                self.asked = connection.request(Command.request(40), float(request.ext.get("timeout_s", "3")))
            case 7:
                connection.close()
            case 8:
                connection.reply(request.reply(0))
            case 9:
                return request.reply(0, body=bytes(FRAME_BYTES_MAX))
            case 10:
                until_s = time.thread_time() + SLOW_S
                while time.thread_time() < until_s:
                    pass
                return request.reply(0)
            case _:
                return request.not_supported()
        return None

    def connection_lost(self, connection: ServerConnection) -> None:
        self.lost.append(connection)


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(handler: Handler, clock: ManualClock) -> AsyncIterator[RemotingServer]:
    listening = Listening(connections_max=8, write_buffer_bytes_max=16 * 1024 * 1024)
    server = RemotingServer(handler, listening, clock=clock)
    await server.start()
    yield server
    await server.stop()
    assert list(server.connections) == []


@pytest.fixture(autouse=True)
def no_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.WARNING)
    yield
    assert [record for record in caplog.records if record.exc_info] == []
    assert [record for record in caplog.records if record.name == "asyncio"] == []


class RawPeer:
    """A peer that writes bytes of any kind."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = FrameReader()

    @classmethod
    async def connect(cls, server: RemotingServer) -> RawPeer:
        return cls(*await asyncio.open_connection("127.0.0.1", server.port))

    def send(self, *commands: Command) -> None:
        self.writer.write(b"".join([bytes(buffer) for command in commands for buffer in encode(command)]))

    async def receive(self, count: int) -> list[Command]:
        commands: list[Command] = []
        async with asyncio.timeout(WAIT_S):
            while len(commands) < count:
                data = await self.reader.read(1 << 16)
                assert data, "the server closed the connection"
                self.frames.receive_data(data)
                commands += self.frames.commands_received()
        return commands

    async def ended(self) -> bytes:
        """What came until the server closed."""
        try:
            async with asyncio.timeout(WAIT_S):
                return await self.reader.read(-1)
        except ConnectionResetError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass


@pytest.fixture
async def peer(server: RemotingServer) -> AsyncIterator[RawPeer]:
    peer = await RawPeer.connect(server)
    yield peer
    await peer.close()


def numbered(code: int, opaque: int, ext: dict[str, str] | None = None, *, oneway: bool = False) -> Command:
    request = Command.request(code, ext, oneway=oneway)
    request.opaque = opaque
    return request


async def test_every_request_of_a_chunk_is_answered_in_order(peer: RawPeer) -> None:
    peer.send(*[numbered(ECHO, opaque, {"n": str(opaque)}) for opaque in range(500)])
    answers = await peer.receive(500)
    assert [(answer.opaque, answer.ext) for answer in answers] == [(n, {"n": str(n)}) for n in range(500)]


async def test_requests_of_one_peer_that_take_long_are_answered_over_several_turns(
    server: RemotingServer, handler: Handler, peer: RawPeer
) -> None:
    count = 100
    oneways = [numbered(SLOW, 1, oneway=True) for _ in range(20)]
    with LoopTurns() as turns:
        peer.send(*[numbered(SLOW if number % 2 else ECHO, number) for number in range(count)], *oneways)
        # Nothing that comes later overtakes them.
        peer.send(numbered(ECHO, count))
        answers = await peer.receive(count + 1)
    assert [answer.opaque for answer in answers] == [*range(count + 1)]
    assert handler.handled == count + len(oneways) + 1
    assert turns.longest_s < turn_s_max()
    (connection,) = server.connections
    assert not connection._backlog
    peer.send(numbered(ECHO, 7))
    assert [answer.opaque for answer in await peer.receive(1)] == [7], "it is read again"


async def test_requests_that_wait_for_their_turn_are_carried_out_although_their_peer_has_left(
    server: RemotingServer, handler: Handler
) -> None:
    peer = await RawPeer.connect(server)
    peer.send(*[numbered(SLOW, 1, oneway=True) for _ in range(50)])
    await peer.close()
    await until(lambda: handler.lost)
    assert handler.handled == 50


async def test_requests_before_bytes_that_are_no_frame_are_carried_out_over_several_turns(
    server: RemotingServer, handler: Handler, peer: RawPeer
) -> None:
    with LoopTurns() as turns:
        peer.send(*[numbered(SLOW, number) for number in range(50)])
        peer.writer.write(b"\xff" * 100)
        answers = FrameReader()
        answers.receive_data(await peer.ended())
    assert [answer.opaque for answer in answers.commands_received()] == list(range(50))
    assert turns.longest_s < turn_s_max()


@pytest.mark.parametrize("is_lost_at_once", [True, False])
async def test_what_waits_when_an_encrypted_peer_ends_is_carried_out_over_several_turns(
    handler: Handler, monkeypatch: pytest.MonkeyPatch, is_lost_at_once: bool
) -> None:
    server = RemotingServer(handler)
    server._server = object()  # type: ignore[assignment]
    connection = server._accept()
    transport = PausableTransport()
    connection.connection_made(transport)
    monkeypatch.setattr(channel, "LoopSlice", lambda: LoopSlice(2))
    connection.data_received(b"".join(b"".join(encode(numbered(ECHO, number))) for number in range(7)))
    assert handler.handled == 2
    assert transport.is_paused
    connection.eof_received()
    assert handler.handled == 4
    if is_lost_at_once:
        connection.connection_lost(None)
    for handled in (6, 7):
        assert not handler.lost, "it has ended for the handler behind all its requests"
        await asyncio.sleep(0)
        assert handler.handled == handled
    if not is_lost_at_once:
        assert not handler.lost
        connection.connection_lost(None)
    assert handler.lost == [connection]
    frames = FrameReader()
    frames.receive_data(b"".join(transport.writes))
    assert [answer.opaque for answer in frames.commands_received()] == list(range(4))
    await asyncio.sleep(0)
    assert (handler.handled, handler.lost) == (7, [connection])


async def test_answers_of_one_chunk_leave_in_one_write(
    handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the processor is.
    monkeypatch.setattr(channel, "LoopSlice", lambda: LoopSlice(slice_s=60))
    server = RemotingServer(handler)
    server._server = object()  # type: ignore[assignment]
    connection = server._accept()
    transport = FakeTransport()
    connection.connection_made(transport)
    requests = [b"".join(encode(numbered(ECHO, opaque))) for opaque in range(100)]
    connection.data_received(b"".join(requests))
    assert len(transport.writes) == 1
    connection.data_received(requests[0] + b"".join(encode(numbered(LARGE, 1))) + requests[1])
    assert len(transport.writes) == 2
    # The pieces of a body reach the transport as they are.
    assert any(buffer is handler.large for buffer in transport.pieces)


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.pieces: list[object] = []

    def write(self, data: object) -> None:
        self.writes.append(bytes(data))  # type: ignore[call-overload]

    def writelines(self, pieces: object) -> None:
        self.pieces = list(pieces)  # type: ignore[call-overload]
        self.writes.append(b"".join(self.pieces))  # type: ignore[arg-type]

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0


class PausableTransport(FakeTransport):
    is_paused = False

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


@pytest.mark.parametrize("serialize", [Serialize.JSON, Serialize.BINARY])
async def test_an_unknown_code_is_answered_with_3(peer: RawPeer, serialize: int) -> None:
    request = numbered(9_999, 6)
    request.serialize = serialize
    peer.send(request)
    (answer,) = await peer.receive(1)
    assert (answer.code, answer.opaque, answer.serialize) == (3, 6, serialize)


async def test_a_held_request_is_answered_later(peer: RawPeer, handler: Handler) -> None:
    peer.send(numbered(HOLD, 1), numbered(ECHO, 2))
    assert [answer.opaque for answer in await peer.receive(1)] == [2]
    connection, request = handler.held[0]
    connection.reply(request.reply(0, remark="late"))
    (answer,) = await peer.receive(1)
    assert (answer.opaque, answer.remark) == (1, "late")


async def test_a_reply_from_within_the_handler_leaves_too(peer: RawPeer) -> None:
    peer.send(numbered(HOLD_AND_REPLY, 1), numbered(ECHO, 2))
    assert [answer.opaque for answer in await peer.receive(2)] == [1, 2]


async def test_a_oneway_request_is_never_answered(peer: RawPeer, handler: Handler) -> None:
    oneways = [numbered(code, 1, oneway=True) for code in (ECHO, FAIL, REFUSE, 9_999, HOLD_AND_REPLY, HOLD)]
    peer.send(*oneways, numbered(ECHO, 2))
    assert [answer.opaque for answer in await peer.receive(1)] == [2]
    connection, request = handler.held[0]
    connection.reply(request.reply(0))
    peer.send(numbered(ECHO, 3))
    assert [answer.opaque for answer in await peer.receive(1)] == [3]


async def test_a_request_error_is_answered_with_its_code(peer: RawPeer) -> None:
    peer.send(numbered(REFUSE, 1))
    (answer,) = await peer.receive(1)
    assert (answer.code, answer.remark) == (17, "no such topic")


async def test_a_fault_of_the_handler_is_answered_with_1_and_logged_once(
    peer: RawPeer, server: RemotingServer, caplog: pytest.LogCaptureFixture
) -> None:
    peer.send(numbered(FAIL, 1), numbered(FAIL, 2), numbered(ECHO, 3))
    first, _, last = await peer.receive(3)
    assert (first.code, last.code) == (1, 0)
    assert "KeyError" in (first.remark or "")
    assert server.traffic.handler_failures == 2
    lines = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(lines) == 1
    assert "\n" not in lines[0].getMessage()


async def test_an_answer_that_fits_no_frame_becomes_code_1(peer: RawPeer) -> None:
    peer.send(numbered(TOO_LARGE, 1))
    (answer,) = await peer.receive(1)
    assert (answer.code, answer.opaque) == (1, 1)
    assert "maximum" in (answer.remark or "")


GARBAGE = {
    "tls": bytes.fromhex("1603010200010001fc0303"),
    "length": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "header": struct.pack(">iI", 9, 5) + b"hello",
}


@pytest.mark.parametrize("reason", GARBAGE)
async def test_garbage_ends_the_connection_and_nobody_else_notices(
    server: RemotingServer, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = await ClientConnection.connect("127.0.0.1", server.port)
    peer = await RawPeer.connect(server)
    peer.writer.write(GARBAGE[reason])
    assert await peer.ended() == b""
    assert server.traffic.malformed[reason] == 1  # type: ignore[index]
    (line,) = caplog.records
    assert (line.name, line.levelno) == ("iotmq.remoting", logging.WARNING)
    assert line.__dict__["reason"] == reason
    assert line.__dict__["peer"].startswith("127.0.0.1:")
    assert (await other.request(Command.request(ECHO))).code == 0
    await other.close()
    await peer.close()


async def test_requests_before_garbage_are_answered(peer: RawPeer) -> None:
    peer.writer.write(b"".join(encode(numbered(ECHO, 5))) + GARBAGE["header"])
    peer.frames.receive_data(await peer.ended())
    (answer,) = peer.frames.commands_received()
    assert answer.opaque == 5


async def test_half_a_frame_and_the_end_is_counted(server: RemotingServer) -> None:
    peer = await RawPeer.connect(server)
    peer.writer.write(b"".join(encode(numbered(ECHO, 5)))[:-3])
    peer.writer.write_eof()
    assert await peer.ended() == b""
    assert server.traffic.malformed["truncated"] == 1
    await peer.close()


async def test_a_frame_with_an_empty_header_is_skipped(peer: RawPeer, server: RemotingServer) -> None:
    peer.writer.write(struct.pack(">iI", 17, 0x7B << 24) + b"x" * 13)
    peer.send(numbered(ECHO, 8))
    assert [answer.opaque for answer in await peer.receive(1)] == [8]
    assert server.traffic.frames_ignored == 1


async def test_a_response_to_nothing_is_ignored(peer: RawPeer, server: RemotingServer) -> None:
    peer.send(numbered(ECHO, 1).reply(0), numbered(ECHO, 8))
    assert [answer.opaque for answer in await peer.receive(1)] == [8]
    assert server.traffic.responses_unmatched == 1


async def test_a_silent_connection_is_closed_after_the_idle_time(
    peer: RawPeer, server: RemotingServer, clock: ManualClock, handler: Handler
) -> None:
    await until(lambda: list(server.connections))
    server.close_idle()
    clock.advance(119.9)
    server.close_idle()
    assert server.traffic.closed["idle"] == 0
    clock.advance(0.1)
    server.close_idle()
    assert await peer.ended() == b""
    await until(lambda: handler.lost)
    assert server.traffic.closed["idle"] == 1


async def test_traffic_keeps_a_connection_open(
    peer: RawPeer, server: RemotingServer, clock: ManualClock
) -> None:
    for opaque in range(5):
        clock.advance(100)
        peer.send(numbered(ECHO, opaque))
        await peer.receive(1)
        server.close_idle()
    assert len(list(server.connections)) == 1


async def test_a_frame_that_never_ends_does_not_keep_a_connection_open(
    peer: RawPeer, server: RemotingServer, clock: ManualClock
) -> None:
    await until(lambda: list(server.connections))
    data = b"".join(encode(numbered(ECHO, 5)))
    server.close_idle()
    for at in range(3):
        assert list(server.connections)
        peer.writer.write(data[at : at + 1])
        received = server.traffic.bytes_received
        await until(lambda received=received: server.traffic.bytes_received > received)
        clock.advance(40)
        server.close_idle()
    assert await peer.ended() == b""


async def test_unfinished_frames_of_many_peers_are_bounded_together(
    server: RemotingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "UNFINISHED_FRAMES_BYTES_MAX", 300_000)
    other = await RawPeer.connect(server)
    other.writer.write(b"".join(encode(numbered(ECHO, 1)))[:20])
    half = struct.pack(">iI", 1_000_000, 20) + bytes(149_000)
    first, second = await RawPeer.connect(server), await RawPeer.connect(server)
    first.writer.write(half)
    await until(lambda: server.traffic.unfinished_bytes == 20 + len(half))
    second.writer.write(half)
    await until(lambda: server.traffic.unfinished_bytes == 20 + 2 * len(half))
    assert server.traffic.closed["memory"] == 0
    second.writer.write(bytes(2_000))
    assert await second.ended() == b""
    await until(lambda: server.traffic.unfinished_bytes == 20 + len(half))
    assert server.traffic.closed["memory"] == 1
    other.writer.write(b"".join(encode(numbered(ECHO, 1)))[20:])
    await other.receive(1)
    assert server.traffic.unfinished_bytes == len(half)
    for peer in (other, first, second):
        await peer.close()
    await until(lambda: server.traffic.unfinished_bytes == 0)


async def test_too_many_connections_are_refused(server: RemotingServer, handler: Handler) -> None:
    peers = [await RawPeer.connect(server) for _ in range(8)]
    for number, peer in enumerate(peers):
        peer.send(numbered(ECHO, number))
        await peer.receive(1)
    one_more = await RawPeer.connect(server)
    assert await one_more.ended() == b""
    assert server.traffic.closed["refused"] == 1
    await peers[0].close()
    await until(lambda: len(handler.lost) == 1)
    again = await RawPeer.connect(server)
    again.send(numbered(ECHO, 1))
    await again.receive(1)
    for peer in [*peers[1:], one_more, again]:
        await peer.close()


def silent_socket(server: RemotingServer) -> socket.socket:
    """A connected socket with a small receive buffer that nobody reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    sock.connect(("127.0.0.1", server.port))
    return sock


async def test_requests_of_a_peer_that_does_not_read_wait(server: RemotingServer, handler: Handler) -> None:
    requests = b"".join([b"".join(encode(numbered(LARGE, opaque))) for opaque in range(400)])
    with silent_socket(server) as sock:
        sock.sendall(requests)
        await until(lambda: any(connection.is_congested for connection in server.connections))
        handled = handler.handled
        # 400 answers are 100 MiB; only what fits the buffers was answered.
        assert handled < 100
        sock.setblocking(False)
        frames = FrameReader()
        loop = asyncio.get_running_loop()
        answers = 0
        async with asyncio.timeout(WAIT_S):
            while answers < 400:
                frames.receive_data(await loop.sock_recv(sock, 1 << 20))
                answers += len(frames.commands_received())
    assert handler.handled == 400
    assert server.traffic.closed["slow"] == 0


async def test_a_peer_that_never_reads_is_closed_past_the_write_limit(
    server: RemotingServer, handler: Handler
) -> None:
    with silent_socket(server) as sock:
        sock.sendall(b"".join(encode(numbered(HOLD, 1))))
        await until(lambda: handler.held)
        connection, request = handler.held[0]
        for _ in range(200):
            connection.reply(request.reply(0, body=handler.large))
            await asyncio.sleep(0)
            if connection.is_closed:
                break
        assert connection.close_reason == "slow"
        await until(lambda: handler.lost == [connection])
    assert server.traffic.closed["slow"] == 1


async def test_a_peer_that_stopped_reading_is_idle(
    server: RemotingServer, handler: Handler, clock: ManualClock
) -> None:
    with silent_socket(server) as sock:
        sock.sendall(b"".join([b"".join(encode(numbered(LARGE, opaque))) for opaque in range(100)]))
        await until(lambda: any(connection.is_congested for connection in server.connections))
        server.close_idle()
        server.close_idle()
        clock.advance(120)
        server.close_idle()
        await until(lambda: handler.lost)
    assert server.traffic.closed["idle"] == 1


async def test_too_many_unanswered_requests_are_refused(
    peer: RawPeer, server: RemotingServer, handler: Handler
) -> None:
    peer.send(*[numbered(HOLD, opaque) for opaque in range(REQUESTS_IN_FLIGHT_MAX)])
    await until(lambda: len(handler.held) == REQUESTS_IN_FLIGHT_MAX)
    assert server.traffic.requests_refused == 0
    peer.send(numbered(ECHO, REQUESTS_IN_FLIGHT_MAX))
    (answer,) = await peer.receive(1)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    connection, request = handler.held[0]
    connection.reply(request.reply(0))
    await peer.receive(1)
    peer.send(numbered(ECHO, 1))
    assert (await peer.receive(1))[0].code == 0
    assert server.traffic.requests_refused == 1


async def test_the_server_asks_its_client(server: RemotingServer, handler: Handler) -> None:
    def answer(_: ClientConnection, request: Command) -> Command:
        return request.reply(0, remark=f"asked {request.code}")

    client = await ClientConnection.connect("127.0.0.1", server.port, on_request=answer)
    client.send_oneway(Command.request(ASK))
    await until(lambda: handler.asked)
    assert handler.asked is not None
    assert (await handler.asked).remark == "asked 40"
    await client.close()


async def test_a_client_that_does_not_answer_runs_out_of_time(peer: RawPeer, handler: Handler) -> None:
    peer.send(numbered(ASK, 1, {"timeout_s": "0.01"}, oneway=True))
    await until(lambda: handler.asked)
    assert handler.asked is not None
    with pytest.raises(RequestTimeoutError):
        await handler.asked


async def test_a_client_that_leaves_ends_what_it_was_asked(peer: RawPeer, handler: Handler) -> None:
    peer.send(numbered(ASK, 1, oneway=True))
    await until(lambda: handler.asked)
    await peer.close()
    assert handler.asked is not None
    with pytest.raises(ConnectionClosedError):
        await handler.asked
    (connection,) = handler.lost
    with pytest.raises(ConnectionClosedError):
        await connection.request(Command.request(40), 1.0)
    connection.reply(numbered(ECHO, 1).reply(0))
    connection.send_oneway(Command.request(40))


async def test_a_handler_may_close_in_the_middle_of_a_chunk(peer: RawPeer, handler: Handler) -> None:
    peer.send(numbered(ECHO, 1), numbered(LEAVE, 2), numbered(ECHO, 3))
    peer.frames.receive_data(await peer.ended())
    assert [answer.opaque for answer in peer.frames.commands_received()] == [1]
    assert handler.handled == 2


async def test_a_connection_lost_is_reported_once(peer: RawPeer, handler: Handler) -> None:
    peer.send(numbered(ECHO, 1))
    await peer.receive(1)
    await peer.close()
    await until(lambda: handler.lost)
    assert len(handler.lost) == 1
    assert handler.lost[0].is_closed
    assert handler.lost[0].peer[0] == "127.0.0.1"


async def test_stop_writes_what_was_answered_and_ends_everything(handler: Handler) -> None:
    server = RemotingServer(handler)
    await server.start()
    peer = await RawPeer.connect(server)
    peer.send(numbered(HOLD, 1))
    await until(lambda: handler.held)
    connection, request = handler.held[0]
    connection.reply(request.reply(0, remark="last"))
    with silent_socket(server) as sock:
        sock.sendall(b"".join([b"".join(encode(numbered(LARGE, opaque))) for opaque in range(100)]))
        await until(lambda: any(other.is_congested for other in server.connections))
        async with asyncio.timeout(STOP_S):
            await server.stop()
    peer.frames.receive_data(await peer.ended())
    (answer,) = peer.frames.commands_received()
    assert answer.remark == "last"
    assert len(handler.lost) == 2
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)
    await peer.close()


async def test_a_taken_port_is_an_error_by_name(server: RemotingServer, handler: Handler) -> None:
    with pytest.raises(OSError, match=str(server.port)):
        await RemotingServer(handler, Listening(port=server.port)).start()


async def test_metrics_count_what_happened(peer: RawPeer, server: RemotingServer) -> None:
    peer.send(numbered(ECHO, 1), numbered(REFUSE, 2))
    await peer.receive(2)
    found = {(metric.name, metric.labels): metric.value for metric in server.metrics()}
    assert found["iotmq_remoting_connections", ()] == 1
    assert found["iotmq_remoting_requests_total", ()] == 2
    assert found["iotmq_remoting_request_errors_total", ()] == 1
    assert found["iotmq_remoting_malformed_frames_total", (("reason", "tls"),)] == 0
    assert found["iotmq_remoting_sent_bytes_total", ()] > 0
