"""Pages of subscriptions beside a slow twin, and places in lists."""

from __future__ import annotations

import random

import pytest

from iotmq import limits
from iotmq.errors import RefusedError
from iotmq.mqtt.topics.topics import matches_subscription
from iotmq.ports.client_pages import (
    NUMBER_COLUMNS,
    ORDER_CHARACTERS,
    ClientFilter,
    SubscriptionOrder,
    SubscriptionPage,
    SubscriptionsQuestion,
    fits_pattern,
    name_order,
    subscription_facts,
)

Subscription = tuple[str, str, int]


def page(
    asked: SubscriptionsQuestion, all_of_them: list[Subscription], bytes_max: int = 1 << 20
) -> tuple[list[tuple[str, str]], SubscriptionOrder | None]:
    collected = SubscriptionPage(asked, matches_subscription)
    for client_id, topic_filter, options in all_of_them:
        if collected.may_have(client_id):
            collected.offer(client_id, topic_filter, options)
    answer = collected.answer(bytes_max)
    rows = [(row.client_id, row.topic_filter) for row in answer.rows]
    return rows, answer.orders[-1] if answer.has_more else None


def test_pages_are_what_sorting_everything_gives() -> None:
    chance = random.Random(5)
    long = "n" * ORDER_CHARACTERS
    clients = [f"{chance.choice(['', 'a/', long])}{number}" for number in range(60)]
    filters = ["a/#", "a/+", "$share/g/a/1", f"{long}/1", f"{long}/2"]
    held = [
        (client_id, topic_filter, chance.randrange(3))
        for client_id in clients
        for topic_filter in chance.sample(filters, chance.randrange(5))
    ]
    for wanted in ({}, {"client_id": "a/*"}, {"topic_filter": "*/1"}, {"topic": "a/1"}, {"topic": "x"}):
        expected = sorted(
            (
                (client_id, topic_filter)
                for client_id, topic_filter, _ in held
                if fits_pattern(wanted.get("client_id", "*"), client_id)
                and fits_pattern(wanted.get("topic_filter", "*"), topic_filter)
                and ("topic" not in wanted or matches_subscription(topic_filter, wanted["topic"]))
            ),
            key=lambda each: (*name_order(each[0]), *name_order(each[1])),
        )
        found: list[tuple[str, str]] = []
        behind: SubscriptionOrder | None = None
        while True:
            chance.shuffle(held)
            asked = SubscriptionsQuestion(limit=7, behind=behind, **wanted)
            rows, behind = page(asked, held)
            found += rows
            if behind is None:
                break
            assert len(rows) == 7
        assert found == expected, wanted


def test_an_answer_ends_where_its_bytes_do() -> None:
    longest = "f" * limits.MQTT_TOPIC_BYTES_MAX
    held = [(f"c{number}", longest, 0) for number in range(9)]
    rows, behind = page(SubscriptionsQuestion(), held, bytes_max=4 * (len(longest) + 300))
    assert [client_id for client_id, _ in rows] == ["c0", "c1", "c2", "c3"]
    assert behind == (*name_order("c3"), *name_order(longest))


def test_places_are_short_whatever_names_are() -> None:
    assert name_order("a" * ORDER_CHARACTERS) == ("a" * ORDER_CHARACTERS, 0)
    cut, number = name_order("\ud800" * (ORDER_CHARACTERS + 1))
    assert len(cut) == ORDER_CHARACTERS
    assert number > 0


def test_options_of_a_subscription_are_told() -> None:
    assert subscription_facts("f", 2 | 4 | 8 | 0x40 | 77 << 8) == {
        "topic_filter": "f",
        "qos": 2,
        "no_local": True,
        "retain_as_published": True,
        "identifier": 77,
        "is_exclusive": True,
    }


def test_bounds_are_of_columns_of_numbers() -> None:
    wanted = ClientFilter(least={"queued": 1}, most={"queued": 5, "version": 4})
    assert wanted.bounds() == [("version", None, 4), ("queued", 1, 5)]
    assert [name for name, _, _ in wanted.bounds()] == sorted(("queued", "version"), key=NUMBER_COLUMNS.index)
    with pytest.raises(RefusedError, match="'user' is no column of numbers"):
        ClientFilter(least={"user": 1}).bounds()
