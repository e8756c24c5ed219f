"""Every load scenario against a gateway of its own; some of them, unless IOTMQ_SCENARIOS=all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from gateway_process import GatewayProcess
from locust_run import ROOT, run_locust

pytestmark = pytest.mark.slow

SCENARIOS = ROOT / "loadtest" / "scenarios"
NAMES = sorted(path.stem for path in SCENARIOS.glob("*.py") if path.stem not in ("__init__", "sizes"))
# Devices and native services; swarms are in test_locust.py.
QUICK = {"kept_sessions", "gateway"}
# Those whose shape ends the run; and what makes it short.
SHAPED = {
    "bursts": {"BEFORE_S": "1", "SPIKE_S": "2", "SWARMS": "2"},
    "reconnect_storm": {"UP_S": "2"},
    "soak": {"HOURS": "0.0006"},
}
USERS = {"kept_sessions": 20, "retained": 10, "gateway": 10}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway") / "data") as running:
        yield running


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_loses_nothing(gateway: GatewayProcess, tmp_path: Path, name: str) -> None:
    if name not in QUICK and os.environ.get("IOTMQ_SCENARIOS") != "all":
        pytest.skip("make scenarios")
    mqtt = f"127.0.0.1:{gateway.mqtt_port}"
    server = [] if name == "gateway" else ["-H", f"mqtt://{mqtt}"]
    users = [] if name in SHAPED else ["-u", str(USERS.get(name, 1)), "-r", str(USERS.get(name, 1))]
    env = {"MQTT": f"mqtt://{mqtt}", "REGISTRY": gateway.registry, **SHAPED.get(name, {})}
    run = run_locust(
        SCENARIOS / f"{name}.py", tmp_path, *server, *users, "--lost-max", "0", "--repeated-max", "0",
        "--errors-max", "0", seconds=0 if name in SHAPED else 3, env=env,
    )  # fmt: skip
    assert run.code == 0, run.output
    assert run.count("Aggregated") > 50


def test_an_unknown_size_is_refused_by_name(tmp_path: Path) -> None:
    run = run_locust(SCENARIOS / "fan_in.py", tmp_path, seconds=1, env={"SIZE": "fanin-100-2"})
    assert run.code == 2
    assert "SIZE=fanin-100-2 is none of" in run.output
    assert "did you mean" in run.output


def test_a_tag_chooses_tasks(gateway: GatewayProcess, tmp_path: Path) -> None:
    env = {"MQTT": f"mqtt://127.0.0.1:{gateway.mqtt_port}", "REGISTRY": gateway.registry}
    run = run_locust(
        SCENARIOS / "gateway.py", tmp_path, "-u", "4", "-r", "4", "--tags=alarms",
        "Device", seconds=2, env=env,
    )  # fmt: skip
    assert run.count("publish:1:alarms/+") > 0
    assert run.count("publish:1:devices/+") == 0


def test_a_thousand_devices_that_publish_once_a_second_add_less_than_5_ms(tmp_path: Path) -> None:
    """Against a server that answers at once all latency is the client's own, on an idle machine."""
    if os.environ.get("IOTMQ_SCENARIOS") != "all":
        pytest.skip("make scenarios")
    words = [sys.executable, "-m", "iotmq", "loadtest", "sink", "--seconds", "60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as sink:
        try:
            assert sink.stdout is not None
            port = json.loads(sink.stdout.readline())["port"]
            (tmp_path / "thousand.py").write_text(
                dedent("""
                import random
                import gevent
                from locust import events, task
                from loadtest.users import MqttDeviceUser

                @events.init.add_listener
                def measure_when_all_are_there(environment, **_):
                    environment.events.spawning_complete.add_listener(
                        lambda **_: gevent.spawn_later(2, environment.stats.reset_all)
                    )

                class Device(MqttDeviceUser):
                    def wait_time(self):
                        return random.uniform(0, 2)

                    def event_name(self, action, qos, topic):
                        return f"{action}:{qos}"

                    @task
                    def publish(self):
                        self.client.publish("t", b"x" * 100, qos=1)
                """)
            )
            run = run_locust(
                tmp_path / "thousand.py", tmp_path, "-u", "1000", "-r", "100",
                "-H", f"mqtt://127.0.0.1:{port}", seconds=25,
            )  # fmt: skip
        finally:
            sink.terminate()
            sink.communicate(timeout=10)
    assert run.code == 0, run.output
    assert run.count("publish:1") > 10_000
    assert run.p99_ms("publish:1") < 5
