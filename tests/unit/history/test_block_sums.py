"""Sums of blocks: as number by number, at the largest too; a block of another file adds nothing."""

from __future__ import annotations

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.history.block_sums import BlockSums, largest_id, row_of

LARGEST = 2**64 - 1
COLUMNS = 3
NAMES = 5

Rows = list[tuple[int, tuple[int, ...]]]
numbers = st.one_of(st.integers(0, LARGEST), st.sampled_from([0, 1, LARGEST - 1, LARGEST]))
blocks = st.lists(
    st.lists(st.tuples(st.integers(0, NAMES - 1), st.tuples(*[numbers] * COLUMNS)), max_size=8), max_size=4
)


def encoded(rows: Rows) -> tuple[bytes, bytes]:
    counts = [count for _, each in rows for count in each]
    ids = [number for number, _ in rows]
    return struct.pack(f">{len(ids)}I", *ids), struct.pack(f">{len(counts)}Q", *counts)


@given(blocks)
def test_blocks_add_up_number_by_number(made: list[Rows]) -> None:
    sums = BlockSums(NAMES, COLUMNS)
    expected: dict[int, list[int]] = {number: [0] * COLUMNS for number in range(NAMES)}
    for rows in made:
        ids, counts = encoded(rows)
        sums.add(memoryview(ids), memoryview(counts))
        assert largest_id(ids) == max((number for number, _ in rows), default=-1)
        for number, each in rows:
            expected[number] = [
                min(one + other, LARGEST) for one, other in zip(expected[number], each, strict=True)
            ]
        for number in range(NAMES + 1):
            there = [row for row, (id_, _) in enumerate(rows) if id_ == number]
            assert row_of(ids, number) == (there or [-1])[0]
    assert sums.rows() == [(number, tuple(each)) for number, each in expected.items() if any(each)]


def test_a_block_of_another_file_is_refused_and_adds_nothing() -> None:
    sums = BlockSums(NAMES, COLUMNS)
    ids, counts = encoded([(NAMES - 1, (1, 2, 3)), (NAMES, (1, 1, 1))])
    with pytest.raises(ValueError, match="names that there are not"):
        sums.add(ids, counts)
    with pytest.raises(ValueError, match="names that there are not"):
        sums.add(b"\xff" * 4, bytes(8 * COLUMNS))
    for wrong in (counts[:-1], counts + b"0", counts + bytes(8), b""):
        with pytest.raises(ValueError, match="other columns"):
            sums.add(ids, wrong)
    assert sums.rows() == []
    sums.add(ids[:4], counts[: 8 * COLUMNS])
    assert sums.rows() == [(NAMES - 1, (1, 2, 3))]


@pytest.mark.parametrize(("names", "columns"), [(0, 1), (1, 0), (-1, 1)])
def test_sums_of_nothing_cannot_be_made(names: int, columns: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        BlockSums(names, columns)


def test_more_names_than_memory_has_room_for_are_refused() -> None:
    with pytest.raises(MemoryError):
        BlockSums(sys.maxsize, 5)
