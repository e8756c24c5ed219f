"""Foreign clients at a gateway with a chain: tokens, a service and users, in one process and with workers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from eventually import eventually
from gateway_process import GatewayProcess
from http_service import HttpService
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from tokens import jwks, key_of
from users_site import line_of

pytestmark = pytest.mark.interop

CHAIN = """
[mqtt.authentication]
users_file = "{users}"

[[mqtt.authentication.chain]]
kind = "jwt"
name = "tokens"
algorithms = ["ES256"]
jwks_url = "{keys}"
leeway_s = 0.0
refresh_s = 1.0

[[mqtt.authentication.chain]]
kind = "http"
name = "own"
url = "{own}"
when_user = "asked-.*"

[[mqtt.authentication.chain]]
kind = "users"
name = "users"
"""


class ServiceThread:
    """An HTTP service on a loop of its own."""

    def __init__(self) -> None:
        self.service = HttpService()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self.service.start())

    def run(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def close(self) -> None:
        self.run(self.service.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(20)
        self.loop.close()


@pytest.fixture(scope="module")
def services() -> Iterator[tuple[HttpService, HttpService]]:
    """The keys of tokens, and the operator's own."""
    both = ServiceThread(), ServiceThread()
    both[0].service.says(jwks(key_of("ES256", "one")))
    both[1].service.says(
        {"result": "allow", "user": "from-the-service"}, headers={"cache-control": "max-age=9"}
    )
    yield both[0].service, both[1].service
    for one in both:
        one.close()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, services: tuple[HttpService, HttpService]) -> Path:
    directory = tmp_path_factory.mktemp("chain")
    (directory / "users").write_text(line_of("pump"))
    (directory / "users").chmod(0o600)
    file = directory / "gateway.toml"
    file.write_text(
        CHAIN.format(users=directory / "users", keys=services[0].url(), own=services[1].url("/device"))
    )
    return file


@pytest.fixture(scope="module", params=["one process", "workers"])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, config: Path
) -> Iterator[GatewayProcess]:
    data = tmp_path_factory.mktemp("gateway") / "data"
    if request.param == "one process":
        with GatewayProcess(data, config=config) as running:
            yield running
        return
    with GatewayProcess(data) as broker:
        address = f"mqtt.registries={broker.registry}"
        with GatewayProcess(
            data.with_name("front"), address, "mqtt.workers=2", role="mqtt", config=config
        ) as running:
            yield running


class Client:
    """One of paho's that says how its connection began and ended."""

    def __init__(
        self, gateway: GatewayProcess, protocol: int, user: str | None, password: str | None
    ) -> None:
        self.codes: list[int] = []
        self.ends: list[tuple[int, str | None]] = []
        self.received: list[bytes] = []
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, "", protocol=protocol, reconnect_on_failure=False
        )
        self.client.on_connect = lambda _client, _data, _flags, code, _properties: self.codes.append(
            code.value
        )
        self.client.on_disconnect = self._ended
        self.client.on_message = lambda _client, _data, message: self.received.append(message.payload)
        self.client.username_pw_set(user, password)
        self._port = gateway.mqtt_port

    def _ended(self, _client: Any, _data: Any, _flags: Any, code: Any, properties: Any) -> None:
        self.ends.append((code.value, getattr(properties, "ReasonString", None)))

    def connect(self, properties: Properties | None = None) -> int:
        self.client.connect("127.0.0.1", self._port, properties=properties)
        self.client.loop_start()
        return eventually(lambda: [*self.codes, *(code for code, _ in self.ends)], "CONNACK")[0]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def code(gateway: GatewayProcess, protocol: int, user: str | None, password: str | None) -> int:
    client = Client(gateway, protocol, user, password)
    try:
        return client.connect()
    finally:
        client.close()


@pytest.mark.parametrize("protocol", [paho.MQTTv311, paho.MQTTv5])
def test_every_link_of_the_chain(
    gateway: GatewayProcess, services: tuple[HttpService, HttpService], protocol: int
) -> None:
    key = key_of("ES256", "one")
    assert code(gateway, protocol, "pump", key.token().decode()) == 0
    assert code(gateway, protocol, "valve", key.token().decode()) == 0x86
    assert code(gateway, protocol, "pump", key_of("ES256", "made up").token().decode()) == 0x86
    assert code(gateway, protocol, "pump", "pmup") == 0
    assert code(gateway, protocol, "pump", "wrong") == 0x86
    assert code(gateway, protocol, "asked-1", "x") == 0
    assert services[1].asked[-1]["password"] == "x"
    services[1].says({"result": "deny"}, headers={"cache-control": "no-store"})
    assert code(gateway, protocol, "asked-2", "x") == 0x87
    services[1].says(b"nonsense")
    assert code(gateway, protocol, "asked-3", "x") == 0x88
    services[1].says({"result": "allow"}, headers={"cache-control": "no-store"})
    assert code(gateway, protocol, None, None) == 0x87


@pytest.mark.parametrize("protocol", [paho.MQTTv311, paho.MQTTv5])
def test_a_connection_ends_with_its_token(gateway: GatewayProcess, protocol: int) -> None:
    token = key_of("ES256", "one").token({"exp": time.time() + 2}).decode()
    client = Client(gateway, protocol, "pump", token)
    try:
        assert client.connect() == 0
        client.client.subscribe("a", 1)
        client.client.publish("a", b"while it lasts", qos=1)
        eventually(lambda: client.received == [b"while it lasts"], "the message")
        (reason, text) = eventually(lambda: client.ends, "the end")[0]
        if protocol == paho.MQTTv5:
            assert (reason, text) == (0xA0, "the token by which it connected has ended")
    finally:
        client.close()


def test_a_token_in_an_exchange_of_mqtt_5(gateway: GatewayProcess) -> None:
    client = Client(gateway, paho.MQTTv5, None, None)
    properties = Properties(PacketTypes.CONNECT)
    properties.AuthenticationMethod = "iotmq-jwt"
    properties.AuthenticationData = key_of("ES256", "one").token()
    try:
        assert client.connect(properties) == 0
    finally:
        client.close()


def test_keys_that_rotate(gateway: GatewayProcess, services: tuple[HttpService, HttpService]) -> None:
    services[0].says(jwks(key_of("ES256", "two")))
    try:
        eventually(
            lambda: code(gateway, 5, "pump", key_of("ES256", "two").token().decode()) == 0,
            "the new key counts",
        )
        eventually(
            lambda: code(gateway, 5, "pump", key_of("ES256", "one").token().decode()) == 0x86, "the old not"
        )
    finally:
        services[0].says(jwks(key_of("ES256", "one"), key_of("ES256", "two")))
    eventually(lambda: code(gateway, 5, "pump", key_of("ES256", "one").token().decode()) == 0, "both")


def test_nothing_secret_is_shown(gateway: GatewayProcess) -> None:
    text = gateway.log_text() + json.dumps(gateway.metrics())
    assert "pmup" not in text
    assert key_of("ES256", "one").token().decode().split(".")[0] not in text
