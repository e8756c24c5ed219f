"""A gateway does its work with the system calls, socket families and memory that its systemd unit allows.

Other calls end the process, so one that still answers has made none.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from certificates import make_certificate, make_root
from gateway_process import ROOT, GatewayProcess, free_port
from paho.mqtt import publish, subscribe
from unit_sandbox import missing_tools

from iotmq.config.setting_text import toml_value

UNITS = ROOT / "deploy" / "systemd"
SANDBOX = ROOT / "tests" / "oracles" / "unit_sandbox.py"

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools())),
]

REFUSED = {
    "memory that is written and executed": "import mmap; mmap.mmap(-1, 4096, prot=7)",
    "a privileged call": "import os; os.chroot('/')",
    "a priority": "import os; os.nice(1)",
}


def prefix(unit: str) -> tuple[str, ...]:
    return sys.executable, str(SANDBOX), str(UNITS / unit)


def sandboxed(unit: str, data: Path, *assignments: str, role: str = "serve") -> GatewayProcess:
    return GatewayProcess(data, *assignments, role=role, prefix=prefix(unit))


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_unit_refuses_ends_the_process(what: str) -> None:
    """Else the tests below would prove nothing."""
    ended = subprocess.run(
        [*prefix("iotmq.service"), sys.executable, "-c", REFUSED[what]], timeout=60, check=False
    )
    assert ended.returncode == -31  # SIGSYS


def consumed(registry: str, count: int) -> int:
    """Messages that `iotmq consume` prints of the topic of devices."""
    words = ["consume", "mqtt", "--registry", registry, "--from", "first", "--count", str(count)]
    done = subprocess.run(
        [sys.executable, "-m", "iotmq", *words],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return len(done.stdout.splitlines())


def test_a_gateway_takes_devices_by_every_transport_and_recovers(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    made = make_certificate(tmp_path, root)
    tls_port, ws_port, socket_path = free_port(), free_port(), str(tmp_path / "mqtt.sock")
    certificate = {"certificate_file": made.certificate, "key_file": made.key}
    listeners = [
        {"name": "tls", "transport": "tls", "listen_port": tls_port, "certificates": [certificate]},
        {"name": "ws", "transport": "ws", "listen_port": ws_port, "allowed_origins": ["*"]},
        {"name": "unix", "transport": "unix", "socket_path": socket_path},
    ]
    settings = f"mqtt.listeners={toml_value(listeners)}"
    # With no part of the log taken to be in memory, each read asks the kernel.
    assignments = ("store.flush=sync", "store.hot_bytes=0", settings)
    with sandboxed("iotmq.service", tmp_path / "data", *assignments) as gateway:
        publish.single("unit/kept", b"1", qos=1, retain=True, port=gateway.mqtt_port)
        publish.single("unit/tls", b"1", qos=1, port=tls_port, tls={"ca_certs": root.certificate})
        publish.single("unit/ws", b"1", qos=1, port=ws_port, transport="websockets")
        publish.single("unit/unix", b"1", qos=1, hostname=socket_path, transport="unix")
        assert consumed(gateway.registry, 4) == 4
        gateway.restart()
        assert subscribe.simple("unit/kept", port=gateway.mqtt_port).payload == b"1"
        publish.single("unit/kept", b"2", qos=1, port=gateway.mqtt_port)
        assert consumed(gateway.registry, 5) == 5


def test_roles_apart_do_too(tmp_path: Path) -> None:
    with (
        sandboxed("iotmq-registry.service", tmp_path / "registry", role="registry") as registry,
        sandboxed(
            "iotmq-broker@.service",
            tmp_path / "broker",
            # A name, which the C library looks up.
            f"broker.registries=localhost:{registry.ports['registry']}",
            role="broker",
        ),
        sandboxed(
            "iotmq-mqtt.service",
            tmp_path / "mqtt",
            f"mqtt.registries=localhost:{registry.ports['registry']}",
            "mqtt.workers=2",
            role="mqtt",
        ) as front,
    ):
        publish.single("unit/one", b"1", qos=1, retain=True, port=front.mqtt_port)
        assert subscribe.simple("unit/one", port=front.mqtt_port).payload == b"1"
        assert consumed(registry.registry, 1) == 1
