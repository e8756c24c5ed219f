"""Load on Redis Streams from prepared bytes, as `_wire_load` makes it for the native wire."""

import select
import socket
import time
from typing import Final

from benchmarks import _wire_load
from benchmarks._wire_load import ANSWER_TIMEOUT_S, BODY, STREAMS, in_turn

_ENTRY: Final = b"$%d\r\n" % len(BODY)
_RECEIVED_BYTES: Final = 1 << 20
_ANSWERS: Final = _wire_load.marked(b"$")


def send_batches(port: int, number: int, records: int, in_flight: int) -> float:
    """There are no batches: as many records on the way, over one connection."""
    return _xadd(port, f"r{number}-", records, connections=1, in_flight=in_flight)


def send_singly(port: int, number: int, records: int) -> float:
    """Seconds to add records over ten connections."""
    return _xadd(port, f"s{number}-", records, connections=10, in_flight=100)


def _xadd(port: int, name: str, records: int, *, connections: int, in_flight: int) -> float:
    """Seconds to add records, round over the streams."""
    requests = in_turn(
        [words_of(b"XADD", b"%s%d" % (name.encode(), one), b"*", b"b", BODY) for one in range(STREAMS)]
    )
    took_s = _wire_load.pipeline(
        port, requests, connections=connections, in_flight=in_flight, count=records, answers=_ANSWERS
    )
    stored = sum(int(call(port, b"XLEN", b"%s%d" % (name.encode(), one))[1:]) for one in range(STREAMS))
    assert stored == records, f"{stored} of {records} records are stored"
    return took_s


def read(port: int, number: int, records: int, at_a_time: int) -> float:
    """Seconds to read what `send_batches` stored, a connection and a command in flight for each stream."""
    poll = select.epoll()
    streams: dict[int, tuple[socket.socket, bytes]] = {}
    left: dict[int, int] = {}
    data: dict[int, bytearray] = {}
    try:
        for one in range(STREAMS):
            peer = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
            streams[peer.fileno()] = (peer, b"r%d-%d" % (number, one))
            left[peer.fileno()] = records // STREAMS
            data[peer.fileno()] = bytearray()
            poll.register(peer.fileno(), select.EPOLLIN)
        count_text = b"%d" % at_a_time
        began_s = time.perf_counter()
        for peer, name in streams.values():
            peer.sendall(words_of(b"XREAD", b"COUNT", count_text, b"STREAMS", name, b"0"))
        unfinished = STREAMS
        while unfinished:
            ready = poll.poll(ANSWER_TIMEOUT_S)
            if not ready:
                raise TimeoutError("an XREAD was not answered")
            for descriptor, _ in ready:
                peer, name = streams[descriptor]
                answer = data[descriptor]
                answer += peer.recv(_RECEIVED_BYTES)
                entries = min(at_a_time, left[descriptor])
                last = answer.rfind(_ENTRY)
                if len(answer) - last != len(_ENTRY) + len(BODY) + 2 or answer.count(_ENTRY) < entries:
                    continue
                left[descriptor] -= entries
                # Its id stands two lines before the fields of the last entry.
                head = answer.rfind(b"\r\n*2\r\n$1\r\nb", 0, last)
                last_id = bytes(answer[answer.rfind(b"\n", 0, head) + 1 : head])
                answer.clear()
                if left[descriptor]:
                    peer.sendall(words_of(b"XREAD", b"COUNT", count_text, b"STREAMS", name, last_id))
                else:
                    unfinished -= 1
        return time.perf_counter() - began_s
    finally:
        poll.close()
        for peer, _ in streams.values():
            peer.close()


def forget(port: int) -> None:
    """Remove all that was stored, which Redis keeps in memory."""
    call(port, b"FLUSHALL")


def words_of(*words: bytes) -> bytes:
    """A command as it goes over the wire."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%s\r\n" % (len(word), word) for word in words])


def call(port: int, *words: bytes) -> bytes:
    """One command on a connection of its own, and the start of its answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S) as peer:
        peer.sendall(words_of(*words))
        return peer.recv(_RECEIVED_BYTES)
