"""Durable sessions and light queues as the log makes them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from loop_turns import turn_s_max
from store_model import BORN_HOST, open_small

from iotmq.broker.session_store import projection as session_projection
from iotmq.broker.session_store.cursor import Cursor
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.session_store.records import (
    Change,
    Close,
    End,
    Flight,
    Open,
    Progress,
    Subscribe,
    Unsubscribe,
    encode_changes,
)
from iotmq.broker.session_store.sessions import encode_session
from iotmq.broker.tables.topics import SESSION_TOPIC
from iotmq.event_loop import LoopSlice
from iotmq.message.records.record import decode_record, encode_batch
from iotmq.store.store import Store


class Broker:
    """A store with the projection, which can be stopped and started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.start()

    def start(self) -> None:
        self.store: Store = open_small(
            self.directory, segment_bytes=1 << 20, allocation_step_bytes=1 << 18, queue_file_entries=5000
        )
        self.projection = SessionProjection(self.store.key_values())
        self.store.add_projection(self.projection)

    def restart(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        self.store.close()

    def change(self, *changes: Change) -> int:
        """The position of the record."""
        return self._append(SESSION_TOPIC, (encode_changes(changes), b""))

    def publish(self, *messages: tuple[str, bytes]) -> int:
        return self._append(
            "mqtt", *((body, b"MQTT_TOPIC\x01%s\x02" % topic.encode()) for topic, body in messages)
        )

    def _append(self, topic: str, *elements: tuple[bytes, bytes]) -> int:
        appended = self.store.append(
            self.store.queue(topic, 0),
            encode_batch([(body, more, 0) for body, more in elements]),
            born_timestamp_ms=1,
            born_host=BORN_HOST,
        )
        return int(appended.start_position)

    def bodies(self, client_id: str, topic_filter: str, *, entries_max: int = 1000) -> list[bytes]:
        """What a session still has to get of a filter."""
        session = self.projection.session(client_id)
        assert session is not None
        queue_id = session.subscriptions[topic_filter].queue_id
        read = self.projection.next_entries(
            queue_id, self.projection.cursor(queue_id, client_id)[0], entries_max=entries_max
        )
        views = [self.store.read_record(position) for position, _ in read.entries]
        return [decode_record(view).body for view in views if view is not None]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.stop()


def connect(broker: Broker, client_id: str, *filters: str, is_clean: bool = False, expiry_s: int = 60) -> int:
    epoch = broker.change(Open(client_id, "front", is_clean, expiry_s))
    if filters:
        broker.change(Subscribe(client_id, epoch, [(name, 1) for name in filters]))
    return epoch


def test_a_session_gets_what_came_after_it_subscribed(broker: Broker) -> None:
    broker.publish(("dev/1/cmd", b"before"))
    connect(broker, "one", "dev/1/#")
    broker.publish(("dev/1/cmd", b"a"), ("dev/2/cmd", b"not its own"), ("dev/1", b"b"))
    broker.publish(("dev/1/x/y", b"c"))
    assert broker.bodies("one", "dev/1/#") == [b"a", b"b", b"c"]
    assert broker.projection.count == 1


def test_all_of_it_is_there_after_a_restart(broker: Broker) -> None:
    epoch = connect(broker, "one", "dev/1/#", "dev/+/cmd")
    broker.publish(("dev/1/cmd", b"a"))
    broker.restart()
    broker.publish(("dev/1/cmd", b"b"))
    broker.restart()
    for topic_filter in ("dev/1/#", "dev/+/cmd"):
        assert broker.bodies("one", topic_filter) == [b"a", b"b"]
    session = broker.projection.session("one")
    assert session is not None
    assert (session.epoch, session.owner, broker.projection.count) == (epoch, "front", 1)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_progress_moves_the_cursor_and_the_queue_forgets_what_nobody_needs(
    broker: Broker, is_restarted: bool
) -> None:
    epochs = [connect(broker, client_id, "t/#") for client_id in ("one", "two")]
    positions = [broker.publish(("t/x", b"%d" % number)) for number in range(10)]
    broker.change(Progress("one", epochs[0], [("t/#", positions[7], positions[7])]))
    broker.change(Progress("two", epochs[1], [("t/#", positions[3], positions[3])]))
    if is_restarted:
        broker.restart()
        broker.change(Progress("two", epochs[1], [("t/#", positions[4], positions[4])]))
    else:
        broker.change(Progress("two", epochs[1], [("t/#", positions[4], positions[4])]))
    queue_id = broker.projection.queues.id_of("t/#")
    assert queue_id is not None
    broker.projection.tidy()
    assert broker.projection.queues.first_position(queue_id) == positions[4]
    broker.projection.write_out()
    assert broker.bodies("one", "t/#") == [b"7", b"8", b"9"]
    assert broker.bodies("two", "t/#") == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert broker.projection.backlog(queue_id, positions[4]) == 6
    assert broker.projection.backlog(queue_id, positions[9] + 1) == 0


def test_progress_of_cursors_alone_does_not_write_the_session_again(broker: Broker) -> None:
    epoch = connect(broker, "one", "a/#")
    broker.projection.write_out()
    position = broker.publish(("a/b", b"x"))
    broker.change(Progress("one", epoch, [("a/#", position, position)]))
    keys, _, _, _ = broker.projection._changes.all_items()
    assert [key[:1] for key in keys].count(b"\x03") == 0
    assert [key[:1] for key in keys].count(b"\x04") == 1
    broker.change(Progress("one", epoch, [], received=[7]))
    keys, _, _, _ = broker.projection._changes.all_items()
    assert [key[:1] for key in keys].count(b"\x03") == 1
    broker.restart()
    session = broker.projection.session("one")
    assert session is not None
    assert session.received == [7]
    assert broker.projection.cursor(session.subscriptions["a/#"].queue_id, "one") == (position, position)


def test_more_sessions_than_are_remembered_are_all_found(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_projection, "RECENT_SESSIONS_MAX", 3)
    epochs = {name: connect(broker, name, "a/#") for name in ("one", "two", "three", "four", "five")}
    broker.projection.write_out()
    for number, (name, epoch) in enumerate(epochs.items()):
        broker.change(Progress(name, epoch, [], received=[number + 1]))
    broker.change(End("two", epochs["two"]))
    assert broker.projection.session("two") is None
    broker.restart()
    received = {
        name: session.received for name in epochs if (session := broker.projection.session(name)) is not None
    }
    assert received == {"one": [1], "three": [3], "four": [4], "five": [5]}


def test_sessions_kept_decoded_at_their_limits_and_past_them(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    projection = broker.projection
    filters = [f"level/{number}" for number in range(8)]
    for name in ("one", "two", "three"):
        connect(broker, name, *filters)
    connect(broker, "large", *filters, *(f"more/{number}" for number in range(100)))
    projection.write_out()
    assert projection.session("one") is not None
    size = projection._recent_bytes
    assert size > len(encode_session(projection._recent["one"][0]))

    def look(names: str) -> list[str]:
        """Which sessions are kept after a look at these."""
        projection._recent.clear()
        projection._recent_bytes = 0
        for name in names.split():
            assert projection.session(name) is not None
            projection.check_invariants()
        return list(projection._recent)

    monkeypatch.setattr(session_projection, "RECENT_SESSIONS_MAX", 2)
    assert look("one two") == ["one", "two"]
    assert look("one two three") == ["two", "three"]
    monkeypatch.setattr(session_projection, "RECENT_SESSIONS_MAX", 10)
    names = "one two three"
    sizes = sum(projection._recent[name][1] for name in look(names))
    monkeypatch.setattr(session_projection, "RECENT_BYTES_MAX", sizes)
    assert look(names) == ["one", "two", "three"]
    monkeypatch.setattr(session_projection, "RECENT_BYTES_MAX", sizes - 1)
    assert look(names) == ["two", "three"]
    monkeypatch.setattr(session_projection, "RECENT_BYTES_MAX", 100 * sizes)
    large = projection._recent["large"][1] if look("large") else 0
    assert large > 10 * size
    monkeypatch.setattr(session_projection, "RECENT_SESSION_BYTES_MAX", large)
    assert look("one large") == ["one", "large"]
    monkeypatch.setattr(session_projection, "RECENT_SESSION_BYTES_MAX", large - 1)
    assert look("one large") == ["one"]


def test_a_session_that_changes_is_not_kept_beside_its_changes(broker: Broker) -> None:
    projection = broker.projection
    epoch = connect(broker, "one", "a")
    projection.write_out()
    before = projection.session("one")
    assert list(projection._recent) == ["one"]
    broker.change(Subscribe("one", epoch, [("b", 1)]))
    assert not projection._recent
    assert projection._recent_bytes == 0
    assert projection.session("one") is projection._changes.sessions["one"] is before
    projection.write_out()
    again = projection.session("one")
    assert again is not before
    assert again is not None
    assert list(again.subscriptions) == ["a", "b"]
    broker.change(End("one", epoch))
    assert not projection._recent
    assert projection.session("one") is None
    projection.check_invariants()


def test_a_queue_keeps_what_the_slowest_of_its_sessions_needs_written_or_not(broker: Broker) -> None:
    fast, slow = connect(broker, "fast", "a/#"), connect(broker, "slow", "a/#")
    positions = []
    for number in range(3):
        positions.append(broker.publish(("a/b", b"%d" % number)))
        broker.projection.write_out()
    broker.change(Progress("slow", slow, [("a/#", positions[1], positions[1])]))
    broker.projection.write_out()
    broker.change(Progress("fast", fast, [("a/#", positions[2], positions[2])]))
    broker.projection.tidy()
    assert broker.bodies("slow", "a/#") == [b"1", b"2"]
    broker.change(Progress("slow", slow, [("a/#", positions[2], positions[2])]))
    broker.projection.tidy()
    assert broker.bodies("slow", "a/#") == [b"2"]


def test_a_read_goes_on_where_the_one_before_ended(broker: Broker) -> None:
    connect(broker, "one", "t")
    for number in range(7):
        broker.publish(*(("t", b"%d.%d" % (number, place)) for place in range(3)))
        if number == 3:
            broker.projection.sync()
    queue_id = broker.projection.queues.id_of("t")
    assert queue_id is not None
    found: list[bytes] = []
    position = 0
    while True:
        read = broker.projection.next_entries(queue_id, position, entries_max=4)
        assert len(read.entries) <= 4
        for place, size in read.entries:
            view = broker.store.read_record(place)
            assert view is not None
            assert len(view) == size
            found.append(decode_record(view).body)
        position = read.next_position
        if read.is_end:
            break
    assert found == [b"%d.%d" % (number, place) for number in range(7) for place in range(3)]
    assert position == broker.store.confirmed_position
    assert broker.projection.next_entries(queue_id, position, entries_max=4) == ([], position, True)


def test_what_a_former_owner_says_is_not_heard(broker: Broker) -> None:
    former = connect(broker, "one", "t")
    position = broker.publish(("t", b"a"))
    now = connect(broker, "one")
    assert now > former
    broker.change(Progress("one", former, [("t", position + 1, position + 1)]))
    broker.change(Subscribe("one", former, [("u", 1)]))
    broker.change(Unsubscribe("one", former, ["t"]))
    broker.change(Close("one", former, 0, True), End("one", former))
    session = broker.projection.session("one")
    assert session is not None
    assert (session.epoch, list(session.subscriptions), session.owner) == (now, ["t"], "front")
    assert broker.bodies("one", "t") == [b"a"]


def test_a_clean_start_and_an_end_leave_nothing(broker: Broker) -> None:
    connect(broker, "one", "t", "u/+")
    connect(broker, "two", "t")
    broker.publish(("t", b"a"), ("u/1", b"b"))
    connect(broker, "one", is_clean=True)
    session = broker.projection.session("one")
    assert session is not None
    assert session.subscriptions == {}
    assert broker.projection.queues.id_of("u/+") is None
    assert broker.bodies("two", "t") == [b"a"]
    epoch = connect(broker, "two")
    broker.change(End("two", epoch))
    assert broker.projection.session("two") is None
    assert broker.projection.count == 1
    broker.restart()
    assert broker.projection.count == 1
    assert len(broker.projection.queues) == 0
    assert [client_id for client_id, _ in broker.projection.sessions()] == ["one"]


def test_a_number_that_is_used_again_has_nothing_of_the_queue_before(broker: Broker) -> None:
    epoch = connect(broker, "one", "t")
    broker.publish(("t", b"a"))
    broker.projection.sync()
    former = broker.projection.queues.id_of("t")
    broker.change(Unsubscribe("one", epoch, ["t"]))
    broker.change(Subscribe("one", epoch, [("u", 2)]))
    assert broker.projection.queues.id_of("u") == former
    assert broker.bodies("one", "u") == []
    broker.publish(("u", b"b"), ("t", b"c"))
    broker.restart()
    assert broker.bodies("one", "u") == [b"b"]


def test_sessions_fall_due_when_their_client_is_away_long_enough(broker: Broker) -> None:
    now_ms = broker.store.append(
        broker.store.queue("x", 0), encode_batch([(b"x", b"", 0)]), born_timestamp_ms=1, born_host=BORN_HOST
    ).store_timestamp_ms
    epochs = {
        client_id: connect(broker, client_id, expiry_s=expiry_s)
        for client_id, expiry_s in (("short", 1), ("long", 1000), ("for ever", 0xFFFFFFFF), ("there", 1))
    }
    for client_id in ("short", "long", "for ever"):
        session = broker.projection.session(client_id)
        assert session is not None
        broker.change(Close(client_id, epochs[client_id], session.expiry_s, False))
    due = broker.projection.due
    assert due(now_ms, LoopSlice(10)) == []
    assert due(now_ms + 500_000, LoopSlice(10)) == [("short", epochs["short"])]
    broker.restart()
    assert broker.projection.due(now_ms + 2_000_000, LoopSlice(10)) == [
        ("short", epochs["short"]),
        ("long", epochs["long"]),
    ]
    assert len(broker.projection.due(now_ms + 2_000_000, LoopSlice(1))) == 1
    connect(broker, "short")
    assert [name for name, _ in broker.projection.due(now_ms + 2_000_000, LoopSlice(10))] == ["long"]
    assert {name for name, _ in broker.projection.unsettled()} == {"short", "there"}


def test_qos_2_state_is_kept(broker: Broker) -> None:
    epoch = connect(broker, "one", "t")
    flights = [Flight(7, "t", 1234, False), Flight(8, "t", 1300, True)]
    broker.change(Progress("one", epoch, [], received=[3, 4], in_flight=flights))
    broker.change(Progress("one", epoch, [], received=[4]))
    broker.restart()
    session = broker.projection.session("one")
    assert session is not None
    assert (session.received, session.in_flight) == ([4], flights)


def test_garbage_in_the_topic_is_counted_and_passed_over(broker: Broker) -> None:
    for body in (b"", b"no list", encode_changes([End("a", 1)])[:-1], b"\x91\x93\xa4open\x01\x02"):
        broker._append(SESSION_TOPIC, (body, b""))
    assert broker.projection.malformed_records == 4
    connect(broker, "one", "t")
    broker.publish(("t", b"a"))
    assert broker.bodies("one", "t") == [b"a"]
    assert broker.projection.applied_position == broker.store.confirmed_position


def test_everything_comes_back_from_the_log_when_the_database_is_gone(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    epoch = connect(broker, "one", "t/#", "t/a")
    connect(broker, "two", "t/#")
    broker.publish(("t/a", b"a"), ("t/b", b"b"))
    position = broker.publish(("t/a", b"c"))
    broker.change(Progress("one", epoch, [("t/#", position, position)]))
    before = {name: broker.bodies(*name) for name in (("one", "t/#"), ("one", "t/a"), ("two", "t/#"))}
    broker.store.close()
    shutil.rmtree(tmp_path / "kv")
    broker.start()
    assert {name: broker.bodies(*name) for name in before} == before
    assert before["one", "t/#"] == [b"c"]
    broker.stop()


def test_a_session_whose_beginning_the_log_has_lost_is_not_there_at_all(broker: Broker) -> None:
    """A later opening says that it went on with something; with what, nobody knows any more."""
    lost = broker.change(Open("one", "front", False, 60, former_epoch=7))
    assert lost == 0, "an epoch like any other"
    for former_epoch in (7, lost):
        epoch = broker.change(Open("one", "front", False, 60, former_epoch=former_epoch))
        broker.change(Subscribe("one", epoch, [("t", 1)]))
        broker.change(Progress("one", epoch, [("t", epoch, epoch)]))
        broker.change(Close("one", epoch, 60, True))
        assert broker.projection.session("one") is None
        assert broker.projection.count == 0
    assert broker.projection.queues.id_of("t") is None
    connect(broker, "one", "u")
    broker.publish(("u", b"a"))
    epoch = broker.change(Open("one", "front", False, 60, former_epoch=1))
    assert broker.bodies("one", "u") == [b"a"]
    broker.change(Open("one", "front", True, 60))
    assert broker.projection.count == 1


def test_after_the_log_lost_its_end_the_queues_have_too(broker: Broker) -> None:
    connect(broker, "one", "t/#")
    kept = [broker.publish(("t/a", b"%d" % number), ("t/b", b"x")) for number in range(5)]
    broker.projection.sync()
    broker.publish(("t/a", b"lost"))
    queue_id = broker.projection.queues.id_of("t/#")
    assert queue_id is not None
    broker.projection.rewind(kept[3], 0)
    assert broker.projection.applied_position == kept[3]
    read = broker.projection.next_entries(queue_id, 0, entries_max=100)
    assert [place for place, _ in read.entries][::2] == kept[:3]
    assert broker.projection.queues.next_sequence(queue_id) == 6
    # The log of this test still has what was lost, and is taken in again with the next message.
    broker.publish(("t/a", b"later"))
    assert broker.bodies("one", "t/#")[-2:] == [b"lost", b"later"]
    assert broker.projection.queues.next_sequence(queue_id) == 12


def test_front_ends_are_told_of_what_they_attached_to(broker: Broker) -> None:
    connect(broker, "one", "t/#", "u")
    queues = broker.projection.queues
    told: list[tuple[bytes, int]] = []

    def receive(records: memoryview, pushes: bytes) -> None:
        for at in range(0, len(pushes), 8):
            place, queue_id = (int.from_bytes(pushes[at + n : at + n + 4], "big") for n in (0, 4))
            told.append((decode_record(records, place).body, queue_id))

    channel = queues.open_channel(receive)
    wanted = queues.id_of("t/#")
    assert wanted is not None
    broker.publish(("t/a", b"before"))
    queues.attach(channel, wanted)
    queues.attach(channel, wanted)
    broker.publish(("t/a", b"a"), ("u", b"b"), ("t", b"c"))
    queues.detach(channel, wanted)
    broker.publish(("t/a", b"d"))
    queues.detach(channel, wanted)
    broker.publish(("t/a", b"e"))
    assert told == [(b"a", wanted), (b"c", wanted), (b"d", wanted)]
    queues.close_channel(channel)
    assert queues.channel_count == 0


def test_a_thousand_sessions_on_one_filter_cost_one_entry_a_message(broker: Broker) -> None:
    for number in range(1000):
        epoch = broker.change(Open(f"c{number}", "front", False, 60))
        broker.change(Subscribe(f"c{number}", epoch, [("t", 1)]))
    for number in range(100):
        broker.publish(("t", b"%d" % number))
    queue_id = broker.projection.queues.id_of("t")
    assert queue_id is not None
    assert broker.projection.queues.next_sequence(queue_id) == 100
    assert broker.projection.queues.subscriber_count(queue_id) == 1000
    broker.restart()
    assert broker.bodies("c0", "t") == broker.bodies("c999", "t") == [b"%d" % n for n in range(100)]


MANY = 100_000


def with_many_sessions(broker: Broker, topic_filter: str, cursor: int) -> int:
    """So many sessions that were done with the filter's records before `cursor`; the id of its queue."""
    projection = broker.projection
    queue_id = projection.queues.id_of(topic_filter)
    assert queue_id is not None
    for start in range(0, MANY, 10_000):
        changed = {
            (queue_id, f"c{number}"): Cursor(cursor, cursor) for number in range(start, start + 10_000)
        }
        projection._changes.cursors.update(changed)
        broker.publish(("elsewhere", b""))
        projection.write_out()
    return queue_id


@pytest.mark.slow
def test_a_filter_of_very_many_sessions_is_looked_at_in_pieces(broker: Broker) -> None:
    epoch = connect(broker, "one", "all/#")
    positions = [broker.publish(("all/x", b"%d" % number)) for number in range(10)]
    projection = broker.projection
    queue_id = with_many_sessions(broker, "all/#", positions[5])
    longest_s, calls = 0.0, 0
    for moved in (positions[3], positions[7]):
        # It moves on while the others are looked at.
        broker.change(Progress("one", epoch, [("all/#", moved, moved)]))
        while projection._moved_queues or projection._walk is not None:
            began_s = time.thread_time()
            projection.tidy()
            longest_s = max(longest_s, time.thread_time() - began_s)
            calls += 1
            assert projection.queues.first_position(queue_id) <= min(positions[5], moved)
        assert projection.queues.first_position(queue_id) == min(positions[5], moved)
    assert calls >= 2 * MANY // session_projection.SWEEP_PLACES
    assert longest_s < turn_s_max()


def test_a_filter_that_always_moves_keeps_no_other_from_being_looked_at(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_projection, "SWEEP_PLACES", 2)
    busy = [connect(broker, f"busy{number}", "busy") for number in range(5)]
    epoch = connect(broker, "one", "quiet")
    position = broker.publish(("quiet", b""), ("busy", b""))
    broker.change(Progress("one", epoch, [("quiet", position, position)]))
    quiet = broker.projection.queues.id_of("quiet")
    assert quiet is not None
    for _ in range(4):
        broker.change(Progress("busy0", busy[0], [("busy", position, position)]))
        broker.projection.tidy()
        broker.projection.check_invariants()
    assert broker.projection.queues.first_position(quiet) == position


def test_who_comes_while_a_queue_is_looked_at_keeps_what_comes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_projection, "SWEEP_PLACES", 1)
    epochs = [connect(broker, f"c{number}", "t") for number in range(3)]
    position = broker.publish(("t", b"before"))
    for number, epoch in enumerate(epochs):
        broker.change(Progress(f"c{number}", epoch, [("t", position + 1_000_000, position)]))
    broker.projection.tidy()
    connect(broker, "a", "t")
    broker.publish(("t", b"after"))
    for _ in range(5):
        broker.projection.tidy()
        broker.projection.check_invariants()
    assert broker.bodies("a", "t") == [b"after"]


def test_queues_behind_a_trimmed_log_are_looked_at_a_few_at_a_time(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_projection, "SWEEP_QUEUES", 2)
    connect(broker, "one", *(f"t/{number}" for number in range(5)))
    broker.publish(*((f"t/{number}", b"") for number in range(5)))
    end = broker.projection.applied_position
    broker.projection.write_out()
    broker.projection.trim(end)
    queues = broker.projection.queues
    for _ in range(queues.ids_end // 2):
        broker.projection.tidy()
    assert [queues.first_position(queues.id_of(f"t/{number}") or 0) for number in range(5)] == [end] * 5


def test_a_session_that_falls_due_before_one_that_was_found_is_found(broker: Broker) -> None:
    epochs = {name: connect(broker, name, expiry_s=expiry_s) for name, expiry_s in (("a", 60), ("b", 1))}
    broker.change(Close("a", epochs["a"], 60, True))
    due = broker.projection.due
    assert due(1 << 50, LoopSlice(1)) == [("a", epochs["a"])]
    broker.change(Close("b", epochs["b"], 1, True))
    assert [name for name, _ in due(1 << 50, LoopSlice(2))] == ["b", "a"]
    broker.change(End("b", epochs["b"]))
    assert [name for name, _ in due(1 << 50, LoopSlice(2))] == ["a"]
    broker.restart()
    assert [name for name, _ in broker.projection.due(1 << 50, LoopSlice(2))] == ["a"]


def test_sessions_that_have_expired_do_not_make_a_look_for_others_longer(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = {f"c{number}": connect(broker, f"c{number}", expiry_s=1) for number in range(20)}
    broker.change(*(Close(name, epoch, 1, True) for name, epoch in epochs.items()))
    projection = broker.projection
    starts: list[bytes] = []
    scan = projection._space.scan

    def watched(start: bytes, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        starts.append(start)
        return scan(start, stop)

    monkeypatch.setattr(projection._space, "scan", watched)
    for _ in range(10):
        broker.change(*(End(name, epoch) for name, epoch in projection.due(1 << 50, LoopSlice(2))))
    assert starts == sorted(set(starts)), "each begins farther on"
    assert projection.due(1 << 50, LoopSlice(2)) == []
    assert projection.count == 0
