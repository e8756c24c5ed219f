"""The connection swarm: thousands of MQTT clients (3.1.1 or 5) in one process, at the speed of the sockets.

A ``Plan`` says who connects and what they send; a ``Swarm`` carries it out in phases (connect, publish,
hold, close) and returns a ``Report``. Everything is bounded by time and by count. The command line is
``iotmq loadtest --help``; the machinery is ``loadtest.swarm.engine``.
"""

import errno
import itertools
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Final

from loadtest.swarm.engine import STAMP_BYTES, Engine, Sink, read_stamp
from loadtest.swarm.errors import SwarmError
from loadtest.swarm.packets import (
    connect_packet,
    stamp,
    subscribe_packet,
    unsubscribe_packet,
    upgrade_request,
)
from loadtest.swarm.plan import Plan, check_plan
from loadtest.swarm.reach import device_of, group_of, numbers_of
from loadtest.swarm.room import check_room
from loadtest.swarm.templates import Device, draw_sizes, fill, fill_payload, fill_topic
from loadtest.swarm.tls import tls_contexts

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

# Counters that stay 0 with a correct server.
VIOLATIONS: Final = (
    "acks_unknown",
    "acks_out_of_order",
    "sequence_gaps",
    "sequence_repeats",
    "misdelivered",
    "protocol_errors",
)


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


class Swarm:
    """The connections of one plan. Usable as a context manager, which closes them."""

    def __init__(self, plan: Plan) -> None:
        check_plan(plan)
        check_room(plan)
        self.plan = plan
        tracked = plan.publishers_tracked
        sizes = draw_sizes(plan.payload_sizes) if plan.payload_sizes else []
        self.engine = Engine(
            _resolve(plan.host),
            plan.port,
            qos=plan.qos,
            window=plan.window,
            payload=_filler(max(sizes, default=plan.payload_bytes)),
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
            upgrade=upgrade_request(plan.host, plan.port, plan.websocket_path)
            if plan.websocket_path
            else b"",
            tls=tls_contexts(plan),
            sizes=sizes,
            answer_timeout_s=plan.answer_timeout_s,
            returns=plan.reconnects or plan.leave_per_s > 0,
            forgets=(plan.reconnects or plan.leave_per_s > 0) and not plan.keeps_sessions,
            subscriber_base=plan.subscriber_base,
        )
        self.engine.has_text_stamps = "%x" in plan.payload_template
        if plan.shares_cores:
            self.engine.spin_ns = 0
        # Subscribers first: they are opened in this order and miss nothing.
        self._add_subscribers()
        self._add_publishers()
        for _, _, connect in self._devices("idle"):
            self.engine.add_idle(connect)

    @staticmethod
    def check(plan: Plan) -> None:
        """Raise SwarmError for a plan that cannot be carried out here."""
        check_plan(plan)
        check_room(plan)

    def _add_subscribers(self) -> None:
        plan = self.plan
        filter_qos = plan.qos if plan.filter_qos is None else plan.filter_qos
        for n, device, connect in self._devices("sub"):
            topic_filter = fill(plan.filter, device)
            self.engine.add_subscriber(
                connect,
                subscribe_packet(topic_filter, filter_qos, is_v5=plan.is_v5),
                unsubscribe=unsubscribe_packet(topic_filter, is_v5=plan.is_v5)
                if plan.resubscribe_per_s
                else b"",
                group=group_of(plan, n),
            )

    def _add_publishers(self) -> None:
        plan = self.plan
        before_number = plan.topic.replace("%i", "{n}").partition("{n}")[0]
        for _, device, connect in self._devices("pub"):
            topic = fill_topic(plan.topic, device)
            payload = fill_payload(plan.payload_template, device) if plan.payload_template else None
            self.engine.add_publisher(
                connect,
                topic.text,
                number_at=len(fill_topic(before_number, device).text),
                payload=None if payload is None else payload.text,
                topic_fields=topic.fields,
                payload_fields=[] if payload is None else payload.fields,
            )

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

    def begin(self) -> None:
        """Let publishers publish, and those leave and subscribe anew that are to."""
        plan = self.plan
        self.engine.change(
            leave_per_s=plan.leave_per_s,
            leaves_rudely=plan.leaves_rudely,
            resubscribe_per_s=plan.resubscribe_per_s,
        )
        self.engine.start(
            messages_max=plan.messages_max,
            rate_per_s=plan.rate_per_s,
            rate_from_per_s=plan.rate_from_per_s,
            ramp_s=plan.ramp_s,
        )

    def publish(self) -> Report:
        """Warms up, measures, stops and waits for what is outstanding."""
        plan, engine = self.plan, self.engine
        before = engine.counters_now()
        engine.measure()
        self.begin()
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
        if lost and not self.plan.fallback_ports and not self.plan.reconnects:
            raise SwarmError(f"{lost} connections were lost (last: {_reason(self.engine.last_error)})")

    def close(self) -> None:
        """Disconnects everybody."""
        self.engine.close()

    def _devices(self, kind: str) -> Iterator[tuple[int, Device, bytes]]:
        """The devices of one kind, each with its number and its CONNECT."""
        plan = self.plan
        is_subscriber = kind == "sub"
        for n in numbers_of(plan, kind):
            device = device_of(plan, kind, n)
            will = None
            if is_subscriber and plan.will_topic is not None:
                will = fill(plan.will_topic, device._replace(number=str(n))), stamp(n, 0, 0)
            yield (
                n,
                device,
                connect_packet(
                    device.client_id,
                    keep_alive_s=plan.keep_alive_s,
                    username=None if plan.username is None else device.username,
                    password=plan.password,
                    is_clean=not (is_subscriber and plan.keeps_sessions),
                    will=will,
                    is_v5=plan.is_v5,
                    session_expiry_s=plan.session_expiry_s,
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
