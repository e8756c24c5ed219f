"""The file of the people who sign in at the console."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotmq import limits
from iotmq.console.access.console_users import (
    ConsoleUser,
    checked_name,
    checked_new_password,
    encode_users,
    parse_users,
    password_bytes,
    users_file,
)
from iotmq.console.access.kept_file import KeptFileError
from iotmq.credentials import argon2

HASH = argon2.make(b"password-1", memory_kib=64, rounds=1)


def test_users_are_read_as_they_were_written(tmp_path: Path) -> None:
    users = {name: ConsoleUser(name, "viewer", HASH) for name in ("ada", "b.c+d@example.org", "7_-")}
    assert parse_users(encode_users(users)) == users
    file = users_file(tmp_path / "users")
    file.change_now(lambda items: items.update(users))
    assert file.read() == users


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("ada", "role of ada"),
        (f"ada:root:{HASH}", "role of ada is none of viewer, operator, administrator"),
        (f"ada:viewer{HASH}", "role of ada"),
        ("ada:viewer:password", "hash of ada"),
        ("ada:viewer:$argon2id$v=19$m=999999999,t=2,p=1$c2FsdHNhbHQ$c2FsdHNhbHRzYWx0c2E", "KiB of memory"),
        (f":viewer:{HASH}", "a name has"),
        (f"-a:viewer:{HASH}", "a name has"),
        (f"a b:viewer:{HASH}", "a name has"),
        (f"ä:viewer:{HASH}", "a name has"),
        (f"a\x00:viewer:{HASH}", "a name has"),
    ],
    ids=range(10),
)
def test_a_wrong_line_is_named_without_its_hash(line: str, problem: str) -> None:
    with pytest.raises(KeptFileError, match=problem) as raised:
        parse_users(f"bob:viewer:{HASH}\n{line}\n".encode())
    assert str(raised.value).startswith("line 2: ")
    assert HASH not in str(raised.value)


def test_so_many_users_fit() -> None:
    lines = [f"u{number}:viewer:{HASH}\n" for number in range(limits.CONSOLE_USERS_MAX + 1)]
    assert len(parse_users("".join(lines[1:]).encode())) == limits.CONSOLE_USERS_MAX
    with pytest.raises(KeptFileError, match="more than"):
        parse_users("".join(lines).encode())


def test_a_file_is_no_larger_than_allowed(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_bytes(b"#" * limits.CONSOLE_FILE_BYTES_MAX)
    assert users_file(path).read() == {}
    path.write_bytes(b"#" * (limits.CONSOLE_FILE_BYTES_MAX + 1))
    with pytest.raises(KeptFileError, match="bytes"):
        users_file(path).read()


def test_names_have_their_length() -> None:
    longest = "a" * limits.CONSOLE_USER_NAME_CHARACTERS_MAX
    assert checked_name(longest) == longest
    for wrong in (longest + "a", "", "a\n", "a:b"):
        with pytest.raises(ValueError, match="a name has"):
            checked_name(wrong)


def test_passwords_have_their_length() -> None:
    shortest = "x" * limits.CONSOLE_PASSWORD_CHARACTERS_MIN
    longest = "x" * limits.CONSOLE_PASSWORD_BYTES_MAX
    assert checked_new_password(shortest) == shortest.encode()
    assert checked_new_password(longest) == longest.encode()
    with pytest.raises(ValueError, match="at least"):
        checked_new_password(shortest[1:])
    with pytest.raises(ValueError, match="at most"):
        checked_new_password(longest + "x")


def test_a_letter_is_the_same_however_it_is_typed() -> None:
    assert password_bytes("e\u0301") == password_bytes("\u00e9") == "\u00e9".encode()
