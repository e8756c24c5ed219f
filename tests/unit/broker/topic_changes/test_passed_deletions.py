"""Deletions the log has passed are forgotten; queue files go where no other member has them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from manual_clock import ManualClock

from iotmq.broker.tables.deleted_topics import DeletedTopic
from iotmq.broker.tables.topics import TopicTable
from iotmq.broker.topic_changes.topic_removal import TopicRemoval


class FakeStore:
    """A log whose files are gone up to a position."""

    gone_position = 10

    def __init__(self, *, is_replicated: bool) -> None:
        self.is_replicated = is_replicated
        self.removed: list[str] = []

    def remove_queues(self, topics: Iterable[str]) -> set[str]:
        self.removed += topics
        return set(topics)


@pytest.mark.parametrize("is_replicated", [False, True])
def test_queues_of_a_replicated_log_stay(tmp_path: Path, is_replicated: bool) -> None:
    topics = TopicTable(tmp_path / "topics.json", ManualClock())
    topics.ensure("again", queues=1)
    for name, position in (("passed", 10), ("again", 10), ("not yet", 11)):
        topics.deleted.add(name, DeletedTopic(position=position, version=1))
    store = FakeStore(is_replicated=is_replicated)
    parts: Any = SimpleNamespace(store=store, topics=topics, offsets=None)
    TopicRemoval(parts).clean()
    assert [name for name, _ in topics.deleted.items()] == ["not yet"]
    assert store.removed == ([] if is_replicated else ["passed"])
