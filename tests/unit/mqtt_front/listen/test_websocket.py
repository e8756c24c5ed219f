"""MQTT in WebSockets: the opening handshake, frames, what breaks a rule, and how a connection ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus
from typing import Any

import pytest
from eventually import soon
from fake_gateway import connect_packet
from front_site import Site, running, tick_quickly
from multidict import CIMultiDict
from websocket_peer import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, WebSocketPeer, frame, request

from iotmq import limits
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_front.listen import websocket
from iotmq.mqtt_front.listen.websocket_upgrade import Refusal, Upgrade, UpgradeRules, answer
from iotmq.mqtt_front.settings.listeners import CertificateSettings, ListenerSettings, websocket_places

CONNACK = bytes([packets.CONNACK << 4, 2, 0, 0])
PINGRESP = bytes([packets.PINGRESP << 4, 0])
CONNECT = connect_packet("d")


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    tick_quickly(monkeypatch)


def listening(**settings: Any) -> tuple[ListenerSettings, ...]:
    return (ListenerSettings(name="web", transport="ws", **settings),)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running(listeners=listening()) as site:
        site.gateway.automatic = 0
        yield site


def port(site: Site) -> int:
    return int(site.front.addresses["web"].rpartition(":")[2])


async def connected(site: Site, packet: bytes = CONNECT) -> WebSocketPeer:
    """With an open session."""
    peer = await WebSocketPeer.connect(port(site))
    peer.send(frame(packet))
    opcode, payload = await peer.frame()
    assert (opcode, payload[0] >> 4, payload[3]) == (BINARY, packets.CONNACK, 0)
    return peer


def publish(number: int, payload: bytes = b"x") -> bytes:
    return packets.encode_publish("t", payload, qos=1, packet_id=number)


def errors(site: Site, code: int) -> float:
    return site.number("iotmq_mqtt_websocket_errors_total", listener="web", code=str(code))


# The request


def headers(**changed: str | None) -> CIMultiDict[str]:
    named = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
    } | {name.replace("_", "-"): value for name, value in changed.items()}
    return CIMultiDict({name: value for name, value in named.items() if value is not None})


RULES = UpgradeRules("/mqtt", frozenset(), is_subprotocol_required=True)


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("mqtt", "mqtt"),
        ("mqttv3.1", "mqttv3.1"),
        ("mqttv3.1, mqtt", "mqtt"),
        ("chat,\tmqtt", "mqtt"),
    ],
)
def test_the_subprotocol_that_is_chosen(offered: str, chosen: str) -> None:
    """[MQTT-6.0.0-3] and [MQTT-6.0.0-4]."""
    assert answer(RULES, b"/mqtt", headers(Sec_WebSocket_Protocol=offered)) == Upgrade(chosen)


@pytest.mark.parametrize(
    ("path", "changed", "status"),
    [
        (b"/", {}, HTTPStatus.NOT_FOUND),
        (b"/mqtt/", {}, HTTPStatus.NOT_FOUND),
        (b"/MQTT", {}, HTTPStatus.NOT_FOUND),
        (b"/\xff", {}, HTTPStatus.NOT_FOUND),
        (b"/mqtt", {"Upgrade": "h2c"}, HTTPStatus.UPGRADE_REQUIRED),
        (b"/mqtt", {"Upgrade": None}, HTTPStatus.UPGRADE_REQUIRED),
        (b"/mqtt", {"Connection": "keep-alive"}, HTTPStatus.UPGRADE_REQUIRED),
        (b"/mqtt", {"Sec_WebSocket_Version": "8"}, HTTPStatus.UPGRADE_REQUIRED),
        (b"/mqtt", {"Sec_WebSocket_Version": None}, HTTPStatus.UPGRADE_REQUIRED),
        (b"/mqtt", {"Sec_WebSocket_Protocol": None}, HTTPStatus.BAD_REQUEST),
        (b"/mqtt", {"Sec_WebSocket_Protocol": "chat"}, HTTPStatus.BAD_REQUEST),
        (b"/mqtt", {"Sec_WebSocket_Protocol": "MQTT"}, HTTPStatus.BAD_REQUEST),
    ],
)
def test_requests_that_are_refused(path: bytes, changed: dict[str, str | None], status: HTTPStatus) -> None:
    judged = answer(RULES, path, headers(**changed))
    assert isinstance(judged, Refusal)
    assert judged.status == status


@pytest.mark.parametrize("connection", ["upgrade", "keep-alive, Upgrade", "UPGRADE"])
def test_requests_as_browsers_make_them(connection: str) -> None:
    assert answer(RULES, b"/mqtt?token=1", headers(Connection=connection, Origin="https://a")) == Upgrade(
        "mqtt"
    )


def test_a_client_without_a_subprotocol_may_be_let_in() -> None:
    rules = UpgradeRules("/mqtt", frozenset(), is_subprotocol_required=False)
    assert answer(rules, b"/mqtt", headers(Sec_WebSocket_Protocol=None)) == Upgrade(None)
    assert isinstance(answer(rules, b"/mqtt", headers(Sec_WebSocket_Protocol="chat")), Refusal)


def test_pages_of_other_origins_are_kept_out() -> None:
    rules = UpgradeRules("/mqtt", frozenset({"https://a.example"}), is_subprotocol_required=True)
    assert answer(rules, b"/mqtt", headers(Origin="https://A.example")) == Upgrade("mqtt")
    assert answer(rules, b"/mqtt", headers()) == Upgrade("mqtt")
    for origin in ("https://b.example", "null", "http://a.example"):
        judged = answer(rules, b"/mqtt", headers(Origin=origin))
        assert isinstance(judged, Refusal)
        assert judged.status == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("/other"), 404),
        (request(Sec_WebSocket_Protocol="chat"), 400),
        (request(Origin="https://b.example"), 403),
        (request(Sec_WebSocket_Version="8"), 426),
        (request(without=["Upgrade"]), 426),
        (request(key="short"), 400),
        (request(without=["Sec-WebSocket-Key"]), 400),
        (request(method="POST"), 400),
        (request(Content_Length="5"), 400),
        (request(Transfer_Encoding="chunked"), 400),
        (b"not http\r\n\r\n", 400),
        (b"GET /mqtt HTTP/1.1\r\nNoColon\r\n\r\n", 400),
        (b"GET /mqtt HTTP/1.1\r\nX: " + b"x" * limits.MQTT_WEBSOCKET_REQUEST_BYTES_MAX, 431),
    ],
)
async def test_a_refusal_says_why_and_is_counted(sent: bytes, status: int) -> None:
    async with running(listeners=listening(allowed_origins=("https://a.example",))) as site:
        other = await connected(site)
        peer = await WebSocketPeer.dial(port(site))
        peer.send(sent)
        answered, named = await peer.response()
        assert answered == status
        assert named["connection"] == "close"
        if b"Version: 8" in sent:
            assert named["sec-websocket-version"] == "13"
        await peer.reader.read()
        await site.gone("websocket_refused")
        assert site.number("iotmq_mqtt_websocket_refused_total", listener="web", status=str(status)) == 1
        other.send(frame(packets.PINGREQ_PACKET))
        assert await other.frame() == (BINARY, PINGRESP)


async def test_a_request_as_long_as_it_may_be_in_single_bytes(site: Site) -> None:
    sent = request(X="")
    sent = sent.replace(b"X: ", b"X: " + b"x" * (limits.MQTT_WEBSOCKET_REQUEST_BYTES_MAX - len(sent)))
    peer = await WebSocketPeer.dial(port(site))
    for at in range(len(sent) - 50, len(sent)):
        peer.send(sent[at : at + 1] if at > len(sent) - 50 else sent[: at + 1])
        await asyncio.sleep(0)
    assert (await peer.response())[0] == 101


async def test_frames_right_behind_the_request(site: Site) -> None:
    peer = await WebSocketPeer.dial(port(site))
    peer.send(request("/mqtt?who=d", Connection="keep-alive, Upgrade"), frame(CONNECT), frame(publish(1)))
    status, named = await peer.response()
    assert (status, named["sec-websocket-protocol"]) == (101, "mqtt")
    client = peer.mqtt()
    assert await client.packet() == (packets.CONNACK << 4, b"\0\0")
    assert await client.puback() == 1


@pytest.mark.parametrize("sent", [b"", b"GET /mqtt HTTP/1.1\r\n", request()])
async def test_the_time_for_the_request_and_connect(site: Site, sent: bytes) -> None:
    peer = await WebSocketPeer.dial(port(site))
    peer.send(sent)
    await soon(lambda: site.number("iotmq_mqtt_received_bytes_total") == len(sent), "it was read")
    await soon(lambda: site.number("iotmq_mqtt_connections") == 1, "it is open")
    await site.advance(limits.MQTT_CONNECT_TIMEOUT_S + 2)
    status, _ = await peer.response()
    if sent == request():
        assert status == 101
        assert await peer.closed() == 1008
    else:
        assert status == 408
    await site.gone("connect_timeout")


async def test_connections_past_the_limit_are_closed() -> None:
    async with running(listeners=listening(), connections_max=1) as site:
        first = await connected(site)
        past = await WebSocketPeer.connect(port(site))
        past.send(frame(CONNECT))
        assert await past.frame() == (BINARY, bytes([packets.CONNACK << 4, 2, 0, 3]))
        await past.closed()
        first.send(frame(packets.PINGREQ_PACKET))
        assert await first.frame() == (BINARY, PINGRESP)
        assert site.number("iotmq_mqtt_refused_total") == 1
        assert site.number("iotmq_mqtt_listener_connections", listener="web") == 1


# Frames


@pytest.mark.slow
async def test_packets_are_independent_of_frames(site: Site) -> None:
    """[MQTT-6.0.0-2]: any split of the packets over messages, fragments and pieces of the stream."""
    packet_bytes = b"".join(publish(number, b"%d" % number * number) for number in range(1, 60))
    random_split = random.Random(7)
    for round_number in range(30):
        peer = await WebSocketPeer.connect(port(site))
        stream, is_open = bytearray(frame(CONNECT)), False
        for piece in pieces(packet_bytes, random_split, longest=1 + round_number * 7):
            is_final = random_split.random() < 0.5
            mask = random_split.randbytes(4)
            opcode = CONTINUATION if is_open else BINARY
            stream += frame(piece, opcode=opcode, is_final=is_final, mask=mask)
            is_open = not is_final
            if random_split.random() < 0.1:
                stream += frame(b"p", opcode=PING)
        for piece in pieces(bytes(stream), random_split, longest=1 + round_number * 40):
            peer.send(piece)
            await asyncio.sleep(0)
        got, pongs = bytearray(), 0
        while len(got) < 4 + 59 * 4:
            opcode, payload = await peer.frame()
            pongs += opcode == PONG
            got += payload if opcode == BINARY else b""
        assert got == CONNACK + b"".join(
            packets.encode_acknowledgement(packets.PUBACK, number) for number in range(1, 60)
        )
        stored = [payload for handed in site.gateway.handed for payload in handed.payloads]
        assert stored == [b"%d" % number * number for number in range(1, 60)]
        site.gateway.handed.clear()
        peer.writer.close()


def pieces(data: bytes, choose: random.Random, *, longest: int) -> Sequence[bytes]:
    found, at = [], 0
    while at < len(data):
        size = choose.randint(0 if found else 1, longest)
        found.append(data[at : at + size])
        at += size
    return found


async def test_frames_of_one_byte_in_pieces_of_one_byte(site: Site) -> None:
    peer = await WebSocketPeer.connect(port(site))
    for byte in CONNECT + publish(1):
        for part in frame(bytes([byte])):
            peer.send(bytes([part]))
            await asyncio.sleep(0)
    client = peer.mqtt()
    assert await client.packet() == (packets.CONNACK << 4, b"\0\0")
    assert await client.puback() == 1


async def test_empty_frames_mean_nothing(site: Site) -> None:
    peer = await connected(site)
    peer.send(frame(b""), frame(b"", is_final=False), frame(b"", opcode=CONTINUATION))
    peer.send(frame(packets.PINGREQ_PACKET))
    assert await peer.frame() == (BINARY, PINGRESP)


async def test_what_a_turn_has_for_a_device_leaves_in_one_frame(site: Site) -> None:
    peer = await connected(site)
    peer.send(frame(b"".join(publish(number) for number in range(1, 200))))
    opcode, payload = await peer.frame()
    assert (opcode, len(payload)) == (BINARY, 199 * 4)


async def test_a_subscriber_gets_messages_of_any_size() -> None:
    async with running(listeners=listening()) as site:
        client = (await connected(site)).mqtt()
        assert await client.subscribe(("t", 0)) == [0]
        for size in (0, 100, 125, 126, 8_000, 9_000, 65_535, 65_536, 99_000):
            site.gateway.push("t", b"m" * size, "t", qos=0)
            # A small one right behind it: no frame's header may be mixed up with the next one's.
            site.gateway.push("t", b"small", "t", qos=0)
            assert await client.publish_received() == ("t", b"m" * size, 0)
            assert await client.publish_received() == ("t", b"small", 0)


async def test_a_frame_at_its_limit_and_past_it() -> None:
    async with running(listeners=listening(), packet_bytes_max=70_000) as site:
        site.gateway.automatic = 0
        peer = await connected(site)
        largest = publish(1, b"m" * (70_000 - 5))
        peer.send(frame(largest))
        assert await peer.frame() == (BINARY, packets.encode_acknowledgement(packets.PUBACK, 1))
        peer.send(frame(b"", length=b"\x7f" + (70_006).to_bytes(8)))
        assert await peer.closed() == 1009
        await site.gone("websocket_error")
        assert errors(site, 1009) == 1


async def test_large_frames_in_small_pieces(site: Site) -> None:
    peer = await connected(site)
    for number in (1, 2):
        data = frame(publish(number, b"m" * 95_000))
        for at in range(0, len(data), 10_000):
            peer.send(data[at : at + 10_000])
            await peer.writer.drain()
        assert await peer.frame() == (BINARY, packets.encode_acknowledgement(packets.PUBACK, number))


async def test_pings_are_answered(site: Site) -> None:
    peer = await connected(site)
    peer.send(frame(b"", opcode=PING), frame(b"p" * 125, opcode=PING), frame(b"late", opcode=PONG))
    assert await peer.frame() == (PONG, b"")
    assert await peer.frame() == (PONG, b"p" * 125)


async def test_many_pings_at_once_cost_few_answers(site: Site) -> None:
    """Each answer is a system call; the last ping is always answered."""
    peer = await connected(site)
    most = limits.MQTT_WEBSOCKET_PONGS_PER_READ_MAX
    for count, answered in ((most, most), (most + 1, most + 1), (150, most + 1)):
        # Small enough for one read.
        peer.send(b"".join(frame(b"%d" % number, opcode=PING) for number in range(count)))
        pongs = [await peer.frame() for _ in range(answered)]
        assert pongs == [(PONG, b"%d" % number) for number in [*range(answered - 1), count - 1]]
    peer.send(frame(packets.PINGREQ_PACKET))
    assert await peer.frame() == (BINARY, PINGRESP)


async def test_pings_are_no_sign_of_life_of_the_device(site: Site) -> None:
    peer = await connected(site, connect_packet("d", keep_alive_s=10))
    for _ in range(4):
        await site.advance(5)
        peer.send(frame(b"p", opcode=PING))
        assert await peer.frame() == (PONG, b"p")
    assert await peer.closed() == 1000
    await site.gone("keep_alive_timeout")


async def test_a_peer_that_never_reads_fills_no_memory_with_pongs(site: Site) -> None:
    peer = await connected(site)
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    ping = frame(b"p" * 125, opcode=PING) * 100
    before = site.number("iotmq_mqtt_received_bytes_total")
    sent = 0
    # Far more than what two sockets' buffers hold.
    for _ in range(2_000):
        peer.send(ping)
        sent += len(ping)
        await peer.writer.drain()
    await soon(lambda: site.number("iotmq_mqtt_received_bytes_total") - before == sent, "all of it was read")
    peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
    peer.send(frame(packets.PINGREQ_PACKET))
    pongs = 0
    while (await peer.frame())[0] == PONG:
        pongs += 1
    assert 0 < pongs < 200_000


async def test_a_subscriber_that_never_reads_has_bounded_memory_and_stops_nobody(site: Site) -> None:
    peer, other = await connected(site), (await connected(site, connect_packet("other"))).mqtt()
    assert await peer.mqtt().subscribe(("t", 0)) == [0]
    assert await other.subscribe(("t", 0)) == [0]
    peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(300):
        site.gateway.push("t", b"m" * 90_000, "t", qos=0)
        assert await other.publish_received() == ("t", b"m" * 90_000, 0)
    dropped = int(site.number("iotmq_mqtt_dropped_total"))
    assert 0 < dropped < 300
    peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
    client = peer.mqtt()
    for _ in range(300 - dropped):
        assert await client.publish_received() == ("t", b"m" * 90_000, 0)
    await client.ping()


# What breaks a rule


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(CONNECT, opcode=TEXT), 1003),  # [MQTT-6.0.0-1]
        (frame(b"", opcode=TEXT, is_final=False), 1003),
        (frame(CONNECT, mask=None), 1002),
        *[(frame(CONNECT, reserved=bit), 1002) for bit in (1, 2, 4)],
        *[(frame(b"", opcode=opcode), 1002) for opcode in (3, 7, 11, 15)],
        (frame(CONNECT, opcode=CONTINUATION), 1002),
        (frame(CONNECT[:5], is_final=False) + frame(CONNECT[5:]), 1002),
        (frame(b"", opcode=PING, is_final=False), 1002),
        (frame(b"x" * 126, opcode=PING), 1002),
        (frame(CONNECT, length=b"\x7e" + len(CONNECT).to_bytes(2)), 1002),
        (frame(CONNECT, length=b"\x7f" + len(CONNECT).to_bytes(8)), 1002),
        (frame(CONNECT, length=b"\x7f" + (1 << 63).to_bytes(8)), 1002),
        (frame(b"", length=b"\x7f" + (1 << 40).to_bytes(8)), 1009),
        (frame(b"\x03", opcode=CLOSE), 1002),
        *[
            (frame(code.to_bytes(2), opcode=CLOSE), 1002)
            for code in (0, 999, 1004, 1005, 1006, 1015, 2999, 5000)
        ],
        (frame((1000).to_bytes(2) + b"\xff", opcode=CLOSE), 1007),
    ],
)
async def test_a_broken_rule_closes_with_its_code_and_is_counted(site: Site, sent: bytes, code: int) -> None:
    other = await connected(site, connect_packet("other"))
    peer = await WebSocketPeer.connect(port(site))
    peer.send(sent)
    assert await peer.closed() == code
    await site.gone("websocket_error")
    assert errors(site, code) == 1
    other.send(frame(packets.PINGREQ_PACKET))
    assert await other.frame() == (BINARY, PINGRESP)


async def test_what_came_before_the_bad_frame_is_stored(site: Site) -> None:
    peer = await connected(site)
    peer.send(frame(publish(1)) + frame(b"text", opcode=TEXT) + frame(publish(2)))
    assert await peer.closed() == 1003
    assert [payload for handed in site.gateway.handed for payload in handed.payloads] == [b"x"]


async def test_a_packet_that_breaks_a_rule_of_mqtt(site: Site) -> None:
    version_5 = packets.encode_connect(
        packets.Connect("d", True, 0, None, None, None, protocol_level=5, properties=Properties())
    )
    peer = await connected(site, version_5)
    peer.send(frame(PINGRESP))
    opcode, payload = await peer.frame()
    assert (opcode, payload[0] >> 4, payload[2]) == (BINARY, packets.DISCONNECT, 0x82)
    assert await peer.closed() == 1008
    await site.gone("protocol_error")


# The end


@pytest.mark.parametrize("code", [b"", *[code.to_bytes(2) for code in (1000, 1001, 1011, 3000, 4999)]])
async def test_a_close_frame_is_answered(site: Site, code: bytes) -> None:
    peer = await connected(site)
    peer.send(frame(publish(1)) + frame(code, opcode=CLOSE) + frame(publish(2)) + frame(b"", opcode=PING))
    opcode, payload = await peer.frame()
    if opcode == BINARY:
        opcode, payload = await peer.frame()
    assert (opcode, payload[:2]) == (CLOSE, (1000).to_bytes(2))
    await peer.end()
    await site.gone("connection_lost")


async def test_disconnect_closes_normally(site: Site) -> None:
    peer = await connected(site)
    peer.send(frame(packets.DISCONNECT_PACKET))
    assert await peer.closed() == 1000
    await site.gone("normal")


async def test_a_will_when_the_connection_is_lost(site: Site) -> None:
    peer = await connected(site, connect_packet("d", will=packets.Will("w", b"gone", 1, False)))
    peer.writer.transport.abort()
    await site.gone("connection_lost")
    assert (await site.handed())[0].payloads == [b"gone"]


async def test_a_peer_that_does_not_answer_the_close_frame_is_dropped(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT_S", 0.05)
    peer = await connected(site)
    peer.send(frame(packets.DISCONNECT_PACKET))
    assert (await peer.frame())[0] == CLOSE
    await peer.end()
    await site.gone("normal")


async def test_a_taken_over_session_and_its_successor(site: Site) -> None:
    first = await connected(site)
    second = await connected(site)
    assert await first.closed() == 1000
    second.send(frame(packets.PINGREQ_PACKET))
    assert await second.frame() == (BINARY, PINGRESP)


async def test_a_stop_goes_away(site: Site) -> None:
    open_one, waiting = await connected(site), await WebSocketPeer.dial(port(site))
    await soon(lambda: site.number("iotmq_mqtt_connections") == 2, "both are open")
    closed = asyncio.create_task(open_one.closed())
    await site.stop()
    assert await closed == 1001
    assert (await waiting.response())[0] == 503


async def test_a_stop_reports_the_end_of_a_device_that_does_not_answer() -> None:
    async with running(listeners=listening(), audit_events=("disconnected",)) as site:
        site.gateway.automatic = 0
        await connected(site)
        await site.stop()
        assert site.number("iotmq_mqtt_connections") == 0
        assert len(site.gateway.own) == 1


# The turn


async def test_who_sends_without_pause_has_its_share_of_a_turn_only(site: Site) -> None:
    flood, quiet = await connected(site, connect_packet("flood")), await connected(site)
    data = frame(packets.encode_publish("t", b"m" * 1_000, qos=0)) * 200
    is_going_on = True

    async def send() -> None:
        while is_going_on:
            flood.send(data)
            await flood.writer.drain()

    sending = asyncio.create_task(send())
    for _ in range(50):
        quiet.send(frame(packets.PINGREQ_PACKET))
        assert await quiet.frame() == (BINARY, PINGRESP)
    is_going_on = False
    await sending


# Anything


async def test_damaged_traffic_harms_its_own_connection_only(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes changed, lost and repeated anywhere in a request and the frames behind it."""
    witness = await connected(site, connect_packet("witness"))
    choose = random.Random(11)
    room = asyncio.Semaphore(32)

    async def play(stream: bytes) -> None:
        async with room:
            peer = await WebSocketPeer.dial(port(site))
            peer.send(stream)
            if choose.random() < 0.5:
                peer.writer.transport.abort()
            else:
                peer.writer.write_eof()
                try:
                    await asyncio.wait_for(peer.reader.read(), 20)
                except ConnectionError:
                    pass
                peer.writer.close()

    async with asyncio.TaskGroup() as group:
        for number in range(300):
            frames = [
                frame(connect_packet(f"d{number}")),
                frame(publish(1) + publish(2), is_final=False),
                frame(b"ping", opcode=PING),
                frame(publish(3, b"m" * choose.choice((10, 200, 70_000))), opcode=CONTINUATION),
                frame((1000).to_bytes(2) + b"bye", opcode=CLOSE),
            ]
            opening = request() if choose.random() < 0.8 else damaged(request(), choose)
            group.create_task(play(opening + damaged(b"".join(frames), choose)))
    witness.send(frame(packets.PINGREQ_PACKET))
    assert await witness.frame() == (BINARY, PINGRESP)
    await soon(lambda: site.number("iotmq_mqtt_connections") == 1, "all others are gone")
    assert site.number("iotmq_mqtt_closed_total", reason="unspecified_error") == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def damaged(data: bytes, choose: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(choose.choice((0, 1, 1, 2, 8))):
        at = choose.randrange(len(changed))
        # Near the beginnings of frames more often than in the middle of a large payload.
        at = at if choose.random() < 0.5 else min(at, choose.randrange(300))
        kind = choose.randrange(4)
        if kind == 0:
            changed[at] ^= 1 << choose.randrange(8)
        elif kind == 1:
            del changed[at : at + choose.randrange(1, 20)]
        elif kind == 2:
            changed[at:at] = changed[at : at + choose.randrange(1, 20)]
        else:
            changed[at:at] = choose.randbytes(choose.randrange(1, 20))
    return bytes(changed)


async def test_frames_of_devices_that_are_not_connected_count_and_are_bounded(site: Site) -> None:
    held = "iotmq_mqtt_unopened_bytes"
    whole = frame(bytes(limits.MQTT_CONNECT_BYTES_MAX + 10))
    patient = await WebSocketPeer.connect(port(site))
    patient.send(whole[:200_000])
    await soon(lambda: site.number(held) >= 200_000, "a part of a frame")
    patient.send(whole[200_000 : limits.MQTT_CONNECT_BYTES_MAX + 5])
    await soon(lambda: site.number(held) > limits.MQTT_CONNECT_BYTES_MAX, "the most there may be")
    large = await connected(site)
    received = "iotmq_mqtt_received_bytes_total"
    before = site.number(received)
    large.send(frame(bytes(limits.MQTT_PACKET_BYTES_MAX))[: limits.MQTT_CONNECT_BYTES_MAX + 10_000])
    await soon(lambda: site.number(received) > before + limits.MQTT_CONNECT_BYTES_MAX + 9_000, "it came")
    assert site.number("iotmq_mqtt_sessions") == 1, "a connected device has larger ones"
    greedy = await WebSocketPeer.connect(port(site))
    greedy.send(frame(bytes(limits.MQTT_PACKET_BYTES_MAX))[: limits.MQTT_CONNECT_BYTES_MAX + 10_000])
    await site.gone("packet_too_large")
    patient.writer.close()
    await soon(lambda: site.number(held) == 0, "nothing is held")


def test_pages_are_told_the_listeners_that_a_browser_can_use() -> None:
    certificates = (CertificateSettings(certificate_file="c.pem"),)
    listeners = [
        ListenerSettings(name="a", transport="ws", allowed_origins=("https://A.example",)),
        ListenerSettings(
            name="b", transport="wss", certificates=certificates, websocket_path="/b", allowed_origins=("*",)
        ),
        ListenerSettings(name="balanced", transport="ws", proxy_protocol=True),
        ListenerSettings(name="plain", transport="tcp"),
        ListenerSettings(name="closed", transport="ws"),
    ]
    addresses = {
        f"mqtt.{name}": f"[::1]:{port}" for port, name in enumerate(("a", "b", "balanced", "plain"), 1)
    }
    first, second = websocket_places(listeners, addresses | {"mqtt": "127.0.0.1:1883"})
    assert first == ("a", "ws", 1, "/mqtt", {"https://a.example"})
    assert first.lets_in("HTTPS://a.example")
    assert not first.lets_in("https://a.example:1")
    assert second == ("b", "wss", 2, "/b", frozenset())
    assert second.lets_in("https://a.example:1")
