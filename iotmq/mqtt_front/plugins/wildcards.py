"""Decide about filters with wildcards for plug-ins that know topics only.

A plug-in is asked for a filter as if it were a topic, and its matcher may take a wildcard that is asked for
as the name of a level: amqtt's allow `a/#` where `a/+` is allowed. Where what a plug-in allows stands in its
options, that is compared. Others are probed: they have to allow topics, too, that the filter matches and that
nobody uses, which only a wildcard of theirs can match.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import Final

from iotmq.mqtt.topics.topics import matches, wildcard_shape
from iotmq.mqtt_front.permissions.containment import all_allowed

# How many levels stand for a `#`: none, as the level above it is matched, too; and more than the `+` that
# somebody would write.
_DEPTHS: Final = (0, 1, 2, 12)


def has_wildcards(topic_filter: str) -> bool:
    """Return whether it is a filter of more than one topic."""
    return wildcard_shape(topic_filter) is not None


def probes_of(topic_filter: str) -> Iterator[str]:
    """Yield topics that the filter matches and that nobody uses."""
    levels = [_unused() if level == "+" else level for level in topic_filter.split("/")]
    if levels[-1] != "#":
        yield "/".join(levels)
        return
    for depth in _DEPTHS:
        topic = [*levels[:-1], *(_unused() for _ in range(depth))]
        if topic:
            yield "/".join(topic)


def is_contained(topic_filter: str, allowed: Iterable[str]) -> bool:
    """Return whether the allowed filters contain all topics of this one."""
    return all_allowed(topic_filter.split("/"), [(each.split("/"), True) for each in allowed]).is_allowed


def matches_any(topic_filter: str, topics: Iterable[str]) -> bool:
    """Return whether the filter is for one of these topics, too."""
    return any(matches(topic_filter, topic) for topic in topics)


def _unused() -> str:
    return f"iotmq-probe-{secrets.token_hex(8)}"
