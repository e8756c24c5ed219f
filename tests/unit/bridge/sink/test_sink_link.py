"""The way of the sink to one broker, over connections that tests make and break."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from iotmq.bridge.cluster import Cluster, Retry
from iotmq.bridge.sink.link import BrokerLink, Message
from iotmq.errors import ConnectionClosedError
from iotmq.remoting.command import Command

ADDRESS = ("127.0.0.1", 1)


class Wire:
    """One connection: answers what was sent over it, and knows nothing of others."""

    def __init__(self, stored: list[bytes]) -> None:
        self._stored = stored
        self._asked: dict[int, Command] = {}
        self.is_closed = False

    def send(self, command: Command) -> int:
        if self.is_closed:
            raise ConnectionClosedError("closed")
        self._stored.append(bytes(command.body_bytes()))
        self._asked[len(self._asked)] = command
        return len(self._asked) - 1

    def wait(self, opaque: int, timeout_s: float) -> bool:
        assert opaque in self._asked
        return True

    def receive(self, opaque: int) -> Command:
        return self._asked.pop(opaque).reply(0)

    def request(self, command: Command) -> Command:
        return self.receive(self.send(command))

    def close(self) -> None:
        self.is_closed = True


def message(body: bytes) -> Message:
    return Message("T", 0, body, "", False, "1 rows")


def test_what_is_on_its_way_is_sent_again_in_order_when_somebody_else_gave_the_connection_up() -> None:
    """As the look for an earlier try does, which asks every broker and waits for none."""
    sent: list[bytes] = []
    retry = Retry(5.0, sleep=lambda _s: None)
    cluster = Cluster((), request_timeout_s=1.0, retry=retry, connect=lambda *_: Wire(sent))
    link = BrokerLink(cluster, "broker-a", ADDRESS, in_flight_bytes=1_000)
    link.send(message(b"0"))
    cluster.drop(ADDRESS)
    link.send(message(b"1"))
    assert sent == [b"0", b"0", b"1"]
    cluster.drop(ADDRESS)
    link.drain()
    assert sent == [b"0", b"0", b"1", b"0", b"1"]
    link.drain()
    assert len(sent) == 5
