"""Pages of what waits for a client at several brokers, of which one is away for a page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec

from iotmq.client.admin.devices.clients import ClientAdmin
from iotmq.client.admin.inspections import Answers
from iotmq.client.client import IotmqClient
from iotmq.errors import RequestTimeoutError
from iotmq.ports.client_pages import QueueAnswer, QueueQuestion


class Brokers:
    """Have 100 positions each, and answer with fifty at a time."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.asked: dict[str, int] = {}

    async def ask_all_brokers(self, _name: str, question: Any) -> Answers:
        self.asked = {}
        answers: dict[str, bytes] = {}
        failures: dict[str, Exception] = {}
        for broker in ("a", "b"):
            body = question(broker)
            if body is None:
                continue
            position = self.asked[broker] = msgspec.msgpack.decode(body, type=QueueQuestion).position
            if broker in self.away:
                failures[broker] = RequestTimeoutError("no answer")
                continue
            found = QueueAnswer(
                records=[], left_out=0, next_position=position + 50, is_end=position >= 50, behind=0
            )
            answers[broker] = msgspec.msgpack.encode(found)
        return Answers(answers, failures)


async def test_a_broker_that_is_away_for_a_page_is_asked_for_its_rest_by_the_next() -> None:
    brokers = Brokers()
    admin = ClientAdmin(cast(IotmqClient, SimpleNamespace()))
    admin._inspections = cast(Any, brokers)

    async def next_page(cursor: str) -> str | None:
        page = await admin.queue("c", "q/#", cursor=cursor)
        assert page is not None
        assert page.problems.keys() == brokers.away
        return page.next_cursor

    first = await next_page("")
    brokers.away = {"b"}
    second = await next_page(first or "")
    assert brokers.asked == {"a": 50, "b": 50}
    brokers.away = set()
    assert await next_page(second or "") is None
    assert brokers.asked == {"b": 50}
