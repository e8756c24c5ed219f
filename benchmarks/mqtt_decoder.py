"""The MQTT connection core alone: PUBLISH packets decoded a second on one core, without a socket.

A stream of 1,000 packets is fed in chunks as a socket gives them; what is published is counted and forgotten.
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
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.server.connection import ServerConnection
from iotmq.mqtt.server.connection_settings import ConnectionSettings
from iotmq.mqtt.server.publish_sink import CountingSink

TOPIC: Final = "devices/4711/telemetry"
CHUNK_BYTES: Final = 64 * 1024
PACKETS: Final = 1_000

CONNECT: Final = packets.encode_connect(Connect("bench", True, 0, None, None, None))
CONNECT_5: Final = packets.encode_connect(Connect("bench", True, 0, None, None, None, 5))

# What comes first, and the PUBLISH that follows again and again.
STREAMS: Final = {
    "3.1.1": (CONNECT, packets.encode_publish(TOPIC, bytes(100))),
    "5 without properties": (CONNECT_5, packets.encode_publish(TOPIC, bytes(100), properties=NO_PROPERTIES)),
    "5 with three properties": (
        CONNECT_5,
        packets.encode_publish(
            TOPIC,
            bytes(100),
            properties=Properties(
                message_expiry_s=3_600,
                content_type="application/json",
                user_properties=(("site", "north"),),
            ),
        ),
    ),
    "5 by topic alias": (
        CONNECT_5 + packets.encode_publish(TOPIC, b"", properties=Properties(topic_alias=1)),
        packets.encode_publish("", bytes(100), properties=Properties(topic_alias=1)),
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every stream."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="time of one round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    rows = []
    results = {}
    for name, (connect, publish) in STREAMS.items():
        rates = [measure(connect, publish * PACKETS, options.seconds) for _ in range(options.rounds)]
        results[name] = {"messages_per_s": median(rates), "least": min(rates), "most": max(rates)}
        rows.append(
            [name, f"{median(rates) / 1e6:.2f} M/s", f"{min(rates) / 1e6:.2f}-{max(rates) / 1e6:.2f}"]
        )
    print(machine.table(["PUBLISH of 100 bytes", "decoded", "of rounds"], rows))
    print(machine.save("mqtt_decoder", results))
    return 0


def measure(connect: bytes, stream: bytes, seconds: float) -> float:
    """Messages a second of processor time, of one connection that is fed `stream` again and again."""
    sink = CountingSink()
    connection = ServerConnection(ConnectionSettings(), sink, 0.0)
    connection.receive_data(connect, 0.0)
    connection.events_received()
    connection.open_session(session_present=False)
    connection.data_to_send()
    chunks = [stream[at : at + CHUNK_BYTES] for at in range(0, len(stream), CHUNK_BYTES)]
    begin = time.process_time()
    while (elapsed := time.process_time() - begin) < seconds:
        for chunk in chunks:
            connection.receive_data(chunk, 0.0)
    assert connection.close_reason is None, connection.close_detail
    return sink.messages / elapsed


if __name__ == "__main__":
    sys.exit(main())
