"""Delivery: which channel is told about which records, and what leaves the process."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import islice, product

import pytest
from fake_gateway import matches_of, record_of
from loop_turns import turn_s_max

from iotmq import limits
from iotmq.broker.delivery.delivery import LiveDelivery, gather
from iotmq.message.errors import MessageFormatError
from iotmq.message.hosts import encode_host
from iotmq.message.properties import MQTT_TOPIC, encode_properties
from iotmq.message.records.record import decode_record, encode_batch, encode_record

HOST = encode_host("127.0.0.1", 10911)


class Inbox:
    """A front end's receiver: what it was pushed as (filter ids, MQTT payload)."""

    def __init__(self) -> None:
        self.pushes: list[list[tuple[list[int], bytes]]] = []
        self.raw: list[tuple[bytes, bytes]] = []

    def __call__(self, records: memoryview, matches: bytes) -> None:
        self.raw.append((bytes(records), matches))
        self.pushes.append(read_push(bytes(records), matches))

    @property
    def received(self) -> list[tuple[list[int], bytes]]:
        return [one for push in self.pushes for one in push]


def read_push(records: bytes, matches: bytes) -> list[tuple[list[int], bytes]]:
    numbers = [int.from_bytes(matches[at : at + 4], "big") for at in range(0, len(matches), 4)]
    found = []
    while numbers:
        place, count, *numbers = numbers
        found.append((sorted(numbers[:count]), decode_record(records, place).body))
        numbers = numbers[count:]
    return found


class Log:
    """Applies records to a delivery as the store does."""

    def __init__(self, delivery: LiveDelivery) -> None:
        self.delivery = delivery
        self.position = 0

    def append(self, *records: bytes) -> None:
        view = memoryview(b"".join(records)).toreadonly()
        self.delivery.apply(view, self.position, self.position + len(view))
        self.position += len(view)
        assert self.delivery.applied_position == self.position


@pytest.fixture
def delivery() -> LiveDelivery:
    return LiveDelivery(applied_position=0)


@pytest.fixture
def log(delivery: LiveDelivery) -> Log:
    return Log(delivery)


def test_records_that_match_are_pushed_once_with_all_ids(delivery: LiveDelivery, log: Log) -> None:
    inbox = Inbox()
    channel = delivery.open_channel(inbox)
    delivery.attach(channel, [(5, "a/#"), (9, "a/+"), (7, "b")])
    log.append(record_of("a/b", b"1"), record_of("c", b"2"), record_of("b", b"3"), record_of("a", b"4"))
    assert inbox.pushes == [[([5, 9], b"1"), ([7], b"3"), ([5], b"4")]]
    assert delivery.matched == 3
    log.append(record_of("c", b"5"))
    assert len(inbox.pushes) == 1, "no push without a match"


def test_every_channel_gets_its_own_ids(delivery: LiveDelivery, log: Log) -> None:
    one, two, three = Inbox(), Inbox(), Inbox()
    channels = [delivery.open_channel(inbox) for inbox in (one, two, three)]
    delivery.attach(channels[0], [(1, "a")])
    delivery.attach(channels[1], [(1, "b"), (2, "a"), (3, "a")])
    assert delivery.channel_count == 3
    assert delivery.filter_count == 2
    log.append(record_of("a", b"x"))
    assert one.received == [([1], b"x")]
    assert two.received == [([2, 3], b"x")]
    assert three.received == []


def test_detached_filters_and_closed_channels_get_nothing(delivery: LiveDelivery, log: Log) -> None:
    one, two = Inbox(), Inbox()
    first, second = delivery.open_channel(one), delivery.open_channel(two)
    delivery.attach(first, [(1, "a"), (2, "#")])
    delivery.attach(second, [(1, "a")])
    delivery.detach(first, [1, 99])
    log.append(record_of("a", b"x"))
    delivery.detach(first, [2, 1])
    log.append(record_of("a", b"y"))
    delivery.close_channel(second)
    log.append(record_of("a", b"z"))
    assert one.received == [([2], b"x")]
    assert two.received == [([1], b"x"), ([1], b"y")]
    assert delivery.filter_count == 0
    assert delivery.channel_count == 1


def test_an_id_that_is_attached_again_means_the_new_filter(delivery: LiveDelivery, log: Log) -> None:
    inbox = Inbox()
    channel = delivery.open_channel(inbox)
    delivery.attach(channel, [(1, "a")])
    delivery.attach(channel, [(1, "b")])
    assert channel.filters == {1: "b"}
    log.append(record_of("a", b"x"), record_of("b", b"y"))
    assert inbox.received == [([1], b"y")]


@pytest.mark.parametrize(
    "topic", ["%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC"]
)
def test_records_on_detours_are_not_pushed(delivery: LiveDelivery, log: Log, topic: str) -> None:
    inbox = Inbox()
    delivery.attach(delivery.open_channel(inbox), [(1, "#")])
    properties = encode_properties({MQTT_TOPIC: "a"})
    log.append(encode_record(topic=topic, body=b"x", properties=properties), record_of("a", b"y"))
    assert inbox.received == [([1], b"y")]


@pytest.mark.parametrize("topic", ["RMQ_SYS", "SCHEDULE_TOPIC", "RETRY%g", "mqtt"])
def test_other_broker_topics_are_pushed(delivery: LiveDelivery, log: Log, topic: str) -> None:
    inbox = Inbox()
    delivery.attach(delivery.open_channel(inbox), [(1, "#")])
    log.append(encode_record(topic=topic, body=b"x", properties=encode_properties({MQTT_TOPIC: "a"})))
    assert inbox.received == [([1], b"x")]


@pytest.mark.parametrize("topic", ["", "a/#", "+", "a\0", "a" * 5_000])
def test_native_records_without_a_legal_topic_are_not_pushed(
    delivery: LiveDelivery, log: Log, topic: str
) -> None:
    inbox = Inbox()
    delivery.attach(delivery.open_channel(inbox), [(1, "#"), (2, "a/#")])
    log.append(
        encode_record(topic="T", body=b"x"),
        encode_record(topic="T", body=b"x", properties=encode_properties({MQTT_TOPIC: topic})),
        encode_record(topic="T", body=b"x", properties=b"MQTT_TOPIC\x01\xff\x02"),
        record_of("a/b", b"y"),
    )
    assert inbox.received == [([1, 2], b"y")]


def test_a_front_end_that_fails_does_not_cost_the_others_their_records(
    delivery: LiveDelivery, log: Log
) -> None:
    def failing(records: memoryview, matches: bytes) -> None:
        raise OSError("gone")

    before, after = Inbox(), Inbox()
    for receiver in (before, failing, after):
        delivery.attach(delivery.open_channel(receiver), [(1, "a")])
    log.append(record_of("a", b"x"))
    log.append(record_of("a", b"y"))
    assert before.received == after.received == [([1], b"x"), ([1], b"y")]
    assert delivery.failed_pushes == 2


def test_a_front_end_may_leave_while_it_is_pushed_to(delivery: LiveDelivery, log: Log) -> None:
    inboxes = [Inbox() for _ in range(3)]

    def leaving(records: memoryview, matches: bytes) -> None:
        delivery.close_channel(channels[0])

    receivers = [leaving, *inboxes]
    channels = [delivery.open_channel(receiver) for receiver in receivers]
    for channel in channels:
        delivery.attach(channel, [(1, "a")])
    log.append(record_of("a", b"x"))
    assert [inbox.received for inbox in inboxes] == [[([1], b"x")]] * 3
    assert delivery.channel_count == 3


def test_nothing_is_read_while_no_filter_is_attached(delivery: LiveDelivery, log: Log) -> None:
    delivery.open_channel(Inbox())
    log.append(b"not even a record")
    log.append()
    assert delivery.matched == 0


def element(topic: str, body: bytes) -> tuple[bytes, bytes, int]:
    return body, encode_properties({MQTT_TOPIC: topic}), 0


@pytest.mark.parametrize("host", [HOST, encode_host("::1", 10911)])
def test_transient_messages_look_like_records_and_have_no_place_in_the_log(
    delivery: LiveDelivery, host: bytes
) -> None:
    inbox = Inbox()
    delivery.attach(delivery.open_channel(inbox), [(1, "a/#"), (2, "a/b")])
    batch = encode_batch([element("a/b", b"1"), element("c", b"2"), element("a", b"3")])
    assert delivery.publish_transient(batch, b"live", 3, now_ms=1_700_000_000_000, host=host) == 3
    assert inbox.received == [([1, 2], b"1"), ([1], b"3")]
    record = decode_record(inbox.raw[0][0])
    assert (record.topic, record.queue_id, record.body, record.position) == ("live", 3, b"1", 0)
    assert record.born_timestamp_ms == record.store_timestamp_ms == 1_700_000_000_000
    assert record.born_host == record.store_host == host
    assert delivery.applied_position == 0


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize(
    ("batch", "topic"),
    [
        (b"", b"live"),
        (b"\0\0\0\x05", b"live"),
        (encode_batch([element("a", b"1")])[:-1], b"live"),
        (encode_batch([element("a", b"1")]) + b"x", b"live"),
        (encode_batch([element("a", b"1")]), b"x" * (limits.TOPIC_BYTES_MAX + 1)),
    ],
)
def test_transient_batches_that_are_none_are_refused_whole(
    delivery: LiveDelivery, batch: bytes, topic: bytes, is_watched: bool
) -> None:
    inbox = Inbox()
    if is_watched:
        delivery.attach(delivery.open_channel(inbox), [(1, "#")])
    with pytest.raises(MessageFormatError):
        delivery.publish_transient(batch, topic, 0, now_ms=0, host=HOST)
    assert not inbox.pushes


def test_gather_takes_the_matched_records_alone(delivery: LiveDelivery, log: Log) -> None:
    inbox = Inbox()
    delivery.attach(delivery.open_channel(inbox), [(1, "a/#"), (2, "a/b"), (3, "z")])
    log.append(
        record_of("x", bytes(1_000)),
        record_of("a/b", b"1"),
        record_of("y", bytes(500)),
        record_of("a", b"2"),
        record_of("z", b""),
    )
    records, matches, _ = gather(*inbox.raw[0])
    assert records == record_of("a/b", b"1") + record_of("a", b"2") + record_of("z", b"")
    assert read_push(records, matches) == [([1, 2], b"1"), ([1], b"2"), ([3], b"")]
    assert gather(record_of("a", b"1"), b"") == (b"", b"", 0)


def test_gather_says_where_the_last_record_ends_in_the_log() -> None:
    far = encode_record(topic="T", body=b"x", position=(1 << 40) + 5)
    near = encode_record(topic="T", body=b"yy", position=7)
    matches = matches_of((0, [1]), (len(near), [1, 2]))
    assert gather(near + far, matches) == (near + far, matches, (1 << 40) + 5 + len(far))
    assert gather(near + far, matches_of((0, [1])))[2] == 7 + len(near)


def test_many_matches_of_one_push(delivery: LiveDelivery, log: Log) -> None:
    inbox = Inbox()
    channel = delivery.open_channel(inbox)
    delivery.attach(channel, [(number + 1, f"t/{number}") for number in range(1_000)])
    delivery.attach(channel, [(5_000, "#")])
    log.append(*(record_of(f"t/{number}", b"%d" % number) for number in range(1_000)))
    assert inbox.received == [([number + 1, 5_000], b"%d" % number) for number in range(1_000)]


def test_a_mark_is_pushed_for_as_a_filter_is(delivery: LiveDelivery, log: Log) -> None:
    first, second = Inbox(), Inbox()
    channels = [delivery.open_channel(first), delivery.open_channel(second)]
    delivery.attach(channels[0], [(1, "a/+")], [(2, "a/b"), (3, "z")])
    delivery.attach(channels[1], [], [(2, "a/b")])
    assert (delivery.filter_count, delivery.marks.count) == (1, 3)
    assert [channel.mark_count for channel in channels] == [2, 1]
    log.append(record_of("a/b", b"1"), record_of("a/c", b"2"), record_of("y", b"3"), record_of("z", b"4"))
    assert first.pushes == [[([1, 2], b"1"), ([1], b"2"), ([3], b"4")]]
    assert second.pushes == [[([2], b"1")]]
    assert delivery.matched == 3
    delivery.check_invariants()
    delivery.detach(channels[0], [], [(2, "a/b"), (3, "y"), (9, "z")])
    log.append(record_of("a/b", b"5"), record_of("z", b"6"))
    assert first.pushes[1:] == [[([1], b"5"), ([3], b"6")]]
    assert [channel.mark_count for channel in channels] == [1, 1]
    delivery.check_invariants()


def test_marks_alone_are_enough_for_what_is_stored_and_what_is_not(delivery: LiveDelivery, log: Log) -> None:
    inbox = Inbox()
    delivery.attach(delivery.open_channel(inbox), [], [(2, "a")])
    log.append(record_of("a", b"1"))
    properties = encode_properties({MQTT_TOPIC: "a"})
    delivery.publish_transient(encode_batch([(b"2", properties, 0)]), b"mqtt", 0, now_ms=1, host=HOST)
    assert inbox.received == [([2], b"1"), ([2], b"2")]


def test_a_filter_that_is_whole_and_a_mark_is_pushed_for_once(delivery: LiveDelivery, log: Log) -> None:
    inbox = Inbox()
    channel = delivery.open_channel(inbox)
    delivery.attach(channel, [(1, "#"), (2, "a"), (3, "+")], [(2, "a"), (4, "b")])
    log.append(record_of("a", b"1"), record_of("b", b"2"))
    delivery.detach(channel, [2])
    log.append(record_of("a", b"3"))
    delivery.attach(channel, [(2, "a")])
    delivery.detach(channel, [], [(2, "a")])
    log.append(record_of("a", b"4"))
    delivery.detach(channel, [2], [(2, "a")])
    log.append(record_of("a", b"5"))
    assert inbox.received == [
        ([1, 2, 3], b"1"), ([1, 3, 4], b"2"), ([1, 2, 3], b"3"), ([1, 2, 3], b"4"), ([1, 3], b"5"),
    ]  # fmt: skip
    assert all(b"".join(raw).count(b"\0\0\0\2") <= 1 for raw in inbox.raw[1:])
    delivery.check_invariants()


def test_a_channel_that_is_closed_leaves_no_mark_and_its_number_to_the_next(
    delivery: LiveDelivery, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MARKING_CHANNELS_MAX", 2)
    inbox, late = Inbox(), Inbox()
    channels = [delivery.open_channel(inbox) for _ in range(2)]
    for number, channel in enumerate(channels):
        assert delivery.takes_marks(channel)
        delivery.attach(channel, [], [(1, "a"), (2, f"of/{number}")])
    next_one = delivery.open_channel(late)
    assert not delivery.takes_marks(next_one)
    assert delivery.takes_marks(channels[0]), "it has a number"
    delivery.close_channel(channels[0])
    delivery.attach(channels[0], [], [(3, "a")])
    delivery.check_invariants()
    assert delivery.marks.count == 2
    assert delivery.takes_marks(next_one)
    delivery.attach(next_one, [], [(7, "a")])
    assert not delivery.takes_marks(delivery.open_channel(late))
    log.append(record_of("a", b"1"), record_of("of/0", b"2"), record_of("of/1", b"3"))
    assert inbox.received == [([1], b"1"), ([2], b"3")]
    assert late.received == [([7], b"1")]


class Turns:
    """A delivery on an event loop that runs when the test says so."""

    def __init__(self, filters: int) -> None:
        self.calls: deque[Callable[[], None]] = deque()
        self.delivery = LiveDelivery(applied_position=0, call_soon=self.calls.append)
        self.log = Log(self.delivery)
        self.inbox = Inbox()
        self.pushes: list[tuple[memoryview, bytes]] = []
        self.channel = self.delivery.open_channel(lambda *push: self.pushes.append(push))
        names = ["/".join(levels) for levels in islice(product("a+", repeat=12), filters)]
        self.delivery.attach(self.channel, list(enumerate(names, 1)))
        self.longest_s = 0.0
        self.turns = 0

    def timed(self, call: Callable[[], None]) -> None:
        began_s = time.thread_time()
        call()
        self.longest_s = max(self.longest_s, time.thread_time() - began_s)
        self.turns += 1

    def run(self) -> None:
        while self.calls:
            self.timed(self.calls.popleft())
            self.delivery.check_invariants()

    @property
    def received(self) -> list[tuple[list[int], bytes]]:
        """What was pushed, taken apart here and not in a turn."""
        pushes, self.pushes = self.pushes, []
        for records, matches in pushes:
            self.inbox(records, matches)
        return self.inbox.received


TOPIC = "/".join("a" * 12)


@pytest.mark.slow
def test_records_that_match_very_many_filters_take_several_turns_and_small_pushes() -> None:
    turns = Turns(4096)
    records = [record_of(TOPIC, b"%03d" % number) for number in range(500)]
    turns.timed(lambda: turns.log.append(*records))
    assert turns.delivery.backlog_bytes == sum(map(len, records))
    assert turns.delivery.matched_position < turns.delivery.applied_position
    turns.run()
    assert turns.longest_s < turn_s_max()
    assert turns.turns > 10
    assert turns.delivery.matched_position == turns.delivery.applied_position == turns.log.position
    assert turns.delivery.backlog_bytes == 0
    assert [body for _, body in turns.received] == [b"%03d" % number for number in range(500)]
    assert all(len(ids) == 4096 for ids, _ in turns.received)
    one = 8 + 4 * 4096
    assert max(len(matches) for _, matches in turns.inbox.raw) < limits.PUSH_BYTES_MAX + one
    assert turns.delivery.matched == 500


def test_who_attaches_while_records_wait_gets_what_comes_behind_them() -> None:
    turns = Turns(4096)
    late, left = Inbox(), Inbox()
    heard: list[str] = []
    turns.log.append(*[record_of(TOPIC, b"before")] * 50)
    channel, gone = turns.delivery.open_channel(late), turns.delivery.open_channel(left)
    turns.delivery.attach(channel, [(1, "#"), (2, "a/#"), (3, "b")], [(4, TOPIC), (5, "c")])
    turns.delivery.attach(gone, [(1, "#")])
    assert (channel.coming, gone.coming) == (5, 1)
    turns.delivery.call_matched(lambda: heard.append(f"{len(turns.received)} matched"))
    turns.log.append(record_of(TOPIC, b"behind"))
    turns.delivery.detach(channel, [2], [(4, TOPIC)])
    turns.log.append(record_of(TOPIC, b"last"))
    turns.delivery.close_channel(gone)
    assert heard == late.received == []
    turns.run()
    assert heard == ["50 matched"]
    assert late.received == [([1, 2, 4], b"behind"), ([1], b"last")]
    assert channel.mark_count == 1
    assert left.received == []
    assert (channel.coming, gone.coming) == (0, 0)
    assert channel.filters == {1: "#", 3: "b"}
    assert [body for _, body in turns.received] == [b"before"] * 50 + [b"behind", b"last"]
    # With nothing that waits it is at once.
    turns.delivery.call_matched(lambda: heard.append("now"))
    assert heard[1:] == ["now"]


@pytest.mark.slow
def test_very_many_marks_of_a_closed_channel_go_in_several_turns_and_are_pushed_for_no_more() -> None:
    turns = Turns(1)
    gone = turns.delivery.open_channel(Inbox())
    turns.delivery.attach(gone, [], [(number + 1, f"t/{number}") for number in range(1_000_000)])
    turns.run()
    turns.turns = 0
    turns.timed(lambda: turns.delivery.close_channel(gone))
    assert 0 < turns.delivery.marks.count < 1_000_000
    turns.log.append(*(record_of(f"t/{number}", b"") for number in range(100)))
    next_one = turns.delivery.open_channel(Inbox())
    turns.delivery.attach(next_one, [], [(1, "t/1")])
    turns.run()
    assert turns.turns > 2
    assert turns.longest_s < turn_s_max()
    assert turns.delivery.marks.count == next_one.mark_count == 1
    assert turns.received == []


@pytest.mark.slow
@pytest.mark.parametrize("is_stored", [True, False])
def test_past_what_may_wait_records_are_matched_at_once(is_stored: bool) -> None:
    turns = Turns(4096)
    first = b"".join([record_of(TOPIC, b"")] * 200)
    turns.log.append(first)
    assert turns.delivery.backlog_bytes == len(first)
    body = bytes(1024 * 1024)
    room = (limits.DELIVERY_BACKLOG_BYTES_MAX - len(first)) // (len(body) + 1024)
    for number in range(1, room + 2):
        if is_stored:
            turns.log.append(record_of(TOPIC, body))
        else:
            elements = encode_batch([(body, encode_properties({MQTT_TOPIC: TOPIC}), 0)])
            turns.delivery.publish_transient(elements, b"T", 0, now_ms=1, host=HOST)
        assert turns.delivery.backlog_bytes <= limits.DELIVERY_BACKLOG_BYTES_MAX
        if number <= room:
            assert turns.delivery.backlog_bytes > len(first) + number * len(body), "all of it waits"
    assert len(turns.received) >= 200
    turns.run()
    assert [received for _, received in turns.received] == [b""] * 200 + [body] * (room + 1)
    assert turns.delivery.backlog_bytes == 0


def test_calls_that_wait_at_their_limit_and_past_it(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(4096)
    heard: list[int] = []
    turns.log.append(*[record_of(TOPIC, b"x")] * 100)
    for number in range(limits.DELIVERY_BACKLOG_ITEMS_MAX - 1):
        turns.delivery.call_matched(lambda number=number: heard.append(number))
    assert not heard
    turns.delivery.call_matched(lambda: heard.append(-1))
    assert len(turns.received) == 100
    turns.run()
    assert heard == [*range(limits.DELIVERY_BACKLOG_ITEMS_MAX - 1), -1]
