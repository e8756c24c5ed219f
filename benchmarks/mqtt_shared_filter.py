"""A thousand kept sessions on one filter: what is stored of each message that waits for all of them.

    .venv/bin/python -m benchmarks.mqtt_shared_filter [--messages 100000] [--quick]

The gateway in one process. A publisher sends to a topic nobody has a session for, then as much to one
that all sessions have a filter for, while their devices are away. The log grows by the same both times,
because a message is stored once; the light queue has one entry of each. Then some devices come back and
are sent all of it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import _swarm, machine, peers

SESSIONS = 1_000
RETURNING = 20
PAYLOAD_BYTES = 100
DELIVERY_TIMEOUT_S = 60.0
# What may be in the log besides the messages: changes of sessions.
OTHER_SHARE_MAX = 0.01


def session_arguments(count: int) -> list[str]:
    return [
        *("--subscribers", str(count), "--filter", "plant/alarms", "--qos", "1", "--keep-sessions"),
        *("--publishers-tracked", "1", "--connect-rate", "100000"),
    ]


def send(server: peers.Server, topic: str, messages: int) -> None:
    report = _swarm.publish(
        server.port,
        *("--publishers", "1", "--topic", topic, "--qos", "1", "--messages", str(messages)),
        *("--payload-bytes", str(PAYLOAD_BYTES), "--seconds", "120", "--warmup", "0"),
        timeout_s=180,
    )
    if report["counters"]["acknowledged"] != messages:
        raise _swarm.LoadError(f"not all messages were taken: {report['counters']}")


def log_end(server: peers.Server, data: Path) -> int:
    """Where the log ends: behind the last byte of it that is not nothing."""
    server.check()
    segment = sorted((data / "commitlog").iterdir(), key=lambda path: path.name)
    for path in reversed(segment):
        with path.open("rb") as file:
            at = path.stat().st_size
            while at > 0:
                start = max(0, at - (1 << 20))
                file.seek(start)
                used = file.read(at - start).rstrip(b"\0")
                if used:
                    return int(path.name) + start + len(used)
                at = start
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="10,000 messages, for a look")
    options = parser.parse_args()
    messages = 10_000 if options.quick else options.messages
    print(", ".join(f"{name} {value}" for name, value in machine.description().items()))
    machine.RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="data-shared-", dir=machine.RESULTS) as directory:
        data = Path(directory)
        settings = {"store.segment_bytes": str(64 * 2**20), "store.allocation_step_bytes": str(2**20)}
        with peers.iotmq(core=machine.cores()[0], data=data, settings=settings) as server:
            with _swarm.holding(server.port, *session_arguments(SESSIONS)) as devices:
                devices.ready()
                devices.end()
            start = log_end(server, data)
            send(server, "plant/others", messages)
            plain_bytes, start = log_end(server, data) - start, log_end(server, data)
            entries = server.metric("iotmq_broker_light_queue_entries_total")
            send(server, "plant/alarms", messages)
            bytes_stored = log_end(server, data) - start
            entries = server.metric("iotmq_broker_light_queue_entries_total") - entries
            with _swarm.holding(server.port, *session_arguments(RETURNING)) as devices:
                ready = devices.ready()
                deadline = time.monotonic() + DELIVERY_TIMEOUT_S
                while True:
                    report = devices.report()
                    counters = report["counters"]
                    if counters["delivered"] >= RETURNING * messages or time.monotonic() > deadline:
                        break
                devices.end()
    wrong = {
        "entries too many or few": round(entries) - messages,
        "messages lost": RETURNING * messages - counters["delivered"] + counters["sequence_repeats"],
        "messages repeated": counters["sequence_repeats"],
        "sessions lost": RETURNING - counters["resumed"],
    }
    # The topics are of one length, so the records are.
    assert abs(bytes_stored - plain_bytes) <= plain_bytes * OTHER_SHARE_MAX, (bytes_stored, plain_bytes)
    print(
        f"{messages:,} messages for {SESSIONS:,} sessions that are away: {entries:,.0f} entries in the light "
        f"queue, {bytes_stored / messages:.1f} bytes of log each; {plain_bytes / messages:.1f} where nobody "
        "has a filter"
    )
    print(
        f"{RETURNING} devices come back: {counters['delivered']:,} messages "
        f"({counters['delivered'] * 1e9 / (report['now_ns'] - ready['ready_ns']):,.0f}/s)"
    )
    print(", ".join(f"{name} {count}" for name, count in wrong.items()))
    machine.save("mqtt_shared_filter", {"wrong": wrong, "log_bytes": bytes_stored / messages})
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
