"""Members of groups at a front end: what waits for a device, and what has it go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_gateway import FakeTransport, Front, read_publish, receive, split_output

from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_record
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt.server.publish_sink import CollectingSink
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.sessions.shared import SharedEgress, SharedSession
from iotmq.ports.sessions import ShareJoin, ShareReport


class Port:
    """Takes every member, and keeps what is reported."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def join_shares(self, number: int | None, joins: list[ShareJoin], done: Callable[[Any], None]) -> None:
        done([None for _ in joins])

    def report_shares(self, number: int, reports: list[ShareReport], done: Callable[[Any], None]) -> None:
        self.done += [position for report in reports for position in report.done]
        done(None)


def record(position: int, payload: bytes) -> bytes:
    properties = encode_properties({"MQTT_TOPIC": "t", "MQTT_QOS": "1"})
    return encode_record(topic="mqtt", body=payload, properties=properties, position=position)


class Bench:
    def __init__(self, **settings: Any) -> None:
        self.front = Front(CollectingSink(), **settings)
        self.port = Port()
        self.egress = SharedEgress(self.front.group, self.port, credit=100)  # type: ignore[arg-type]
        self.devices: list[Device] = []

    def member(self, client_id: str, *shares: str, qos: int = 1, **words: Any) -> FakeTransport:
        """A device in groups, the first of which has the next number."""
        device, out = self.front.connect(client_id, **words)
        self.egress.join(device, client_id, [(share, qos) for share in shares], lambda _: None)
        self.devices.append(device)
        return out

    def hand_out(self, position: int, payload: bytes, *members: int) -> None:
        data = record(position, payload)
        self.egress.hand_out(0, [(member, 0) for member in members], [data for _ in members])
        self.front.loop.run()
        self.check()

    def check(self) -> None:
        assert not self.front.loop.timers, "somebody polls"
        for device in self.devices:
            shares = device.shares
            assert isinstance(shares, SharedSession)
            shares.check_invariants()


def acknowledge(device: Device, *packet_ids: int) -> None:
    receive(device, b"".join(packets.encode_acknowledgement(packets.PUBACK, number) for number in packet_ids))


def payloads(out: FakeTransport) -> list[bytes]:
    return [read_publish(packet)[1] for packet in split_output(out.take())]


def test_an_acknowledgement_has_what_waits_go_on() -> None:
    bench = Bench(in_flight_max=1)
    out = bench.member("a", "$share/g/t")
    for position in (1, 2):
        bench.hand_out(position, b"%d" % position, 1)
    assert payloads(out) == [b"1"]
    acknowledge(bench.devices[0], 1)
    bench.front.loop.run()
    assert payloads(out) == [b"2"]
    acknowledge(bench.devices[0], 1, 2)
    bench.front.loop.run()
    bench.check()
    assert bench.port.done == [1, 2]


@pytest.mark.parametrize("high_water_bytes", [None, 10_000])
def test_what_did_not_fit_the_output_goes_on_when_the_socket_has_taken_it(
    high_water_bytes: int | None,
) -> None:
    bench = Bench(queued_bytes_max=4 * 4_096)
    out = bench.member("a", "$share/g/t", qos=0, high_water_bytes=high_water_bytes)
    data = [record(position, b"%04d" % position * 512) for position in range(12)]
    bench.egress.hand_out(0, [(1, 0)] * 12, data)
    assert bench.egress.copy_count > 0
    got: list[bytes] = []
    for _ in range(12):
        bench.front.loop.run()
        bench.check()
        got += payloads(out)
    assert [payload[:4] for payload in got] == [b"%04d" % position for position in range(12)]
    assert bench.egress.copy_count == 0


def test_a_message_that_many_memberships_wait_for_is_there_once() -> None:
    bench = Bench(in_flight_max=1)
    bench.member("a", *(f"$share/g{number}/t" for number in range(5)))
    bench.member("b", *(f"$share/g{number}/t" for number in range(5)), properties=Properties())
    for member in (1, 6):
        bench.hand_out(1, b"in flight", member)
    for position in (2, 3):
        bench.hand_out(position, b"x" * 1_000, *range(1, 11))
    assert bench.egress.copy_count == 2
    for packet_id in range(1, 12):
        acknowledge(bench.devices[0], packet_id)
        bench.front.loop.run()
        bench.check()
    assert bench.egress.copy_count == 2, "the other device waits for them"
    bench.egress.leave(bench.devices[1])
    assert bench.egress.copy_count == 0


def test_a_log_that_lost_its_end_has_another_message_at_the_same_place() -> None:
    bench = Bench(in_flight_max=1)
    outs = [bench.member(client_id, "$share/g/t") for client_id in "ab"]
    bench.hand_out(1, b"first", 1, 2)
    bench.hand_out(2, b"lost", 1)
    bench.hand_out(2, b"new!", 2)
    for device in bench.devices:
        acknowledge(device, 1)
    bench.front.loop.run()
    assert [payloads(out) for out in outs] == [[b"first", b"lost"], [b"first", b"new!"]]


def test_what_is_taken_back_is_not_written() -> None:
    bench = Bench(in_flight_max=1)
    out = bench.member("a", "$share/g/t")
    for position in range(1, 4):
        bench.hand_out(position, b"%d" % position, 1)
    bench.egress.withdraw(0, [(1, 1), (1, 2)])
    bench.check()
    assert bench.egress.withdrawn == 1, "the first was written"
    assert payloads(out) == [b"1"]
    acknowledge(bench.devices[0], 1)
    bench.front.loop.run()
    assert payloads(out) == [b"3"]
