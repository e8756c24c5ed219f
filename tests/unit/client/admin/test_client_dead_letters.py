"""Dead letters that are sent again, against a fake broker: what is left out, where the next time goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from fake_broker import FakeBroker, FakeRegistry

from iotmq.audit_log import AUDIT_TOPIC
from iotmq.client.admin import dead_letters
from iotmq.client.admin.dead_letters import LEFT_IDS_MAX, DeadLetters, Replay, Resent, Selection, topic_of
from iotmq.client.client import IotmqClient
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.settings import ClientSettings, ProducerSettings
from iotmq.errors import BrokerError
from iotmq.message.properties import encode_properties
from iotmq.remoting.codes import RequestCode

DEAD = topic_of("g")
OFFSET = ("RESEND_g", DEAD, 0)
ZLIB_FLAG = 1
ALL = Selection()


class Site:
    """A broker with the dead letters of group g, all of topic T."""

    def __init__(self, broker: FakeBroker, client: IotmqClient) -> None:
        self.broker = broker
        self._client = client

    def put(self, body: bytes, *, at_ms: int = 1, topic: str = "T", keys: str = "", **fields: int) -> None:
        named = {"RETRY_TOPIC": topic, "KEYS": keys}
        properties = encode_properties({name: value for name, value in named.items() if value})
        self.broker.store(DEAD, 0, body, properties, store_timestamp_ms=at_ms, **fields)

    async def resend_all(self, **options: object) -> Resent:
        async with self.producer() as producer:
            dead = DeadLetters(self._client)
            steps = [step async for step in dead.resend_all("g", producer, **options)]
        return steps[-1]

    def producer(self) -> Producer:
        return Producer(self._client, "pg", ProducerSettings(tries_max=1, batch_records_max=1))

    def replay(self, producer: Producer, selection: Selection = ALL, *, per_second: float = 0) -> Replay:
        return Replay(self._client, "g", producer, selection, per_second=per_second)

    def sent(self) -> list[bytes]:
        """What topic T has, taken away."""
        bodies = self.broker.stored_bodies("T")
        self.broker.topics["T"][0].clear()
        return bodies


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    broker = FakeBroker()
    broker.add_topic("T", 1)
    broker.add_topic(DEAD, 1)
    registry = FakeRegistry(broker)
    for role in (broker, registry):
        await role.start()
    async with IotmqClient(ClientSettings(registries=(registry.address,), reconnect_ms_min=5)) as client:
        yield Site(broker, client)
    for role in (broker, registry):
        await role.stop()


async def test_letters_that_cannot_be_sent_are_left_and_those_behind_them_go(site: Site) -> None:
    site.put(b"first")
    site.put(b"no zlib", sys_flag=ZLIB_FLAG)
    site.put(b"no topic", topic="")
    site.put(b"no topic's name", topic="a/b")
    site.put(b"a forged record", topic=AUDIT_TOPIC)
    site.put(b"last")
    resent = await site.resend_all()
    assert (resent.sent_count, len(resent.left_message_ids)) == (2, 4)
    assert site.sent() == [b"first", b"last"]
    assert site.broker.offsets[OFFSET] == 6
    assert (await site.resend_all()).sent_count == 0


async def test_older_letters_are_not_passed_over_by_a_resend_of_a_time(site: Site) -> None:
    site.put(b"old", at_ms=10)
    site.put(b"new", at_ms=20)
    assert (await site.resend_all(begin_ms=15)).sent_count == 1
    assert site.sent() == [b"new"]
    assert OFFSET not in site.broker.offsets
    # The new one comes once more: twice is better than never.
    assert (await site.resend_all()).sent_count == 2
    assert site.sent() == [b"old", b"new"]
    assert site.broker.offsets[OFFSET] == 2
    # Everything older has been sent, so the time leaves nothing out.
    site.put(b"newer", at_ms=30)
    assert (await site.resend_all(begin_ms=15)).sent_count == 1
    assert site.broker.offsets[OFFSET] == 3


async def test_sending_some_again_does_not_take_the_offset_back(site: Site) -> None:
    for number in range(4):
        site.put(b"%d" % number, at_ms=number)
    await site.resend_all()
    assert (await site.resend_all(is_again=True, end_ms=1)).sent_count == 2
    assert site.broker.offsets[OFFSET] == 4
    assert (await site.resend_all()).sent_count == 0


async def test_the_first_of_several_failures_is_raised_and_all_are_waited_for(site: Site) -> None:
    for number in range(3):
        site.put(b"%d" % number)
    site.broker.script[RequestCode.SEND_MESSAGE_V2].extend([16, 13])
    with pytest.raises(BrokerError) as raised:
        await site.resend_all()
    assert raised.value.code == 16
    assert site.sent() == [b"2"]
    assert OFFSET not in site.broker.offsets


async def test_letters_are_chosen_by_topic_and_key_and_the_others_stay_for_a_later_call(site: Site) -> None:
    site.broker.add_topic("U", 1)
    for number, (topic, keys) in enumerate([("T", "a b"), ("U", "a"), ("T", "c"), ("T", "b")]):
        site.put(b"%d" % number, topic=topic, keys=keys)
    assert (await site.resend_all(original_topic="T", key="b")).sent_count == 2
    assert site.sent() == [b"0", b"3"]
    # Only what stands before the first that was passed over counts as dealt with.
    assert site.broker.offsets[OFFSET] == 1
    assert (await site.resend_all()).sent_count == 3
    assert site.sent() == [b"2", b"3"]
    assert site.broker.stored_bodies("U") == [b"1"]


async def test_a_replay_goes_on_behind_what_is_sent_when_a_broker_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_PULL_RECORDS", 2)
    for number in range(6):
        site.put(b"%d" % number)
    async with site.producer() as producer:
        replay = site.replay(producer)
        pieces = replay.run()
        await anext(pieces)
        assert (replay.total_count, replay.seen_count) == (6, 2)
        site.broker.script[RequestCode.SEND_MESSAGE_V2].append(16)
        with pytest.raises(BrokerError):
            await anext(pieces)
        # What the progress fails for is sent, and nothing of it comes again.
        site.broker.script[RequestCode.UPDATE_CONSUMER_OFFSET].append(1)
        with pytest.raises(BrokerError):
            _ = [piece async for piece in replay.run()]
        # What is given up meanwhile is for the next replay.
        site.put(b"new")
        assert [piece.sent_count async for piece in replay.run()] == [6]
        assert (replay.total_count, replay.seen_count) == (6, 6)
    # The second one of the piece that failed had arrived.
    assert site.sent() == [b"0", b"1", b"3", b"2", b"3", b"4", b"5"]
    assert site.broker.offsets[OFFSET] == 6


async def test_the_progress_of_the_last_piece_is_made_up_for(site: Site) -> None:
    site.put(b"only")
    async with site.producer() as producer:
        replay = site.replay(producer)
        site.broker.script[RequestCode.UPDATE_CONSUMER_OFFSET].append(1)
        with pytest.raises(BrokerError):
            _ = [piece async for piece in replay.run()]
        assert OFFSET not in site.broker.offsets
        assert [piece.sent_count async for piece in replay.run()] == [1]
    assert site.sent() == [b"only"]
    assert site.broker.offsets[OFFSET] == 1


async def test_a_rate_is_kept_in_small_pieces(site: Site) -> None:
    for number in range(21):
        site.put(b"%d" % number)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    async with site.producer() as producer:
        counts = [piece.sent_count async for piece in site.replay(producer, per_second=100).run()]
    # A tenth of a second each, and the last one waits for the two before it.
    assert counts == [10, 20, 21]
    assert loop.time() - begun_s >= 0.2


async def test_a_replay_that_waits_for_its_turn_is_stopped_at_once(site: Site) -> None:
    for number in range(3):
        site.put(b"%d" % number)
    async with site.producer() as producer:
        replay = site.replay(producer, per_second=0.001)
        pieces = replay.run()
        assert (await anext(pieces)).sent_count == 1
        asyncio.get_running_loop().call_soon(replay.stopping.set)
        assert [piece.sent_count async for piece in pieces] == [1]
    assert site.sent() == [b"0"]
    assert site.broker.offsets[OFFSET] == 1


async def test_so_many_ids_of_letters_that_are_left_are_kept(site: Site) -> None:
    for _ in range(LEFT_IDS_MAX + 1):
        site.put(b"no topic", topic="")
    resent = await site.resend_all()
    assert (resent.left_count, len(resent.left_message_ids)) == (LEFT_IDS_MAX + 1, LEFT_IDS_MAX)
