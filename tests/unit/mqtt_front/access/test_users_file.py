"""The file of users: what it may say, what is said of lines that are wrong, changes, and `iotmq users`."""

from __future__ import annotations

import getpass
import io
import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from iotmq import limits
from iotmq.commands.cli import main
from iotmq.files import changing
from iotmq.mqtt_front.access import users_file
from iotmq.mqtt_front.access.scram import is_password_of, make_verifier
from iotmq.mqtt_front.access.users_file import (
    UsersFileError,
    parse_users,
    read_users,
    with_users,
    without_user,
)

VERIFIER = make_verifier(b"pencil", iterations=4_096)
LINE = f"user:{VERIFIER}"


def problems(text: str | bytes) -> str:
    with pytest.raises(UsersFileError) as caught:
        parse_users(text if isinstance(text, bytes) else text.encode())
    return str(caught.value)


def test_users_comments_and_empty_lines() -> None:
    users = parse_users(f"# the fleet\n\n  \n{LINE}\r\nnord:süd:{VERIFIER}\n#x:{VERIFIER}".encode())
    assert list(users) == ["user", "nord:süd"]
    assert users.verifier("user") == users.verifier("nord:süd") == VERIFIER
    assert users.verifier("#x") is users.kept("nobody") is None
    assert users.usual_iterations == 4_096


def test_names_are_shared_between_connections() -> None:
    """The name of the table is the one that connections get."""
    (name,) = parse_users(LINE.encode())
    assert sys.intern("".join(["us", "er"])) is name


def test_usual_iterations_are_those_of_most() -> None:
    lines = [
        f"u{number}:{VERIFIER._replace(iterations=10_000 if number < 2 else 5_000)}" for number in range(5)
    ]
    assert parse_users("\n".join(lines).encode()).usual_iterations == 5_000
    assert parse_users(b"").usual_iterations is None


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("user", "it is not name:SCRAM-SHA-256$"),
        ("user:$6$salt$hash", "it is not name:SCRAM-SHA-256$"),
        (f":{VERIFIER}", "1 to 512 bytes"),
        (f"{'n' * (limits.MQTT_USER_NAME_BYTES_MAX + 1)}:{VERIFIER}", "1 to 512 bytes"),
        (f" user:{VERIFIER}", "nor ends with a space"),
        (f"user :{VERIFIER}", "nor ends with a space"),
        (f"us\ter:{VERIFIER}", "U+0009"),
        (f"\N{SOFT HYPHEN}user:{VERIFIER}", "SASLprep form, which is 'user'"),
        (f"{LINE} ", "base64"),
        (LINE.replace("$4096", "$4095"), "4095 iterations"),
        (f"user:{VERIFIER}:{VERIFIER}", "does not have :SCRAM-SHA-256$"),
    ],
)
def test_lines_that_are_wrong_are_named(line: str, what: str) -> None:
    said = problems(f"# one\n\n{line}\n")
    assert said.startswith("line 3: ")
    assert what in said


def test_a_name_of_the_longest() -> None:
    name = "n" * limits.MQTT_USER_NAME_BYTES_MAX
    assert list(parse_users(f"{name}:{VERIFIER}".encode())) == [name]


def test_bytes_that_are_no_text() -> None:
    assert problems(LINE.encode() + b"\n\xff\n") == "line 2: it is not UTF-8 (byte 0)"


def test_a_name_may_be_there_once() -> None:
    assert problems(f"{LINE}\n{LINE}") == "line 2: user 'user' is there twice"


def test_all_wrong_lines_are_named_but_not_without_end() -> None:
    said = problems("x\n" * 100).splitlines()
    assert [line.split(":")[0] for line in said] == [
        *(f"line {number}" for number in range(1, 11)),
        "and more",
    ]


def test_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "users"
    text = f"a:{VERIFIER}\nb:{VERIFIER}\n".encode()
    path.write_bytes(text)
    monkeypatch.setattr(limits, "MQTT_USERS_MAX", 2)
    monkeypatch.setattr(limits, "MQTT_USERS_FILE_BYTES_MAX", len(text))
    assert len(read_users(path)) == 2
    monkeypatch.setattr(limits, "MQTT_USERS_MAX", 1)
    assert "more than 1 users" in problems(text)
    monkeypatch.setattr(limits, "MQTT_USERS_FILE_BYTES_MAX", len(text) - 1)
    with pytest.raises(UsersFileError, match="bytes"):
        read_users(path)


def test_reading_again_looks_at_what_changed_alone() -> None:
    former = parse_users(f"a:{VERIFIER}\nb:{VERIFIER}".encode())
    other = make_verifier(b"other", iterations=4_096)
    users = parse_users(f"b:{other}\nc:{VERIFIER}\na:{VERIFIER}".encode(), former=former)
    assert list(users) == ["b", "c", "a"]
    assert users.verifier("b") == other
    with pytest.raises(UsersFileError, match="line 2"):
        parse_users(f"a:{VERIFIER}\nb:broken".encode(), former=former)


def test_changes_leave_the_rest_as_it_is() -> None:
    data = f"# head\r\na:{VERIFIER}\n\nb:{VERIFIER}\n# tail".encode()
    other = make_verifier(b"other", iterations=4_096)
    assert with_users(data, {"a": other}) == data.replace(f"a:{VERIFIER}".encode(), f"a:{other}".encode())
    assert with_users(data, {"c": other}) == data + f"\nc:{other}\n".encode()
    assert with_users(b"", {"c": other}) == f"c:{other}\n".encode()
    assert without_user(data, "a") == f"# head\r\n\nb:{VERIFIER}\n# tail".encode()
    assert without_user(f"a:{VERIFIER}\n".encode(), "a") == b"# nobody\n"
    assert with_users(data, {"c": other, "b": other, "d": VERIFIER}) == (
        data.replace(f"b:{VERIFIER}".encode(), f"b:{other}".encode())
        + f"\nc:{other}\nd:{VERIFIER}\n".encode()
    )
    assert with_users(data, {}) == data
    with pytest.raises(UsersFileError, match="no user 'c'"):
        without_user(data, "c")


# The command


def run(*words: str, stdin: bytes = b"", monkeypatch: pytest.MonkeyPatch) -> int:
    class Input:
        buffer = io.BytesIO(stdin)

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stdin", Input())
    return main(["users", *words])


def test_users_are_added_changed_listed_checked_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "users"
    file = ("--file", str(path))
    assert (
        run("add", "one", "--password-file", "-", *file, stdin=b"first\nrest", monkeypatch=monkeypatch) == 0
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = tmp_path / "secret"
    secret.write_bytes(b"second\r\n")
    words = ("add", "zwei", "--password-file", str(secret), "--iterations", "5000", *file)
    assert run(*words, monkeypatch=monkeypatch) == 0
    users = read_users(path)
    assert list(users) == ["one", "zwei"]
    verifier = users.verifier("zwei")
    assert verifier is not None
    assert verifier.iterations == 5_000
    assert is_password_of(verifier, b"second")
    assert run("add", "one", "--password-file", "-", *file, stdin=b"third", monkeypatch=monkeypatch) == 0
    capsys.readouterr()
    assert run("list", *file, monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == "one\nzwei\n"
    check = ("check", "one", "--password-file", "-", *file)
    assert run(*check, stdin=b"third", monkeypatch=monkeypatch) == 0
    assert run(*check, stdin=b"first", monkeypatch=monkeypatch) == 1
    assert run("check", *file, monkeypatch=monkeypatch) == 0
    assert run("remove", "one", *file, monkeypatch=monkeypatch) == 0
    assert run("remove", "one", *file, monkeypatch=monkeypatch) == 1
    assert list(read_users(path)) == ["zwei"]
    assert path.with_name("users.bak").exists()


def test_the_file_and_the_iterations_may_be_those_of_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "users"
    config = tmp_path / "iotmq.toml"
    config.write_text(f'[mqtt.authentication]\nusers_file = "{path}"\nscram_iterations = 6000\n')
    words = ("add", "one", "--password-file", "-", "--config", str(config))
    assert run(*words, stdin=b"p", monkeypatch=monkeypatch) == 0
    assert read_users(path).usual_iterations == 6_000


def test_many_users_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "users"
    path.write_text(f"# ours\nb:{VERIFIER}\n")
    path.chmod(0o600)
    given = "a:one\nb:tw:o\r\n\ngr\N{SOFT HYPHEN}öße: three \n".encode()
    assert run("import", "-", "--file", str(path), stdin=given, monkeypatch=monkeypatch) == 0
    assert "2 users added, 1 have another password now" in capsys.readouterr().err
    users = read_users(path)
    assert list(users) == ["b", "a", "größe"]
    for name, password in (("a", b"one"), ("b", b"tw:o"), ("größe", b" three ")):
        verifier = users.verifier(name)
        assert verifier is not None
        assert is_password_of(verifier, password)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"secret", "line 2: it is not NAME:PASSWORD"),
        (b"b:", "line 2: it is not NAME:PASSWORD"),
        (b"b:x\0", "none of them NUL"),
        (b"b:" + b"x" * (limits.MQTT_PASSWORD_BYTES_MAX + 1), "1 to 8192 bytes"),
        (b":secret", "line 2: user name '' is refused"),
        (b"#b:secret", "does not begin with #"),
        (b"\xff:secret", "line 2: "),
        (b"a:secret", "line 2: user 'a' is there twice"),
    ],
)
def test_an_import_with_a_wrong_line_changes_nothing_and_shows_no_password(
    line: bytes,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = tmp_path / "given"
    given.write_bytes(b"a:one\n" + line + b"\n")
    path = tmp_path / "users"
    assert run("import", str(given), "--file", str(path), monkeypatch=monkeypatch) == 2
    said = capsys.readouterr().err
    assert what in said
    assert "secret" not in said
    assert not path.exists()


def test_an_import_past_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "users"
    words = ("import", "-", "--file", str(path))
    monkeypatch.setattr(limits, "MQTT_USERS_MAX", 1)
    assert run(*words, stdin=b"a:x\nb:x\n", monkeypatch=monkeypatch) == 1
    assert "more than 1 users" in capsys.readouterr().err
    monkeypatch.setattr(limits, "MQTT_USERS_FILE_BYTES_MAX", 7)
    assert run(*words, stdin=b"a:x\nb:x\n", monkeypatch=monkeypatch) == 2
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "stdin", "code", "what"),
    [
        (("add", "one"), b"p", 2, "say which file"),
        (("add", "one", "--file", "F"), b"p", 2, "--password-file -"),
        (("add", "one", "--file", "F", "--password-file", "-"), b"", 2, "1 to 8192 bytes"),
        (("add", "one", "--file", "F", "--password-file", "-"), b"p" * 8_193, 2, "1 to 8192 bytes"),
        (("add", "one", "--file", "F", "--password-file", "-"), b"p\0", 2, "NUL"),
        (("add", "#one", "--file", "F", "--password-file", "-"), b"p", 2, "does not begin with #"),
        (("add", "", "--file", "F", "--password-file", "-"), b"p", 2, "1 to 512 bytes"),
        (("add", "a\x07", "--file", "F", "--password-file", "-"), b"p", 2, "U+0007"),
        (("add", "a", "--file", "F", "--password-file", "-", "--iterations", "4095"), b"p", 2, "4096 to"),
        (("add", "a", "--file", "F", "--password-file", "-", "--iterations", "1000001"), b"p", 2, "4096 to"),
        (("add", "a", "--file", "F", "--password-file", "missing"), b"", 2, "missing: No such file"),
        (("add", "a", "--file", "none/F", "--password-file", "-"), b"p", 2, "No such file"),
        (("list", "--file", "missing"), b"", 2, "missing: No such file"),
        (("check", "--file", "broken"), b"", 1, "line 1"),
        (("add", "a", "--file", "broken", "--password-file", "-"), b"p", 1, "line 1"),
        (("remove", "user", "--file", "broken"), b"", 1, "line 1"),
        (("remove", "nobody", "--file", "good"), b"", 1, "no user 'nobody'"),
    ],
)
def test_what_the_command_refuses(
    words: tuple[str, ...],
    stdin: bytes,
    code: int,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    broken = tmp_path / "broken"
    broken.write_text("user:pass\n")
    (tmp_path / "good").write_text(LINE + "\n")
    (tmp_path / "good").chmod(0o600)
    assert run(*words, stdin=stdin, monkeypatch=monkeypatch) == code
    assert what in capsys.readouterr().err
    assert broken.read_text() == "user:pass\n"
    assert not (tmp_path / "F").exists()


def test_a_password_is_asked_twice_at_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["pencil", "pencil", "pencil", "pencli"])

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(getpass, "getpass", lambda prompt: next(typed))
    path = tmp_path / "users"
    assert main(["users", "add", "one", "--file", str(path)]) == 0
    verifier = read_users(path).verifier("one")
    assert verifier is not None
    assert is_password_of(verifier, b"pencil")
    assert main(["users", "add", "two", "--file", str(path)]) == 2
    assert "differ" in capsys.readouterr().err
    assert list(read_users(path)) == ["one"]


def test_no_change_is_lost_between_two_who_change_the_file(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_bytes(b"")

    def add(prefix: str) -> None:
        for number in range(20):
            with changing(path):
                data = users_file.read_bytes(path)
                users_file.write_users(path, with_users(data, {f"{prefix}{number}": VERIFIER}))

    threads = [threading.Thread(target=add, args=(prefix,)) for prefix in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_users(path)) == 40


@pytest.mark.parametrize(
    ("before", "after", "is_open"),
    [(0o600, 0o600, False), (0o640, 0o640, False), (0o644, 0o640, True), (0o660, 0o640, True)],
)
def test_the_group_may_go_on_reading_and_others_never(
    before: int, after: int, is_open: bool, tmp_path: Path
) -> None:
    path = tmp_path / "users"
    path.write_bytes(b"")
    path.chmod(before)
    assert (users_file.warn_when_open(path) is not None) is is_open
    users_file.write_users(path, LINE.encode())
    assert stat.S_IMODE(path.stat().st_mode) == after


def test_a_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "users"
    path.write_text(LINE)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert run("remove", "user", "--file", str(path), monkeypatch=monkeypatch) == 2
    assert path.read_text() == LINE
