"""The key index against its oracle: any records in any batches, with restarts and crashes between."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from index_oracle import IndexOracle, index_hash, java_hash, keys_of

from iotmq.message.records.record import decode_record, encode_record
from iotmq.store.projections.key_index.index_file import key_hash
from iotmq.store.projections.key_index.key_index import KeyIndex
from iotmq.store.projections.key_index.key_query import record_keys

T0_MS = 1_700_000_000_000
TOPICS = ("T", "TT", "a" * 127)
# Words of few hashes, so that chains and collisions are the rule.
WORDS = ("a", "b", "Aa", "BB", "AaBB", "BBAa", "告警", "😀", "x" * 33)

words = st.one_of(st.sampled_from(WORDS), st.text(max_size=8))
pieces = st.one_of(
    st.lists(words, max_size=6).map(lambda each: "KEYS\x01" + " ".join(each)),
    words.map(lambda each: "UNIQ_KEY\x01" + each),
    words.map(lambda each: "TAGS\x01" + each),
    st.text(max_size=12),
    st.text(alphabet="KEYSUNIQ_\x01\x02 k", max_size=20),
)
properties = st.one_of(
    st.lists(pieces, max_size=5).map(lambda each: "\x02".join(each).encode("utf-8", "replace")),
    st.binary(max_size=40),
)
records = st.tuples(
    st.sampled_from(TOPICS), properties, st.integers(0, 9_000), st.sampled_from((0, 0, 0, 4, 8, 12))
)


@given(st.text())
def test_hash_is_that_of_java(text: str) -> None:
    assert key_hash(text) == index_hash(text)


@given(st.binary(max_size=80))
def test_hash_of_any_bytes_is_that_of_their_text(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    assert key_hash(text) == index_hash(text)
    assert abs(java_hash(text)) == index_hash(text) or java_hash(text) == -(1 << 31)


@given(properties)
def test_keys_of_any_properties(data: bytes) -> None:
    assert [key.decode("utf-8", "replace") for key in record_keys(data)] == keys_of(data)


class IndexMachine(RuleBasedStateMachine):
    """Rules are what a store, and fate, may do to a key index."""

    @initialize(slots=st.sampled_from((1, 3, 16)), entries=st.sampled_from((2, 5, 16)))
    def open(self, slots: int, entries: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="iotmq-index-"))
        self.slots, self.entries = slots, entries
        self.log = b""
        # (position, topic, properties, store time, system flag)
        self.records: list[tuple[int, str, bytes, int, int]] = []
        self.now_ms = T0_MS
        self.synced_position = 0
        self.open_index(was_clean=True)

    def teardown(self) -> None:
        if hasattr(self, "root"):
            shutil.rmtree(self.root)

    @rule(batch=st.lists(records, min_size=1, max_size=8), pieces=st.integers(1, 3))
    def apply(self, batch: list[tuple[str, bytes, int, int]], pieces: int) -> None:
        for topic, data, passed_ms, sys_flag in batch:
            self.now_ms += passed_ms
            self.records.append((len(self.log), topic, data, self.now_ms, sys_flag))
            self.log += encode_record(
                topic=topic,
                body=b"",
                properties=data,
                position=len(self.log),
                sys_flag=sys_flag,
                store_timestamp_ms=self.now_ms,
            )
        self.catch_up(pieces)

    @rule(
        topic=st.sampled_from(TOPICS),
        word=words,
        begin_ms=st.integers(-2_000, 60_000),
        size_ms=st.integers(-10, 60_000),
    )
    def look_up(self, topic: str, word: str, begin_ms: int, size_ms: int) -> None:
        begin_ms += T0_MS
        lookup = self.index.look_up(topic, word, begin_ms=begin_ms, end_ms=begin_ms + size_ms)
        found = list(iter(lookup.next_position, -1))
        assert found == self.oracle().look_up(topic, word, begin_ms, begin_ms + size_ms)
        # None that is there is missed.
        wanted = {
            position
            for position, stored_topic, data, stored_ms, sys_flag in self.records
            if stored_topic == topic
            and word in keys_of(data)
            and begin_ms <= stored_ms <= begin_ms + size_ms
            and sys_flag & 12 != 12
        }
        assert wanted <= set(found)

    @rule()
    def sync(self) -> None:
        state = self.index.state()
        self.index.sync(self.index.take_dirty(), os.fdatasync)
        self.index.write_state(state)
        self.synced_position = len(self.log)

    @rule()
    def restart(self) -> None:
        self.sync()
        self.open_index(was_clean=True)
        assert self.index.applied_position == len(self.log)

    @rule()
    def die(self) -> None:
        """The page cache has everything, our state is old."""
        self.open_index(was_clean=False)
        assert self.index.applied_position == self.synced_position
        self.catch_up(1)

    @rule(filling=st.sampled_from((b"\0", b"\xa5")), share=st.integers(0, 1000))
    def lose_power(self, filling: bytes, share: int) -> None:
        """What was not synced may be anything, and the log may have lost its end."""
        synced = self.oracle(self.synced_position)
        kept = {f"{file.name:017d}": len(file.entries) for file in synced.files}
        for path in (self.root / "index").iterdir():
            count = kept.get(path.name, 1)
            if count == self.entries and path.name != max(kept):
                continue
            data = bytearray(path.read_bytes())
            if path.name not in kept:
                data[:40] = filling * 40
            else:
                # Times and positions of its first record are on the disk.
                data[8:16] = filling * 8
                data[24:40] = filling * 16
            entries_at = 40 + 4 * self.slots
            data[40:entries_at] = filling * (entries_at - 40)
            data[entries_at + 20 * count :] = filling * (len(data) - entries_at - 20 * count)
            path.write_bytes(data)
        position = len(self.log) * share // 1000
        self.cut_log(position)
        self.open_index(was_clean=False)
        assert self.index.applied_position == min(self.synced_position, len(self.log))
        self.synced_position = min(self.synced_position, len(self.log))
        self.catch_up(2)

    @rule(share=st.integers(0, 1000))
    def rewind(self, share: int) -> None:
        self.cut_log(len(self.log) * share // 1000)
        self.index.rewind(len(self.log), 0)
        self.synced_position = min(self.synced_position, len(self.log))
        self.sync()

    @invariant()
    def files_are_those_of_the_oracle(self) -> None:
        if hasattr(self, "root"):
            found = {path.name: path.read_bytes() for path in (self.root / "index").iterdir()}
            assert found == self.oracle().data()
            assert self.index.applied_position == len(self.log)
            assert all(file.problem() is None for file in self.index.file_list())

    def oracle(self, end_position: int | None = None) -> IndexOracle:
        oracle = IndexOracle(self.slots, self.entries)
        for position, topic, data, stored_ms, sys_flag in self.records:
            if end_position is None or position < end_position:
                oracle.add(topic, data, position, stored_ms, sys_flag=sys_flag)
        return oracle

    def open_index(self, *, was_clean: bool) -> None:
        self.index = KeyIndex(
            str(self.root / "index"), str(self.root / "index.applied"), slots=self.slots, entries=self.entries
        )
        self.index.recover(
            0, len(self.log), was_clean=was_clean, timestamp_ms=0, timestamp_at=self.timestamp_at
        )

    def timestamp_at(self, position: int) -> int:
        return next((record[3] for record in self.records if record[0] == position), 0)

    def cut_log(self, position: int) -> None:
        """End the log at the last start of a record that is not past `position`."""
        kept = [record for record in self.records if record[0] <= position]
        if len(kept) < len(self.records):
            self.log = self.log[: self.records[max(len(kept) - 1, 0)][0]]
            self.records = [record for record in self.records if record[0] < len(self.log)]
            self.now_ms = self.records[-1][3] if self.records else T0_MS

    def catch_up(self, pieces: int) -> None:
        """Apply what is missing in so many pieces."""
        start = self.index.applied_position
        starts = [record[0] for record in self.records if record[0] >= start]
        for number in range(pieces):
            at = starts[len(starts) * number // pieces] if starts else len(self.log)
            next_number = len(starts) * (number + 1) // pieces
            end = starts[next_number] if next_number < len(starts) else len(self.log)
            self.index.apply(memoryview(self.log)[at:end], at, end)


IndexMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestKeyIndex = IndexMachine.TestCase


@given(st.binary(min_size=0, max_size=300), st.data())
def test_damaged_files_never_do_harm(damage: bytes, data: st.DataObject) -> None:
    """Whatever is in a file that is there already: look-ups end, and give no more than the file can hold."""
    root = Path(tempfile.mkdtemp(prefix="iotmq-index-"))
    try:
        index = KeyIndex(str(root / "index"), str(root / "index.applied"), slots=4, entries=12)
        index.recover(0, 0, was_clean=True, timestamp_ms=0, timestamp_at=lambda position: 0)
        log = b""
        for _ in range(30):
            record = encode_record(
                topic="T", body=b"", properties=b"KEYS\x01k\x02", position=len(log), store_timestamp_ms=T0_MS
            )
            index.apply(record, len(log), len(log) + len(record))
            log += record
            assert decode_record(log).topic == "T"
        index.write_state(index.state())
        for path in (root / "index").iterdir():
            at = data.draw(st.integers(0, 290))
            with path.open("r+b") as file:
                file.seek(at)
                file.write(damage[: path.stat().st_size - at])
        lookup = index.look_up("T", "k")
        assert len(list(iter(lookup.next_position, -1))) <= 33
        again = KeyIndex(str(root / "index"), str(root / "index.applied"), slots=4, entries=12)
        again.recover(
            0, len(log), was_clean=data.draw(st.booleans()), timestamp_ms=0, timestamp_at=lambda position: 1
        )
        lookup = again.look_up("T", "k")
        assert len(list(iter(lookup.next_position, -1))) <= 33
        start = again.applied_position
        again.apply(memoryview(log)[start:], start, len(log))
        assert len(list(iter(again.look_up("T", "k").next_position, -1))) <= 33
        assert all(struct.unpack(">i", file.view()[36:40])[0] == file.count for file in again.file_list())
    finally:
        shutil.rmtree(root)
