"""What the reader of all brokers remembers of their pushes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from fake_gateway import matches_of, record_of

from iotmq.client.client import IotmqClient
from iotmq.console.api.streams.message_reader import MessageReader
from iotmq.console.api.streams.positions import encode_positions


def made(positions: dict[str, int] | None = None) -> MessageReader:
    settings: Any = SimpleNamespace(tls_context=lambda: None)
    return MessageReader(cast(IotmqClient, SimpleNamespace(settings=settings)), positions)


def test_what_was_not_stored_is_no_place_to_come_back_to() -> None:
    """A reader that went on from 0 would get all that the broker has."""
    reader = made()
    reader.take("a", record_of("t", b"x"), matches_of((0, [1])))
    assert reader.position == encode_positions({})
    reader = made({"a": 70})
    reader.take("a", record_of("t", b"x"), matches_of((0, [1])))
    assert reader.position == encode_positions({"a": 70})
