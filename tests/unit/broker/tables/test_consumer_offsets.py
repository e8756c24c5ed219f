"""Committed offsets and consumerOffset.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iotmq.broker.tables.consumer_offsets import ConsumerOffsets, ConsumerOffsetTable
from iotmq.errors import RequestError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "consumerOffset.json"


def save(offsets: ConsumerOffsets) -> None:
    data = offsets.take_unsaved()
    assert data is not None
    offsets.write(data)


def test_an_offset_is_found_until_it_is_set_again(path: Path) -> None:
    offsets = ConsumerOffsets(path)
    assert offsets.find("g", "t", 0) is None
    offsets.commit("g", "t", 0, 7)
    offsets.commit("g", "t", 0, 5)
    assert offsets.find("g", "t", 0) == 5
    assert offsets.find("g", "t", 1) is None
    assert dict(offsets.of_topic("g", "t")) == {0: 5}


def test_offsets_come_back_from_the_file(path: Path) -> None:
    offsets = ConsumerOffsets(path)
    offsets.commit("g", "t", 0, 5)
    offsets.commit("g", "%RETRY%g", 3, 1)
    save(offsets)
    assert offsets.take_unsaved() is None
    assert json.loads(path.read_text()) == {"offsetTable": {"t@g": {"0": 5}, "%RETRY%g@g": {"3": 1}}}
    again = ConsumerOffsets(path)
    assert again.find("g", "%RETRY%g", 3) == 1
    assert sorted(again.each_pair()) == [("%RETRY%g", "g"), ("t", "g")]


def test_the_file_of_a_java_broker_is_read(path: Path) -> None:
    path.write_text('{\n\t"dataVersion":{"counter":1},\n\t"offsetTable":{"t@g":{0:5,1:6\n\t\t}}\n}')
    offsets = ConsumerOffsets(path)
    assert dict(offsets.of_topic("g", "t")) == {0: 5, 1: 6}


def test_offsets_past_the_end_are_set_back(path: Path) -> None:
    offsets = ConsumerOffsets(path)
    for queue_id, offset in enumerate([4, 5, 6]):
        offsets.commit("g", "t", queue_id, offset)
    offsets.commit("g", "gone", 0, 9)
    save(offsets)
    assert offsets.clamp(lambda topic, queue_id: 5 if topic == "t" else None) == 1
    assert dict(offsets.of_topic("g", "t")) == {0: 4, 1: 5, 2: 5}
    assert offsets.find("g", "gone", 0) == 9
    assert offsets.is_dirty


def test_the_maximum_of_pairs_is_kept(path: Path) -> None:
    offsets = ConsumerOffsets(path, pairs_max=2)
    offsets.commit("g", "a", 0, 1)
    offsets.commit("g", "b", 0, 1)
    offsets.commit("g", "b", 7, 1)
    with pytest.raises(RequestError, match="maximum of 2 pairs"):
        offsets.commit("g", "c", 0, 1)


def test_a_group_can_be_forgotten(path: Path) -> None:
    offsets = ConsumerOffsets(path)
    offsets.commit("g", "t", 0, 1)
    offsets.commit("other", "t", 0, 1)
    offsets.forget_group("g")
    assert list(offsets.each_pair()) == [("t", "other")]


def test_pairs_are_found_from_either_side(path: Path) -> None:
    offsets = ConsumerOffsets(path)
    for group, topic in (("g", "t"), ("g", "tt"), ("gg", "t"), ("h", "u")):
        offsets.commit(group, topic, 0, 1)
    assert offsets.groups_of("t") == ["g", "gg"]
    assert offsets.topics_of("g") == ["t", "tt"]
    assert offsets.groups_of("none") == offsets.topics_of("none") == []
    pairs = offsets.each_pair()
    assert next(pairs) == ("t", "g")
    # What changes meanwhile does no harm.
    offsets.forget_group("g")
    assert list(pairs) == [("tt", "g"), ("t", "gg"), ("u", "h")]


def test_offsets_of_a_master_are_taken_where_they_are_greater(path: Path) -> None:
    offsets = ConsumerOffsets(path, pairs_max=2)
    offsets.commit("g", "t", 0, 7)
    save(offsets)
    offsets.raise_to(ConsumerOffsetTable(offset_table={"t@g": {0: 5}}))
    assert offsets.take_unsaved() is None, "nothing has changed"
    offsets.raise_to(ConsumerOffsetTable(offset_table={"t@g": {0: 8, 1: 0}, "u@g": {0: 1}, "v@g": {0: 1}}))
    assert [offsets.find("g", "t", queue) for queue in (0, 1)] == [8, 0]
    assert (offsets.find("g", "u", 0), offsets.find("g", "v", 0)) == (1, None), "the maximum of pairs"
    save(offsets)
