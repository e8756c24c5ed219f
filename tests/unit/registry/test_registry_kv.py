"""Key-value settings: immutable states, their limits, and a file that is replaced whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iotmq.errors import RequestError, StoreCorruptError
from iotmq.limits import KV_BYTES_MAX, KV_TEXT_BYTES_MAX
from iotmq.registry.kv import KeyValueFile, KeyValues


def test_a_change_leaves_the_former_state_alone() -> None:
    empty = KeyValues()
    one = empty.put("N", "k", "v")
    two = one.put("N", "k", "w").put("M", "x", "y")
    assert (empty.get("N", "k"), one.get("N", "k"), two.get("N", "k")) == (None, "v", "w")
    assert two.namespace("M") == {"x": "y"}
    assert (empty.count, one.count, two.count) == (0, 1, 2)
    assert two.delete("N", "k").get("N", "k") is None
    assert two.get("N", "k") == "w"


def test_deleting_nothing_gives_the_same_state() -> None:
    values = KeyValues().put("N", "k", "v")
    assert values.delete("N", "other") is values
    assert values.delete("M", "k") is values
    assert json.loads(values.delete("N", "k").to_json()) == {"configTable": {}}


def test_a_text_has_a_maximum() -> None:
    longest = "é" * (KV_TEXT_BYTES_MAX // 2)
    KeyValues().put("N", "k", longest)
    for field, texts in (
        ("value", ("N", "k", longest + "x")),
        ("key", ("N", longest + "x", "")),
        ("namespace", (longest + "x", "k", "")),
    ):
        with pytest.raises(RequestError, match=f"field {field} .* maximum"):
            KeyValues().put(*texts)


def test_all_values_together_have_a_maximum() -> None:
    value = "x" * (KV_TEXT_BYTES_MAX - 8)
    table = {"N": {f"{number:08}": value for number in range(KV_BYTES_MAX // KV_TEXT_BYTES_MAX - 1)}}
    values = KeyValues(table)
    values.put("N", "last", "x" * (KV_TEXT_BYTES_MAX - 5))
    with pytest.raises(RequestError, match="together"):
        values.put("N", "last", "x" * (KV_TEXT_BYTES_MAX - 4))


def test_the_file_keeps_what_was_saved(tmp_path: Path) -> None:
    file = KeyValueFile(tmp_path / "a" / "kvConfig.json")
    assert file.load().count == 0
    file.save(KeyValues().put("ORDER_TOPIC_CONFIG", "T", "broker-a:4;broker-b:4"))
    file.save(file.load().put("N", "é", "😀"))
    assert json.loads((tmp_path / "a" / "kvConfig.json").read_text()) == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"T": "broker-a:4;broker-b:4"}, "N": {"é": "😀"}}
    }
    assert file.load().get("N", "é") == "😀"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["kvConfig.json"]


def test_a_file_as_java_writes_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{"ORDER_TOPIC_CONFIG":{"T":"b:4"}}\n}')
    assert KeyValueFile(path).load().get("ORDER_TOPIC_CONFIG", "T") == "b:4"


def test_a_broken_file_is_an_error_by_name(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    for text in ("", "{", "[]", '{"configTable":{"N":5}}'):
        path.write_text(text)
        with pytest.raises(StoreCorruptError, match=r"kvConfig\.json"):
            KeyValueFile(path).load()
