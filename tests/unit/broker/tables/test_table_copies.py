"""Tables of a master arrive at a follower: whole, by what changed, and in any order of the two."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from loop_turns import turn_s_max
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.filters.consumer_filters import ConsumerFilters, FilterData
from iotmq.broker.members.queue_locks import CopiedLock, MessageQueue, QueueLocks
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.changed_settings import ChangedSettings
from iotmq.broker.tables.config_files import DataVersion
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets, OffsetsOfPair
from iotmq.broker.tables.copied_table import CopiedByKey, CopiedTable, CopiedWhole
from iotmq.broker.tables.deleted_topics import DeletedTopic
from iotmq.broker.tables.subscription_groups import (
    SYSTEM_GROUPS,
    CopiedGroup,
    SubscriptionGroupConfig,
    SubscriptionGroups,
)
from iotmq.broker.tables.table_copies import TableCopies
from iotmq.broker.tables.table_files import TableFiles
from iotmq.broker.tables.table_pieces import PIECE_BYTES, TablePiece, decode_piece
from iotmq.broker.tables.topics import CopiedTopic, TopicConfig, TopicTable
from iotmq.cycles import short_collections
from iotmq.errors import TableCopyError
from iotmq.store.settings import StoreSettings


class Member:
    """The tables of one broker, without a broker."""

    def __init__(self, directory: Path, clock: ManualClock | None = None, **configured: Any) -> None:
        self.clock = clock or ManualClock()
        self.topics = TopicTable(directory / "topics.json", self.clock)
        self.groups = SubscriptionGroups(directory / "groups.json", self.clock, may_create=True)
        self.settings = ChangedSettings(
            directory / "settings.json", BrokerSettings(**configured), StoreSettings()
        )
        self.offsets = ConsumerOffsets(directory / "offsets.json", pairs_max=50)
        self.filters = ConsumerFilters(directory / "filters.json", self.clock, is_enabled=True)
        self.locks = QueueLocks(self.clock, locks_max=20)
        self.files = TableFiles(self.topics, self.groups, self.settings)
        self.files.add([self.offsets, self.filters])
        self.copies = TableCopies(
            [
                *self.files.copied(),
                CopiedWhole("filters", self.filters, FilterData, entries_max=limits.CONSUMER_FILTERS_MAX),
                CopiedByKey("locks", self.locks, CopiedLock),
                CopiedByKey("offsets", self.offsets, OffsetsOfPair),
            ]
        )


@pytest.fixture
def master(tmp_path: Path) -> Member:
    return Member(tmp_path / "master")


@pytest.fixture
def follower(tmp_path: Path) -> Member:
    return Member(tmp_path / "follower")


def take_all(follower: Member, pieces: Iterator[TablePiece]) -> int:
    """Send pieces as bytes; return how many there were."""
    count = 0
    for piece in pieces:
        follower.copies.take(decode_piece(piece.encode()))
        count += 1
    return count


def only(pieces: Iterator[TablePiece], table: str) -> list[TablePiece]:
    return [piece for piece in pieces if piece.table == table]


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue(broker_name="b", topic="T", queue_id=queue_id)


def test_who_waits_until_members_know_a_change_waits_also_while_none_of_them_is_there(master: Member) -> None:
    """Whether any has to be waited for is known to who sends them the tables."""
    waiting: list[Callable[[bool], None]] = []
    answers: list[bool] = []
    master.copies.when_copied(answers.append)
    assert answers == [True], "nobody ever follows this broker"
    master.copies.copier = waiting.append
    master.copies.when_copied(answers.append)
    assert answers == [True]
    waiting[0](False)
    assert answers == [True, False]


def test_a_snapshot_has_every_table(master: Member, follower: Member) -> None:
    master.topics.put(TopicConfig(topic_name="T", read_queue_nums=3, frozen_queues=(1,)))
    master.topics.deleted.add("gone", DeletedTopic(position=7, version=3))
    master.groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=2))
    master.settings.change({"broker.is_writable": "false", "store.retention_hours": "5"}, 17)
    master.offsets.commit("g", "T", 2, 40)
    master.filters.replace([FilterData(topic="T", consumer_group="g", expression="a > 1")], DataVersion())
    master.locks.lock("g", "c", [queue(0)])
    assert not follower.copies.is_complete
    take_all(follower, master.copies.snapshot())
    assert follower.copies.is_complete
    assert follower.topics.encode() == master.topics.encode()
    assert follower.topics.version == master.topics.version
    assert follower.topics.deleted.items() == master.topics.deleted.items()
    assert follower.groups.encode() == master.groups.encode()
    assert follower.groups.version == master.groups.version
    assert not follower.settings.broker.is_writable
    assert follower.settings.store.retention_hours == 5
    assert follower.settings.version == master.settings.version
    assert follower.offsets.encode() == master.offsets.encode()
    assert follower.filters.encode() == master.filters.encode()
    assert follower.locks.holder("g", queue(0)) == "c"
    follower.copies.begin()
    assert not follower.copies.is_complete


def test_what_was_taken_is_there_after_a_restart(tmp_path: Path, master: Member, follower: Member) -> None:
    master.topics.put(TopicConfig(topic_name="T"))
    master.topics.deleted.add("gone", DeletedTopic(position=7, version=3))
    master.groups.put(SubscriptionGroupConfig(group_name="g"))
    master.settings.change({"broker.is_readable": "false"}, 17)
    master.offsets.commit("g", "T", 2, 40)
    take_all(follower, master.copies.snapshot())
    assert follower.files.is_behind
    follower.files.save_all()
    again = Member(tmp_path / "follower")
    assert again.topics.encode() == master.topics.encode()
    assert again.topics.deleted.items() == master.topics.deleted.items()
    assert again.groups.encode() == master.groups.encode()
    assert not again.settings.broker.is_readable
    assert again.offsets.encode() == master.offsets.encode()


def test_nothing_is_noted_while_nobody_follows(master: Member) -> None:
    master.offsets.commit("g", "T", 0, 1)
    master.locks.lock("g", "c", [queue(0)])
    assert master.offsets.changed.keys is None
    assert master.locks.changed.keys is None
    assert list(master.copies.changes()) == []
    list(master.copies.snapshot())
    master.offsets.commit("g", "T", 0, 2)
    assert len(list(master.copies.changes())) == 1
    assert list(master.copies.changes()) == []
    master.copies.stop_tracking()
    master.offsets.commit("g", "T", 0, 3)
    assert master.offsets.changed.keys is None
    assert list(master.copies.changes()) == []


def test_changes_of_large_tables_are_the_changed_keys_alone(master: Member, follower: Member) -> None:
    for number in range(20):
        master.offsets.commit(f"g{number}", "T", 0, number)
        master.locks.lock(f"g{number}", "c", [queue(0)])
    take_all(follower, master.copies.snapshot())
    master.offsets.commit("g3", "T", 1, 100)
    master.offsets.forget_group("g4")
    master.locks.lock("g5", "c", [queue(0)])
    master.locks.unlock("g6", "c", [queue(0)])
    pieces = list(master.copies.changes())
    by_table = {piece.table: msgspec.msgpack.decode(piece.body) for piece in pieces}
    assert sorted(by_table["offsets"]) == [["T@g3", {0: 3, 1: 100}], ["T@g4", {}]]
    assert sorted(entry[0][0] for entry in by_table["locks"]) == ["g5", "g6"]
    take_all(follower, iter(pieces))
    assert follower.offsets.encode() == master.offsets.encode()
    assert follower.locks.holder("g6", queue(0)) is None
    follower.locks.check_invariants()


def test_a_changed_topic_comes_with_its_data_version(master: Member, follower: Member) -> None:
    take_all(follower, master.copies.snapshot())
    master.topics.put(TopicConfig(topic_name="T"))
    master.groups.delete("TOOLS_CONSUMER")
    master.filters.replace([], DataVersion())
    pieces = list(master.copies.changes())
    assert [piece.table for piece in pieces] == ["topics", "groups", "filters"]
    assert [msgspec.msgpack.decode(piece.body)[0][0] for piece in pieces[:2]] == ["T", "TOOLS_CONSUMER"]
    take_all(follower, iter(pieces))
    assert follower.topics.version == master.topics.version != DataVersion()
    assert follower.groups.find("TOOLS_CONSUMER") is None
    # Another version is told without a topic.
    master.topics.count_up()
    take_all(follower, master.copies.changes())
    assert follower.topics.version == master.topics.version


def test_a_snapshot_replaces_what_the_master_does_not_have(master: Member, follower: Member) -> None:
    follower.topics.put(TopicConfig(topic_name="old"))
    follower.settings.change({"broker.is_writable": "false"}, 17)
    follower.offsets.commit("old", "T", 0, 5)
    follower.locks.lock("old", "c", [queue(0)])
    take_all(follower, master.copies.snapshot())
    assert follower.topics.find("old") is None
    assert follower.settings.broker.is_writable
    assert len(follower.offsets) == 0
    assert follower.locks.count == 0


def test_a_snapshot_that_is_cut_off_changes_nothing(tmp_path: Path, follower: Member) -> None:
    master = Member(tmp_path / "master")
    for number in range(50):
        master.offsets.commit(f"{number}" * 100, "T" * 100, 0, 1)
    for number in range(2_000):
        master.topics.put(TopicConfig(topic_name=f"{number}"))
    follower.offsets.commit("mine", "T", 0, 5)
    follower.topics.put(TopicConfig(topic_name="mine"))
    pieces = list(master.copies.snapshot())
    of_topics = [piece for piece in pieces if piece.table == "topics"]
    assert len(of_topics) > 2
    before = follower.topics.encode()
    for piece in of_topics[:-1]:
        follower.copies.take(piece)
        assert follower.topics.encode() == before
    # Another one begins; what is left of the first is passed over.
    second = only(master.copies.snapshot(), "topics")
    follower.copies.take(second[0])
    follower.copies.take(of_topics[-1])
    assert follower.topics.encode() == before
    for piece in second[1:]:
        follower.copies.take(piece)
    assert follower.topics.encode() == master.topics.encode()
    assert follower.offsets.find("mine", "T", 0) == 5


def test_every_piece_can_be_the_last_one_taken(tmp_path: Path) -> None:
    master = Member(tmp_path / "master")
    for number in range(900):
        master.topics.put(TopicConfig(topic_name=f"T{number}"))
    pieces = list(master.copies.snapshot())
    for count in range(len(pieces) + 1):
        follower = Member(tmp_path / f"follower{count}")
        take_all(follower, islice(pieces, count))
        assert len(follower.topics) in (0, 900)
        take_all(follower, master.copies.snapshot())
        assert follower.topics.encode() == master.topics.encode()


def test_a_lock_has_the_time_that_is_left_of_it(master: Member, follower: Member) -> None:
    follower.clock.advance(123_456)
    master.locks.lock("g", "c1", [queue(0)])
    master.clock.advance(40)
    take_all(follower, master.copies.snapshot())
    follower.clock.advance(20)
    assert follower.locks.lock("g", "c2", [queue(0)]) == []
    assert follower.locks.lock("g", "c1", [queue(1)]) == [queue(1)]
    follower.clock.advance(0.1)
    assert follower.locks.lock("g", "c2", [queue(0)]) == [queue(0)]


def test_the_holder_of_a_lock_renews_it_at_the_new_master(master: Member, follower: Member) -> None:
    master.locks.lock("g", "c1", [queue(0)])
    take_all(follower, master.copies.snapshot())
    follower.clock.advance(50)
    assert follower.locks.lock("g", "c1", [queue(0)]) == [queue(0)]
    follower.clock.advance(50)
    assert follower.locks.lock("g", "c2", [queue(0)]) == []


def test_a_lock_whose_time_is_over_is_not_copied(master: Member, follower: Member) -> None:
    master.locks.lock("g", "c1", [queue(0)])
    master.clock.advance(60.1)
    take_all(follower, master.copies.snapshot())
    assert follower.locks.count == 0
    # The time that a piece names has a maximum, whatever clocks do.
    entry = CopiedLock(("g", "b", "T", 0), "c", 10_000_000)
    follower.copies.take(TablePiece(table="locks", body=msgspec.msgpack.encode([entry])))
    follower.clock.advance(60.1)
    assert follower.locks.holder("g", queue(0)) is None


def test_locks_that_expire_at_the_master_go_at_the_follower(master: Member, follower: Member) -> None:
    take_all(follower, master.copies.snapshot())
    master.locks.lock("g", "c1", [queue(0)])
    take_all(follower, master.copies.changes())
    assert follower.locks.count == 1
    master.clock.advance(61)
    master.locks.expire()
    take_all(follower, master.copies.changes())
    assert follower.locks.count == 0


def test_a_name_that_has_no_bytes_stops_nothing(master: Member, follower: Member) -> None:
    master.locks.lock("g", "\ud800", [queue(0)])
    master.locks.lock("g", "c", [queue(1)])
    take_all(follower, master.copies.snapshot())
    assert [follower.locks.holder("g", queue(queue_id)) for queue_id in (0, 1)] == [None, "c"]


def test_filters_of_a_new_master_live_for_a_day_without_consumers(tmp_path: Path) -> None:
    clock = ManualClock()
    follower = Member(tmp_path, clock)
    follower.filters.replace([FilterData(topic="T", consumer_group="g", expression="a > 1")], DataVersion())
    clock.advance(3 * 86_400)
    follower.filters.start()
    follower.filters.expire()
    assert len(follower.filters) == 1
    clock.advance(86_401)
    follower.filters.expire()
    assert len(follower.filters) == 0


def test_a_changed_setting_holds_where_another_value_is_configured(tmp_path: Path, master: Member) -> None:
    follower = Member(tmp_path / "follower", default_topic_queues=5, is_readable=False)
    master.settings.change({"broker.default_topic_queues": "11"}, 17)
    take_all(follower, master.copies.snapshot())
    assert follower.settings.broker.default_topic_queues == 11
    assert not follower.settings.broker.is_readable
    follower.files.save_all()
    again = Member(tmp_path / "follower", default_topic_queues=5, is_readable=False)
    assert again.settings.broker.default_topic_queues == 11
    master.settings.change({"broker.default_topic_queues": "8"}, 18)
    take_all(again, master.copies.changes())
    assert again.settings.broker.default_topic_queues == 5


def test_a_deletion_that_the_master_has_passed_stays_until_this_log_has(
    master: Member, follower: Member
) -> None:
    for name in ("passed", "never deleted"):
        follower.topics.deleted.add(name, DeletedTopic(position=7, version=1))
    master.topics.put(TopicConfig(topic_name="T"))
    follower.topics.deleted.add("T", DeletedTopic(position=7, version=1))
    follower.topics.deleted.forget("never deleted")
    take_all(follower, master.copies.snapshot())
    assert [name for name, _ in follower.topics.deleted.items()] == ["passed"]


def piece_of(table: str, entries: object, **fields: Any) -> TablePiece:
    return TablePiece(table=table, body=msgspec.msgpack.encode(entries), **fields)


WHOLE: dict[str, Any] = {"copy": 1, "is_first": True, "is_last": True}
ANY_CHANGE = {"configured": "true", "value": "neither"}


@pytest.mark.parametrize(
    ("piece", "problem"),
    [
        (piece_of("offsets", [["T@g", {0: "x"}]]), "offsets cannot be read"),
        (piece_of("offsets", {"T@g": {}}), "offsets cannot be read"),
        (TablePiece(table="offsets", body=b"\xdd\0\0\0\x05"), "offsets cannot be read"),
        (TablePiece(table="offsets", body=b""), "offsets cannot be read"),
        (piece_of("offsets", [["T@g", {0: 9}], *([f"T@{n}", {0: 1}] for n in range(50))]), "more than 50"),
        (piece_of("locks", [[["g", "b", "T", n], "c", 9] for n in range(21)]), "more than 20"),
        (piece_of("locks", [[["g", "b", "T"], "c", 9]]), "locks cannot be read"),
        (piece_of("nothing", []), "no table has the name 'nothing'"),
        (piece_of("settings", []), "copied whole"),
        (piece_of("offsets", [], is_first=True), "of no copy"),
        (piece_of("topics", [["mine", None], ["a b", {"topicName": "a b"}]]), "characters other than"),
        (piece_of("topics", [["T", {"topicName": "T", "readQueueNums": 1025}]]), "1025 queues"),
        (piece_of("topics", [["T", {"perm": 6}]]), "missing required field"),
        (piece_of("topics", [["T", {"topicName": "U"}]]), "has the name 'U'"),
        (piece_of("topics", [["", None]], **WHOLE), "the topic is empty"),
        (piece_of("groups", [["", None]]), "the group is empty"),
        (piece_of("groups", [["g", {"groupName": "h"}]]), "has the name 'h'"),
        (piece_of("settings", [["broker.name", ANY_CHANGE]], **WHOLE), "cannot change"),
        (piece_of("settings", [["broker.is_writable", ANY_CHANGE]], **WHOLE), "is_writable"),
        (
            piece_of("filters", [{"topic": "T", "consumerGroup": "g", "expression": "x" * 8_193}], **WHOLE),
            "8193 characters",
        ),
    ],
)
def test_bad_pieces_change_nothing(follower: Member, piece: TablePiece, problem: str) -> None:
    follower.topics.put(TopicConfig(topic_name="mine"))
    follower.offsets.commit("g", "T", 0, 5)
    follower.locks.lock("g", "c", [queue(0)])

    def contents() -> list[object]:
        tables = (follower.topics, follower.groups, follower.offsets, follower.filters)
        return [*(table.encode() for table in tables), follower.settings.broker, follower.locks.count]

    before = contents()
    with pytest.raises(TableCopyError, match=problem):
        follower.copies.take(piece)
    assert contents() == before
    follower.copies.take(piece_of("offsets", [["T@h", {0: 1}]]))
    assert follower.offsets.find("h", "T", 0) == 1


def test_the_rest_of_a_copy_with_a_bad_piece_is_passed_over(master: Member, follower: Member) -> None:
    for number in range(2_000):
        master.topics.put(TopicConfig(topic_name=f"{number}"))
    first, *_, last = only(master.copies.snapshot(), "topics")
    follower.copies.take(first)
    with pytest.raises(TableCopyError):
        follower.copies.take(msgspec.structs.replace(first, is_first=False, body=b"\xc0"))
    follower.copies.take(last)
    assert len(follower.topics) == 0


@pytest.mark.parametrize("past", [0, 1])
def test_a_table_has_no_more_entries_than_there_may_be(tmp_path: Path, past: int) -> None:
    topics = TopicTable(tmp_path / "topics.json", ManualClock(), topics_max=3)
    groups = SubscriptionGroups(tmp_path / "groups.json", ManualClock(), may_create=True, groups_max=3)
    filters = ConsumerFilters(tmp_path / "filters.json", ManualClock(), is_enabled=True)
    copies = TableCopies(
        [
            CopiedByKey("topics", topics, CopiedTopic),
            CopiedByKey("groups", groups, CopiedGroup),
            CopiedWhole("filters", filters, FilterData, entries_max=3),
        ]
    )
    for table, entry in (
        ("topics", lambda name: [name, {"topicName": name}]),
        ("groups", lambda name: [name, {"groupName": name}]),
        ("filters", lambda name: {"topic": name, "consumerGroup": "g", "expression": "a > 1"}),
    ):
        # What is gone makes room; only where all is copied nothing can be gone.
        gone = [] if table == "filters" else [["a", None], ["unknown", None]]
        pieces = [
            piece_of(table, [entry("a"), *([entry("b")] if not gone else [])], copy=1, is_first=True),
            piece_of(table, [*gone, *map(entry, ["c", "d", "e", "f"][: (3 if gone else 1) + past])], copy=1),
            piece_of(table, [], copy=1, is_last=True),
        ]
        copies.take(pieces[0])
        if past:
            with pytest.raises(TableCopyError, match="more than 3"):
                copies.take(pieces[1])
        else:
            copies.take(pieces[1])
        copies.take(pieces[2])
    system_groups = len(SYSTEM_GROUPS)
    assert (len(topics), len(groups), len(filters)) == ((0, system_groups, 0) if past else (3, 3, 3))


def test_pieces_have_a_maximum(follower: Member) -> None:
    """TABLE_PIECE_BYTES_MAX holds for a piece as bytes, and for its body."""
    frame = len(TablePiece(table="offsets", body=bytes(1 << 20)).encode()) - (1 << 20)
    body = bytes(limits.TABLE_PIECE_BYTES_MAX - frame)
    assert decode_piece(TablePiece(table="offsets", body=body).encode()).body == body
    with pytest.raises(TableCopyError, match=f"more than {limits.TABLE_PIECE_BYTES_MAX}"):
        decode_piece(TablePiece(table="offsets", body=body + b"\0").encode())
    with pytest.raises(TableCopyError, match=f"more than {limits.TABLE_PIECE_BYTES_MAX}"):
        follower.copies.take(TablePiece(table="offsets", body=bytes(limits.TABLE_PIECE_BYTES_MAX + 1)))


@given(st.binary(max_size=60))
@example(b"\x96\xa1\x80")
def test_bytes_that_are_no_piece_are_refused(data: bytes) -> None:
    try:
        piece = decode_piece(data)
    except TableCopyError:
        return
    assert decode_piece(piece.encode()) == piece


@given(st.sampled_from(["offsets", "locks", "topics", "settings", "filters"]), st.binary(max_size=40))
@settings(deadline=None)
def test_any_body_is_taken_or_refused(table: str, body: bytes) -> None:
    with TemporaryDirectory() as directory:
        follower = Member(Path(directory))
        fields = {} if table in ("offsets", "locks", "topics") else WHOLE
        try:
            follower.copies.take(TablePiece(table=table, body=body, **fields))
        except TableCopyError:
            assert len(follower.topics) == follower.locks.count == len(follower.offsets) == 0


def test_a_master_takes_no_tables(master: Member, follower: Member) -> None:
    follower.copies.lead()
    with pytest.raises(TableCopyError, match="this broker is the master"):
        take_all(follower, master.copies.snapshot())


async def test_listeners_are_told_once_in_a_turn_of_the_loop(master: Member, follower: Member) -> None:
    told: list[int] = []
    master.copies.add_listener(lambda: told.append(take_all(follower, master.copies.changes())))
    master.topics.add_listener(lambda name: master.copies.note_urgent())
    master.topics.put(TopicConfig(topic_name="before"))
    take_all(follower, master.copies.snapshot())
    master.topics.put(TopicConfig(topic_name="a"))
    master.topics.put(TopicConfig(topic_name="b"))
    assert told == []
    await _turn()
    assert told == [1]
    assert set(follower.topics.names()) == {"before", "a", "b"}
    master.copies.stop_tracking()
    master.topics.put(TopicConfig(topic_name="c"))
    await _turn()
    assert told == [1]


async def _turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_listeners_of_locks_hear_of_new_holders_alone() -> None:
    clock, told = ManualClock(), []
    locks = QueueLocks(clock)
    locks.add_given_listener(lambda: told.append(1))
    locks.lock("g", "c1", [queue(0)])
    assert told == [1]
    locks.lock("g", "c1", [queue(0)])
    locks.lock("g", "c2", [queue(0)])
    assert told == [1]
    clock.advance(61)
    locks.lock("g", "c2", [queue(0)])
    assert told == [1, 1]


@pytest.mark.parametrize("past", [0, 1])
def test_past_the_maximum_of_changed_keys_the_table_is_copied(
    tmp_path: Path, past: int, follower: Member
) -> None:
    offsets = ConsumerOffsets(tmp_path / "offsets.json", pairs_max=4)
    copies = TableCopies([CopiedByKey("offsets", offsets, OffsetsOfPair)])
    copied = only(copies.snapshot(), "offsets")
    for number in range(8 + past):
        offsets.commit(f"{number}", "T", 0, 1)
        offsets.forget_group(f"{number}")
    # The maximum is looked at where a pair comes.
    offsets.commit("last", "T", 0, 1)
    assert offsets.changed.keys is not None
    assert len(offsets.changed.keys) == (9 if not past else 1)
    changes = list(copies.changes())
    assert [piece.copy != 0 for piece in changes] == [bool(past)]
    for piece in [*copied, *changes]:
        follower.copies.take(piece)
    assert follower.offsets.encode() == offsets.encode()
    offsets.commit("last", "T", 0, 2)
    assert [piece.copy for piece in copies.changes()] == [0]


def test_a_million_offsets_are_made_and_taken_in_short_steps(tmp_path: Path) -> None:
    offsets = ConsumerOffsets(tmp_path / "master.json")
    for pair in range(125_000):
        for queue_id in range(8):
            offsets.commit(f"group{pair}", "a-topic-of-usual-length", queue_id, 1_000_000 + pair)
    taken = ConsumerOffsets(tmp_path / "follower.json")
    copies = TableCopies([CopiedByKey("offsets", offsets, OffsetsOfPair)])
    followed = TableCopies([CopiedByKey("offsets", taken, OffsetsOfPair)])
    with short_collections():
        made, took = _steps_s(copies.snapshot(), followed.take)
        for pair in range(125_000):
            offsets.commit(f"group{pair}", "a-topic-of-usual-length", 3, 2_000_000)
        changes, applied = _steps_s(copies.changes(), followed.take)
    assert taken._offsets == offsets._offsets
    longest_s = [sorted(steps)[int(0.99 * len(steps))] for steps in (made, took, changes, applied)]
    assert max(longest_s) < turn_s_max(), longest_s


def _steps_s(
    pieces: Iterator[TablePiece], take: Callable[[TablePiece], None]
) -> tuple[list[float], list[float]]:
    made: list[float] = []
    took: list[float] = []
    while True:
        began_s = time.thread_time()
        piece = next(pieces, None)
        made_s = time.thread_time()
        if piece is None:
            return made, took
        assert len(piece.body) < PIECE_BYTES + 1_024
        take(piece)
        made.append(made_s - began_s)
        took.append(time.thread_time() - made_s)


GROUPS = st.sampled_from(["a", "b", "c"])
TOPICS = st.sampled_from("TUVW")


@pytest.mark.usefixtures("_small_pieces")
def test_changes_that_are_sent_late_take_no_version_back(master: Member, follower: Member) -> None:
    take_all(follower, master.copies.snapshot())
    for name in ("T", "U"):
        master.topics.put(TopicConfig(topic_name=name))
    late = master.copies.changes()
    follower.copies.take(next(late))
    master.topics.put(TopicConfig(topic_name="V"))
    take_all(follower, master.copies.changes())
    take_all(follower, late)
    assert follower.topics.version == master.topics.version


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_changes_and_pieces_ends_with_equal_tables(tmp_path: Path, seed: int) -> None:
    """Many orders, quickly; what fails here is for `TestChangingTables` to make short."""
    for number in range(10):
        draw = random.Random(seed * 1_000 + number)
        tables = ChangingTables()
        for _ in range(60):
            _random_step(tables, draw)
        tables.teardown()


def _random_step(tables: ChangingTables, draw: random.Random) -> None:
    group, topic, client = draw.choice("abc"), draw.choice("TUVW"), draw.choice("cd")
    number, queue_ids = draw.randrange(2), set(draw.sample(range(4), 2))
    steps: list[Callable[[], object]] = [
        lambda: tables.commit(group, topic, draw.randrange(3), draw.randrange(10)),
        lambda: tables.forget_group(group),
        lambda: tables.forget_topic(topic),
        lambda: tables.put_topic(topic, draw.randrange(1, 4)),
        lambda: tables.delete_topic(topic),
        tables.count_topics_up,
        lambda: tables.lock(group, client, queue_ids),
        lambda: tables.unlock(group, client, queue_ids),
        lambda: tables.time_passes(draw.choice([5, 61])),
        tables.changes_begin,
        tables.changes_begin,
    ]
    kind = draw.random()
    if kind < 0.4:
        draw.choice(steps)()
    elif kind < 0.42:
        draw.choice([tables.all_go, tables.second_goes])()
    elif kind < 0.5:
        tables.snapshots_begin(number)
    elif kind < 0.7 or not tables.changes:
        tables.snapshot_step(number)
    else:
        tables.step_changes(draw.choice(tables.changes))


class ChangingTables(RuleBasedStateMachine):
    """A master with two followers: one from the beginning, and one that comes and goes.

    Pieces are made one at a time, between commits, removals and other pieces, and taken in the order in which
    they were made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        path = Path(self.directory.name)
        self.master = _Tables(path / "master")
        self.followers = [_Tables(path / "first"), _Tables(path / "second")]
        for follower in self.followers:
            follower.topics.put(TopicConfig(topic_name="old"))
            follower.offsets.commit("old", "T", 0, 1)
            follower.locks.lock("old", "c", [queue(9)])
        self.snapshots: list[Iterator[TablePiece] | None] = [None, None]
        self.is_following = [False, False]
        self.changes: list[Iterator[TablePiece]] = []

    def teardown(self) -> None:
        # Whatever was under way comes to an end, and then all is equal.
        if not any(self.is_following):
            self.snapshots_begin(0)
        for changes in self.changes:
            self.send(changes)
        for number in (0, 1):
            while self.snapshots[number] is not None:
                self.snapshot_step(number)
        self.send(self.master.copies.changes())
        for number in (0, 1):
            if self.is_following[number]:
                follower = self.followers[number]
                assert follower.offsets._offsets == self.master.offsets._offsets
                assert follower.lock_holders() == self.master.lock_holders()
                assert follower.topics.version == self.master.topics.version
                assert follower.topic_configs() == self.master.topic_configs()
        self.directory.cleanup()

    @rule(group=GROUPS, topic=TOPICS, queue_id=st.integers(0, 2), offset=st.integers(0, 9))
    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.master.offsets.commit(group, topic, queue_id, offset)

    @rule(group=GROUPS)
    def forget_group(self, group: str) -> None:
        self.master.offsets.forget_group(group)

    @rule(topic=TOPICS)
    def forget_topic(self, topic: str) -> None:
        self.master.offsets.forget_topics({topic})

    @rule(name=TOPICS, queues=st.integers(1, 3))
    def put_topic(self, name: str, queues: int) -> None:
        self.master.topics.put(TopicConfig(topic_name=name, read_queue_nums=queues))

    @rule(name=TOPICS)
    def delete_topic(self, name: str) -> None:
        self.master.topics.delete(name)

    @rule()
    def count_topics_up(self) -> None:
        self.master.topics.count_up()

    @rule(group=GROUPS, client=st.sampled_from(["c", "d"]), queue_ids=st.sets(st.integers(0, 3)))
    def lock(self, group: str, client: str, queue_ids: set[int]) -> None:
        self.master.locks.lock(group, client, map(queue, sorted(queue_ids)))

    @rule(group=GROUPS, client=st.sampled_from(["c", "d"]), queue_ids=st.sets(st.integers(0, 3)))
    def unlock(self, group: str, client: str, queue_ids: set[int]) -> None:
        self.master.locks.unlock(group, client, map(queue, sorted(queue_ids)))

    @rule(seconds=st.sampled_from([5, 61]))
    def time_passes(self, seconds: int) -> None:
        self.master.clock.advance(seconds)
        for follower in self.followers:
            follower.clock.advance(seconds)
        self.master.locks.expire()

    @rule(number=st.integers(0, 1))
    def snapshots_begin(self, number: int) -> None:
        self.snapshots[number] = self.master.copies.snapshot()
        self.followers[number].copies.begin()
        self.is_following[number] = True

    @precondition(lambda self: self.is_following[1])
    @rule()
    def second_goes(self) -> None:
        self.snapshots[1] = None
        self.is_following[1] = False

    @rule()
    def all_go(self) -> None:
        self.master.copies.stop_tracking()
        self.snapshots = [None, None]
        self.is_following = [False, False]
        self.changes = []

    @rule(number=st.integers(0, 1))
    def snapshot_step(self, number: int) -> None:
        snapshot = self.snapshots[number]
        if snapshot is not None:
            piece = next(snapshot, None)
            if piece is None:
                self.snapshots[number] = None
                assert self.followers[number].copies.is_complete
            else:
                self.followers[number].copies.take(piece)

    @rule()
    def changes_begin(self) -> None:
        self.changes.append(self.master.copies.changes())

    @precondition(lambda self: bool(self.changes))
    @rule(data=st.data())
    def changes_step(self, data: st.DataObject) -> None:
        self.step_changes(data.draw(st.sampled_from(self.changes)))

    def step_changes(self, changes: Iterator[TablePiece]) -> None:
        piece = next(changes, None)
        if piece is None:
            self.changes.remove(changes)
        else:
            self.take(piece)

    def send(self, changes: Iterator[TablePiece]) -> None:
        for piece in changes:
            self.take(piece)

    def take(self, piece: TablePiece) -> None:
        for number in (0, 1):
            if self.is_following[number]:
                self.followers[number].copies.take(piece)

    @invariant()
    def books_agree(self) -> None:
        for member in (self.master, *self.followers):
            member.locks.check_invariants()


class _Tables:
    """Tables whose pieces have one entry each."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.topics = TopicTable(path / "topics.json", self.clock, topics_max=5)
        self.offsets = ConsumerOffsets(path / "offsets.json", pairs_max=13)
        self.locks = QueueLocks(self.clock)
        tables: list[CopiedTable] = [
            CopiedByKey("topics", self.topics, CopiedTopic),
            CopiedByKey("offsets", self.offsets, OffsetsOfPair),
            CopiedByKey("locks", self.locks, CopiedLock),
        ]
        self.copies = TableCopies(tables)

    def topic_configs(self) -> dict[str, TopicConfig]:
        return {config.topic_name: config for config in self.topics.configs()}

    def lock_holders(self) -> dict[tuple[str, int], str | None]:
        return {
            (group, queue_id): self.locks.holder(group, queue(queue_id))
            for group in ("a", "b", "c", "old")
            for queue_id in (0, 1, 2, 3, 9)
        }


ChangingTables.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iotmq.broker.tables.table_pieces.PIECE_BYTES", 1)


@pytest.mark.usefixtures("_small_pieces")
class TestChangingTables(ChangingTables.TestCase):  # type: ignore[misc,name-defined]
    """Any order of changes and pieces ends with equal tables."""
