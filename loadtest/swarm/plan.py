"""What a swarm is to do, and what of it is impossible."""

import math
from dataclasses import dataclass
from typing import Final

from loadtest.swarm.engine import PAYLOAD_BYTES_MAX, STAMP_BYTES, WINDOW_MAX
from loadtest.swarm.errors import SwarmError
from loadtest.swarm.reach import check_names
from loadtest.swarm.templates import Device, draw_sizes, fill, fill_payload, fill_topic

MESSAGES_UNLIMITED: Final = 2**62
# Past what an engine can do on any machine.
RATE_MAX: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who connects and what they send.

    ``%i`` or ``{n}`` in a template is the connection's number, counted per kind from ``number_base``; in
    topics and filters with seven digits when a publisher has several topics (``topics_per_publisher``).
    `loadtest.swarm.templates` has the others. Payloads of 24 bytes and more carry publisher, sequence and
    time, which subscribers check.
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
    tls: bool = False
    """TLS; with a WebSocket this is wss."""
    tls_ca: str = ""
    """File of the certificates that the server's has to be signed by; empty: those of the system."""
    tls_server_name: str = ""
    """The name that the server's certificate has to have; empty: the host."""
    tls_insecure: bool = False
    """Any certificate will do."""
    tls_certificates: tuple[str, ...] = ()
    """Files of certificates, `CERTIFICATE` with its key in it or `CERTIFICATE,KEY`, used in turn."""
    qos: int = 1
    filter_qos: int | None = None
    """QoS asked for by subscribers; that of the publishers when None."""
    window: int = 100
    """Messages a publisher may have unacknowledged (QoS 1)."""
    lead_max: int = 0
    """Messages a publisher may be ahead of the subscribers; 0: any number, with QoS 0 loss or not."""
    keeps_sessions: bool = False
    """Subscribers connect with clean session = 0, and subscribe only when they have no session."""
    session_expiry_s: int | None = None
    """MQTT 5: seconds that sessions outlive their connections; None: kept ones as long as the server does."""
    topics_per_publisher: int = 1
    """Publisher p sends in turn to topics p x this to (p + 1) x this - 1; subscriber n gets topic n alone."""
    will_topic: str | None = None
    """Subscribers leave a will of QoS 1 there, stamped with their number as that of a publisher."""
    fallback_ports: tuple[int, ...] = ()
    """Where subscribers and idle connections go when they lost their connection, in turn with ``port``."""
    return_after_s: float = 0.0
    """How long they stay away before they do."""
    reconnects: bool = False
    """Everybody who loses the connection connects again, publishers too."""
    leave_per_s: float = 0.0
    """Subscribers and idle connections that go away per second, and come back after `return_after_s`."""
    leaves_rudely: bool = False
    """They close the connection without a DISCONNECT, so that their wills are published."""
    resubscribe_per_s: float = 0.0
    """Subscribers that unsubscribe per second, and subscribe again."""
    answer_timeout_s: float = 0.0
    """A server that owes an answer for longer loses the connection; 0: for ever."""
    payload_bytes: int = 100
    payload_sizes: str = ""
    """Sizes in the place of one: `100-1000` even, `100:7,1000:2` by weight."""
    payload_template: str = ""
    """The text of payloads, with places filled in for each device and message."""
    rate_per_s: int = 0
    """Messages due per second over all publishers, sent open-loop; 0 is as fast as windows allow."""
    rate_from_per_s: int = 0
    """Where the rate begins that becomes `rate_per_s` within `ramp_s`."""
    ramp_s: float = 0.0
    messages_max: int = MESSAGES_UNLIMITED
    seconds: float = 5.0
    warmup_s: float = 1.0
    """Published like the rest and not measured."""
    shares_cores: bool = False
    """Sleep until a planned time, for a server on the same cores. Else the last 60 us are spent awake."""
    drain_timeout_s: float = 10.0
    deliveries_per_message: int | None = None
    """How many subscribers get each message, waited for at the end; None: 1 for a single subscriber."""
    connect_rate_per_s: float = 2_000.0
    connects_in_progress_max: int = 64
    connect_timeout_s: float = 60.0
    number_base: int = 0
    """Added to every number, so that several processes can share the work."""
    subscriber_base: int | None = None
    """Added to the numbers of subscribers in its place."""
    idle_base: int | None = None
    publishers_tracked: int | None = None
    """Publishers whose sequences subscribers check: numbers below this; those of this plan when None."""
    source_addresses: tuple[str, ...] = ()
    """Local addresses to connect from in turn; each has about 28,000 ports."""
    measures_acks: bool = False
    """Time from stamp to PUBACK; always measured when paced."""


def check_plan(plan: Plan) -> None:
    """Refuse what cannot be done anywhere, by the name of the field. SwarmError."""
    for wrong, why in _impossible(plan):
        if wrong:
            raise SwarmError(why)
    nobody = Device("0", "c", "u", "pub")
    for template in (plan.filter, plan.client_id, plan.username or "", plan.will_topic or ""):
        fill(template, nobody)
    fill_topic(plan.topic, nobody)
    fill_payload(plan.payload_template, nobody)
    if plan.payload_sizes:
        draw_sizes(plan.payload_sizes)
    check_names(plan)


def _impossible(plan: Plan) -> list[tuple[bool, str]]:
    """What a plan may not be, and the words for it."""
    counts = (plan.publishers, plan.subscribers, plan.idle)
    has_one_topic = plan.topics_per_publisher == 1
    has_no_stamp = (
        "%x" not in plan.payload_template if plan.payload_template else plan.payload_bytes < STAMP_BYTES
    )
    durations = {
        name: getattr(plan, name)
        for name in (
            "seconds", "warmup_s", "drain_timeout_s", "connect_timeout_s", "return_after_s", "ramp_s",
            "answer_timeout_s", "leave_per_s", "resubscribe_per_s", "rate_per_s", "rate_from_per_s",
            "messages_max", "payload_bytes", "deliveries_per_message",
        )
        if getattr(plan, name) is not None
    }  # fmt: skip
    negative = next(
        (f"{name} is {value}, and may not be negative" for name, value in durations.items() if value < 0), ""
    )
    endless = next(
        (f"{name} is {value}" for name, value in durations.items() if not math.isfinite(value)),
        "",
    )
    return [
        (
            sum(counts) < 1 or min(*counts, plan.number_base) < 0,
            "a plan needs at least one connection and no negative count",
        ),
        (bool(negative), negative),
        (bool(endless), endless),
        (plan.qos not in (0, 1, 2), f"qos must be 0, 1 or 2, not {plan.qos}"),
        (plan.filter_qos not in (None, 0, 1, 2), f"filter_qos must be 0, 1 or 2, not {plan.filter_qos}"),
        (not 1 <= plan.port <= 65_535, f"port must be 1..65535, not {plan.port}"),
        (
            plan.lead_max > 0 and (plan.subscribers < 1 or has_no_stamp),
            f"a lead needs subscribers and payloads with a stamp: {STAMP_BYTES} bytes or more, or %x",
        ),
        (
            not has_one_topic and plan.publishers > 0 and "{n}" not in plan.topic and "%i" not in plan.topic,
            "several topics to a publisher need a topic with {n} in it",
        ),
        (
            not has_one_topic and has_no_stamp,
            f"several topics to a publisher need payloads with a stamp: {STAMP_BYTES} bytes or more, or %x",
        ),
        (not 1 <= plan.window <= WINDOW_MAX, f"window must be 1..{WINDOW_MAX}, not {plan.window}"),
        (
            plan.payload_bytes > PAYLOAD_BYTES_MAX,
            f"payload_bytes is {plan.payload_bytes}, and at most {PAYLOAD_BYTES_MAX}",
        ),
        (
            plan.connects_in_progress_max < 1,
            f"connects_in_progress_max is {plan.connects_in_progress_max}, and must be at least 1",
        ),
        (
            # [MQTT-3.1.2-22]; MQTT 5 has no such rule.
            plan.password is not None and plan.username is None and not plan.is_v5,
            "a password needs a username with MQTT 3.1.1",
        ),
        (
            plan.keeps_sessions and plan.leave_per_s > 0 and plan.return_after_s > plan.drain_timeout_s,
            f"return_after_s is {plan.return_after_s}: who is away at the end is waited for no longer than "
            f"drain_timeout_s, which is {plan.drain_timeout_s}",
        ),
        (plan.rate_per_s > 0 and not plan.publishers, "a rate needs publishers"),
        (plan.ramp_s > 0 and not plan.rate_per_s, "ramp_s needs a rate_per_s to reach"),
        (plan.rate_from_per_s > 0 and not plan.ramp_s, "rate_from_per_s needs a ramp_s"),
        (not 0 <= plan.keep_alive_s <= 65_535, f"keep-alive is 0..65535 s, not {plan.keep_alive_s}"),
        (
            not 0 < plan.connect_rate_per_s <= RATE_MAX,
            f"connect_rate_per_s is {plan.connect_rate_per_s}, and must be above 0 and at most {RATE_MAX}",
        ),
        (
            max(plan.rate_per_s, plan.rate_from_per_s) > RATE_MAX,
            f"rate_per_s is {plan.rate_per_s}: one swarm sends {RATE_MAX} a second at most",
        ),
        (plan.session_expiry_s is not None and not plan.is_v5, "session_expiry_s needs MQTT 5"),
        (
            plan.session_expiry_s is not None and not 0 <= plan.session_expiry_s < 2**32,
            f"session_expiry_s is 0..4294967295, not {plan.session_expiry_s}",
        ),
        (
            bool(plan.payload_sizes) and bool(plan.payload_template),
            "payload_sizes and payload_template exclude each other",
        ),
        (bool(plan.publish_properties) and not plan.is_v5, "publish_properties need MQTT 5"),
        (
            plan.leave_per_s > 0 and not plan.subscribers + plan.idle,
            "leave_per_s needs subscribers or idle connections",
        ),
        (plan.resubscribe_per_s > 0 and not plan.subscribers, "resubscribe_per_s needs subscribers"),
        (
            bool(plan.tls_ca or plan.tls_certificates or plan.tls_server_name) and not plan.tls,
            "certificates need tls",
        ),
    ]
