"""Secrets from files, variables and commands: what is taken, what is refused, and what is never shown."""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path

import msgspec
import pytest

from iotmq import limits, secret_text
from iotmq.errors import ConfigError
from iotmq.secret_text import SECRET_SHOWN, Secret, hide, read_secret


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("hidden")
    path.chmod(0o600)
    return path


def refusal(table: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        read_secret(table)
    text = str(caught.value)
    assert "hidden" not in text + "".join(traceback.format_exception(caught.value))
    return text


def test_a_secret_does_not_show_itself_and_is_text_all_the_same() -> None:
    secret = Secret("hidden")
    assert repr(secret) == f"'{SECRET_SHOWN}'"
    assert "hidden" not in f"{[secret]} {({'a': secret},)} {secret!r}"
    assert secret == "hidden"
    assert secret.encode() == b"hidden"
    assert msgspec.json.encode({"a": secret}, enc_hook=str) == b'{"a":"hidden"}'


def test_settings_that_do_not_change_hide_their_secrets() -> None:
    class Settings(msgspec.Struct, frozen=True):
        name: str
        secret: str
        other: str = ""

        def __post_init__(self) -> None:
            hide(self, "secret", "other")

    assert repr(Settings("a", "hidden")) == f"Settings(name='a', secret='{SECRET_SHOWN}', other='')"
    assert repr(msgspec.convert({"name": "a", "secret": "hidden"}, Settings)).count("hidden") == 0
    assert "hidden" not in repr(msgspec.structs.replace(Settings("a", "hidden"), other="hidden too"))


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"hidden", "hidden"),
        (b"hidden\n", "hidden"),
        (b"hidden\r\n", "hidden"),
        (b"hidden \n\n", "hidden \n"),
        ("hidden ü".encode(), "hidden ü"),
        (b"x" * limits.SECRET_BYTES_MAX, "x" * limits.SECRET_BYTES_MAX),
    ],
)
def test_a_secret_is_a_file_without_its_last_line_end(file: Path, content: bytes, secret: str) -> None:
    file.write_bytes(content)
    assert read_secret({"file": str(file)}) == secret


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"hidden\xff", "not UTF-8"),
        (b"h" * (limits.SECRET_BYTES_MAX + 1), f"more than {limits.SECRET_BYTES_MAX} bytes"),
    ],
)
def test_a_file_that_is_none_is_refused_by_name(file: Path, content: bytes, words: str) -> None:
    file.write_bytes(content)
    text = refusal({"file": str(file)})
    assert words in text
    assert str(file) in text


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    try:
        assert "is not a regular file" in refusal({"file": str(pipe)})
    finally:
        pipe.unlink()
    assert "Is a directory" in refusal({"file": str(tmp_path)})
    assert "cannot be read: No such file" in refusal({"file": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("mode", "is_warned"), [(0o600, False), (0o640, False), (0o644, True), (0o622, True)]
)
def test_a_file_that_others_may_read_is_warned_of(
    file: Path, mode: int, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    file.chmod(mode)
    read_secret({"file": str(file)})
    assert ("chmod 600" in caplog.text) is is_warned
    assert "hidden" not in caplog.text


def test_a_secret_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "hidden\n")
    assert read_secret({"env": "A_SECRET"}) == "hidden"
    monkeypatch.setenv("A_SECRET", "")
    assert "variable A_SECRET is empty" in refusal({"env": "A_SECRET"})
    monkeypatch.delenv("A_SECRET")
    assert "no environment variable A_SECRET" in refusal({"env": "A_SECRET"})
    monkeypatch.setenv("N" * limits.SECRET_VARIABLE_BYTES_MAX, "hidden")
    assert read_secret({"env": "N" * limits.SECRET_VARIABLE_BYTES_MAX}) == "hidden"
    assert "a secret is text" in refusal({"env": "N" * (limits.SECRET_VARIABLE_BYTES_MAX + 1)})


def test_a_secret_from_a_command() -> None:
    assert read_secret({"command": ["echo", "hidden"]}) == "hidden"
    words = ["x"] * (limits.SECRET_COMMAND_ARGUMENTS_MAX - 1)
    assert read_secret({"command": ["echo", *words]}) == " ".join(words)
    assert "a secret is text" in refusal({"command": ["echo", "x", *words]})


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/nowhere/at-all"], "cannot be run: No such file"),
        (["sh", "-c", "echo hidden; exit 3"], "the command sh ended with code 3"),
        (["true"], "is empty"),
        (["sh", "-c", "yes hidden"], f"more than {limits.SECRET_BYTES_MAX} bytes"),
        ([], "a secret is text"),
        (["a\0b"], "cannot be run"),
    ],
)
def test_a_command_that_tells_none_is_refused_by_name(command: list[str], words: str) -> None:
    assert words in refusal({"command": command})


def test_a_command_that_does_not_end_is_killed_with_what_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(secret_text.limits, "SECRET_COMMAND_S", 0.3)
    began_s = time.monotonic()
    number = tmp_path / "pid"
    script = f"sleep 100 & echo $! > {number}; wait"
    assert "did not end within 0.3 s" in refusal({"command": ["sh", "-c", script]})
    # Its child has the pipe, too.
    assert "did not end" in refusal({"command": ["sh", "-c", f"sleep 100 & echo $! > {number}; echo x"]})
    assert time.monotonic() - began_s < 20


@pytest.mark.parametrize(
    "table",
    [{}, {"file": "a", "env": "b"}, {"path": "a"}, {"file": ""}, {"file": 3}, {"command": "echo hidden"}],
)
def test_a_table_that_says_nothing_or_too_much_is_refused(table: dict[str, object]) -> None:
    assert "a secret is text, {file" in refusal(table)
