"""Live groups: heartbeats in every client's form, members, subscriptions, expiry and lost connections."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.filters.subscription import decode_heartbeat
from iotmq.broker.members.groups import CopiedConsumer, Groups
from iotmq.errors import RequestError


class FakeConnection:
    pass


def beat(client_id: str = "c1", group: str = "g", subscriptions: list[dict[str, Any]] | None = None) -> bytes:
    return json.dumps(
        {
            "clientID": client_id,
            "producerDataSet": [{"groupName": "p"}],
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "unitMode": False,
                    "subscriptionDataSet": subscriptions
                    or [{"topic": "T", "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": []}],
                }
            ],
        }
    ).encode()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def groups(clock: ManualClock) -> Groups:
    return Groups(clock, expiry_s=120)


def register(groups: Groups, connection: FakeConnection, body: bytes) -> list[str]:
    changed = groups.heartbeat(connection, decode_heartbeat(body))  # type: ignore[arg-type]
    groups.check_invariants()
    return changed


def goodbye(
    groups: Groups, connection: FakeConnection, *, producer: str | None = None, consumer: str | None = None
) -> list[str]:
    changed = groups.unregister(
        connection,  # type: ignore[arg-type]
        "c1",
        producer_group=producer,
        consumer_group=consumer,
    )
    groups.check_invariants()
    return changed


def members(groups: Groups, name: str) -> list[str]:
    group = groups.consumer_group(name)
    return [] if group is None else list(group.members)


def test_a_first_heartbeat_registers_and_later_ones_change_nothing(groups: Groups) -> None:
    connection = FakeConnection()
    assert register(groups, connection, beat()) == ["g"]
    assert register(groups, connection, beat()) == []
    assert members(groups, "g") == ["c1"]
    assert [member.client_id for member in groups.producers("p")] == ["c1"]


def test_every_new_member_is_a_change(groups: Groups) -> None:
    assert register(groups, FakeConnection(), beat("c1")) == ["g"]
    assert register(groups, FakeConnection(), beat("c2")) == ["g"]
    assert members(groups, "g") == ["c1", "c2"]


def test_a_client_on_a_new_connection_replaces_itself(groups: Groups) -> None:
    old, new = FakeConnection(), FakeConnection()
    register(groups, old, beat())
    assert register(groups, new, beat()) == ["g"]
    assert groups.connection_lost(old) == []  # type: ignore[arg-type]
    assert members(groups, "g") == ["c1"]
    assert groups.connection_lost(new) == ["g"]  # type: ignore[arg-type]
    assert members(groups, "g") == []
    assert groups.producers("p") == []


def test_subscriptions_change_with_topics_and_newer_expressions(groups: Groups) -> None:
    connection = FakeConnection()
    register(groups, connection, beat())
    newer = [{"topic": "T", "subString": "TagA", "subVersion": 2}]
    older = [{"topic": "T", "subString": "TagB", "subVersion": 1}]
    assert register(groups, connection, beat(subscriptions=newer)) == ["g"]
    assert register(groups, connection, beat(subscriptions=older)) == []
    two = [*newer, {"topic": "U", "subString": "*", "subVersion": 1}]
    assert register(groups, connection, beat(subscriptions=two)) == ["g"]
    assert register(groups, connection, beat(subscriptions=newer)) == ["g"]
    group = groups.consumer_group("g")
    assert group is not None
    assert [s.expression for s in group.subscriptions.values()] == ["TagA"]


def test_the_cpp_clients_heartbeat_is_understood(groups: Groups) -> None:
    body = (
        b'{"clientID":"10.0.0.1@1","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"g",'
        b'"messageModel":1,"subscriptionDataSet":[{"subString":"TagA||TagB","subVersion":"1700000000000",'
        b'"topic":"T"}]}],"producerDataSet":[]}\n'
    )
    assert register(groups, FakeConnection(), body) == ["g"]
    group = groups.consumer_group("g")
    assert group is not None
    assert (group.consume_type, group.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert group.consume_from_where == "CONSUME_FROM_LAST_OFFSET"
    assert group.subscriptions["T"].sub_version == 1_700_000_000_000


def test_missing_sets_are_understood(groups: Groups) -> None:
    assert register(groups, FakeConnection(), b'{"clientID":"c"}') == []
    assert register(groups, FakeConnection(), b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}') == [
        "g"
    ]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "JSON"),
        (b"{", "JSON"),
        (b"[]", "body"),
        (b"{}", "clientID"),
        (b'{"clientID":""}', "clientID"),
        (b'{"clientID":"c","consumerDataSet":[{}]}', "groupName"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"a b"}]}', "group"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":7}]}', "messageModel"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"X"}]}', "consumeType"),
        (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
            b'[{"topic":"T","subString":"||"}]}]}',
            "names no tag",
        ),
    ],
)
def test_bad_heartbeats_name_what_is_wrong_and_change_nothing(groups: Groups, body: bytes, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        register(groups, FakeConnection(), body)
    assert groups.consumer_groups() == []


def test_client_id_and_group_have_maxima(groups: Groups) -> None:
    connection = FakeConnection()
    register(groups, connection, beat("c" * limits.CLIENT_ID_BYTES_MAX, "g" * limits.GROUP_BYTES_MAX))
    with pytest.raises(RequestError, match="clientID"):
        register(groups, connection, beat("c" * (limits.CLIENT_ID_BYTES_MAX + 1)))
    with pytest.raises(RequestError, match="group"):
        register(groups, connection, beat(group="g" * (limits.GROUP_BYTES_MAX + 1)))


@pytest.mark.parametrize("over", [0, 1])
def test_a_heartbeat_has_at_most_so_many_groups_and_subscriptions(clock: ManualClock, over: int) -> None:
    names = [{"groupName": f"g{number}"} for number in range(limits.HEARTBEAT_GROUPS_MAX + over)]
    topics = [{"topic": f"t{number}"} for number in range(limits.HEARTBEAT_SUBSCRIPTIONS_MAX + over)]
    for data in (
        {"producerDataSet": names},
        {"consumerDataSet": names},
        {"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": topics}]},
    ):
        groups = Groups(clock, expiry_s=120)
        body = json.dumps({"clientID": "c", **data}).encode()
        if over:
            with pytest.raises(RequestError, match="1024"):
                register(groups, FakeConnection(), body)
        else:
            register(groups, FakeConnection(), body)


@pytest.mark.parametrize("over", [0, 1])
def test_a_heartbeat_has_at_most_so_many_subscriptions_and_bytes_in_all(over: int) -> None:
    each = limits.HEARTBEAT_SUBSCRIPTIONS_MAX
    counts = [each] * (limits.HEARTBEAT_SUBSCRIPTIONS_TOTAL_MAX // each) + [over]
    consumers = [
        {"groupName": f"g{number}", "subscriptionDataSet": [{"topic": "t"}] * count}
        for number, count in enumerate(counts)
    ]
    many = json.dumps({"clientID": "c", "consumerDataSet": consumers}).encode()
    few = json.dumps({"clientID": "c"}).encode()
    large = few + b" " * (limits.HEARTBEAT_BYTES_MAX + over - len(few))
    for body in (many, large, [large[:100], memoryview(large)[100:]]):
        if over:
            with pytest.raises(RequestError, match="a heartbeat has at most"):
                decode_heartbeat(body)
        else:
            assert decode_heartbeat(body).client_id == "c"


def test_one_connection_cannot_register_without_end(clock: ManualClock) -> None:
    groups = Groups(clock, expiry_s=120, clients_per_connection_max=2)
    connection = FakeConnection()
    register(groups, connection, beat("c1"))
    register(groups, connection, beat("c2"))
    register(groups, connection, beat("c2"))
    with pytest.raises(RequestError, match="more than 2 clients"):
        register(groups, connection, beat("c3"))
    register(groups, FakeConnection(), beat("c3"))
    assert members(groups, "g") == ["c1", "c2", "c3"]


def test_goodbye_removes_what_it_names(groups: Groups) -> None:
    connection = FakeConnection()
    register(groups, connection, beat())
    assert goodbye(groups, connection, producer="p") == []
    assert groups.producers("p") == []
    assert goodbye(groups, connection, consumer="g") == ["g"]
    assert goodbye(groups, connection, consumer="g") == []
    assert groups.consumer_group("g") is None


def test_a_goodbye_over_another_connection_removes_nobody(groups: Groups) -> None:
    former, fresh = FakeConnection(), FakeConnection()
    register(groups, former, beat())
    register(groups, fresh, beat())
    for other in (former, FakeConnection()):
        assert goodbye(groups, other, producer="p", consumer="g") == []
        assert members(groups, "g") == ["c1"]
        assert [member.connection for member in groups.producers("p")] == [fresh]
    assert goodbye(groups, fresh, producer="p", consumer="g") == ["g"]


def test_silent_members_expire_after_the_expiry_and_not_before(groups: Groups, clock: ManualClock) -> None:
    quiet, lively = FakeConnection(), FakeConnection()
    register(groups, quiet, beat("quiet"))
    register(groups, lively, beat("lively"))
    clock.advance(100)
    register(groups, lively, beat("lively"))
    clock.advance(20)
    assert groups.expire() == []
    clock.advance(0.5)
    assert groups.expire() == ["g"]
    assert members(groups, "g") == ["lively"]
    assert groups.connection_lost(quiet) == []  # type: ignore[arg-type]


def test_everybody_is_listed_once(groups: Groups) -> None:
    first, second = FakeConnection(), FakeConnection()
    register(groups, first, beat("c1"))
    register(groups, first, beat("c1", group="h"))
    register(groups, second, beat("c2"))
    assert groups.client_ids() == {"c1", "c2"}
    ((name, producers),) = groups.producer_groups()
    assert (name, sorted(producers)) == ("p", ["c1", "c2"])
    assert [member.client_id for member in groups.producers("p")] == ["c1", "c2"]
    groups.connection_lost(first)  # type: ignore[arg-type]
    assert groups.client_ids() == {"c2"}
    assert [member.client_id for member in groups.producers("p")] == ["c2"]
    groups.connection_lost(second)  # type: ignore[arg-type]
    assert (groups.client_ids(), groups.producer_groups()) == (set(), [])


def copied(groups: Groups) -> list[CopiedConsumer]:
    """All consumers as they arrive at a follower."""
    return msgspec.msgpack.decode(
        msgspec.msgpack.encode(list(groups.copied_entries())), type=list[CopiedConsumer]
    )


def test_the_next_master_has_the_consumers_of_the_former_one(groups: Groups, clock: ManualClock) -> None:
    subscriptions = [{"topic": "T", "subString": "a || b", "subVersion": 7}]
    for client_id in ("c1", "c2"):
        register(groups, FakeConnection(), beat(client_id, subscriptions=subscriptions))
    follower = Groups(clock, expiry_s=120)
    copy = follower.new_copy()
    follower.apply(copied(groups), copy)
    follower.replace(copy)
    assert members(follower, "g") == []
    stands_for_all = FakeConnection()
    follower.restore(stands_for_all)  # type: ignore[arg-type]
    follower.check_invariants()
    group, before = follower.consumer_group("g"), groups.consumer_group("g")
    assert group is not None
    assert before is not None
    assert list(group.members) == ["c1", "c2"]
    assert group.subscriptions == before.subscriptions
    assert (group.consume_type, group.message_model, group.consume_from_where) == (
        before.consume_type,
        before.message_model,
        before.consume_from_where,
    )
    # One sends its heartbeat in time; two later it would have been too late.
    clock.advance(59)
    assert follower.expire() == []
    own = FakeConnection()
    assert register(follower, own, beat("c1", subscriptions=subscriptions)) == ["g"]
    assert group.members["c1"].connection is own  # type: ignore[comparison-overlap]
    clock.advance(2)
    assert follower.expire() == ["g"]
    assert members(follower, "g") == ["c1"]
    # What was copied is restored once.
    assert follower.restore(stands_for_all) == []  # type: ignore[arg-type]


def test_followers_hear_of_heartbeats_and_of_those_that_leave(groups: Groups, clock: ManualClock) -> None:
    follower = Groups(clock, expiry_s=120)
    connection = FakeConnection()
    register(groups, connection, beat())
    assert groups.changed.take() == set()
    groups.changed.track()
    follower.apply(copied(groups), None)
    # The same filter with a newer version, by which the client pulls from then on.
    newer = [{"topic": "T", "subString": "*", "subVersion": 2}]
    assert register(groups, connection, beat(subscriptions=newer)) == []
    keys = groups.changed.take()
    assert keys is not None
    # What changes is the group's.
    assert keys == {("g", "")}
    follower.apply(list(groups.entries_of(keys)), None)
    goodbye(groups, connection, consumer="g")
    keys = groups.changed.take()
    assert keys is not None
    assert keys == {("g", "c1"), ("g", "")}
    left = list(groups.entries_of(keys))
    assert [consumer.is_there for consumer in left] == [False, False]
    (kept,) = follower.restore(FakeConnection())  # type: ignore[arg-type]
    assert kept.subscriptions["T"].sub_version == 2
    other = Groups(clock, expiry_s=120)
    other.apply([*left, *copied(groups)], None)
    assert other.restore(FakeConnection()) == []  # type: ignore[arg-type]


def test_what_was_heard_last_of_a_group_is_what_the_next_master_knows_of_it(
    groups: Groups, clock: ManualClock
) -> None:
    """Else a member that came a moment ago pulls with a subscription that is newer than the group's."""

    def subscribed(version: int, *topics: str) -> list[dict[str, Any]]:
        return [{"topic": topic, "subString": "*", "subVersion": version} for topic in topics]

    follower = Groups(clock, expiry_s=120)
    groups.changed.track()
    for client_id, subscriptions in [("c1", subscribed(1, "T")), ("c2", subscribed(5, "T", "U"))]:
        register(groups, FakeConnection(), beat(client_id, subscriptions=subscriptions))
        follower.apply(list(groups.entries_of(groups.changed.take() or set())), None)
    (group,) = follower.restore(FakeConnection())  # type: ignore[arg-type]
    assert {name: data.sub_version for name, data in group.subscriptions.items()} == {"T": 5, "U": 5}
    # One that was known before, and says something new, is the latest as well.
    follower = Groups(clock, expiry_s=120)
    follower.apply(copied(groups), None)
    register(groups, FakeConnection(), beat("c1", subscriptions=subscribed(9, "T")))
    follower.apply(list(groups.entries_of(groups.changed.take() or set())), None)
    (group,) = follower.restore(FakeConnection())  # type: ignore[arg-type]
    assert {name: data.sub_version for name, data in group.subscriptions.items()} == {"T": 9}


def test_what_a_group_has_is_sent_once_and_not_with_each_of_its_members(groups: Groups) -> None:
    """One connection brings a thousand members, and their group has up to a mebibyte of subscriptions."""
    groups.changed.track()
    connection = FakeConnection()
    count = limits.CLIENTS_PER_CONNECTION_MAX
    for number in range(count):
        register(groups, connection, beat(f"c{number}"))
    wide = [{"topic": "T", "subString": " || ".join(f"tag{number}" for number in range(5_000))}]
    body = beat("c0", subscriptions=wide)
    register(groups, connection, body)
    changed = list(groups.entries_of(groups.changed.take() or set()))
    assert len(changed) == count + 1
    for entries in (changed, list(groups.copied_entries())):
        assert len(msgspec.msgpack.encode(entries)) < len(body) + count * 100


def test_consumers_past_the_maximum_are_not_known_to_the_next_master(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master has no such maximum: a follower that refused its table could not follow any more."""
    monkeypatch.setattr(limits, "COPIED_CONSUMERS_MAX", 3)
    follower = Groups(clock, expiry_s=120)
    copy = follower.new_copy()

    def come(*client_ids: str) -> list[CopiedConsumer]:
        return [CopiedConsumer(("g", client_id), True) for client_id in client_ids]

    for table in (copy, None):
        follower.apply(come("", "a", "b"), table)
        follower.apply([CopiedConsumer(("g", "b"), True, 7), CopiedConsumer(("g", "x"), False)], table)
        follower.apply(come("c"), table)
        follower.apply([CopiedConsumer(("g", "a"), False), *come("d", "e")], table)
    for _ in range(2):
        (group,) = follower.restore(FakeConnection())  # type: ignore[arg-type]
        assert list(group.members) == ["b", "d"]
        assert group.members["b"].language == 7
        follower = Groups(clock, expiry_s=120)
        follower.replace(copy)


@pytest.mark.parametrize("over", [0, 1])
def test_past_so_many_changes_all_consumers_are_sent_again(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    monkeypatch.setattr(limits, "CHANGED_CONSUMERS_MAX", 2)
    groups = Groups(clock, expiry_s=120)
    groups.changed.track()
    keys = [("g", ""), *(("g", f"c{number}") for number in range(1 + over))]
    for _, client_id in keys[1:]:
        register(groups, FakeConnection(), beat(client_id))
    assert groups.changed.take() == (None if over else set(keys))
