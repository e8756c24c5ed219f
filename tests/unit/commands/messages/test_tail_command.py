"""`iotmq tail` against fake brokers."""

from __future__ import annotations

import asyncio
import io
from contextlib import asynccontextmanager

import pytest
from eventually import until
from fake_broker import FakeBroker, FakeRegistry

from iotmq.client.transport.settings import ClientSettings
from iotmq.commands.messages.tail import LAST_MAX, tail
from iotmq.message.properties import encode_properties
from iotmq.remoting.codes import RequestCode


def broker_with(count: int, queues: int = 2) -> FakeBroker:
    broker = FakeBroker()
    broker.add_topic("T", queues)
    for number in range(count):
        broker.store("T", number % queues, b"%d" % number, store_timestamp_ms=1_000 + number)
    return broker


@asynccontextmanager
async def settings_of(broker: FakeBroker):
    registry = FakeRegistry(broker)
    await broker.start()
    await registry.start()
    try:
        yield ClientSettings(
            registries=(registry.address,), missing_route_refresh_ms=50, request_timeout_ms=1_000
        )
    finally:
        await broker.stop()
        await registry.stop()


async def tailed(broker: FakeBroker, **options) -> list[bytes]:
    output = io.BytesIO()
    options = {"output_format": "raw", "topics": ["T"]} | options
    async with settings_of(broker) as settings, asyncio.timeout(30):
        await tail(settings, output=output, **options)
    return output.getvalue().splitlines()


async def test_the_last_messages_of_all_queues_come_in_the_order_of_their_time() -> None:
    broker = broker_with(21)
    assert await tailed(broker, last=5, count_max=5) == [b"16", b"17", b"18", b"19", b"20"]
    assert await tailed(broker_with(3), last=LAST_MAX, count_max=3) == [b"0", b"1", b"2"]
    assert broker.offsets == {}


async def test_what_comes_follows() -> None:
    broker = broker_with(4)
    output = io.BytesIO()
    async with settings_of(broker) as settings:
        running = asyncio.ensure_future(
            tail(settings, ["T", "later"], output, last=1, output_format="raw")
        )
        await until(lambda: output.getvalue() == b"3\n")
        broker.store("T", 0, b"new")
        await until(lambda: output.getvalue() == b"3\nnew\n")
        broker.add_topic("later", 1)
        await until(lambda: any(held[1].ext["topic"] == "later" for held in broker.held))
        broker.store("later", 0, b"of another topic")
        await until(lambda: output.getvalue().endswith(b"of another topic\n"))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_nothing_of_the_past_is_shown_where_none_is_asked_for() -> None:
    broker = broker_with(4)
    output = io.BytesIO()
    async with settings_of(broker) as settings:
        running = asyncio.ensure_future(
            tail(settings, ["T"], output, count_max=1, output_format="raw")
        )
        # It knows the ends of both queues.
        await until(lambda: len(broker.seen(RequestCode.GET_MAX_OFFSET)) == 2)
        broker.store("T", 0, b"new")
        assert await running == 0
    assert output.getvalue() == b"new\n"


async def test_tags_select() -> None:
    broker = broker_with(0, 1)
    for number in range(10):
        tags = encode_properties({"TAGS": "odd" if number % 2 else "even"})
        broker.store("T", 0, b"%d" % number, tags)
    assert await tailed(broker, last=10, tags="odd", count_max=5) == [b"1", b"3", b"5", b"7", b"9"]


async def test_the_brokers_are_asked_for_a_sample() -> None:
    for tags, expression in (
        ("*", "SAMPLE(2.5)"),
        ("it's || a", "SAMPLE(2.5) AND TAGS IN ('a', 'it''s')"),
    ):
        broker = broker_with(1, 1)
        assert await tailed(broker, last=1, tags=tags, percent=2.5, count_max=1) == [b"0"]
        pull = broker.seen(RequestCode.PULL_MESSAGE)[0]
        assert (pull.ext["expressionType"], pull.ext["subscription"]) == ("SQL92", expression)
