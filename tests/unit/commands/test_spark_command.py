"""`iotmq spark`: jobs are found, their files checked, and submissions rendered."""

from __future__ import annotations

import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
from gateway_process import free_port

pytest.importorskip("pyspark")

from iotmq.bridge import jobs, spark_session
from iotmq.commands.cli import main


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the job of these tests."""

    topic: str
    """The topic."""
    seconds: int = 5
    """How long."""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, Any]]:
    """A job named counting, and what it was run with."""
    made: list[tuple[Any, Any]] = []
    job: Any = ModuleType(f"{jobs.__name__}.counting")
    job.__doc__ = "Counts things.\n\nIn detail."
    job.NAME, job.Settings = "counting", Settings
    job.run = lambda spark, settings, *, signals: made.append((spark, settings)) or 3
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "counting.py").write_text("")
    monkeypatch.setitem(sys.modules, job.__name__, job)
    monkeypatch.setattr(jobs, "__path__", [*jobs.__path__, str(tmp_path / "jobs")])
    return made


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "counting.toml"
    path.write_text(
        'topic = "telemetry"\n[spark]\ncores = 2\nprofile = "low_latency"\nconf = { "spark.x" = "y" }\n'
    )
    return path


def test_a_job_gets_its_settings_and_a_session_as_its_file_says(
    monkeypatch: pytest.MonkeyPatch, runs: list[tuple[Any, Any]], config: Path
) -> None:
    started = mock.Mock()
    monkeypatch.setattr(spark_session, "session", started)
    assert main(["spark", "run", "counting", "--config", str(config)]) == 3
    spark = started.return_value
    assert runs == [(spark, Settings(topic="telemetry"))]
    started.assert_called_once_with("iotmq counting", cores=2, profile="low_latency", conf={"spark.x": "y"})
    spark.stop.assert_called_once_with()


def test_a_wrong_file_is_refused_with_names_and_lines(
    runs: list[tuple[Any, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text('second = 3\n[spark]\nprofile = "fast"\n')
    assert main(["spark", "run", "counting", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"second ({path} line 1) is unknown; did you mean seconds?" in said
    assert "    there are: topic, seconds\n" in said
    assert "topic is missing" in said
    assert f'spark.profile = "fast" ({path} line 3) is refused' in said
    assert runs == []


def test_jobs_are_listed_and_unknown_ones_refused(
    runs: list[tuple[Any, Any]], config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["spark", "jobs"]) == 0
    assert "counting              Counts things.\n" in capsys.readouterr().out
    assert main(["spark", "run", "countin", "--config", str(config)]) == 2
    assert "there is no job 'countin'; did you mean counting" in capsys.readouterr().err


def test_a_submission_is_checked_and_printed(
    monkeypatch: pytest.MonkeyPatch,
    runs: list[tuple[Any, Any]],
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(spark_session, "ensure_java", lambda: "java")
    words = ["spark", "submit", "--master", "spark://m:7077", "--config", str(config), "--print"]
    assert main([*words, "counting"]) == 0
    said = capsys.readouterr().out
    assert f"iotmq_job.py spark run counting --config {config}" in said
    assert f"{tmp_path}/cache/iotmq/spark/packages-" in said
    assert main([*words, "counting", "--seconds", "3"]) == 2
    assert "options stand before its name" in capsys.readouterr().err
    program = tmp_path / "p.py"
    program.write_text("")
    assert main(["spark", "submit", "--master", "local[2]", "--print", str(program), "-x", "--", "1"]) == 0
    assert capsys.readouterr().out.endswith(f"{program} -x -- 1\n")
    assert main([*words, str(program)]) == 2
    assert "--config is for jobs" in capsys.readouterr().err
    assert main(["spark", "submit", "--master", "local[2]", str(tmp_path / "no.py")]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_a_submission_answers_what_its_program_answered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    launcher = home / "bin" / "spark-submit"
    launcher.write_text('#!/bin/bash\necho "$@" > "$0.said"\nexit 7\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setattr(spark_session, "ensure_java", lambda: "java")
    program = tmp_path / "p.py"
    program.write_text("")
    assert main(["spark", "submit", "--master", "local[2]", str(program), "1"]) == 7
    said = launcher.with_name("spark-submit.said").read_text()
    assert said == f"--master local[2] --deploy-mode client {program} 1\n"


def test_the_metrics_of_a_job_have_a_page_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, runs: list[tuple[Any, Any]], tmp_path: Path
) -> None:
    port = free_port()
    config = tmp_path / "job.toml"
    config.write_text(f'topic = "t"\n[spark]\nmetrics_port = {port}\nprogress = false\n')
    monkeypatch.setattr(spark_session, "session", mock.Mock())
    job = sys.modules[f"{jobs.__name__}.counting"]

    def run(spark: Any, _settings: Any, *, signals: Any) -> None:
        (listener,) = spark.streams.addListener.call_args.args
        listener.onQueryStarted(SimpleNamespace(id="q", name="readings"))
        listener.take("q", batch=0, rows=7, duration_ms=500, sources=())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            assert 'iotmq_spark_rows_total{query="readings"} 7.0' in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=5)

    monkeypatch.setattr(job, "run", run)
    assert main(["spark", "run", "counting", "--config", str(config)]) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_a_port_for_metrics_that_is_taken_is_said(
    runs: list[tuple[Any, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "job.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config.write_text(f'topic = "t"\n[spark]\nmetrics_port = {taken.getsockname()[1]}\n')
        assert main(["spark", "run", "counting", "--config", str(config)]) == 2
    assert "spark.metrics_port = " in capsys.readouterr().err
