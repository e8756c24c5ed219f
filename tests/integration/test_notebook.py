"""The notebook in examples/: its cells run as they are, over a device's day that was published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from gateway_process import ROOT, GatewayProcess

from iotmq.client import Message, SyncClient, SyncProducer
from iotmq.client.transport.settings import ClientSettings
from iotmq.message.properties import MQTT_TOPIC

pytestmark = [pytest.mark.spark, pytest.mark.timeout(480)]

DAY = "2026-03-01"
DAY_MS = 1_772_323_200_000
MINUTE_MS = 60_000
# What the last cells leave behind, said as JSON.
TELLS = """
import json

line = axes.lines[0]
print(json.dumps({
    "mean": [None if y != y else float(y) for y in line.get_ydata()],
    "first": str(times[0]),
    "title": axes.get_title(),
    "low": found[0].low,
    "high": found[0].high,
}))
"""


def cells(name: str) -> list[str]:
    notebook = json.loads((ROOT / "examples" / name).read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def measurement(minute: int, temperature: float, device: str = "pump-7") -> Message:
    payload = {"ts": DAY_MS + minute * MINUTE_MS, "temperature": temperature}
    topic = f"devices/{device}/telemetry"
    return Message("mqtt", json.dumps(payload).encode(), properties={MQTT_TOPIC: topic})


def test_the_notebook_plots_the_day_of_one_device(tmp_path: Path) -> None:
    # Every minute of twelve hours; others, another day and rubbish are left out.
    messages = [measurement(minute, minute % 10) for minute in range(720)]
    messages += [measurement(5, 99.0, "pump-8"), measurement(-5, 99.0), measurement(1440, 99.0)]
    messages.append(Message("mqtt", b"rubbish", properties={MQTT_TOPIC: "devices/pump-7/telemetry"}))
    *shown, stop = cells("device_day.ipynb")
    assert stop == "spark.stop()"
    program = tmp_path / "notebook.py"
    program.write_text("\n".join([*shown, TELLS, stop]))
    with GatewayProcess(tmp_path / "data") as gateway:
        address = f"127.0.0.1:{gateway.ports['registry']}"
        with (
            SyncClient(ClientSettings(registries=(address,))) as client,
            SyncProducer(client, "readings") as producer,
        ):
            for first in range(0, len(messages), 200):
                producer.send_batch(messages[first : first + 200])
        environment = os.environ | {"REGISTRY": address, "DAY": DAY, "MPLBACKEND": "agg"}
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env=environment | {"PYTHONPATH": str(ROOT), "TZ": "Asia/Kolkata"},
            capture_output=True,
            text=True,
            timeout=440,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    said, told = done.stdout.splitlines()
    assert said == "72 of 144 spans of ten minutes have measurements"
    assert json.loads(told) == {
        # Half a day is left out of the plot.
        "mean": [4.5] * 72 + [None] * 72,
        "first": f"{DAY} 00:00:00",
        "title": f"pump-7, {DAY}",
        "low": 0.0,
        "high": 9.0,
    }
