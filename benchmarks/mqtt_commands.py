"""`iotmq pub -l` and `iotmq sub` beside Mosquitto's clients: messages a second, where no server is the limit.

The server is a thread of this process that knows MQTT 3.1.1 just enough: it counts bytes of PUBLISH packets
that are all of one size and acknowledges them, or floods a subscriber with one packet. So what is measured is
the client, from its first message to its last, without its start.
"""

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import machine
from iotmq.mqtt.codec import packets

TOPIC: Final = "devices/4711/telemetry"
CLIENTS: Final = {"mosquitto": "mosquitto_{}", "iotmq": f"{sys.executable} -m iotmq {{}}"}
_CHUNK_BYTES: Final = 1024 * 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every row, the clients in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    # mosquitto_pub 2.0 ends with the packet id of its last line, which comes early past 65,535 of them.
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--payload-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    if shutil.which("mosquitto_pub") is None:
        print("mosquitto_pub and mosquitto_sub are not installed", file=sys.stderr)
        return 1
    payload = b"x" * options.payload_bytes
    with tempfile.TemporaryDirectory() as directory:
        lines = Path(directory) / "lines"
        lines.write_bytes((payload + b"\n") * options.messages)
        rows: dict[str, Callable[[str], float]] = {
            "pub -l, QoS 0": lambda client: published(client, lines, payload, options.messages, qos=0),
            "pub -l, QoS 1": lambda client: published(client, lines, payload, options.messages, qos=1),
            "sub, QoS 0": lambda client: subscribed(client, payload, options.messages),
        }
        results = {name: _rates(measure, options.messages, options.rounds) for name, measure in rows.items()}
    table = [
        [name, *(f"{median(rates[client]):,.0f}" for client in CLIENTS)] for name, rates in results.items()
    ]
    print(machine.table(["messages a second", *CLIENTS], table))
    print(machine.save("mqtt_commands", results))
    return 0


def _rates(measure: Callable[[str], float], count: int, rounds: int) -> dict[str, list[float]]:
    """Messages a second of each client, which take turns."""
    rates: dict[str, list[float]] = {client: [] for client in CLIENTS}
    for _ in range(rounds):
        for client, found in rates.items():
            found.append(count / measure(client))
    return rates


def published(client: str, lines: Path, payload: bytes, count: int, *, qos: int) -> float:
    """Seconds from the first PUBLISH to the last."""
    size = len(packets.encode_publish(TOPIC, payload, qos=qos, packet_id=1))

    def serve(peer: socket.socket) -> float:
        received, done = 0, 0
        began_s = 0.0
        while received < count * size:
            data = peer.recv(_CHUNK_BYTES)
            assert data, f"the client left after {received // size} messages"
            began_s = began_s or time.perf_counter()
            received += len(data)
            if qos and received // size > done:
                # Both clients give packet ids in their order, from 1 on.
                ids = (number % 65_535 + 1 for number in range(done, received // size))
                peer.sendall(b"".join(packets.encode_acknowledgement(packets.PUBACK, one) for one in ids))
                done = received // size
        seconds = time.perf_counter() - began_s
        peer.recv(_CHUNK_BYTES)
        return seconds

    with lines.open("rb") as source:
        return _run(client, "pub", ["-l", "-q", str(qos)], serve, source=source)


def subscribed(client: str, payload: bytes, count: int) -> float:
    """Seconds from the first PUBLISH until the client has said good-bye."""
    packet = packets.encode_publish(TOPIC, payload)

    def serve(peer: socket.socket) -> float:
        subscribe = peer.recv(_CHUNK_BYTES)
        peer.sendall(packets.encode_suback(int.from_bytes(subscribe[2:4], "big"), [0]))
        began_s = time.perf_counter()
        at_a_time = 1_000
        for _ in range(count // at_a_time):
            peer.sendall(packet * at_a_time)
        assert peer.recv(_CHUNK_BYTES) == packets.DISCONNECT_PACKET
        return time.perf_counter() - began_s

    return _run(client, "sub", ["-C", str(count // 1_000 * 1_000)], serve, source=None)


def _run(
    client: str, what: str, words: list[str], serve: Callable[[socket.socket], float], *, source: object
) -> float:
    """What `serve` measured of one run of a client."""
    measured: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                peer.recv(_CHUNK_BYTES)
                peer.sendall(packets.encode_connack(0, session_present=False))
                measured.append(serve(peer))

        server = threading.Thread(target=accept)
        server.start()
        command = CLIENTS[client].format(what).split()
        port = str(listener.getsockname()[1])
        subprocess.run(
            [*command, "-V", "311", "-p", port, "-t", TOPIC, *words],
            stdin=source,  # type: ignore[arg-type]
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=120,
        )
        server.join()
    return measured[0]


if __name__ == "__main__":
    sys.exit(main())
