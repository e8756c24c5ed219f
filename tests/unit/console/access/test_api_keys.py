"""API keys: their file, and which token is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotmq import limits
from iotmq.console.access.api_keys import ApiKey, encode_keys, find_key, keys_file, make_secret, parse_keys
from iotmq.console.access.kept_file import KeptFileError

TOKEN, KEPT = make_secret("line-4.robot")
KEY = ApiKey("line-4.robot", "operator", 1_000, 2_000, frozenset({"dead letters", "messages"}), KEPT)


def test_keys_are_read_as_they_were_written(tmp_path: Path) -> None:
    keys = {KEY.name: KEY, "b": KEY._replace(name="b", areas=frozenset())}
    assert parse_keys(encode_keys(keys)) == keys
    file = keys_file(tmp_path / "api-keys")
    file.change_now(lambda items: items.update(keys))
    assert file.read() == keys
    assert TOKEN.rpartition(".")[2] not in file.path.read_text()


def test_a_key_is_found_until_it_expires() -> None:
    keys = {KEY.name: KEY}
    assert TOKEN.startswith("iotmq-key.line-4.robot.")
    assert find_key(keys, TOKEN, 1_999) is KEY
    assert find_key(keys, TOKEN, 2_000) is None


@pytest.mark.parametrize(
    "token",
    [
        "",
        "iotmq-key.",
        "iotmq-key..",
        TOKEN[:-1],
        TOKEN + "A",
        TOKEN.upper(),
        TOKEN.replace("line-4", "line-5"),
        f"iotmq-key.line-4.robot.{KEPT}",
        f"iotmq-key.line-4.robot.{KEPT.partition('$')[2]}",
        "iotmq-key.line-4.robot.\udcff",
        "iotmq-key." + "a" * 60_000,
    ],
    ids=range(11),
)
def test_a_forged_key_is_none(token: str) -> None:
    assert find_key({KEY.name: KEY}, token, 1_500) is None


def test_two_keys_of_one_name_have_nothing_in_common() -> None:
    other, kept = make_secret("line-4.robot")
    assert find_key({KEY.name: KEY}, other, 1_500) is None
    assert kept != KEPT


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("a", "1 parts"),
        (f"a:root:1:2::{KEPT}", "role of a"),
        (f"a b:viewer:1:2::{KEPT}", "a name has"),
        (f"a:viewer:x:2::{KEPT}", "time of a"),
        (f"a:viewer:1:-2::{KEPT}", "time of a"),
        (f"a:viewer:1:2:,:{KEPT}", "area of a"),
        (f"a:viewer:1:2:<b>:{KEPT}", "area of a"),
        ("a:viewer:1:2::secret", "digest of a"),
    ],
    ids=range(8),
)
def test_a_wrong_line_is_named_without_its_digest(line: str, problem: str) -> None:
    with pytest.raises(KeptFileError, match=problem) as raised:
        parse_keys(line.encode())
    assert KEPT not in str(raised.value)


def test_so_many_keys_fit() -> None:
    names = [f"k{number}" for number in range(limits.CONSOLE_API_KEYS_MAX + 1)]
    keys = {name: KEY._replace(name=name) for name in names}
    with pytest.raises(KeptFileError, match="more than"):
        parse_keys(encode_keys(keys))
    keys.popitem()
    assert len(parse_keys(encode_keys(keys))) == limits.CONSOLE_API_KEYS_MAX
