"""Filters with wildcards, for plug-ins that know topics only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from amqtt.plugins import TopicMatcher

from iotmq.mqtt_front.plugins.wildcards import has_wildcards, is_contained, matches_any, probes_of


def allows(*allowed: str) -> Callable[[str], bool]:
    """As amqtt's plug-ins do, for filters as for topics."""
    return lambda topic: TopicMatcher().are_topics_allowed(topic, list(allowed))


@pytest.mark.parametrize(
    ("allowed", "asked", "is_all"),
    [
        (("a/#",), "a/#", True),
        (("#",), "a/+/#", True),
        (("a/+",), "a/+", True),
        (("a/+/c", "a/b"), "a/+/c", True),
        (("a/+",), "a/#", False),
        (("+",), "#", False),
        (("a", "a/+", "a/+/+"), "a/#", False),
        (("a/b", "a/c"), "a/+", False),
        (("a/+",), "+/b", False),
        (("a/+/c",), "a/+/+", False),
    ],
)
def test_a_probe_is_allowed_where_all_topics_are(allowed: tuple[str, ...], asked: str, is_all: bool) -> None:
    assert all(map(allows(*allowed), probes_of(asked))) is is_all
    assert is_contained(asked, allowed) is is_all


def test_probes_match_the_filter_and_are_new_each_time() -> None:
    assert list(probes_of("a/b")) == ["a/b"]
    assert next(iter(probes_of("a/#"))) == "a"
    for asked in ("#", "+/#", "a/+/c", "a/#"):
        probes = list(probes_of(asked))
        assert probes
        assert all(matches_any(asked, [probe]) for probe in probes)
        assert not any(has_wildcards(probe) for probe in probes)
    assert set(probes_of("+/x")).isdisjoint(probes_of("+/x"))


def test_a_filter_that_matches_a_denied_topic_is_seen() -> None:
    denied = ("prohibited", "data/classified")
    for asked in ("#", "+", "data/+", "data/#", "+/classified"):
        assert matches_any(asked, denied)
    for asked in ("+/+/+", "other/#", "data"):
        assert not matches_any(asked, denied)
