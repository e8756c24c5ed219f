"""Throws mutated traffic at every port of a running gateway: `make fuzz`, or this file with --seconds.

Allowed outcomes, all else is a finding: the connection is answered in its protocol, or ended, within
`ANSWER_S`; the process lives, serves /healthz and a device that behaves, has no traceback in its log, no
request that hit a fault of its own, and no more memory at the end than `GROWTH_BYTES_MAX` on top.
A finding is written to build/fuzz/ as the bytes that were sent and is played again with --replay FILE.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shutil
import ssl
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "oracles")]

import websocket_peer  # noqa: E402
from bad_bytes import CONNACK, CONNECT, STRANGERS, TLS_HELLO, Peer, answers_of, request  # noqa: E402
from certificates import make_certificate, make_root  # noqa: E402
from gateway_process import GatewayProcess, free_port  # noqa: E402
from mqtt5_corpus import CONNECT5  # noqa: E402
from mqtt5_corpus import CORPUS as CORPUS5  # noqa: E402
from mqtt_publisher import remaining_length  # noqa: E402

from iotmq.config.setting_text import toml_value  # noqa: E402
from iotmq.remoting.codes import RequestCode, ResponseCode  # noqa: E402

ANSWER_S = 10.0
GROWTH_BYTES_MAX = 100 << 20
INPUT_BYTES_MAX = 300_000
CHECK_EVERY = 50
FINDINGS = ROOT / "build" / "fuzz"

RESPONSE_CODES = {
    value for name, value in vars(ResponseCode).items() if not name.startswith("_") and isinstance(value, int)
}
REQUEST_CODES = [
    value for name, value in vars(RequestCode).items() if not name.startswith("_") and isinstance(value, int)
]
# CONNACK, PUBLISH, PUBACK, PUBREC, PUBCOMP, SUBACK, UNSUBACK, PINGRESP.
MQTT_ANSWERS = {2, 3, 4, 5, 6, 7, 9, 11, 13, 14}
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


class Finding(Exception):  # noqa: N818 - what a fuzzer looks for is no error of its own
    """Something that must not happen."""


# What is mutated -----------------------------------------------------------------------------------------


def mqtt_seed(source: random.Random) -> bytes:
    """A session of well-formed packets, of 3.1.1 or of 5, where some are broken in a way that has a code."""
    if source.random() < 0.5:
        cases = [case for case in CORPUS5 if not case.is_first]
        first = source.choice([case.stream for case in CORPUS5 if case.is_first] + [CONNECT5] * 30)
        return first + b"".join(case.stream for case in source.choices(cases, k=source.randrange(6)))
    topic = source.choice(["a", "devices/1/telemetry", "x/" * 30, "ü/€", "$SYS/x"]).encode()
    payload = source.randbytes(source.choice([0, 1, 50, 3_000]))
    packet_id = struct.pack(">H", source.randrange(1, 65_536))
    named = struct.pack(">H", len(topic)) + topic
    packets = [
        _packet(0x32, named + packet_id + payload),
        _packet(0x30, named + payload),
        _packet(0x34, named + packet_id + payload),
        _packet(0x62, packet_id),
        _packet(0x82, packet_id + named + b"\x01"),
        _packet(0x82, packet_id + b"\x00\x03a/+\x00\x00\x01#\x01"),
        _packet(0xA2, packet_id + named),
        b"\xc0\x00",
        b"\x40\x02" + packet_id,
        b"\xe0\x00",
    ]
    return CONNECT + b"".join(source.choices(packets, k=source.randrange(6)))


def native_seed(source: random.Random) -> bytes:
    """Requests with plausible fields, under any code."""
    return b"".join(_native_request(source) for _ in range(source.randrange(1, 4)))


def tls_seed(source: random.Random) -> bytes:
    """The beginning of a handshake, and whatever follows it."""
    sent = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read() + source.randbytes(source.choice([0, 0, 5, 500]))


def proxied_seed(source: random.Random) -> bytes:
    """A header of the PROXY protocol with some TLVs, before a session."""
    line = source.choice([b"TCP4 192.0.2.1 192.0.2.2 1 2", b"TCP6 ::1 ::2 65535 0", b"UNKNOWN", b"UNKNOWN x"])
    sizes = {0x00: 0, 0x10: 12, 0x11: 12, 0x21: 36, 0x31: 216}
    kind = source.choice(list(sizes))
    values = [
        struct.pack(">BH", tlv, len(value)) + value
        for tlv, value in (
            (
                source.choice([1, 2, 3, 4, 5, 0x20, 0x30, 0xEE]),
                source.choice([b"", b"x" * 4, b"host.example.org"]),
            ),
            (0x20, struct.pack(">BIBH", 7, 0, 0x22, 6) + b"device"),
        )
    ]
    rest = source.randbytes(sizes[kind]) + b"".join(source.choices(values, k=source.randrange(3)))
    block = (
        b"\r\n\r\n\0\r\nQUIT\n"
        + struct.pack(">BBH", source.choice([0x20, 0x21, 0x21]), kind, len(rest))
        + rest
    )
    return source.choice([b"PROXY " + line + b"\r\n", block]) + mqtt_seed(source)


def websocket_seed(source: random.Random) -> bytes:
    """A session in frames of any size, some of them wrong, behind the request for a WebSocket."""
    packets, framed, is_open = mqtt_seed(source), bytearray(), False
    while packets:
        size = source.choice([1, 5, 125, 126, 3_000, 70_000])
        opcode = websocket_peer.CONTINUATION if is_open else websocket_peer.BINARY
        is_open = source.random() < 0.2
        framed += websocket_peer.frame(
            packets[:size], opcode=opcode, is_final=not is_open, mask=source.randbytes(4)
        )
        packets = packets[size:]
        if source.random() < 0.1:
            framed += websocket_peer.frame(
                source.randbytes(source.choice([0, 2, 125, 126])),
                opcode=source.choice([0, 1, 2, 3, 8, 9, 9, 9, 10, 15]),
                is_final=source.random() < 0.9,
                reserved=source.choice([0, 0, 0, 0, 1, 4]),
                mask=source.choice([b"mask", b"mask", b"mask", None]),
            )
    return websocket_peer.request() + bytes(framed)


def http_seed(source: random.Random) -> bytes:
    path = source.choice(["/metrics", "/healthz", "/readyz", "/", "/x?y=z"])
    method = source.choice(["GET", "HEAD", "POST", "OPTIONS"])
    headers = source.choice(["", "Accept: application/openmetrics-text\r\n", "Content-Length: 5\r\n"])
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Connection: close\r\n\r\nhello".encode()


def _packet(first: int, rest: bytes) -> bytes:
    return bytes([first]) + remaining_length(len(rest)) + rest


def _native_request(source: random.Random) -> bytes:
    code = source.choice([*REQUEST_CODES, 10, 310, 320, 11, 34, 105, 103, source.randrange(-10, 40_000)])
    topic = source.choice(["mqtt", "Fuzz", "%RETRY%fuzz", "TBW102", "SCHEDULE_TOPIC_XXXX", "", "a b"])
    group = source.choice(["fuzz", "fuzz-2", "", "x" * 300])
    number = source.choice(["0", "1", "3", "-1", "4096", "99999999999999999999", "", "x"])
    fields: dict[str, object] = {
        "topic": topic, "consumerGroup": group, "producerGroup": group, "group": group, "queueId": number,
        "queueOffset": number, "maxMsgNums": "32",
        "sysFlag": source.choice(["0", "1", "2", "6", "15", number]),
        "commitOffset": number, "suspendTimeoutMillis": source.choice(["0", "50", number]),
        "subscription": source.choice(["*", "a || b", "", "||", _sql(source)]), "subVersion": number,
        "expressionType": source.choice(["TAG", "SQL92", ""]), "timestamp": number, "offset": number,
        "defaultTopic": "TBW102", "defaultTopicQueueNums": number, "bornTimestamp": "1700000000000",
        "flag": number,
        "properties": source.choice(["", "KEYS\x01k\x02TAGS\x01t", "DELAY\x013\x02", "\x01\x02"]),
        "brokerName": "broker-a", "brokerAddr": source.choice(["127.0.0.1:1", "nonsense"]),
        "clusterName": "C", "haServerAddr": "", "brokerId": number, "clientID": group,
        "namespace": group, "key": group, "value": group, "delayLevel": number, "originMsgId": group,
        "readQueueNums": number, "writeQueueNums": number, "perm": number, "topicFilterType": "SINGLE_TAG",
        "a": group, "b": topic, "c": "TBW102", "d": "4", "e": number, "f": "0", "g": "1", "h": "0", "i": "",
        "m": source.choice(["true", "false"]),
    }  # fmt: skip
    for name in source.sample(sorted(fields), source.randrange(8)):
        del fields[name]
    return request(code, fields, _native_body(source), opaque=source.randrange(2**31))


def _sql(source: random.Random) -> str:
    """Words of the language of filters in any order."""
    words = ["a", "MQTT_TOPIC", "5", "-1.5e3", "'x'", "=", "<>", ">", "(", ")", ",", "AND", "OR", "NOT", "IN",
             "BETWEEN", "IS", "NULL", "TRUE", "CONTAINS", "--", "/*", "''"]  # fmt: skip
    return source.choice(["a > 5", "a BETWEEN 1 AND 5 OR b IN ('x')", " ".join(source.choices(words, k=9))])


def _native_body(source: random.Random) -> bytes:
    by_sql = {"topic": "mqtt", "subString": _sql(source), "expressionType": "SQL92", "subVersion": 1}
    heartbeat = {
        "clientID": "fuzz@1",
        "producerDataSet": [{"groupName": "fuzz"}],
        "consumerDataSet": [
            {
                "groupName": "fuzz", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False,
                "subscriptionDataSet": [
                    source.choice([{"topic": "mqtt", "subString": "*", "subVersion": 1}, by_sql])
                ],
            }
        ],
    }  # fmt: skip
    element = struct.pack(">iiiiih", 22 + 5, 0, 0, 0, 5, 0)
    queues = {"clientId": "fuzz@1", "consumerGroup": "fuzz", "mqSet": [{"topic": "mqtt", "queueId": 0}]}
    return source.choice(
        [
            b"", b"hello", json.dumps(heartbeat).encode(), json.dumps(queues).encode(), b"{0:1,1:{2:3}}",
            json.dumps({"clientId": "fuzz@1", "group": "fuzz", "subscriptionData": by_sql}).encode(),
            element[:20] + b"hello\x00\x00" + element[:20] + b"world\x00\x00", source.randbytes(200),
        ]
    )  # fmt: skip


def mutate(source: random.Random, data: bytes) -> bytes:
    """Zero to a few changes of the kinds that break parsers."""
    changed = bytearray(data)
    for _ in range(source.choice([0, 1, 1, 2, 3, 8])):
        at = source.randrange(len(changed) + 1)
        kind = source.randrange(7)
        if kind == 0 and changed:
            changed[min(at, len(changed) - 1)] ^= 1 << source.randrange(8)
        elif kind == 1:
            del changed[at : at + source.choice([1, 2, 4, 50])]
        elif kind == 2:
            changed[at:at] = source.randbytes(source.choice([1, 2, 4, 50]))
        elif kind == 3:
            number = source.choice(INTERESTING) + source.choice([-1, 0, 1])
            width = source.choice([1, 2, 4])
            changed[at : at + width] = (number & (1 << 8 * width) - 1).to_bytes(width, "big")
        elif kind == 4:
            end = min(len(changed), at + source.choice([4, 20, 200]))
            changed[at:at] = changed[at:end] * source.choice([1, 2, 50])
        elif kind == 5:
            del changed[at:]
        else:
            changed[at:at] = source.choice([*STRANGERS.values(), b"[" * 3_000, b'"' * 100])
    return bytes(changed[:INPUT_BYTES_MAX])


# What may happen -----------------------------------------------------------------------------------------


def check_mqtt(received: bytes) -> str:
    """A sequence of whole packets that servers send, the first of them a CONNACK."""
    if not received:
        return "closed"
    if received[:1] != b"\x20":
        raise Finding(f"MQTT answer begins with {received[:8].hex()}")
    while received:
        kind, size, at = received[0] >> 4, 0, 1
        while True:
            size |= (received[at] & 0x7F) << 7 * (at - 1)
            at += 1
            if not received[at - 1] & 0x80:
                break
        if kind not in MQTT_ANSWERS or len(received) < at + size:
            raise Finding(f"no packet of a server: {received[:40].hex()}")
        received = received[at + size :]
    return "answered"


def check_native(received: bytes) -> str:
    """Whole frames with response codes there are; or requests of a broker's own, which are oneway."""
    if not received:
        return "closed"
    answers = answers_of(received)
    if sum(4 + struct.unpack_from(">I", received, at)[0] for at in _frame_starts(received)) != len(received):
        raise Finding(f"half a frame as an answer: {received[-40:].hex()}")
    for answer in answers:
        if int(str(answer["flag"])) & 1 and answer["code"] not in RESPONSE_CODES:
            raise Finding(f"response code {answer}")
    return "answered"


def check_tls(received: bytes) -> str:
    """Records of TLS: alerts, and what a server says of itself."""
    if received and received[0] not in (0x14, 0x15, 0x16, 0x17):
        return check_native(received)
    return "answered" if received else "closed"


def check_websocket(received: bytes) -> str:
    """A refusal; or whole frames of a server with whole packets in them, a close frame as the last."""
    if not received:
        return "closed"
    head, _, rest = received.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1.1 (\d{3}) ", head)
    if status is None or status[1] not in (b"101", b"400", b"404", b"408", b"426", b"431"):
        raise Finding(f"answer to a request for a WebSocket: {received[:60]!r}")
    packets = b""
    while rest and status[1] == b"101":
        size, at = rest[1] if len(rest) > 1 else 0, 2
        if size > 125:
            at = 4 if size == 126 else 10
            size = int.from_bytes(rest[2:at])
        if rest[0] not in (0x82, 0x88, 0x8A) or len(rest) < at + size:
            raise Finding(f"no frame of a server: {rest[:40].hex()}")
        if rest[0] == 0x82:
            packets += rest[at : at + size]
        elif rest[0] == 0x88 and len(rest) > at + size:
            raise Finding(f"more behind a close frame: {rest[:40].hex()}")
        rest = rest[at + size :]
    return check_mqtt(packets) if status[1] == b"101" else status[1].decode()


def check_http(received: bytes) -> str:
    if not received:
        return "closed"
    status = re.match(rb"HTTP/\d\.\d (\d{3})", received)
    if status is None or status[1] not in (b"200", b"302", b"400", b"404", b"405", b"413", b"431", b"501"):
        raise Finding(f"HTTP answer {received[:60]!r}")
    return status[1].decode()


def _frame_starts(data: bytes) -> Iterator[int]:
    at = 0
    while at + 4 <= len(data):
        yield at
        at += 4 + struct.unpack_from(">I", data, at)[0]


TARGETS: dict[str, tuple[Callable[[random.Random], bytes], Callable[[bytes], str]]] = {
    "mqtt": (mqtt_seed, check_mqtt),
    "broker": (native_seed, check_native),
    "registry": (native_seed, check_native),
    "tls": (tls_seed, check_tls),
    "http": (http_seed, check_http),
    "mqtt by tls": (tls_seed, check_tls),
    "mqtt behind a proxy": (proxied_seed, check_mqtt),
    "mqtt in frames": (websocket_seed, check_websocket),
}
WEIGHTS = (4, 4, 2, 1, 1, 1, 2, 3)


# Which listener a target without one of its own speaks to.
_PORTS = {"tls": "broker"}


# The run -------------------------------------------------------------------------------------------------


def play(gateway: GatewayProcess, port: str, data: bytes, chunks: int) -> str:
    """Send one input in some pieces and judge what comes back."""
    with Peer(gateway.ports[_PORTS.get(port, port)]) as peer:
        step = max(1, len(data) // chunks)
        for at in range(0, len(data), step):
            peer.send(data[at : at + step])
        if port == "http":
            # A request whose sender has gone is not answered there.
            peer.read_until(1, within_s=0.05)
        peer.finish()
        received = peer.read_until(within_s=ANSWER_S)
        if not peer.is_closed:
            raise Finding(f"{port} neither answered nor hung up within {ANSWER_S} s")
    if port in ("broker", "registry") and data[:1] == TLS_HELLO[:1]:
        # The first byte makes it a handshake there.
        return check_tls(received)
    return TARGETS[port][1](received)


def check_gateway(gateway: GatewayProcess) -> None:
    """The gateway is as well as before."""
    process = gateway.process
    if process is None or process.poll() is not None:
        raise Finding(f"the gateway ended\n{gateway.log_text()[-3000:]}")
    if gateway.http("/healthz")[0] != 200:
        raise Finding("/healthz")
    if gateway.metric("iotmq_remoting_handler_failures_total"):
        lines = [line for line in gateway.log_text().splitlines() if "fault" in line or "fail" in line]
        raise Finding("a request hit a fault of the gateway: " + " | ".join(lines[-3:]))
    if gateway.metric("iotmq_metrics_errors_total"):
        raise Finding("metrics of a part fail")
    if "Traceback" in gateway.log_text():
        raise Finding("a traceback in the log: " + gateway.log_text().partition("Traceback")[2][:3000])
    with Peer(gateway.ports["mqtt"]) as device:
        device.send(CONNECT.replace(b"\x00\x01d", b"\x00\x01W") + b"\x32\x07\x00\x01w\x00\x07ok")
        if device.read_until(8) != CONNACK + b"\x40\x02\x00\x07":
            raise Finding("a device that behaves is not served")


def fuzz(
    gateway: GatewayProcess, *, seed: int, inputs_max: int | None = None, seconds: float | None = None
) -> Counter[str]:
    """Play inputs until their number or the time is over; returns outcomes by port. Raises Finding."""
    source = random.Random(seed)
    outcomes: Counter[str] = Counter()
    recent: list[tuple[str, bytes]] = []
    began_s = time.monotonic()
    before_bytes = gateway.memory_bytes()
    count = 0
    try:
        while (inputs_max is None or count < inputs_max) and (
            seconds is None or time.monotonic() - began_s < seconds
        ):
            port = source.choices(list(TARGETS), weights=WEIGHTS)[0]
            data = mutate(source, TARGETS[port][0](source))
            recent.append((port, data))
            outcomes[f"{port} {play(gateway, port, data, source.choice([1, 1, 2, 7]))}"] += 1
            count += 1
            if count % CHECK_EVERY == 0:
                check_gateway(gateway)
                recent.clear()
        check_gateway(gateway)
        grown_bytes = gateway.memory_bytes() - before_bytes
        if grown_bytes > GROWTH_BYTES_MAX:
            raise Finding(f"the process grew by {grown_bytes:,} bytes in {count} inputs")
    except Finding as finding:
        FINDINGS.mkdir(parents=True, exist_ok=True)
        file = FINDINGS / f"seed-{seed}.json"
        file.write_text(json.dumps([(port, data.hex()) for port, data in recent]))
        finding.add_note(f"after {count} inputs of seed {seed}; the last {len(recent)} are in {file}")
        raise
    return outcomes


def replay(gateway: GatewayProcess, file: Path) -> None:
    """Play what led to a finding, and look after each input."""
    for port, text in json.loads(file.read_text()):
        print(port, text[:200])
        print("   ", play(gateway, port, bytes.fromhex(text), 1))
        check_gateway(gateway)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--replay", type=Path, help="a file of build/fuzz/")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, fuzzed_gateway(Path(directory)) as gateway:
        if words.replay is not None:
            replay(gateway, words.replay)
            return
        print(f"seed {words.seed}, {words.seconds:.0f} s", flush=True)
        for outcome, count in sorted(fuzz(gateway, seed=words.seed, seconds=words.seconds).items()):
            print(f"{count:8} {outcome}")


def fuzzed_gateway(directory: Path) -> GatewayProcess:
    """A gateway that gives up on dawdlers soon, and takes TLS where openssl can make it a certificate.

    Its devices' topic has a name of its own: a request may well forbid writing to one it can name.
    """
    tls = []
    behind = {"name": "behind", "transport": "tcp", "listen_port": free_port(), "proxy_protocol": True}
    web = {"name": "web", "transport": "ws", "listen_port": free_port(), "allowed_origins": ["*"]}
    listeners: list[dict[str, object]] = [web, behind]
    if shutil.which("openssl") is not None:
        made = make_certificate(directory, make_root(directory))
        tls = [
            f"{role}.tls_{word}"
            for role in ("broker", "registry")
            for word in (
                f"certificate_file={made.certificate}", f"key_file={made.key}", "handshake_timeout_s=2"
            )
        ]  # fmt: skip
        shown = [{"certificate_file": made.certificate, "key_file": made.key}]
        listeners.append(
            {"name": "safe", "transport": "tls", "listen_port": free_port(), "certificates": shown}
        )
    gateway = GatewayProcess(
        directory / "data", "broker.idle_s=5", "registry.idle_timeout_s=5",
        "broker.registration_interval_s=1", "mqtt.connect_timeout_s=2",
        "mqtt.default_topic=FuzzedDevices", f"mqtt.listeners={toml_value(listeners)}",
        "mqtt.allow_anonymous_remote=true", *tls,
    )  # fmt: skip
    gateway.ports["mqtt behind a proxy"] = behind["listen_port"]
    gateway.ports["mqtt in frames"] = web["listen_port"]
    # Without openssl there is no certificate to make, and no such listener.
    gateway.ports["mqtt by tls"] = listeners[-1]["listen_port"]
    return gateway


if __name__ == "__main__":
    main()
