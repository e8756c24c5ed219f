"""The gateway to brokers in other processes, against scripted ones: channels, filters, answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
from eventually import soon
from fake_broker import CLOSE, SILENT, FakeBroker, WatchedRegistry
from fake_gateway import matches_of, record_of

from iotmq import limits
from iotmq.client.transport import masters
from iotmq.client.transport.masters import Master
from iotmq.client.transport.routes import MessageQueue, TopicRoute, queue_of_key
from iotmq.front_port import gateway
from iotmq.front_port.gateway import FORGET_S, RemoteGateway
from iotmq.message.properties import MQTT_TOPIC, encode_properties
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.supervised import FAILURES


class Channel:
    """What a front end has attached over a connection."""

    def __init__(self) -> None:
        self.whole: dict[int, str] = {}
        self.marks: dict[int, str] = {}

    def detach(self, ids: list[int], marks: list[tuple[int, str]]) -> None:
        for number in ids:
            self.whole.pop(number, None)
        for number, topic_filter in marks:
            if self.marks.get(number) == topic_filter:
                del self.marks[number]


class GatewayBroker(FakeBroker):
    """Knows filters, too. While `is_holding`, attaching is answered by `release`."""

    def __init__(self, name: str = "broker-a") -> None:
        super().__init__(name)
        self.add_topic("mqtt", 4)
        self.channels: dict[ServerConnection, Channel] = {}
        self.is_holding = False
        # What is to be attached at any time; and what was not, for a moment.
        self.expected: dict[int, str] = {}
        self.missing: set[int] = set()
        self.record_bytes_max: int | None = None
        self.log_position: int | None = None
        self.attaches: list[tuple[dict[str, str], list[int]]] = []
        """Fields and filter ids of each request to attach."""
        self.held_attaches: list[tuple[ServerConnection, Command]] = []

    @property
    def whole(self) -> dict[int, str]:
        return {number: name for channel in self.channels.values() for number, name in channel.whole.items()}

    @property
    def marks(self) -> dict[int, str]:
        return {number: name for channel in self.channels.values() for number, name in channel.marks.items()}

    @property
    def filters(self) -> dict[int, str]:
        """Whole or as marks."""
        return self.whole | self.marks

    @property
    def has_both(self) -> bool:
        return not self.whole.keys().isdisjoint(self.marks)

    def release(self) -> None:
        held, self.held_attaches = self.held_attaches, []
        for connection, request in held:
            connection.reply(request.reply(0))

    def answer(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.code == RequestCode.ATTACH_FILTERS:
            body = json.loads(request.body_bytes())
            filters, marks = body["filters"], body.get("marks", [])
            channel = self.channels.setdefault(connection, Channel())
            channel.whole.update(filters)
            channel.marks.update(marks)
            self.attaches.append((dict(request.ext), [number for number, _ in filters + marks]))
            if self.is_holding:
                self.held_attaches.append((connection, request))
                return None
            told = {"recordBytesMax": self.record_bytes_max, "position": self.log_position}
            return request.reply(
                0, ext={name: str(value) for name, value in told.items() if value is not None}
            )
        if request.code == RequestCode.DETACH_FILTERS:
            body = json.loads(request.body_bytes())
            self.channels[connection].detach(body["ids"], body.get("marks", []))
            self.missing |= self.expected.keys() - self.filters.keys()
            return request.reply(0)
        if request.code in (
            RequestCode.PUBLISH_TRANSIENT,
            RequestCode.PUBLISH_DELAYED,
            RequestCode.PUBLISH_REPLY,
        ):
            return request.reply(0)
        return super().answer(connection, request)

    def connection_lost(self, connection: ServerConnection) -> None:
        self.channels.pop(connection, None)
        super().connection_lost(connection)

    def push(self, records: bytes, matches: bytes, **ext: str) -> None:
        for connection in self.channels:
            fields = {"matchesBytes": str(len(matches)), **ext}
            connection.send_oneway(
                Command.request(RequestCode.DELIVER_RECORDS, fields, [matches, records], oneway=True)
            )


class Inbox:
    def __init__(self) -> None:
        self.pushes: list[tuple[bytes, bytes]] = []

    def deliver(self, records: memoryview, matches: memoryview) -> None:
        self.pushes.append((bytes(records), bytes(matches)))


class Site:
    def __init__(self, brokers: list[GatewayBroker]) -> None:
        self.brokers = brokers
        self.registry = WatchedRegistry(*brokers)
        self.inbox = Inbox()
        self.answers: list[tuple[int, str]] = []
        self.attached: list[bool] = []
        self.changes = 0

    def changed(self) -> None:
        self.changes += 1

    @property
    def broker(self) -> GatewayBroker:
        return self.brokers[0]

    def append(self, queue_id: int, elements: bytes, *, is_stored: bool = True, count: int = 1) -> None:
        self.gateway.append(
            "mqtt",
            queue_id,
            elements,
            count=count,
            is_stored=is_stored,
            has_packet_ids=False,
            is_repeat=False,
            done=self.done,
        )

    def done(self, code: int, remark: str) -> None:
        self.answers.append((code, remark))

    async def answer(self) -> tuple[int, str]:
        """The only answer there is, or will be."""
        await soon(lambda: self.answers, "an answer", step_s=0.001)
        [answer], self.answers = self.answers, []
        return answer

    async def attach(self, *filters: tuple[int, str]) -> bool:
        self.gateway.attach(filters, self.attached.append)
        await soon(lambda: self.attached, "an answer", step_s=0.001)
        [is_attached], self.attached = self.attached, []
        return is_attached

    async def ready(self) -> None:
        await soon(lambda: self.gateway.not_ready_reason is None, "ready", step_s=0.001)


@asynccontextmanager
async def running(*brokers: GatewayBroker, waits: bool = True) -> AsyncIterator[Site]:
    site = Site(list(brokers) or [GatewayBroker()])
    for role in (*site.brokers, site.registry):
        await role.start()
    site.gateway = RemoteGateway((site.registry.address,))
    await site.gateway.start(("mqtt",), site.inbox, site.changed, route_of=lambda topic: ("mqtt", topic))
    if waits:
        await site.ready()
    try:
        yield site
    finally:
        await site.gateway.stop()
        for role in (*site.brokers, site.registry):
            await role.stop()


def batch(*bodies: bytes) -> bytes:
    properties = encode_properties({MQTT_TOPIC: "a"})
    return encode_batch([(body, properties, 0) for body in bodies])


async def test_the_smallest_record_limit_of_the_brokers_is_everybodys() -> None:
    small, silent = GatewayBroker("a"), GatewayBroker("b")
    small.record_bytes_max = 70_000
    async with running(small, silent) as site:
        assert site.gateway.record_bytes_max == 70_000
        assert site.changes == 1


async def test_queues_are_those_of_all_brokers_and_batches_go_where_they_belong() -> None:
    async with running(GatewayBroker("a"), GatewayBroker("b")) as site:
        assert site.gateway.queue_count("mqtt") == 8
        for queue_id in range(8):
            site.append(queue_id, batch(b"%d" % queue_id))
            assert await site.answer() == (0, "")
        assert [broker.stored_bodies("mqtt") for broker in site.brokers] == [
            [b"0", b"1", b"2", b"3"],
            [b"4", b"5", b"6", b"7"],
        ]
        site.append(9, batch(b"9"))
        assert await site.answer() == (0, "")
        assert site.broker.stored_bodies("mqtt") == [b"0", b"1", b"9", b"2", b"3"]


@pytest.mark.parametrize(
    ("scripted", "code"),
    [
        (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL),
        (ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION),
        (ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_DISK_TIMEOUT),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_what_the_broker_says_is_passed_on(scripted: int, code: int) -> None:
    async with running() as site:
        site.broker.script[RequestCode.SEND_BATCH_MESSAGE].append(scripted)
        site.append(0, batch(b"x"))
        answer = await site.answer()
        assert answer[0] == code
        assert answer[1]


@pytest.mark.parametrize("scripted", [ResponseCode.SLAVE_NOT_AVAILABLE])
async def test_a_message_that_is_stored_and_at_no_slave_is_not_sent_again(scripted: int) -> None:
    async with running() as site:
        site.broker.script[RequestCode.SEND_BATCH_MESSAGE].append(scripted)
        site.append(0, batch(b"x"))
        assert await site.answer() == (0, "")


async def test_a_connection_that_ends_is_not_a_refusal() -> None:
    async with running() as site:
        site.broker.script[RequestCode.SEND_BATCH_MESSAGE].extend([CLOSE] * 3)
        site.append(0, batch(b"x"))
        assert (await site.answer())[0] == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_batch_at_the_limit_of_a_request_and_past_it() -> None:
    async with running() as site:
        overhead = len(batch(b""))
        fitting = batch(bytes(limits.RECORD_BYTES_MAX - overhead))
        assert len(fitting) == limits.RECORD_BYTES_MAX
        site.append(0, fitting)
        assert await site.answer() == (0, "")
        site.append(0, batch(bytes(limits.RECORD_BYTES_MAX - overhead + 1)))
        assert (await site.answer())[0] == ResponseCode.MESSAGE_ILLEGAL, "offering it again would not help"


@pytest.mark.parametrize("code", [0, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR])
async def test_messages_that_are_not_stored_have_a_request_of_their_own(code: int) -> None:
    async with running() as site:
        if code:
            site.broker.script[RequestCode.PUBLISH_TRANSIENT].append(code)
        site.append(2, batch(b"x"), is_stored=False)
        assert (await site.answer())[0] == code
        [request] = site.broker.seen(RequestCode.PUBLISH_TRANSIENT)
        assert request.ext.items() >= {"topic": "mqtt", "queueId": "2"}.items()
        assert request.body_bytes() == batch(b"x")
        site.broker.script[RequestCode.PUBLISH_TRANSIENT].append(CLOSE)
        site.append(2, batch(b"x"), is_stored=False)
        assert (await site.answer())[0] == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_messages_that_wait_have_a_request_of_their_own() -> None:
    async with running() as site:
        for code in (0, ResponseCode.TOO_MANY_WAITING):
            if code:
                site.broker.script[RequestCode.PUBLISH_DELAYED].append(code)
            site.gateway.append_delayed(
                "mqtt", 2, batch(b"x"), count=1, has_packet_ids=False, is_repeat=False, done=site.done
            )
            assert (await site.answer())[0] == code
        request = site.broker.seen(RequestCode.PUBLISH_DELAYED)[0]
        assert request.ext.items() >= {"topic": "mqtt", "queueId": "2"}.items()
        assert request.body_bytes() == batch(b"x")


async def test_answers_of_devices_go_to_the_broker_they_name_or_are_counted() -> None:
    async with running(GatewayBroker("a"), GatewayBroker("b")) as site:

        def dropped() -> float:
            return next(
                metric.value
                for metric in site.gateway.metrics()
                if metric.name == "iotmq_mqtt_dropped_replies_total"
            )

        site.gateway.reply("b", "$reply/x", "dev", b"yes")
        second = site.brokers[1]
        await soon(lambda: second.seen(RequestCode.PUBLISH_REPLY), "the answer", step_s=0.001)
        [request] = second.seen(RequestCode.PUBLISH_REPLY)
        assert request.ext.items() >= {"topic": "$reply/x", "clientId": "dev"}.items()
        assert request.body_bytes() == b"yes"
        assert not site.broker.seen(RequestCode.PUBLISH_REPLY)
        assert dropped() == 0
        site.gateway.reply("c", "$reply/x", "dev", b"to nobody")
        assert dropped() == 1
        second.script[RequestCode.PUBLISH_REPLY].extend([ResponseCode.SERVICE_NOT_AVAILABLE, CLOSE])
        site.gateway.reply("b", "$reply/x", "dev", b"refused")
        await soon(lambda: dropped() == 2, "refused", step_s=0.001)
        site.gateway.reply("b", "$reply/x", "dev", b"lost")
        await soon(lambda: dropped() == 3, "lost", step_s=0.001)


async def test_answers_of_devices_under_way_at_their_limit_and_past_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "REPLIES_IN_FLIGHT_MAX", 2)
    async with running() as site:
        for _ in range(3):
            site.gateway.reply("broker-a", "$reply/x", "dev", b"x")
        await soon(lambda: len(site.broker.seen(RequestCode.PUBLISH_REPLY)) == 2, "two answers", step_s=0.001)
        await soon(lambda: site.gateway._replies_in_flight == 0, "answered", step_s=0.001)
        site.gateway.reply("broker-a", "$reply/x", "dev", b"x")
        await soon(lambda: len(site.broker.seen(RequestCode.PUBLISH_REPLY)) == 3, "one more", step_s=0.001)


async def test_filters_are_attached_at_every_broker_and_again_when_a_channel_was_lost() -> None:
    async with running(GatewayBroker("a"), GatewayBroker("b")) as site:
        assert await site.attach((1, "a/#"), (2, "b"))
        site.gateway.detach([2])
        assert await site.attach((3, "c"))
        for broker in site.brokers:
            assert broker.filters == {1: "a/#", 3: "c"}
        await site.broker.restart()
        await soon(lambda: site.broker.filters == {1: "a/#", 3: "c"}, "attached again", step_s=0.001)
        await site.ready()


def home_of(topic: str, brokers: Sequence[GatewayBroker]) -> GatewayBroker:
    """With 4 queues each, sorted by their names."""
    return sorted(brokers, key=lambda broker: broker.name)[queue_of_key(topic, 4 * len(brokers)) // 4]


TOPICS = [(number, f"devices/{number}") for number in range(1, 61)]


def check_homes(site: Site, brokers: Sequence[GatewayBroker], filters: Sequence[tuple[int, str]]) -> None:
    """Each filter is whole at its home, and a mark at every other broker."""
    for broker in site.brokers:
        whole = {number: name for number, name in filters if home_of(name, brokers) is broker}
        assert broker.whole == whole
        assert broker.marks == {number: name for number, name in filters if number not in whole}


async def test_a_filter_without_wildcards_is_whole_at_one_broker_and_a_mark_at_the_others() -> None:
    async with running(*map(GatewayBroker, "abc")) as site:
        assert await site.attach(*TOPICS)
        check_homes(site, site.brokers, TOPICS)
        assert all(10 <= len(broker.whole) <= 30 for broker in site.brokers)
        # It is where the front end publishes to: nothing of it needs a mark.
        for number, topic in TOPICS:
            site.append(queue_of_key(topic, site.gateway.queue_count("mqtt")), batch(b"%d" % number))
            assert await site.answer() == (0, "")
        for broker in site.brokers:
            stored = broker.stored_bodies("mqtt")
            assert sorted(stored) == sorted(b"%d" % number for number in broker.whole)
        site.gateway.detach([number for number, _ in TOPICS[1:]])
        assert await site.attach((100, "a/+"))
        assert [broker.whole | broker.marks for broker in site.brokers] == [{1: "devices/1", 100: "a/+"}] * 3
        assert all(100 in broker.whole for broker in site.brokers)


async def test_what_a_lost_channel_had_whole_and_as_marks_it_has_again() -> None:
    async with running(*map(GatewayBroker, "ab")) as site:
        site.broker.log_position = 70
        assert await site.attach(*TOPICS)
        before = dict(site.broker.whole), dict(site.broker.marks)
        await lose_channel(site)
        await site.ready()
        assert (site.broker.whole, site.broker.marks) == before
        assert [fields for fields, _ in site.broker.attaches] == [{"since": "70"}]


async def place(site: Site, *brokers: GatewayBroker) -> None:
    """The queues are those of these brokers from now on."""
    queues = [MessageQueue("mqtt", broker.name, queue_id) for broker in brokers for queue_id in range(4)]
    site.gateway._queues["mqtt"] = tuple(sorted(queues))
    site.gateway._unplaced = set(site.gateway._channels)
    await site.gateway._place_filters()


async def test_filters_follow_the_queues_and_are_everywhere_meanwhile() -> None:
    async with running(*map(GatewayBroker, "abc")) as site:
        await place(site, *site.brokers[:2])
        assert await site.attach(*TOPICS)
        check_homes(site, site.brokers[:2], TOPICS)
        for brokers in (site.brokers, site.brokers[1:], site.brokers[:1], site.brokers):
            for broker in site.brokers:
                broker.missing.clear()
                broker.expected = dict(TOPICS)
            await place(site, *brokers)
            assert not site.gateway._unplaced
            await soon(lambda: all(not b.has_both for b in site.brokers), "one way each", step_s=0.001)
            check_homes(site, brokers, TOPICS)
            assert not any(broker.missing for broker in site.brokers)


async def test_a_move_that_a_broker_refuses_or_that_it_is_away_for_is_made_later() -> None:
    async with running(*map(GatewayBroker, "abc")) as site:
        await place(site, *site.brokers[:2])
        assert await site.attach(*TOPICS)
        refusing, away = site.brokers[1:]
        refusing.script[RequestCode.ATTACH_FILTERS].append(ResponseCode.SYSTEM_ERROR)
        away.is_holding = True
        for connection in list(away.channels):
            connection.abort("test")
        await soon(lambda: away.held_attaches, "its channel is being opened", step_s=0.001)
        await place(site, *site.brokers)
        assert site.gateway._unplaced == {"b", "c"}
        assert refusing.filters == dict(TOPICS)
        away.is_holding = False
        away.release()
        await site.ready()
        assert away.marks == dict(TOPICS), "as before"
        await site.gateway._place_filters()
        assert not site.gateway._unplaced
        await soon(lambda: all(not b.has_both for b in site.brokers), "one way each", step_s=0.001)
        check_homes(site, site.brokers, TOPICS)


async def test_a_filter_that_is_given_up_while_it_moves_is_nowhere_in_the_end() -> None:
    async with running(*map(GatewayBroker, "ab")) as site:
        await place(site, site.broker)
        assert await site.attach(*TOPICS)
        for broker in site.brokers:
            broker.is_holding = True
        moving = asyncio.ensure_future(place(site, site.brokers[1]))
        await soon(lambda: all(b.held_attaches for b in site.brokers), "they are asked", step_s=0.001)
        site.gateway.detach([number for number, _ in TOPICS[1:]])
        for broker in site.brokers:
            broker.is_holding = False
            broker.release()
        await moving
        await soon(lambda: all(len(b.filters) == 1 for b in site.brokers), "they are gone", step_s=0.001)
        await soon(lambda: all(not b.has_both for b in site.brokers), "one way each", step_s=0.001)
        assert (site.broker.marks, site.brokers[1].whole) == ({1: "devices/1"}, {1: "devices/1"})


async def change_at_random(site: Site, random: Random, *, loses: bool) -> dict[int, str]:
    """Filters that come and go, queues that move, channels that are lost; returns the filters that stay."""
    there: dict[int, str] = {}
    placing: list[asyncio.Future[None]] = []
    for number in range(1, 400):
        name = f"devices/{random.randrange(30)}" if random.random() < 0.9 else "devices/+"
        there[number] = name
        site.gateway.attach([(number, name)], lambda is_attached: None)
        while random.random() < 0.4:
            gone = random.choice(list(there))
            del there[gone]
            for broker in site.brokers:
                broker.expected.pop(gone, None)
            site.gateway.detach([gone])
            if not there:
                break
        if random.random() < 0.1:
            placing.append(
                asyncio.ensure_future(place(site, *random.sample(site.brokers, random.randint(1, 3))))
            )
        if random.random() < 0.1:
            await asyncio.sleep(random.random() * 0.002)
        if loses and random.random() < 0.03:
            for connection in tuple(random.choice(site.brokers).channels):
                connection.abort("test")
        for broker in site.brokers:
            # Those that are certainly attached.
            seen = site.gateway._channels[broker.name]._seen
            broker.expected = {number: name for number, name in there.items() if number in seen}
    await asyncio.gather(*placing)
    return there


@pytest.mark.parametrize("loses", [False, True], ids=["whole", "lost"])
@pytest.mark.parametrize("seed", range(4))
async def test_whatever_changes_filters_are_never_missing_and_right_in_the_end(
    seed: int, loses: bool
) -> None:
    async with running(*map(GatewayBroker, "abc")) as site:
        there = await change_at_random(site, Random(seed), loses=loses)
        await site.ready()
        assert loses or not any(broker.missing for broker in site.brokers)

        # What was being attached when it was its turn has it again.
        for _ in range(20):
            await place(site, *site.brokers)
            if not site.gateway._unplaced:
                break
        exact = [(number, name) for number, name in there.items() if name != "devices/+"]
        everywhere = {number: name for number, name in there.items() if name == "devices/+"}
        await soon(lambda: all(b.filters == there and not b.has_both for b in site.brokers), "they agree")
        site.gateway.detach(list(everywhere))
        await soon(
            lambda: not any(b.whole.keys() & everywhere for b in site.brokers), "the rest", step_s=0.001
        )
        check_homes(site, site.brokers, exact)


async def test_a_filter_that_is_given_up_before_the_request_goes_out_is_nowhere_in_the_end() -> None:
    async with running(*map(GatewayBroker, "ab")) as site:
        site.gateway.attach(TOPICS, site.attached.append)
        site.gateway.detach([number for number, _ in TOPICS])
        await soon(lambda: site.attached, "an answer", step_s=0.001)
        await soon(lambda: not any(b.filters for b in site.brokers), "they are gone", step_s=0.001)


async def test_filters_whose_homes_take_too_long_to_find_are_marks_until_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(*map(GatewayBroker, "ab")) as site:
        with monkeypatch.context() as patch:
            patch.setattr(gateway, "LoopSlice", partial(gateway.LoopSlice, 20))
            assert await site.attach(*TOPICS, (100, "a/+"))
        for broker in site.brokers:
            assert broker.filters == {**dict(TOPICS), 100: "a/+"}
            assert broker.marks.items() >= dict(TOPICS[20:]).items()
            assert 100 in broker.whole
        site.gateway.detach([100])
        await site.gateway._place_filters()
        await soon(lambda: not any(b.has_both or 100 in b.whole for b in site.brokers), "so", step_s=0.001)
        check_homes(site, site.brokers, TOPICS)


async def test_one_broker_that_refuses_a_filter_is_enough() -> None:
    async with running(GatewayBroker("a"), GatewayBroker("b")) as site:
        site.broker.script[RequestCode.ATTACH_FILTERS].append(ResponseCode.SYSTEM_ERROR)
        assert not await site.attach((1, "a"))
        site.broker.script[RequestCode.ATTACH_FILTERS].append(CLOSE)
        assert not await site.attach((2, "b"))


async def test_an_answer_to_a_filter_that_makes_no_sense_is_a_refusal() -> None:
    async with running() as site:
        failures = FAILURES.count("attaching of filters")
        site.broker.log_position = -1
        assert not await site.attach((1, "a"))
        assert FAILURES.count("attaching of filters") == failures + 1
        site.broker.log_position = None
        assert await site.attach((2, "b"))


async def test_a_broker_that_refuses_a_filter_takes_no_larger_records_for_that() -> None:
    small, other = GatewayBroker("a"), GatewayBroker("b")
    small.record_bytes_max = 70_000
    async with running(small, other) as site:
        small.script[RequestCode.ATTACH_FILTERS].append(ResponseCode.SYSTEM_ERROR)
        assert not await site.attach((1, "a"))
        await other.restart()
        await soon(lambda: len(other.seen(RequestCode.ATTACH_FILTERS)) > 2, "attached anew", step_s=0.001)
        await site.ready()
        assert site.gateway.record_bytes_max == 70_000


async def test_many_filters_go_in_several_requests() -> None:
    async with running() as site:
        before = len(site.broker.seen(RequestCode.ATTACH_FILTERS))
        filters = [(number, f"t/{number}") for number in range(1, 2_502)]
        assert await site.attach(*filters)
        assert site.broker.filters == dict(filters)
        assert len(site.broker.seen(RequestCode.ATTACH_FILTERS)) - before == 3


async def test_filters_that_come_and_go_while_a_channel_opens_are_right_when_it_is_open() -> None:
    broker = GatewayBroker()
    broker.is_holding = True
    async with running(broker, waits=False) as site:
        await soon(lambda: broker.held_attaches, "the channel is being opened", step_s=0.001)
        assert site.gateway.not_ready_reason is not None
        assert not broker.filters
        assert await site.attach((1, "early"), (2, "gone")), "every channel attaches it as soon as it opens"
        broker.release()
        await soon(lambda: broker.held_attaches, "the second round", step_s=0.001)
        site.gateway.detach([2])
        assert await site.attach((3, "late"))
        broker.release()
        await soon(lambda: broker.held_attaches, "the third round", step_s=0.001)
        broker.release()
        await site.ready()
        await soon(lambda: broker.filters == {1: "early", 3: "late"}, "filters agree", step_s=0.001)


async def test_an_answer_that_makes_no_sense_does_not_end_the_channel() -> None:
    async with running() as site:
        failures = FAILURES.count("delivery channel")
        site.broker.log_position = -1
        for connection in tuple(site.broker.channels):
            connection.abort("test")
        await soon(lambda: FAILURES.count("delivery channel") > failures, "the failure is counted")
        site.broker.log_position = None
        await site.ready()


async def test_pushes_are_delivered_and_malformed_ones_counted() -> None:
    async with running() as site:
        record, matches = record_of("a", b"x"), matches_of((0, [1]))
        site.broker.push(record, matches)
        site.broker.push(record, matches, matchesBytes="100000")
        site.broker.push(record, matches, matchesBytes="-1")
        site.broker.push(record, matches)
        await soon(lambda: len(site.inbox.pushes) == 2, "two pushes", step_s=0.001)
        assert site.inbox.pushes == [(record, matches)] * 2
        assert metric(site, "iotmq_mqtt_delivery_malformed_total") == 2
        assert metric(site, "iotmq_mqtt_delivery_channel_up") == 1


def metric(site: Site, name: str) -> Any:
    return sum(one.value for one in site.gateway.metrics() if one.name == name)


async def lose_channel(site: Site) -> None:
    site.broker.attaches.clear()
    for connection in list(site.broker.channels):
        connection.abort("test")
    await soon(lambda: site.gateway.not_ready_reason is not None, "it is lost", step_s=0.001)


async def test_a_channel_that_comes_back_says_what_it_has_seen() -> None:
    async with running() as site:
        site.broker.log_position = 100
        assert await site.attach((1, "a"), (2, "b"))
        record = record_of("a", b"1")
        site.broker.push(record, matches_of((0, [1])), nextPosition="170")
        await soon(lambda: site.inbox.pushes, "the push", step_s=0.001)
        site.gateway.detach([2])
        await lose_channel(site)
        # Nobody has seen anything for this one.
        site.gateway.attach([(3, "c")], site.attached.append)
        site.broker.log_position = 300
        await site.ready()
        assert site.broker.attaches == [({"since": "170"}, [1]), ({}, [3])]
        await lose_channel(site)
        await site.ready()
        assert site.broker.attaches == [({"since": "300"}, [1, 3])]


async def test_what_was_seen_is_not_forgotten_by_a_channel_that_does_not_come_up() -> None:
    async with running() as site:
        site.broker.log_position = 100
        assert await site.attach((1, "a"))
        site.broker.is_holding = True
        await lose_channel(site)
        await soon(lambda: site.broker.held_attaches, "it catches up", step_s=0.001)
        site.broker.push(record_of("a", b"1"), matches_of((0, [1])), nextPosition="120")
        await soon(lambda: site.inbox.pushes, "a part of it", step_s=0.001)
        site.broker.is_holding = False
        for connection in list(site.broker.channels):
            connection.abort("test")
        await site.ready()
        assert [fields for fields, _ in site.broker.attaches] == [{"since": "100"}, {"since": "120"}]


async def test_a_broker_that_nobody_names_is_forgotten_when_it_is_not_back_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(GatewayBroker("a"), GatewayBroker("b")) as site:
        follow = partial(site.gateway._follow_brokers, site.inbox)
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        route = site.gateway._client.routes.known("mqtt")
        assert route is not None
        both, one = route.addresses, {"a": route.addresses["a"]}
        for passed_s, named, channels in (
            (0.0, one, ["a", "b"]),
            (FORGET_S - 1, one, ["a", "b"]),
            (FORGET_S - 0.5, both, ["a", "b"]),
            (FORGET_S, one, ["a", "b"]),
            (2 * FORGET_S - 1, one, ["a", "b"]),
            (2 * FORGET_S, one, ["a"]),
        ):
            found = TopicRoute(
                topic="mqtt", readable=route.readable, writable=route.writable, addresses=named
            )
            with monkeypatch.context() as patch:
                patch.setattr(site.gateway._client.routes, "known", lambda _, found=found: found)
                patch.setattr(loop, "time", lambda passed_s=passed_s: now_s + passed_s, raising=False)
                await follow()
            assert sorted(site.gateway._channels) == channels


async def test_filters_of_many_requests_are_caught_up_at_once() -> None:
    async with running() as site:
        site.broker.log_position = 50
        assert await site.attach(*((number, f"f/{number}") for number in range(1, 2_002)))
        await lose_channel(site)
        await site.ready()
        fields = [(ext, len(numbers)) for ext, numbers in site.broker.attaches]
        assert fields == [({"isHeld": "true"}, 1_000), ({"isHeld": "true"}, 1_000), ({"since": "50"}, 1)]
        assert len(site.broker.filters) == 2_001


async def test_another_log_at_the_same_address_is_begun_anew() -> None:
    async with running() as site:
        site.broker.log_position = 1_000_000
        assert await site.attach((1, "a"))
        site.broker.log_position = 10
        for since in (1_000_000, 10):
            await lose_channel(site)
            await site.ready()
            assert site.broker.attaches == [({"since": str(since)}, [1])]


# Another master


@asynccontextmanager
async def moving() -> AsyncIterator[tuple[Site, GatewayBroker]]:
    """A front end at a master, and the next one; `moves` leads there."""
    present = GatewayBroker()
    await present.start()
    async with running() as site:
        yield site, present
    await present.stop()


def move(site: Site, present: GatewayBroker) -> None:
    site.registry.brokers = [present]
    site.registry.tell(**{"broker-a": Master(present.address, 1)})


async def test_a_channel_goes_on_at_the_next_master_where_it_was() -> None:
    async with moving() as (site, present):
        site.broker.log_position = 100
        assert await site.attach((1, "a"))
        site.broker.push(record_of("a", b"1"), matches_of((0, [1])), nextPosition="170")
        await soon(lambda: site.inbox.pushes, "the push", step_s=0.001)
        changes: list[dict[str, str]] = []
        site.gateway.on_masters_changed(lambda: changes.append(site.gateway.masters))
        began_s = asyncio.get_running_loop().time()
        move(site, present)
        await soon(lambda: present.filters == {1: "a"}, "the channel", step_s=0.001)
        assert asyncio.get_running_loop().time() - began_s < 1.0
        assert present.attaches == [({"since": "170"}, [1])]
        assert changes == [{"broker-a": present.address}]
        await soon(lambda: not site.broker.channels, "the former is left")


async def test_a_channel_leaves_a_master_that_does_not_answer() -> None:
    async with moving() as (site, present):
        assert await site.attach((1, "a"))
        site.broker.is_holding = True
        await lose_channel(site)
        await soon(lambda: site.broker.held_attaches, "it waits", step_s=0.001)
        move(site, present)
        await soon(lambda: present.filters == {1: "a"}, "the channel", step_s=0.001, within_s=2.0)


async def test_what_a_silent_master_did_not_answer_goes_to_the_next() -> None:
    codes = (RequestCode.SEND_BATCH_MESSAGE, RequestCode.PUBLISH_DELAYED, RequestCode.PUBLISH_TRANSIENT)
    async with moving() as (site, present):
        for code in codes:
            site.broker.script[code].append(SILENT)
        site.append(2, batch(b"x"))
        site.append(1, batch(b"y"), is_stored=False)
        site.gateway.append_delayed(
            "mqtt", 3, batch(b"z"), count=1, has_packet_ids=False, is_repeat=False, done=site.done
        )
        await soon(lambda: all(site.broker.seen(code) for code in codes), "the requests", step_s=0.001)
        assert site.answers == []
        move(site, present)
        await soon(lambda: len(site.answers) == 3, "the answers", step_s=0.001, within_s=2.0)
        assert site.answers == [(0, "")] * 3
        for code in codes:
            [request] = present.seen(code)
            assert request.ext["isRepeat"] == "true"
        assert site.gateway.broker_of("mqtt", 2, is_delayed=False) == "broker-a"


@pytest.mark.parametrize("epoch", [0, 1])
async def test_queues_of_a_replicated_broker_go_nowhere_else_while_it_has_no_master(
    monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    monkeypatch.setattr(gateway, "_REFRESH_S", 0.01)
    a, b = GatewayBroker("a"), GatewayBroker("b")
    async with running(a, b) as site:
        client = site.gateway._client
        site.registry.tell(a=Master(a.address, epoch), b=Master(b.address, epoch))
        await soon(lambda: client.masters.present("a", "") == (a.address if epoch else ""), "it is told")
        assert site.gateway.queue_count("mqtt") == 8
        site.registry.tell(b=Master(b.address, epoch))
        # While it is still told of a master, one without queues has given them up.
        said = client.masters._masters._said
        await soon(lambda: not any("a" in each for each in said.values()), "it is told")
        site.registry.brokers = [b]
        asked = RequestCode.GET_ROUTE_INFO_BY_TOPIC
        before = len(site.registry.seen(asked))
        await client.routes.refresh("mqtt")
        assert len(site.registry.seen(asked)) > before
        if epoch:
            changes = site.changes
            assert site.gateway.queue_count("mqtt") == 8
            assert len(await site.gateway._producer.queues("mqtt")) == 8
            assert site.changes == changes
            # Not for ever.
            monkeypatch.setattr(masters, "AWAITED_S", 0.0)
            await client.routes.refresh("mqtt")
        await soon(lambda: site.gateway.queue_count("mqtt") == 4, "the queues of the other")
