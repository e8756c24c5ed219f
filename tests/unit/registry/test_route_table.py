"""The route table: places, leases and topics, with time as an argument."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loop_turns import turn_s_max

from iotmq import limits
from iotmq.cycles import short_collections
from iotmq.errors import RequestError
from iotmq.registry.routes import (
    BrokerIdentity,
    DataVersion,
    Master,
    MasterAddress,
    RouteTable,
    TopicQueues,
)

QUEUES = TopicQueues(4, 4, 6)
A_MASTER = BrokerIdentity("C", "a", "10.0.0.1:10911", 0)
A_SLAVE = BrokerIdentity("C", "a", "10.0.0.2:10911", 1)
B_MASTER = BrokerIdentity("C", "b", "10.0.0.3:10911", 0)
D_MASTER = BrokerIdentity("D", "d", "10.0.0.4:10911", 0)


@pytest.fixture
def table() -> Iterator[RouteTable]:
    table = RouteTable()
    yield table
    assert table.check() == []


def register(
    table: RouteTable,
    identity: BrokerIdentity,
    *topics: str,
    version: int = 1,
    channel: object = None,
    now_s: float = 0.0,
    queues: TopicQueues = QUEUES,
    epoch: int = 0,
    is_whole: bool = True,
) -> MasterAddress:
    return table.register(
        identity,
        ha_address=identity.address.replace("10911", "10912"),
        data_version=DataVersion(version, 0, epoch),
        topics=dict.fromkeys(topics, queues),
        is_whole=is_whole,
        channel=identity.address if channel is None else channel,  # type: ignore[arg-type]
        now_s=now_s,
    )


def names(
    table: RouteTable, cluster: str | None = None, *, with_away: bool = False, mask: int = 0, flags: int = 0
) -> list[str]:
    """All steps of a list of topics, sorted."""
    steps = table.topics(cluster, with_away=with_away, mask=mask, flags=flags)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return sorted(end.value)


def addresses(table: RouteTable, topic: str) -> dict[str, dict[int, str]]:
    route = table.route(topic)
    return {} if route is None else {group.name: dict(group.addresses) for group in route.brokers}


def test_a_registered_topic_has_a_route(table: RouteTable) -> None:
    register(table, B_MASTER, "T", "only-b", queues=TopicQueues(8, 2, 4, 1))
    register(table, A_MASTER, "T")
    route = table.route("T")
    assert route is not None
    assert route.queues == [("a", QUEUES), ("b", TopicQueues(8, 2, 4, 1))]
    assert addresses(table, "T") == {"a": {0: A_MASTER.address}, "b": {0: B_MASTER.address}}
    assert list(addresses(table, "only-b")) == ["b"]
    assert table.route("unknown") is None


def test_clusters_groups_and_topics_are_listed(table: RouteTable) -> None:
    register(table, D_MASTER, "T", "x")
    register(table, B_MASTER, "T", "y")
    register(table, A_MASTER)
    assert table.clusters() == {"C": ["a", "b"], "D": ["d"]}
    assert [group.name for group in table.groups()] == ["a", "b", "d"]
    assert names(table) == ["T", "x", "y"]
    assert names(table, "C") == ["T", "y"]
    assert names(table, "none") == []
    assert (table.broker_count, table.topic_count) == (3, 4)


def test_a_slave_learns_its_master_and_adds_no_topics(table: RouteTable) -> None:
    assert register(table, A_SLAVE, "T") == MasterAddress()
    assert table.route("T") is None
    register(table, A_MASTER, "T")
    assert register(table, A_SLAVE) == MasterAddress("10.0.0.1:10911", "10.0.0.1:10912")
    assert addresses(table, "T") == {"a": {0: A_MASTER.address, 1: A_SLAVE.address}}


def test_topics_change_only_with_the_data_version(table: RouteTable) -> None:
    register(table, A_MASTER, "T", version=1)
    register(table, A_MASTER, "T", "U", version=1)
    assert names(table) == ["T"]
    register(table, A_MASTER, "U", version=2)
    assert names(table) == ["U"]


def test_what_is_not_the_whole_is_added_to_the_topics_a_master_has(table: RouteTable) -> None:
    register(table, A_MASTER, "T", "U", version=1, is_whole=False)
    register(table, A_MASTER, "V", version=2, is_whole=False)
    assert names(table) == ["T", "U", "V"]
    register(table, A_MASTER, "U", version=3, is_whole=False, queues=TopicQueues(9, 9, 6))
    assert names(table) == ["T", "U", "V"]
    route = table.route("U")
    assert route is not None
    assert route.queues == [("a", TopicQueues(9, 9, 6))]
    # It says so as often as it likes, without another version.
    register(table, A_MASTER, "W", version=3, is_whole=False)
    table.delete_topic("T")
    register(table, A_MASTER, "X", version=4, is_whole=False)
    assert names(table) == ["U", "V", "X"]
    # Who takes the place has what it says, and nothing of the former's.
    table.unregister(A_MASTER)
    register(table, A_MASTER, "Y", version=5, is_whole=False)
    assert names(table) == ["Y"]


def test_a_place_belongs_to_the_address_that_took_it_last(table: RouteTable) -> None:
    register(table, A_MASTER, "T")
    usurper = A_MASTER._replace(address="10.0.0.9:10911")
    register(table, usurper, "T")
    assert addresses(table, "T") == {"a": {0: usurper.address}}
    assert table.broker_count == 1
    assert table.channel_lost(A_MASTER.address) == []


def test_an_address_that_changes_its_place_leaves_the_old_one(table: RouteTable) -> None:
    register(table, A_MASTER, "T")
    register(table, A_SLAVE)
    register(table, A_SLAVE._replace(broker_id=2))
    assert addresses(table, "T") == {"a": {0: A_MASTER.address, 2: A_SLAVE.address}}
    register(table, A_MASTER._replace(name="z"), "T")
    assert addresses(table, "T") == {"z": {0: A_MASTER.address}, "a": {2: A_SLAVE.address}} or addresses(
        table, "T"
    ) == {"a": {2: A_SLAVE.address}, "z": {0: A_MASTER.address}}


def test_a_broker_that_changes_its_cluster_is_in_the_new_one_only(table: RouteTable) -> None:
    register(table, A_MASTER, "T")
    register(table, A_MASTER._replace(cluster="E"), "T")
    assert table.clusters() == {"E": ["a"]}
    assert names(table, "E") == ["T"]


def test_the_topics_of_a_name_live_as_long_as_any_broker_of_it(table: RouteTable) -> None:
    register(table, A_MASTER, "T")
    register(table, A_SLAVE)
    assert table.unregister(A_MASTER)
    assert addresses(table, "T") == {"a": {1: A_SLAVE.address}}
    assert table.unregister(A_SLAVE)
    assert table.route("T") is None
    assert table.groups() == []


def test_a_foreign_address_cannot_unregister_a_broker(table: RouteTable) -> None:
    register(table, A_MASTER, "T")
    assert not table.unregister(A_MASTER._replace(address="10.9.9.9:1"))
    assert not table.unregister(A_MASTER._replace(broker_id=1))
    assert not table.unregister(A_MASTER._replace(name="b"))
    assert table.route("T") is not None


def test_a_silent_broker_expires_after_the_timeout_and_not_before(table: RouteTable) -> None:
    register(table, A_MASTER, "T", now_s=1_000.0)
    register(table, B_MASTER, "T", now_s=1_030.0)
    assert table.expire(1_119.9, 120.0) == []
    assert table.expire(1_120.0, 120.0) == [A_MASTER]
    assert list(addresses(table, "T")) == ["b"]


def test_registering_again_and_asking_for_the_version_renew_the_lease(table: RouteTable) -> None:
    register(table, A_MASTER, "T", now_s=0.0)
    register(table, A_MASTER, "T", now_s=100.0)
    assert table.data_version(A_MASTER.address) == DataVersion(1, 0)
    table.renew(A_MASTER.address, 200.0)
    table.renew("10.9.9.9:1", 200.0)
    assert table.expire(319.9, 120.0) == []
    assert table.expire(320.0, 120.0) == [A_MASTER]
    assert table.data_version(A_MASTER.address) is None


def test_a_closed_channel_ends_its_leases_at_once(table: RouteTable) -> None:
    register(table, A_MASTER, "T", channel="one")
    register(table, B_MASTER, "T", channel="two")
    assert table.channel_lost("one") == [A_MASTER]
    assert list(addresses(table, "T")) == ["b"]


def test_the_end_of_a_former_channel_does_nothing(table: RouteTable) -> None:
    register(table, A_MASTER, "T", channel="one")
    register(table, A_MASTER, "T", channel="two")
    assert table.channel_lost("one") == []
    assert table.route("T") is not None


def test_a_broker_that_comes_back_with_its_old_version_gets_its_topics_back(table: RouteTable) -> None:
    register(table, A_MASTER, "T", version=7)
    table.unregister(A_MASTER)
    register(table, A_MASTER, "T", version=7)
    assert table.route("T") is not None


def test_write_permission_is_taken_and_given_for_one_broker(table: RouteTable) -> None:
    register(table, A_MASTER, "T", "U", queues=TopicQueues(4, 4, 7))
    register(table, B_MASTER, "T")
    assert table.set_writable("a", False) == 2
    route = table.route("T")
    assert route is not None
    assert [queues.permissions for _, queues in route.queues] == [5, 6]
    register(table, A_MASTER, "T", "U")
    assert table.route("U") is not None
    assert table.set_writable("a", True) == 2
    route = table.route("T")
    assert route is not None
    assert [queues.permissions for _, queues in route.queues] == [7, 6]
    assert table.set_writable("unknown", True) == 0


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(table: RouteTable) -> None:
    for identity in (A_MASTER, D_MASTER):
        register(table, identity, "T", "U")
    table.delete_topic("T", "D")
    assert list(addresses(table, "T")) == ["a"]
    table.delete_topic("T")
    table.delete_topic("unknown")
    assert table.route("T") is None
    assert names(table) == ["U"]


def test_flags_of_all_brokers_are_joined(table: RouteTable) -> None:
    register(table, A_MASTER, "T", "U", queues=TopicQueues(1, 1, 6, 1))
    register(table, B_MASTER, "T", queues=TopicQueues(1, 1, 6, 2))
    assert names(table, mask=3, flags=3) == ["T"]
    assert names(table, mask=3, flags=1) == ["U"]
    assert names(table, mask=1, flags=1) == ["T", "U"]
    assert names(table, mask=2, flags=2) == ["T"]


def test_a_full_table_refuses_one_more_broker_and_keeps_the_rest() -> None:
    table = RouteTable(brokers_max=2)
    register(table, A_MASTER, "T")
    register(table, B_MASTER)
    with pytest.raises(RequestError, match="2 brokers"):
        register(table, D_MASTER)
    register(table, A_MASTER, "T", now_s=5.0)
    assert table.clusters() == {"C": ["a", "b"]}
    assert table.check() == []


def test_a_full_table_refuses_one_more_topic_and_changes_nothing() -> None:
    table = RouteTable(topics_max=5)
    register(table, A_MASTER, "T", "U")
    register(table, B_MASTER, "T", "U", "V")
    with pytest.raises(RequestError, match="5 topics"):
        register(table, A_MASTER, "T", "U", "W", version=2)
    with pytest.raises(RequestError, match="5 topics"):
        register(table, D_MASTER, "T")
    assert names(table) == ["T", "U", "V"]
    assert table.data_version(A_MASTER.address) == DataVersion(1, 0)
    assert table.clusters() == {"C": ["a", "b"]}
    with pytest.raises(RequestError, match="more than"):
        register(table, A_MASTER, "W", version=2, is_whole=False)
    assert "W" not in names(table)
    # Of as many it may have others.
    register(table, A_MASTER, "W", "X", version=2)
    assert names(table, "C") == ["T", "U", "V", "W", "X"]
    assert table.check() == []


@pytest.mark.slow
def test_brokers_of_very_many_topics_come_and_go_in_no_time() -> None:
    many = {f"topic-{number}": TopicQueues(4, 4, 6, number % 2) for number in range(limits.TOPICS_MAX)}
    # What else the machine does takes some of the processor's caches: the quickest of some lives counts.
    assert any(max(turns_of_a_life(many)) < turn_s_max() for _ in range(5))


def turns_of_a_life(many: dict[str, TopicQueues]) -> list[float]:
    """The processor time of each turn while a broker of these topics comes, changes and goes."""
    table = RouteTable()
    other = {name: TopicQueues(8, 8, 6) for name in many}
    turns: list[float] = []

    def timed(call: Callable[[], Any]) -> Any:
        began_s = time.thread_time()
        try:
            return call()
        finally:
            turns.append(time.thread_time() - began_s)

    with short_collections():
        for version, topics in enumerate((many, other, dict(many))):
            timed(
                lambda version=version, topics=topics: table.register(
                    A_MASTER,
                    ha_address="",
                    data_version=DataVersion(version, 0),
                    topics=topics,
                    is_whole=version < 2,
                    channel="one",
                    now_s=0.0,
                )
            )
        timed(lambda: table.set_writable("a", False))
        for steps in (table.topics(), table.topics(mask=1, flags=1)):
            count = 0
            while timed(lambda steps=steps: next(steps, steps)) is not steps:
                count += 1
            assert count == 10
        assert len(names(table, mask=1, flags=1)) == limits.TOPICS_MAX // 2
        assert timed(lambda: table.channel_lost("one")) == [A_MASTER]
    assert table.topic_count == 0
    assert len(names(table, with_away=True)) == limits.TOPICS_MAX
    return turns


def test_what_a_broker_had_that_has_left_is_remembered_for_those_who_ask(table: RouteTable) -> None:
    register(table, A_MASTER, "T", "only-a", now_s=10.0)
    register(table, B_MASTER, "T", now_s=10.0)
    table.unregister(A_MASTER)
    assert addresses(table, "T") == {"b": {0: B_MASTER.address}}
    route = table.route("T", with_away=True)
    assert route is not None
    assert route.queues == [("a", QUEUES), ("b", QUEUES)]
    assert [group.name for group in route.brokers] == ["b"]
    assert table.route("only-a") is None
    assert table.route("only-a", with_away=True) is not None
    assert names(table) == ["T"]
    assert names(table, with_away=True) == ["T", "only-a"]
    # Back with other topics, the former ones are not its any more.
    register(table, A_MASTER, "T", version=2, now_s=20.0)
    assert names(table, with_away=True) == ["T"]
    table.unregister(A_MASTER)
    table.forget_away(29.9, 10.0)
    table.delete_topic("U")
    assert len(table.route("T", with_away=True).queues) == 2  # type: ignore[union-attr]
    table.forget_away(30.0, 10.0)
    assert table.route("T", with_away=True) == table.route("T")


def test_a_topic_that_is_deleted_is_not_remembered(table: RouteTable) -> None:
    register(table, A_MASTER, "T", "U")
    table.unregister(A_MASTER)
    table.delete_topic("T")
    assert names(table, with_away=True) == ["U"]


def test_so_many_brokers_and_topics_are_remembered_and_no_more() -> None:
    table = RouteTable(brokers_max=2, topics_max=3)
    for number, topics in enumerate((("T",), ("U",), ("V",))):
        identity = BrokerIdentity("C", f"b{number}", f"10.0.0.{number}:1", 0)
        register(table, identity, *topics)
        table.unregister(identity)
    assert names(table, with_away=True) == ["U", "V"]
    register(table, A_MASTER, "X", "Y")
    table.unregister(A_MASTER)
    # Three topics are the limit, of those that left last.
    assert names(table, with_away=True) == ["V", "X", "Y"]
    register(table, A_MASTER, "X", "Y", "Z", version=2)
    table.unregister(A_MASTER)
    assert names(table, with_away=True) == ["X", "Y", "Z"]
    assert table.check() == []


identities = st.builds(
    BrokerIdentity,
    st.sampled_from(["C", "D"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["1:1", "2:2", "3:3"]),
    st.integers(0, 1),
)
topic_sets = st.sets(st.sampled_from(["T", "U", "V"]))
steps = st.one_of(
    st.tuples(
        st.just("register"),
        identities,
        topic_sets,
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    st.tuples(st.just("unregister"), identities),
    st.tuples(st.just("lost"), st.integers(0, 2)),
    st.tuples(st.just("expire"), st.integers(0, 3)),
    st.tuples(st.just("delete"), st.sampled_from(["T", "U"]), st.sampled_from([None, "C"])),
    st.tuples(st.just("wipe"), st.sampled_from(["a", "b"])),
    st.tuples(st.just("forget"), st.integers(0, 3)),
)


@given(st.lists(steps, max_size=30))
def test_any_order_of_events_leaves_a_consistent_table(events: list[tuple[object, ...]]) -> None:
    told: dict[str, Master] = {}
    table = RouteTable(masters_changed=lambda: told.clear())
    # The highest epoch of each name; the table may forget it, and must not believe a lower one before.
    highest: dict[str, int] = {}
    for now_s, event in enumerate(events):
        if not told:
            told.update(table.masters())
        match event:
            case ("register", BrokerIdentity() as identity, set() as topics, int(), int(), int()):
                version, channel, epoch = event[3:]
                assert isinstance(version, int)
                assert isinstance(epoch, int)
                try:
                    register(
                        table,
                        identity,
                        *topics,
                        version=version,
                        channel=channel,
                        now_s=float(now_s),
                        epoch=epoch,
                    )
                except RequestError:
                    assert identity.broker_id == 0
                    assert epoch < highest[identity.name]
                    continue
                if identity.broker_id == 0:
                    highest[identity.name] = epoch
                assert identity.address in {
                    address for group in table.groups() for address in group.addresses.values()
                }
            case ("unregister", BrokerIdentity() as identity):
                table.unregister(identity)
            case ("lost", int() as channel):
                table.channel_lost(channel)
            case ("expire", int() as timeout):
                table.expire(float(now_s), float(timeout))
            case ("forget", int() as memory):
                table.forget_away(float(now_s), float(memory))
            case ("delete", str() as topic, cluster):
                table.delete_topic(topic, cluster)  # type: ignore[arg-type]
            case ("wipe", str() as name):
                table.set_writable(name, False)
        assert table.check() == []
        assert not told or told == table.masters(), "a change of masters is told"


A_NEXT = A_MASTER._replace(address="10.0.0.9:10911")


def refused(table: RouteTable, identity: BrokerIdentity, *topics: str, epoch: int) -> str:
    """The remark of a registration that is refused."""
    with pytest.raises(RequestError) as found:
        register(table, identity, *topics, epoch=epoch)
    return str(found.value)


def test_a_master_of_a_later_epoch_takes_the_place_at_once(table: RouteTable) -> None:
    register(table, A_MASTER, "T", epoch=1)
    register(table, A_NEXT, "T", "U", epoch=2)
    assert table.masters() == {"a": Master(A_NEXT.address, 2)}
    assert addresses(table, "U") == {"a": {0: A_NEXT.address}}
    # Whatever the former one does to leave is late.
    assert not table.unregister(A_MASTER, channel=A_MASTER.address)
    assert table.channel_lost(A_MASTER.address) == []
    assert table.masters() == {"a": Master(A_NEXT.address, 2)}


def test_a_master_of_a_past_epoch_is_refused_and_changes_nothing(table: RouteTable) -> None:
    register(table, A_NEXT, "T", epoch=2)
    remark = refused(table, A_MASTER, "other", epoch=1)
    assert remark == f"epoch 1 is past: {A_NEXT.address} has registered as master of epoch 2"
    assert "epoch 0 is past" in refused(table, A_MASTER, epoch=0)
    assert table.stale_count == 2
    assert table.masters() == {"a": Master(A_NEXT.address, 2)}
    assert names(table) == ["T"]
    # Neither as one that does not say its topics, nor by asking whether its state is known.
    with pytest.raises(RequestError):
        table.register(
            A_MASTER, ha_address="", data_version=None, topics={}, is_whole=True, channel="x", now_s=0.0
        )
    assert table.data_version(A_MASTER.address) is None
    # As a follower it is welcome, and other names have epochs of their own.
    assert register(table, A_MASTER._replace(broker_id=1)) == MasterAddress(A_NEXT.address, "10.0.0.9:10912")
    register(table, B_MASTER, "T", epoch=1)


def test_a_deposed_master_is_not_kept_in_by_renewals(table: RouteTable) -> None:
    register(table, A_MASTER, "T", epoch=1, now_s=0.0)
    register(table, A_NEXT, "T", epoch=2, now_s=0.0)
    table.renew(A_MASTER.address, 50.0)
    assert table.data_version(A_MASTER.address) is None
    assert table.expire(60.0, 60.0) == [A_NEXT]
    assert table.masters() == {}


def test_masters_that_share_an_address_are_told_apart_by_their_connections(table: RouteTable) -> None:
    register(table, A_MASTER, "T", epoch=1, channel="old")
    register(table, A_MASTER, "T", epoch=2, channel="new")
    assert not table.unregister(A_MASTER, channel="old")
    assert table.channel_lost("old") == []
    assert "epoch 1 is past" in refused(table, A_MASTER, "T", epoch=1)
    assert table.masters() == {"a": Master(A_MASTER.address, 2)}
    assert table.unregister(A_MASTER, channel="new")
    assert table.masters() == {}


def test_an_epoch_is_remembered_as_long_as_the_name(table: RouteTable) -> None:
    # One without topics, too.
    register(table, A_NEXT, epoch=2, now_s=10.0)
    table.channel_lost(A_NEXT.address)
    assert "epoch 1 is past" in refused(table, A_MASTER, "T", epoch=1)
    table.forget_away(19.9, 10.0)
    assert "epoch 1 is past" in refused(table, A_MASTER, "T", epoch=1)
    table.forget_away(20.0, 10.0)
    register(table, A_MASTER, "T", epoch=1)
    assert table.masters() == {"a": Master(A_MASTER.address, 1)}


def test_an_epoch_is_remembered_while_a_follower_keeps_the_name(table: RouteTable) -> None:
    register(table, A_NEXT, "T", epoch=2, now_s=0.0)
    table.channel_lost(A_NEXT.address)
    register(table, A_SLAVE, now_s=0.0)
    table.forget_away(100.0, 10.0)
    assert "epoch 1 is past" in refused(table, A_MASTER, "T", epoch=1)
    table.unregister(A_SLAVE)
    assert "epoch 1 is past" in refused(table, A_MASTER, "T", epoch=1)


def test_so_many_epochs_of_names_that_left_are_remembered_and_no_more() -> None:
    table = RouteTable(brokers_max=2)
    for number in range(3):
        identity = BrokerIdentity("C", f"b{number}", f"10.0.0.{number}:1", 0)
        register(table, identity, epoch=5)
        table.unregister(identity, channel=identity.address)
    assert "is past" in refused(table, BrokerIdentity("C", "b1", "10.0.0.9:1", 0), epoch=4)
    register(table, BrokerIdentity("C", "b0", "10.0.0.9:1", 0), epoch=4)
    assert table.check() == []


def test_an_equal_epoch_from_another_address_counts_as_ever(table: RouteTable) -> None:
    register(table, A_MASTER, "T", epoch=3)
    register(table, A_NEXT, "T", epoch=3)
    assert table.masters() == {"a": Master(A_NEXT.address, 3)}


def test_an_epoch_at_its_limit_is_taken_and_one_past_it_is_not(table: RouteTable) -> None:
    for epoch in (-1, limits.EPOCH_MAX + 1):
        assert "stateVersion" in refused(table, A_MASTER, epoch=epoch)
    assert table.masters() == {}
    register(table, A_MASTER, epoch=limits.EPOCH_MAX)
    assert table.masters() == {"a": Master(A_MASTER.address, limits.EPOCH_MAX)}
    assert table.stale_count == 0


def test_a_change_of_masters_is_told_and_nothing_else() -> None:
    told: list[str] = []
    table = RouteTable(masters_changed=lambda: told.append("changed"))

    def changes() -> int:
        count = len(told)
        told.clear()
        return count

    register(table, A_MASTER, "T", epoch=1)
    assert changes() == 1
    register(table, A_MASTER, "T", epoch=1)
    register(table, A_MASTER, "T", "U", version=2, epoch=1)
    register(table, A_SLAVE)
    table.unregister(A_SLAVE)
    assert changes() == 0
    register(table, A_MASTER, "T", epoch=2)
    assert changes() == 1
    table.unregister(A_MASTER, channel=A_MASTER.address)
    assert changes() == 1
