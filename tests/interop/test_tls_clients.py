"""MQTT by TLS with clients of others: Mosquitto's commands, paho-mqtt and the openssl command."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from certificates import Certificate, make_certificate, make_revocation_list, make_root
from eventually import eventually
from gateway_process import GatewayProcess, free_port
from paho.mqtt.enums import CallbackAPIVersion

from iotmq.config.setting_text import toml_value

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there"),
]
needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None,
    reason="the Mosquitto clients are not installed (tools/setup.sh dev)",
)
WAIT_S = 20


class Site:
    """A gateway with a port for everybody and one for devices with certificates."""

    def __init__(self, directory: Path) -> None:
        self.root = make_root(directory)
        self.device = make_certificate(directory, self.root, "device-7")
        self.revoked = make_certificate(directory, self.root, "revoked")
        server = make_certificate(directory, self.root)
        other = make_certificate(directory, self.root, "other", alternatives="DNS:*.other.example.org")
        shown = [{"certificate_file": each.certificate, "key_file": each.key} for each in (server, other)]
        self.port, self.strict_port = free_port(), free_port()
        listeners = [
            {"name": "safe", "transport": "tls", "listen_port": self.port, "certificates": shown},
            {
                "name": "strict",
                "transport": "tls",
                "listen_port": self.strict_port,
                "certificates": shown,
                "tls_version_min": "1.3",
                "client_ca_file": self.root.certificate,
                "client_crl_files": [make_revocation_list(directory, self.root, self.revoked)],
                "client_identity": "cn",
            },
        ]
        self.gateway = GatewayProcess(directory / "data", f"mqtt.listeners={toml_value(listeners)}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("tls"))
    with made.gateway:
        yield made


def words(site: Site, port: int, certificate: Certificate | None = None) -> list[str]:
    own = [] if certificate is None else ["--cert", certificate.certificate, "--key", certificate.key]
    return ["-h", "localhost", "-p", str(port), "--cafile", site.root.certificate, *own]


@needs_mosquitto
@pytest.mark.parametrize("version", ["tlsv1.2", "tlsv1.3"])
def test_mosquitto_pub_and_sub(site: Site, tmp_path: Path, version: str) -> None:
    before = site.gateway.metric("iotmq_mqtt_subscriptions")
    output = tmp_path / "output"
    with output.open("wb") as file:
        subscriber = subprocess.Popen(
            ["mosquitto_sub", *words(site, site.port), "--tls-version", version, "-t", "t/#", "-C", "1"],
            stdout=file,
        )
    try:
        eventually(lambda: site.gateway.metric("iotmq_mqtt_subscriptions") > before, "it is subscribed")
        own = words(site, site.strict_port, site.device)
        published = subprocess.run(
            ["mosquitto_pub", *own, "-t", "t/1", "-m", version, "-q", "1"],
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert (published.returncode, published.stderr) == (0, "")
        assert subscriber.wait(WAIT_S) == 0
    finally:
        subscriber.kill()
        subscriber.wait()
    assert output.read_text() == version + "\n"


@needs_mosquitto
@pytest.mark.parametrize("who", ["nobody", "revoked"])
def test_mosquitto_pub_is_kept_out(site: Site, who: str) -> None:
    own = words(site, site.strict_port, site.revoked if who == "revoked" else None)
    published = subprocess.run(
        ["mosquitto_pub", *own, "-t", "t", "-m", "m", "-q", "1"],
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert published.returncode != 0


@pytest.mark.parametrize("protocol", [paho.MQTTv311, paho.MQTTv5])
def test_paho(site: Site, protocol: int) -> None:
    client = paho.Client(CallbackAPIVersion.VERSION2, f"paho-{protocol}", protocol=protocol)
    client.tls_set(site.root.certificate, site.device.certificate, site.device.key)
    received: list[bytes] = []
    subscribed, done = threading.Event(), threading.Event()
    client.on_connect = lambda client, *_: client.subscribe("p/#", 1)
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda _client, _data, message: (received.append(message.payload), done.set())
    client.connect("localhost", site.strict_port)
    client.loop_start()
    try:
        assert subscribed.wait(WAIT_S)
        client.publish("p/1", b"x" * 300_000, qos=1).wait_for_publish(WAIT_S)
        assert done.wait(WAIT_S)
    finally:
        client.disconnect()
        client.loop_stop()
    assert received == [b"x" * 300_000]


def where(site: Site) -> list[str]:
    return ["-connect", f"127.0.0.1:{site.port}", "-CAfile", site.root.certificate]


def s_client(site: Site, *words: str) -> str:
    """What the command says of a connection that it ends at once."""
    done = subprocess.run(
        ["openssl", "s_client", *where(site), *words],
        input="Q\n", capture_output=True, text=True, timeout=WAIT_S, check=False,
        env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["-tls1_3"], "New, TLSv1.3"),
        (["-tls1_2"], "New, TLSv1.2"),
        (["-alpn", "mqtt"], "ALPN protocol: mqtt"),
        (["-servername", "a.other.example.org"], "subject=CN = other"),
        (["-servername", "elsewhere.example.org"], "subject=CN = server"),
        (["-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"], "CHACHA20-POLY1305"),
    ],
)
def test_what_openssl_agrees_on(site: Site, asked: list[str], said: str) -> None:
    text = s_client(site, *asked)
    assert said in text
    assert "Verify return code: 0 (ok)" in text


@pytest.mark.parametrize(
    "asked",
    [
        ["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
        ["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA256"],
        ["-tls1_2", "-cipher", "AES128-GCM-SHA256"],
    ],
)
def test_what_openssl_is_refused(site: Site, asked: list[str]) -> None:
    assert "Cipher is (NONE)" in s_client(site, *asked)


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_resumes_its_session(site: Site, tmp_path: Path, version: str) -> None:
    kept = tmp_path / "session"
    first = subprocess.Popen(
        ["openssl", "s_client", *where(site), version, "-sess_out", str(kept)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        # In TLS 1.3 a ticket comes behind the handshake.
        eventually(lambda: kept.exists() and kept.stat().st_size, "it has a session")
        first.communicate(b"Q\n", timeout=WAIT_S)
    finally:
        first.kill()
        first.wait()
    assert "Reused, " in s_client(site, version, "-sess_in", str(kept))
