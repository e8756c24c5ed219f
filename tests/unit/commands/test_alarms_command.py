"""`iotmq alarms`, as far as no gateway answers; tests/integration/test_http_api_alarms.py has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotmq.commands.cli import main


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("token-of-the-operator\n")
    return file


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["alarms", *words]) == 1
    return capsys.readouterr().err


def test_without_a_token_it_says_where_one_may_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--token-file" in complaint(capsys, "list")


def test_a_token_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/nowhere cannot be read" in complaint(capsys, "list", "--token-file", "/nowhere")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://127.0.0.1:1/base", "http://127.0.0.1:x"])
def test_a_gateway_that_does_not_answer_is_named(
    url: str, token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("list", "--token-file", str(token_file), "--http", url)
    assert f"{url} cannot be asked" in complaint(capsys, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("silence", "a", "--for", "1h"),
        ("silence", "a", "--reason", "x"),
        ("silence", "a", "--for", "soon", "--reason", "x"),
        ("history", "--limit", "0"),
        ("acknowledge",),
        ("ring",),
    ],
)
def test_wrong_words_are_answered_with_the_usage(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["alarms", *words])
    assert ended.value.code == 2
    assert "usage: iotmq alarms" in capsys.readouterr().err
