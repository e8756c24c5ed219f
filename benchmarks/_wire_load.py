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
from functools import partial
from typing import Final

from iotmq.remoting.codes import RequestCode, Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import FrameReader, encode

_SIZE: Final = struct.Struct(">I")
_RECEIVED_BYTES: Final = 1 << 20
_NEXT_OFFSET: Final = b'"nextBeginOffset":"'
_HEADER_BYTES: Final = 400
_PULLS_IN_FLIGHT: Final = 8
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

    __slots__ = ("buffer", "rest", "socket", "view")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Memory that is used again: new pages for all that arrives would cost more than the rest.
        self.buffer = bytearray(_RECEIVED_BYTES)
        self.view = memoryview(self.buffer)
        self.rest = 0


def pipeline(
    port: int,
    requests: Callable[[int, int], bytes],
    *,
    connections: int,
    in_flight: int,
    count: int,
    answers: Callable[[bytearray, int], tuple[int, int]] | None = None,
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


def _received(peer: _Peer, answers: Callable[[bytearray, int], tuple[int, int]]) -> int:
    """Receive once; how many answers are whole now."""
    received = peer.socket.recv_into(peer.view[peer.rest :])
    if not received:
        raise ConnectionError("the broker closed the connection, or an answer is too long")
    size = peer.rest + received
    count, end = answers(peer.buffer, size)
    peer.rest = size - end
    peer.buffer[: peer.rest] = peer.view[end:size]
    return count


def _frames(data: bytearray, size: int) -> tuple[int, int]:
    at, count = 0, 0
    unpack = _SIZE.unpack_from
    while at + 4 <= size:
        end = at + 4 + unpack(data, at)[0]
        if end > size:
            break
        at = end
        count += 1
    return count, at


def marked(mark: bytes) -> Callable[[bytes | bytearray, int], tuple[int, int]]:
    """Answers for `pipeline` that have this mark once each, and nowhere else."""

    def answers(data: bytes | bytearray, size: int) -> tuple[int, int]:
        count = data.count(mark, 0, size)
        end = data.rindex(mark, 0, size) + len(mark) if count else 0
        # The start of the next mark may be at the end.
        return count, max(end, size - len(mark) + 1)

    return answers


def pull_all(port: int, topic: str, *, queues: int, records_each: int, records: int, bytes_max: int) -> float:
    """Read every queue to its end, over one connection each; returns the seconds taken.

    Some pulls of a connection are in flight, so that what arrives and leaves at once costs the load one call.
    RocketMQ answers them in any order; each has to bring all of its records.
    """
    frames: list[list[bytes]] = []
    expected: list[set[bytes]] = []
    for queue_id in range(queues):
        # Only the offset changes, in as many digits each time.
        fields = pull_fields(topic, queue_id, 0, records, bytes_max)
        fields["queueOffset"] = _OFFSET_DIGITS
        before, _, behind = frame(RequestCode.PULL_MESSAGE, fields).partition(_OFFSET_DIGITS.encode())
        offsets = range(0, records_each, records)
        frames.append([b"%s%012d%s" % (before, offset, behind) for offset in offsets])
        ends = [min(offset + records, records_each) for offset in offsets]
        expected.append({b"%d" % end for end in ends})
    poll = select.epoll()
    peers: dict[int, tuple[_Peer, int]] = {}
    answered = [0] * queues
    try:
        for queue_id in range(queues):
            peer = _Peer(port)
            peers[peer.socket.fileno()] = peer, queue_id
            poll.register(peer.socket.fileno(), select.EPOLLIN)
        began_s = time.perf_counter()
        for peer, queue_id in peers.values():
            peer.socket.sendall(b"".join(frames[queue_id][:_PULLS_IN_FLIGHT]))
        unfinished = queues
        while unfinished:
            ready = poll.poll(ANSWER_TIMEOUT_S)
            if not ready:
                raise TimeoutError("a pull was not answered")
            for descriptor, _ in ready:
                peer, queue_id = peers[descriptor]
                done = answered[queue_id]
                answered[queue_id] += _received(peer, partial(_pulled, expected[queue_id]))
                asked = done + _PULLS_IN_FLIGHT
                more = frames[queue_id][asked : answered[queue_id] + _PULLS_IN_FLIGHT]
                if more:
                    peer.socket.sendall(b"".join(more))
                unfinished -= answered[queue_id] == len(frames[queue_id])
        return time.perf_counter() - began_s
    finally:
        poll.close()
        for peer, _ in peers.values():
            peer.socket.close()


def _pulled(expected: set[bytes], data: bytearray, size: int) -> tuple[int, int]:
    """As `_frames`; each answer's next offset is one of those expected, once. KeyError where it is not."""
    at, count = 0, 0
    while at + 4 <= size:
        end = at + 4 + _SIZE.unpack_from(data, at)[0]
        if end > size:
            break
        # The header comes first, and is far shorter.
        begin = data.index(_NEXT_OFFSET, at, at + _HEADER_BYTES) + len(_NEXT_OFFSET)
        expected.remove(bytes(data[begin : data.index(b'"', begin)]))
        at = end
        count += 1
    return count, at


def per_second(counts: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Rates of the rounds."""
    return [count / took_s for count, took_s in zip(counts, seconds, strict=True)]
