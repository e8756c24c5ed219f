"""Count the instructions a message costs, for comparing two states on a machine whose timings are noisy.

    .venv/bin/python -m benchmarks.experiments.instructions [--tree DIR] [--messages 600000]

Runs `iotmq serve` of a source tree under callgrind (Debian: valgrind), has the load engine publish with QoS 1
from 100 connections with window 100, and prints instructions a message and the functions they are in. Counts
of one state differ by less than half a percent from run to run; what the memory costs is not among them.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from benchmarks import machine
from benchmarks.peers import free_ports

_READY_S: Final = 300.0
_WARM_MESSAGES: Final = 20_000
_END_S: Final = 120.0


def main() -> int:
    """Print the count of one tree."""
    parser = argparse.ArgumentParser(description="Instructions of a QoS 1 message.")
    parser.add_argument("--tree", type=Path, default=machine.ROOT, help="a compiled tree with its .venv")
    parser.add_argument("--messages", type=int, default=600_000)
    parser.add_argument("--functions", type=int, default=20, help="print so many functions")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: apt-get install valgrind", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "callgrind"
        measure(options.tree, options.messages, Path(directory), report)
        text = _output("callgrind_annotate", str(report))
    total = int(re.search(r"([\d,]+) \(100.0%\)", text)[1].replace(",", ""))  # type: ignore[index]
    print(f"{total / options.messages:,.0f} instructions a message")
    rows = [line for line in text.splitlines() if re.match(r"\s*[\d,]+ \(", line) and "PROGRAM" not in line]
    for row in rows[: options.functions]:
        count, _, where = row.strip().partition(" (")
        each = int(count.replace(",", "")) / options.messages
        print(f"{each:8.1f}  {where.partition(')')[2].strip()[:90]}")
    return 0


def measure(tree: Path, messages: int, directory: Path, report: Path) -> None:
    """Run one server, and count while the messages are published; a few come before, uncounted."""
    ports = dict(zip(("registry", "broker", "mqtt", "http"), free_ports(4), strict=True))
    python = str(tree / ".venv" / "bin" / "python")
    words = [word for role, port in ports.items() for word in ("--set", f"{role}.listen_port={port}")]
    server = subprocess.Popen(
        [
            *("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={report}"),
            *(python, "-m", "iotmq", "serve", "--data", str(directory / "data"), *words),
        ],
        cwd=tree,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_ready(server, f"http://127.0.0.1:{ports['http']}/readyz")
        _publish(python, tree, ports["mqtt"], _WARM_MESSAGES)
        _output("callgrind_control", "-i", "on", str(server.pid))
        _publish(python, tree, ports["mqtt"], messages)
        _output("callgrind_control", "-i", "off", str(server.pid))
        server.terminate()
        server.wait(_END_S)
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def _wait_ready(server: subprocess.Popen[bytes], url: str) -> None:
    deadline_s = time.monotonic() + _READY_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2.0) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        if server.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError("the server is not ready; was the tree compiled?")
        time.sleep(0.5)


def _publish(python: str, tree: Path, port: int, messages: int) -> None:
    words = (
        *("-m", "loadtest.swarm", "publish", "--port", str(port), "--publishers", "100", "--qos", "1"),
        *("--window", "100", "--messages", str(messages), "--seconds", "300", "--warmup", "0"),
    )
    done = subprocess.run([python, *words], cwd=tree, capture_output=True, text=True, timeout=360, check=True)
    acknowledged = json.loads(done.stdout.splitlines()[-1])["counters"]["acknowledged"]
    if acknowledged != messages:
        raise RuntimeError(f"{acknowledged} of {messages} messages were acknowledged")


def _output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
