"""How a client reaches servers: WebSockets that are none, or not for MQTT; references; input in lines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import picows
import pytest

from iotmq import limits
from iotmq.commands.mqtt import standard_streams
from iotmq.commands.mqtt.standard_streams import OutputWriter, all_of, lines_of
from iotmq.errors import ConnectionClosedError, MessageRefusedError
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import NO_PROPERTIES
from iotmq.mqtt_client.address import Address, parse_references
from iotmq.mqtt_client.client import MqttClient
from iotmq.mqtt_client.settings import MqttClientSettings

CONNACK = packets.encode_connack(0, session_present=False, properties=NO_PROPERTIES)


class Peer(picows.WSListener):
    """Answers CONNECT, then says what it was told to."""

    def __init__(self, *said: tuple[picows.WSMsgType, bytes]) -> None:
        super().__init__()
        self._said = said
        self.got = b""

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type == picows.WSMsgType.CLOSE:
            transport.disconnect()
            return
        is_first = not self.got
        self.got += frame.get_payload_as_bytes()
        if is_first:
            for kind, data in ((picows.WSMsgType.BINARY, CONNACK), *self._said):
                transport.send(kind, data)
        elif self.got.endswith(packets.DISCONNECT_PACKET):
            transport.disconnect()


@asynccontextmanager
async def websocket_server(peer: Peer, protocol: str | None = "mqtt") -> AsyncIterator[MqttClientSettings]:
    """Settings that lead to a server that chooses this protocol."""

    def accept(request: picows.WSUpgradeRequest) -> picows.WSUpgradeResponseWithListener:
        headers = {"Sec-WebSocket-Protocol": protocol} if protocol else {}
        response = picows.WSUpgradeResponse.create_101_response(extra_headers=headers)
        return picows.WSUpgradeResponseWithListener(response, peer)

    server = await picows.ws_create_server(accept, "127.0.0.1", 0)
    try:
        yield _settings(server.sockets[0].getsockname()[1])
    finally:
        server.close()


def _settings(port: int) -> MqttClientSettings:
    return MqttClientSettings(address=Address("ws", "127.0.0.1", port, "/mqtt"), reconnects=False)


async def test_packets_may_lie_anywhere_in_frames() -> None:
    packet = packets.encode_publish("t", b"payload", properties=NO_PROPERTIES)
    said = [
        (picows.WSMsgType.BINARY, piece)
        for piece in (packet[:3], packet[3:] + packet, packet[:1], packet[1:])
    ]
    peer = Peer(*said)
    async with websocket_server(peer) as settings, MqttClient(settings) as client:
        got = [(await client.next_batch(1))[0].payload for _ in range(3)]
    assert got == [b"payload"] * 3
    assert peer.got.endswith(packets.DISCONNECT_PACKET)


@pytest.mark.parametrize("protocol", [None, "other"])
async def test_a_websocket_that_is_not_for_mqtt(protocol: str | None) -> None:
    async with websocket_server(Peer(), protocol) as settings:
        with pytest.raises(ConnectionClosedError, match=f"protocol {protocol}"):
            await MqttClient(settings).start()


async def test_a_server_that_speaks_no_websocket() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    with pytest.raises(ConnectionClosedError, match="no WebSocket"):
        await MqttClient(_settings(server.sockets[0].getsockname()[1])).start()
    server.close()


@pytest.mark.parametrize("kind", [picows.WSMsgType.TEXT, picows.WSMsgType.CLOSE])
async def test_text_and_a_closing_frame_end_the_connection(kind: picows.WSMsgType) -> None:
    async with websocket_server(Peer((kind, b""))) as settings:
        client = MqttClient(settings)
        await client.start()
        with pytest.raises(ConnectionClosedError):
            await client.next_batch()
        await client.close()


@pytest.mark.parametrize(("size", "is_taken"), [(1_000, True), (1_001, False)])
async def test_a_frame_may_be_as_large_as_a_packet(
    monkeypatch: pytest.MonkeyPatch, size: int, is_taken: bool
) -> None:
    monkeypatch.setattr(limits, "MQTT_CLIENT_PACKET_BYTES_MAX", 1_000)
    head = packets.encode_publish("t", b"", properties=NO_PROPERTIES)
    packet = packets.encode_publish("t", b"x" * (size - len(head) - 1), properties=NO_PROPERTIES)
    assert len(packet) == size
    async with websocket_server(Peer((picows.WSMsgType.BINARY, packet))) as settings:
        client = MqttClient(settings)
        await client.start()
        if is_taken:
            assert len(await client.next_batch()) == 1
        else:
            with pytest.raises(ConnectionClosedError):
                await client.next_batch()
        await client.close()


def test_references_are_reached_as_the_server_was() -> None:
    address = Address("wss", "here", 1, "/path")
    assert parse_references("there there:2 [::1]:3 x:y :4", address) == [
        Address("wss", "there", 1, "/path"),
        Address("wss", "there", 2, "/path"),
        Address("wss", "::1", 3, "/path"),
    ]
    assert parse_references("there", Address("unix", "", 0, "/run/x")) == []


# Standard streams -------------------------------------------------------------------------------------


async def _collected(data: list[bytes]) -> list[bytes]:
    """The lines of what is written to a pipe, a piece at a time."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", buffering=0) as sink:
        feeding = asyncio.get_running_loop().run_in_executor(None, _feed, sink, data)
        lines = [line async for some in lines_of(source) for line in some]
        await feeding
    return lines


def _feed(sink: object, data: list[bytes]) -> None:
    for piece in data:
        sink.write(piece)  # type: ignore[attr-defined]
    sink.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([b""], []),
        ([b"a\n\nb\r\nc"], [b"a", b"", b"b\r", b"c"]),
        ([b"be", b"gun\nend\n"], [b"begun", b"end"]),
        ([b"x" * 200_000, b"\n"], [b"x" * 200_000]),
    ],
)
async def test_lines_come_whole(data: list[bytes], expected: list[bytes]) -> None:
    assert await _collected(data) == expected


@pytest.mark.parametrize("read", [all_of, lines_of])
async def test_input_that_no_message_can_have_is_refused(
    monkeypatch: pytest.MonkeyPatch, read: Callable[..., object]
) -> None:
    monkeypatch.setattr(standard_streams, "REMAINING_LENGTH_MAX", 1_000)
    for size, is_taken in ((1_000, True), (1_001, False)):
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as source:
            os.write(writing, b"x" * size)
            os.close(writing)
            if is_taken:
                assert await _size_of(read(source)) == size
            else:
                with pytest.raises(MessageRefusedError, match="1,000"):
                    await _size_of(read(source))


async def _size_of(found: object) -> int:
    if hasattr(found, "__aiter__"):
        return sum([len(line) async for some in found for line in some])
    return len(await found)  # type: ignore[misc]


async def test_what_cannot_be_written_says_so() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    sink = os.fdopen(writing, "wb", buffering=0)
    with sink, OutputWriter(sink) as output, pytest.raises(BrokenPipeError):
        await output.write(b"x")
