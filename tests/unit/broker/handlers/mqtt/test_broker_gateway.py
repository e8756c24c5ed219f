"""The broker and front ends in other processes: requests 30001 to 30005, limits, slow front ends."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice, product
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from eventually import soon
from fake_gateway import record_of
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.delivery import delivery_catch_up
from iotmq.broker.delivery.delivery import LiveDelivery
from iotmq.broker.delivery.delivery_catch_up import DeliveryCatchUp
from iotmq.broker.handlers.mqtt import gateway as gateway_module
from iotmq.broker.handlers.mqtt.gateway import GatewayHandler, LocalGateway
from iotmq.broker.tables.topics import TIMER_TOPIC
from iotmq.broker.writing.message_writer import RefusedBatch
from iotmq.errors import RefusedError, RequestError, StoreError
from iotmq.message.errors import MessageFormatError
from iotmq.message.hosts import encode_host
from iotmq.message.properties import MQTT_TOPIC, encode_properties
from iotmq.message.records.record import decode_record, encode_batch, iter_records
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command


class Connection:
    """What a handler needs of a ServerConnection."""

    def __init__(self) -> None:
        self.is_congested = False
        self.unsent_bytes = 0
        self.pushed: list[tuple[bytes, bytes]] = []
        # How far it was told that it is, without records.
        self.told: list[int] = []
        self.replies: list[Command] = []
        self.has_room = asyncio.Event()

    def send_oneway(self, command: Command) -> None:
        assert command.code == RequestCode.DELIVER_RECORDS
        body = command.body_bytes()
        size = int(command.ext["matchesBytes"])
        if not body:
            self.told.append(int(command.ext["nextPosition"]))
            return
        self.pushed.append((body[size:], body[:size]))
        assert int(command.ext["nextPosition"]) > 0

    def reply(self, command: Command) -> None:
        self.replies.append(command)

    async def drain(self) -> None:
        await self.has_room.wait()
        self.is_congested = False

    async def replied(self) -> Command:
        await soon(lambda: bool(self.replies), "the answer", step_s=0)
        return self.replies.pop()


class MessageWriter:
    """Knows one topic with two queues."""

    def queue_count(self, topic: str, *, create: bool) -> int:
        if topic == "not-made-yet" and create:
            return 4
        return 2 if topic in ("T", TIMER_TOPIC) else 0


class Stored:
    """What the handler reads of a batch that is in the log."""

    status = 0


class Delayed:
    """Takes batches, or says that too many messages wait."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int, bytes]] = []
        self.is_full = False

    def append(self, topic: str, queue_id: int, elements: Any, *, born_host: bytes, done: Any) -> None:
        if self.is_full:
            done(RefusedBatch(ResponseCode.TOO_MANY_WAITING, "too many"))
            return
        self.taken.append((topic, queue_id, bytes(elements)))
        done(Stored())


class StoredAtOnce:
    """Stores everything as something new."""

    def append(
        self, topics: Any, elements: Any, append: Any, done: Any, *, is_repeat: bool, has_packet_ids: bool
    ) -> None:
        append(elements, done=done)


def parts_of(writer: MessageWriter) -> Any:
    """What the gateway asks of the parts of a broker."""
    return SimpleNamespace(
        writer=writer,
        stored_once=StoredAtOnce(),
        topics=None,
        host=encode_host("127.0.0.1", 1),
        clock=ManualClock(),
        store=SimpleNamespace(settings=SimpleNamespace(record_bytes_max=70_000)),
        settings=SimpleNamespace(is_writable=True),
    )


class Disk:
    """Reads as ColdReads, in a later turn; `troubles` are what it says first instead."""

    def __init__(self) -> None:
        self.troubles: list[RequestError] = []
        self.reads_count = 0
        self.loaded: Callable[[], None] = lambda: None

    def finish(self, steps: Any, done: Any, refused: Any) -> None:
        asyncio.get_running_loop().call_soon(self._finish, steps, done, refused)

    def _finish(self, steps: Any, done: Any, refused: Any) -> None:
        if self.troubles:
            refused(self.troubles.pop(0))
            return
        assert next(steps) == "plan"
        self.reads_count += 1
        self.loaded()
        with pytest.raises(StopIteration) as ended:
            next(steps)
        done(ended.value.value)


class Bench:
    def __init__(self) -> None:
        self.delivery = LiveDelivery(applied_position=0)
        self.log = b""
        self.hot_position = self.min_position = 0
        self.cold_reads = Disk()
        self.catch_up = DeliveryCatchUp(self.delivery, self, self.cold_reads)  # type: ignore[arg-type]
        self.delayed = Delayed()
        self.parts = parts_of(MessageWriter())
        self.handler = GatewayHandler(
            self.parts,
            self.delayed,  # type: ignore[arg-type]
            self.delivery,
            self.catch_up,
        )
        self.connection = Connection()

    def ask(self, code: int, body: bytes = b"", connection: Connection | None = None, **ext: str) -> Command:
        handle = self.handler.handlers()[code]
        response = handle(connection or self.connection, Command.request(code, ext, body))  # type: ignore[arg-type]
        assert response is not None
        return response

    def attach(self, *filters: Any, connection: Connection | None = None) -> Command:
        body = msgspec.json.encode({"filters": filters})
        return self.ask(RequestCode.ATTACH_FILTERS, body, connection)

    def mark(self, *marks: Any, connection: Connection | None = None, **ext: str) -> Command:
        body = msgspec.json.encode({"filters": [], "marks": marks})
        return self.ask(RequestCode.ATTACH_FILTERS, body, connection, **ext)

    def detach(self, *ids: int) -> Command:
        return self.ask(RequestCode.DETACH_FILTERS, msgspec.json.encode({"ids": ids}))

    def apply(self, *records: bytes) -> None:
        """Append to the log, and push."""
        start_position = len(self.log)
        self.log += b"".join(records)
        view = memoryview(self.log)[start_position:].toreadonly()
        self.delivery.apply(view, start_position, len(self.log))

    def recent_records(self, position: int, bytes_max: int) -> tuple[int, memoryview] | None:
        """As Store.recent_records, a record at a time."""
        return None if position < max(self.hot_position, self.min_position) else self.record_at(position)

    def records_steps(self, position: int, _bytes_max: int) -> Iterator[Any]:
        """As Store.records_steps."""
        yield "plan"
        return self.record_at(position) if position >= self.min_position else None

    def record_at(self, position: int) -> tuple[int, memoryview] | None:
        if position == len(self.log):
            return position, memoryview(b"")
        try:
            size = decode_record(self.log, position).size
        except MessageFormatError:
            return None
        return position + size, memoryview(self.log)[position : position + size]

    def attach_since(
        self, since: int, *filters: Any, connection: Connection | None = None, from_disk: bool = False
    ) -> None:
        """The answer comes later."""
        request = Command.request(
            RequestCode.ATTACH_FILTERS,
            {"since": str(since)} | ({"fromDisk": "true"} if from_disk else {}),
            msgspec.json.encode({"filters": filters}),
        )
        handle = self.handler.handlers()[RequestCode.ATTACH_FILTERS]
        assert handle(connection or self.connection, request) is None  # type: ignore[arg-type]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_connection_is_a_channel_as_long_as_it_lives(bench: Bench) -> None:
    other = Connection()
    assert bench.attach().ext == {"recordBytesMax": "70000", "position": "0"}
    assert bench.attach((1, "a/#"), (2, "b")).code == 0
    assert bench.attach((1, "a/b"), connection=other).code == 0
    assert bench.delivery.channel_count == 2
    bench.apply(record_of("c", b"0"), record_of("a/b", b"1"))
    assert [records for records, _ in bench.connection.pushed] == [record_of("a/b", b"1")]
    assert [records for records, _ in other.pushed] == [record_of("a/b", b"1")]
    assert bench.detach(1, 77).code == 0
    bench.apply(record_of("a/b", b"2"))
    assert (len(bench.connection.pushed), len(other.pushed)) == (1, 2)
    for _ in range(2):
        bench.handler.connection_lost(other)  # type: ignore[arg-type]
        bench.handler.connection_lost(bench.connection)  # type: ignore[arg-type]
    assert bench.delivery.channel_count == bench.delivery.filter_count == 0


def bodies(connection: Connection) -> list[bytes]:
    return [record.body for records, _ in connection.pushed for record in iter_records(records)]


async def test_a_front_end_that_comes_back_gets_what_it_missed_and_then_what_comes(bench: Bench) -> None:
    bench.apply(*(record_of("a/b", b"%d" % number) for number in range(3)))
    since = len(bench.log)
    bench.apply(record_of("a/b", b"3"), record_of("c", b"no"), record_of("a/c", b"4"))
    # All pages at once: a record that two filters match comes once.
    held = bench.ask(
        RequestCode.ATTACH_FILTERS, msgspec.json.encode({"filters": [(1, "a/#")]}), isHeld="true"
    )
    assert held.code == 0
    assert bench.delivery.filter_count == 0
    bench.attach_since(since, (2, "+/c"))
    bench.apply(record_of("a/b", b"5"))
    answer = await bench.connection.replied()
    assert (answer.code, answer.ext["position"]) == (0, str(len(bench.log)))
    assert bodies(bench.connection) == [b"3", b"4", b"5"]
    bench.apply(record_of("a/b", b"6"))
    assert bodies(bench.connection) == [b"3", b"4", b"5", b"6"]
    assert (bench.catch_up.caught_up_total, bench.catch_up.gaps_total) == (1, 0)


def test_marks_are_attached_and_detached_beside_filters(bench: Bench) -> None:
    assert bench.attach((1, "a/#")).code == bench.mark((2, "a/b"), (3, "c")).code == 0
    numbers = {metric.name: metric.value for metric in bench.handler.metrics()}
    assert (numbers["iotmq_broker_filters"], numbers["iotmq_broker_filter_marks"]) == (1, 2)
    bench.apply(record_of("a/b", b"1"), record_of("c", b"2"))
    body = msgspec.json.encode({"ids": [1], "marks": [(2, "a/b")]})
    assert bench.ask(RequestCode.DETACH_FILTERS, body).code == 0
    bench.apply(record_of("a/b", b"3"), record_of("c", b"4"))
    assert bodies(bench.connection) == [b"1", b"2", b"4"]
    bench.handler.connection_lost(bench.connection)  # type: ignore[arg-type]
    assert bench.delivery.marks.count == 0


@pytest.mark.parametrize("entry", [(0, "a"), (2, "a/+"), (2, "#"), (2, "")])
def test_a_mark_that_can_be_none_is_refused_and_the_rest_of_the_request_with_it(
    bench: Bench, entry: tuple[int, str]
) -> None:
    body = msgspec.json.encode({"filters": [(1, "b")], "marks": [(3, "c"), entry]})
    with pytest.raises(RequestError):
        bench.ask(RequestCode.ATTACH_FILTERS, body)
    assert bench.delivery.filter_count == bench.delivery.marks.count == 0


def test_channels_with_marks_at_their_limit_and_past_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module.limits, "MARKING_CHANNELS_MAX", 1)
    assert bench.mark((1, "a")).code == 0
    other = Connection()
    with pytest.raises(RequestError, match="at most 1 front end"):
        bench.mark((1, "a"), connection=other)
    assert bench.attach((1, "a"), connection=other).code == 0, "a whole filter needs no number"
    assert bench.mark((2, "b")).code == 0


async def test_what_was_missed_for_marks_comes_as_for_filters(bench: Bench) -> None:
    bench.apply(*(record_of("a", b"%d" % number) for number in range(3)))
    since = len(bench.log)
    bench.apply(record_of("a", b"3"), record_of("b", b"4"), record_of("c", b"no"))
    assert bench.mark((1, "a"), isHeld="true").code == 0
    assert bench.delivery.marks.count == 0
    bench.attach_since(since, (2, "b"))
    assert (await bench.connection.replied()).code == 0
    assert bodies(bench.connection) == [b"3", b"4"]
    bench.apply(record_of("a", b"5"))
    assert bodies(bench.connection) == [b"3", b"4", b"5"]


async def test_a_catch_up_that_fails_is_said_and_may_be_asked_for_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise StoreError("the log cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(bench.catch_up, "attach", fail)
        bench.attach_since(len(bench.log), (1, "a"))
        answer = await bench.connection.replied()
    assert (answer.code, answer.remark) == (1, "StoreError: the log cannot be read")
    bench.attach_since(len(bench.log), (1, "a"))
    assert (await bench.connection.replied()).code == 0


@pytest.mark.parametrize("since", [7, 1 << 40])
async def test_what_is_not_there_to_be_caught_up_is_left_out_and_counted(bench: Bench, since: int) -> None:
    bench.apply(record_of("a", b"0"))
    bench.attach_since(since, (1, "a"))
    answer = await bench.connection.replied()
    assert (answer.code, answer.ext["isGap"]) == (0, "true")
    assert bench.connection.pushed == []
    assert (bench.catch_up.caught_up_total, bench.catch_up.gaps_total) == (0, 1)
    bench.apply(record_of("a", b"1"))
    assert bodies(bench.connection) == [b"1"]


async def test_a_front_end_gets_from_memory_alone_and_who_reads_the_log_from_the_disk_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_catch_up, "_TOLD_PIECES", 2)
    monkeypatch.setattr(delivery_catch_up, "_BUSY_S", 0.0)
    bench.apply(*(record_of("a" if number != 1 else "b", b"%d" % number) for number in range(5)))
    size = len(bench.log) // 5
    bench.hot_position = 3 * size
    bench.attach_since(0, (1, "a"))
    answer = await bench.connection.replied()
    assert {name: answer.ext[name] for name in ("isGap", "gapFrom", "gapTo")} == {
        "isGap": "true",
        "gapFrom": "0",
        "gapTo": str(5 * size),
    }
    assert bench.connection.pushed == []
    assert bench.cold_reads.reads_count == 0
    bench.cold_reads.troubles = [RequestError(ResponseCode.SYSTEM_BUSY, "many wait")]
    reader = Connection()
    bench.attach_since(0, (1, "a"), connection=reader, from_disk=True)
    answer = await reader.replied()
    assert "isGap" not in answer.ext
    assert bodies(reader) == [b"0", b"2", b"3", b"4"]
    assert bench.cold_reads.reads_count == 3
    # It is told how far it is, where nothing matches.
    assert reader.told == [2 * size]
    bench.apply(record_of("a", b"5"))
    assert bodies(reader)[4:] == [b"5"]


async def test_what_retention_has_taken_is_a_gap_and_the_rest_comes(bench: Bench) -> None:
    bench.apply(*(record_of("a", b"%d" % number) for number in range(6)))
    size = len(bench.log) // 6
    bench.hot_position, bench.min_position = 5 * size, size

    def trim() -> None:
        if bench.cold_reads.reads_count == 2:
            bench.min_position = 4 * size

    bench.cold_reads.loaded = trim
    bench.attach_since(0, (1, "a"), from_disk=True)
    answer = await bench.connection.replied()
    assert bodies(bench.connection) == [b"1", b"4", b"5"]
    assert (answer.ext["gapFrom"], answer.ext["gapTo"]) == ("0", str(4 * size))
    assert bench.catch_up.gaps_total == 1


@pytest.mark.parametrize("is_given", [True, False])
async def test_what_the_disk_does_not_give_is_a_gap_up_to_the_end(bench: Bench, is_given: bool) -> None:
    bench.apply(*(record_of("a", b"%d" % number) for number in range(3)))
    bench.hot_position = len(bench.log)
    if not is_given:
        bench.cold_reads.troubles = [RefusedError("the disk does not give it")]
    # In the middle of a record nothing is one.
    since = 1 if is_given else 0
    bench.attach_since(since, (1, "a"), from_disk=True)
    answer = await bench.connection.replied()
    assert (answer.ext["gapFrom"], answer.ext["gapTo"]) == (str(since), str(len(bench.log)))
    assert bench.connection.pushed == []


async def test_a_front_end_that_takes_nothing_is_waited_for(bench: Bench) -> None:
    bench.apply(*(record_of("a", b"%d" % number) for number in range(4)))
    bench.attach_since(0, (1, "a"))
    with pytest.raises(RequestError, match="already"):
        bench.attach_since(0, (2, "b"))
    await soon(lambda: bool(bench.connection.pushed), "the first piece", step_s=0)
    bench.connection.is_congested = True
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(bodies(bench.connection)) < 4
    bench.connection.has_room.set()
    await bench.connection.replied()
    assert bodies(bench.connection) == [b"0", b"1", b"2", b"3"]
    assert bench.handler.dropped_pushes == 0


async def test_a_front_end_that_leaves_while_it_catches_up_is_forgotten(bench: Bench) -> None:
    bench.apply(*(record_of("a", b"%d" % number) for number in range(100)))
    bench.attach_since(0, (1, "a"))
    await soon(lambda: bool(bench.connection.pushed), "the first piece", step_s=0)
    bench.handler.connection_lost(bench.connection)  # type: ignore[arg-type]
    for _ in range(5):
        await asyncio.sleep(0)
    assert bench.delivery.channel_count == bench.delivery.filter_count == 0
    assert bench.connection.replies == []
    assert len(bodies(bench.connection)) < 100


def test_detaching_without_a_channel_is_nothing(bench: Bench) -> None:
    assert bench.detach(1).code == 0
    assert bench.delivery.channel_count == 0


@pytest.mark.parametrize(
    "entry",
    [(0, "a"), (-1, "a"), (1 << 32, "a"), (1, ""), (1, "a/#/b"), (1, "a+")],
)
def test_filters_that_are_none_are_refused_and_the_others_of_the_request_with_them(
    bench: Bench, entry: tuple[int, str]
) -> None:
    with pytest.raises(RequestError) as raised:
        bench.attach((5, "good"), entry)
    assert raised.value.code == ResponseCode.SYSTEM_ERROR
    assert bench.delivery.filter_count == 0


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"filters": 1}', b'{"filters": [["a", 1]]}', b"\xff", b'{"x": 1}']
)
def test_bodies_that_cannot_be_read_are_refused(bench: Bench, body: bytes) -> None:
    for code in (RequestCode.ATTACH_FILTERS, RequestCode.DETACH_FILTERS):
        with pytest.raises(RequestError):
            bench.ask(code, body)


def test_the_largest_filter_id(bench: Bench) -> None:
    assert bench.attach(((1 << 32) - 1, "a")).code == 0
    bench.apply(record_of("a", b"x"))
    assert bench.connection.pushed[0][1].endswith(b"\xff\xff\xff\xff")


def test_filters_of_a_channel_at_their_limit_and_past_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module.limits, "FILTERS_PER_CHANNEL_MAX", 3)
    assert bench.attach((1, "a"), (2, "b")).code == 0
    assert bench.mark((3, "c")).code == 0
    for add in (bench.attach, bench.mark):
        with pytest.raises(RequestError, match="at most 3"):
            add((4, "d"))
    assert (bench.delivery.filter_count, bench.delivery.marks.count) == (2, 1)
    assert bench.attach((4, "d"), connection=Connection()).code == 0, "others have their own"


def test_a_front_end_that_does_not_take_its_pushes_loses_them_and_nobody_else(bench: Bench) -> None:
    other = Connection()
    bench.attach((1, "a"))
    bench.attach((1, "a"), connection=other)
    bench.connection.unsent_bytes = limits.PUSHES_UNSENT_BYTES_MAX + 1
    bench.apply(record_of("a", b"1"))
    bench.connection.unsent_bytes = limits.PUSHES_UNSENT_BYTES_MAX
    bench.apply(record_of("a", b"2"))
    assert [records for records, _ in bench.connection.pushed] == [record_of("a", b"2")]
    assert len(other.pushed) == 2
    numbers = {metric.name: metric.value for metric in bench.handler.metrics()}
    assert numbers["iotmq_broker_dropped_pushes_total"] == 1
    assert numbers["iotmq_broker_failed_pushes_total"] == 0
    assert numbers["iotmq_broker_pushed_bytes_total"] == 3 * len(record_of("a", b"1"))


BATCH = encode_batch([(b"x", encode_properties({MQTT_TOPIC: "a"}), 0)])


@pytest.mark.parametrize(
    ("topic", "queue_id", "is_taken"),
    [
        ("T", 0, True),
        ("T", 1, True),
        ("T", 2, False),
        ("T", -1, False),
        ("not-made-yet", limits.QUEUES_PER_TOPIC_MAX - 1, True),
        ("not-made-yet", limits.QUEUES_PER_TOPIC_MAX, False),
    ],
)
def test_queues_of_messages_that_are_not_stored(
    bench: Bench, topic: str, queue_id: int, is_taken: bool
) -> None:
    bench.attach((1, "a"))
    fields = {"topic": topic, "queueId": str(queue_id)}
    if is_taken:
        assert bench.ask(RequestCode.PUBLISH_TRANSIENT, BATCH, **fields).code == 0
    else:
        with pytest.raises(RequestError, match="queueId"):
            bench.ask(RequestCode.PUBLISH_TRANSIENT, BATCH, **fields)
    assert len(bench.connection.pushed) == is_taken


@pytest.mark.parametrize(("body", "topic"), [(b"", "T"), (BATCH[:-1], "T"), (BATCH, "x" * 128)])
def test_messages_that_are_not_stored_must_be_messages(bench: Bench, body: bytes, topic: str) -> None:
    response = bench.ask(RequestCode.PUBLISH_TRANSIENT, body, topic=topic, queueId="0")
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert response.remark


@pytest.mark.parametrize(
    ("topic", "queue_id", "expected"),
    [("T", 0, 0), ("T", 1, 1), ("T", 2, None), ("T", -1, None), ("not-made-yet", 1_023, 3)],
)
def test_queues_of_messages_that_wait(bench: Bench, topic: str, queue_id: int, expected: int | None) -> None:
    fields = {"topic": topic, "queueId": str(queue_id)}
    if expected is None:
        with pytest.raises(RequestError, match="queueId"):
            bench.ask(RequestCode.PUBLISH_DELAYED, BATCH, **fields)
        return
    assert bench.ask(RequestCode.PUBLISH_DELAYED, BATCH, **fields).code == 0
    assert bench.delayed.taken == [(topic, expected, BATCH)]
    bench.delayed.is_full = True
    response = bench.ask(RequestCode.PUBLISH_DELAYED, BATCH, **fields)
    assert (response.code, response.remark) == (ResponseCode.TOO_MANY_WAITING, "too many")


def test_messages_do_not_begin_to_wait_while_the_broker_takes_none(bench: Bench) -> None:
    bench.parts.settings.is_writable = False
    with pytest.raises(RequestError, match="is_writable") as raised:
        bench.ask(RequestCode.PUBLISH_DELAYED, BATCH, topic="T", queueId="0")
    # Not one of those after which a front end gives up a batch.
    assert raised.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not bench.delayed.taken


@pytest.mark.parametrize("topic", ["nobody-takes", TIMER_TOPIC])
def test_messages_do_not_wait_for_topics_that_take_none(bench: Bench, topic: str) -> None:
    with pytest.raises(RequestError, match=topic) as raised:
        bench.ask(RequestCode.PUBLISH_DELAYED, BATCH, topic=topic, queueId="0")
    assert raised.value.code == ResponseCode.NO_PERMISSION
    assert not bench.delayed.taken


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_publisher_is_answered_when_its_records_are_matched(is_stored: bool) -> None:
    calls: deque[Callable[[], None]] = deque()
    delivery = LiveDelivery(applied_position=0, call_soon=calls.append)
    answers: list[tuple[int, str]] = []
    topic = "/".join("a" * 12)
    taken: list[bytes] = []

    class Taking(MessageWriter):
        refusal = ""

        def append(self, topic_name: str, queue_id: int, elements: bytes, *, done: Any, **_: Any) -> None:
            record = record_of(topic, b"x" * 1000) * 100
            taken.append(elements)
            delivery.apply(memoryview(record).toreadonly(), 0, len(record))
            done(Stored())

    gateway = LocalGateway(
        parts_of(Taking()),
        Delayed(),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        delivery,
    )
    channel = delivery.open_channel(lambda records, matches: None)
    names = ["/".join(levels) for levels in islice(product("a+", repeat=12), 4096)]
    delivery.attach(channel, list(enumerate(names, 1)))
    gateway._queue_counts["T"] = 1
    elements = encode_batch([(b"x", encode_properties({MQTT_TOPIC: topic}), 0)] * 100)
    gateway.append(
        "T",
        0,
        elements,
        count=100,
        is_stored=is_stored,
        has_packet_ids=False,
        is_repeat=False,
        done=lambda code, remark: answers.append((code, remark)),
    )
    assert taken == [elements] * is_stored
    assert answers == []
    while calls:
        assert answers == []
        calls.popleft()()
    assert answers == [(0, "")]
