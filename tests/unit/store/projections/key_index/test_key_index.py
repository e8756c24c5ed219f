"""The key index: its files byte by byte, look-ups, what it relies on after a crash, and queries by key."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from file_size_limit import files_end_at
from index_oracle import IndexOracle, index_hash, java_hash, keys_of
from manual_clock import ManualClock
from store_model import BORN_HOST, SMALL, batch, open_small, put

from iotmq.errors import StoreCorruptError, StoreError
from iotmq.limits import INDEX_CANDIDATES_MAX, INDEX_LOOKUP_ENTRIES_MAX, INDEX_QUERY_RECORDS_MAX
from iotmq.message.records.record import decode_record, encode_record
from iotmq.store.projections.key_index.index_file import IndexFile, index_file_bytes, key_hash
from iotmq.store.projections.key_index.key_index import KeyIndex
from iotmq.store.projections.key_index.key_query import record_keys
from iotmq.store.recovery.checkpoint import read_checkpoint, write_checkpoint
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

T0_MS = 1_700_000_000_000
T0_NAME = "20231114221320000"
# Different words with one hash, as texts of Java are known for: and so all their combinations.
ALIKE = ("AaAa", "AaBB", "BBAa", "BBBB")
TINY = {"index_slots": 8, "index_entries": 16}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_small(tmp_path / "data", **TINY)
    yield store
    assert store.check() == []
    store.close()


class Feed:
    """A KeyIndex and the records it is given, with the oracle beside it."""

    def __init__(self, directory: Path, *, slots: int = 8, entries: int = 16) -> None:
        self.directory = directory
        self.slots, self.entries = slots, entries
        self.oracle = IndexOracle(slots, entries)
        self.log = b""
        self.starts: list[int] = []
        self.index = self.open()
        self.recover()

    def open(self) -> KeyIndex:
        return KeyIndex(
            str(self.directory / "index"),
            str(self.directory / "index.applied"),
            slots=self.slots,
            entries=self.entries,
        )

    def recover(self, *, was_clean: bool = True, timestamp_ms: int = 0, min_position: int = 0) -> None:
        self.index.recover(
            min_position,
            len(self.log),
            was_clean=was_clean,
            timestamp_ms=timestamp_ms,
            timestamp_at=self.timestamp_at,
        )

    def timestamp_at(self, position: int) -> int:
        if position not in self.starts or position >= len(self.log):
            return 0
        return decode_record(self.log, position).store_timestamp_ms

    def add(self, *properties: bytes, topic: str = "T", timestamp_ms: int = T0_MS, sys_flag: int = 0) -> None:
        """Apply a batch of records."""
        start = len(self.log)
        for each in properties:
            position = len(self.log)
            self.starts.append(position)
            self.log += encode_record(
                topic=topic,
                body=b"x",
                properties=each,
                position=position,
                sys_flag=sys_flag,
                store_timestamp_ms=timestamp_ms,
            )
            self.oracle.add(topic, each, position, timestamp_ms, sys_flag=sys_flag)
        self.index.apply(memoryview(self.log)[start:], start, len(self.log))

    def catch_up(self) -> None:
        start = self.index.applied_position
        self.index.apply(memoryview(self.log)[start:], start, len(self.log))

    def sync(self) -> None:
        """What a checkpoint does."""
        state = self.index.state()
        self.index.sync(self.index.take_dirty(), os.fdatasync)
        self.index.write_state(state)

    def trim(self, min_position: int) -> None:
        """What the store and its removing thread do."""
        leaving = self.index.trim(min_position)
        if leaving is not None:
            leaving.prepare()
            for path in leaving.paths:
                os.unlink(path)

    def data(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.directory / "index").iterdir()}

    def find(self, key: str, topic: str = "T", **times: int) -> list[int]:
        lookup = self.index.look_up(topic, key, **times)
        positions = list(iter(lookup.next_position, -1))
        assert lookup.next_position() == -1
        return positions

    def assert_same(self) -> None:
        assert self.data() == self.oracle.data()
        assert self.index.applied_position == len(self.log)


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path)


def keys(*words: str) -> bytes:
    return f"KEYS\x01{' '.join(words)}\x02".encode()


def bodies(views: list[memoryview]) -> list[bytes]:
    return [decode_record(view).body for view in views]


# Hashes and bytes.


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("polygenelubricants", 0),
        ("temperature", 321701236),
        ("告警", 704604),
        ("😀", 1772899),
        ("TopicTest#KEY1", 1656969516),
        ("TagA", 2598919),
        ("*", 42),
        ("", 0),
    ],
)
def test_hash_is_the_golden_one(text: str, wanted: int) -> None:
    assert key_hash(text) == index_hash(text) == wanted


def test_slots_of_golden_hashes() -> None:
    assert key_hash("temperature") % 5_000_000 == 1701236
    assert key_hash("TopicTest#KEY1") % 5_000_000 == 1969516


def test_usual_file_has_the_usual_size() -> None:
    assert index_file_bytes(5_000_000, 20_000_000) == 420_000_040


def test_first_file_byte_by_byte(feed: Feed) -> None:
    feed.add(b"UNIQ_KEY\x01KEY1\x02KEYS\x01a b\x02", topic="TopicTest", timestamp_ms=T0_MS)
    feed.add(keys("KEY1"), topic="TopicTest", timestamp_ms=T0_MS + 61_999)
    (name, data), *more = feed.data().items()
    assert not more
    assert name == T0_NAME
    assert len(data) == index_file_bytes(8, 16)
    a, b = index_hash("TopicTest#a"), index_hash("TopicTest#b")
    assert struct.unpack_from(">qqqqii", data) == (
        T0_MS,
        T0_MS + 61_999,
        0,
        feed.starts[1],
        len({1656969516 % 8, a % 8, b % 8}),
        5,
    )
    assert struct.unpack_from(">i", data, 40 + 4 * (1656969516 % 8)) == (4,)
    entries = [struct.unpack_from(">iqii", data, 40 + 32 + 20 * number) for number in range(6)]
    assert entries[0] == entries[5] == (0, 0, 0, 0)
    assert entries[1][:3] == (1656969516, 0, 0)
    assert entries[2][:3] == (a, 0, 0)
    assert entries[3][:3] == (b, 0, 0)
    assert entries[4][:3] == (1656969516, feed.starts[1], 61)
    feed.assert_same()


def test_hash_without_an_opposite_counts_as_0(feed: Feed) -> None:
    """A hash of -2^31, for a topic: built backwards, one digit to the base of 31 after another."""
    key = key_with_hash("T", -(1 << 31))
    assert java_hash(f"T#{key}") == -(1 << 31)
    feed.add(keys(key), keys("other"))
    assert feed.index.file_list()[0].view()[40:44] == struct.pack(">i", feed_slot_0(feed))
    assert feed.find(key) == [0]
    feed.assert_same()


def key_with_hash(topic: str, wanted: int) -> str:
    front = java_hash(f"{topic}#")
    digits = 7
    rest = (wanted - front * 31**digits) % (1 << 32)
    # Letters from "0" on: what is left for the digits above their smallest.
    rest = (rest - sum(48 * 31**power for power in range(digits))) % (1 << 32)
    text = ""
    for power in reversed(range(digits)):
        digit = min(rest // 31**power, 70)
        rest -= digit * 31**power
        text += chr(48 + digit)
    assert rest == 0
    return text


def feed_slot_0(feed: Feed) -> int:
    return feed.oracle.files[0].slots[0]


@pytest.mark.parametrize(
    ("properties", "wanted"),
    [
        (b"", []),
        (b"KEYS\x01a\x02", [b"a"]),
        (b"KEYS\x01a", [b"a"]),
        (b"UNIQ_KEY\x01u", [b"u"]),
        (b"KEYS\x01a b\x02UNIQ_KEY\x01u\x02", [b"u", b"a", b"b"]),
        (b"KEYS\x01 a   b \x02", [b"a", b"b"]),
        (b"KEYS\x01a\x02KEYS\x01b\x02", [b"b"]),
        (b"KEYS\x01a\x02KEYS\x01\x02", []),
        (b"UNIQ_KEY\x01u\x02UNIQ_KEY\x01v\x02", [b"v"]),
        (b"UNIQ_KEY\x01\x02", []),
        (b"KEYS\x01\x02", []),
        (b"KEYS\x01", []),
        (b"KEYS", []),
        (b"KEY\x01a\x02XKEYS\x01a\x02KEYSX\x01a\x02UNIQ_KEYS\x01a\x02", []),
        (b"a\x01KEYS\x02b\x01UNIQ_KEY\x02", []),
        (b"\x02\x02KEYS\x01a\x02\x02", [b"a"]),
        ("KEYS\x01告警 😀\x02".encode(), ["告警".encode(), "😀".encode()]),
        (b"KEYS\x01a a\x02", [b"a", b"a"]),
    ],
)
def test_keys_of_properties(feed: Feed, properties: bytes, wanted: list[bytes]) -> None:
    assert record_keys(properties) == wanted
    assert [key.encode() for key in keys_of(properties)] == wanted
    feed.add(properties)
    assert feed.index.stored_entries == len(wanted)
    for key in wanted:
        assert feed.find(key.decode())
    feed.assert_same()


def test_rolled_back_records_are_left_out_and_prepared_ones_are_not(feed: Feed) -> None:
    for sys_flag in (0, 4, 8, 12):
        feed.add(keys("k"), sys_flag=sys_flag)
    assert feed.find("k") == list(reversed(feed.starts[:3]))
    feed.assert_same()


def test_hosts_of_16_bytes_move_nothing(feed: Feed) -> None:
    record = encode_record(
        topic="T", body=b"", properties=keys("k"), born_host=bytes(20), store_host=bytes(20), position=0
    )
    feed.index.apply(record, 0, len(record))
    assert feed.find("k") == [0]


def test_topics_are_part_of_the_key(feed: Feed) -> None:
    for topic in ("T", "TT", "T" * 127):
        feed.add(keys("k"), topic=topic)
    for number, topic in enumerate(("T", "TT", "T" * 127)):
        assert feed.find("k", topic) == [feed.starts[number]]
    assert feed.find("#k", "T") == []
    feed.assert_same()


def test_a_blank_ends_a_range(feed: Feed) -> None:
    record = encode_record(topic="T", body=b"", properties=keys("k"))
    data = record + struct.pack(">II", 100, 0xCBD43194) + bytes(92)
    feed.index.apply(data, 0, len(data))
    assert feed.find("k") == [0]
    assert feed.index.applied_position == len(data)


def test_bytes_that_are_no_record_are_refused(feed: Feed) -> None:
    with pytest.raises(StoreCorruptError):
        feed.index.apply(bytes(100), 0, 100)
    assert feed.index.applied_position == 0
    with pytest.raises(ValueError, match="10 bytes"):
        feed.index.apply(bytes(10), 0, 100)


# Files one after another.


def test_full_file_is_followed_by_one_that_starts_at_its_end(feed: Feed) -> None:
    for number in range(15):
        feed.add(keys(f"k{number}"), timestamp_ms=T0_MS + number * 1000)
    assert list(feed.data()) == [T0_NAME]
    assert feed.index.file_list()[0].count == 16
    feed.add(keys("k15"), timestamp_ms=T0_MS + 20_500)
    first, second = feed.index.file_list()
    assert sorted(feed.data()) == [T0_NAME, "20231114221340500"]
    assert (second.begin_position, second.begin_timestamp_ms) == (feed.starts[15], T0_MS + 20_500)
    assert first.end_position == feed.starts[14]
    feed.assert_same()


def test_new_file_copies_the_ends_of_the_one_before(feed: Feed) -> None:
    for _ in range(15):
        feed.add(keys("k"), timestamp_ms=T0_MS + 5)
    before = feed.index.file_list()[0]
    file = IndexFile(str(feed.directory / "20240101000000000"), 8, 16)
    file.start_behind(before)
    data = (feed.directory / "20240101000000000").read_bytes()
    assert struct.unpack_from(">qqqqii", data) == (
        T0_MS + 5, T0_MS + 5, feed.starts[14], feed.starts[14], 0, 1
    )  # fmt: skip


def test_files_of_one_millisecond_get_rising_names(feed: Feed) -> None:
    feed.add(keys(*"abcdefghijklmnopqrstuvwxyz" * 2))
    names = sorted(feed.data())
    assert names == [f"{int(T0_NAME) + number:017d}" for number in range(4)]
    feed.assert_same()


@pytest.mark.parametrize(
    ("timestamp_ms", "name"),
    [
        (0, "19700101000000000"),
        (-5, "19700101000000000"),
        (951782399999, "20000228235959999"),
        (951782400000, "20000229000000000"),
        (253402300799999, "99991231235959999"),
    ],
)
def test_name_of_a_file_is_the_time_of_its_first_record(feed: Feed, timestamp_ms: int, name: str) -> None:
    feed.add(keys("k"), timestamp_ms=timestamp_ms)
    assert list(feed.data()) == [name]
    assert feed.index.file_list()[0].begin_timestamp_ms == timestamp_ms


def test_record_with_more_keys_than_a_file_has_room_for(feed: Feed) -> None:
    words = [f"w{number}" for number in range(100)]
    feed.add(keys(*words))
    feed.add(keys("after"))
    assert len(feed.index.file_list()) == 7
    assert all(feed.find(word) == [0] for word in words)
    feed.assert_same()


@pytest.mark.parametrize(
    ("timestamps_s", "seconds"), [((10, 10, 11, 70), (0, 0, 1, 60)), ((10, 5, 12), (0, 0, 2))]
)
def test_times_are_seconds_since_the_first_record(
    feed: Feed, timestamps_s: tuple[int, ...], seconds: tuple[int, ...]
) -> None:
    for each in timestamps_s:
        feed.add(keys("k"), timestamp_ms=each * 1000)
    data = next(iter(feed.data().values()))
    entries = (struct.unpack_from(">iqii", data, 72 + 20 * number) for number in range(1, 1 + len(seconds)))
    found = tuple(entry[2] for entry in entries)
    assert found == seconds
    feed.assert_same()


def test_time_that_does_not_fit_stops_at_the_largest(feed: Feed) -> None:
    feed.add(keys("k"), timestamp_ms=1)
    feed.add(keys("k"), timestamp_ms=1 + 0x7FFFFFFF * 1000)
    feed.add(keys("k"), timestamp_ms=1 + 0x80000000 * 1000)
    assert len(feed.find("k")) == 3
    feed.assert_same()


# Look-ups.


def test_chain_is_walked_from_the_newest(feed: Feed) -> None:
    for number in range(40):
        feed.add(keys("k" if number % 3 else "other"))
    assert feed.find("k") == [feed.starts[n] for n in reversed(range(40)) if n % 3]
    assert feed.find("nothing") == []


def test_other_keys_of_one_hash_are_proposed_too(feed: Feed) -> None:
    assert len({index_hash(f"T#{word}") for word in ALIKE}) == 1
    for word in ALIKE:
        feed.add(keys(word))
    assert feed.find("AaAa") == list(reversed(feed.starts))


def test_times_bound_a_look_up_to_the_second(feed: Feed) -> None:
    for number in range(40):
        feed.add(keys("k"), timestamp_ms=T0_MS + number * 10_000)
    assert feed.find("k", begin_ms=T0_MS + 50_000, end_ms=T0_MS + 80_000) == [
        feed.starts[n] for n in (8, 7, 6, 5)
    ]
    assert feed.find("k", begin_ms=T0_MS + 50_001, end_ms=T0_MS + 79_999) == [
        feed.starts[n] for n in (7, 6, 5)
    ]
    assert feed.find("k", begin_ms=T0_MS + 51_000, end_ms=T0_MS + 80_000)[-1] == feed.starts[6]
    assert feed.find("k", end_ms=T0_MS - 1) == []
    assert feed.find("k", begin_ms=T0_MS + 390_001) == []
    assert feed.find("k", begin_ms=-(1 << 63), end_ms=(1 << 63) - 1) == list(reversed(feed.starts))
    assert feed.find("k", begin_ms=T0_MS + 80_000, end_ms=T0_MS + 50_000) == []


def test_entry_is_found_by_its_own_time_although_only_seconds_are_stored(feed: Feed) -> None:
    feed.add(keys("k"), timestamp_ms=T0_MS)
    feed.add(keys("k"), timestamp_ms=T0_MS + 1_999)
    assert feed.find("k", begin_ms=T0_MS + 1_999, end_ms=T0_MS + 1_999) == [feed.starts[1]]


def test_search_ends_at_the_file_that_begins_before_the_time_asked_for(feed: Feed) -> None:
    for number in range(45):
        feed.add(keys("k"), timestamp_ms=T0_MS + number * 1000)
    # A file that cannot be right: looked at, it would give more.
    assert feed.find("k", begin_ms=T0_MS + 31_000)[-1] == feed.starts[31]
    assert len(feed.find("k", begin_ms=T0_MS + 31_000)) == 14


def test_link_that_does_not_lead_back_ends_a_chain(feed: Feed) -> None:
    for _ in range(10):
        feed.add(keys("k"))
    path = feed.directory / "index" / T0_NAME
    for wrong in (5, 7, 1 << 30, -1, -(1 << 31)):
        with path.open("r+b") as file:
            file.seek(40 + 32 + 20 * 5 + 16)
            file.write(struct.pack(">i", wrong))
        assert feed.find("k") == [feed.starts[n] for n in (9, 8, 7, 6, 5, 4)]


def test_slot_that_leads_nowhere_is_an_empty_one(feed: Feed) -> None:
    feed.add(keys("k"))
    path = feed.directory / "index" / T0_NAME
    for wrong in (2, 16, 1 << 30, -1):
        with path.open("r+b") as file:
            file.seek(40 + 4 * (index_hash("T#k") % 8))
            file.write(struct.pack(">i", wrong))
        assert feed.find("k") == []


@pytest.mark.parametrize("more", [0, 1])
def test_look_up_ends_after_so_many_entries(tmp_path: Path, more: int) -> None:
    feed = Feed(tmp_path, slots=1, entries=INDEX_LOOKUP_ENTRIES_MAX + 10)
    feed.add(keys("wanted"))
    left = INDEX_LOOKUP_ENTRIES_MAX - 1 + more
    while left:
        count = min(left, 16_000)
        start = len(feed.log)
        feed.log += encode_record(
            topic="T", body=b"", properties=keys(*["w"] * count), position=start, store_timestamp_ms=T0_MS
        )
        feed.catch_up()
        left -= count
    assert feed.index.stored_entries == INDEX_LOOKUP_ENTRIES_MAX + more
    assert feed.find("wanted") == ([] if more else [0])


# Going back, and starting again.


def test_clean_start_goes_on_where_it_stopped(feed: Feed) -> None:
    for number in range(40):
        feed.add(keys(f"k{number}"))
        if number % 7 == 0:
            feed.sync()
            feed.index = feed.open()
            feed.recover()
            assert feed.index.applied_position == len(feed.log)
    feed.assert_same()


@pytest.mark.parametrize("kept", range(0, 41, 5))
def test_rewind_is_as_if_the_rest_had_never_been(tmp_path: Path, kept: int) -> None:
    feed = Feed(tmp_path / "a")
    twin = Feed(tmp_path / "b")
    for number in range(40):
        feed.add(keys(f"k{number % 5}", "x"), timestamp_ms=T0_MS + number * 1000)
        if number < kept:
            twin.add(keys(f"k{number % 5}", "x"), timestamp_ms=T0_MS + number * 1000)
    feed.index.rewind(len(twin.log), 0)
    assert feed.index.applied_position == len(twin.log)
    assert feed.find("x") == twin.find("x")
    feed.catch_up()
    feed.assert_same()


@pytest.mark.parametrize("damage", ["kept", "zero", "garbage", "header"])
@pytest.mark.parametrize("synced", [0, 1, 14, 15, 16, 29])
def test_after_a_crash_nothing_is_relied_on_that_was_not_synced(
    tmp_path: Path, synced: int, damage: str
) -> None:
    feed = Feed(tmp_path)
    for number in range(30):
        if number == synced:
            feed.sync()
            applied = len(feed.log)
        feed.add(keys(f"k{number % 4}"), timestamp_ms=T0_MS + number)
    whole = feed.data()
    for number, name in enumerate(sorted(whole)):
        first = number * 15
        kept_entries = min(max(synced - first, 0), 15)
        if synced > first + 15:
            # Full, and on the disk.
            continue
        data = bytearray(whole[name])
        filling = {"zero": b"\0", "garbage": b"\xa5"}.get(damage)
        if filling is not None:
            # Slots are written anywhere, entries behind the synced ones; begin fields no more.
            data[40:72] = filling * 32
            at = 72 + 20 * (kept_entries + 1)
            data[at:] = filling * (len(data) - at)
            if kept_entries == 0:
                data[:40] = filling * 40
        if damage == "header":
            data = bytearray(whole[name][:8] + bytes(8) + whole[name][16:24] + bytes(16) + whole[name][40:])
        (tmp_path / "index" / name).write_bytes(data)
    feed.index = feed.open()
    feed.recover(was_clean=False)
    assert feed.index.applied_position == applied
    assert feed.index.stored_entries == synced
    assert feed.find("k0") == [feed.starts[n] for n in reversed(range(synced)) if n % 4 == 0]
    feed.catch_up()
    feed.assert_same()


def test_start_after_a_crash_with_a_log_that_lost_records(tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    for number in range(30):
        feed.add(keys("k"), timestamp_ms=T0_MS + number)
    feed.sync()
    feed.log = feed.log[: feed.starts[20]]
    feed.index = feed.open()
    feed.recover(was_clean=False)
    assert feed.index.applied_position == feed.starts[20]
    assert feed.find("k") == list(reversed(feed.starts[:20]))
    # The statement about what is on the disk was taken back with it.
    assert feed.index.read_state()[0] == feed.starts[20]  # type: ignore[index]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_missing_file_has_the_index_made_again(tmp_path: Path, missing: int) -> None:
    feed = Feed(tmp_path)
    for number in range(40):
        feed.add(keys("k"), timestamp_ms=T0_MS + number)
    feed.sync()
    (tmp_path / "index" / sorted(feed.data())[missing]).unlink()
    feed.index = feed.open()
    feed.recover()
    assert feed.index.applied_position == 0
    assert feed.data() == {}
    feed.catch_up()
    feed.assert_same()


@pytest.mark.parametrize("field", [0, 8, 16, 24, 32, 36])
@pytest.mark.parametrize("number", [0, 2])
def test_damaged_header_has_the_file_made_again_or_found_out(tmp_path: Path, field: int, number: int) -> None:
    feed = Feed(tmp_path)
    for each in range(40):
        feed.add(keys("k"), timestamp_ms=T0_MS + each)
    feed.sync()
    path = tmp_path / "index" / sorted(feed.data())[number]
    with path.open("r+b") as file:
        file.seek(field)
        file.write(b"\x7e")
    feed.index = feed.open()
    feed.recover()
    feed.catch_up()
    if field in (0, 8):
        # Times are the header's own; `check` compares them with the log.
        assert feed.data() != feed.oracle.data()
    else:
        feed.assert_same()


@pytest.mark.parametrize("at", range(0, 44, 5))
def test_damaged_state_has_the_index_made_again(tmp_path: Path, at: int) -> None:
    feed = Feed(tmp_path)
    for _ in range(20):
        feed.add(keys("k"))
    feed.sync()
    path = tmp_path / "index.applied"
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
    feed.index = feed.open()
    feed.recover()
    assert feed.index.applied_position == 0
    feed.catch_up()
    feed.assert_same()


def test_other_sizes_have_the_index_made_again(tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    for _ in range(20):
        feed.add(keys("k"))
    feed.sync()
    feed.slots = 9
    feed.oracle = IndexOracle(9, 16)
    for position in feed.starts:
        feed.oracle.add("T", keys("k"), position, T0_MS)
    feed.index = feed.open()
    feed.recover()
    feed.catch_up()
    feed.assert_same()


def test_other_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "readme").write_text("kept")
    feed = Feed(tmp_path)
    feed.add(keys("k"))
    feed.index.clear(0)
    assert list(feed.data()) == ["readme"]


def test_files_of_another_broker_count_after_a_clean_stop(tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    for number in range(40):
        feed.add(keys("k"), timestamp_ms=T0_MS + number)
    (tmp_path / "index.applied").unlink()
    feed.index = feed.open()
    feed.recover(was_clean=True)
    # The last record with keys is looked at again, and passed over.
    assert feed.index.applied_position == feed.starts[-1]
    feed.catch_up()
    feed.assert_same()


def test_files_of_another_broker_after_a_crash_count_up_to_the_checkpoint(tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    for number in range(40):
        feed.add(keys("k"), timestamp_ms=T0_MS + number)
    (tmp_path / "index.applied").unlink()
    feed.index = feed.open()
    feed.recover(was_clean=False, timestamp_ms=T0_MS + 20)
    assert feed.index.applied_position == feed.starts[14]
    assert len(feed.index.file_list()) == 1
    feed.catch_up()
    feed.assert_same()


def test_files_that_do_not_belong_to_the_log_are_made_again(tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    for _ in range(10):
        feed.add(keys("k"))
    (tmp_path / "index.applied").unlink()
    feed.starts.pop()
    feed.index = feed.open()
    feed.recover(was_clean=True)
    assert feed.index.applied_position == 0
    assert feed.index.file_list() == []


def test_files_behind_the_start_of_the_log_are_deleted(feed: Feed) -> None:
    for number in range(50):
        feed.add(keys("k"), timestamp_ms=T0_MS + number)
    feed.sync()
    names = sorted(feed.data())
    feed.trim(feed.starts[14])
    assert sorted(feed.data()) == names
    feed.trim(feed.starts[15])
    assert sorted(feed.data()) == names[1:]
    feed.trim(len(feed.log))
    # The newest stays: it says where the index goes on.
    assert sorted(feed.data()) == names[3:]
    assert feed.find("k") == list(reversed(feed.starts[45:]))
    # A crash now must not look like missing files.
    feed.index = feed.open()
    feed.recover(was_clean=False, min_position=feed.starts[40])
    assert feed.index.applied_position == len(feed.log)
    assert feed.find("k") == list(reversed(feed.starts[45:]))


def test_letting_go_of_files_touches_no_disk(feed: Feed) -> None:
    for number in range(50):
        feed.add(keys("k"), timestamp_ms=T0_MS + number)
    feed.sync()
    names = sorted(feed.data())
    state = (feed.directory / "index.applied").read_bytes()
    leaving = feed.index.trim(feed.starts[15])
    assert leaving is not None
    assert sorted(feed.data()) == names
    assert (feed.directory / "index.applied").read_bytes() == state
    assert [os.path.basename(path) for path in leaving.paths] == names[:1]
    assert feed.index.trim(feed.starts[15]) is None
    # A crash before the removing thread gets to it, and one in the middle of it.
    for _ in range(2):
        again = feed.open()
        again.recover(
            feed.starts[15], len(feed.log), was_clean=False, timestamp_ms=0, timestamp_at=feed.timestamp_at
        )
        assert again.applied_position == len(feed.log)
        assert sorted(feed.data()) == names[1:]


def test_a_checkpoint_between_letting_go_and_deleting_counts_each_file_once(feed: Feed) -> None:
    for number in range(50):
        feed.add(keys("k"), timestamp_ms=T0_MS + number)
    feed.sync()
    leaving = feed.index.trim(feed.starts[30])
    assert leaving is not None
    feed.sync()
    leaving.prepare()
    leaving.prepare()
    state = feed.index.read_state()
    assert state is not None
    assert state[1] == len(feed.index.file_list())


def test_trim_while_a_checkpoint_is_under_way(feed: Feed) -> None:
    for number in range(50):
        feed.add(keys("k"), timestamp_ms=T0_MS + number)
    state = feed.index.state()
    dirty = feed.index.take_dirty()
    feed.trim(feed.starts[30])
    feed.index.sync(dirty, os.fdatasync)
    feed.index.write_state(state)
    feed.index = feed.open()
    feed.recover(was_clean=False, min_position=feed.starts[30])
    assert feed.index.applied_position == len(feed.log)


def test_look_up_under_way_survives_trimming(feed: Feed) -> None:
    for _ in range(50):
        feed.add(keys("k"))
    lookup = feed.index.look_up("T", "k")
    first = lookup.next_position()
    feed.trim(len(feed.log))
    assert [first, *iter(lookup.next_position, -1)] == list(reversed(feed.starts))


def test_missing_file_is_an_error_to_a_checkpoint_unless_it_was_trimmed(feed: Feed) -> None:
    feed.add(keys("k"))
    (feed.directory / "index" / T0_NAME).unlink()
    with pytest.raises(FileNotFoundError):
        feed.sync()


# A full disk.


def test_full_disk_is_an_error_and_the_same_range_can_come_again(tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    feed.add(keys("a"))
    # A file may not grow past so many bytes: the next one cannot even get its size.
    with files_end_at(64), pytest.raises(OSError, match=f"Errno {errno.EFBIG}"):
        feed.add(*[keys("b", f"c{number}", "d") for number in range(12)])
    assert feed.index.applied_position < len(feed.log)
    assert len(feed.index.file_list()) == 1
    assert len(feed.data()) == 1
    assert feed.find("c0")
    feed.catch_up()
    feed.assert_same()


def test_blocks_are_there_before_bytes_are(tmp_path: Path) -> None:
    feed = Feed(tmp_path, slots=131_072, entries=524_288)
    feed.add(keys("k"))
    blocks = (tmp_path / "index" / T0_NAME).stat().st_blocks * 512
    assert 40 + 4 * 131_072 + 40 <= blocks <= 2 << 20


# The store.


def test_query_gives_the_records_newest_first(store: Store) -> None:
    for number in range(20):
        put(store, "T", number % 3, b"%d" % number, properties=keys(f"k{number % 2}", "all"))
    put(store, "U", 0, b"other", properties=keys("all"))
    assert bodies(store.query("T", "all")) == [b"%d" % n for n in reversed(range(20))]
    assert bodies(store.query("T", "k1")) == [b"%d" % n for n in range(19, 0, -2)]
    assert bodies(store.query("U", "all")) == [b"other"]
    assert store.query("T", "nothing") == store.query("V", "all") == []


def test_query_by_unique_key(store: Store) -> None:
    put(store, "T", 0, b"a", properties=b"UNIQ_KEY\x01AC1E\x02KEYS\x01AC1E x\x02")
    put(store, "T", 0, b"b", properties=b"UNIQ_KEY\x01AC1F\x02")
    # Entered twice, given once.
    assert bodies(store.query("T", "AC1E")) == [b"a"]
    assert bodies(store.query("T", "AC1F")) == [b"b"]


def test_query_looks_at_the_real_key(store: Store) -> None:
    for word in ALIKE:
        put(store, "T", 0, word.encode(), properties=keys(word))
    for word in ALIKE:
        assert bodies(store.query("T", word)) == [word.encode()]
    assert store.query("T", "CCCC") == []


def test_query_looks_at_the_real_topic(store: Store) -> None:
    # "Aa" and "BB" have one hash as the end of a topic, too.
    put(store, "xAa", 0, b"1", properties=keys("k"))
    put(store, "xBB", 0, b"2", properties=keys("k"))
    assert bodies(store.query("xAa", "k")) == [b"1"]
    assert bodies(store.query("xBB", "k")) == [b"2"]


def test_query_looks_at_the_real_time(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_small(tmp_path, clock=clock, **TINY)
    times = []
    for number in range(20):
        times.append(put(store, "T", 0, b"%d" % number, properties=keys("k")).store_timestamp_ms)
        clock.advance(0.3)
    found = store.query("T", "k", begin_ms=times[4], end_ms=times[9])
    assert bodies(found) == [b"%d" % n for n in range(9, 3, -1)]
    assert bodies(store.query("T", "k", begin_ms=times[4] + 1, end_ms=times[9] - 1)) == [
        b"%d" % n for n in range(8, 4, -1)
    ]
    assert store.check() == []
    store.close()


def test_query_gives_no_more_than_asked_for_and_than_the_limit(store: Store) -> None:
    for number in range(INDEX_QUERY_RECORDS_MAX + 1):
        put(store, "T", 0, b"%d" % number, properties=keys("k"))
    assert len(store.query("T", "k", records_max=5)) == 5
    assert len(store.query("T", "k", records_max=INDEX_QUERY_RECORDS_MAX)) == INDEX_QUERY_RECORDS_MAX
    assert len(store.query("T", "k", records_max=10_000)) == INDEX_QUERY_RECORDS_MAX
    assert store.query("T", "k", records_max=0) == []


@pytest.mark.parametrize("more", [0, 1])
def test_query_looks_at_no_more_records_than_the_limit(tmp_path: Path, more: int) -> None:
    store = open_small(tmp_path, segment_bytes=1 << 20)
    put(store, "T", 0, b"wanted", properties=keys("Aa"))
    for _ in range(INDEX_CANDIDATES_MAX - 1 + more):
        put(store, "T", 0, b"", properties=keys("BB"))
    assert bodies(store.query("T", "Aa")) == ([] if more else [b"wanted"])
    store.close()


def test_query_with_texts_no_record_can_have(store: Store) -> None:
    put(store, "T", 0, b"1", properties=keys("k"))
    assert store.query("T", "") == store.query("", "k") == store.query("T", "\ud800") == []
    assert store.query("T\ud800", "k\x01") == store.query("T", "k" * 100_000) == []


def test_records_that_are_not_confirmed_are_not_found(tmp_path: Path) -> None:
    store = open_small(tmp_path, flush="sync")
    put(store, "T", 0, b"1", properties=keys("k"))
    found_early = store.query("T", "k") if store.confirmed_position == 0 else []
    assert found_early == []
    store.close()
    store = open_small(tmp_path, flush="sync")
    assert bodies(store.query("T", "k")) == [b"1"]
    assert store.check() == []
    store.close()


def test_store_without_an_index(tmp_path: Path) -> None:
    store = open_small(tmp_path, index_enabled=False)
    put(store, "T", 0, b"1", properties=keys("k"))
    with pytest.raises(StoreError, match="index_enabled"):
        store.query("T", "k")
    store.close()
    assert not (tmp_path / "index").exists()
    # Switched on, it takes everything from the log.
    store = open_small(tmp_path)
    assert bodies(store.query("T", "k")) == [b"1"]
    assert store.check() == []
    store.close()


def test_index_switched_off_for_a_while_misses_nothing(tmp_path: Path) -> None:
    for number, is_enabled in enumerate((True, False, True)):
        store = open_small(tmp_path, index_enabled=is_enabled, **TINY)
        for each in range(30):
            put(store, "T", 0, b"%d %d" % (number, each), properties=keys(f"k{each}"))
        assert store.check() == []
        store.close()
    store = open_small(tmp_path, **TINY)
    for each in range(30):
        assert bodies(store.query("T", f"k{each}")) == [b"%d %d" % (n, each) for n in (2, 1, 0)]
    store.close()


@pytest.mark.parametrize("was_checkpointed", [False, True])
def test_killed_store_has_its_index_again(tmp_path: Path, was_checkpointed: bool) -> None:
    store = open_small(tmp_path / "a", **TINY)
    for number in range(50):
        put(store, "T", 0, b"%d" % number, properties=keys(f"k{number % 7}"))
        if was_checkpointed and number == 20:
            store.write_checkpoint()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    before = index_data(tmp_path / "a")
    store.close()
    store = open_small(tmp_path / "b", **TINY)
    assert not store.recovery.was_clean
    assert store.check() == []
    assert bodies(store.query("T", "k3")) == [b"%d" % n for n in range(45, 0, -7)]
    assert index_data(tmp_path / "b") == before
    store.close()


def index_data(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (directory / "index").iterdir()}


@pytest.mark.parametrize("deleted", ["index", "index.applied", "both"])
def test_deleted_index_is_made_again(tmp_path: Path, deleted: str) -> None:
    store = open_small(tmp_path, **TINY)
    for number in range(50):
        put(store, "T", 0, b"%d" % number, properties=keys(f"k{number}"))
    store.close()
    before = index_data(tmp_path)
    if deleted != "index.applied":
        shutil.rmtree(tmp_path / "index")
    if deleted != "index":
        (tmp_path / "index.applied").unlink()
    store = open_small(tmp_path, **TINY)
    assert store.check() == []
    assert index_data(tmp_path) == before
    store.close()


def test_checkpoint_vouches_for_the_index(tmp_path: Path) -> None:
    store = open_small(tmp_path, **TINY)
    appended = put(store, "T", 0, b"1", properties=keys("k"))
    store.close()
    checkpoint = read_checkpoint(tmp_path / "checkpoint")
    assert checkpoint is not None
    assert checkpoint.index_timestamp_ms == appended.store_timestamp_ms
    store = open_small(tmp_path, index_enabled=False)
    put(store, "T", 0, b"2", properties=keys("k"))
    store.close()
    checkpoint = read_checkpoint(tmp_path / "checkpoint")
    assert checkpoint is not None
    assert checkpoint.index_timestamp_ms == 0


def test_crash_without_our_state_goes_by_the_time_of_the_checkpoint(tmp_path: Path) -> None:
    clock = ManualClock()
    store = open_small(tmp_path / "a", clock=clock, **TINY)
    for number in range(50):
        put(store, "T", 0, b"%d" % number, properties=keys("k"))
        clock.advance(1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    store.close()
    checkpoint = read_checkpoint(tmp_path / "b" / "checkpoint")
    assert checkpoint is not None
    write_checkpoint(
        tmp_path / "b" / "checkpoint", checkpoint._replace(index_timestamp_ms=clock.now_ms() - 20_000)
    )
    (tmp_path / "b" / "index.applied").unlink()
    store = open_small(tmp_path / "b", clock=clock, **TINY)
    assert store.check() == []
    assert len(store.query("T", "k")) == 50
    store.close()


def test_failed_index_is_behind_and_catches_up(store: Store) -> None:
    put(store, "T", 0, b"1", properties=keys("k"))
    path = Path(store._index.file_list()[0].path)  # type: ignore[union-attr]
    # The next file cannot be made: its name is taken by a directory.
    taken = [path.with_name(f"{int(path.name) + number:017d}") for number in range(1, 3)]
    for each in taken:
        each.mkdir()
    for number in range(2, 30):
        put(store, "T", 0, b"%d" % number, properties=keys("k"))
    assert store.confirmed_position == store.appended_position
    assert store._index.applied_position < store.confirmed_position  # type: ignore[union-attr]
    assert any("index" in problem for problem in store.check())
    for each in taken:
        each.rmdir()
    put(store, "T", 0, b"30", properties=keys("k"))
    assert bodies(store.query("T", "k")) == [b"%d" % n for n in range(30, 0, -1)]


@pytest.mark.damaged_store
@pytest.mark.parametrize(
    ("where", "word"),
    [
        (lambda slots: 0, "ms, its header says"),
        (lambda slots: 8, "ms, its header says"),
        (lambda slots: 16, "begins at"),
        (lambda slots: 24, "ends at"),
        (lambda slots: 32, "slots in use"),
        (lambda slots: 36, "no room for"),
        (lambda slots: 40 + 4 * slots + 20 * 2, "cannot be right"),
        (lambda slots: 40 + 4 * slots + 20 * 2 + 3, "the log wants"),
        (lambda slots: 40 + 4 * slots + 20 * 2 + 4, "cannot be right"),
        (lambda slots: 40 + 4 * slots + 20 * 2 + 11, ""),
        (lambda slots: 40 + 4 * slots + 20 * 2 + 15, "s after the file's begin"),
        (lambda slots: 40 + 4 * slots + 20 * 2 + 19, "leads to entry"),
    ],
)
def test_check_says_what_is_damaged(tmp_path: Path, where: Callable[[int], int], word: str) -> None:
    store = open_small(tmp_path, **TINY)
    for number in range(10):
        put(store, "T", 0, b"%d" % number, properties=keys(f"k{number}"))
    assert store.check() == []
    path = next((tmp_path / "index").iterdir())
    with path.open("r+b") as file:
        file.seek(where(8))
        byte = file.read(1)[0]
        file.seek(where(8))
        file.write(bytes([byte ^ 0x81]))
    problems = store.check()
    assert problems
    assert any(word in problem for problem in problems), problems
    store.close()


@pytest.mark.damaged_store
def test_check_says_when_an_entry_or_a_slot_is_missing(tmp_path: Path) -> None:
    store = open_small(tmp_path, **TINY)
    for number in range(10):
        put(store, "T", 0, b"%d" % number, properties=keys(f"k{number}"))
    path = next((tmp_path / "index").iterdir())
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(40)
        file.write(bytes(32))
    assert any("slot" in problem for problem in store.check())
    with path.open("r+b") as file:
        file.write(data)
        file.seek(36)
        file.write(struct.pack(">i", 10))
    assert any("ends before its keys" in problem for problem in store.check())
    store.close()


def test_fresh_directory_takes_little_disk(tmp_path: Path) -> None:
    settings = StoreSettings(segment_bytes=SMALL["segment_bytes"] * 1024)
    store = Store.open(tmp_path, settings, store_host=bytes(8))
    queue = store.queue("T", 0)
    store.append(queue, batch(b"x", properties=keys("k")), born_timestamp_ms=1, born_host=BORN_HOST)
    index_bytes = sum(path.stat().st_blocks * 512 for path in (tmp_path / "index").iterdir())
    assert index_bytes <= 2 << 20
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*")) < 32 << 20
    assert store.check() == []
    store.close()


def test_metrics_name_the_index(store: Store) -> None:
    put(store, "T", 0, b"1", properties=keys("a", "b"))
    found: dict[str, Any] = {metric.name: metric for metric in store.metrics()}
    assert found["iotmq_store_index_entries"].value == 2
    assert found["iotmq_store_index_files"].value == 1
