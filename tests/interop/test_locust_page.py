"""Locust's web page in a browser, with the devices of two swarms."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from eventually import eventually
from gateway_process import free_port
from locust_run import environment
from swarm_runs import running_sink

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(
        BROWSER is None,
        reason="Chromium is not installed (Debian: apt install chromium-headless-shell)",
    ),
]


def browse(url: str, directory: Path, *words: str) -> str:
    """The page after nine seconds of its own time."""
    assert BROWSER is not None
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--disable-background-networking", "--disable-component-update", "--window-size=1500,900"]
    options += [f"--user-data-dir={directory / 'profile'}", "--virtual-time-budget=9000", *words, url]
    done = subprocess.run([BROWSER, *options], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """A run with two swarms of 60 devices each; the address of its page."""
    (tmp_path / "page.py").write_text(
        dedent("""
        from loadtest.users import Plan, SwarmUser

        class Sensors(SwarmUser):
            plan = Plan(publishers=50, idle=10, rate_per_s=500)
        """)
    )
    port = free_port()
    with running_sink() as sink, (tmp_path / "locust.log").open("w") as log:
        words = [sys.executable, "-m", "locust", "-f", str(tmp_path / "page.py"), "--web-host", "127.0.0.1"]
        words += [
            "--web-port",
            str(port),
            "--autostart",
            "-u",
            "2",
            "-r",
            "2",
            "-H",
            f"127.0.0.1:{sink.port}",
        ]
        locust = subprocess.Popen(
            words, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            locust.terminate()
            locust.wait(30)
    assert "Traceback" not in (tmp_path / "locust.log").read_text()


def numbers(page: str) -> dict[str, dict[str, float]]:
    with urllib.request.urlopen(f"{page}/stats/requests", timeout=10) as answer:
        values = json.load(answer)
    return {row["name"]: row for row in values["stats"]} | {"devices": values["extended_stats"][0]["data"][0]}


def test_the_page_has_each_connection_and_each_message(page: str, tmp_path: Path) -> None:
    name = "publish:1:devices/{n}/telemetry"
    eventually(
        lambda: numbers(page).get(name, {}).get("num_requests", 0) > 500, "messages are there", within_s=40
    )
    before = numbers(page)
    picture = tmp_path / "page.png"
    shown = browse(f"{page}/?tab=stats", tmp_path, "--dump-dom")
    browse(f"{page}/?tab=stats", tmp_path, f"--screenshot={picture}")
    after = numbers(page)
    assert picture.read_bytes().startswith(b"\x89PNG")
    row = re.search(rf"{re.escape(name)}</td><td[^>]*>(\d+)<", shown)
    assert row is not None
    assert before[name]["num_requests"] <= int(row[1]) <= after[name]["num_requests"]
    assert re.search(r">connect</td><td[^>]*>120<", shown)
    devices = browse(f"{page}/?tab=devices", tmp_path, "--dump-dom")
    assert re.search(r">120</td><td[^>]*>120</td><td[^>]*>2<", devices)
