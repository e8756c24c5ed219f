"""Workers that cannot start, and supervisors that are told to stop before they do."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from eventually import eventually
from gateway_process import ROOT, GatewayProcess, free_port

NOBODY = "mqtt.registries=127.0.0.1:1"


def words(directory: Path, *assignments: str) -> list[str]:
    given = ["http.listen_port=0", "mqtt.listen_port=0", NOBODY, *assignments]
    return [
        sys.executable, "-m", "iotmq", "mqtt", "--workers", "2", "--data", str(directory),
        *(word for each in given for word in ("--set", each)),
    ]  # fmt: skip


def test_what_keeps_a_worker_from_starting_is_said(tmp_path: Path) -> None:
    ended = subprocess.run(
        words(tmp_path, "mqtt.broker_tls_enabled=true", f"mqtt.broker_tls_ca_file={tmp_path}/none.pem"),
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr
    assert "iotmq: mqtt cannot start: worker " in ended.stderr
    assert "none.pem" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_of_http_that_is_taken_starts_no_worker(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "registry", role="registry") as registry:
        ended = subprocess.run(
            words(tmp_path, f"http.listen_port={registry.ports['http']}"),
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    assert "http cannot start" in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_waiting_for_a_broker_is_shown_and_can_be_stopped(tmp_path: Path, number: signal.Signals) -> None:
    front = GatewayProcess(
        tmp_path / "front", f"mqtt.registries=127.0.0.1:{free_port()}", "mqtt.workers=2", role="mqtt"
    )
    front.launch()
    try:
        eventually(
            lambda: '"worker-2":"process: starting' in front.http("/readyz")[1], "both wait", within_s=30
        )
        assert front.http("/readyz")[0] == 503
        # On a busy machine a worker that still loads its modules may not answer within a second.
        eventually(lambda: front.http("/healthz")[0] == 200, "they are alive", within_s=30)
        assert front.process is not None
        front.process.send_signal(number)
        assert front.process.wait(3) == 0
        front.process = None
    finally:
        if front.process is not None:
            front.kill()
    assert "Traceback" not in front.log_text()
