"""A bridge: which message it gives up, where it begins to read, and when its alarm is on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from manual_clock import ManualClock

from iotmq.client.consuming.offsets import offsets
from iotmq.client.consuming.pulls import PullStatus
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import ClientError
from iotmq.mqtt.client.server_packets import Answers, ServerDisconnect
from iotmq.mqtt.codec.properties import NO_PROPERTIES
from iotmq.mqtt.reason_codes import CONNECTION_LOST
from iotmq.mqtt_bridge import bridge as bridges
from iotmq.mqtt_bridge.bridge import Bridge, _Way
from iotmq.mqtt_bridge.connection import BridgeCounts, BridgeIngress, Progress, RefusingSink
from iotmq.mqtt_bridge.queue_feed import QueueFeed
from iotmq.mqtt_bridge.refusals import Refusal
from iotmq.mqtt_bridge.settings import BridgeSettings, ReceiveRuleSettings, SendRuleSettings


class Ended:
    """A connection that has ended; `place` is that of the message it is blamed on often enough."""

    def __init__(self, acknowledged: int = 0, place: str | None = None) -> None:
        self.acknowledged = acknowledged
        self.place = place
        self.tries_max: int | None = None

    def blame(self, tries_max: int) -> str | None:
        self.tries_max = tries_max
        return self.place


def bridge_of(**settings: Any) -> Bridge:
    fields = {"name": "b", "address": "mqtt://127.0.0.1", "send": (SendRuleSettings(),)} | settings
    return Bridge(
        BridgeSettings(**fields),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        lambda: ("mqtt",),
        gateway="g",
        sink=(RefusingSink(), BridgeCounts()),
        clock=ManualClock(),
    )


def tries_of(bridge: Bridge, *endings: tuple[int, int]) -> list[int | None]:
    """How often a message may be tried at each ending: what that allows, and what was acknowledged."""
    way = _Way(bridge, 0)
    found = []
    for tries_max, acknowledged in endings:
        ended = Ended(acknowledged, "mqtt/broker-a/0@7")
        way.connection = ended  # type: ignore[assignment]
        way.tries_max = tries_max
        bridge._learn(way)
        found.append(ended.tries_max)
    return found


def test_messages_that_are_left_out_in_a_row_have_more_tries() -> None:
    assert tries_of(bridge_of(), *[(4, 0)] * 4) == [4, 8, 16, 16]
    assert tries_of(bridge_of(), (4, 0), (8, 1), (4, 0)) == [4, 8, 8]


def test_no_message_is_blamed_for_connections_that_are_lost() -> None:
    assert tries_of(bridge_of(), *[(0, 0)] * 3) == [None] * 3


def test_without_a_connection_there_is_nothing_to_learn() -> None:
    way = _Way(bridge := bridge_of(), 0)
    way.tries_max = 4
    bridge._learn(way)
    assert way.left_out_in_row == 0


@pytest.mark.parametrize(
    ("event", "tries_max"),
    [
        (ServerDisconnect(0x95, NO_PROPERTIES), 4),
        (ServerDisconnect(0x83, NO_PROPERTIES), 8),
        (ServerDisconnect(0x8B, NO_PROPERTIES), 0),
        (Refusal("q@1", 0x83, "full", is_final=False, is_later=False), 4),
        (Refusal("q@1", 0x97, "", is_final=False, is_later=True), 0),
        (Refusal("q@1", 0x87, "", is_final=True, is_later=False), 0),
        (None, 8),
    ],
)
def test_how_often_a_message_is_tried(event: object, tries_max: int) -> None:
    """None is an end of which the other broker says nothing."""
    bridge = bridge_of()
    way = _Way(bridge, 0)
    bridge._ways = [way]
    device = SimpleNamespace(close_detail="", close_reason=CONNECTION_LOST)
    way.connection, way.why = device, ""  # type: ignore[assignment]
    if event is not None:
        bridge.device_events(device, [event])  # type: ignore[arg-type]
        way.why = "said"
    bridge.device_lost(device)  # type: ignore[arg-type]
    assert way.tries_max == tries_max
    assert way.ended.is_set()


def test_a_filter_that_is_refused_is_an_alarm_until_it_is_not() -> None:
    bridge = bridge_of(receive=[ReceiveRuleSettings(filter="a/#"), ReceiveRuleSettings(filter="b")])
    way = _Way(bridge, 0)
    bridge._ways = [way]
    asked: list[Any] = []
    connection = SimpleNamespace(subscribe=asked.append)
    bridge._subscribe(way, connection, bridge.settings.receive)  # type: ignore[arg-type]
    bridge._subscribed(way, Answers(1, (1, 0x87), NO_PROPERTIES))
    assert bridge.alarm == "bridge b may not subscribe b: not authorized (0x87)"
    assert bridge.not_ready_reason is None, "without alarm_age_s the gateway is ready"
    numbers = {metric.name: metric.value for metric in bridge.metrics()}
    assert (numbers["iotmq_bridge_alarm"], numbers["iotmq_bridge_filters_refused"]) == (1, 1)
    bridge._subscribe(way, connection, bridge.settings.receive[1:])  # type: ignore[arg-type]
    bridge._subscribed(way, Answers(2, (1,), NO_PROPERTIES))
    assert bridge.alarm is None
    assert [[topic_filter for topic_filter, _ in each] for each in asked] == [["a/#", "b"], ["b"]]


def test_the_client_id_names_gateway_bridge_and_connection() -> None:
    bridge = bridge_of(connections=2)
    assert [_Way(bridge, number).client_id for number in range(2)] == ["g-b", "g-b-2"]
    assert _Way(bridge_of(client_id="x"), 1).client_id == "x-2"


QUEUES = tuple(MessageQueue("mqtt", "broker-a", number) for number in range(3))


class Feed:
    """Takes the place of a QueueFeed that has found where to begin."""

    def __init__(self, _client: object, _group: str, queue: MessageQueue, **options: Any) -> None:
        self.found = (queue, options["since_ms"])

    async def look_at_end(self) -> None:
        pass


async def test_queues_that_come_while_it_runs_have_a_time_to_begin_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is stored in a new topic before the bridge has found it is not left out."""
    monkeypatch.setattr(bridges, "QueueFeed", Feed)
    bridge = bridge_of(begin="last")
    way = _Way(bridge, 0)
    bridge._ways = [way]
    began_ms = bridge._clock.now_ms()
    looks = {"mqtt": [QUEUES[:1], QUEUES[:2], QUEUES[:2]], "late": [None, None, QUEUES[2:]]}
    topics = list(looks)

    async def find_for_reading(topic: str, *, timeout_s: float) -> object:
        found = looks[topic].pop(0)
        if found is None:
            raise ClientError("no such topic")
        return SimpleNamespace(readable=found)

    async def next_look(_: float) -> None:
        assert isinstance(bridge._clock, ManualClock)
        bridge._clock.advance(5.0)
        if not looks["late"]:
            raise asyncio.CancelledError

    routes = SimpleNamespace(find_for_reading=find_for_reading)
    bridge._client = SimpleNamespace(routes=routes)  # type: ignore[assignment]
    bridge._topics = lambda: topics
    monkeypatch.setattr(asyncio, "sleep", next_look)
    with pytest.raises(asyncio.CancelledError):
        await bridge._look_for_queues()
    assert [feed.found for feed in way.feeds] == [  # type: ignore[attr-defined]
        (QUEUES[0], None),
        (QUEUES[1], began_ms),
        (QUEUES[2], began_ms),
    ]


def feed_of(*, begins_first: bool = True, since_ms: int | None = None) -> QueueFeed:
    settings = SimpleNamespace(reconnect_ms_min=1, reconnect_ms_max=1)
    client = SimpleNamespace(clock=ManualClock(), settings=settings)
    return QueueFeed(
        client,  # type: ignore[arg-type]
        "g",
        QUEUES[0],
        begins_first=begins_first,
        since_ms=since_ms,
        wake=lambda _: None,
    )


class Moved(Progress):
    """Stands for a queue of which some messages are on their way."""

    in_flight = 1


async def test_a_queue_begins_anew_behind_what_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements of messages that the log has lost would count for those in their place."""

    async def pull(offset: int) -> object:
        return SimpleNamespace(status=PullStatus.OFFSET_MOVED, next_offset=5, min_offset=0, max_offset=5)

    feed = feed_of()
    await feed.stop()
    monkeypatch.setattr(feed._pulls, "pull", pull)
    feed.progress = progress = Moved("q@", 8)
    feed._next_offset = 8
    await feed._pull_once()
    assert (progress.acked, feed._next_offset) == (8, 8)
    monkeypatch.setattr(Moved, "in_flight", 0)
    feed._answers.append((b"", 8))
    await feed._pull_once()
    assert (progress.acked, feed._next_offset) == (8, 8)
    feed.sent_up_to(0)
    await feed._pull_once()
    assert (progress.acked, progress.sent, feed._next_offset) == (5, 5, 5)


@pytest.mark.parametrize(
    ("begins_first", "since_ms", "offset"),
    [(True, None, 10), (True, 7, 10), (False, None, 30), (False, 7, 27)],
)
async def test_where_a_new_group_begins(
    monkeypatch: pytest.MonkeyPatch, begins_first: bool, since_ms: int | None, offset: int
) -> None:
    async def first(*_: object) -> int:
        return 10

    async def last(*_: object) -> int:
        return 30

    async def at_time(_client: object, _queue: MessageQueue, timestamp_ms: int) -> int:
        return 20 + timestamp_ms

    monkeypatch.setattr(offsets, "min_offset", first)
    monkeypatch.setattr(offsets, "max_offset", last)
    monkeypatch.setattr(offsets, "offset_at_time", at_time)
    feed = feed_of(begins_first=begins_first, since_ms=since_ms)
    try:
        assert await feed._first_offset() == offset
    finally:
        await feed.stop()


class Silent:
    """A connection on which nothing comes."""

    keep_alive_s = 20
    last_received_s = 0.0

    def __init__(self) -> None:
        self.said: list[str] = []

    def ping(self) -> None:
        self.said.append("ping")

    def close(self, _: object) -> None:
        self.said.append("close")

    def abort(self) -> None:
        self.said.append("abort")


@pytest.mark.parametrize("is_congested", [False, True])
def test_a_broker_is_not_silent_while_nothing_is_read(is_congested: bool) -> None:
    """It is asked all the same, because it ends connections on which nobody says anything."""
    bridge = bridge_of()
    bridge._group = SimpleNamespace(is_congested=is_congested)  # type: ignore[assignment]
    way, silent = _Way(bridge, 0), Silent()
    for second in range(10, 35):
        bridge._look_after(way, silent, float(second))  # type: ignore[arg-type]
    ends = ["ping", "ping", "ping"] if is_congested else ["ping", "close", "abort"]
    assert silent.said[:3] == ends


def test_no_alarm_without_a_limit() -> None:
    assert bridge_of().not_ready_reason is None
    assert bridge_of(alarm_age_s=5).not_ready_reason is None


@pytest.mark.parametrize(
    ("version", "given", "does"), [("5", None, True), ("3.1.1", None, False), ("3.1.1", True, True)]
)
def test_what_came_over_another_bridge_is_forwarded_where_loops_end(
    version: str, given: bool | None, does: bool
) -> None:
    assert bridge_of(version=version, forwards_bridged=given)._identity.forwards_bridged is does


async def test_a_connection_is_made_again_when_what_came_on_the_last_one_is_stored() -> None:
    bridge = bridge_of()
    waiting: list[Any] = []

    class Sink(BridgeIngress):
        def __init__(self) -> None: ...

        def when_settled(self, device: object, callback: Any) -> bool:
            waiting.append(callback)
            return False

    bridge._sink = Sink()
    way = _Way(bridge, 0)
    way.connection = SimpleNamespace(received=[7])  # type: ignore[assignment]
    task = asyncio.ensure_future(bridge._settle(way))
    await asyncio.sleep(0)
    assert not task.done()
    waiting[0]()
    await task
    assert way.received == [7]
