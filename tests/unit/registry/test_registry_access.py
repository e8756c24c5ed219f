"""A registry that asks for a proof: by accounts, by certificates, by either; for changes alone or for all."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from certificates import Certificate, make_certificate, make_root
from eventually import soon
from local_cluster import LocalCluster

from iotmq.broker.access.acl import AccessControl
from iotmq.client import Admin, ClientSettings, IotmqClient, Message, Producer
from iotmq.errors import ConfigError, ConnectionClosedError, IotmqError
from iotmq.registry import server
from iotmq.registry.access import LOOKUPS
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.signature import Credentials
from iotmq.remoting.tls.files import client_tls

FILE = """
accounts:
  - {accessKey: operator, secretKey: abcdefgh, admin: true}
  - {accessKey: services, secretKey: 12345678}
"""
ADMIN, SERVICE = Credentials("operator", "abcdefgh"), Credentials("services", "12345678")
WRONG = Credentials("operator", "12345678")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command is not there")


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    path = tmp_path / "accounts.yml"
    path.touch(0o600)
    path.write_text(FILE)
    return path


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Registry]:
    wanted = RegistrySettings(listen_port=0, **settings)
    assert wanted.problems() == []
    known = (
        AccessControl(Path(wanted.acl_file), asked_by="registry.acl_file is set") if wanted.acl_file else None
    )
    registry = Registry(wanted, accounts=known)
    await registry.start()
    try:
        yield registry
    finally:
        await registry.stop()


@asynccontextmanager
async def peer(
    registry: Registry, credentials: Credentials | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ClientConnection]:
    connection = await ClientConnection.connect("127.0.0.1", registry.port, credentials=credentials, tls=tls)
    try:
        yield connection
    finally:
        await connection.close()


async def outcome(
    registry: Registry, credentials: Credentials | None = None, tls: ssl.SSLContext | None = None
) -> tuple[int, int]:
    """The codes of a registration and of a look-up."""
    async with peer(registry, credentials, tls) as connection:
        registered = await connection.request(registration())
        found = await ask(connection, RequestCode.GET_BROKER_CLUSTER_INFO)
        if found.code == ResponseCode.SUCCESS:
            is_known = b"broker-a" in found.body_bytes()
            assert is_known is (registered.code == ResponseCode.SUCCESS)
        return registered.code, found.code


def registration() -> Command:
    wrapper = {"topicConfigTable": {}, "dataVersion": {"counter": 1, "timestamp": 1_700_000_000_000}}
    return Command.request(
        RequestCode.REGISTER_BROKER,
        {
            "brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0",
            "haServerAddr": "10.0.0.1:10912",
        },
        msgspec.json.encode({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}),
    )  # fmt: skip


async def ask(connection: ClientConnection, code: int) -> Command:
    return await connection.request(Command.request(code))


YES, NO = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("access", "credentials", "expected"),
    [
        ("registrations", None, (NO, YES)),
        ("registrations", WRONG, (NO, YES)),
        ("registrations", SERVICE, (NO, YES)),
        ("registrations", ADMIN, (YES, YES)),
        ("everything", None, (NO, NO)),
        ("everything", WRONG, (NO, NO)),
        ("everything", SERVICE, (NO, YES)),
        ("everything", ADMIN, (YES, YES)),
    ],
)
async def test_accounts(
    accounts: Path, access: str, credentials: Credentials | None, expected: tuple[int, int]
) -> None:
    async with running(access=access, acl_file=str(accounts)) as registry:
        assert await outcome(registry, credentials) == expected


async def test_an_open_registry_asks_nobody() -> None:
    async with running() as registry:
        assert await outcome(registry) == (YES, YES)


async def test_every_request_that_is_no_look_up_needs_a_proof(accounts: Path) -> None:
    async with running(access="registrations", acl_file=str(accounts)) as registry:
        codes = set(registry._handlers)
        assert codes > LOOKUPS
        async with peer(registry) as connection:
            for code in (*codes - LOOKUPS, 4_711):
                assert (await ask(connection, code)).code == NO, code
            for code in LOOKUPS - {RequestCode.WATCH_MASTERS}:
                assert (await ask(connection, code)).code != NO, code
        counted = {(m.name, m.labels): m.value for m in registry.metrics()}
        assert counted["iotmq_registry_refused_total", (("reason", "unsigned"),)] == len(codes - LOOKUPS) + 1
        assert counted["iotmq_registry_accounts", ()] == 2


def rewrite(path: Path, text: str) -> None:
    path.write_text(text)


async def test_a_changed_file_counts(accounts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_ACCOUNTS_INTERVAL_S", 0.02)
    async with running(access="registrations", acl_file=str(accounts)) as registry:
        assert (await outcome(registry, SERVICE))[0] == NO
        rewrite(accounts, FILE.replace("12345678}", "12345678, admin: true}"))
        reloads = ("iotmq_registry_accounts_reloads_total", ())
        await soon(
            lambda: {(m.name, m.labels): m.value for m in registry.metrics()}[reloads] == 1,
            "a look at the file",
        )
        assert (await outcome(registry, SERVICE))[0] == YES


async def test_a_registry_without_its_accounts_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"registry\.acl_file is set and .* is not there"):
        async with running(access="everything", acl_file=str(tmp_path / "none")):
            pass


class Files:
    def __init__(self, directory: Path) -> None:
        self.root = make_root(directory)
        self.server = make_certificate(directory, self.root)
        self.broker = make_certificate(directory, self.root, "broker-a", alternatives="DNS:broker-a.example")
        self.client = make_certificate(directory, self.root, "client", alternatives="")
        self.stranger = make_certificate(directory, make_root(directory, "elsewhere"), "stranger")

    def listening(self) -> dict[str, str]:
        return {
            "tls_certificate_file": self.server.certificate,
            "tls_key_file": self.server.key,
            "tls_client_ca_file": self.root.certificate,
        }

    def tls(self, certificate: Certificate | None) -> ssl.SSLContext:
        files = (
            {"certificate_file": certificate.certificate, "key_file": certificate.key} if certificate else {}
        )
        return client_tls(ca_file=self.root.certificate, **files)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("registry-certificates"))


@needs_openssl
async def test_certificates_for_registrations_leave_look_ups_as_they_are(files: Files) -> None:
    async with running(access="registrations", **files.listening()) as registry:
        assert await outcome(registry) == (NO, YES)
        assert await outcome(registry, tls=files.tls(None)) == (NO, YES)
        assert await outcome(registry, tls=files.tls(files.broker)) == (YES, YES)
        with pytest.raises(ConnectionClosedError):
            await outcome(registry, tls=files.tls(files.stranger))


@needs_openssl
async def test_certificates_for_everything(files: Files) -> None:
    async with running(access="everything", **files.listening()) as registry:
        assert await outcome(registry) == (NO, NO)
        with pytest.raises(ConnectionClosedError):
            await outcome(registry, tls=files.tls(None))
        assert await outcome(registry, tls=files.tls(files.client)) == (YES, YES)


@needs_openssl
@pytest.mark.parametrize("name", ["broker-a", "broker-a.example"])
async def test_certificates_of_clients_register_no_brokers_where_names_are_given(
    files: Files, name: str
) -> None:
    settings = {**files.listening(), "certificate_names": (name,)}
    async with running(access="everything", **settings) as registry:
        assert await outcome(registry, tls=files.tls(files.client)) == (NO, YES)
        counted = {(m.name, m.labels): m.value for m in registry.metrics()}
        assert counted["iotmq_registry_refused_total", (("reason", "certificate"),)] == 1
        assert await outcome(registry, tls=files.tls(files.broker)) == (YES, YES)


@needs_openssl
async def test_either_of_both_will_do(files: Files, accounts: Path) -> None:
    async with running(access="everything", acl_file=str(accounts), **files.listening()) as registry:
        assert await outcome(registry) == (NO, NO)
        assert await outcome(registry, SERVICE) == (NO, YES)
        assert await outcome(registry, ADMIN, files.tls(None)) == (YES, YES)
        assert await outcome(registry, tls=files.tls(files.client)) == (YES, YES)


async def test_brokers_and_clients_with_their_accounts(tmp_path: Path, accounts: Path) -> None:
    """A broker signs its registrations, clients what they ask, as they do at brokers."""
    cluster = LocalCluster(
        tmp_path, topics=("T",), registry_access_key="operator", registry_secret_key="abcdefgh"
    )
    cluster.registry = Registry(
        RegistrySettings(listen_port=0, access="everything", acl_file=str(accounts)),
        accounts=AccessControl(accounts),
    )
    await cluster.start()
    try:
        keys = {"access_key": "services", "secret_key": "12345678"}
        signed = ClientSettings(registries=(cluster.address,), **keys)
        async with IotmqClient(signed) as client, Producer(client) as producer:
            await producer.send(Message("T", b"x"))
            with pytest.raises(IotmqError, match="not an administrator"):
                await Admin(client).changes.put_value("n", "k", "v")
        async with IotmqClient(ClientSettings(registries=(cluster.address,))) as client:
            with pytest.raises(IotmqError, match="not signed"):
                await Admin(client).topics()
    finally:
        await cluster.stop()
    assert cluster.registry.routes.broker_count == 0, "it took its leave, signed as well"


async def test_a_broker_without_an_account_is_not_registered(tmp_path: Path, accounts: Path) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.registry = Registry(
        RegistrySettings(listen_port=0, access="registrations", acl_file=str(accounts)),
        accounts=AccessControl(accounts),
    )
    await cluster.registry.start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await cluster.start_broker()
    reason = cluster.broker.not_ready_reason
    assert reason is not None
    assert "not registered" in reason
    assert cluster.registry.routes.broker_count == 0
    await cluster.stop()
