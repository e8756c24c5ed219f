"""docs/reference/formats.md: its dumps are what the code writes, and the code reads them as the page says."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import struct
from pathlib import Path

import msgspec
import pytest
from manual_clock import ManualClock

from iotmq.broker.filters.consumer_filters import ConsumerFilters
from iotmq.broker.filters.subscription import SubscriptionData
from iotmq.broker.scheduled.scheduling import DelayOffsetTable
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.changed_settings import ChangedSettings
from iotmq.broker.tables.config_files import ConfigFile
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets
from iotmq.broker.tables.deleted_topics import DeletedTopic, DeletedTopics
from iotmq.broker.tables.generations import LogGenerations
from iotmq.broker.tables.subscription_groups import SYSTEM_GROUPS, SubscriptionGroups
from iotmq.broker.tables.topics import TopicConfig, TopicTable
from iotmq.history.statistics_file import decode_blocks
from iotmq.history.tables import StatisticsTables
from iotmq.message.message_ids import offset_message_id
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import check_record, decode_record, encode_batch, iter_records
from iotmq.message.tags import tag_hash
from iotmq.store.files.flushed_position import read_flushed_mark
from iotmq.store.projections.key_index.index_file import IndexFile, key_hash
from iotmq.store.projections.key_index.key_index import KeyIndex
from iotmq.store.queues.consume_queue import ConsumeQueue
from iotmq.store.queues.queue_begins import BEGINS_NAME, QueueBegins, decode_begins
from iotmq.store.recovery.checkpoint import Checkpoint, read_checkpoint
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "formats.md"
END_MS = 1_700_000_000_005
STORE_HOST = b"\x7f\0\0\1" + (10911).to_bytes(4, "big")
BORN_HOST = b"\x7f\0\0\1" + (5000).to_bytes(4, "big")
FILTER = SubscriptionData(
    topic="T", sub_string="a > 5", sub_version=1_700_000_000_000, expression_type="SQL92"
)
# What the page says the example was made with.
SETTINGS = StoreSettings(
    segment_bytes=4096,
    record_bytes_max=2048,
    queue_file_entries=8,
    allocation_step_bytes=4096,
    index_slots=4,
    index_entries=8,
    flush_interval_ms=3_600_000,
    checkpoint_interval_ms=3_600_000,
)
INDEX_NAME = "20231114221317505"

_DUMP = re.compile(r"^```hexdump (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_JSON = re.compile(r"^```json (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^ *(\d+)  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  +(\S.*))?$")


def example(directory: Path) -> None:
    """The data directory the page shows: three records that leave 100 bytes of their file, and a fourth."""
    clock = ManualClock(END_MS - 2500)
    store = Store.open(directory, SETTINGS, store_host=STORE_HOST, clock=clock)
    queue = store.queue("T", 2)

    def append(body: bytes, properties: bytes) -> None:
        elements = encode_batch([(body, properties, 0)])
        store.append(queue, elements, born_timestamp_ms=clock.now_ms() - 5, born_host=BORN_HOST)

    for passed_s in (1.0, 1.0, 0.5):
        append(bytes(1232), b"KEYS\x01k0\x02")
        clock.advance(passed_s)
    append(b"hello", b"TAGS\x01TagA\x02KEYS\x01k1\x02")
    assert store.check() == []
    store.close()
    topics = TopicTable(directory / "config" / "topics.json", clock)
    topics.put(TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4))
    topics.write(topics.encode())
    groups = SubscriptionGroups(directory / "config" / "subscriptionGroup.json", clock, may_create=True)
    groups.find_or_create("g")
    groups.write(groups.encode())
    offsets = ConsumerOffsets(directory / "config" / "consumerOffset.json")
    offsets.commit("g", "T", 2, 3)
    offsets.write(offsets.encode())
    delays = msgspec.json.encode(DelayOffsetTable(offset_table={1: 10, 3: 2}))
    ConfigFile(directory / "config" / "delayOffset.json").write(delays, is_synced=False)
    deleted = DeletedTopics(directory / "config" / "deletedTopics.json")
    deleted.add("U", DeletedTopic(position=4096, version=2))
    deleted.write(deleted.take_unsaved() or b"")
    generations_clock = ManualClock(END_MS - 5)
    for position in (0, 5460):
        generations = LogGenerations(directory / "config" / "logGenerations.json", generations_clock)
        generations.begin(min_position=0, end_position=position)
        generations_clock.advance(0.005)
    settings = ChangedSettings(
        directory / "config" / "brokerSettings.json", BrokerSettings(), StoreSettings()
    )
    settings.change({"broker.is_writable": "false"}, END_MS)
    settings.write(settings.encoder()())
    filters = ConsumerFilters(
        directory / "config" / "consumerFilter.json", ManualClock(END_MS), is_enabled=True
    )
    filters.register("g", [FILTER])
    filters.write(filters.encode())
    tables = StatisticsTables(
        directory / "statistics", names_max=10, kept={"minute": 1, "hour": 1, "day": 1}
    )
    tables.add(END_MS, {"groups": {"g": (2, 20, 1)}})


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("formats")
    example(directory)
    return directory


class Dump:
    """One dump of the page."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.start = -1
        self.data = b""
        # Texts beside the bytes, by the place of the first byte.
        self.notes: dict[int, str] = {}
        for line in text.splitlines():
            match = _LINE.match(line)
            assert match, f"{name}: {line!r} is not a line of a dump"
            at, data = int(match[1]), bytes.fromhex(match[2])
            if self.start < 0:
                self.start = at
            assert at == self.start + len(self.data), f"{name}: byte {at} is not where the last line ends"
            if match[3]:
                self.notes[at] = match[3]
            self.data += data

    @property
    def end(self) -> int:
        return self.start + len(self.data)


def dumps() -> dict[str, Dump]:
    """By name and start."""
    found = [Dump(name, text) for name, text in _DUMP.findall(PAGE.read_text())]
    return {f"{dump.name}@{dump.start}": dump for dump in found}


LOG_0 = "commitlog/00000000000000000000"
LOG_1 = "commitlog/00000000000000004096"
QUEUE = "consumequeue/T/2/00000000000000000000"
MINUTES = "statistics/minute-20231114"
INDEX = f"index/{INDEX_NAME}"


def test_the_page_has_a_dump_of_every_format() -> None:
    assert set(dumps()) == {
        f"{LOG_1}@0",
        f"{LOG_0}@3996",
        f"{QUEUE}@0",
        f"rebuilt/{QUEUE}@0",
        "rebuilt/consumequeue.begins@0",
        f"{INDEX}@0",
        "checkpoint@0",
        "checkpoint@512",
        "consumequeue/.applied@0",
        "index.applied@0",
        "batch@0",
        "kv/marker@0",
        f"{MINUTES}@32",
    }
    assert [name for name, _ in _JSON.findall(PAGE.read_text())] == [
        "config/topics.json",
        "config/subscriptionGroup.json",
        "config/consumerOffset.json",
        "config/delayOffset.json",
        "config/deletedTopics.json",
        "config/logGenerations.json",
        "config/brokerSettings.json",
        "config/consumerFilter.json",
    ]


@pytest.mark.parametrize(
    "name", [name for name in dumps() if not name.startswith(("batch", "rebuilt", "kv/"))]
)
def test_dumps_are_what_the_code_writes(directory: Path, name: str) -> None:
    dump = dumps()[name]
    assert (directory / dump.name).read_bytes()[dump.start : dump.end] == dump.data


def test_notes_with_a_number_say_what_the_bytes_are() -> None:
    """Every note that ends in `: <number>` is about the bytes of its line."""
    count = 0
    for name, dump in dumps().items():
        places = [*sorted(dump.notes), dump.end]
        for at, end in itertools.pairwise(places):
            match = re.search(r": (-?[\d,]+)$", dump.notes[at])
            if match:
                data = dump.data[at - dump.start : end - dump.start]
                number = int(match[1].replace(",", ""))
                assert int.from_bytes(data, "big", signed=number < 0) == number, (name, at)
                count += 1
    assert count > 40


def test_record() -> None:
    dump = dumps()[f"{LOG_1}@0"]
    # The vector that every implementation of the format has to give.
    assert dump.data == bytes.fromhex(
        "00000073daa320a73610a686000000020000000000000000000000030000000000001000000000000000018bcfe56800"
        "7f000001000013880000018bcfe568057f00000100002a9f0000000000000000000000000000000568656c6c6f015400"
        "12544147530154616741024b455953016b3102"
    )
    assert check_record(dump.data, position=4096) == len(dump.data) == 115
    record = decode_record(dump.data)
    assert (record.topic, record.queue_id, record.queue_offset, record.body) == ("T", 2, 3, b"hello")
    assert (record.born_timestamp_ms, record.store_timestamp_ms) == (END_MS - 5, END_MS)
    assert decode_properties(record.properties) == {"TAGS": "TagA", "KEYS": "k1"}
    assert f"`{offset_message_id('127.0.0.1', 10911, 4096)}`" in PAGE.read_text()


def test_blank(directory: Path) -> None:
    dump = dumps()[f"{LOG_0}@3996"]
    assert dump.data == bytes.fromhex("00000064CBD43194")
    data = (directory / LOG_0).read_bytes()
    assert [record.size for record in iter_records(data[: dump.start])] == [1332] * 3
    assert dump.start + 100 == len(data) == SETTINGS.segment_bytes


def test_queue_entries(directory: Path) -> None:
    dump = dumps()[f"{QUEUE}@0"]
    assert dump.data[60:] == bytes.fromhex("000000000000100000000073000000000027A807")
    queues = ConsumeQueue(str(directory / "consumequeue"), entries_per_file=SETTINGS.queue_file_entries)
    queues.rewind(4096 + 115, 0)
    entries = [queues.queue("T", 2).entry(offset) for offset in range(4)]
    assert entries == list(struct.iter_unpack(">qiq", dump.data))
    assert entries[3] == (4096, 115, tag_hash("TagA"))


def test_fillers(directory: Path, tmp_path: Path) -> None:
    """The queues made again after the first file of the log is gone."""
    shutil.copytree(directory, tmp_path / "copy")
    (tmp_path / "copy" / LOG_0).unlink()
    shutil.rmtree(tmp_path / "copy" / "consumequeue")
    store = Store.open(tmp_path / "copy", SETTINGS, store_host=STORE_HOST, clock=ManualClock(END_MS))
    queue = store.queue("T", 2)
    assert (queue.min_offset, queue.max_offset) == (3, 4)
    assert store.check() == []
    store.close()
    dump = dumps()[f"rebuilt/{QUEUE}@0"]
    assert (tmp_path / "copy" / QUEUE).read_bytes()[: dump.end] == dump.data
    assert dump.data[:20] == bytes.fromhex("00000000000000007FFFFFFF0000000000000000")
    begins = dumps()["rebuilt/consumequeue.begins@0"]
    assert (tmp_path / "copy" / BEGINS_NAME).read_bytes() == begins.data
    assert decode_begins(begins.data) == QueueBegins(4096, [("T", 2, 3)])


def test_index(directory: Path, tmp_path: Path) -> None:
    dump = dumps()[f"{INDEX}@0"]
    size_bytes = (directory / INDEX).stat().st_size
    assert size_bytes == 40 + 4 * SETTINGS.index_slots + 20 * SETTINGS.index_entries
    (tmp_path / "index").mkdir()
    path = tmp_path / INDEX
    path.write_bytes(dump.data.ljust(size_bytes, b"\0"))
    file = IndexFile(str(path), SETTINGS.index_slots, SETTINGS.index_entries)
    assert file.problem() is None
    assert (file.begin_timestamp_ms, file.end_timestamp_ms) == (END_MS - 2500, END_MS)
    assert (file.begin_position, file.end_position, file.used_slots, file.count) == (0, 4096, 2, 5)
    shutil.copy(directory / "index.applied", tmp_path)
    index = KeyIndex(
        str(tmp_path / "index"), str(tmp_path / "index.applied"), slots=4, entries=SETTINGS.index_entries
    )
    index.recover(0, 4096 + 115, was_clean=True, timestamp_ms=0, timestamp_at=lambda position: END_MS)
    assert list(iter(index.look_up("T", "k0").next_position, -1)) == [2664, 1332, 0]
    assert list(iter(index.look_up("T", "k1").next_position, -1)) == [4096]
    text = PAGE.read_text()
    for key in ("T#k0", "T#k1"):
        assert f"`{key}` has the hash {key_hash(key)}" in text.replace("\n", " ")


def test_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(dumps()["checkpoint@0"].data)
    assert read_checkpoint(path) == Checkpoint(END_MS, END_MS, END_MS, 4096 + 115)
    mark = dumps()["checkpoint@512"]
    path.write_bytes(bytes(mark.start) + mark.data)
    assert read_flushed_mark(path) == 4096 + 115


def test_states(tmp_path: Path) -> None:
    queues = ConsumeQueue(str(tmp_path / "consumequeue"), entries_per_file=8)
    (tmp_path / "consumequeue" / ".applied").write_bytes(dumps()["consumequeue/.applied@0"].data)
    assert queues.read_state()[:3] == (4096 + 115, 1, 4)  # type: ignore[index]
    (tmp_path / "index.applied").write_bytes(dumps()["index.applied@0"].data)
    index = KeyIndex(str(tmp_path / "index"), str(tmp_path / "index.applied"), slots=4, entries=8)
    assert index.read_state() == (4096 + 115, 1, int(INDEX_NAME), 5)


def test_batch() -> None:
    dump = dumps()["batch@0"]
    assert dump.data == encode_batch([(b"hello", b"TAGS\x01TagA\x02", 0)])


def test_statistics() -> None:
    content = decode_blocks(dumps()[f"{MINUTES}@32"].data)
    (block,) = content.blocks
    assert (block.table, block.ids.hex(), block.row(0)) == ("groups", "00000001", (2, 20, 1))
    assert content.names["groups"] == ["", "g"]


def test_marker() -> None:
    magic, version, position = struct.unpack(">8siq", dumps()["kv/marker@0"].data)
    assert (magic, version, position) == (b"iotmqKV1", 1, 4096 + 115)


def test_marks_of_a_running_store(tmp_path: Path) -> None:
    store = Store.open(tmp_path, SETTINGS, store_host=STORE_HOST)
    assert (tmp_path / "abort").read_bytes() == b""
    assert re.fullmatch(rb"\d+\n", (tmp_path / "lock").read_bytes())
    assert store.check() == []
    store.close()
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize(("name", "text"), _JSON.findall(PAGE.read_text()))
def test_config_files(directory: Path, tmp_path: Path, name: str, text: str) -> None:
    written = json.loads((directory / name).read_bytes())
    groups = written.get("subscriptionGroupTable", {})
    for group in set(groups) & set(SYSTEM_GROUPS):
        del groups[group]
    assert json.loads(text) == written
    path = tmp_path / Path(name).name
    clock = ManualClock(END_MS)
    # Read from the page, broken in the first place and good as `.bak`.
    path.write_bytes(b"")
    path.with_name(path.name + ".bak").write_text(text)
    if path.name == "topics.json":
        topic = TopicTable(path, clock).find("T")
        assert topic is not None
        assert topic.read_queue_nums == topic.write_queue_nums == 4
    elif path.name == "subscriptionGroup.json":
        group = SubscriptionGroups(path, clock, may_create=False).find("g")
        assert group is not None
        assert group.retry_max_times == 16
    elif path.name == "consumerFilter.json":
        filters = ConsumerFilters(path, clock, is_enabled=True)
        assert filters.of_group("g", FILTER).properties == ("a",)
    elif path.name == "consumerOffset.json":
        assert ConsumerOffsets(path).find("g", "T", 2) == 3
