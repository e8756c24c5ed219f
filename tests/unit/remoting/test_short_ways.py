"""A connection that is answered many requests at a time keeps the same limits as any other."""

from __future__ import annotations

from short_and_general import Transport

from iotmq.limits import REQUESTS_IN_FLIGHT_MAX
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import FrameReader, Run, encode
from iotmq.remoting.server import ServerConnection
from iotmq.remoting.traffic import Traffic

FIELDS = dict(zip("abcdefgh", ["p", "T", "TBW102", "4", "0", "0", "1", "0"], strict=True))
LIMIT_BYTES = 1 << 16


class Handler:
    """Lets sends of runs wait; answers what is left to it with success."""

    def __init__(self) -> None:
        self.seen = 0

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        self.seen += 1
        return request.reply(ResponseCode.SUCCESS)

    def connection_lost(self, connection: ServerConnection) -> None:
        pass

    def hold(self, connection: ServerConnection, run: Run, at: int) -> int:
        connection.hold(run.count - at)
        return run.count

    def answer(self, connection: ServerConnection, run: Run, at: int) -> int:
        connection.send_encoded(bytes(10_000) * (run.count - at))
        return run.count

    def leave_odd_ones(self, connection: ServerConnection, run: Run, at: int) -> int:
        return at + 1 if at % 2 == 0 else at


class FullTransport(Transport):
    """Its peer takes nothing."""

    aborted = False

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def pause_reading(self) -> None:
        pass

    def abort(self) -> None:  # type: ignore[override]
        self.aborted = True


def connect(handler: Handler, way: str, transport: Transport) -> tuple[ServerConnection, Traffic]:
    traffic = Traffic()
    connection = ServerConnection(
        handler, traffic, opened=lambda _: True, lost=lambda _: None,
        write_buffer_bytes_max=LIMIT_BYTES, handle_run=getattr(handler, way),
    )  # fmt: skip
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, traffic


def sends(count: int, first: int = 0) -> bytes:
    return b"".join(
        b"".join(encode(Command(310, first + number, 0, 0, 409, None, FIELDS, b"", 0)))
        for number in range(count)
    )


async def test_sends_of_runs_count_against_the_limit_of_requests_in_flight() -> None:
    handler, transport = Handler(), Transport(("127.0.0.1", 1))
    connection, traffic = connect(handler, "hold", transport)
    connection.data_received(sends(REQUESTS_IN_FLIGHT_MAX))
    assert not transport.written
    connection.data_received(sends(2, first=REQUESTS_IN_FLIGHT_MAX))
    reader = FrameReader()
    reader.receive_data(bytes(transport.written))
    assert [(answer.opaque, answer.code) for answer in reader.commands_received()] == [
        (REQUESTS_IN_FLIGHT_MAX, ResponseCode.SERVICE_NOT_AVAILABLE),
        (REQUESTS_IN_FLIGHT_MAX + 1, ResponseCode.SERVICE_NOT_AVAILABLE),
    ]
    assert traffic.requests_refused == 2
    # Answered ones make room again.
    connection.reply_encoded(b"", 2)
    connection.data_received(sends(2))
    assert traffic.requests_refused == 2
    assert traffic.requests == REQUESTS_IN_FLIGHT_MAX + 4
    assert handler.seen == 0


async def test_a_peer_that_does_not_take_answers_of_runs_is_closed_and_counted() -> None:
    transport = FullTransport(("127.0.0.1", 1))
    connection, traffic = connect(Handler(), "answer", transport)
    connection.data_received(sends(1))
    connection.pause_writing()
    for _ in range(10):
        connection.data_received(sends(1))
    assert transport.aborted
    assert traffic.closed["slow"] == 1
    assert len(transport.written) < LIMIT_BYTES + 20_000


async def test_what_a_run_leaves_is_handled_in_its_place() -> None:
    handler, transport = Handler(), Transport(("127.0.0.1", 1))
    connection, traffic = connect(handler, "leave_odd_ones", transport)
    connection.data_received(sends(5))
    assert handler.seen == 2
    assert traffic.requests == 5


async def test_nothing_is_sent_after_the_end() -> None:
    transport = Transport(("127.0.0.1", 1))
    connection, _ = connect(Handler(), "hold", transport)
    connection.data_received(sends(1))
    connection.close()
    connection.reply_encoded(b"late", 1)
    connection.send_views(b"late", [], 4)
    connection.data_received(sends(1))
    assert not transport.written
