"""The machine a number belongs to, and where results are kept."""

import contextlib
import json
import mmap
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "build" / "benchmarks"
PEERS: Final = ROOT / "build" / "peers"
_WARM_STEP_BYTES: Final = 8 * 1024 * 1024
_MADV_POPULATE_READ: Final = 22


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


def warm_page_cache(directory: Path, size_bytes: int) -> float:
    """Takes this much page cache and gives it back; returns the microseconds of processor time a page cost.

    Where a hypervisor takes unused memory back (free page reporting, balloons), a page costs about 10
    microseconds when the kernel touches it for the first time, against 0.7 when it was in use a moment ago.
    A server that appends to a log at full speed pays that for every 4 KiB, and the measurement is of the
    hypervisor. The pages stay clean, so nothing is written to the disk.
    """
    size_bytes = min(size_bytes, _available_bytes() // 2) // _WARM_STEP_BYTES * _WARM_STEP_BYTES
    if size_bytes == 0:
        return 0.0
    with tempfile.TemporaryFile(dir=directory) as file, contextlib.suppress(OSError):
        began_s = time.process_time()
        os.posix_fallocate(file.fileno(), 0, size_bytes)
        with mmap.mmap(file.fileno(), size_bytes, prot=mmap.PROT_READ) as pages:
            for at in range(0, size_bytes, _WARM_STEP_BYTES):
                pages.madvise(_MADV_POPULATE_READ, at, _WARM_STEP_BYTES)
        return (time.process_time() - began_s) / (size_bytes / mmap.PAGESIZE) * 1e6
    # A full disk, or a kernel before 5.14: cold then, which costs exactness and nothing else.
    return 0.0


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


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


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
