"""Files of statistics: what was written is read, and what a crash has left is passed over."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from iotmq import limits
from iotmq.history.questions import Table
from iotmq.history.statistics_file import (
    Chosen,
    Rows,
    StatisticsFile,
    decode_blocks,
    first_time,
    read_file,
)

NOW_MS = 1_700_000_000_000


def rows(time_ms: int, table: Table = "groups", **counts: tuple[int, ...]) -> Rows:
    return Rows(table, time_ms, counts)


def shown(data: bytes, chosen: Chosen | None = None) -> list[tuple[str, int, dict[str, list[int]]]]:
    content = decode_blocks(data, chosen)
    return [
        (
            block.table,
            block.time_ms,
            {
                content.names[block.table][number]: list(block.row(row))
                for row, (number,) in enumerate(struct.iter_unpack(">I", block.ids))
            },
        )
        for block in content.blocks
    ]


def write(path: Path, *steps: Rows, names_max: int = 10) -> None:
    StatisticsFile(path, names_max=names_max).append(steps, is_synced=True)


THREE = (
    rows(NOW_MS, a=(1, 2, 3), b=(2**63, 0, 2**64 - 1)),
    rows(NOW_MS, "topics"),
    rows(NOW_MS + 60_000, b=(7, 8, 9), **{"": (1, 1, 1)}),
)
READ = [
    ("groups", NOW_MS, {"a": [1, 2, 3], "b": [2**63, 0, 2**64 - 1]}),
    ("topics", NOW_MS, {}),
    ("groups", NOW_MS + 60_000, {"b": [7, 8, 9], "": [1, 1, 1]}),
]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "made" / "file"
    write(path, *THREE[:2])
    write(path, THREE[2])
    assert shown(path.read_bytes()) == READ
    assert first_time(path) == NOW_MS
    assert shown(b"") == []
    assert read_file(tmp_path / "none").end == 0


def test_chosen_blocks_have_their_names_although_others_brought_them(tmp_path: Path) -> None:
    write(tmp_path / "file", *THREE)
    data = (tmp_path / "file").read_bytes()
    assert shown(data, Chosen("groups", NOW_MS + 1, NOW_MS + 60_000)) == READ[2:]
    assert shown(data, Chosen("clients", 0, 1 << 50)) == []


def test_a_name_stands_in_a_file_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for number in range(5):
        write(path, rows(NOW_MS + number, longest_of_names=(1, 0, 0)))
    assert path.read_bytes().count(b"longest_of_names") == 1


def test_what_is_whole_of_a_file_is_read_and_the_next_writer_cuts_the_rest_off(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, *THREE)
    data = path.read_bytes()
    ends = [read_file_end(data, count) for count in range(4)]
    for size in range(len(data) + 1):
        whole = sum(end <= size for end in ends) - 1
        assert shown(data[:size]) == READ[:whole]
        # A power cut may leave anything where something was to be.
        assert shown(data[:size].ljust(len(data) + 10, b"\xaa")) == READ[:whole]
    for size in (0, 1, ends[1] - 1, ends[2] + 3, len(data) - 1):
        path.write_bytes(data[:size])
        write(path, THREE[2])
        whole = sum(end <= size for end in ends) - 1
        assert shown(path.read_bytes())[:-1] == READ[:whole]
        assert shown(path.read_bytes())[-1] == READ[2]


def read_file_end(data: bytes, blocks: int) -> int:
    end = 0
    for _ in range(blocks):
        end += int.from_bytes(data[end + 8 : end + 12], "big")
    return end


def test_any_flipped_bit_ends_what_is_read_before_it(tmp_path: Path) -> None:
    write(tmp_path / "file", *THREE)
    data = (tmp_path / "file").read_bytes()
    first = read_file_end(data, 1)
    for place in range(first, len(data)):
        broken = bytearray(data)
        broken[place] ^= 0x10
        assert shown(bytes(broken))[:1] == READ[:1]
        assert len(shown(bytes(broken))) < 3


@pytest.mark.parametrize(
    ("at", "value", "size"),
    [
        (12, 3, 2),  # a table that there is not
        (14, 4, 2),  # other columns
        (24, 2**32 - 1, 4),  # names past the end
        (28, 2**32 - 1, 4),  # rows past the end
        (28, 1, 4),  # fewer rows than there are
    ],
)
def test_a_block_of_another_version_or_that_says_too_much_is_not_read(
    tmp_path: Path, at: int, value: int, size: int
) -> None:
    write(tmp_path / "file", THREE[0])
    data = bytearray((tmp_path / "file").read_bytes())
    data[at : at + size] = value.to_bytes(size, "big")
    data[4:8] = zlib.crc32(data[8:]).to_bytes(4, "big")
    assert shown(bytes(data)) == []


def test_a_name_that_no_block_has_brought_is_damage(tmp_path: Path) -> None:
    write(tmp_path / "file", THREE[0])
    data = bytearray((tmp_path / "file").read_bytes())
    ids_at = 32 + 2 * (2 + 1)
    data[ids_at : ids_at + 4] = (3).to_bytes(4, "big")
    data[4:8] = zlib.crc32(data[8:]).to_bytes(4, "big")
    assert shown(bytes(data)) == []


def test_names_past_those_a_file_has_room_for_count_together(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, rows(NOW_MS, a=(1, 0, 0), b=(2, 0, 0)), names_max=2)
    write(path, rows(NOW_MS, c=(4, 1, 0), a=(8, 1, 0), d=(16, 1, 0), **{"": (32, 1, 0)}), names_max=2)
    assert shown(path.read_bytes())[1][2] == {"": [52, 3, 0], "a": [8, 1, 0]}


def test_what_has_no_room_in_a_file_stays_at_the_largest(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, rows(NOW_MS, a=(2**64 - 2, 2**64 - 1, 1), b=(1, 0, 2), c=(1, 1, 3)), names_max=0)
    assert shown(path.read_bytes())[0][2] == {"": [2**64 - 1, 2**64 - 1, 6]}


def test_a_block_of_the_most_names_fits_the_largest_block(tmp_path: Path) -> None:
    # What broker.statistics_names_max allows, each as long as a name may be, and the others.
    names = [f"{number:0{limits.STATISTICS_NAME_BYTES_MAX}}" for number in range(10_000)]
    path = tmp_path / "file"
    write(path, Rows("clients", NOW_MS, dict.fromkeys(names, (1, 1, 1, 1, 1))), names_max=10_000)
    assert path.stat().st_size <= limits.STATISTICS_BLOCK_BYTES_MAX
    assert len(read_file(path).names["clients"]) == 10_001


def test_a_block_past_the_largest_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "file", THREE[0])
    data = bytearray((tmp_path / "file").read_bytes())
    data[8:12] = (limits.STATISTICS_BLOCK_BYTES_MAX + 1).to_bytes(4, "big")
    assert shown(bytes(data).ljust(limits.STATISTICS_BLOCK_BYTES_MAX + 1, b"\0")) == []
