"""Which master a client uses, of those that registries name: the highest epoch, and nothing older."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq import limits
from iotmq.client.transport.masters import AWAITED_S, Master, Masters, parse_masters
from iotmq.client.transport.routes import MessageQueue, TopicRoute
from iotmq.errors import BrokerError

A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"


def route_to(**masters: str | None) -> TopicRoute:
    """A route with one queue of each broker; those without a master have another member."""
    queues = tuple(sorted(MessageQueue("T", name, 0) for name in masters))
    return TopicRoute(
        topic="T",
        readable=queues,
        writable=tuple(queue for queue in queues if masters[queue.broker_name] is not None),
        addresses={name: {1: "10.0.0.9:1"} if at is None else {0: at} for name, at in masters.items()},
    )


def used(
    masters: Masters, route: TopicRoute, before: TopicRoute | None = None, now_s: float = 0.0
) -> str | None:
    return masters.review(route, before, now_s=now_s).master("a")


def go(masters: Masters, now_s: float = 0.0) -> None:
    """Go to all that are later, as a client does that reaches each."""
    while later := masters.later(masters.names, now_s=now_s):
        masters.adopt(*later[0], now_s=now_s)


def in_use(masters: Masters, now_s: float = 0.0) -> str | None:
    go(masters, now_s)
    return masters.address("a")


def test_without_a_word_of_masters_the_route_counts() -> None:
    masters = Masters()
    assert used(masters, route_to(a=A)) == A
    assert used(masters, route_to(a=B)) == B
    assert masters.address("a") == B
    assert masters.address("b") is None
    assert not masters.are_told


def test_a_later_master_is_gone_to_and_only_for_names_in_use() -> None:
    masters = Masters()
    masters.review(route_to(a=A), None, now_s=0.0)
    masters.tell("one", {"a": Master(B, 2), "b": Master(C, 9)}, now_s=0.0)
    assert masters.later(masters.names, now_s=0.0) == [("a", Master(B, 2))]
    assert masters.address("a") == A, "until it is reached"
    assert in_use(masters) == B
    assert masters.names == ["a"]


def test_a_registry_that_is_behind_changes_nothing() -> None:
    masters = Masters()
    masters.review(route_to(a=A), None, now_s=0.0)
    masters.tell("stale", {"a": Master(A, 1)}, now_s=0.0)
    masters.tell("fresh", {"a": Master(B, 2)}, now_s=0.0)
    assert in_use(masters) == B
    masters.tell("stale", {"a": Master(A, 1)}, now_s=1.0)
    masters.tell("stale", {"a": Master(C, 1)}, now_s=2.0)
    assert in_use(masters) == B
    assert used(masters, route_to(a=A), now_s=3.0) == B
    # Neither when the fresh one restarts, and is empty, or is away for a while.
    masters.tell("fresh", {}, now_s=10.0)
    masters.withdraw("fresh", now_s=20.0)
    assert in_use(masters, 100.0) == B
    assert used(masters, route_to(a=A), now_s=100.0) == B
    assert masters.present("a", A) == B


def test_epochs_that_begin_anew_are_believed_after_a_while() -> None:
    masters = Masters()
    masters.review(route_to(a=A), None, now_s=0.0)
    masters.tell("one", {"a": Master(B, 7)}, now_s=0.0)
    assert in_use(masters) == B
    masters.tell("one", {"a": Master(C, 1)}, now_s=10.0)
    assert in_use(masters, 129.9) == B
    assert in_use(masters, 130.0) == C


def test_a_route_begun_at_a_stale_registry_is_corrected_by_what_is_known_already() -> None:
    masters = Masters()
    masters.tell("fresh", {"a": Master(B, 2)}, now_s=0.0)
    masters.tell("stale", {"a": Master(A, 1)}, now_s=0.0)
    assert used(masters, route_to(a=A)) == A, "until the other is reached"
    assert in_use(masters) == B
    assert used(masters, route_to(a=A)) == B


def test_a_master_that_only_a_former_answer_named_is_not_gone_to() -> None:
    masters = Masters()
    masters.review(route_to(a=A), None, now_s=0.0)
    masters.tell("one", {"a": Master(B, 2)}, now_s=0.0)
    masters.tell("one", {"a": Master(C, 3)}, now_s=0.0)
    assert not masters.is_later("a", Master(B, 2), now_s=0.0)
    masters.withdraw("one", now_s=0.0)
    assert masters.later(masters.names, now_s=0.0) == []


def test_a_higher_epoch_at_the_same_address_counts_at_once() -> None:
    masters = Masters()
    masters.review(route_to(a=A), None, now_s=0.0)
    masters.tell("one", {"a": Master(A, 3)}, now_s=0.0)
    masters.tell("two", {"a": Master(B, 2)}, now_s=0.0)
    assert in_use(masters) == A


def test_a_master_that_is_another_or_back_at_its_address_is_told() -> None:
    masters = Masters()
    masters.review(route_to(a=A, b=B), None, now_s=0.0)
    assert masters.tell("one", {"a": Master(A, 3), "b": Master(B, 0)}, now_s=0.0) == ([], [])
    assert masters.tell("one", {"a": Master(A, 3), "c": Master(C, 1)}, now_s=0.0) == ([], [])
    assert masters.tell("one", {"a": Master(A, 4), "b": Master(B, 0)}, now_s=0.0) == (["a"], ["b"])
    assert masters.tell("one", {}, now_s=0.0) == ([], [])
    assert masters.tell("one", {"a": Master(A, 3), "b": Master(C, 0)}, now_s=0.0) == ([], ["a"])
    # A registry that answers for the first time, or again, tells nothing new by that.
    assert masters.tell("two", {"a": Master(A, 4)}, now_s=0.0) == ([], [])
    masters.withdraw("two", now_s=0.0)
    assert masters.tell("two", {"a": Master(A, 4)}, now_s=0.0) == ([], [])


@pytest.mark.parametrize("epoch", [0, 4])
def test_of_equal_epochs_the_one_in_use_stays_while_a_registry_names_it(epoch: int) -> None:
    masters = Masters()
    masters.review(route_to(a=A), None, now_s=0.0)
    masters.tell("one", {"a": Master(A, epoch)}, now_s=0.0)
    masters.tell("two", {"a": Master(B, epoch)}, now_s=0.0)
    assert in_use(masters) == A
    masters.tell("one", {}, now_s=0.0)
    assert in_use(masters) == B


def test_without_epochs_what_a_registry_says_of_routes_counts() -> None:
    masters = Masters()
    masters.tell("one", {"a": Master(A, 0)}, now_s=0.0)
    assert used(masters, route_to(a=A)) == A
    assert used(masters, route_to(a=B)) == B
    assert masters.present("a", C) == C


def test_operators_are_led_to_the_latest_master_of_a_name_that_is_not_in_use() -> None:
    masters = Masters()
    masters.tell("one", {"a": Master(A, 1)}, now_s=0.0)
    masters.tell("two", {"a": Master(B, 2)}, now_s=0.0)
    assert masters.present("a", A) == B
    assert masters.present("b", C) == C


# Queues without a master


def replicated(now_s: float = 0.0) -> tuple[Masters, TopicRoute]:
    """A name with a master that a registry does not name any more, since `now_s`."""
    masters = Masters()
    before = route_to(a=A, b=B)
    masters.tell("one", {"a": Master(A, 3), "b": Master(B, 3)}, now_s=now_s)
    masters.review(before, None, now_s=now_s)
    masters.tell("one", {"b": Master(B, 3)}, now_s=now_s)
    return masters, before


@pytest.mark.parametrize("without", [route_to(b=B), route_to(a=None, b=B)], ids=["gone", "followers only"])
def test_queues_of_a_replicated_broker_stay_while_its_master_is_awaited(without: TopicRoute) -> None:
    masters, before = replicated(10.0)
    held = masters.review(without, before, now_s=10.0 + AWAITED_S - 0.1)
    assert held.writable == held.readable == before.writable
    assert held.master("a") == A
    given_up = masters.review(without, held, now_s=10.0 + AWAITED_S)
    assert given_up == without


def test_queues_that_the_master_does_not_have_any_more_go_at_once() -> None:
    masters, before = replicated()
    masters.tell("one", {"a": Master(A, 3), "b": Master(B, 3)}, now_s=0.0)
    assert masters.review(route_to(b=B), before, now_s=0.0) == route_to(b=B)


def test_queues_of_a_broker_without_replication_go_at_once() -> None:
    masters = Masters()
    before = route_to(a=A, b=B)
    masters.tell("one", {"a": Master(A, 0), "b": Master(B, 0)}, now_s=0.0)
    masters.review(before, None, now_s=0.0)
    masters.tell("one", {"b": Master(B, 0)}, now_s=0.0)
    assert masters.review(route_to(b=B), before, now_s=0.0) == route_to(b=B)


def test_queues_stay_while_another_registry_names_the_master() -> None:
    masters, before = replicated()
    masters.tell("two", {"a": Master(A, 3), "b": Master(B, 3)}, now_s=0.0)
    held = masters.review(route_to(b=B), before, now_s=AWAITED_S * 2)
    assert held.writable == before.writable


# Limits


def test_so_many_names_are_followed_and_no_more() -> None:
    masters = Masters(names_max=2)
    for name in ("a", "b", "a", "c"):
        masters.review(route_to(**{name: A}), None, now_s=0.0)
    assert masters.names == ["a", "c"], "the one that was in no route for longest goes"


def answer(masters: object, version: object = "v") -> bytes:
    return json.dumps({"version": version, "masters": masters}).encode()


def test_an_answer_is_read() -> None:
    body = answer({"a": {"address": A, "epoch": limits.EPOCH_MAX, "more": 1}})
    assert parse_masters(body) == ("v", {"a": Master(A, limits.EPOCH_MAX)})
    longest = "v" * limits.MASTERS_VERSION_CHARACTERS_MAX
    assert parse_masters(answer({}, longest)) == (longest, {})
    many = {f"b{number}": {"address": A, "epoch": 0} for number in range(limits.BROKERS_MAX)}
    assert len(parse_masters(answer(many))[1]) == limits.BROKERS_MAX


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff{",
        b"[]",
        answer([]),
        answer({}, 7),
        answer({}, "v" * (limits.MASTERS_VERSION_CHARACTERS_MAX + 1)),
        answer({"a": {"address": A}}),
        answer({"a": {"address": A, "epoch": -1}}),
        answer({"a": {"address": A, "epoch": limits.EPOCH_MAX + 1}}),
        answer({"a": {"address": A, "epoch": "1"}}),
        answer({"a": {"address": "nowhere", "epoch": 1}}),
        answer({"a": {"address": "10.0.0.1:65536", "epoch": 1}}),
        answer({f"b{n}": {"address": A, "epoch": 0} for n in range(limits.BROKERS_MAX + 1)}),
    ],
)
def test_an_answer_that_is_none_is_refused_whole(body: bytes) -> None:
    with pytest.raises(BrokerError, match="list of masters"):
        parse_masters(body)


addresses = st.sampled_from([A, B, C])
steps = st.one_of(
    st.tuples(
        st.just("tell"),
        st.sampled_from(["one", "two"]),
        st.one_of(st.none(), st.builds(Master, addresses, st.integers(0, 3))),
    ),
    st.tuples(st.just("withdraw"), st.sampled_from(["one", "two"])),
    st.tuples(st.just("route"), addresses),
)


@given(st.lists(steps, max_size=30))
def test_the_epoch_in_use_never_goes_back_within_two_minutes(events: list[tuple[object, ...]]) -> None:
    masters = Masters()
    epoch = 0
    for event in events:
        match event:
            case ("tell", str() as registry, told):
                masters.tell(registry, {} if told is None else {"a": told}, now_s=0.0)  # type: ignore[dict-item]
            case ("withdraw", str() as registry):
                masters.withdraw(registry, now_s=0.0)
            case ("route", str() as address):
                masters.review(route_to(a=address), None, now_s=0.0)
        go(masters)
        followed = masters._followed.get("a")
        if followed is not None:
            assert followed.master.epoch >= epoch
            epoch = followed.master.epoch
            told_epochs = [said["a"].epoch for said in masters._said.values() if "a" in said]
            assert epoch >= max(told_epochs, default=0)
