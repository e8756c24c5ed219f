"""Configured groups: defaults, auto-create, limits, subscriptionGroup.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.tables.subscription_groups import (
    SYSTEM_GROUPS,
    SubscriptionGroupConfig,
    SubscriptionGroups,
    SubscriptionGroupTable,
)
from iotmq.errors import RequestError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "subscriptionGroup.json"


def groups_of(path: Path, **words: Any) -> SubscriptionGroups:
    groups = SubscriptionGroups(path, ManualClock(), **words)
    groups.check_invariants()
    groups.add_listener(lambda _: groups.check_invariants())
    return groups


def test_a_group_is_made_on_first_use_with_the_protocols_defaults(path: Path) -> None:
    groups = groups_of(path, may_create=True)
    told: list[str] = []
    groups.add_listener(told.append)
    made = groups.find_or_create("g")
    assert made == groups.find("g")
    assert made is not None
    assert (made.retry_max_times, made.retry_queue_nums, made.consume_enable) == (16, 1, True)
    groups.find_or_create("g")
    assert told == ["g"]
    assert groups.version.counter == 1


def test_without_auto_create_only_system_groups_are_there(path: Path) -> None:
    groups = groups_of(path, may_create=False)
    assert groups.find_or_create("g") is None
    assert groups.find_or_create("CID_RMQ_SYS_TRANS") is not None
    assert all(groups.find(name) is not None for name in SYSTEM_GROUPS)


@pytest.mark.parametrize("name", ["", "a b", "a@b", "a.b", "x" * 256])
def test_bad_names_are_refused(path: Path, name: str) -> None:
    groups = groups_of(path, may_create=True)
    with pytest.raises(RequestError, match="group") as caught:
        groups.find_or_create(name)
    assert caught.value.code == 1


def test_the_maximum_of_groups_is_kept(path: Path) -> None:
    groups = groups_of(path, may_create=True, groups_max=len(SYSTEM_GROUPS) + 1)
    groups.find_or_create("a")
    with pytest.raises(RequestError, match="maximum"):
        groups.find_or_create("b")
    groups.put(SubscriptionGroupConfig(group_name="a", retry_max_times=1))


def test_the_file_has_the_protocols_names_and_comes_back(path: Path) -> None:
    groups = groups_of(path, may_create=True)
    groups.put(SubscriptionGroupConfig(group_name="g", retry_max_times=3))
    groups.write(groups.encode())
    stored = json.loads(path.read_text())
    assert stored["subscriptionGroupTable"]["g"] == {
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "groupName": "g",
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 3,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }
    again = groups_of(path, may_create=False)
    assert again.find("g") == groups.find("g")
    assert again.version == groups.version


def test_a_masters_groups_replace_these_and_what_differs_is_told(path: Path) -> None:
    groups = groups_of(path, may_create=True)
    others = groups_of(path.with_name("other.json"), may_create=True)
    for name, times in (("same", 3), ("changed", 3), ("gone", 3)):
        groups.put(SubscriptionGroupConfig(group_name=name, retry_max_times=times))
    for name, times in (("same", 3), ("changed", 4), ("new", 3)):
        others.put(SubscriptionGroupConfig(group_name=name, retry_max_times=times))
    told: list[str] = []
    groups.add_listener(told.append)
    table = SubscriptionGroupTable(data_version=others.version, subscription_group_table=dict(others._groups))
    groups.adopt(table)
    assert sorted(told) == ["changed", "gone", "new"]
    assert groups.encode() == others.encode()
    groups.check_invariants()


def test_ephemeral_groups_have_a_maximum_of_their_own(path: Path) -> None:
    assert limits.EPHEMERAL_GROUPS_MAX < limits.GROUPS_MAX
    groups = groups_of(path, may_create=True, ephemeral_max=2)
    for name in ("a%ephemeral", "b%ephemeral"):
        groups.find_or_create(name)
    with pytest.raises(RequestError, match=r"c%ephemeral .*maximum of 2 ephemeral"):
        groups.find_or_create("c%ephemeral")
    groups.find_or_create("plain")
    groups.delete("a%ephemeral")
    groups.find_or_create("c%ephemeral")
