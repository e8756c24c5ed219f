"""Prefixes of client ids: what counts where, and what brokers are told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from iotmq import limits
from iotmq.mqtt_front.connection.client_traffic import UNNAMED
from iotmq.mqtt_front.sessions.client_prefixes import ClientPrefixes
from iotmq.ports.sessions import ClientCounts, Refused


class Broker:
    """Takes what it is told, when a test says so."""

    def __init__(self) -> None:
        self.told: list[list[ClientCounts]] = []
        self.answer: Callable[[Refused | None], None] = lambda refused: None

    def take(self, counts: Sequence[ClientCounts], done: Callable[[Refused | None], None]) -> None:
        self.told.append(list(counts))
        self.answer = done


@pytest.mark.parametrize(
    ("ends", "client_id", "prefix"),
    [
        ("-_", "truck-1", "truck"),
        ("-_", "truck_1-2", "truck"),
        ("-_", "truck", ""),
        ("-_", "-truck", ""),
        ("", "truck-1", ""),
        ("]^\\", "a]b", "a"),
        ("]^\\", "a^b", "a"),
        ("-", "x" * 64 + "-1", "x" * 64),
        ("-", "x" * 65 + "-1", ""),
        ("-", "\u202e<b>-1", "\u202e<b>"),
    ],
)
def test_a_prefix_goes_up_to_the_first_end(ends: str, client_id: str, prefix: str) -> None:
    assert ClientPrefixes(ends, None).opened(client_id).prefix == prefix


def test_only_what_grew_is_told_and_prefixes_that_nobody_has_are_forgotten() -> None:
    broker = Broker()
    prefixes = ClientPrefixes("-", broker.take)
    first, second = prefixes.opened("a-1"), prefixes.opened("a-2")
    assert first is second
    prefixes.opened("b-1")
    prefixes.tell()
    assert broker.told == [[ClientCounts("a", 0, 0, 0, 0, 2), ClientCounts("b", 0, 0, 0, 0, 1)]]
    broker.answer(None)
    prefixes.closed(first)
    prefixes.tell()
    assert len(broker.told) == 1
    assert prefixes.opened("a-3") is first
    for _ in range(2):
        prefixes.closed(first)
    prefixes.tell()
    broker.answer(None)
    prefixes.tell()
    assert prefixes.opened("a-4") is not first
    prefixes.closed(UNNAMED)


def test_what_no_broker_took_is_told_again() -> None:
    broker = Broker()
    prefixes = ClientPrefixes("-", broker.take)
    prefixes.opened("a-1")
    prefixes.tell()
    broker.answer(Refused(14, "gone"))
    prefixes.opened("a-2")
    prefixes.tell()
    broker.answer(None)
    prefixes.tell()
    assert broker.told == [[ClientCounts("a", 0, 0, 0, 0, 1)], [ClientCounts("a", 0, 0, 0, 0, 2)]]
    assert {metric.name: metric.value for metric in prefixes.metrics()} == {
        "iotmq_mqtt_client_prefixes": 1,
        "iotmq_mqtt_client_counts_untold_total": 1,
    }


def test_it_is_told_every_ten_seconds_and_not_while_a_broker_has_not_answered() -> None:
    broker = Broker()
    prefixes = ClientPrefixes("-", broker.take)
    for now_s in range(100, 140):
        prefixes.opened("a-1")
        prefixes.tick(float(now_s))
        if now_s >= 125 and len(broker.told) == 1:
            broker.answer(None)
    assert [told[0].connections for told in broker.told] == [1, 26]


def test_so_many_prefixes_have_a_place() -> None:
    broker = Broker()
    prefixes = ClientPrefixes("-", broker.take)
    for number in range(limits.CLIENT_PREFIXES_MAX + 1):
        prefixes.opened(f"{number}-x")
    last = prefixes.opened("more-x")
    assert last.prefix == ""
    prefixes.tell()
    assert len(broker.told[0]) == limits.CLIENT_PREFIXES_MAX + 1
    assert broker.told[0][0] == ClientCounts("", 0, 0, 0, 0, 2)
