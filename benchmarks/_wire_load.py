"""Load on the native wire from prepared bytes: the generator must never be what is measured.

Connections are plain sockets under one epoll. Each keeps a number of requests in flight: for every answer
that arrives, one more request leaves, and those of one arrival leave in one write, as they do from clients
that pipeline.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from iotmq.remoting.codes import RequestCode, Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import FrameReader, encode

_SIZE: Final = struct.Struct(">I")
_RECEIVED_BYTES: Final = 1 << 20
_NEXT_OFFSET: Final = b'"nextBeginOffset":"'
_HEADER_BYTES: Final = 400
_OFFSET_DIGITS: Final = "999999999999"
ANSWER_TIMEOUT_S: Final = 30.0
BODY: Final = b"x" * 100
STREAMS: Final = 16
"""Queues of a topic, or streams where there are no queues."""


def frame(
    code: int,
    ext: Mapping[str, str],
    body: bytes = b"",
    *,
    opaque: int = 1,
    is_binary: bool = False,
    is_oneway: bool = False,
) -> bytes:
    """One request as bytes, with the fields in the order given."""
    command = Command.request(
        code, ext, body, is_oneway, serialize=Serialize.BINARY if is_binary else Serialize.JSON
    )
    command.opaque = opaque
    return b"".join(encode(command))


def send_fields(topic: str, queue_id: int, properties: str = "") -> dict[str, str]:
    """The header of a send as Java producers write it."""
    return {
        "a": "benchmark",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": str(int(time.time() * 1000)),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }


def pull_fields(topic: str, queue_id: int, offset: int, records: int, bytes_max: int) -> dict[str, str]:
    """The header of a pull that brings its subscription along and does not wait; 0 bytes: the protocol's."""
    fields = {
        "consumerGroup": "benchmark",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(records),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    if bytes_max:
        fields["maxMsgBytes"] = str(bytes_max)
    return fields


def call(
    port: int, code: int, ext: Mapping[str, str], body: bytes = b"", *, timeout_s: float = ANSWER_TIMEOUT_S
) -> Command:
    """One request on a connection of its own, and its answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as peer:
        peer.sendall(frame(code, ext, body))
        reader = FrameReader()
        while True:
            data = peer.recv(_RECEIVED_BYTES)
            if not data:
                raise ConnectionError("the broker closed the connection")
            reader.receive_data(data)
            for command in reader.commands_received():
                return command


def create_topic(port: int, topic: str, queues: int) -> None:
    """Make a topic or change its queue count."""
    answer = call(
        port,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        },
    )
    assert answer.code == 0, answer


def stored_records(port: int, topic: str, queues: int) -> int:
    """How many records the queues of a topic have."""
    return sum(
        int(call(port, RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": str(number)}).ext["offset"])
        for number in range(queues)
    )


def in_turn(frames: Sequence[bytes]) -> Callable[[int, int], bytes]:
    """Requests for `pipeline` that go round over these, as producers do over queues."""
    turn = 0

    def requests(_connection: int, number: int) -> bytes:
        nonlocal turn
        first, turn = turn, turn + number
        return b"".join([frames[one % len(frames)] for one in range(first, first + number)])

    return requests


class _Peer:
    """A connection with requests in flight, and the start of an answer that is not whole yet."""

    __slots__ = ("rest", "socket")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""


def pipeline(
    port: int,
    requests: Callable[[int, int], bytes],
    *,
    connections: int,
    in_flight: int,
    count: int,
    answers: Callable[[bytes], tuple[int, int]] | None = None,
    opening: Callable[[int], bytes] | None = None,
) -> float:
    """Send `count` requests over `connections`, `in_flight` at a time over all; returns the seconds taken.

    `requests(connection, count)` gives the bytes of that many requests for a connection. Every answer is
    counted; what is in it is for the caller to check by what was stored. Other protocols bring their own
    `answers`, how many are whole in what arrived and where the last one ends, and the `opening` of a
    connection.
    """
    answers = answers or _frames
    poll = select.epoll()
    peers = {}
    each = in_flight // connections
    order: dict[int, int] = {}
    try:
        for number in range(connections):
            peer = _Peer(port)
            peers[peer.socket.fileno()] = peer
            order[peer.socket.fileno()] = number
            poll.register(peer.socket.fileno(), select.EPOLLIN)
            if opening is not None:
                peer.socket.sendall(opening(number))
        left, answered = count, 0
        began_s = time.perf_counter()
        for descriptor, peer in peers.items():
            first = min(each, left)
            left -= first
            peer.socket.sendall(requests(order[descriptor], first))
        while answered < count:
            ready = poll.poll(ANSWER_TIMEOUT_S)
            if not ready:
                raise TimeoutError(f"{answered} of {count} requests were answered")
            for descriptor, _ in ready:
                peer = peers[descriptor]
                arrived = _received(peer, answers)
                answered += arrived
                more = min(arrived, left)
                if more:
                    left -= more
                    peer.socket.sendall(requests(order[descriptor], more))
        return time.perf_counter() - began_s
    finally:
        poll.close()
        for peer in peers.values():
            peer.socket.close()


def _received(peer: _Peer, answers: Callable[[bytes], tuple[int, int]]) -> int:
    """Receive once; how many answers are whole now."""
    data = peer.socket.recv(_RECEIVED_BYTES)
    if not data:
        raise ConnectionError("the broker closed the connection")
    if peer.rest:
        data = peer.rest + data
    count, end = answers(data)
    peer.rest = data[end:]
    return count


def _frames(data: bytes) -> tuple[int, int]:
    at, count, size = 0, 0, len(data)
    unpack = _SIZE.unpack_from
    while at + 4 <= size:
        end = at + 4 + unpack(data, at)[0]
        if end > size:
            break
        at = end
        count += 1
    return count, at


def marked(mark: bytes) -> Callable[[bytes], tuple[int, int]]:
    """Answers for `pipeline` that have this mark once each, and nowhere else."""

    def answers(data: bytes) -> tuple[int, int]:
        count = data.count(mark)
        end = data.rindex(mark) + len(mark) if count else 0
        # The start of the next mark may be at the end.
        return count, max(end, len(data) - len(mark) + 1)

    return answers


def pull_all(port: int, topic: str, *, queues: int, records_each: int, records: int, bytes_max: int) -> float:
    """Read every queue to its end, one connection and one pull in flight each; returns the seconds taken."""
    poll = select.epoll()
    peers: dict[int, tuple[socket.socket, int]] = {}
    buffer = bytearray(8 * _RECEIVED_BYTES)
    view = memoryview(buffer)

    # Only the offset changes, in as many digits each time.
    parts = []
    for queue_id in range(queues):
        fields = pull_fields(topic, queue_id, 0, records, bytes_max)
        fields["queueOffset"] = _OFFSET_DIGITS
        parts.append(frame(RequestCode.PULL_MESSAGE, fields).partition(_OFFSET_DIGITS.encode()))

    def ask(peer: socket.socket, queue_id: int, offset: int) -> None:
        before, _, behind = parts[queue_id]
        peer.send(b"%s%012d%s" % (before, offset, behind))

    try:
        for queue_id in range(queues):
            peer = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
            peers[peer.fileno()] = (peer, queue_id)
            poll.register(peer.fileno(), select.EPOLLIN)
        began_s = time.perf_counter()
        for peer, queue_id in peers.values():
            ask(peer, queue_id, 0)
        unfinished = queues
        while unfinished:
            ready = poll.poll(ANSWER_TIMEOUT_S)
            if not ready:
                raise TimeoutError("a pull was not answered")
            for descriptor, _ in ready:
                peer, queue_id = peers[descriptor]
                received = peer.recv_into(buffer)
                if received < 8:
                    raise ConnectionError("the broker closed the connection")
                size = _SIZE.unpack_from(buffer)[0]
                while received < size + 4:
                    received += peer.recv_into(view[received:])
                # The header comes first and is far shorter.
                offset = _next_offset(buffer[:_HEADER_BYTES])
                if offset < records_each:
                    ask(peer, queue_id, offset)
                else:
                    unfinished -= 1
        return time.perf_counter() - began_s
    finally:
        poll.close()
        for peer, _ in peers.values():
            peer.close()


def _next_offset(header: bytearray) -> int:
    begin = header.index(_NEXT_OFFSET) + len(_NEXT_OFFSET)
    return int(header[begin : header.index(b'"', begin)])


def per_second(counts: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Rates of the rounds."""
    return [count / took_s for count, took_s in zip(counts, seconds, strict=True)]
