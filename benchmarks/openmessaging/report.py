"""The results that are kept, and the table of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks import machine

RESULTS: Final = Path(__file__).resolve().parent / "results"
TABLE: Final = "README.md"
HEADS: Final = (
    "workload", "driver", "server", "published/s", "consumed/s", "errors/s", "backlog at the end",
    "publish p50, p99, ms", "end to end p50, p99, ms", "on",
)  # fmt: skip


def keep(driver: str, side: str, workload: str, found: dict[str, Any]) -> Path:
    """Write a result of the benchmark, as it is, with the machine it is from."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{workload}.{driver}.{side}.json"
    kept = {"machine": machine.description(), "result": found}
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return path


def line(found: dict[str, Any]) -> str:
    """A result in a line."""
    return ", ".join(f"{head} {cell}" for head, cell in zip(HEADS[3:], _cells(found), strict=False))


def write() -> int:
    """Write the table; 1 when there is no result."""
    paths = sorted(RESULTS.glob("*.json"))
    if not paths:
        print("there are no results of the OpenMessaging Benchmark", file=sys.stderr)
        return 1
    rows = [HEADS, ("---",) * len(HEADS)]
    about: dict[str, Any] = {}
    for path in paths:
        workload, driver, side, _ = path.name.rsplit(".", 3)
        kept = json.loads(path.read_text())
        about = max(about, kept["machine"], key=lambda each: str(each.get("time", "")))
        day = kept["machine"]["time"].partition("T")[0]
        rows.append((workload, driver, side, *_cells(kept["result"]), day))
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    (RESULTS / TABLE).write_text(
        "# Results of the OpenMessaging Benchmark\n\n"
        "`python -m benchmarks.openmessaging --report` writes this page from the files beside it.\n"
        "The benchmark has end to end latencies in whole milliseconds, and does not count those of 0.\n\n"
        f"{table}\n"
        f"The newest: {about['cores']} cores, {about['processor']}, Linux {about['kernel']}.\n"
    )
    return 0


def _cells(found: dict[str, Any]) -> tuple[str, ...]:
    def rate(name: str) -> str:
        return f"{mean(found.get(name) or [0.0]):,.0f}"

    def latency(name: str) -> str:
        return ", ".join(f"{found[f'aggregated{name}Latency{part}pct']:,.1f}" for part in ("50", "99"))

    backlog = (found.get("backlog") or [0])[-1]
    return (
        rate("publishRate"), rate("consumeRate"), rate("publishErrorRate"), f"{backlog:,.0f}",
        latency("Publish"), latency("EndToEnd"),
    )  # fmt: skip
