"""The words of `iotmq loadtest`."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from swarm_runs import running_sink

from iotmq.commands.cli import main
from loadtest.plan_options import PROGRAM_WORDS, WORDS
from loadtest.swarm import Plan, Sink


@pytest.fixture
def sink() -> Iterator[Sink]:
    with running_sink() as sink:
        yield sink


def run(sink_port: int, *words: str) -> int:
    return main(["loadtest", "run", "--quiet", "--port", str(sink_port), *words])


def test_a_test_prints_what_happened_and_leaves_files(
    sink: Sink, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, page = (tmp_path / name for name in ("a.json", "b.json", "page.html"))
    words = ["--publishers", "3", "--messages", "300", "--warmup", "0"]
    assert run(sink.port, *words, "--json", str(first), "--html", str(page)) == 0
    printed = capsys.readouterr().out
    assert "connections: 3 of 3" in printed
    assert "nothing was lost, repeated or refused" in printed
    assert "<svg" in page.read_text()
    assert run(sink.port, *words, "--qos", "2", "--json", str(second)) == 0
    assert main(["loadtest", "report", str(first), str(second), "--output", str(page)]) == 0
    text = page.read_text()
    assert "load test (a)" in text
    assert "load test (b)" in text
    assert json.loads(first.read_text())["counters"]["acknowledged"] == 300


def test_the_result_can_be_printed(sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(sink.port, "--idle", "2", "--seconds", "0.1", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["connect"]["ready"] == 2


def test_progress_goes_to_standard_error(sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--port",
        str(sink.port),
        "--publishers",
        "1",
        "--rate",
        "100",
        "--seconds",
        "1.5",
        "--warmup",
        "0",
    ]
    assert main(["loadtest", "run", "--prometheus", "0", *words]) == 0
    printed = capsys.readouterr().err
    assert re.search(r"metrics: http://127.0.0.1:\d+/metrics", printed)
    assert re.search(r"1 connected, \d+ published", printed)


def test_a_server_that_is_not_there_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert run(port, "--idle", "2") == 1
    assert "failed: 2 ECONNREFUSED" in capsys.readouterr().out


def test_a_plan_file_says_what_options_do_not(sink: Sink, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f'publishers = 2\nmessages_max = 50\nwarmup_s = 0\nclient_id = "x%i"\nport = {sink.port}\n'
        'source_addresses = ["127.0.0.2-127.0.0.3"]\n'
    )
    path = tmp_path / "result.json"
    words = ["loadtest", "run", "--quiet", "--plan", str(plan), "--messages", "60", "--json", str(path)]
    assert main(words) == 0
    result = json.loads(path.read_text())
    assert result["counters"]["published"] == 60
    assert result["plan"]["client_id"] == "x%i"
    assert result["plan"]["source_addresses"] == ["127.0.0.2", "127.0.0.3"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("publisher = 2", "no 'publisher'; did you mean publishers?"),
        ('publishers = "2"', "publishers is int, not '2'"),
        ("publishers = true", "publishers is int, not True"),
        ("tls = 1", "tls is bool, not 1"),
        ('seconds = "x"', "seconds is float, not 'x'"),
        ("source_addresses = [1]", "source_addresses is str, not 1"),
        ("publishers =", "no TOML"),
        ("publishers = 1\nrate_per_s = -5", "rate_per_s is -5, and may not be negative"),
        ("publishers = 1\nwindow = 0", "window must be"),
        ("subscribers = 1\nrate_per_s = 5", "a rate needs publishers"),
        ("tls_certificates = 'a.pem'", "tls_certificates is a list, not 'a.pem'"),
        ("idle = 1\nseconds = nan", "seconds is nan"),
        ("idle = 1\nconnects_in_progress_max = 0", "connects_in_progress_max is 0"),
        ("idle = 1\npassword = 'x'", "a password needs a username"),
        ("publishers = 1\nsubscribers = 1\nfilter = 'x/+'", "matches no topic of the publishers"),
        ("publishers = 1\npayload_bytes = 1048577", "payload_bytes is 1048577"),
        (
            "subscribers = 1\nkeeps_sessions = true\nleave_per_s = 1\nreturn_after_s = 11",
            "return_after_s is 11",
        ),
    ],
)
def test_a_plan_that_is_wrong_is_refused_by_name(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(text)
    assert main(["loadtest", "run", "--plan", str(plan)]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--idle", "1", "--source-address", "here"], "source address 'here'"),
        (["--idle", "1", "--source-address", "127.0.0.9-127.0.0.2"], "is not FIRST-LAST"),
        (["--idle", "1", "--source-address", "127.0.0.1-127.0.0.255"], "is not FIRST-LAST"),
        (["--idle", "1", "--source-address", "192.0.2.1"], "source address 192.0.2.1: Cannot assign"),
        (["--idle", "1", "--processes", "0"], "processes must be"),
        (["--idle", "1", "--core", "9999"], "there is no core 9999"),
        (["--idle", "1", "--prometheus", "99999"], "no metrics on 127.0.0.1:99999"),
        (["--idle", "1", "--json", "/nowhere/x.json"], "/nowhere/x.json: No such file"),
        (["--idle", "1", "--html", "/nowhere/x.html"], "/nowhere/x.html: No such file"),
        (["--publishers", "9000", "--window", "65535", "--payload-bytes", "1000000"], "a smaller window"),
        (["--idle", "1", "--server-pid", "999999999"], "no process 999999999"),
        (["--plan", "nowhere.toml"], "nowhere.toml: No such file"),
        ([], "at least one connection"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["loadtest", "run", *words]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["sink", "--core", "9999"], "there is no core 9999"),
        (["sink", "--port", "99999"], "no sink on 127.0.0.1:99999"),
        (["calibrate", "--sink-core", "9999"], "there is no core 9999"),
        (["report", "x.json", "--output", "/nowhere/x.html"], "/nowhere/x.html: No such file"),
    ],
)
def test_what_other_actions_cannot_do_is_said(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["loadtest", *words]) == 2
    assert problem in capsys.readouterr().err


def test_a_sink_whose_port_is_taken_says_so(sink: Sink, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["loadtest", "sink", "--port", str(sink.port)]) == 2
    assert "Address already in use" in capsys.readouterr().err


def test_a_p99_without_subscribers_or_a_rate_is_that_of_acknowledgements(
    sink: Sink, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--publishers", "2", "--messages", "100", "--p99-ms", "0.000001"]
    assert run(sink.port, *words) == 1
    assert "acknowledgement: p50" in (printed := capsys.readouterr().out)
    assert re.search(r"^p99 is .* ms, more than 1e-06 ms$", printed, re.M)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_test_with_its_result(sink: Sink, number: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    words = ["--publishers", "1", "--rate", "100", "--seconds", "600", "--port", str(sink.port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "iotmq", "loadtest", "run", *words, "--json", str(path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "connected" in process.stderr.readline()
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert json.loads(path.read_text())["notes"][0] == "it was ended early"


def test_the_longest_range_of_source_addresses_is_taken(sink: Sink) -> None:
    assert run(sink.port, "--idle", "1", "--seconds", "0", "--source-address", "127.0.0.1-127.0.0.254") == 0


def test_too_few_files_are_said_before_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    files_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert main(["loadtest", "run", "--idle", str(files_max), "--port", "1"]) == 2
    assert "ulimit -n" in capsys.readouterr().err


def test_a_page_of_three_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["loadtest", "report", "a", "b", "c"]) == 2
    assert "not 3" in capsys.readouterr().err
    assert main(["loadtest", "report", str(tmp_path / "a.json")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_every_option_sets_a_field_of_a_plan_of_its_type() -> None:
    types = {field.name: str(field.type) for field in fields(Plan)}
    named = [word for words in (*WORDS.values(), PROGRAM_WORDS) for word in words.values()]
    for word in named:
        kind = f"tuple[{word.item.__name__}" if word.kind is list else word.kind.__name__
        assert kind in types[word.name], word.name
    # What programs set by themselves.
    assert set(types) - {word.name for word in named} == {
        "publish_properties", "subscriber_base", "idle_base",
    }  # fmt: skip


def test_the_password_may_be_in_the_environment(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("IOTMQ_LOADTEST_PASSWORD", "hidden")
    assert run(sink.port, "--idle", "1", "--username", "u%i", "--seconds", "0", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["plan"]["password"] == "(not shown)"
