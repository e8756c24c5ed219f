"""`iotmq console user`: the file of the people who sign in."""

from __future__ import annotations

import io
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from iotmq import limits
from iotmq.commands.cli import main
from iotmq.console.access.console_users import users_file
from iotmq.credentials import argon2

PASSWORD = b"correct horse\n"


class Shell:
    def __init__(self, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = data
        self._monkeypatch = monkeypatch

    def run(self, *words: str, stdin: bytes = b"") -> int:
        given = SimpleNamespace(buffer=io.BytesIO(stdin), isatty=lambda: False)
        self._monkeypatch.setattr(sys, "stdin", given)
        return main(["console", "user", *words, "--data", str(self.data)])


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path / "data", monkeypatch)


def test_a_user_is_added_changed_and_removed(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    path = shell.data / "console" / "users"
    add = ("add", "ada", "--role", "administrator", "--password-file", "-")
    assert shell.run(*add, stdin=PASSWORD) == 0
    assert shell.run("add", "bob", "--password-file", "-", stdin=PASSWORD) == 0
    capsys.readouterr()
    assert shell.run("list") == 0
    assert capsys.readouterr().out == "ada administrator\nbob viewer\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    former = users_file(path).read()["ada"].kept
    assert argon2.is_password_of(former, b"correct horse")
    assert shell.run("password", "ada", "--password-file", "-", stdin=b"another horse") == 0
    assert shell.run("role", "bob", "operator") == 0
    users = users_file(path).read()
    assert (users["ada"].kept != former, users["ada"].role, users["bob"].role) == (
        True,
        "administrator",
        "operator",
    )
    assert shell.run("remove", "bob") == 0
    assert list(users_file(path).read()) == ["ada"]


def test_users_of_whom_none_may_make_others_are_spoken_of(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = "no user is administrator: see `iotmq console user role`\n"
    assert shell.run("list") == 0
    assert capsys.readouterr().err == f"{shell.data / 'console' / 'users'} has no users\n"
    assert shell.run("add", "ada", "--password-file", "-", stdin=PASSWORD) == 0
    assert capsys.readouterr().err == f"ada: added as viewer\n{hint}"
    assert shell.run("role", "ada", "administrator") == 0
    assert shell.run("role", "ada", "operator") == 0
    assert capsys.readouterr().err == f"ada: administrator\nada: operator\n{hint}"
    assert shell.run("remove", "ada") == 0
    assert capsys.readouterr().err == "ada: removed\n"


@pytest.mark.parametrize(
    ("words", "stdin", "problem"),
    [
        (("add", "ada", "--password-file", "-"), PASSWORD, "there is a user ada already"),
        (("add", "e:ve", "--password-file", "-"), PASSWORD, "a name has"),
        (("add", "eve", "--password-file", "-"), b"short\n", "at least"),
        (("add", "eve", "--password-file", "-"), b"\xff" * 12, "not UTF-8"),
        (
            ("add", "eve", "--password-file", "-"),
            b"x" * (limits.CONSOLE_PASSWORD_BYTES_MAX + 1),
            "at most",
        ),
        (("add", "eve"), b"", "no terminal"),
        (("remove", "eve"), b"", "there is no user 'eve'"),
        (("password", "eve", "--password-file", "-"), PASSWORD, "there is no user 'eve'"),
        (("role", "eve", "viewer"), b"", "there is no user 'eve'"),
        (("list", "--set", "http.sign_in.enabled=false"), b"", "nobody signs in"),
    ],
)
def test_what_is_refused_changes_nothing(
    shell: Shell, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], stdin: bytes, problem: str
) -> None:
    shell.run("add", "ada", "--password-file", "-", stdin=PASSWORD)
    before = (shell.data / "console" / "users").read_bytes()
    assert shell.run(*words, stdin=stdin) == 2
    assert problem in capsys.readouterr().err
    assert (shell.data / "console" / "users").read_bytes() == before


def test_another_file_is_named_by_the_settings_or_a_word(shell: Shell, tmp_path: Path) -> None:
    for place in (("--file", str(tmp_path / "a")), ("--set", f"http.sign_in.users_file={tmp_path / 'b'}")):
        assert shell.run("add", "ada", "--password-file", "-", *place, stdin=PASSWORD) == 0
    assert list(users_file(tmp_path / "a").read()) == list(users_file(tmp_path / "b").read()) == ["ada"]
    assert not shell.data.exists()


def test_a_broken_file_is_named(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    path = shell.data / "console" / "users"
    path.parent.mkdir(parents=True)
    path.write_text("nonsense\n")
    assert shell.run("list") == 2
    assert "line 1" in capsys.readouterr().err
