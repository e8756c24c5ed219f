"""What routes cost: a topic that is new, one that was seen, and what a route asks of each message.

1,000 routes of several forms, and topics that take one of them or none. The times are those of the look-up
alone, beside which a message is decoded and copied; `--publish` measures what is left of them in a gateway:
QoS 1 with a window of 100, with three routes and without, in turns.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

from benchmarks import _swarm, machine, peers
from iotmq.mqtt_front.publish.targets import Targets
from iotmq.mqtt_front.routing.checksum_names import checksum_of
from iotmq.mqtt_front.routing.routes import Router
from iotmq.mqtt_front.routing.topic_rewrite import TopicRewrites
from iotmq.mqtt_front.settings.routes import ChecksumSettings, RouteSettings

ROUTES: Final = 1_000
TOPICS: Final = 20_000
SEEN: Final = 1_000
FRAME_BYTES: Final = 64
MODBUS: Final = bytes(range(FRAME_BYTES - 2))
JSON: Final = b'{"temperature": 31.5, "site": "north", "values": [1, 2, 3], "unit": "C"}'

# Of one message each: the routes, the payload.
QUESTIONS: Final[dict[str, dict[str, Any]]] = {
    "nothing": {},
    "a key of the topic": {"key": "{1}"},
    "expiry and QoS": {"expiry_s_max": 60, "qos_max": 1},
    "a sample by count": {"sample_one_in": 10},
    "a checksum (Modbus, 64 bytes)": {"checksum": ChecksumSettings(algorithm="modbus")},
    "a key of JSON": {"key": "{json:site}"},
    "a condition and a key of JSON": {"when": ("{json:temperature} > 30",), "key": "{json:site}"},
    "a condition on a property": {"when": ("{content_type} missing",)},
}

#: With a place for more that is asked of each message.
THREE_ROUTES: Final = """
[[mqtt.routes]]
filter = "alarms/#"
topic = "alarms"

[[mqtt.routes]]
filter = "devices/+/telemetry"
topic = "telemetry"
key = "{1}"
%s
[[mqtt.routes]]
filter = "devices/#"
topic = "devices"
"""
ROUTES_OF: Final = {
    "without routes": "",
    "three routes": THREE_ROUTES % "",
    "with a highest QoS": THREE_ROUTES % "qos_max = 1",
    "with tags": THREE_ROUTES % 'tags = "{2}"',
    "with an expiry": THREE_ROUTES % "expiry_s_max = 86400",
    "with a key of JSON": THREE_ROUTES.replace('key = "{1}"', 'key = "{json:id}"') % "",
}


class FewQueues:
    """A broker whose topics have eight queues."""

    def queue_count(self, topic: str) -> int:
        return 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures all of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mqtt_routes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--publish", action="store_true", help="measure a gateway, too")
    parser.add_argument("--seconds", type=float, default=5.0, help="time of one round of --publish")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: dict[str, Any] = {"machine": machine.description()}
    rows = []
    for name, measured_us in _look_ups(options.rounds).items():
        results[name] = measured_us
        rows.append([name, f"{measured_us:.3f} us"])
    print(machine.table([f"{ROUTES:,} routes", "of a message"], rows))
    rows = []
    for name, question in QUESTIONS.items():
        results[f"asked: {name}"] = measured_us = _asked(question, options.rounds)
        rows.append([name, f"{measured_us:.3f} us"])
    print(machine.table(["a route asks for", "of a message"], rows))
    if options.publish:
        results["publish"] = found = _publish(options.rounds, options.seconds)
        print(
            machine.table(
                ["QoS 1, window 100", "messages/s", "processor time of one", "messages of without"],
                [
                    [name, f"{each['rate']:,.0f}", f"{each['cpu_us']:.2f} us", f"{each['ratio']:.3f}"]
                    for name, each in found.items()
                ],
            )
        )
    print(machine.save("mqtt_routes", results))
    return 0


def _targets(routes: Sequence[RouteSettings]) -> Targets:
    return Targets(Router(routes, default_topic="mqtt"), TopicRewrites(), FewQueues(), lambda *_, **__: 0)


def _thousand() -> list[RouteSettings]:
    """Exact filters, some with one and two wildcards at several depths, and one of ten with a condition."""
    forms = ("plant/{n}/state", "plant/{n}/+", "plant/{n}/#", "+/{n}/alarm", "plant/+/{n}/#")
    routes = []
    for number in range(ROUTES):
        name = forms[number % len(forms)].replace("{n}", str(number))
        when = ("{2} != 'test'",) if number % 10 == 0 else ()
        routes.append(RouteSettings(filter=name, topic="T", key="{1}", tags="{2}", when=when))
    return routes


def _look_ups(rounds: int) -> dict[str, float]:
    routes = _thousand()
    new = [f"plant/{number % 1_200}/state/{number}".encode() for number in range(TOPICS)]
    checksum = checksum_of(ChecksumSettings(algorithm="modbus"), "here")
    frame = MODBUS + checksum.compute(MODBUS).to_bytes(2, "little")
    seen_targets = _targets(routes)
    seen = new[:SEEN]
    seen_targets.pace(seen, b"", 1)
    return {
        "a new topic": median(_time_us(lambda: _targets(routes), new, 1) for _ in range(rounds)),
        "a topic that was seen": median(_time_us(lambda: seen_targets, seen, 200) for _ in range(rounds)),
        f"CRC of {FRAME_BYTES} bytes": median(_crc_us(checksum, frame) for _ in range(rounds)),
    }


def _time_us(make: Callable[[], Targets], topics: list[bytes], times: int, payload: bytes = b"") -> float:
    targets = make()
    begin = time.process_time()
    sent = targets.pace(topics, payload, times)
    elapsed = time.process_time() - begin
    assert sent
    return elapsed / (len(topics) * times) * 1e6


def _crc_us(checksum: Any, frame: bytes) -> float:
    begin = time.process_time()
    assert checksum.pace(frame, 200_000) == 200_000
    return (time.process_time() - begin) / 200_000 * 1e6


def _asked(question: dict[str, Any], rounds: int) -> float:
    targets = _targets([RouteSettings(filter="devices/#", topic="T", **question)])
    payload = JSON
    if "checksum" in question:
        payload = MODBUS + checksum_of(question["checksum"], "here").compute(MODBUS).to_bytes(2, "little")
    topics = [f"devices/{number}/telemetry".encode() for number in range(SEEN)]
    targets.pace(topics, payload, 1)
    return median(_time_us(lambda: targets, topics, 30, payload) for _ in range(rounds))


def _publish(rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Messages a second and what one costs the server; ratios of neighbouring rounds."""
    measured = [[_rate(routes, seconds) for routes in ROUTES_OF.values()] for _ in range(rounds)]
    return {
        name: {
            "rate": median(turn[place][0] for turn in measured),
            "cpu_us": median(turn[place][1] for turn in measured),
            "ratio": median(turn[place][0] / turn[0][0] for turn in measured),
        }
        for place, name in enumerate(ROUTES_OF)
    }


def _rate(routes: str, seconds: float) -> tuple[float, float]:
    with peers.iotmq(core=machine.cores()[0], routes=routes) as server:
        before_s = server.exact_cpu_s()
        report = _swarm.publish(
            server.port,
            *("--seconds", str(seconds), "--warmup", "0", "--payload-bytes", "100"),
            *("--publishers", "100", "--window", "100", "--qos", "1"),
            timeout_s=seconds + 120,
            core=machine.cores()[1],
        )
        server.check()
        cpu_s = server.exact_cpu_s() - before_s
    return report["acknowledged_per_s"], cpu_s / report["counters"]["acknowledged"] * 1e6


if __name__ == "__main__":
    sys.exit(main())
