"""The command line, report and console of the device statistics job, without Spark's JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row

from iotmq.bridge.jobs.device_statistics import (
    JobSettings,
    Report,
    parse_arguments,
    render_rows,
    write_report,
)

NEEDED = ["--bootstrap", "h:1", "--topic", "t", "--checkpoint", "c"]


def test_arguments_become_settings_and_the_rest_is_default() -> None:
    words = [*NEEDED, "--console", "--seconds", "1.5", "--conf", "a=b=c", "--conf", "d=e"]
    assert parse_arguments(words) == JobSettings(
        "h:1", "t", "c", console=True, seconds=1.5, conf=("a=b=c", "d=e")
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (NEEDED, "--parquet"),
        (["--console"], "--bootstrap"),
        ([*NEEDED, "--console", "--device-level", "0"], "--device-level"),
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
    write_report(Report(rows_read=6, ended="caught up"), path)
    found = json.loads(path.read_text())
    assert (found["rows_read"], found["ended"]) == (6, "caught up")
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
