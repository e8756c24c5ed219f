"""Small records with a checksum: what they say, and what they do not say once damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from iotmq.store.files.state_record import (
    State,
    decode_state,
    encode_state,
    read_state,
    sealed,
    unsealed,
    write_state,
)

A, B = b"iotmqAA1", b"iotmqBB1"


def test_layout() -> None:
    record = encode_state(A, 1, -2)
    assert record[:24] == A + (1).to_bytes(8, "big") + (-2).to_bytes(8, "big", signed=True)
    assert len(record) == 28
    assert decode_state(record, B, A, count=2) == State(A, (1, -2))


def test_another_magic_or_count_is_nothing() -> None:
    record = encode_state(A, 1, 2)
    assert decode_state(record, B, count=2) is None
    assert decode_state(record, A, count=1) is None
    assert decode_state(record, A, count=3) is None


def test_damage_anywhere_is_noticed() -> None:
    record = encode_state(A, 1 << 40, 7, 0)
    for at in range(len(record)):
        for bit in range(8):
            damaged = record[:at] + bytes((record[at] ^ 1 << bit,)) + record[at + 1 :]
            assert decode_state(damaged, A, count=3) is None
        assert decode_state(record[:at], A, count=3) is None
    assert decode_state(record + b"\0", A, count=3) is None


@pytest.mark.parametrize("data", [b"", b"x", bytes(3), bytes(4)])
def test_what_is_too_short_is_not_sealed(data: bytes) -> None:
    assert unsealed(data) is None
    assert unsealed(sealed(data + b"x")) == data + b"x"


def test_written_in_place_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert read_state(str(path), A, count=3) is None
    assert read_state(str(path / "below"), A, count=3) is None
    write_state(str(path), encode_state(A, 1, 2, 3), fail_point="test")
    inode = os.stat(path).st_ino
    assert read_state(str(path), A, count=3) == State(A, (1, 2, 3))
    assert read_state(str(path / "below"), A, count=3) is None
    write_state(str(path), encode_state(B, 4), fail_point="test")
    assert (os.stat(path).st_ino, read_state(str(path), A, B, count=1)) == (inode, State(B, (4,)))
