"""Secrets of a front end with workers are nowhere where somebody else could read them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from certificates import make_certificate, make_root
from eventually import eventually
from fake_gateway import connect_packet
from gateway_process import SMALL_STORE, GatewayProcess, free_port

from iotmq.config.setting_text import toml_value

SECRETS = ("secret-of-a-file", "secret-of-a-variable", "secret-of-a-command", "secret-of-a-setting")
ACCOUNTS = """
accounts:
  - {accessKey: front-end, secretKey: secret-of-a-file, admin: true}
"""
CONNACK = b"\x20\x02\0\0"


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_nobody_can_read_the_secrets_of_a_front_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text(SECRETS[0])
    settings = tmp_path / "front.toml"
    settings.touch(0o600)
    settings.write_text(
        f"""
        [mqtt]
        broker_access_key = "front-end"
        broker_secret_key = {{file = "{file}"}}
        tls_ticket_secret = {{command = ["echo", "{SECRETS[2]}"]}}
        [mqtt.authentication]
        unknown_users_secret = {{env = "ELSEWHERE"}}
        [[http.tokens]]
        name = "scraper"
        token = "{SECRETS[3]}"
        [http]
        open_paths = ["/healthz", "/readyz", "/metrics"]
        """
    )
    monkeypatch.setenv("ELSEWHERE", SECRETS[1])
    monkeypatch.setenv("IOTMQ_REPLICATION__SECRET_KEY", SECRETS[1] + "-too")
    accounts = tmp_path / "broker" / "config" / "plain_acl.yml"
    accounts.parent.mkdir(parents=True)
    accounts.touch(0o600)
    accounts.write_text(ACCOUNTS)
    registry = GatewayProcess(tmp_path / "registry", role="registry")
    broker = GatewayProcess(
        tmp_path / "broker",
        f"broker.registries={registry.registry}",
        "broker.acl_enabled=true",
        role="broker",
    )
    front = GatewayProcess(
        tmp_path / "front", f"mqtt.registries={registry.registry}", "mqtt.workers=2", role="mqtt",
        config=settings,
    )  # fmt: skip
    with registry, broker, front:
        workers = children_of(front.pid)
        assert len(workers) == 2
        metrics = front.http("/metrics")[1]
        assert "iotmq_mqtt_worker_ready" in metrics
        shown = [metrics, front.http("/readyz")[1]]
        shown += [Path(f"/proc/{pid}/cmdline").read_text() for pid in (front.pid, *workers)]
        for pid in workers:
            environment = Path(f"/proc/{pid}/environ").read_text()
            assert "PATH=" in environment
            assert not re.search(r"IOTMQ_\w+__", environment)
            shown.append(environment)
    shown += [log.read_text() for log in (front.log, broker.log, registry.log)]
    printed = subprocess.run(
        [sys.executable, "-m", "iotmq", "config", "show", "--config", str(settings)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert printed.stdout.count("********") == 5
    shown += [printed.stdout, printed.stderr]
    for secret in SECRETS:
        assert not [text for text in shown if secret in text], secret


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")
def test_a_device_resumes_its_session_at_any_worker(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    made = make_certificate(tmp_path, root)
    port = free_port()
    listeners = toml_value(
        [
            {
                "name": "safe",
                "transport": "tls",
                "listen_port": port,
                "certificates": [{"certificate_file": made.certificate, "key_file": made.key}],
                "client_ca_file": root.certificate,
                "client_identity": "cn",
            }
        ]
    )
    registry = GatewayProcess(tmp_path / "registry", role="registry")
    broker = GatewayProcess(
        tmp_path / "broker", f"broker.registries={registry.registry}", *SMALL_STORE, role="broker"
    )
    front = GatewayProcess(
        tmp_path / "front", f"mqtt.registries={registry.registry}", "mqtt.workers=2",
        f"mqtt.listeners={listeners}", role="mqtt",
    )  # fmt: skip
    with registry, broker, front:
        context = ssl.create_default_context(cafile=root.certificate)
        context.load_cert_chain(*made)
        session: ssl.SSLSession | None = None
        resumed = []
        for number in range(24):
            raw = socket.create_connection(("127.0.0.1", port), 20)
            with context.wrap_socket(raw, server_hostname="localhost", session=session) as device:
                device.sendall(connect_packet(f"device-{number}"))
                assert device.recv(100) == CONNACK
                resumed.append(device.session_reused)
                session = device.session

        def handshakes(worker: int, is_resumed: str) -> float:
            name = "iotmq_mqtt_listener_handshakes_total"
            return front.metrics().get(
                f'{name}{{listener="safe",resumed="{is_resumed}",worker="{worker}"}}', 0
            )

        assert resumed == [False] + [True] * 23
        eventually(lambda: sum(handshakes(n, "true") for n in (1, 2)) == 23, "all are counted")
        # The kernel has given some to each.
        assert all(handshakes(n, "true") > 0 for n in (1, 2))


def test_secrets_on_a_command_line_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "iotmq", "mqtt", "--set", f"mqtt.broker_secret_key={SECRETS[0]}"],
        capture_output=True, text=True, env=dict(os.environ), timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "everybody on this machine can read a command line" in done.stderr
    assert SECRETS[0] not in done.stdout + done.stderr
