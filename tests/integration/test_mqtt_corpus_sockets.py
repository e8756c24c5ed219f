"""The corpora of good and malformed packets against a front end's listeners, each transport alike.

All through one front end, many connections at once: what one of them does wrong is nobody else's business.
Of what is made from tables TCP gets everything, and the others a part; all get everything with
IOTMQ_MQTT_CORPUS=all, as `make fuzz` has it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import mqtt5_corpus
import mqtt_corpus
import pytest
import uvloop
from fake_gateway import RawClient, ScriptedGateway, split_output
from mqtt_core import feed
from mqtt_corpus import Case
from mqtt_malformed import MALFORMED_5, MALFORMED_311
from mqtt_transports import TRANSPORTS, Files, Transport, make_files, usable

from iotmq.limits import MQTT_PACKET_BYTES_MAX
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.mqtt import MqttSettings

CONNECTIONS_AT_ONCE = 32
# Of what is made from tables every nth, where not everything is sent.
MADE_STEP = 11


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy()


@pytest.fixture(params=TRANSPORTS, ids=lambda transport: transport.name)
def transport(request: pytest.FixtureRequest) -> Transport:
    return usable(request.param)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files | None:
    return make_files(tmp_path_factory)


@pytest.fixture
async def front(transport: Transport, files: Files | None) -> AsyncIterator[MqttFront]:
    gateway = ScriptedGateway()
    gateway.automatic = 0
    front = MqttFront(MqttSettings(listen_port=0, **transport.settings(files)), gateway)
    await front.start()
    yield front
    await front.stop()


Dial = Callable[[], Awaitable[RawClient]]


@pytest.fixture
def dial(transport: Transport, front: MqttFront, files: Files | None) -> Dial:
    return lambda: transport.dial(transport.port(front), files)


class Run:
    """Plays cases against one front end and judges what comes back."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._room = asyncio.Semaphore(CONNECTIONS_AT_ONCE)

    async def play(self, first: bytes, cases: Sequence[Case], *, is_byte_by_byte: bool) -> None:
        """All of them, and a device beside them that is served all the while."""
        witness = await self._dial()
        witness.send(mqtt_corpus.CONNECT.replace(b"device-1", b"watching"))
        assert await witness.packet() == (packets.CONNACK << 4, b"\0\0")
        async with asyncio.TaskGroup() as group:
            for number, case in enumerate(cases):
                group.create_task(self._play_one(first, case, number, is_byte_by_byte))
        await witness.ping()
        witness.close()

    async def _play_one(self, first: bytes, case: Case, number: int, is_byte_by_byte: bool) -> None:
        # Each has a client id of its own, or they would end each other.
        name = b"%08d" % number
        stream = (case.stream if case.is_first else first + case.stream).replace(b"device-1", name)
        async with self._room:
            client = await self._dial()
            client.wait_s = 30.0
            if is_byte_by_byte:
                # Not past the end: what nobody reads resets the connection, and takes the answer with it.
                pieces = [stream[at : at + 1] for at in range(len(stream))]
                for piece in pieces[: feed(pieces, packet_bytes_max=MQTT_PACKET_BYTES_MAX).chunks_taken + 1]:
                    client.send(piece)
                    await asyncio.sleep(0)
            else:
                client.send(stream)
            await self._judge(client, case, is_v5=self._is_v5(first, case))

    def _is_v5(self, first: bytes, case: Case) -> bool:
        stream = case.stream if case.is_first else first
        return packets.answer_level(split_first(stream)) == packets.PROTOCOL_LEVEL_5

    async def _judge(self, client: RawClient, case: Case, *, is_v5: bool) -> None:
        if case.reason is None:
            client.send(packets.PINGREQ_PACKET)
            while True:
                first, body = await client.packet()
                assert first >> 4 != packets.DISCONNECT, (case.name, body)
                if first >> 4 == packets.PINGRESP:
                    break
            client.abort()
            return
        told = split_output(await client.rest())
        assert all(first >> 4 != packets.PUBLISH for first, _ in told), case.name
        codes = [body[0] for first, body in told if first >> 4 == packets.DISCONNECT]
        refusals = [body[1] for first, body in told if first >> 4 == packets.CONNACK and body[1]]
        if case.reason == reason_codes.NORMAL:
            assert codes == refusals == [], case.name
        elif is_v5 and case.is_first:
            assert (codes, refusals) == ([], [case.reason.v5_code]), case.name
        elif is_v5:
            assert (codes, refusals) == ([case.reason.v5_code], []), case.name
        else:
            assert codes == [], case.name
            wanted = case.reason.connack_code if case.is_first else None
            assert refusals == ([] if wanted is None else [wanted]), case.name
        client.close()


def split_first(stream: bytes) -> bytes:
    """The body of the first packet, as far as it is there, behind one to four bytes of length."""
    at = 1
    while at < min(5, len(stream)) and stream[at] & 0x80:
        at += 1
    return stream[at + 1 :] if stream[0] >> 4 == packets.CONNECT else b""


@pytest.mark.parametrize("is_byte_by_byte", [False, True], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("version", ["3.1.1", "5"])
async def test_every_case_ends_or_goes_on_as_specified(
    transport: Transport, dial: Dial, version: str, is_byte_by_byte: bool
) -> None:
    is_whole = "IOTMQ_MQTT_CORPUS" in os.environ or (transport.name == "tcp" and not is_byte_by_byte)
    first = mqtt5_corpus.CONNECT5 if version == "5" else mqtt_corpus.CONNECT
    named = mqtt5_corpus.CORPUS if version == "5" else mqtt_corpus.CORPUS
    made = [case for cases in (MALFORMED_5 if version == "5" else MALFORMED_311).values() for case in cases]
    await Run(dial).play(
        first, [*named, *made[:: 1 if is_whole else MADE_STEP]], is_byte_by_byte=is_byte_by_byte
    )


@pytest.mark.parametrize("version", ["3.1.1", "5"])
async def test_a_stream_that_breaks_off_anywhere_is_a_lost_connection(
    transport: Transport, dial: Dial, front: MqttFront, version: str
) -> None:
    """Every truncation of everything that is right, after which the peer goes."""
    named = mqtt5_corpus.VALID if version == "5" else mqtt_corpus.CORPUS
    first = mqtt5_corpus.CONNECT5 if version == "5" else mqtt_corpus.CONNECT
    room = asyncio.Semaphore(CONNECTIONS_AT_ONCE)
    ends_max = 100 if transport.name == "tcp" else 10

    async def break_off(stream: bytes) -> None:
        async with room:
            client = await dial()
            client.send(stream)
            client.close()

    async with asyncio.TaskGroup() as group:
        for number, case in enumerate(case for case in named if case.reason is None):
            whole = case.stream if case.is_first else first + case.stream
            whole = whole.replace(b"device-1", b"%08d" % number)
            begin = 0 if case.is_first else len(first)
            for end in range(begin, len(whole), max(1, len(whole) // ends_max)):
                group.create_task(break_off(whole[:end]))
    witness = await dial()
    witness.send(first)
    assert (await witness.packet())[0] == packets.CONNACK << 4
    await witness.ping()
    metrics = [metric for metric in front.metrics() if metric.name == "iotmq_mqtt_closed_total"]
    ended = {dict(metric.labels)["reason"] for metric in metrics}
    # One that is gone may be noticed when the next one has its client id.
    assert ended <= {"connection_lost", "normal", "session_taken_over"}, "breaking off is no fault"
