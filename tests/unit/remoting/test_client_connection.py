"""The client connection: many requests in flight, limits in time, ends that reach every waiter."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
import uvloop
from eventually import until

from iotmq.errors import ConnectionClosedError, RequestTimeoutError
from iotmq.limits import FRAME_BYTES_MAX
from iotmq.remoting.codes import Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.server import RemotingServer, ServerConnection
from iotmq.remoting.traffic import Traffic

WAIT_S = 30.0
ECHO, HOLD, CLOSE, SINK = 1, 2, 3, 4


class Handler:
    def __init__(self) -> None:
        self.held: list[tuple[ServerConnection, Command]] = []
        self.connections: set[ServerConnection] = set()
        self.bytes_sunk = 0

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        self.connections.add(connection)
        if request.code == HOLD:
            self.held.append((connection, request))
            return None
        if request.code == CLOSE:
            connection.close()
            return None
        if request.code == SINK:
            self.bytes_sunk += len(request.body)
            return None
        return request.reply(0, ext=request.ext, body=request.body)

    def connection_lost(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
async def server(handler: Handler) -> AsyncIterator[RemotingServer]:
    server = RemotingServer(handler)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def connection(server: RemotingServer) -> AsyncIterator[ClientConnection]:
    connection = await ClientConnection.connect("127.0.0.1", server.port)
    yield connection
    await connection.close()


@pytest.fixture(autouse=True)
def nothing_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.WARNING)
    yield
    assert caplog.records == []


@pytest.mark.parametrize("serialize", [Serialize.JSON, Serialize.BINARY])
async def test_thousands_of_requests_in_flight(connection: ClientConnection, serialize: int) -> None:
    futures = [
        connection.request_nowait(Command.request(ECHO, {"n": str(n)}, b"x" * n, serialize=serialize))
        for n in range(4_000)
    ]
    answers = await asyncio.gather(*futures)
    assert [(answer.ext["n"], len(answer.body)) for answer in answers] == [(str(n), n) for n in range(4_000)]


async def test_answers_in_any_order_find_their_requests(
    connection: ClientConnection, handler: Handler
) -> None:
    futures = [connection.request_nowait(Command.request(HOLD, {"n": str(n)})) for n in range(10)]
    await until(lambda: len(handler.held) == 10)
    for server_side, request in reversed(handler.held):
        server_side.reply(request.reply(0, ext=request.ext))
    assert [(await future).ext["n"] for future in futures] == [str(n) for n in range(10)]


async def test_a_body_of_pieces_arrives_as_one(connection: ClientConnection) -> None:
    pieces: list[bytes | memoryview] = [b"a" * 5_000, memoryview(b"b" * 5_000), b"c"]
    answer = await connection.request(Command.request(ECHO, body=pieces))
    assert answer.body == b"a" * 5_000 + b"b" * 5_000 + b"c"


async def test_a_body_of_many_megabytes_comes_back(connection: ClientConnection) -> None:
    body = bytes(range(256)) * (8 * 4096)
    assert (await connection.request(Command.request(ECHO, body=body))).body == body


async def test_a_request_without_answer_runs_out_of_time(
    connection: ClientConnection, handler: Handler
) -> None:
    with pytest.raises(RequestTimeoutError, match=r"127\.0\.0\.1"):
        await connection.request(Command.request(HOLD), timeout_s=0.01)
    # Its answer comes too late and disturbs nobody.
    server_side, request = handler.held[0]
    server_side.reply(request.reply(0, remark="late"))
    assert (await connection.request(Command.request(ECHO))).remark is None


async def test_an_abandoned_request_disturbs_nobody(connection: ClientConnection, handler: Handler) -> None:
    future = connection.request_nowait(Command.request(HOLD))
    await until(lambda: handler.held)
    future.cancel()
    server_side, request = handler.held[0]
    server_side.reply(request.reply(0))
    assert (await connection.request(Command.request(ECHO))).code == 0


async def test_opaques_skip_those_in_use_and_wrap(connection: ClientConnection, handler: Handler) -> None:
    held = connection.request_nowait(Command.request(HOLD))
    await until(lambda: handler.held)
    connection._next_opaque = 2**31 - 1
    command = Command.request(ECHO)
    assert (await connection.request(command)).opaque == 2**31 - 1
    assert (await connection.request(command)).opaque == 1
    assert not held.done()


async def test_the_end_of_the_connection_reaches_every_waiter(server: RemotingServer) -> None:
    lost = []
    connection = await ClientConnection.connect("127.0.0.1", server.port, on_lost=lost.append)
    future = connection.request_nowait(Command.request(HOLD))
    # Nobody looks at this one, and the log stays silent about it.
    connection.request_nowait(Command.request(HOLD))
    with pytest.raises(ConnectionClosedError):
        await connection.request(Command.request(CLOSE))
    with pytest.raises(ConnectionClosedError):
        await future
    assert lost == [connection]
    assert connection.is_closed
    with pytest.raises(ConnectionClosedError):
        await connection.request(Command.request(ECHO))
    with pytest.raises(ConnectionClosedError):
        await connection.drain()
    connection.send_oneway(Command.request(ECHO))
    await connection.close()


async def test_close_writes_what_was_sent(server: RemotingServer, handler: Handler) -> None:
    connection = await ClientConnection.connect("127.0.0.1", server.port)
    connection.send_oneway(Command.request(SINK, body=b"x" * 100_000))
    await connection.close()
    await connection.close()
    await until(lambda: handler.bytes_sunk == 100_000)


async def test_drain_waits_for_a_slow_server(server: RemotingServer, handler: Handler) -> None:
    connection = await ClientConnection.connect("127.0.0.1", server.port)
    connection.send_oneway(Command.request(SINK, body=b"x"))
    await until(lambda: handler.connections)
    (server_side,) = handler.connections
    transport = server_side._transport
    assert transport is not None
    transport.pause_reading()
    sent = 0
    while not connection.is_congested:
        connection.send_oneway(Command.request(SINK, body=bytes(1024 * 1024)))
        sent += 1024 * 1024
        await asyncio.sleep(0)
    waiting = asyncio.ensure_future(connection.drain())
    done, _ = await asyncio.wait([waiting], timeout=0.02)
    assert not done
    transport.resume_reading()
    async with asyncio.timeout(WAIT_S):
        await waiting
    await until(lambda: handler.bytes_sunk == sent + 1)
    await connection.close()


async def test_without_a_handler_the_servers_requests_are_not_supported(
    connection: ClientConnection, handler: Handler
) -> None:
    await connection.request(Command.request(ECHO))
    (server_side,) = handler.connections
    assert (await server_side.request(Command.request(40), 1.0)).code == 3


async def test_the_servers_requests_can_be_answered_later(server: RemotingServer, handler: Handler) -> None:
    asked: list[Command] = []

    def hold(_: ClientConnection, request: Command) -> None:
        asked.append(request)

    connection = await ClientConnection.connect("127.0.0.1", server.port, on_request=hold)
    await connection.request(Command.request(ECHO))
    (server_side,) = handler.connections
    future = server_side.request(Command.request(40), 1.0)
    await until(lambda: asked)
    connection.reply(asked[0].reply(0, remark="later"))
    assert (await future).remark == "later"
    await connection.close()


async def test_nobody_listening_is_an_error_by_name() -> None:
    server = RemotingServer(Handler())
    await server.start()
    await server.stop()
    with pytest.raises(ConnectionClosedError, match=f"127.0.0.1:{server.port}"):
        await ClientConnection.connect("127.0.0.1", server.port)


async def test_a_command_past_the_frame_limit_is_the_callers_fault(connection: ClientConnection) -> None:
    with pytest.raises(ValueError, match="past the maximum"):
        connection.request_nowait(Command.request(ECHO, body=bytes(FRAME_BYTES_MAX)))
    assert (await connection.request(Command.request(ECHO))).code == 0


async def test_connections_may_count_together(server: RemotingServer) -> None:
    traffic = Traffic()
    for _ in range(2):
        connection = await ClientConnection.connect("127.0.0.1", server.port, traffic=traffic)
        await connection.request(Command.request(ECHO))
        await connection.close()
    assert traffic.bytes_received == server.traffic.bytes_sent
    assert traffic.bytes_sent == server.traffic.bytes_received
