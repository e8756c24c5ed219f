"""The memory of deleted topics and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotmq import limits
from iotmq.broker.tables.deleted_topics import DeletedTopic, DeletedTopics
from iotmq.errors import RequestError


def deleted(position: int) -> DeletedTopic:
    return DeletedTopic(position=position, version=1)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    topics = DeletedTopics(tmp_path / "deletedTopics.json")
    assert topics.take_unsaved() is None
    topics.add("T", deleted(7))
    topics.add("U", deleted(9))
    topics.forget("U")
    data = topics.take_unsaved()
    assert data is not None
    topics.write(data)
    assert topics.take_unsaved() is None
    again = DeletedTopics(tmp_path / "deletedTopics.json")
    assert again.items() == [("T", deleted(7))]
    assert "T" in again
    assert "U" not in again


def test_the_limit_holds_at_one_past_it(tmp_path: Path) -> None:
    topics = DeletedTopics(tmp_path / "d.json", topics_max=2)
    topics.add("a", deleted(1))
    topics.add("b", deleted(1))
    topics.add("a", deleted(2))
    with pytest.raises(RequestError, match="maximum"):
        topics.add("c", deleted(1))
    assert DeletedTopics(tmp_path / "d.json")._topics_max == limits.DELETED_TOPICS_MAX
