"""Ids of records of a broker, one and many."""

from __future__ import annotations

from iotmq.broker.writing.message_ids import OffsetMessageIds
from iotmq.message.hosts import encode_host
from iotmq.message.message_ids import offset_message_id


def test_the_golden_id() -> None:
    ids = OffsetMessageIds(encode_host("127.0.0.1", 10911))
    assert ids.one(4096) == "7F00000100002A9F0000000000001000"


def test_many_ids_are_those_of_each() -> None:
    positions = [0, 1, 4096, 255 << 32, 2**63 - 1]
    for host in ("127.0.0.1", "::1"):
        ids = OffsetMessageIds(encode_host(host, 10911))
        expected = [offset_message_id(host, 10911, position) for position in positions]
        assert ids.joined(positions).split(",") == expected
        assert [ids.one(position) for position in positions] == expected
