"""The load engine as a client of MQTT 5."""

from dataclasses import replace

import pytest
from scripted_server import Peer, puback, publish_packet, scripted, stamped
from swarm_runs import counters_of

from loadtest.swarm import Plan, Swarm, SwarmError, read_stamp

CONNACK_5 = b"\x20\x06\x00\x00\x03\x21\x04\x00"  # with a receive maximum


def test_a_publisher_of_mqtt_5_sends_properties_and_takes_reason_codes() -> None:
    seen: list[bytes] = []

    def script(peer: Peer) -> None:
        assert peer.packet()[7:10] == b"T\x05\x02"
        peer.send(CONNACK_5)
        seen.extend(peer.packet() for _ in range(4))
        # Nobody subscribes; success with an empty list of properties; success; refused.
        peer.send(b"\x40\x03\x00\x01\x10" + b"\x40\x04\x00\x02\x00\x00" + puback(3) + b"\x40\x03\x00\x04\x97")
        peer.packet()

    properties = b"\x01\x01"
    plan = Plan(publishers=1, window=4, messages_max=4, topic="t", is_v5=True, publish_properties=properties)
    with scripted(script) as port:
        counters = counters_of(replace(plan, port=port))
    assert counters["acknowledged"] == 4
    assert counters["refused"] == 1
    assert counters["protocol_errors"] == counters["acks_unknown"] == 0
    for number, packet in enumerate(seen):
        assert packet[:10] == b"\x32\x6c\x00\x01t\x00" + bytes([number + 1]) + b"\x02" + properties
        stamp = read_stamp(packet[10:])
        assert stamp is not None
        assert stamp[1] == number


@pytest.mark.parametrize("properties", [b"", b"\x01\x01", b"\x26\x00\x01a\x00\xc8" + b"v" * 200])
def test_a_subscriber_of_mqtt_5_finds_the_payload_behind_properties(properties: bytes) -> None:
    size = len(properties)
    length = bytes([size]) if size < 128 else bytes([size % 128 | 0x80, size // 128])

    def script(peer: Peer) -> None:
        peer.packet()
        peer.send(CONNACK_5)
        assert peer.packet()[:5] == b"\x82\x19\x00\x01\x00"
        peer.send(b"\x90\x04\x00\x01\x00\x01")
        for number in range(3):
            peer.send(
                publish_packet(length + properties + stamped(0, number, 1), qos=1, packet_id=number + 1)
            )
        for number in range(3):
            assert peer.packet() == puback(number + 1)
        peer.send(b"\x30\x05\x00\x01t\x7f\x00")  # properties that end behind the packet
        peer.packet()

    plan = Plan(subscribers=1, publishers_tracked=1, filter="devices/+/telemetry", is_v5=True)
    with scripted(script) as port, Swarm(replace(plan, port=port)) as swarm:
        swarm.connect()
        while swarm.engine.counters_now()["ready"]:
            swarm.engine.run(0.01)
        counters = swarm.engine.counters_now()
    assert counters["delivered"] == 3
    assert counters["delivered_unstamped"] == counters["sequence_gaps"] == counters["sequence_repeats"] == 0
    assert counters["protocol_errors"] == 1


def test_a_subscription_of_mqtt_5_is_refused_with_any_code_that_is_an_error() -> None:
    def script(peer: Peer) -> None:
        peer.packet()
        peer.send(CONNACK_5)
        peer.packet()
        peer.send(b"\x90\x04\x00\x01\x00\x97")
        peer.packet()

    plan = Plan(subscribers=1, is_v5=True)
    with (
        scripted(script) as port,
        Swarm(replace(plan, port=port)) as swarm,
        pytest.raises(SwarmError, match="last code: 151"),
    ):
        swarm.connect()
