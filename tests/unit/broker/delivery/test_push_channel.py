"""Places of records that are to be pushed: they hold for the stretch of the log they were found in."""

from __future__ import annotations

import struct

import pytest

from iotmq.broker.delivery.delivery import gather
from iotmq.broker.light_queues.light_queues import LightQueues
from iotmq.broker.light_queues.queued_push import gather_queued
from iotmq.message.records.record import encode_record


def record(topic: str, body: bytes, *, native_topic: str = "mqtt") -> bytes:
    return encode_record(
        topic=native_topic, body=body, properties=b"MQTT_TOPIC\x01%s\x02" % topic.encode(), position=0
    )


def test_places_of_a_stretch_that_failed_are_not_used_for_another() -> None:
    is_broken = True
    pushed: list[tuple[bytes, bytes]] = []

    def on_own_record(*_: object) -> None:
        if is_broken:
            raise OSError("the database cannot be read")

    queues = LightQueues("own", on_own_record)
    channel = queues.open_channel(lambda records, pushes: pushed.append((bytes(records), pushes)))
    queue_id = queues.subscribe("a")
    queues.attach(channel, queue_id)
    failed = record("b", bytes(5000)) + record("a", b"1") + record("", b"", native_topic="own")
    with pytest.raises(OSError, match="cannot be read"):
        queues.collect(failed)
    is_broken = False
    again = record("a", b"2")
    queues.collect(again)
    assert pushed == [(again, struct.pack(">II", 0, queue_id))]


@pytest.mark.parametrize("place", [1, 100, 1 << 31])
def test_a_place_without_a_whole_record_is_refused(place: int) -> None:
    records = record("a", b"x")
    assert gather_queued(records, struct.pack(">II", 0, 7), 0, 10)[0] == records
    assert gather(records, struct.pack(">III", 0, 1, 7))[0] == records
    with pytest.raises(ValueError, match="no record at"):
        gather_queued(records, struct.pack(">II", place, 7), 0, 10)
    with pytest.raises(ValueError, match="no record at"):
        gather(records, struct.pack(">III", place, 1, 7))
    with pytest.raises(ValueError, match="no record at"):
        gather_queued(records[:-1], struct.pack(">II", 0, 7), 0, 10)
