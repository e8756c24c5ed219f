"""The lag of chosen groups, as metrics tell it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_site import Site

from iotmq import limits


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path, lag_groups=("billing", "alerts-*"))
    await site.start()
    yield site
    await site.stop()


async def shown(site: Site) -> dict[tuple[str, str, str], float]:
    """(metric, group, topic) -> value, after a look; of the number of those left out with empty names."""
    lag = site.broker._admin.group_lag
    await lag.look()
    found = {}
    for metric in lag.metrics():
        labels = dict(metric.labels)
        name = metric.name.removeprefix("iotmq_broker_group_lag_")
        found[name, labels.get("group", ""), labels.get("topic", "")] = metric.value
    return found


async def test_groups_that_are_named_show_what_they_have_not_consumed(site: Site) -> None:
    for number in range(5):
        await site.send(b"%d" % number)
        site.clock.advance(10)
    for group in ("billing", "alerts-fire", "other"):
        site.broker.offsets.commit(group, "T", 0, 2)
    assert await shown(site) == {
        ("left_out", "", ""): 0,
        ("messages", "billing", "T"): 3,
        # The oldest of the three was stored 30 s ago.
        ("seconds", "billing", "T"): 30.0,
        ("messages", "alerts-fire", "T"): 3,
        ("seconds", "alerts-fire", "T"): 30.0,
    }
    site.broker.offsets.commit("billing", "T", 0, 5)
    found = await shown(site)
    assert (found["messages", "billing", "T"], found["seconds", "billing", "T"]) == (0, 0.0)


async def test_past_the_maximum_pairs_are_counted_only(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.send(b"")
    for group in ("alerts-1", "alerts-2", "alerts-3"):
        site.broker.offsets.commit(group, "T", 0, 0)
    monkeypatch.setattr(limits, "LAG_PAIRS_MAX", 3)
    assert (await shown(site))["left_out", "", ""] == 0
    monkeypatch.setattr(limits, "LAG_PAIRS_MAX", 2)
    found = await shown(site)
    assert found["left_out", "", ""] == 1
    assert len(found) == 1 + 2 * 2


async def test_past_the_maximum_of_queues_pairs_are_counted_only(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.send(b"")
    for group in ("alerts-1", "alerts-2"):
        site.broker.offsets.commit(group, "T", 0, 0)
    config = site.broker.topics.find("T")
    assert config is not None
    monkeypatch.setattr(limits, "LAG_QUEUES_MAX", 2 * config.queue_count)
    assert (await shown(site))["left_out", "", ""] == 0
    monkeypatch.setattr(limits, "LAG_QUEUES_MAX", 2 * config.queue_count - 1)
    assert (await shown(site))["left_out", "", ""] == 1


async def test_a_topic_that_is_gone_is_not_shown(site: Site) -> None:
    site.broker.offsets.commit("billing", "gone", 0, 7)
    assert await shown(site) == {("left_out", "", ""): 0}


async def test_without_groups_there_is_no_metric(tmp_path: Path) -> None:
    site = Site(tmp_path / "other")
    await site.start()
    await site.send(b"")
    site.broker.offsets.commit("billing", "T", 0, 0)
    assert await shown(site) == {}
    await site.stop()
