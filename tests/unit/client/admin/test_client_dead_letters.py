"""Dead letters that are sent again, against a fake broker: what is left out, where the next time goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fake_broker import FakeBroker, FakeRegistry

from iotmq.client.admin.dead_letters import DeadLetters, Resent, topic_of
from iotmq.client.client import IotmqClient
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.settings import ClientSettings, ProducerSettings
from iotmq.errors import BrokerError
from iotmq.message.properties import encode_properties
from iotmq.remoting.codes import RequestCode

DEAD = topic_of("g")
OFFSET = ("RESEND_g", DEAD, 0)
ZLIB_FLAG = 1


class Site:
    """A broker with the dead letters of group g, all of topic T."""

    def __init__(self, broker: FakeBroker, client: IotmqClient) -> None:
        self.broker = broker
        self._client = client

    def put(self, body: bytes, *, at_ms: int = 1, topic: str = "T", **fields: int) -> None:
        properties = encode_properties({"RETRY_TOPIC": topic} if topic else {})
        self.broker.store(DEAD, 0, body, properties, store_timestamp_ms=at_ms, **fields)

    async def resend_all(self, **options: object) -> Resent:
        settings = ProducerSettings(tries_max=1, batch_records_max=1)
        async with Producer(self._client, "pg", settings) as producer:
            dead = DeadLetters(self._client)
            steps = [step async for step in dead.resend_all("g", producer, **options)]
        return steps[-1]

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
    site.put(b"last")
    resent = await site.resend_all()
    assert (resent.sent_count, len(resent.left_message_ids)) == (2, 3)
    assert site.sent() == [b"first", b"last"]
    assert site.broker.offsets[OFFSET] == 5
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
