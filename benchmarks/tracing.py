"""Costs of traces: PUBLISH packets decoded a second on one core, without a socket, with and without a trace.

"no hook" is the connection core alone; the others are a connection of a front end. Rounds take turns,
because the machine may be busy with something else for a while.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from benchmarks import machine
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt.server.connection import ServerConnection
from iotmq.mqtt.server.connection_settings import ConnectionSettings
from iotmq.mqtt.server.publish_sink import CountingSink
from iotmq.mqtt_front.connection.traced import Tap, TraceBudget, TracedConnection
from iotmq.mqtt_front.tracing.packet_facts import packet_facts

TOPIC: Final = "devices/4711/telemetry"
CHUNK_BYTES: Final = 64 * 1024
PACKETS: Final = 1_000
CONNECT: Final = packets.encode_connect(Connect("bench", True, 0, None, None, None))
STREAM: Final = packets.encode_publish(TOPIC, bytes(100)) * PACKETS
CHUNKS: Final = [STREAM[at : at + CHUNK_BYTES] for at in range(0, len(STREAM), CHUNK_BYTES)]


class Reader:
    """A tracer that decodes what it is told and forgets it."""

    def packet(
        self, connection: object, is_sent: bool, first: int, body: bytes, size: int, topic: str | None
    ) -> None:
        packet_facts(first, body, size, 4, is_sent=is_sent)

    def wants(self, topic: str) -> bool:
        return False

    def decided(self, connection: object, kind: str, topic: str | None, fields: object) -> None:
        raise AssertionError("nothing is decided here")

    def ended(self, connection: object) -> None:
        raise AssertionError("nothing ends here")


def traced(takes_all: bool | None) -> ServerConnection:
    """Return a connection that is traced: all of it, messages of other topics, or not at all (None)."""
    connection = TracedConnection(ConnectionSettings(), CountingSink(), 0.0)
    if takes_all is not None:
        connection.trace(Tap(Reader(), TraceBudget(1 << 60), takes_all=takes_all))
    return connection


KINDS: Final = {
    "no hook": lambda: ServerConnection(ConnectionSettings(), CountingSink(), 0.0),
    "no trace": lambda: traced(None),
    "a trace of another topic": lambda: traced(False),
    "a trace of this client": lambda: traced(True),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.2, help="time of one round")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    rates: dict[str, list[float]] = {name: [] for name in KINDS}
    for _ in range(options.rounds):
        for name in KINDS:
            rates[name].append(measure(name, options.seconds))
    rows = [
        [
            name,
            f"{1e9 / median(found):.0f} ns",
            f"{1e9 / max(found):.0f}-{1e9 / min(found):.0f}",
            f"{median(found) / median(rates['no hook']):.3f}",
        ]
        for name, found in rates.items()
    ]
    print(machine.table(["PUBLISH of 100 bytes", "each", "of rounds", "messages a second, of no hook"], rows))
    print(machine.save("tracing", {name: {"messages_per_s": median(found)} for name, found in rates.items()}))
    return 0


def measure(name: str, seconds: float) -> float:
    """Messages a second of processor time, of one connection that is fed the stream again and again."""
    connection = KINDS[name]()
    connection.receive_data(CONNECT, 0.0)
    connection.events_received()
    connection.open_session(session_present=False)
    connection.data_to_send()
    count = 0
    begin = time.process_time()
    while (elapsed := time.process_time() - begin) < seconds:
        for chunk in CHUNKS:
            connection.receive_data(chunk, 0.0)
        count += PACKETS
    return count / elapsed


if __name__ == "__main__":
    sys.exit(main())
