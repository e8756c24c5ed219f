"""The machine a number belongs to, and where results are kept."""

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "build" / "benchmarks"


def cores() -> tuple[int, int]:
    """(server core, load core) of those this process may use; the same one twice where there is no second."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def description() -> dict[str, Any]:
    """What has to stand beside a number for it to mean something."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "revision": _output(["git", "-C", str(ROOT), "describe", "--always", "--dirty"]),
        "load_average_before": os.getloadavg()[0],
    }


def save(benchmark: str, results: dict[str, Any]) -> Path:
    """Writes build/benchmarks/BENCHMARK.json and keeps what it held of other scenarios."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{benchmark}.json"
    known: dict[str, Any] = {}
    if path.exists():
        try:
            known = json.loads(path.read_text())
        except ValueError:
            known = {}
    known.update(results)
    unfinished = path.with_suffix(".json.new")
    unfinished.write_text(json.dumps(known, indent=2) + "\n")
    unfinished.replace(path)
    return path


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most of the rounds."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]

    def line(row: Sequence[str]) -> str:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([line(heads), "  ".join("-" * width for width in widths), *(line(row) for row in rows)])


def _processor() -> str:
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            return text.partition(":")[2].strip()
    return platform.machine()


def _output(command: Sequence[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
