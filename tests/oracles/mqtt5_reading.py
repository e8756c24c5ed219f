"""What a device of MQTT 5 makes of the PUBLISH packets it gets."""

from __future__ import annotations

from dataclasses import dataclass

from fake_gateway import split_output

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.field_reader import FieldReader
from iotmq.mqtt.codec.properties import Properties, read_properties


@dataclass(frozen=True)
class Received:
    """A PUBLISH of MQTT 5; `topic` is empty when an alias stands for it."""

    topic: str
    payload: bytes
    qos: int
    is_retained: bool
    is_duplicate: bool
    packet_id: int
    properties: Properties


def read_publish5(packet: tuple[int, bytes]) -> Received:
    """The PUBLISH that (first byte, body) is."""
    first, body = packet
    assert first >> 4 == packets.PUBLISH
    reader = FieldReader(body, "PUBLISH")
    topic = reader.binary().decode()
    qos = first >> 1 & 3
    packet_id = reader.u16() if qos else 0
    properties = read_properties(reader, packets.PUBLISH)
    payload = b""
    while not reader.is_at_end:
        payload += reader.take(1)
    return Received(topic, payload, qos, bool(first & 1), bool(first & 8), packet_id, properties)


def read_all5(output: bytes) -> list[Received]:
    """The PUBLISH packets in what a server wrote."""
    return [read_publish5(packet) for packet in split_output(output) if packet[0] >> 4 == packets.PUBLISH]
