"""Load on NATS JetStream from prepared bytes, as `_wire_load` makes it for the native wire."""

import json
import select
import socket
import time
from typing import Any, Final

from benchmarks import _wire_load
from benchmarks._wire_load import ANSWER_TIMEOUT_S, BODY, STREAMS, in_turn

_RECEIVED_BYTES: Final = 1 << 20
_CONNECT: Final = b'CONNECT {"verbose":false,"pedantic":false,"lang":"benchmark","version":"1"}\r\n'
# Where the answers to a connection go; to the server they are one.
_INBOX: Final = b"inbox.%d"
# Of an acknowledgement, and the end of a delivered message.
_ACKNOWLEDGED: Final = _wire_load.marked(b'"seq":')
_DELIVERED: Final = _wire_load.marked(BODY + b"\r\n")


def send_batches(port: int, number: int, records: int, in_flight: int) -> float:
    """There are no batches: as many records on the way, over one connection."""
    return _publish(port, f"r{number}", records, connections=1, in_flight=in_flight)


def send_singly(port: int, number: int, records: int) -> float:
    """Seconds to publish records over ten connections."""
    return _publish(port, f"s{number}", records, connections=10, in_flight=100)


def _publish(port: int, name: str, records: int, *, connections: int, in_flight: int) -> float:
    """Seconds until that many are stored and acknowledged, round over the streams."""
    for one in range(STREAMS):
        config = {"name": f"{name}-{one}", "subjects": [f"{name}.{one}"], "storage": "file"}
        call(port, f"STREAM.CREATE.{name}-{one}", config)
    requests = [
        in_turn([_request(b"%s.%d" % (name.encode(), one), connection, BODY) for one in range(STREAMS)])
        for connection in range(connections)
    ]
    took_s = _wire_load.pipeline(
        port, lambda connection, number: requests[connection](connection, number),
        connections=connections, in_flight=in_flight, count=records, answers=_ACKNOWLEDGED, opening=_opening,
    )  # fmt: skip
    stored = sum(call(port, f"STREAM.INFO.{name}-{one}", {})["state"]["messages"] for one in range(STREAMS))
    assert stored == records, f"{stored} of {records} records are stored"
    return took_s


def read(port: int, number: int, records: int, at_a_time: int) -> float:
    """Seconds to read what `send_batches` stored, a connection and a request in flight for each stream.

    Consumers acknowledge nothing, as the pulls beside it commit nothing.
    """
    names = [f"r{number}-{one}" for one in range(STREAMS)]
    for name in names:
        # A consumer remembers what it has read.
        consumer = f"by{at_a_time}"
        config = {"name": consumer, "ack_policy": "none", "deliver_policy": "all", "mem_storage": True}
        # It ends by itself some time after the benchmark has read it.
        config |= {"inactive_threshold": 60_000_000_000}
        call(port, f"CONSUMER.CREATE.{name}.{consumer}", {"stream_name": name, "config": config})
    wanted = json.dumps({"batch": at_a_time, "no_wait": True}).encode()
    poll = select.epoll()
    readers: dict[int, _Reader] = {}
    try:
        for connection, name in enumerate(names):
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{name}.by{at_a_time}".encode()
            request = _request(subject, connection, wanted)
            reader = _Reader(port, _opening(connection), request, records // STREAMS)
            readers[reader.socket.fileno()] = reader
            poll.register(reader.socket.fileno(), select.EPOLLIN)
        began_s = time.perf_counter()
        for reader in readers.values():
            reader.ask(at_a_time)
        unfinished = STREAMS
        while unfinished:
            ready = poll.poll(ANSWER_TIMEOUT_S)
            if not ready:
                raise TimeoutError("a request for messages was not answered")
            for descriptor, _ in ready:
                reader = readers[descriptor]
                reader.receive()
                if reader.left == 0:
                    unfinished -= 1
                elif reader.due == 0:
                    reader.ask(at_a_time)
        return time.perf_counter() - began_s
    finally:
        poll.close()
        for reader in readers.values():
            reader.socket.close()


class _Reader:
    """A connection that asks for messages of one stream."""

    __slots__ = ("due", "left", "request", "rest", "socket")

    def __init__(self, port: int, opening: bytes, request: bytes, records: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
        self.socket.sendall(opening)
        self.request = request
        self.left = records
        self.due = 0
        self.rest = b""

    def ask(self, records: int) -> None:
        """Ask for so many, or for those that are left."""
        self.due = min(records, self.left)
        self.socket.sendall(self.request)

    def receive(self) -> None:
        """Receive once, and count what is whole."""
        data = self.socket.recv(_RECEIVED_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        data = self.rest + data
        count, end = _DELIVERED(data, len(data))
        self.rest = data[end:]
        self.due -= count
        self.left -= count


def _opening(connection: int) -> bytes:
    return _CONNECT + b"SUB %s 1\r\n" % (_INBOX % connection)


def _request(subject: bytes, connection: int, text: bytes) -> bytes:
    return b"PUB %s %s %d\r\n%s\r\n" % (subject, _INBOX % connection, len(text), text)


def forget(port: int) -> None:
    """Remove all streams."""
    for name in call(port, "STREAM.NAMES", {})["streams"] or ():
        call(port, f"STREAM.DELETE.{name}", {})


def call(port: int, subject: str, request: dict[str, Any]) -> dict[str, Any]:
    """One request of JetStream's API on a connection of its own, and its answer."""
    text = json.dumps(request).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S) as peer:
        peer.sendall(_opening(0) + _request(b"$JS.API." + subject.encode(), 0, text))
        data = b""
        while True:
            received = peer.recv(_RECEIVED_BYTES)
            if not received:
                raise ConnectionError(f"the server closed the connection: {data[-300:]!r}")
            data += received
            head, _, behind = data[data.find(b"MSG inbox.0 1 ") :].partition(b"\r\n")
            if head.startswith(b"MSG") and len(behind) >= int(head.split()[-1]) + 2:
                answer: dict[str, Any] = json.loads(behind[: int(head.split()[-1])])
                assert "error" not in answer, answer
                return answer
