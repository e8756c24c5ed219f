"""Settings, report and console of jobs, without Spark's JVM."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row

from iotmq.bridge import jobs as jobs_package
from iotmq.bridge.jobs.device_statistics import Arguments, parse_arguments
from iotmq.bridge.jobs.stream_run import Report, without_plan, write_report
from iotmq.bridge.jobs.telemetry_windows import Settings
from iotmq.bridge.jobs.windows_table import render_rows

NEEDED = ["--bootstrap", "h:1", "--topic", "t", "--checkpoint", "c"]


def test_arguments_become_settings_and_the_rest_is_default() -> None:
    words = [*NEEDED, "--console", "--seconds", "1.5", "--conf", "a=b=c", "--conf", "d=e"]
    assert parse_arguments(words) == Arguments(
        Settings(bootstrap="h:1", topic="t", checkpoint="c", console=True, seconds=1.5),
        None,
        {"a": "b=c", "d": "e"},
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (NEEDED, "--parquet"),
        (["--console"], "--bootstrap"),
        ([*NEEDED, "--console", "--device-level", "0"], "device_level"),
        ([*NEEDED, "--console", "--conf", "x"], "NAME=VALUE"),
    ],
)
def test_bad_arguments_end_with_a_message(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_arguments(words)
    assert caught.value.code == 2
    assert text in capsys.readouterr().err


def test_the_report_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    write_report(Report(rows_read=5), path)
    report = Report(rows_read=6, ended="caught up")
    report.add("windows_written", 3)
    report.add("windows_written", 4)
    write_report(report, path)
    found = json.loads(path.read_text())
    assert (found["rows_read"], found["ended"], found["windows_written"]) == (6, "caught up", 7)
    assert list(path.parent.iterdir()) == [path]


def test_rows_are_shown_in_columns() -> None:
    def row(device: str, mean: float, stddev: float | None) -> Row:
        values: dict[str, Any] = {
            "window": "12:00:00-12:01:00",
            "device": device,
            "metric": "load",
            "count": 3,
            "mean": mean,
            "min": 0.5,
            "max": 1e9,
            "stddev": stddev,
            "last": 2.0,
        }
        return cast(Row, Row(**values))

    lines = render_rows([row("a", 1.25, None), row("long-name", 2, 0.125)], 7).splitlines()
    assert lines[0].split() == [
        *("window", "(UTC)", "device", "metric", "count", "mean", "min", "max", "stddev", "last")
    ]
    assert lines[1].split() == ["12:00:00-12:01:00", "a", "load", "3", "1.25", "0.5", "1e+09", "-", "2"]
    assert len({len(line) for line in lines[:3]}) == 1
    assert lines[3] == "... and 5 more"


def test_the_settings_on_the_page_are_those_of_the_jobs() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/reference/spark-jobs.md").read_text()
    sections = [section.partition("\n") for section in page.split("\n## ")]
    jobs = [
        (name, found[1]) for name, _, text in sections if (found := re.search(r"```toml\n([^`]*)```", text))
    ]
    names = [path.stem for path in Path(jobs_package.__path__[0]).glob("*.py")]
    modules = {name: importlib.import_module(f"{jobs_package.__name__}.{name}") for name in names}
    with_settings = {module.NAME for module in modules.values() if hasattr(module, "NAME")}
    assert {name for name, _ in jobs} == with_settings
    for name, text in jobs:
        settings = msgspec.toml.decode(text, type=modules[name].Settings)
        assert settings.bootstrap


def test_a_failed_query_is_told_without_its_plan() -> None:
    text = "[STREAM_FAILED] TopicMissingError: topic 'nope'\n SQLSTATE: 38000"
    plan = "\n=== Streaming Query ===\nIdentifier: [...]\nLogical Plan:"
    assert without_plan(RuntimeError(text + plan)) == text
    assert without_plan(RuntimeError(text)) == text
