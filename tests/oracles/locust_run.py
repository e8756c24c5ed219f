"""Runs of Locust as people start them: processes of their own without the web page, judged by their files."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DEADLINE_S: Final = 60.0


@dataclass(frozen=True)
class LocustRun:
    """What a run has left."""

    code: int
    output: str
    rows: dict[str, dict[str, str]]
    """The statistics, by name; `Aggregated` is their sum."""
    failures: dict[tuple[str, str], int]
    """How often something failed, by row and error."""

    def count(self, name: str) -> int:
        """Requests of a row; 0 without such a row."""
        return int(self.rows[name]["Request Count"]) if name in self.rows else 0

    def failed(self, name: str) -> int:
        return int(self.rows[name]["Failure Count"]) if name in self.rows else 0

    def p99_ms(self, name: str) -> float:
        return float(self.rows[name]["99%"])


def environment(**more: str) -> dict[str, str]:
    """The environment of a Locust process."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def locust_words(locustfile: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "locust", "-f", str(locustfile), "--headless", "--only-summary", *words]


def run_locust(
    locustfile: Path, directory: Path, *words: str, seconds: float = 2, env: Mapping[str, str] | None = None
) -> LocustRun:
    """Run a locustfile; its files are named after it. A traceback in its output fails the test."""
    prefix = directory / f"{locustfile.stem}-run"
    time_words = [f"--run-time={seconds:g}s"] if seconds else []
    done = subprocess.run(
        [*locust_words(locustfile), "--csv", str(prefix), *time_words, *words],
        cwd=directory,
        env=environment(**(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return read_run(prefix, done.returncode, done.stdout)


def read_run(prefix: Path, code: int, output: str) -> LocustRun:
    """Read what a run has left."""
    assert "Traceback" not in output, output
    rows, failures = {}, {}
    stats = Path(f"{prefix}_stats.csv")
    if stats.exists():
        with stats.open() as file:
            rows = {row["Name"]: row for row in csv.DictReader(file)}
        with Path(f"{prefix}_failures.csv").open() as file:
            failures = {(row["Name"], row["Error"]): int(row["Occurrences"]) for row in csv.DictReader(file)}
    return LocustRun(code, output, rows, failures)
