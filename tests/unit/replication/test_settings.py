"""Settings of replication that do not fit each other."""

from __future__ import annotations

from typing import Any

import pytest

from iotmq import limits
from iotmq.config.config import config_from_table
from iotmq.errors import ConfigError
from iotmq.replication.cluster_state import ClusterState, Identity, MemberAddress
from iotmq.replication.settings import ReplicationSettings

THREE = ("1=127.0.0.1:10911", "2=127.0.0.1:10921", "3=[::1]:10931")


def problems(**changes: Any) -> list[str]:
    fields: dict[str, Any] = {"mode": "elected", "member": 1, "members": THREE, **changes}
    return ReplicationSettings(**fields).problems()


def test_members_have_numbers_and_addresses() -> None:
    assert problems() == []
    found = ReplicationSettings(members=THREE).addresses
    assert found == {1: ("127.0.0.1", 10911), 2: ("127.0.0.1", 10921), 3: ("::1", 10931)}
    assert problems(members=(), member=0, mode="off") == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"member": 4}, "replication.member is 4"),
        ({"members": (*THREE, "1=127.0.0.1:1")}, "names member 1 twice"),
        ({"members": (*THREE, f"{limits.REPLICATION_MEMBER_MAX + 1}=127.0.0.1:1")}, "numbers are 1 to"),
        ({"members": (*THREE, "4=127.0.0.1:70000")}, "port"),
        ({"members": (*THREE, "4=127.0.0.1:10921")}, "members 2 and 4 have the same address"),
        ({"in_sync_min": 4}, "replication.in_sync_min is 4"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in problems(**changes))


def test_the_whole_config_refuses_it_too() -> None:
    table = {"replication": {"mode": "elected", "member": 1, "members": list(THREE)}}
    config_from_table(table)
    with pytest.raises(ConfigError, match=r"broker\.listen_port"):
        config_from_table({**table, "broker": {"listen_port": 0}})
    many = [f"{number}=127.0.0.1:{number}" for number in range(1, limits.REPLICATION_MEMBERS_MAX + 2)]
    config_from_table({"replication": {"members": many[:-1]}})
    with pytest.raises(ConfigError, match="members"):
        config_from_table({"replication": {"members": many}})


def state(count: int, *, in_sync: int = 1, eligible: int = 0) -> ClusterState:
    identities = [Identity(number, "i") for number in range(1, 8)]
    return ClusterState(
        epoch=1,
        master=1,
        in_sync=tuple(identities[:in_sync]),
        eligible=tuple(identities[in_sync : in_sync + eligible]),
        members=tuple(MemberAddress(number, f"m{number}:1") for number in range(1, count + 1)),
    )


@pytest.mark.parametrize(("count", "least", "refuses"), [(1, 1, False), (2, 1, False), (3, 2, True)])
def test_few_members_by_default(count: int, least: int, refuses: bool) -> None:
    settings = ReplicationSettings(members=THREE[:count]).member_settings(acknowledge_flushed=False)
    unnamed = ClusterState(epoch=1, master=1, in_sync=())
    assert (settings.in_sync_min_of(unnamed), settings.refuses_when_few_of(unnamed)) == (least, refuses)
    other = ReplicationSettings(members=THREE[:1]).member_settings(acknowledge_flushed=False)
    named = state(count)
    assert (other.in_sync_min_of(named), other.refuses_when_few_of(named)) == (least, refuses), "recorded"
    assert other.is_refusing(named) is refuses


def test_what_is_said_of_few_members_holds() -> None:
    settings = ReplicationSettings(members=THREE, in_sync_min=3, when_few="accept")
    made = settings.member_settings(acknowledge_flushed=True)
    assert made.acknowledge_flushed
    assert (made.in_sync_min_of(state(5)), made.refuses_when_few_of(state(5))) == (3, False)
    assert not made.is_refusing(state(3))
    assert made.is_refusing(state(3, eligible=1)), (
        "who is eligible has everything only while nothing is taken"
    )


def static_problems(**changes: Any) -> list[str]:
    return ReplicationSettings(mode="static", **changes).problems()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"role": "sync_master", "vip_port_enabled": True, "allow": ("10.0.0.0/8", "::1", "192.168.1.7")},
        {"role": "slave", "broker_id": 1},
        {"role": "slave", "broker_id": limits.BROKER_ID_MAX, "master_address": "[::1]:10912"},
    ],
)
def test_roles_of_static_mode(changes: dict[str, Any]) -> None:
    assert static_problems(**changes) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"role": "slave"}, "replication.broker_id is 0"),
        ({"role": "slave", "broker_id": 1, "vip_port_enabled": True}, "vip_port_enabled is for masters"),
        ({"broker_id": 1}, "a master is 0"),
        ({"role": "sync_master", "master_address": "a:1"}, "master_address is for slaves"),
        ({"role": "slave", "broker_id": 1, "master_address": "a:65536"}, "port"),
        ({"allow": ("10.0.0.1/8",)}, "host bits"),
        ({"allow": ("everybody",)}, "replication.allow"),
    ],
)
def test_what_does_not_fit_a_role_is_named(changes: dict[str, Any], words: str) -> None:
    assert any(words in problem for problem in static_problems(**changes))


def test_the_whole_config_refuses_ports_without_neighbours_and_numbers_past_the_maximum() -> None:
    def load(port: int = 10_911, **changes: Any) -> None:
        replication = {"mode": "static", **changes}
        config_from_table({"replication": replication, "broker": {"listen_port": port}})

    for port in (3, 65_534):
        load(port)
    for port in (0, 2, 65_535):
        with pytest.raises(ConfigError, match=r"broker\.listen_port"):
            load(port)
    networks = [f"10.0.{number}.0/24" for number in range(limits.HA_NETWORKS_MAX + 1)]
    load(allow=networks[:-1])
    with pytest.raises(ConfigError, match="allow"):
        load(allow=networks)
    load(role="slave", broker_id=limits.BROKER_ID_MAX)
    with pytest.raises(ConfigError, match="broker_id"):
        load(role="slave", broker_id=limits.BROKER_ID_MAX + 1)
