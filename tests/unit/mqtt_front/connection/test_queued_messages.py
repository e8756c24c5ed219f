"""What waits behind a device's window: how many, how many bytes, and which message goes when it is full."""

from __future__ import annotations

from typing import Any

import pytest
from fake_gateway import FakeTransport, Front, receive, split_output

from iotmq.mqtt.codec import packets
from iotmq.mqtt.server.publish_sink import PublishSink
from iotmq.mqtt_front.connection.device import Device


class Bench:
    """A device with a window of one message, which is full."""

    def __init__(self, **settings: Any) -> None:
        self.front = Front(PublishSink(), in_flight_max=1, **settings)
        self.device: Device
        self.transport: FakeTransport
        self.device, self.transport = self.front.connect()
        assert self.device.deliver_message(b"t", b"first", 1)

    def deliver(self, count: int, *, size: int = 0, qos: int = 1) -> int:
        """How many of so many numbered messages were taken."""
        return sum(
            self.device.deliver_message(b"t", b"%d" % number + bytes(size), qos) for number in range(count)
        )

    @property
    def dropped(self) -> int:
        return self.front.group.dropped

    def taken(self) -> list[bytes]:
        """What the device gets when it acknowledges one after the other."""
        found = []
        output = self.device.data_to_send()
        while output:
            for first, body in split_output(output):
                assert first >> 4 == packets.PUBLISH
                topic_end = 2 + int.from_bytes(body[:2], "big")
                found.append(body[topic_end + 2 :].rstrip(b"\0"))
                packet_id = int.from_bytes(body[topic_end : topic_end + 2], "big")
                receive(self.device, packets.encode_acknowledgement(packets.PUBACK, packet_id))
            self.front.loop.run()
            output = self.transport.take()
        return found[1:]


def numbers(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


def test_messages_at_their_limit_and_past_it_are_refused() -> None:
    bench = Bench(queued_messages_max=3)
    assert bench.deliver(10) == 3
    assert bench.dropped == 0, "who delivers counts what is not taken"
    assert bench.taken() == numbers(0, 1, 2)
    assert bench.deliver(2) == 2, "there is room again"


def test_or_the_oldest_make_room() -> None:
    bench = Bench(queued_messages_max=3, drops_oldest=True)
    assert bench.deliver(3) == 3
    assert bench.dropped == 0
    assert bench.deliver(10) == 10
    assert bench.dropped == 10
    assert bench.taken() == numbers(7, 8, 9)


@pytest.mark.parametrize("drops_oldest", [False, True])
def test_bytes_have_the_same_two_ways(drops_oldest: bool) -> None:
    bench = Bench(queued_bytes_max=16 * 1024, drops_oldest=drops_oldest)
    accepted = bench.deliver(100, size=1_000)
    assert bench.device.queued_bytes <= 16 * 1024 + 100
    kept = bench.taken()
    assert 14 <= len(kept) <= 16
    if drops_oldest:
        assert accepted == 100
        assert bench.dropped == 100 - len(kept)
        assert kept == numbers(*range(100 - len(kept), 100))
    else:
        assert kept == numbers(*range(accepted))


def test_a_large_message_takes_the_place_of_many_and_of_none_that_wait() -> None:
    bench = Bench(queued_bytes_max=16 * 1024, drops_oldest=True)
    assert bench.deliver(10, size=1_000) == 10
    assert bench.device.deliver_message(b"t", b"large" + bytes(20_000), 1)
    assert bench.dropped == 10
    assert bench.taken() == [b"large"]


def test_memory_stays_bounded_while_the_oldest_go() -> None:
    bench = Bench(queued_messages_max=5, drops_oldest=True)
    for _ in range(100):
        bench.deliver(100, size=100)
    assert bench.device.queued_bytes < 2_000
    assert bench.dropped == 10_000 - 5
    assert bench.taken() == numbers(95, 96, 97, 98, 99)


def test_qos_0_does_not_wait_there() -> None:
    bench = Bench(queued_messages_max=1)
    assert bench.deliver(5) == 1
    assert bench.deliver(5, qos=0) == 5
