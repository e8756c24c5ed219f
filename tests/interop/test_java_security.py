"""rocketmq-client and mqadmin 4.9.8 (Maven), unmodified: filters by SQL92, accounts, TLS."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import make_certificate, make_root
from eventually import eventually
from gateway_process import GatewayProcess
from java_process import JavaProcesses, java_marks, java_processes, mqadmin_of
from mqtt_listener import MqttListener
from piped_client import ClientFailedError, PipedClient

from iotmq.client import ClientSettings, SyncAdmin, SyncClient

FILE = """
accounts:
  - {accessKey: operator, secretKey: abcdefgh, admin: true}
  - accessKey: device-account
    secretKey: 12345678
    topicPerms: [Open=PUB|SUB, Closed=DENY]
    groupPerms: [java-push=SUB]
    mqttTopicPerms: [devices/+/commands=PUB]
"""
RIGHT, WRONG = ("device-account", "12345678"), ("device-account", "87654321")
OPERATOR = ("operator", "abcdefgh")
COLOURS = ("red", "green", "blue")

pytestmark = [
    *java_marks,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there"),
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Access control is on, and both listeners take TLS beside plain connections."""
    directory = tmp_path_factory.mktemp("secure")
    accounts = directory / "data" / "config" / "plain_acl.yml"
    accounts.parent.mkdir(parents=True)
    accounts.touch(0o600)
    accounts.write_text(FILE)
    made = make_certificate(directory, make_root(directory))
    tls = [
        f"{role}.tls_{word}"
        for role in ("broker", "registry")
        for word in (f"certificate_file={made.certificate}", f"key_file={made.key}")
    ]
    with GatewayProcess(directory / "data", "broker.acl_enabled=true", *tls) as running:
        settings = ClientSettings(
            registries=(running.registry,), access_key="operator", secret_key="abcdefgh"
        )
        with SyncClient(settings) as client:
            for topic in ("Open", "Closed", "Filtered"):
                SyncAdmin(client).create_topic(topic, queues=2)
        yield running


@pytest.fixture
def javas(gateway: GatewayProcess, tmp_path: Path) -> Iterator[JavaProcesses]:
    """mqadmin finds the operator's keys."""
    keys = f"accessKey: {OPERATOR[0]}\nsecretKey: {OPERATOR[1]}\n"
    with java_processes(tmp_path, gateway.registry, tools_yml=keys) as running:
        yield running


@pytest.fixture
def java(javas: JavaProcesses) -> PipedClient:
    return javas.start("JavaClient")


def numbers(count: int) -> list[dict[str, Any]]:
    return [
        {"body": f"{number}", "properties": {"n": f"{number}", "colour": COLOURS[number % 3]}}
        for number in range(count)
    ]


def value(gateway: GatewayProcess, name: str) -> float:
    text = gateway.http("/metrics")[1]
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def test_a_filter_by_sql(java: PipedClient) -> None:
    java.call("producer", group="java-filtered", account=OPERATOR)
    sql = "(n BETWEEN 10 AND 19 OR n = 50) AND colour IN ('red', 'blue') AND missing IS NULL"
    java.call("push", group="java-filter", topic="Filtered", sql=sql, account=OPERATOR)
    java.call("send", group="java-filtered", topic="Filtered", messages=numbers(60))
    wanted = [f"{n}" for n in (*range(10, 20), 50) if n % 3 in (0, 2)]
    got = java.wait_for("message", len(wanted))
    assert sorted(line["body"] for line in got) == sorted(wanted)


def test_a_wrong_filter_is_an_error_at_the_start(java: PipedClient) -> None:
    """The client asks a broker (code 46) and shows what it says."""
    with pytest.raises(ClientFailedError, match="ends too early"):
        java.call("push", group="java-wrong", topic="Filtered", sql="n >", account=OPERATOR)


def test_right_keys_send_and_consume(java: PipedClient) -> None:
    java.call("producer", group="java-right", account=RIGHT)
    java.call("push", group="java-push", topic="Open", account=RIGHT)
    results = java.call("send", group="java-right", topic="Open", messages=numbers(10))
    assert set(results) == {"SEND_OK"}
    got = java.wait_for("message", 10)
    assert sorted(int(line["body"]) for line in got) == list(range(10))


@pytest.mark.parametrize(
    ("account", "topic", "words"),
    [
        (WRONG, "Open", "signature of account device-account is wrong"),
        (None, "Open", "is not signed"),
        (RIGHT, "Closed", "lacks PUB on topic 'Closed'"),
    ],
)
def test_other_keys_are_told_why_not(
    java: PipedClient, account: tuple[str, str] | None, topic: str, words: str
) -> None:
    java.call("producer", group="java-other", account=account)
    with pytest.raises(ClientFailedError, match=words):
        java.call("send", group="java-other", topic=topic, messages=numbers(1))


def test_devices_get_what_the_account_may_send_them(gateway: GatewayProcess, java: PipedClient) -> None:
    def to(topic: str) -> list[dict[str, Any]]:
        return [{"body": "open", "properties": {"MQTT_TOPIC": topic}}]

    java.call("producer", group="java-devices", account=RIGHT)
    with MqttListener(gateway.mqtt_port, "devices/#") as device:
        with pytest.raises(ClientFailedError, match="lacks PUB on MQTT topic 'devices/7/reset'"):
            java.call("send", group="java-devices", topic="Open", messages=to("devices/7/reset"))
        sent = java.call("send", group="java-devices", topic="Open", messages=to("devices/7/commands"))
        assert sent == ["SEND_OK"]
        assert device.next() == ("devices/7/commands", b"open")
        assert device.is_empty()


def test_over_tls(gateway: GatewayProcess, java: PipedClient) -> None:
    before = value(gateway, "iotmq_remoting_tls_connections_total")
    java.call("producer", group="java-tls", account=RIGHT, tls=True)
    java.call("push", group="java-push", topic="Open", account=RIGHT, tls=True)
    results = java.call("send", group="java-tls", topic="Open", messages=numbers(10))
    assert set(results) == {"SEND_OK"}
    java.wait_for("message", 10)
    # To the registry and to the broker, at least.
    assert value(gateway, "iotmq_remoting_tls_connections_total") >= before + 2


def test_mqadmin_changes_the_accounts(gateway: GatewayProcess, javas: JavaProcesses) -> None:
    run, java = mqadmin_of(javas), javas.start("JavaClient")
    made = run(
        "updateAclConfig", "-c", "DefaultCluster", "-a", "newcomer", "-s", "abcdefgh",
        "-t", "Open=PUB,Closed=DENY", "-i", "DENY", "-u", "SUB", "-m", "false",
    )  # fmt: skip
    assert "success" in made
    java.call("producer", group="java-newcomer", account=("newcomer", "abcdefgh"))
    assert java.call("send", group="java-newcomer", topic="Open", messages=numbers(1)) == ["SEND_OK"]
    assert "broker-a" in run("clusterAclConfigVersion", "-c", "DefaultCluster")
    assert "success" in run("updateGlobalWhiteAddr", "-c", "DefaultCluster", "-g", "10.9.8.7,10.9.7.*")
    assert "success" in run("deleteAccessConfig", "-c", "DefaultCluster", "-a", "newcomer")
    with pytest.raises(ClientFailedError, match="no account 'newcomer'"):
        java.call("send", group="java-newcomer", topic="Open", messages=numbers(1))
    text = (gateway.data / "config" / "plain_acl.yml").read_text()
    assert "10.9.7.*" in text
    assert "newcomer" not in text
    eventually(
        lambda: value(gateway, "iotmq_broker_acl_accounts") == 2, "the removed account is gone", within_s=10
    )


def test_clients_with_accounts_at_a_registry_that_asks_for_them(tmp_path: Path) -> None:
    """They sign what they ask registries as they sign what they ask brokers."""
    accounts = tmp_path / "data" / "config" / "plain_acl.yml"
    accounts.parent.mkdir(parents=True)
    secret = tmp_path / "secret"
    for file, text in ((accounts, FILE), (secret, OPERATOR[1])):
        file.touch(0o600)
        file.write_text(text)
    guarded = GatewayProcess(
        tmp_path / "data",
        "broker.acl_enabled=true",
        "registry.access=everything",
        f"registry.acl_file={accounts}",
        f"broker.registry_access_key={OPERATOR[0]}",
        f'broker.registry_secret_key={{file = "{secret}"}}',
    )
    keys = f"accessKey: {OPERATOR[0]}\nsecretKey: {OPERATOR[1]}\n"
    (tmp_path / "java").mkdir()
    with guarded, java_processes(tmp_path / "java", guarded.registry, tools_yml=keys) as javas:
        settings = ClientSettings(
            registries=(guarded.registry,), access_key="operator", secret_key="abcdefgh"
        )
        with SyncClient(settings) as client:
            SyncAdmin(client).create_topic("Open", queues=2)
        java = javas.start("JavaClient")
        java.call("producer", group="java-right", account=RIGHT)
        java.call("push", group="java-push", topic="Open", account=RIGHT)
        assert set(java.call("send", group="java-right", topic="Open", messages=numbers(5))) == {"SEND_OK"}
        java.wait_for("message", 5)
        assert "broker-a" in mqadmin_of(javas)("clusterList")
        before = value(guarded, "iotmq_registry_refused_total")
        java.call("producer", group="java-unsigned", account=None)
        with pytest.raises(ClientFailedError, match="No route info"):
            java.call("send", group="java-unsigned", topic="Open", messages=numbers(1))
        assert value(guarded, "iotmq_registry_refused_total") > before
