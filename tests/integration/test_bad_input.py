"""Garbage, half packets, huge lengths, other protocols and peers that dawdle, on every port of a gateway.

Each gets the protocol's code or an end of the connection, and is counted; nobody else notices; the log has
no traceback (leaving the gateway's `with` block checks that).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from bad_bytes import CONNACK, CONNECT, STRANGERS, Peer, answers_of, frame, request
from eventually import eventually, soon
from gateway_process import GatewayProcess
from mqtt_publisher import Publisher, remaining_length

from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command

CONNECT_TIMEOUT_S = 1.0
IDLE_S = 1.0
PACKET_BYTES_MAX = 100_000
NATIVE = ("broker", "registry")

# No test may hold up the others: what dawdles is late by this much at most.
LATE_S = 5.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    data: Path = tmp_path_factory.mktemp("bad-input") / "data"
    with GatewayProcess(
        data, f"mqtt.connect_timeout_s={CONNECT_TIMEOUT_S}", f"mqtt.packet_bytes_max={PACKET_BYTES_MAX}",
        f"broker.idle_s={IDLE_S}", f"registry.idle_timeout_s={IDLE_S}", "broker.registration_interval_s=0.2",
    ) as running:  # fmt: skip
        yield running


@pytest.fixture
async def witness(gateway: GatewayProcess) -> AsyncIterator[None]:
    """Peers that behave, connected before and after: their connections have to stay and be served."""
    publisher = Publisher(gateway.mqtt_port, "witness", "witness/1", window=5)
    async with asyncio.TaskGroup() as group:
        group.create_task(publisher.run())
        await soon(lambda: publisher.acknowledged, "the witness is served")
        yield
        before = len(publisher.acknowledged)
        await soon(lambda: len(publisher.acknowledged) > before + 5, "the witness is still served")
        publisher.finish()
    assert publisher.connections == 1
    assert publisher.resent == {}


@contextlib.contextmanager
def counted(gateway: GatewayProcess, metric: str) -> Iterator[None]:
    """The metric moves inside the block, or soon after."""
    before = gateway.metric(metric)
    yield
    eventually(lambda: gateway.metric(metric) > before, f"{metric} moves")


@contextlib.contextmanager
def native_witness(gateway: GatewayProcess, port: str) -> Iterator[None]:
    """A native connection that is served before and after the block."""
    code = RequestCode.GET_BROKER_RUNTIME_INFO if port == "broker" else RequestCode.GET_BROKER_CLUSTER_INFO
    with BlockingConnection("127.0.0.1", gateway.ports[port]) as connection:
        assert connection.request(Command.request(code)).code == 0
        yield
        assert connection.request(Command.request(code)).code == 0


def packet(first: int, rest: bytes) -> bytes:
    return bytes([first]) + remaining_length(len(rest)) + rest


def publish(topic: bytes, payload: bytes = b"", *, first: int = 0x32, packet_id: int = 1) -> bytes:
    head = struct.pack(">H", len(topic)) + topic + (struct.pack(">H", packet_id) if first & 6 else b"")
    return packet(first, head + payload)


# MQTT ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRANGERS)
async def test_other_protocols_on_the_mqtt_port_are_hung_up_on(
    gateway: GatewayProcess, witness: None, name: str
) -> None:
    with counted(gateway, "iotmq_mqtt_closed_total"), Peer(gateway.mqtt_port) as peer:
        peer.send(STRANGERS[name])
        assert peer.read_until() == b""
        assert peer.is_closed


BEFORE_CONNECT = {
    "five bytes of length": (b"\x10\xff\xff\xff\xff\x01", b""),
    "a huge length": (b"\x10\xff\xff\xff\x7f", b""),
    "a packet past the maximum": (b"\x10" + remaining_length(PACKET_BYTES_MAX + 1), b""),
    "CONNECT with flags": (b"\x1f" + CONNECT[1:], b""),
    "PUBLISH first": (publish(b"a"), b""),
    "PINGREQ first": (b"\xc0\x00", b""),
    "a version nobody knows": (b"\x10\x0d\x00\x04MQTT\x02\x02\x00\x3c\x00\x01d", b"\x20\x02\x00\x01"),
    "another protocol's name": (b"\x10\x0d\x00\x04QTTM\x04\x02\x00\x3c\x00\x01d", None),
    "no client id and a session": (b"\x10\x0c\x00\x04MQTT\x04\x00\x00\x3c\x00\x00", b"\x20\x02\x00\x02"),
    "a reserved connect flag": (b"\x10\x0d\x00\x04MQTT\x04\x03\x00\x3c\x00\x01d", None),
    "a client id that is cut off": (b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x09d", None),
    "a client id that is not UTF-8": (b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01\xff", None),
    "a will of QoS 3": (b"\x10\x11\x00\x04MQTT\x04\x1e\x00\x3c\x00\x01d\x00\x00\x00\x00", None),
}


@pytest.mark.parametrize("name", BEFORE_CONNECT)
async def test_bad_first_packets_end_the_connection(
    gateway: GatewayProcess, witness: None, name: str
) -> None:
    """After the CONNACK code the specification has for it, where it has one."""
    sent, answer = BEFORE_CONNECT[name]
    with counted(gateway, "iotmq_mqtt_closed_total"), Peer(gateway.mqtt_port) as peer:
        peer.send(sent)
        received = peer.read_until()
        assert peer.is_closed
        # Table 3.1 of the specification: any refusal there is, but never an acceptance.
        assert received == answer if answer is not None else received[:3] in (b"", b"\x20\x02\x00")
        assert received != CONNACK


async def test_a_version_after_5_is_refused_as_5_refuses(gateway: GatewayProcess, witness: None) -> None:
    with counted(gateway, "iotmq_mqtt_closed_total"), Peer(gateway.mqtt_port) as peer:
        peer.send(b"\x10\x0d\x00\x04MQTT\x09\x02\x00\x3c\x00\x01d")
        first, _, flags, code = peer.read_until()[:4]
        assert peer.is_closed
        assert (first, flags, code) == (0x20, 0, 0x84)


AFTER_CONNECT = {
    "a second CONNECT": CONNECT,
    "PUBLISH of QoS 3": publish(b"a", first=0x36),
    "PUBLISH of QoS 0 with DUP": publish(b"a", first=0x38),
    "PUBLISH with packet id 0": publish(b"a", packet_id=0),
    "PUBLISH to a wildcard": publish(b"a/+/b"),
    "PUBLISH to #": publish(b"#"),
    "PUBLISH to no topic": publish(b""),
    "PUBLISH to a topic with NUL": publish(b"a\x00b"),
    "PUBLISH to a topic that is not UTF-8": publish(b"a\xff\xfe"),
    "PUBLISH to a surrogate": publish(b"a\xed\xa0\x80"),
    "PUBLISH to a topic past the maximum": publish(b"x" * 4_097),
    "PUBLISH that ends in its topic": packet(0x32, b"\x00\x09a"),
    "PUBLISH past the maximum": publish(b"a", bytes(PACKET_BYTES_MAX)),
    "SUBSCRIBE with wrong flags": packet(0x80, b"\x00\x01\x00\x01a\x00"),
    "SUBSCRIBE to nothing": packet(0x82, b"\x00\x01"),
    "SUBSCRIBE with QoS 3": packet(0x82, b"\x00\x01\x00\x01a\x03"),
    "SUBSCRIBE to a bad filter": packet(0x82, b"\x00\x01\x00\x04a/#b\x00"),
    "UNSUBSCRIBE from nothing": packet(0xA2, b"\x00\x01"),
    "CONNACK to the server": b"\x20\x02\x00\x00",
    "PUBACK of three bytes": b"\x40\x03\x00\x01\x00",
    "packet type 0": b"\x00\x00",
    "packet type 15": b"\xf0\x00",
    "PINGREQ with a body": b"\xc0\x01\x00",
}


@pytest.mark.parametrize("name", AFTER_CONNECT)
async def test_bad_packets_of_a_session_end_its_connection(
    gateway: GatewayProcess, witness: None, name: str
) -> None:
    with counted(gateway, "iotmq_mqtt_closed_total"), Peer(gateway.mqtt_port) as peer:
        peer.send(CONNECT)
        assert peer.read_until(4) == CONNACK
        peer.send(AFTER_CONNECT[name])
        peer.read_until()
        assert peer.is_closed


async def test_a_packet_of_the_maximum_is_taken(gateway: GatewayProcess, witness: None) -> None:
    with Peer(gateway.mqtt_port) as peer:
        peer.send(CONNECT)
        peer.read_until(4)
        largest = publish(b"max/size", bytes(PACKET_BYTES_MAX - 12))
        assert largest[1:4] == remaining_length(PACKET_BYTES_MAX)
        peer.send(largest)
        assert peer.read_until(8) == CONNACK + b"\x40\x02\x00\x01"


async def test_a_connect_that_never_ends_is_not_waited_for(gateway: GatewayProcess, witness: None) -> None:
    with counted(gateway, "iotmq_mqtt_closed_total"), Peer(gateway.mqtt_port) as peer:
        began_s = time.monotonic()
        await dribble(peer, b"\x10\xff\x7f" + b"\x00\x04MQTT\x04\x02" + bytes(1_000))
        assert CONNECT_TIMEOUT_S / 2 < time.monotonic() - began_s < CONNECT_TIMEOUT_S + LATE_S


async def test_a_silent_device_is_not_waited_for(gateway: GatewayProcess, witness: None) -> None:
    """Keep-alive 1: after one and a half times that, it counts as gone [MQTT-3.1.2-24]."""
    with Peer(gateway.mqtt_port) as silent, Peer(gateway.mqtt_port) as dawdler:
        for peer, name in ((silent, b"s"), (dawdler, b"w")):
            peer.send(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x01\x00\x01" + name)
            assert peer.read_until(4) == CONNACK
        # Half a packet and then nothing.
        dawdler.send(publish(b"a/b", bytes(1_000))[:500])
        for peer in (silent, dawdler):
            await asyncio.to_thread(peer.read_until, within_s=1.5 + LATE_S)
            assert peer.is_closed


async def dribble(peer: Peer, data: bytes) -> None:
    """A byte at a time, until the other side has had enough of it."""
    for byte in data:
        peer.send(bytes([byte]))
        await asyncio.to_thread(peer.read_until, within_s=0.05)
        if peer.is_closed:
            return
    raise AssertionError("took all of it")


# Native protocol ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", NATIVE)
@pytest.mark.parametrize("name", STRANGERS)
def test_other_protocols_on_native_ports_are_hung_up_on(
    gateway: GatewayProcess, port: str, name: str
) -> None:
    """Four bytes that are a length in bounds begin a frame; such a peer is hung up on for its silence."""
    with native_witness(gateway, port), Peer(gateway.ports[port]) as peer:
        peer.send(STRANGERS[name])
        peer.finish()
        peer.read_until()
        assert peer.is_closed
        assert all(answer["code"] != 0 for answer in answers_of(peer.received))


BAD_FRAMES = {
    "a length of 2 GiB": b"\x7f\xff\xff\xff",
    "a negative length": b"\xff\xff\xff\xff\x00\x00\x00\x02{}",
    "a length past the maximum": struct.pack(">I", (16 << 20) + 1) + bytes(100),
    "no room for a header": b"\x00\x00\x00\x00",
    "a header longer than its frame": struct.pack(">IBBH", 10, 0, 1, 0) + bytes(6),
    "an unknown kind of header": frame(b"{}", kind=9),
    "a header that is no JSON": frame(b"not json"),
    "a header that is cut off": frame(b'{"code":105,"flag":0,"opaque":1'),
    "a header that is a list": frame(b"[1,2,3]"),
    "a header without a code": frame(b'{"flag":0,"opaque":1}'),
    "a code that is no number": frame(b'{"code":"x","flag":0,"opaque":1}'),
    "a header nested without end": frame(b'{"code":1,"extFields":' + b"[" * 50_000),
    "a header that is not UTF-8": frame(b'{"code":105,"remark":"\xff\xfe"}'),
    "a binary header cut off": frame(b"\x00\x69\x00", kind=1),
    "a binary header with a length past its end": frame(
        b"\x00\x69\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x00\x7f\xff\xff\xff", kind=1
    ),
}


@pytest.mark.parametrize("port", NATIVE)
@pytest.mark.parametrize("name", BAD_FRAMES)
def test_what_is_no_frame_ends_the_connection(gateway: GatewayProcess, port: str, name: str) -> None:
    with (
        counted(gateway, "iotmq_remoting_malformed_frames_total"),
        native_witness(gateway, port),
        Peer(gateway.ports[port]) as peer,
    ):
        peer.send(BAD_FRAMES[name])
        peer.read_until()
        assert peer.is_closed
        assert answers_of(peer.received) == []


BAD_REQUESTS: dict[str, tuple[bytes, int]] = {
    "an unknown code": (request(9_999), 3),
    "a negative code": (request(-5), 3),
    "a code of 2^31 - 1": (request(2**31 - 1), 3),
    "a send without fields": (request(10), 1),
    "a short send without fields": (request(310), 1),
    "a pull without fields": (request(11), 1),
    "an offset query without fields": (request(14), 1),
    "a maximum offset of no topic": (request(30), 1),
    "a route of no topic": (request(105), 1),
    "a heartbeat that is no JSON": (request(34, body=b"\xff" * 50), 1),
    "a heartbeat that is a number": (request(34, body=b"17"), 1),
    "a consumer list of no group": (request(38), 1),
    "a topic without a name": (request(17, {"topic": ""}), 1),
    "a queue id past any integer": (
        request(30, {"topic": "mqtt", "queueId": "9" * 400}), 1
    ),
    "a batch that is none": (
        request(
            320,
            {"a": "g", "b": "Bad", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "m": True},
            b"\xff" * 500,
        ),
        13,
    ),
}  # fmt: skip


@pytest.mark.parametrize("port", NATIVE)
@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_bad_requests_are_answered_and_the_connection_goes_on(
    gateway: GatewayProcess, port: str, name: str
) -> None:
    sent, code = BAD_REQUESTS[name]
    with (
        counted(gateway, "iotmq_remoting_request_errors_total"),
        native_witness(gateway, port),
        Peer(gateway.ports[port]) as peer,
    ):
        peer.send(sent)
        eventually(lambda: answers_of(peer.read_until(len(peer.received) + 1, within_s=1)), "an answer")
        (answer,) = answers_of(peer.received)
        # Each role answers what is not its business as it answers an unknown code.
        assert answer["code"] in (code, 3)
        assert answer["opaque"] == 7
        assert str(answer["remark"])
        # The same connection again.
        peer.send(request(9_999, opaque=8))
        eventually(
            lambda: len(answers_of(peer.read_until(len(peer.received) + 1, within_s=1))) == 2,
            "a second answer",
        )


@pytest.mark.parametrize("port", NATIVE)
def test_responses_nobody_asked_for_are_not_answered(gateway: GatewayProcess, port: str) -> None:
    header = json.dumps({"code": 0, "flag": 1, "opaque": 12_345, "language": "JAVA", "version": 1}).encode()
    with counted(gateway, "iotmq_remoting_responses_unmatched_total"), Peer(gateway.ports[port]) as peer:
        peer.send(frame(header) * 3 + request(9_999))
        eventually(lambda: answers_of(peer.read_until(len(peer.received) + 1, within_s=1)), "an answer")
        assert [answer["opaque"] for answer in answers_of(peer.received)] == [7]


@pytest.mark.parametrize("port", NATIVE)
async def test_a_frame_that_never_ends_is_not_waited_for(gateway: GatewayProcess, port: str) -> None:
    with (
        counted(gateway, "iotmq_remoting_connections_closed_total"),
        Peer(gateway.ports[port]) as half,
        Peer(gateway.ports[port]) as dawdler,
    ):
        half.send(request(105, {"topic": "mqtt"})[:-3])
        await dribble(dawdler, struct.pack(">I", 10_000) + bytes(1_000))
        await asyncio.to_thread(half.read_until, within_s=IDLE_S + LATE_S)
        assert half.is_closed
    eventually(lambda: gateway.metric("iotmq_remoting_unfinished_bytes") == 0, "half frames are forgotten")


@pytest.mark.parametrize("port", NATIVE)
def test_half_frames_of_many_peers_leave_nothing_behind(gateway: GatewayProcess, port: str) -> None:
    with native_witness(gateway, port), contextlib.ExitStack() as stack:
        opened = gateway.metric("iotmq_remoting_connections_opened_total")
        for _ in range(50):
            peer = stack.enter_context(Peer(gateway.ports[port]))
            peer.send(struct.pack(">I", 1 << 20) + bytes(20_000))
        eventually(
            lambda: gateway.metric("iotmq_remoting_connections_opened_total") >= opened + 50,
            "all are connected",
        )
    eventually(lambda: gateway.metric("iotmq_remoting_unfinished_bytes") == 0, "half frames are forgotten")


# Peers that do not read -----------------------------------------------------------------------------------


async def test_a_subscriber_that_does_not_read_costs_bounded_memory(gateway: GatewayProcess) -> None:
    """What it does not take is dropped and counted; neither the publisher nor others wait for it."""
    publisher = Publisher(gateway.mqtt_port, "loud", "loud/1", window=50, padding=20_000)
    subscribe = packet(0x82, b"\x00\x01\x00\x06loud/#\x00")
    with contextlib.ExitStack() as stack:
        for name in (b"1", b"2", b"3"):
            peer = stack.enter_context(Peer(gateway.mqtt_port))
            peer.send(CONNECT[:-1] + name + subscribe)
            assert peer.read_until(9) == CONNACK + b"\x90\x03\x00\x01\x00"
        before_bytes = gateway.memory_bytes()
        with counted(gateway, "iotmq_mqtt_dropped_total"):
            async with asyncio.TaskGroup() as group:
                group.create_task(publisher.run())
                await soon(lambda: len(publisher.acknowledged) > 3_000, "60 MB are published")
                publisher.finish()
        assert publisher.connections == 1
        assert gateway.memory_bytes() - before_bytes < 40 << 20
    eventually(lambda: gateway.metric("iotmq_mqtt_connections") == 0, "they are gone")


def test_a_consumer_that_does_not_read_is_hung_up_on(gateway: GatewayProcess) -> None:
    """It asks for far more than a connection may hold back; what others ask is answered meanwhile."""
    with BlockingConnection("127.0.0.1", gateway.ports["broker"], timeout_s=10) as connection:
        for _ in range(5):
            fields = {"a": "g", "b": "Big", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0"}
            sent = Command.request(RequestCode.SEND_MESSAGE_V2, {**fields, "i": ""}, bytes(1_000_000))
            assert connection.request(sent).code == 0
    pull = {
        "consumerGroup": "g", "topic": "Big", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
        "subVersion": "0", "expressionType": "TAG", "maxMsgBytes": str(1 << 22),
    }  # fmt: skip
    before_bytes = gateway.memory_bytes()
    with (
        Peer(gateway.ports["broker"]) as peer,
        counted(gateway, "iotmq_remoting_connections_closed_total"),
        native_witness(gateway, "broker"),
    ):
        for number in range(1_000):
            peer.send(request(RequestCode.PULL_MESSAGE, pull, opaque=number))
            if peer.is_closed:
                break
        assert gateway.memory_bytes() - before_bytes < 120 << 20


# HTTP ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in STRANGERS if name not in ("http", "newlines")])
def test_the_http_port_answers_400_or_hangs_up(gateway: GatewayProcess, name: str) -> None:
    with counted(gateway, "iotmq_http_bad_requests_total"), Peer(gateway.ports["http"]) as peer:
        peer.send(STRANGERS[name])
        peer.finish()
        peer.read_until()
        assert peer.is_closed
        assert peer.received == b"" or peer.received.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert gateway.http("/healthz")[0] == 200


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"GET /%00%ff/../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nLong: " + b"x" * 1_000_000 + b"\r\n\r\n", b"431"),
    ],
)
def test_bad_http_requests_get_their_status(gateway: GatewayProcess, sent: bytes, code: bytes) -> None:
    with Peer(gateway.ports["http"]) as peer:
        peer.send(sent)
        assert peer.read_until()[9:12] == code


# Afterwards ---------------------------------------------------------------------------------------------


def test_at_the_end_no_connection_and_no_fault_is_left(gateway: GatewayProcess) -> None:
    eventually(lambda: gateway.metric("iotmq_mqtt_connections") == 0, "no device is connected")
    assert gateway.metric("iotmq_remoting_handler_failures_total") == 0
    # The broker's own connection to its registry, seen from both ends.
    eventually(lambda: gateway.metric("iotmq_remoting_connections") <= 2, "no native peer is connected")
    assert gateway.open_files() < 100
    assert "Traceback" not in gateway.log_text()
