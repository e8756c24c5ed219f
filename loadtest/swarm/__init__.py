"""The connection swarm: thousands of MQTT clients (3.1.1 or 5) in one process, at the speed of the sockets.

A ``Plan`` says who connects and what they send; a ``Swarm`` carries it out in phases (connect, publish,
hold, close) and returns a ``Report``. Everything is bounded by time and by count. The command line is
``python -m loadtest.swarm --help``; the machinery is ``loadtest.swarm.engine``.
"""

import errno
import itertools
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Final

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect, Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from loadtest.swarm.engine import STAMP_BYTES, STAMP_MAGIC, TOPIC_DIGITS, Engine, Sink, read_stamp

__all__ = [
    "STAMP_BYTES",
    "Plan",
    "Report",
    "Sink",
    "Swarm",
    "SwarmError",
    "connect_packet",
    "read_stamp",
    "stamp",
    "subscribe_packet",
]

# Room for the interpreter's own files beside the connections.
SPARE_FILES: Final = 32
MESSAGES_UNLIMITED: Final = 2**62
# Past what an engine can do on any machine.
RATE_MAX: Final = 10_000_000

_NOT_NEGATIVE: Final = (
    "rate_per_s",
    "seconds",
    "warmup_s",
    "drain_timeout_s",
    "payload_bytes",
    "messages_max",
)

# [MQTT 5, 3.1.2.11.2]
_SESSION_NEVER_EXPIRES: Final = Properties(session_expiry_s=0xFFFF_FFFF)

# Counters that stay 0 with a correct server.
VIOLATIONS: Final = (
    "acks_unknown",
    "acks_out_of_order",
    "sequence_gaps",
    "sequence_repeats",
    "misdelivered",
    "protocol_errors",
)


class SwarmError(Exception):
    """The plan cannot be carried out here, or the server did not let the swarm in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who connects and what they send.

    ``{n}`` in a template is the connection's number, counted per kind from ``number_base``; in topics and
    filters with seven digits when a publisher has several topics (``topics_per_publisher``).
    Payloads of 24 bytes and more carry publisher, sequence and time, which subscribers check.
    """

    host: str = "127.0.0.1"
    port: int = 1883
    publishers: int = 0
    subscribers: int = 0
    idle: int = 0
    topic: str = "devices/{n}/telemetry"
    filter: str = "devices/+/telemetry"
    client_id: str = "swarm-{kind}-{n}"
    username: str | None = None
    password: str | None = None
    keep_alive_s: int = 60
    is_v5: bool = False
    """MQTT 5; else 3.1.1."""
    publish_properties: bytes = b""
    """Encoded properties of every message of MQTT 5 [MQTT 5, 3.3.2.3]."""
    websocket_path: str = ""
    """Where MQTT is in WebSockets, a frame for each packet or run of acknowledgements; empty: bare TCP."""
    qos: int = 1
    filter_qos: int | None = None
    """QoS asked for by subscribers; that of the publishers when None."""
    window: int = 100
    """Messages a publisher may have unacknowledged (QoS 1)."""
    lead_max: int = 0
    """Messages a publisher may be ahead of the subscribers; 0: any number, with QoS 0 loss or not."""
    keeps_sessions: bool = False
    """Subscribers connect with clean session = 0, and subscribe only when they have no session."""
    topics_per_publisher: int = 1
    """Publisher p sends in turn to topics p x this to (p + 1) x this - 1; subscriber n gets topic n alone."""
    will_topic: str | None = None
    """Subscribers leave a will of QoS 1 there, stamped with their number as that of a publisher."""
    fallback_ports: tuple[int, ...] = ()
    """Where subscribers and idle connections go when they lost their connection, in turn with ``port``."""
    return_after_s: float = 0.0
    """How long they stay away before they do."""
    payload_bytes: int = 100
    rate_per_s: int = 0
    """Messages due per second over all publishers, sent open-loop; 0 is as fast as windows allow."""
    messages_max: int = MESSAGES_UNLIMITED
    seconds: float = 5.0
    warmup_s: float = 1.0
    """Published like the rest and not measured."""
    drain_timeout_s: float = 10.0
    deliveries_per_message: int | None = None
    """How many subscribers get each message, waited for at the end; None: 1 for a single subscriber."""
    connect_rate_per_s: float = 2_000.0
    connects_in_progress_max: int = 64
    connect_timeout_s: float = 60.0
    number_base: int = 0
    """Added to every number, so that several processes can share the work."""
    publishers_tracked: int | None = None
    """Publishers whose sequences subscribers check: numbers below this; those of this plan when None."""
    source_addresses: tuple[str, ...] = ()
    """Local addresses to connect from in turn; each has about 28,000 ports."""
    measures_acks: bool = False
    """Time from stamp to PUBACK; always measured when paced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a publishing phase did. Rates: the measured seconds; counters: the whole phase."""

    seconds: float
    published_per_s: float
    acknowledged_per_s: float
    delivered_per_s: float
    engine_cpu_share: float
    """Of one core; near 1.0 the engine is the bottleneck and not the server."""
    is_drained: bool
    """Everything was acknowledged, and delivered where that can be foretold, before the time ran out."""
    violations: int
    counters: dict[str, int]
    latencies: dict[str, dict[str, float]]
    delivered_each_second: list[int] = field(default_factory=list)
    acknowledged_each_second: list[int] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def _upgrade_request(plan: Plan) -> bytes:
    """The request for a WebSocket; its key is anybody's [RFC 6455 section 1.3]."""
    return (
        f"GET {plan.websocket_path} HTTP/1.1\r\nHost: {plan.host}:{plan.port}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode()


class Swarm:
    """The connections of one plan. Usable as a context manager, which closes them."""

    def __init__(self, plan: Plan) -> None:
        _check(plan)
        self.plan = plan
        tracked = plan.publishers_tracked
        self.engine = Engine(
            _resolve(plan.host),
            plan.port,
            qos=plan.qos,
            window=plan.window,
            payload=_filler(plan.payload_bytes),
            keep_alive_s=plan.keep_alive_s,
            lead_max=plan.lead_max,
            measures_acks=plan.measures_acks or plan.rate_per_s > 0,
            number_base=plan.number_base,
            publishers_tracked=plan.number_base + plan.publishers if tracked is None else tracked,
            topics_per_publisher=plan.topics_per_publisher,
            fallback_ports=plan.fallback_ports,
            return_after_s=plan.return_after_s,
            source_addresses=plan.source_addresses,
            publish_properties=plan.publish_properties if plan.is_v5 else None,
            upgrade=_upgrade_request(plan) if plan.websocket_path else b"",
        )
        filter_qos = plan.qos if plan.filter_qos is None else plan.filter_qos
        # Subscribers first: they are opened in this order and miss nothing.
        for n, connect in self._numbered("sub", plan.subscribers):
            self.engine.add_subscriber(
                connect,
                subscribe_packet(plan.filter.format(n=_in_topic(plan, n)), filter_qos, is_v5=plan.is_v5),
            )
        number_at = len(plan.topic.partition("{n}")[0].encode())
        for n, connect in self._numbered("pub", plan.publishers):
            topic = plan.topic.format(n=_in_topic(plan, n)).encode()
            self.engine.add_publisher(connect, topic, number_at=number_at)
        for _, connect in self._numbered("idle", plan.idle):
            self.engine.add_idle(connect)

    @staticmethod
    def check(plan: Plan) -> None:
        """Raise SwarmError for a plan that cannot be carried out here."""
        _check(plan)

    def __enter__(self) -> "Swarm":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self) -> float:
        """Connects and subscribes everybody; returns the seconds taken. SwarmError unless all got in."""
        plan = self.plan
        wanted = plan.publishers + plan.subscribers + plan.idle
        began = time.monotonic()
        self.engine.connect(
            rate_per_s=plan.connect_rate_per_s,
            in_progress_max=plan.connects_in_progress_max,
            timeout_s=plan.connect_timeout_s,
        )
        counters = self.engine.counters_now()
        if counters["ready"] != wanted:
            raise SwarmError(
                f"{counters['ready']} of {wanted} connections got in within {plan.connect_timeout_s} s: "
                f"{counters['failed']} failed, {counters['lost']} lost again "
                f"(last: {_reason(self.engine.last_error)}), "
                f"{counters['refused']} refused (last code: {self.engine.last_refusal})"
            )
        return time.monotonic() - began

    def publish(self) -> Report:
        """Warms up, measures, stops and waits for what is outstanding."""
        plan, engine = self.plan, self.engine
        before = engine.counters_now()
        engine.measure()
        engine.start(messages_max=plan.messages_max, rate_per_s=plan.rate_per_s)
        began_ns, cpu_began_ns, first = time.monotonic_ns(), time.thread_time_ns(), before
        is_over = plan.warmup_s > 0 and engine.run(plan.warmup_s)
        # A count that ends in the warm-up is measured from the beginning.
        if plan.warmup_s > 0 and not is_over:
            engine.measure()
            began_ns, cpu_began_ns, first = time.monotonic_ns(), time.thread_time_ns(), engine.counters_now()
        marks = [first]
        left_s = plan.seconds
        while left_s > 0 and not is_over:
            is_over = engine.run(min(1.0, left_s)) or not engine.counters_now()["ready"]
            left_s = plan.seconds - (time.monotonic_ns() - began_ns) / 1e9
            marks.append(engine.counters_now())
        last = engine.counters_now()
        seconds = (time.monotonic_ns() - began_ns) / 1e9
        cpu_share = (time.thread_time_ns() - cpu_began_ns) / 1e9 / seconds
        is_drained = self._drain(before)
        totals = {name: value - before[name] for name, value in engine.counters_now().items()}

        # A server may drop what was published or asked for with QoS 0.
        may_not_drop = min(plan.qos, plan.qos if plan.filter_qos is None else plan.filter_qos) > 0

        def rate(name: str) -> float:
            return (last[name] - first[name]) / seconds

        def steps(name: str) -> list[int]:
            return [after[name] - mark[name] for mark, after in itertools.pairwise(marks)]

        return Report(
            seconds=seconds,
            published_per_s=rate("published"),
            acknowledged_per_s=rate("acknowledged"),
            delivered_per_s=rate("delivered"),
            engine_cpu_share=cpu_share,
            is_drained=is_drained,
            violations=sum(totals[name] for name in VIOLATIONS if name != "sequence_gaps" or may_not_drop),
            counters=totals,
            latencies=engine.latencies(),
            delivered_each_second=steps("delivered"),
            acknowledged_each_second=steps("acknowledged"),
        )

    def hold(self, seconds: float) -> None:
        """Keeps every connection alive this long; counts what arrives.

        Raises SwarmError when one is lost that has nowhere to fall back to.
        """
        lost_before = self.engine.counters_now()["lost"]
        self.engine.run(seconds)
        lost = self.engine.counters_now()["lost"] - lost_before
        if lost and not self.plan.fallback_ports:
            raise SwarmError(f"{lost} connections were lost (last: {_reason(self.engine.last_error)})")

    def close(self) -> None:
        """Disconnects everybody."""
        self.engine.close()

    def _numbered(self, kind: str, count: int) -> Iterator[tuple[int, bytes]]:
        plan = self.plan
        is_subscriber = kind == "sub"
        for n in range(plan.number_base, plan.number_base + count):
            will = None
            if is_subscriber and plan.will_topic is not None:
                will = plan.will_topic.format(n=n), stamp(n, 0, 0)
            yield (
                n,
                connect_packet(
                    plan.client_id.format(kind=kind, n=n),
                    keep_alive_s=plan.keep_alive_s,
                    username=plan.username,
                    password=plan.password,
                    is_clean=not (is_subscriber and plan.keeps_sessions),
                    will=will,
                    is_v5=plan.is_v5,
                ),
            )

    def _drain(self, before: dict[str, int]) -> bool:
        """Waits for acknowledgements, and for deliveries while they keep coming and can be foretold."""
        plan, engine = self.plan, self.engine
        engine.stop()
        deadline = time.monotonic() + plan.drain_timeout_s
        if not engine.drain(plan.drain_timeout_s):
            return False
        copies = plan.deliveries_per_message
        if copies is None:
            copies = 1 if plan.subscribers == 1 else 0
        if not copies:
            return True
        counters = engine.counters_now()
        expected = before["delivered"] + copies * (counters["published"] - before["published"])
        # QoS 0 may be dropped on the way: half a second without a delivery means nothing is left.
        while time.monotonic() < deadline:
            delivered = engine.counters_now()["delivered"]
            if engine.drain(0.5, delivered=expected):
                return True
            if engine.counters_now()["delivered"] == delivered:
                return False
        return False


def connect_packet(
    client_id: str,
    *,
    keep_alive_s: int = 60,
    username: str | None = None,
    password: str | None = None,
    is_clean: bool = True,
    will: tuple[str, bytes] | None = None,
    is_v5: bool = False,
) -> bytes:
    """A CONNECT of MQTT 3.1.1 or 5 [MQTT 3.1]; `will` is topic and payload of one with QoS 1.

    With MQTT 5 a session that is not clean is kept for as long as the server likes.
    """
    packet = Connect(
        client_id,
        is_clean,
        keep_alive_s,
        None if will is None else Will(*will, qos=1, retain=False),
        username,
        None if password is None else password.encode(),
        packets.PROTOCOL_LEVEL_5 if is_v5 else packets.PROTOCOL_LEVEL_3_1_1,
        NO_PROPERTIES if is_clean else _SESSION_NEVER_EXPIRES,
    )
    return packets.encode_connect(packet)


def subscribe_packet(topic_filter: str, qos: int, *, packet_id: int = 1, is_v5: bool = False) -> bytes:
    """A SUBSCRIBE of MQTT 3.1.1 or 5 with one filter [MQTT 3.8]."""
    return packets.encode_subscribe(packet_id, [(topic_filter, qos)], NO_PROPERTIES if is_v5 else None)


def stamp(publisher: int, sequence: int, time_ns: int) -> bytes:
    """The beginning of a payload that subscribers follow; `read_stamp` is the way back."""
    return struct.pack(">IIQQ", STAMP_MAGIC, publisher, sequence, time_ns)


def _in_topic(plan: Plan, number: int) -> str:
    """A number as topics have it."""
    return f"{number:0{TOPIC_DIGITS}d}" if plan.topics_per_publisher > 1 else str(number)


def _filler(size: int) -> bytes:
    """Printable and without long runs, so that neither logs nor compression are surprised."""
    return bytes(97 + (i * 7 + i // 26) % 26 for i in range(size))


def _resolve(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise SwarmError(f"{host} has no IPv4 address: {error}") from error


def _reason(number: int) -> str:
    if number == 0:
        return "closed by the server"
    return f"{errno.errorcode.get(number, number)}, {os.strerror(number)}"


def _check(plan: Plan) -> None:
    for name in _NOT_NEGATIVE:
        if getattr(plan, name) < 0:
            raise SwarmError(f"{name} is {getattr(plan, name)}, and may not be negative")
    if plan.rate_per_s > RATE_MAX:
        raise SwarmError(f"rate_per_s is {plan.rate_per_s}: one swarm sends {RATE_MAX} a second at most")
    if not 0 < plan.connect_rate_per_s <= RATE_MAX:
        raise SwarmError(f"connect_rate_per_s is {plan.connect_rate_per_s}, and must be in 1..{RATE_MAX}")
    connections = plan.publishers + plan.subscribers + plan.idle
    if connections < 1 or min(plan.publishers, plan.subscribers, plan.idle, plan.number_base) < 0:
        raise SwarmError("a plan needs at least one connection and no negative count")
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if connections + SPARE_FILES > files_max:
        raise SwarmError(
            f"{connections} connections need {connections + SPARE_FILES} open files, "
            f"and {files_max} is the limit: "
            "raise it (ulimit -n) or share the work among processes with number_base"
        )
    if plan.lead_max and (plan.subscribers < 1 or plan.payload_bytes < STAMP_BYTES):
        raise SwarmError(f"a lead needs subscribers and payloads of {STAMP_BYTES} bytes or more")
    if plan.topics_per_publisher > 1 and plan.publishers and "{n}" not in plan.topic:
        raise SwarmError("several topics to a publisher need a topic with {n} in it")
    if plan.topics_per_publisher > 1 and plan.payload_bytes < STAMP_BYTES:
        raise SwarmError(f"several topics to a publisher need payloads of {STAMP_BYTES} bytes or more")
    if plan.rate_per_s and not plan.publishers:
        raise SwarmError("a rate needs publishers")
    if not 0 <= plan.keep_alive_s <= 65_535:
        raise SwarmError(f"keep-alive is 0..65535 s, not {plan.keep_alive_s}")
