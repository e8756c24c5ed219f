"""The demo as people run it: real measurements through all of it, and the counts agree."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = [sys.executable, str(ROOT / "demo" / "gateway_demo.py")]


def counts(output: str) -> dict[str, int]:
    return {
        name.strip(): int(count.replace(",", ""))
        for name, count in re.findall(r"^    (\w[\w ()]+\w\)?) +([\d,]+)$", output, re.M)
    }


@pytest.mark.spark
@pytest.mark.timeout(420)
def test_published_stored_consumed_and_read_by_spark_agree(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--directory", str(tmp_path)],
        env={**os.environ, "DEMO_SECONDS": "20"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = counts(done.stdout)
    back = {name: count for name, count in found.items() if name.startswith("commands")}
    forth = {name: count for name, count in found.items() if name not in back}
    assert len(forth) == 6
    assert len(set(forth.values())) == 1
    assert forth["read by Spark for alerts"] > 0
    assert len(back) == 2
    assert len(set(back.values())) == 1
    # Two sessions of Spark that begin leave no core idle, wherever they run.
    assert back["commands that reached their devices"] > 0
    assert "all counts agree" in done.stdout
    assert list((tmp_path / "run" / "statistics").rglob("*.parquet"))


def test_ctrl_c_ends_it_with_the_counts_and_it_can_be_run_again(tmp_path: Path) -> None:
    for _ in range(2):
        with subprocess.Popen(
            [*DEMO, "--directory", str(tmp_path), "--without-spark"],
            env={name: value for name, value in os.environ.items() if name != "DEMO_SECONDS"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                if re.search(r"consumed +[1-9]", line):
                    process.send_signal(signal.SIGINT)
                    break
            output = process.stdout.read()
            assert process.wait(60) == 0, output + process.stderr.read()
        found = counts(output)
        assert len(found) == 4
        assert len(set(found.values())) == 1
        assert "Traceback" not in (tmp_path / "run" / "gateway.log").read_text()


def test_two_demos_do_not_share_a_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*DEMO, "--directory", str(tmp_path), "--without-spark"], stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()
        second = subprocess.run(
            [*DEMO, "--directory", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
        )
        first.send_signal(signal.SIGINT)
        first.stdout.read()
        first.wait(60)
    assert second.returncode == 1
    assert "another demo is running" in second.stderr
