"""The MQTT client for asyncio over a scripted server: what it keeps, says, follows and gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from eventually import soon
from fake_gateway import RawClient

from iotmq.errors import (
    ClientClosedError,
    ClientError,
    ConnectionClosedError,
    MessageRefusedError,
    SubscriptionError,
)
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt_client.address import Address
from iotmq.mqtt_client.client import MqttClient
from iotmq.mqtt_client.errors import ServerRefusedError
from iotmq.mqtt_client.settings import MqttClientSettings

PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(3, 8)


class Server:
    """Takes connections, and answers when the test says so."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[RawClient] = asyncio.Queue()
        self._server: asyncio.Server
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._arrived.put_nowait(RawClient(reader, writer))

    def settings(self, **fields: Any) -> MqttClientSettings:
        quick = {"reconnect_min_s": 0.001, "reconnect_max_s": 0.01}
        return MqttClientSettings(address=Address(port=self.port), client_id="c", **(quick | fields))

    async def next(self) -> tuple[RawClient, packets.Connect]:
        """The next connection, with its CONNECT."""
        async with asyncio.timeout(10):
            peer = await self._arrived.get()
        first, body = await peer.packet()
        assert first == packets.CONNECT << 4
        return peer, packets.decode_connect(body)

    async def take(self, *, is_resumed: bool = False, **properties: Any) -> RawClient:
        """The next connection, taken."""
        peer, _ = await self.next()
        told = Properties(**properties)
        peer.send(packets.encode_connack(0, session_present=is_resumed, properties=told))
        return peer

    async def refuse(self, code: int, **properties: Any) -> None:
        peer, _ = await self.next()
        peer.send(packets.encode_connack(code, session_present=False, properties=Properties(**properties)))
        peer.close()

    async def close(self) -> None:
        self._server.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    one = Server()
    await one.start()
    yield one
    await one.close()


async def opened(server: Server, client: MqttClient, **properties: Any) -> RawClient:
    """The server's end of a client that is started."""
    _, peer = await asyncio.gather(client.start(), server.take(**properties))
    return peer


async def end(client: MqttClient, peer: RawClient) -> None:
    """Close the client, whose server closes, too."""
    closing = asyncio.ensure_future(client.close())
    while (await peer.packet())[0] >> 4 != packets.DISCONNECT:
        pass
    peer.close()
    await closing


def suback(body: bytes, *codes: int) -> bytes:
    return packets.encode_suback(int.from_bytes(body[:2], "big"), codes, NO_PROPERTIES)


def publish(payload: bytes, qos: int = 0, packet_id: int = 0, **fields: Any) -> bytes:
    return packets.encode_publish(
        "t", payload, qos=qos, packet_id=packet_id, properties=NO_PROPERTIES, **fields
    )


async def test_a_close_that_is_cancelled_ends_so_and_drops_the_connection(server: Server) -> None:
    client = MqttClient(server.settings())
    peer = await opened(server, client)
    closing = asyncio.ensure_future(client.close())
    # The first turn of the loop: the task that reconnects is asked to end, and waited for.
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(ClientClosedError):
        await client.publish("t", b"x", qos=1)
    async with asyncio.timeout(10):
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await peer.packet()


async def test_publish_returns_with_the_acknowledgement(server: Server) -> None:
    client = MqttClient(server.settings())
    peer = await opened(server, client)
    publishing = asyncio.ensure_future(client.publish("t", b"x", qos=1))
    first, _ = await peer.packet()
    assert first == PUBLISH << 4 | 2
    assert not publishing.done()
    peer.send(packets.encode_acknowledgement(PUBACK, 1))
    await publishing
    publishing = asyncio.ensure_future(client.publish("t", b"x", qos=1))
    await peer.packet()
    peer.send(packets.encode_acknowledgement(PUBACK, 2, 0x87))
    with pytest.raises(ServerRefusedError, match="t: not authorized") as refused:
        await publishing
    assert refused.value.code == 0x87
    await end(client, peer)


async def test_what_cannot_be_published_is_refused_here(server: Server) -> None:
    client = MqttClient(server.settings())
    peer = await opened(server, client, qos_max=1)
    for topic in ("", "a/+", "#", "x" * 65_536):
        with pytest.raises(MessageRefusedError):
            await client.publish(topic, b"")
    with pytest.raises(MessageRefusedError, match="QoS 1"):
        await client.publish("t", b"", qos=2)
    await end(client, peer)


async def test_qos_2_goes_on_in_the_next_connection(server: Server) -> None:
    said: list[str] = []
    client = MqttClient(server.settings(session_expiry_s=60), on_change=said.append)
    peer = await opened(server, client)
    publishing = [asyncio.ensure_future(client.publish("t", b"%d" % number, qos=2)) for number in range(2)]
    await peer.packet()
    await peer.packet()
    peer.send(packets.encode_acknowledgement(PUBREC, 1))
    assert (await peer.packet())[0] >> 4 == PUBREL
    peer.abort()
    peer, connect = await server.next()
    assert (connect.clean_session, connect.client_id, connect.properties.session_expiry_s) == (False, "c", 60)
    peer.send(packets.encode_connack(0, session_present=True, properties=NO_PROPERTIES))
    assert await peer.packet() == (PUBREL << 4 | 2, b"\0\1")
    first, body = await peer.packet()
    assert (first, body[3:5], body[6:]) == (PUBLISH << 4 | 8 | 4, b"\0\2", b"1")
    peer.send(packets.encode_acknowledgement(PUBCOMP, 1), packets.encode_acknowledgement(PUBREC, 2))
    await peer.packet()
    peer.send(packets.encode_acknowledgement(PUBCOMP, 2))
    await asyncio.gather(*publishing)
    await client.drain()
    assert [text.rpartition("; ")[2] for text in said] == ["connecting again", "connected again"]
    await end(client, peer)


async def test_filters_are_subscribed_again_where_the_server_has_no_session(server: Server) -> None:
    client = MqttClient(server.settings())
    peer = await opened(server, client)
    asking = asyncio.ensure_future(client.subscribe(("a", 1), ("b", 0), ("c", 2)))
    _, body = await peer.packet()
    peer.send(suback(body, 1, 0x87, 2))
    with pytest.raises(SubscriptionError, match="b: not authorized"):
        await asking
    leaving = asyncio.ensure_future(client.unsubscribe("c"))
    _, body = await peer.packet()
    peer.send(packets.encode_unsuback(int.from_bytes(body[:2], "big"), [0], NO_PROPERTIES))
    assert await leaving == (0,)
    peer.abort()
    peer = await server.take()
    first, body = await peer.packet()
    assert first >> 4 == packets.SUBSCRIBE
    assert packets.decode_subscribe(body, 5).subscriptions == (("a", 1),)
    peer.send(suback(body, 1))
    # A session that is there has them.
    peer.abort()
    peer = await server.take(is_resumed=True)
    publishing = asyncio.ensure_future(client.publish("t", b""))
    assert (await peer.packet())[0] >> 4 == PUBLISH
    await publishing
    await end(client, peer)


async def take_back_in_pages(server: Server, client: MqttClient, count: int) -> tuple[RawClient, bytes]:
    """A server without the session of a client with `count` filters; with the body of the first SUBSCRIBE."""
    peer = await opened(server, client)
    asking = asyncio.ensure_future(client.subscribe(*((f"f{number}", 1) for number in range(count))))
    peer.send(suback((await peer.packet())[1], *[1] * count))
    await asking
    peer.abort()
    peer = await server.take()
    first, body = await peer.packet()
    assert first >> 4 == packets.SUBSCRIBE
    return peer, body


async def test_what_was_left_while_filters_are_subscribed_again_stays_left(server: Server) -> None:
    client = MqttClient(server.settings())
    peer, body = await take_back_in_pages(server, client, 103)
    # All of these stand behind the first hundred.
    leaving = asyncio.ensure_future(client.unsubscribe("f100"))
    first, unsubscribe = await peer.packet()
    assert first >> 4 == packets.UNSUBSCRIBE
    peer.send(packets.encode_unsuback(int.from_bytes(unsubscribe[:2], "big"), [0], NO_PROPERTIES))
    await leaving
    changing = asyncio.ensure_future(client.subscribe(("f101", 0)))
    peer.send(suback((await peer.packet())[1], 0))
    await changing
    peer.send(suback(body, *[1] * 100))
    _, body = await peer.packet()
    assert packets.decode_subscribe(body, 5).subscriptions == (("f102", 1),)
    peer.send(suback(body, 1))
    await end(client, peer)


async def test_filters_that_are_too_many_for_a_packet_of_the_server_are_subscribed_again_in_several(
    server: Server,
) -> None:
    said: list[str] = []
    client = MqttClient(server.settings(), on_change=said.append)
    peer = await opened(server, client)
    filters = [*(f"{number}/{'x' * 50}" for number in range(4)), "y" * 200, "#"]
    for topic_filter in filters:
        asking = asyncio.ensure_future(client.subscribe((topic_filter, 1)))
        peer.send(suback((await peer.packet())[1], 1))
        await asking
    peer.abort()
    peer = await server.take(packet_bytes_max=130, are_wildcards_available=0)
    found: list[str] = []
    while len(found) < 4:
        _, body = await peer.packet()
        some = packets.decode_subscribe(body, 5).subscriptions
        found += [name for name, _ in some]
        peer.send(suback(body, *[1] * len(some)))
    assert found == filters[:4]
    await soon(lambda: len(said) == 4, "what the server does not take")
    assert said[2].startswith("y" * 200)
    assert said[3].startswith("#: ")
    await client.publish("t", b"", qos=0)
    await end(client, peer)


async def test_a_question_is_asked_again_when_its_connection_is_lost(server: Server) -> None:
    client = MqttClient(server.settings())
    peer = await opened(server, client)
    asking = asyncio.ensure_future(client.subscribe(("a", 1)))
    await peer.packet()
    peer.abort()
    peer = await server.take()
    _, body = await peer.packet()
    peer.send(suback(body, 1))
    assert await asking == (1,)
    await end(client, peer)


async def test_a_batch_is_acknowledged_with_the_next_one(server: Server) -> None:
    client = MqttClient(server.settings())
    peer = await opened(server, client)
    peer.send(publish(b"1", 1, 1), publish(b"2", 2, 2), publish(b"3"))
    assert [message.payload for message in await client.next_batch(1)] == [b"1"]
    rest = asyncio.ensure_future(client.next_batch())
    assert [message.payload for message in await rest] == [b"2", b"3"]
    assert await peer.packet() == (PUBACK << 4, b"\0\1")
    client.acknowledge()
    assert await peer.packet() == (PUBREC << 4, b"\0\2")
    await end(client, peer)


async def test_messages_come_one_by_one(server: Server) -> None:
    client = MqttClient(server.settings())
    peer = await opened(server, client)
    peer.send(publish(b"1"), publish(b"2"))
    got = []
    async for message in client.messages():
        got.append(message.payload)
        if len(got) == 2:
            break
    assert got == [b"1", b"2"]
    await end(client, peer)


async def test_a_server_whose_messages_nobody_takes_is_not_read(server: Server) -> None:
    """And is heard again once they are taken, with nothing lost."""
    client = MqttClient(server.settings(unread_bytes_max=100_000))
    peer = await opened(server, client)
    count = 5_000
    sending = asyncio.ensure_future(
        _send_all(peer, [publish(b"%d" % n + b"." * 2_000) for n in range(count)])
    )
    transport = client._connection._link  # type: ignore[union-attr]
    await soon(lambda: not transport.is_reading(), "reading is paused")  # type: ignore[union-attr]
    got: list[bytes] = []
    while len(got) < count:
        got += [message.payload.partition(b".")[0] for message in await client.next_batch()]
    assert got == [b"%d" % number for number in range(count)]
    await sending
    await end(client, peer)


async def _send_all(peer: RawClient, data: list[bytes]) -> None:
    for one in data:
        peer.send(one)
        await peer._writer.drain()


@pytest.mark.parametrize("code", [0x86, 0x87, 0x85, 0x84])
async def test_a_first_connection_that_is_refused_raises(server: Server, code: int) -> None:
    client = MqttClient(server.settings())
    with pytest.raises(ServerRefusedError) as refused:
        await asyncio.gather(client.start(), server.refuse(code))
    assert refused.value.code == code


async def test_a_refusal_that_time_may_cure_is_tried_again_and_others_are_not(server: Server) -> None:
    client = MqttClient(server.settings())
    peer = await opened(server, client)
    waiting = asyncio.ensure_future(client.next_batch())
    publishing = asyncio.ensure_future(client.publish("t", b"", qos=1))
    await peer.packet()
    peer.abort()
    await server.refuse(0x89)
    await server.refuse(0x88)
    await server.refuse(0x87)
    for future in (waiting, publishing):
        with pytest.raises(ServerRefusedError, match="not authorized"):
            await future
    await client.close()


async def test_who_was_taken_over_stays_away(server: Server) -> None:
    client = MqttClient(server.settings())
    peer = await opened(server, client)
    peer.send(packets.encode_disconnect(0x8E))
    with pytest.raises(ServerRefusedError, match="session taken over"):
        await client.next_batch()
    await client.close()


async def test_without_reconnecting_a_lost_connection_is_the_end(server: Server) -> None:
    client = MqttClient(server.settings(reconnects=False))
    peer = await opened(server, client)
    peer.abort()
    with pytest.raises(ConnectionClosedError):
        await client.next_batch()
    await client.close()


@pytest.mark.parametrize(("code", "is_for_good"), [(0x9C, False), (0x9D, True)])
async def test_a_server_that_sends_us_elsewhere_is_followed(
    server: Server, code: int, is_for_good: bool
) -> None:
    other = Server()
    await other.start()
    client = MqttClient(server.settings())
    peer = await opened(server, client)
    peer.send(packets.encode_disconnect(code, Properties(server_reference=f"127.0.0.1:{other.port}")))
    peer = await other.take()
    await soon(lambda: client.is_connected, "connected there")
    peer.abort()
    peer = await (other if is_for_good else server).take()
    await soon(lambda: client.is_connected, "connected again")
    await end(client, peer)
    await other.close()


async def test_a_closed_client_says_so_to_everybody(server: Server) -> None:
    client = MqttClient(server.settings())
    peer = await opened(server, client)
    publishing = asyncio.ensure_future(client.publish("t", b"", qos=1))
    waiting = asyncio.ensure_future(client.next_batch())
    await peer.packet()
    await end(client, peer)
    for future in (publishing, waiting):
        with pytest.raises(ClientClosedError):
            await future
    with pytest.raises(ClientClosedError):
        await client.publish("t", b"")


async def test_a_server_that_does_not_answer_is_given_up(server: Server) -> None:
    client = MqttClient(server.settings(connect_timeout_s=0.05))
    with pytest.raises(ConnectionClosedError, match=r"within|answer"):
        await client.start()


async def test_nobody_there() -> None:
    gone = Server()
    await gone.start()
    settings = gone.settings()
    await gone.close()
    with pytest.raises(ConnectionClosedError, match=str(gone.port)):
        await MqttClient(settings).start()


async def test_an_empty_client_id_is_assigned_once(server: Server) -> None:
    client = MqttClient(
        MqttClientSettings(address=Address(port=server.port), client_id="", reconnect_min_s=0.001)
    )
    peer = await opened(server, client, assigned_client_id="given")
    peer.abort()
    peer, connect = await server.next()
    assert connect.client_id == "given"
    peer.send(packets.encode_connack(0, session_present=False, properties=NO_PROPERTIES))
    await soon(lambda: client.is_connected, "connected again")
    await end(client, peer)


class Password:
    """An authentication method of two steps."""

    method = "TWO-STEPS"

    def __init__(self, word: bytes) -> None:
        self._word = word

    def first(self) -> bytes | None:
        return b"first"

    def answer(self, data: bytes) -> bytes:
        if data != b"challenge":
            raise ClientError("another challenge")
        return self._word

    def finish(self, data: bytes) -> None:
        if data != b"proof":
            raise ClientError("the server does not know the password")


@pytest.mark.parametrize(
    ("challenge", "proof", "expected"),
    [(b"challenge", b"proof", None), (b"x", b"proof", "another"), (b"challenge", b"x", "does not know")],
)
async def test_enhanced_authentication(
    server: Server, challenge: bytes, proof: bytes, expected: str | None
) -> None:
    client = MqttClient(server.settings(authenticator=lambda: Password(b"word")))

    async def serve() -> RawClient:
        peer, connect = await server.next()
        assert connect.properties.authentication_method == "TWO-STEPS"
        assert connect.properties.authentication_data == b"first"
        told = Properties(authentication_method="TWO-STEPS", authentication_data=challenge)
        peer.send(packets.encode_auth(0x18, told))
        if challenge != b"challenge":
            return peer
        first, body = await peer.packet()
        assert first == packets.AUTH << 4
        assert packets.decode_auth(body) == packets.Auth(0x18, "TWO-STEPS", b"word")
        told = Properties(authentication_method="TWO-STEPS", authentication_data=proof)
        peer.send(packets.encode_connack(0, session_present=False, properties=told))
        return peer

    starting = asyncio.ensure_future(client.start())
    peer = await serve()
    if expected is None:
        await starting
        await end(client, peer)
    else:
        with pytest.raises(ClientError, match=expected):
            await starting


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: MqttClientSettings(in_flight_max=0),
        lambda: MqttClientSettings(in_flight_max=65_536),
        lambda: MqttClientSettings(receive_max=0),
        lambda: MqttClientSettings(receive_max=65_536),
        lambda: MqttClientSettings(keep_alive_s=65_536),
        lambda: MqttClientSettings(protocol_level=4, password=b"x"),
        lambda: MqttClientSettings(protocol_level=3, client_id=""),
        lambda: MqttClientSettings(protocol_level=4, client_id="", clean_session=False),
        lambda: MqttClientSettings(protocol_level=4, authenticator=lambda: Password(b"")),
    ],
)
def test_settings_out_of_range_are_refused(wrong: Callable[[], MqttClientSettings]) -> None:
    with pytest.raises(ClientError):
        wrong()
