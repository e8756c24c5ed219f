"""Retained messages of several brokers are one page, and of each topic the last."""

from __future__ import annotations

import base64

import pytest

from iotmq.client.admin.devices.retained import merged_page
from iotmq.message.properties import MQTT_TOPIC, encode_properties
from iotmq.message.records.record import decode_record, encode_record
from iotmq.ports.sessions import Refused, RetainedRecords
from iotmq.remoting.codes import ResponseCode

AWAY = Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "away")


def record(topic: str, born_ms: int, body: str = "", stored_ms: int = 5) -> bytes:
    return encode_record(
        topic="mqtt",
        body=(body or f"{topic} {born_ms}").encode(),
        properties=encode_properties({MQTT_TOPIC: topic}),
        born_timestamp_ms=born_ms,
        store_timestamp_ms=stored_ms,
    )


def page(*records: bytes, after: str | None = None) -> RetainedRecords:
    return RetainedRecords(records, None if after is None else base64.b64encode(after.encode()).decode())


def bodies(found: RetainedRecords | Refused) -> list[str]:
    assert isinstance(found, RetainedRecords)
    return [decode_record(view).body.decode() for view in found.records]


def test_of_a_topic_that_two_brokers_have_the_last_message_counts_whichever_has_it() -> None:
    one, other = page(record("a", 9), record("b", 1)), page(record("a", 3), record("b", 2), record("c", 1))
    for answers in ([one, other], [other, one]):
        assert bodies(merged_page(answers)) == ["a 9", "b 2", "c 1"]
        assert merged_page(answers).after is None  # type: ignore[union-attr]
    # Sent in the same millisecond.
    same = [page(record("a", 3, "first", 7)), page(record("a", 3, "last", 8))]
    assert bodies(merged_page(same)) == ["last"]


def test_a_page_ends_where_one_of_the_brokers_has_told_no_more() -> None:
    one = page(record("a", 1), record("é", 1), after="é")
    other = page(record("b", 1), record("c", 1), record("é", 2), record("ü", 1), after="ü")
    found = merged_page([one, other])
    assert bodies(found) == ["a 1", "b 1", "c 1", "é 2"]
    assert found.after == one.after  # type: ignore[union-attr]
    found = merged_page([page(), page(record("c", 1), after="d")])
    assert (bodies(found), found.after) == (["c 1"], page(after="d").after)  # type: ignore[union-attr]


def test_brokers_that_are_away_have_none_and_other_refusals_are_of_the_whole() -> None:
    there, reading = page(record("a", 1), after="a"), Refused(ResponseCode.SYSTEM_ERROR, "reads its log")
    assert bodies(merged_page([AWAY, there])) == ["a 1"]
    assert merged_page([AWAY, there]).after == there.after  # type: ignore[union-attr]
    assert merged_page([there]) is there
    assert merged_page([]) == RetainedRecords([], None)
    assert merged_page([AWAY, AWAY]) is AWAY
    assert merged_page([there, reading]) is reading
    assert merged_page([reading]) is reading


@pytest.mark.parametrize(
    "wrong", [RetainedRecords([], "?"), RetainedRecords([b"\0\0\0\4"], None)], ids=["place", "record"]
)
def test_answers_that_make_no_sense_are_refused(wrong: RetainedRecords) -> None:
    found = merged_page([page(record("a", 1)), wrong])
    assert isinstance(found, Refused)
    assert "cannot be read" in found.remark
