"""The blocking connection against a real listener and against peers that misbehave."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from iotmq.errors import ConnectionClosedError, RequestTimeoutError
from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import encode
from iotmq.remoting.server import RemotingServer, ServerConnection

ECHO, HOLD, RELEASE, ASK, CLOSE = range(1, 6)


class Handler:
    def __init__(self) -> None:
        self.held: list[Command] = []
        self.answers: list[int] = []

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.code == HOLD:
            self.held.append(request)
            return None
        if request.code == RELEASE:
            for held in reversed(self.held):
                connection.reply(held.reply(0, ext=held.ext))
            self.held.clear()
        if request.code == ASK:
            connection.send_oneway(Command.request(40))
            asked = connection.request(Command.request(40))
            asked.add_done_callback(lambda answer: self.answers.append(answer.result().code))
        if request.code == CLOSE:
            connection.close()
            return None
        return request.reply(0, ext=request.ext, body=request.body)

    def connection_lost(self, connection: ServerConnection) -> None:
        pass


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def port(handler: Handler) -> Iterator[int]:
    """A listener on a loop of its own thread."""
    loop = asyncio.new_event_loop()
    server = RemotingServer(handler)
    loop.run_until_complete(server.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield server.port
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(5)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)
    loop.close()


@pytest.fixture
def serve_bytes() -> Iterator[Callable[[bytes], int]]:
    """A listener that sends the same bytes to whoever connects, and closes."""
    sockets: list[socket.socket] = []

    def start(data: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        sockets.append(listener)

        def run() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.recv(1024)
                accepted.sendall(data)

        threading.Thread(target=run, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in sockets:
        listener.close()


def test_a_request_is_answered(port: int) -> None:
    with BlockingConnection("127.0.0.1", port) as connection:
        for number in range(50):
            answer = connection.request(Command.request(ECHO, {"n": str(number)}, b"x" * number))
            assert (answer.ext["n"], len(answer.body)) == (str(number), number)
    assert connection.is_closed


def test_large_bodies_pass_both_ways(port: int) -> None:
    body = bytes(range(256)) * (8 * 4096)
    with BlockingConnection("127.0.0.1", port) as connection:
        assert connection.request(Command.request(ECHO, body=[memoryview(body)])).body == body


def test_requests_in_flight_ahead_are_received_in_any_order(port: int) -> None:
    with BlockingConnection("127.0.0.1", port) as connection:
        opaques = [connection.send(Command.request(ECHO, {"n": str(n)})) for n in range(5)]
        for number in (4, 0, 2, 1, 3):
            assert connection.receive(opaques[number]).ext["n"] == str(number)


def test_answers_that_come_in_another_order_find_their_requests(port: int) -> None:
    with BlockingConnection("127.0.0.1", port) as connection:
        opaques = [connection.send(Command.request(HOLD, {"n": str(n)})) for n in range(5)]
        connection.request(Command.request(RELEASE))
        assert [connection.receive(opaque).ext["n"] for opaque in opaques] == list("01234")


def test_no_answer_runs_out_of_time_and_its_late_answer_is_dropped(port: int) -> None:
    with BlockingConnection("127.0.0.1", port) as connection:
        with pytest.raises(RequestTimeoutError):
            connection.request(Command.request(HOLD), timeout_s=0.01)
        assert connection.request(Command.request(RELEASE)).code == 0
        assert connection.request(Command.request(ECHO)).code == 0


def test_a_oneway_request_is_not_waited_for(port: int, handler: Handler) -> None:
    with BlockingConnection("127.0.0.1", port) as connection:
        connection.send_oneway(Command.request(HOLD))
        assert connection.request(Command.request(ECHO)).code == 0
    assert len(handler.held) == 1


def test_the_servers_own_requests_are_answered_as_not_supported(port: int, handler: Handler) -> None:
    with BlockingConnection("127.0.0.1", port) as connection:
        connection.request(Command.request(ASK))
        connection.request(Command.request(ECHO))
        connection.request(Command.request(ECHO))
    assert handler.answers == [3]


def test_a_server_that_leaves_ends_the_connection(port: int) -> None:
    connection = BlockingConnection("127.0.0.1", port)
    with pytest.raises(ConnectionClosedError):
        connection.request(Command.request(CLOSE))
    assert connection.is_closed
    with pytest.raises(ConnectionClosedError):
        connection.request(Command.request(ECHO))


def test_nobody_listening_is_an_error_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionClosedError, match=str(port)):
        BlockingConnection("127.0.0.1", port)


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x09\x00\x00\x00\x05hello"]
)
def test_garbage_from_the_server_ends_the_connection(
    serve_bytes: Callable[[bytes], int], data: bytes
) -> None:
    connection = BlockingConnection("127.0.0.1", serve_bytes(data))
    with pytest.raises(ConnectionClosedError, match="no valid frame"):
        connection.request(Command.request(ECHO))
    assert connection.is_closed


def test_an_answer_before_the_end_is_still_received(serve_bytes: Callable[[bytes], int]) -> None:
    request = Command.request(ECHO)
    answers = b"".join(encode(request.reply(0, remark="in time")))
    connection = BlockingConnection("127.0.0.1", serve_bytes(answers + answers[:20]))
    assert connection.request(request).remark == "in time"
    with pytest.raises(ConnectionClosedError):
        connection.request(Command.request(ECHO))
