"""A server connection fed any bytes in any chunks: what it answers, and that it only ever closes."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iotmq.errors import RequestError
from iotmq.remoting.codes import Flag, Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import FrameReader, encode
from iotmq.remoting.server import ServerConnection
from iotmq.remoting.traffic import Traffic

ECHO, REFUSE = 1, 2


class Echo:
    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.code == REFUSE:
            raise RequestError(17, "refused")
        if request.code == ECHO:
            return request.reply(0, ext=request.ext, body=request.body)
        return request.not_supported()

    def connection_lost(self, connection: ServerConnection) -> None:
        pass


class Recorder(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: object) -> None:
        self.written += data  # type: ignore[operator]

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def writelines(self, pieces: object) -> None:
        for piece in pieces:  # type: ignore[attr-defined]
            self.written += piece

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


def feed(pieces: list[bytes]) -> tuple[bytes, bool, dict[str, int]]:
    """What was answered, whether the connection was closed, and why."""

    async def run() -> tuple[bytes, bool, dict[str, int]]:
        traffic = Traffic()
        connection = ServerConnection(
            Echo(), traffic, opened=lambda _: True, lost=lambda _: None, write_buffer_bytes_max=1 << 30
        )
        transport = Recorder()
        connection.connection_made(transport)
        for piece in pieces:
            connection.data_received(piece)
        connection.eof_received()
        connection.connection_lost(None)
        assert traffic.handler_failures == 0
        assert traffic.unfinished_bytes == 0
        return bytes(transport.written), transport.is_closed, dict(traffic.malformed)

    return asyncio.run(run())


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


requests = st.builds(
    lambda code, opaque, flag, ext, body, serialize: Command(
        code, opaque, flag, 0, 409, None, ext, body, serialize
    ),
    st.sampled_from([ECHO, REFUSE, 3]),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([0, 0, Flag.ONEWAY, Flag.RESPONSE]),
    st.dictionaries(st.text("ab", max_size=3), st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    st.binary(max_size=30) | st.binary(min_size=1024, max_size=1100),
    st.sampled_from([Serialize.JSON, Serialize.BINARY]),
)
places_to_cut = st.lists(st.integers(0, 10_000), max_size=8)
quiet = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quiet
@given(st.lists(requests, max_size=5), places_to_cut)
def test_every_request_gets_its_answer_however_it_is_cut(sent: list[Command], places: list[int]) -> None:
    data = b"".join([b"".join(encode(command)) for command in sent])
    written, is_closed, _ = feed(cut(data, places))
    assert not is_closed
    reader = FrameReader()
    reader.receive_data(written)
    answers = reader.commands_received()
    assert reader.error is None
    assert reader.pending_size == 0
    expected = [
        (request.opaque, request.serialize, {ECHO: 0, REFUSE: 17, 3: 3}[request.code])
        for request in sent
        if not request.is_oneway and not request.is_response
    ]
    assert [(answer.opaque, answer.serialize, answer.code) for answer in answers] == expected


@quiet
@given(
    st.lists(requests, max_size=3),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4),
    st.binary(max_size=40),
    places_to_cut,
)
def test_damaged_bytes_close_or_are_answered_and_raise_nothing(
    caplog: pytest.LogCaptureFixture,
    sent: list[Command],
    damage: list[tuple[int, int]],
    garbage: bytes,
    places: list[int],
) -> None:
    data = bytearray(b"".join([b"".join(encode(command)) for command in sent]) + garbage)
    for place, value in damage:
        if data:
            data[place % len(data)] = value
    caplog.clear()
    whole = feed([bytes(data)])
    assert feed(cut(bytes(data), places)) == whole
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []
    assert whole[1] == (sum(whole[2].values()) == 1)
