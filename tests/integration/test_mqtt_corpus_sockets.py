"""The corpora of good and malformed packets against a front end's listeners, each transport alike.

All through one front end, many connections at once: what one of them does wrong is nobody else's business.
Of what is made from tables TCP gets everything, and the others a part; all get everything with
IOTMQ_MQTT_CORPUS=all, as `make fuzz` has it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from fake_gateway import RawClient, ScriptedGateway
from mqtt_cases import VERSIONS, Version, check_told
from mqtt_core import feed
from mqtt_corpus import CONNECT, Case
from mqtt_transports import Transport

from iotmq.limits import MQTT_PACKET_BYTES_MAX
from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.server import MqttFront

pytestmark = pytest.mark.uvloop

CONNECTIONS_AT_ONCE = 32
# Of what is made from tables every nth, where not everything is sent.
MADE_STEP = 11


@pytest.fixture
async def front(transport: Transport) -> AsyncIterator[MqttFront]:
    gateway = ScriptedGateway()
    gateway.automatic = 0
    async with transport.front(gateway) as front:
        yield front


Dial = Callable[[], Awaitable[RawClient]]


@pytest.fixture
def dial(transport: Transport, front: MqttFront) -> Dial:
    return lambda: transport.dial(front)


class Run:
    """Plays cases against one front end and judges what comes back."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._room = asyncio.Semaphore(CONNECTIONS_AT_ONCE)

    async def play(self, version: Version, cases: Sequence[Case], *, is_byte_by_byte: bool) -> None:
        """All of them, and a device beside them that is served all the while."""
        witness = await self._dial()
        witness.send(CONNECT.replace(b"device-1", b"watching"))
        assert await witness.packet() == (packets.CONNACK << 4, b"\0\0")
        async with asyncio.TaskGroup() as group:
            for number, case in enumerate(cases):
                group.create_task(self._play_one(version, case, number, is_byte_by_byte))
        await witness.ping()
        witness.close()

    async def _play_one(self, version: Version, case: Case, number: int, is_byte_by_byte: bool) -> None:
        # Each has a client id of its own, or they would end each other.
        name = b"%08d" % number
        stream = version.stream(case).replace(b"device-1", name)
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
            await self._judge(client, case, stream)

    async def _judge(self, client: RawClient, case: Case, stream: bytes) -> None:
        if case.reason is None:
            client.send(packets.PINGREQ_PACKET)
            while True:
                first, body = await client.packet()
                assert first >> 4 != packets.DISCONNECT, (case.name, body)
                if first >> 4 == packets.PINGRESP:
                    break
            client.abort()
            return
        check_told(case, stream, await client.rest())
        client.close()


@pytest.mark.parametrize("is_byte_by_byte", [False, True], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("version", VERSIONS[1:], ids=lambda version: version.name)
async def test_every_case_ends_or_goes_on_as_specified(
    transport: Transport, dial: Dial, version: Version, is_byte_by_byte: bool
) -> None:
    is_whole = "IOTMQ_MQTT_CORPUS" in os.environ or (transport.name == "tcp" and not is_byte_by_byte)
    made = [case for cases in version.made.values() for case in cases][:: 1 if is_whole else MADE_STEP]
    await Run(dial).play(version, [*version.named, *made], is_byte_by_byte=is_byte_by_byte)


@pytest.mark.parametrize("version", VERSIONS[1:], ids=lambda version: version.name)
async def test_a_stream_that_breaks_off_anywhere_is_a_lost_connection(
    transport: Transport, dial: Dial, front: MqttFront, version: Version
) -> None:
    """Every truncation of everything that is right, after which the peer goes."""
    room = asyncio.Semaphore(CONNECTIONS_AT_ONCE)
    ends_max = 100 if transport.name == "tcp" else 10

    async def break_off(stream: bytes) -> None:
        async with room:
            client = await dial()
            client.send(stream)
            client.close()

    async with asyncio.TaskGroup() as group:
        for number, case in enumerate(version.good):
            whole = version.stream(case).replace(b"device-1", b"%08d" % number)
            begin = 0 if case.is_first else len(version.connect)
            for end in range(begin, len(whole), max(1, len(whole) // ends_max)):
                group.create_task(break_off(whole[:end]))
    witness = await dial()
    witness.send(version.connect)
    assert (await witness.packet())[0] == packets.CONNACK << 4
    await witness.ping()
    metrics = [metric for metric in front.metrics() if metric.name == "iotmq_mqtt_closed_total"]
    ended = {dict(metric.labels)["reason"] for metric in metrics}
    # One that is gone may be noticed when the next one has its client id.
    assert ended <= {"connection_lost", "normal", "session_taken_over"}, "breaking off is no fault"
