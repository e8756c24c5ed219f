"""Registry, broker and front end as processes of their own, over TLS, the broker with access control."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.publish
import pytest
from certificates import Certificate, make_certificate, make_root
from eventually import eventually
from gateway_process import GatewayProcess

from iotmq.client import ClientSettings, SyncAdmin, SyncClient
from iotmq.commands.cli import main

FILE = """
accounts:
  - {accessKey: front-end, secretKey: abcdefgh, admin: true}
  - {accessKey: somebody, secretKey: abcdefgh, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")


class Site:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        root = make_root(directory)
        made = make_certificate(directory, root)
        self.ca_file = root.certificate
        accounts = directory / "broker" / "config" / "plain_acl.yml"
        accounts.parent.mkdir(parents=True)
        accounts.touch(0o600)
        accounts.write_text(FILE)

        secret = directory / "secret"
        secret.touch(0o600)
        secret.write_text("abcdefgh\n")
        self.front_secret = f'mqtt.broker_secret_key={{file = "{secret}"}}'

        def enforcing(role: str) -> list[str]:
            files = {"certificate_file": made.certificate, "key_file": made.key, "mode": "enforcing"}
            return [f"{role}.tls_{name}={value}" for name, value in files.items()]

        self.registry = GatewayProcess(directory / "registry", *enforcing("registry"), role="registry")
        self.broker = GatewayProcess(
            directory / "broker",
            f"broker.registries={self.registry.registry}",
            "broker.registration_interval_s=0.3",
            "broker.acl_enabled=true",
            "broker.registry_tls_enabled=true",
            f"broker.registry_tls_ca_file={self.ca_file}",
            *enforcing("broker"),
            role="broker",
        )

    def front(self, name: str, *assignments: str) -> GatewayProcess:
        return GatewayProcess(
            self.directory / name,
            f"mqtt.registries={self.registry.registry}",
            "mqtt.broker_tls_enabled=true",
            f"mqtt.broker_tls_ca_file={self.ca_file}",
            *assignments,
            role="mqtt",
        )

    def stored_count(self) -> int:
        settings = ClientSettings(
            registries=(self.registry.registry,),
            access_key="front-end",
            secret_key="abcdefgh",
            tls_enabled=True,
            tls_ca_file=self.ca_file,
        )
        with SyncClient(settings) as client:
            return sum(offsets.end for offsets in SyncAdmin(client).offsets("mqtt").values())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("secured"))
    with site.registry, site.broker:
        yield site


def test_messages_are_sent_and_read_by_hand_with_an_account_and_tls(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    connect = ("--registry", site.registry.registry, "--tls", "--tls-ca", str(site.ca_file))
    produce = ("produce", "by-hand", "one", "two", "--key", "k", *connect)
    consume = ("consume", "by-hand", "--from", "first", "--count", "2", "--format", "raw", *connect)
    assert main(produce) == 1
    assert b"is not signed" in capsysbinary.readouterr().err
    monkeypatch.setenv("IOTMQ_SECRET_KEY", "abcdefgh")
    assert main((*produce, "--access-key", "front-end")) == 0
    capsysbinary.readouterr()
    assert main((*consume, "--access-key", "somebody")) == 0
    assert capsysbinary.readouterr().out == b"one\ntwo\n"


def test_a_front_end_with_its_account_serves_devices(site: Site) -> None:
    with site.front("front", "mqtt.broker_access_key=front-end", site.front_secret) as front:
        paho.mqtt.publish.multiple(
            [(f"devices/{number}", b"x", 1, False) for number in range(20)],
            hostname="127.0.0.1", port=front.mqtt_port, client_id="secured",
        )  # fmt: skip
    assert site.stored_count() == 20
    # What the front end was told is not in any log.
    assert "abcdefgh" not in front.log_text() + site.broker.log_text()


def test_a_front_end_without_an_administrators_account_is_not_ready(site: Site) -> None:
    front = site.front("stranger", "mqtt.broker_access_key=somebody", site.front_secret)
    front.launch()
    try:
        eventually(
            lambda: site.broker.metrics().get('iotmq_broker_acl_refused_total{reason="admin"}', 0) > 0,
            "the delivery channel is refused",
        )
        status, text = front.http("/readyz")
        assert status == 503
        assert "mqtt" in text
    finally:
        front.kill()


def test_everybody_shows_a_certificate_to_a_registry_that_asks_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_root(tmp_path)
    server = make_certificate(tmp_path, root)
    broker_shows = make_certificate(tmp_path, root, "the-broker")
    client_shows = make_certificate(tmp_path, root, "a-client")

    def shown(prefix: str, made: Certificate) -> list[str]:
        files = {"ca_file": root.certificate, "certificate_file": made.certificate, "key_file": made.key}
        return [f"{prefix}_enabled=true", *(f"{prefix}_{name}={value}" for name, value in files.items())]

    registry = GatewayProcess(
        tmp_path / "registry",
        "registry.access=everything",
        'registry.certificate_names=["the-broker"]',
        f"registry.tls_certificate_file={server.certificate}",
        f"registry.tls_key_file={server.key}",
        f"registry.tls_client_ca_file={root.certificate}",
        role="registry",
    )
    broker = GatewayProcess(
        tmp_path / "broker",
        f"broker.registries={registry.registry}",
        f"broker.tls_certificate_file={server.certificate}",
        f"broker.tls_key_file={server.key}",
        *shown("broker.registry_tls", broker_shows),
        role="broker",
    )
    front = GatewayProcess(
        tmp_path / "front",
        f"mqtt.registries={registry.registry}",
        "mqtt.workers=2",
        *shown("mqtt.broker_tls", client_shows),
        role="mqtt",
    )
    with registry, broker, front:
        paho.mqtt.publish.single("a", b"x", qos=1, hostname="127.0.0.1", port=front.mqtt_port)
        asked = (
            "admin",
            "cluster",
            "list",
            "--registry",
            registry.registry,
            "--tls",
            "--tls-ca",
            root.certificate,
        )
        own = ("--tls-cert", client_shows.certificate, "--tls-key", client_shows.key)
        assert main((*asked, *own)) == 0
        assert "broker-a" in capsys.readouterr().out
        assert main(asked) == 1
        # A client's certificate is no broker's.
        order = ("admin", "kv", "put", "namespace", "key", "value", "--registry", registry.registry)
        assert main((*order, "--tls", "--tls-ca", root.certificate, *own)) == 1
        assert "registry.certificate_names" in capsys.readouterr().err
