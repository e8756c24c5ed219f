"""Message ids: where a record is, and keys that are never given twice."""

from __future__ import annotations

import os
import re

import pytest
from manual_clock import ManualClock

from iotmq.message.errors import MessageFormatError
from iotmq.message.hosts import encode_host
from iotmq.message.message_ids import (
    UniqueKeys,
    message_id_prefix,
    offset_message_id,
    parse_offset_message_id,
)


@pytest.mark.parametrize(
    ("host", "port", "position", "message_id"),
    [
        ("127.0.0.1", 10911, 4096, "7F00000100002A9F0000000000001000"),
        ("10.0.0.255", 65_535, 2**63 - 1, "0A0000FF0000FFFF7FFFFFFFFFFFFFFF"),
        ("::1", 10911, 4096, "0" * 31 + "1" + "00002A9F" + "0000000000001000"),
    ],
)
def test_offset_ids(host: str, port: int, position: int, message_id: str) -> None:
    assert offset_message_id(host, port, position) == message_id
    assert parse_offset_message_id(message_id) == (host, port, position)
    assert parse_offset_message_id(message_id.lower()) == (host, port, position)


def test_a_brokers_ids_share_their_start() -> None:
    prefix = message_id_prefix(encode_host("127.0.0.1", 10911))
    assert f"{prefix}{4096:016X}" == offset_message_id("127.0.0.1", 10911, 4096)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7F00000100002A9F000000000000100",
        "7F00000100002A9F00000000000010",
        "7F00000100002A9F00000000000010000",
        "7F00000100002A9F00000000000010 00",
        "7F00000100002A9F00000000000010ZZ",
        "7F00000100002A9FF000000000001000",
        "7F000001FF002A9F0000000000001000",
        "é" * 32,
    ],
)
def test_other_texts_are_no_message_ids(text: str) -> None:
    with pytest.raises(MessageFormatError, match="not a message id"):
        parse_offset_message_id(text)


def test_a_key_has_its_fields_in_hexadecimal() -> None:
    clock = ManualClock(now_ms=1_700_000_000_000)
    keys = UniqueKeys(clock=clock)
    key = keys.next()
    assert re.fullmatch(r"[0-9A-F]{32}", key)
    assert key[:8] == "7F000001"
    assert key[8:12] == f"{os.getpid() & 0xFFFF:04X}"
    # 2023-11-14T22:13:20Z is 13 days, 22:13:20 after the start of its month.
    assert int(key[20:28], 16) == (13 * 86_400 + 22 * 3600 + 13 * 60 + 20) * 1000
    assert key[28:] == "0000"


def test_keys_differ_within_a_millisecond_and_past_its_counter() -> None:
    clock = ManualClock()
    keys = UniqueKeys(clock=clock)
    given = keys.next_batch(70_000) + keys.next_batch(70_000) + [keys.next()]
    clock.advance(0.001)
    given += keys.next_batch(70_000)
    assert len(given) == 210_001
    assert len(set(given)) == len(given)
    assert given == sorted(given)


def test_keys_differ_when_the_clock_steps_back() -> None:
    clock = ManualClock()
    keys = UniqueKeys(clock=clock)
    given = keys.next_batch(100)
    clock.advance(-5)
    given += keys.next_batch(100)
    assert len(set(given)) == 200


def test_keys_differ_from_those_of_the_same_moment_of_another_month() -> None:
    # 31 days: from July 10 to August 10, the same milliseconds since the first.
    clock = ManualClock(now_ms=1_688_947_200_000)
    keys = UniqueKeys(clock=clock)
    july = keys.next()
    clock.advance(31 * 86_400)
    august = keys.next()
    assert july[20:] == august[20:]
    assert july != august


def test_the_year_ends() -> None:
    clock = ManualClock(now_ms=1_704_067_199_999)
    keys = UniqueKeys(clock=clock)
    assert int(keys.next()[20:28], 16) == 31 * 86_400_000 - 1
    clock.advance(0.001)
    assert int(keys.next()[20:28], 16) == 0


def test_generators_of_one_process_do_not_share_keys() -> None:
    clock = ManualClock()
    assert UniqueKeys(clock=clock).next() != UniqueKeys(clock=clock).next()


def test_a_forked_generator_goes_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = UniqueKeys(clock=ManualClock())
    parent = keys.next()
    monkeypatch.setattr("os.getpid", lambda: 12_345)
    child = keys.next()
    assert child[8:12] == f"{12_345:04X}"
    assert child[12:20] != parent[12:20]
