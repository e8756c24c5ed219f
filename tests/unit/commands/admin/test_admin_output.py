"""How results of `iotmq admin` look, and how what is typed is read."""

from __future__ import annotations

import argparse
import json
import time

import pytest

from iotmq.commands.admin import arguments
from iotmq.commands.admin.output import Done, Fields, Nothing, Table, as_json, printable, time_text


def test_a_table_aligns_text_left_and_numbers_right() -> None:
    rows = [{"name": "a", "count": 5}, {"name": "long name", "count": 12_345}]
    table = Table(rows)
    assert table.text() == "name       count\na              5\nlong name  12345\n"
    assert json.loads(as_json(table)) == rows


def test_a_table_shows_people_the_columns_named_and_programs_all() -> None:
    table = Table([{"name": "a", "hidden": 1}, {"name": "b"}], columns=("name", "more"))
    assert table.text() == "name  more\na     -\nb     -\n"
    assert json.loads(as_json(table)) == [{"name": "a", "hidden": 1}, {"name": "b"}]


def test_yes_and_no_stand_on_the_left_like_other_words() -> None:
    assert Table([{"drained": True}, {"drained": False}]).text() == "drained\nyes\nno\n"


def test_no_rows_are_said_in_words_and_as_an_empty_list() -> None:
    table = Table([], nothing="no groups")
    assert table.text() == "no groups\n"
    assert as_json(table) == "[]\n"


def test_values_are_written_for_people() -> None:
    row = {"a": None, "b": True, "c": [1, 2], "d": {"g": 1}, "e": 1.25, "f": "", "g_ms": 0, "h": ()}
    lines = Table([row]).text().splitlines()
    assert lines[1].split() == ["-", "yes", "1,", "2", "g=1", "1.2", "-", "-", "-"]


def test_nothing_in_a_message_steers_the_terminal() -> None:
    assert printable("a\x1b[2Jb") == "a\\x1b[2Jb"
    assert "\x1b" not in Fields({"body": "\x1b[2J"}).text()
    assert "\x1b" not in Done("\x1b", {}).text()


def test_times_are_local_and_say_their_offset() -> None:
    assert time_text(1_700_000_000_000).startswith("2023-11-1")
    assert time_text(10**20) == str(10**20)


def test_an_action_that_said_everything_prints_nothing() -> None:
    assert Nothing().text() == ""
    assert as_json(Nothing()) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3", [3]), ("0,2", [0, 2]), ("4-7", [4, 5, 6, 7]), ("7,1-2,1", [1, 2, 7])],
)
def test_queue_numbers_are_read(text: str, expected: list[int]) -> None:
    assert arguments.queue_ids(text) == expected


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "2-1", "1-", "0-65536"])
def test_what_is_no_queue_number_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.queue_ids(text)


def test_times_are_read() -> None:
    now_ms = time.time() * 1000
    assert arguments.time_ms("1700000000000") == 1_700_000_000_000
    assert abs(arguments.time_ms("90m") - (now_ms - 90 * 60_000)) < 60_000
    assert arguments.time_ms("2023-11-14T22:13:20+00:00") == 1_700_000_000_000
    assert arguments.place_ms("begin") == 0
    assert arguments.place_ms("end") == -1


@pytest.mark.parametrize("text", ["", "soon", "9" * 9 + "d", "2023-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.time_ms(text)


def test_permissions_and_pairs_are_read() -> None:
    assert [arguments.permissions(text) for text in ("rw", "r", "w", "none")] == [6, 4, 2, 0]
    assert [arguments.permission_text(perm) for perm in (6, 4, 2, 0, 7)] == ["rw", "r-", "-w", "--", "rw"]
    assert arguments.pair("a=b=c") == ("a", "b=c")
    for text in ("", "=b", "a"):
        with pytest.raises(argparse.ArgumentTypeError):
            arguments.pair(text)
