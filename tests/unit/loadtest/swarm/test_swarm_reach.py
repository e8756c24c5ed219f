"""Who hears whom, as far as topics and filters tell, and names that cannot be."""

from __future__ import annotations

import pytest

from loadtest.swarm import Plan, SwarmError
from loadtest.swarm.plan import check_plan
from loadtest.swarm.reach import check_heard, deliveries_of, shares_one_group


@pytest.mark.parametrize(
    ("plan", "deliveries"),
    [
        (Plan(publishers=3), 0),
        (Plan(subscribers=3), 0),
        (Plan(publishers=3, subscribers=2), 2),
        (Plan(publishers=3, subscribers=3, filter="d/%i"), 1),
        (Plan(publishers=3, subscribers=4, filter="d/{n}"), 1),
        # Publisher 2 has nobody who hears it.
        (Plan(publishers=3, subscribers=2, filter="d/{n}"), None),
        (Plan(publishers=3, subscribers=3, filter="$share/g/d/+"), 1),
        (Plan(publishers=3, subscribers=3, filter="$share/g%i/d/+"), 3),
        (Plan(publishers=3, subscribers=3, filter="$share/g%i/d/%i"), 1),
        (Plan(publishers=1, subscribers=3, topics_per_publisher=3, topic="d/{n}", filter="d/{n}"), 1),
        (Plan(publishers=1, subscribers=2, topics_per_publisher=3, topic="d/{n}", filter="d/{n}"), None),
        (Plan(publishers=3, subscribers=3, deliveries_per_message=9), 9),
    ],
)
def test_topics_and_filters_tell_how_many_get_a_message(plan: Plan, deliveries: int | None) -> None:
    assert deliveries_of(plan) == deliveries


@pytest.mark.parametrize(
    ("topic_filter", "is_one"),
    [("$share/g/+", True), ("$share/g%i/+", False), ("$share/g/%i", False), ("d/+", False)],
)
def test_a_group_is_the_same_for_all_or_not(topic_filter: str, is_one: bool) -> None:
    assert shares_one_group(Plan(subscribers=2, filter=topic_filter)) is is_one
    assert not shares_one_group(Plan(subscribers=1, filter=topic_filter))
    assert not shares_one_group(Plan(idle=1, filter=topic_filter))


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (Plan(publishers=2, client_id="same"), "gives two devices the id 'same'"),
        (Plan(publishers=1, subscribers=1, client_id="d%i"), "gives two devices the id 'd0'"),
        (Plan(publishers=8, idle=3, idle_base=7, client_id="d%i"), "gives two devices the id 'd7'"),
        (Plan(publishers=1, topic="a/+/b"), "topic 'a/\\+/b': topic name has a wildcard"),
        (Plan(publishers=1, topic=""), "topic name is empty"),
        (Plan(subscribers=1, will_topic="#"), "will_topic '#'"),
        (Plan(subscribers=1, filter="a/b#"), "filter 'a/b#': topic filter has a misplaced wildcard"),
        (Plan(subscribers=1, filter=""), "topic filter is empty"),
        (Plan(subscribers=1, filter="$share/g"), "filter '\\$share/g': a shared subscription is"),
    ],
)
def test_names_that_cannot_be_are_refused(plan: Plan, problem: str) -> None:
    with pytest.raises(SwarmError, match=problem):
        check_plan(plan)


def test_kinds_with_numbers_of_their_own_need_no_name_of_the_kind() -> None:
    check_plan(Plan(publishers=3, subscribers=3, subscriber_base=3, client_id="d%i"))


def test_subscribers_that_hear_nobody_are_refused_unless_that_is_meant() -> None:
    plan = Plan(publishers=2, subscribers=1, topic="a/{n}", filter="b/+")
    with pytest.raises(SwarmError, match="'b/\\+' matches no topic of the publishers, such as 'a/0'"):
        check_heard(plan)
    for meant in (
        Plan(publishers=2, subscribers=1, topic="a/{n}", filter="b/+", deliveries_per_message=0),
        Plan(publishers=2, subscribers=1, topic="a/{n}", filter="$share/g/a/1"),
        Plan(publishers=2, subscribers=4, topics_per_publisher=2, topic="a/{n}", filter="a/{n}"),
        Plan(publishers=2, subscribers=1, topic="a/%c/%s", filter="a/+/+"),
        Plan(subscribers=1, filter="b/+"),
    ):
        check_heard(meant)
