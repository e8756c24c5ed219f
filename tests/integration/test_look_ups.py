"""Devices are looked up in real services: PostgreSQL, Redis and OpenLDAP, also down, slow and lying."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import make_certificate, make_root
from eventually import soon
from gateway_process import free_port
from postgres_server import INITDB, PostgresServer
from redis_server import PROGRAM as REDIS
from redis_server import RedisServer
from slapd_server import ADMIN, ADMIN_PASSWORD, BASE, SlapdServer
from slapd_server import PROGRAM as SLAPD
from socket_server import SocketServer

from iotmq.errors import ConfigError
from iotmq.mqtt_front.access.links.ldap import LdapLink
from iotmq.mqtt_front.access.links.link import Link, LinkFailedError
from iotmq.mqtt_front.access.links.redis import RedisLink
from iotmq.mqtt_front.access.links.sql import SqlLink
from iotmq.mqtt_front.access.scram import make_verifier
from iotmq.mqtt_front.access.verdicts import NOT_MINE, Accepted, Credentials, Denied
from iotmq.mqtt_front.settings.service_links import LdapLinkSettings, RedisLinkSettings, SqlLinkSettings

pytestmark = [pytest.mark.uvloop, pytest.mark.interop]

HASH = str(make_verifier(b"secret", iterations=4_096))
NAMES = (
    "' OR '1'='1", "pump'; DROP TABLE users; --", "*", "*)(uid=*", "pump)(|(uid=*", "\\2a", "pu*", "a:b",
    "größe", "uid=pump,ou=people,dc=example,dc=org", "pump\n", "x\r\nDEL mqtt:pump\r\n", "x\x01\x1f\x7f\x85",
)  # fmt: skip
STATEMENT = (
    "SELECT password_hash, roles, groups, attributes, permissions, expires_at, is_bridge "
    "FROM users WHERE name = :user_name"
)
ENTRIES = f"""\
dn: ou=people,{BASE}
objectClass: organizationalUnit
ou: people

dn: uid=pump,ou=people,{BASE}
objectClass: inetOrgPerson
uid: pump
cn: Pump
sn: Pump
title: meter
title: valve
o: tenant-1
userPassword: secret

dn: uid=twice,ou=people,{BASE}
objectClass: inetOrgPerson
uid: twice
cn: Twice
sn: One
userPassword: secret

dn: cn=Other,ou=people,{BASE}
objectClass: inetOrgPerson
uid: twice
cn: Other
sn: Two
userPassword: secret

dn: ou=groups,{BASE}
objectClass: organizationalUnit
ou: groups

dn: cn=meters,ou=groups,{BASE}
objectClass: groupOfNames
cn: meters
member: uid=pump,ou=people,{BASE}

dn: cn=others,ou=groups,{BASE}
objectClass: groupOfNames
cn: others
member: uid=twice,ou=people,{BASE}
"""

needs_postgres = pytest.mark.skipif(INITDB is None, reason="needs PostgreSQL: tools/setup.sh")
needs_redis = pytest.mark.skipif(REDIS is None, reason="needs redis-server: tools/setup.sh")


def asked(user: str | None = "pump", password: bytes | None = b"secret", **fields: Any) -> Credentials:
    return Credentials("c1", user, password, "192.0.2.1", "tcp", **fields)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        server.sql(
            "CREATE TABLE users (name text PRIMARY KEY, password_hash text, roles text[], groups text, "
            "attributes jsonb, permissions jsonb, expires_at timestamptz, is_bridge boolean);"
            "CREATE TABLE rules (name text, permission text, action text, topic text, qos int[]);"
            f"INSERT INTO users VALUES ('pump', '{HASH}', ARRAY['meter','valve'], 'a,b', "
            '\'{"floor": 3}\', \'[{"permission": "deny", "action": "all", "topic": "x"}]\', '
            "'2100-01-01 00:00:00+00', true);"
            "INSERT INTO rules VALUES ('pump', 'allow', 'publish', 'a/#', ARRAY[0,1]);"
        )
        yield server


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="iotmq-look-ups-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def redis(directory: Path) -> Iterator[RedisServer]:
    with RedisServer(directory) as server:
        yield server


@pytest.fixture(scope="module")
def slapd(directory: Path) -> Iterator[SlapdServer]:
    pytest.importorskip("bonsai", reason="needs the headers of OpenLDAP: tools/setup.sh")
    if SLAPD is None:
        pytest.skip("needs slapd: tools/setup.sh")
    root = make_root(directory)
    with SlapdServer(directory, ENTRIES, make_certificate(directory, root)) as server:
        yield server


class Silent(SocketServer):
    """Accepts, and says nothing."""

    def connected(self, connection: socket.socket) -> None:
        pass


class Lying(SocketServer):
    """Says what no service would."""

    def connected(self, connection: socket.socket) -> None:
        connection.sendall(b"\xff\x00HTTP/1.1 200 OK\r\n\r\n$-5\r\n" * 50)


def sql(url: str, statement: str = STATEMENT, **settings: Any) -> SqlLink:
    return SqlLink(SqlLinkSettings(name="db", **{"url": url, "statement": statement, **settings}))


def cache(url: str, **settings: Any) -> RedisLink:
    return RedisLink(RedisLinkSettings(name="cache", **{"url": url, **settings}))


def ldap(url: str, directory: Path, **settings: Any) -> LdapLink:
    given = {
        "url": url,
        "base_dn": f"ou=people,{BASE}",
        "bind_dn": ADMIN,
        "bind_password": ADMIN_PASSWORD,
        "ca_file": str(directory / "root.pem"),
        **settings,
    }
    return LdapLink(LdapLinkSettings(name="dir", **given))


def used(link: SqlLink) -> float:
    """Connections that are in use."""
    return next(metric.value for metric in link.metrics() if metric.name.endswith("connections_used"))


# PostgreSQL


@needs_postgres
async def test_a_row_of_postgresql_with_types_of_its_own(postgres: PostgresServer) -> None:
    rules = "SELECT permission, action, topic, qos FROM rules WHERE name = :user_name"
    link = sql(postgres.url, permissions_statement=rules)
    verdict = await link.decide(asked())
    await link.close()
    assert isinstance(verdict, Accepted)
    found = verdict.identity
    assert (found.user, found.roles, found.groups) == ("pump", ("meter", "valve"), ("a", "b"))
    assert found.attributes == {"floor": "3"}
    assert found.is_bridge
    assert found.expires_at_s == 4_102_444_800
    assert found.permissions == (
        {"permission": "deny", "action": "all", "topic": "x"},
        {"permission": "allow", "action": "publish", "topic": "a/#", "qos": [0, 1]},
    )


@needs_postgres
async def test_all_facts_can_be_asked_for_with_a_cast(postgres: PostgresServer) -> None:
    statement = (
        "SELECT :client_id || '/' || :listener || '/' || host(CAST(:address AS inet)) || '/' || "
        "coalesce(:certificate_identity, 'none') AS \"user\" WHERE :user_name = 'pump'"
    )
    link = sql(postgres.url, statement, password_required=False)
    verdict = await link.decide(asked())
    await link.close()
    assert isinstance(verdict, Accepted)
    assert verdict.identity.user == "c1/tcp/192.0.2.1/none"


@needs_postgres
@pytest.mark.parametrize("name", NAMES)
async def test_a_name_is_no_part_of_a_statement(postgres: PostgresServer, name: str) -> None:
    link = sql(postgres.url)
    assert await link.decide(asked(name)) is NOT_MINE
    assert isinstance(await link.decide(asked()), Accepted)
    await link.close()


@needs_postgres
async def test_a_statement_that_takes_too_long_gives_its_connection_back(postgres: PostgresServer) -> None:
    """As the chain does: it stops waiting. All connections are taken again and again."""
    link = sql(postgres.url, "SELECT pg_sleep(30), :user_name AS roles", connections_max=2, timeout_s=5.0)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await asyncio.gather(link.decide(asked()), link.decide(asked("valve")))
    await soon(lambda: used(link) == 0, "the connections are given back")
    await link.close()


@needs_postgres
async def test_a_slow_statement_ends_by_the_time_limit_of_the_link(postgres: PostgresServer) -> None:
    link = sql(postgres.url, "SELECT pg_sleep(30), :user_name AS roles", timeout_s=0.2)
    with pytest.raises(LinkFailedError, match="database"):
        await link.decide(asked())
    await link.close()


@needs_postgres
async def test_a_database_that_was_started_again_costs_no_device_its_connection(
    postgres: PostgresServer,
) -> None:
    link = sql(postgres.url, connections_max=2)
    assert isinstance(await link.decide(asked()), Accepted)
    postgres.kill()
    with pytest.raises(LinkFailedError, match="database"):
        await link.decide(asked())
    postgres.start()
    assert isinstance(await link.decide(asked()), Accepted)
    await link.close()


@needs_postgres
async def test_many_devices_share_a_few_connections(postgres: PostgresServer) -> None:
    link = sql(postgres.url, connections_max=2)
    verdicts = await asyncio.gather(*(link.decide(asked()) for _ in range(50)))
    assert all(isinstance(verdict, Accepted) for verdict in verdicts)
    await link.close()


async def check_nul(link: Link) -> None:
    """Libraries in C would end a name there; no service is asked."""
    for field in ({"user": "pump\0"}, {"user": "pump\0x"}, {"certificate_identity": "a\0b"}):
        with pytest.raises(LinkFailedError, match="has a NUL"):
            await link.decide(asked(**field))
    assert not isinstance(await link.decide(asked(password=b"secret\0")), Accepted)
    assert not isinstance(await link.decide(asked(password=b"secret\0x")), Accepted)
    assert not isinstance(await link.decide(asked(password=b"secret\n")), Accepted)
    assert isinstance(await link.decide(asked()), Accepted)
    await link.close()


@needs_postgres
async def test_no_nul_gets_to_postgresql(postgres: PostgresServer) -> None:
    await check_nul(sql(postgres.url))


async def test_no_nul_gets_to_sqlite(directory: Path) -> None:
    file = directory / "users.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE users (name TEXT PRIMARY KEY, password_hash TEXT)")
        database.execute("INSERT INTO users VALUES ('pump', ?)", (HASH,))
    database.close()
    statement = "SELECT password_hash FROM users WHERE name = :user_name"
    link = sql(f"sqlite+aiosqlite:///{file}", statement)
    for name in NAMES:
        assert await link.decide(asked(name)) is NOT_MINE
    await check_nul(link)


@needs_redis
async def test_no_nul_gets_to_redis(redis: RedisServer) -> None:
    redis.command("HSET", "mqtt:pump", "password_hash", HASH)
    await check_nul(cache(redis.url))


async def test_no_nul_gets_to_a_directory(slapd: SlapdServer, directory: Path) -> None:
    await check_nul(ldap(slapd.url, directory))


# Redis


@needs_redis
async def test_a_hash_of_redis_says_who_a_device_is(redis: RedisServer) -> None:
    rule = {"permission": "allow", "action": "publish", "topic": "a/#"}
    redis.command(
        "HSET", "mqtt:pump", "password_hash", HASH, "roles", "meter", "attributes", '{"floor": 3}',
        "permissions", json.dumps([rule]), "expires_at", "4102444800", "is_bridge", "1", "unread", "x" * 1000,
    )  # fmt: skip
    link = cache(redis.url)
    verdict = await link.decide(asked())
    assert isinstance(verdict, Accepted)
    found = verdict.identity
    assert (found.user, found.roles, found.permissions) == ("pump", ("meter",), (rule,))
    assert found.is_bridge
    assert found.expires_at_s == 4_102_444_800
    assert isinstance(await link.decide(asked(password=b"wrong")), Denied)
    for name in NAMES:
        assert await link.decide(asked(name)) is NOT_MINE
    await link.close()


@needs_redis
async def test_what_is_no_hash_is_an_error(redis: RedisServer) -> None:
    redis.command("SET", "mqtt:text", "secret")
    redis.command("HSET", "mqtt:plain", "password_hash", "secret")
    link = cache(redis.url)
    for name, text in (("text", "WRONGTYPE"), ("plain", "password_hash")):
        with pytest.raises(LinkFailedError, match=text):
            await link.decide(asked(name))
    await link.close()


@needs_redis
async def test_a_redis_that_was_started_again_costs_no_device_its_connection(redis: RedisServer) -> None:
    redis.command("HSET", "mqtt:pump", "password_hash", HASH)
    link = cache(redis.url, timeout_s=0.3)
    assert isinstance(await link.decide(asked()), Accepted)
    redis.pause()
    with pytest.raises(LinkFailedError, match="Redis"):
        await link.decide(asked())
    redis.go_on()
    assert isinstance(await link.decide(asked()), Accepted)
    redis.kill()
    with pytest.raises(LinkFailedError, match="Redis"):
        await link.decide(asked())
    redis.start()
    redis.command("HSET", "mqtt:pump", "password_hash", HASH)
    assert isinstance(await link.decide(asked()), Accepted)
    await link.close()


@needs_redis
async def test_a_wrong_password_of_redis_itself_is_an_error(redis: RedisServer) -> None:
    link = cache(f"redis://:wrong@127.0.0.1:{redis.port}/0")
    with pytest.raises(LinkFailedError, match="Redis"):
        await link.decide(asked())
    await link.close()


# LDAP


async def test_an_entry_of_a_directory_with_groups(slapd: SlapdServer, directory: Path) -> None:
    link = ldap(
        slapd.url,
        directory,
        role_attribute="title",
        attributes={"tenant": "o"},
        group_base_dn=f"ou=groups,{BASE}",
        group_roles={"meters": "reads", "others": "writes"},
    )
    verdict = await link.decide(asked("PUMP"))
    assert isinstance(verdict, Accepted)
    found = verdict.identity
    assert (found.user, found.groups) == ("pump", ("meters",)), "as the directory writes it"
    assert sorted(found.roles) == ["meter", "reads", "valve"]
    assert found.attributes == {"tenant": "tenant-1"}
    await link.close()


@pytest.mark.parametrize("way", ["StartTLS", "ldaps", "plain"])
async def test_passwords_are_tried_on_the_entry(slapd: SlapdServer, directory: Path, way: str) -> None:
    url = slapd.tls_url if way == "ldaps" else slapd.url
    link = ldap(url, directory, start_tls=way != "plain")
    assert isinstance(await link.decide(asked()), Accepted)
    assert isinstance(await link.decide(asked(password=b"wrong")), Denied)
    assert await link.decide(asked("nobody")) is NOT_MINE
    assert await link.decide(asked(password=b"")) is NOT_MINE
    await link.close()


# Directories take control characters for spaces or for nothing (RFC 4518), and front ends refuse such names.
@pytest.mark.parametrize("name", [name for name in NAMES if name.isprintable()])
async def test_a_name_is_no_part_of_a_filter(slapd: SlapdServer, directory: Path, name: str) -> None:
    link = ldap(slapd.url, directory)
    assert await link.decide(asked(name)) is NOT_MINE
    await link.close()


async def test_two_entries_are_nobody(slapd: SlapdServer, directory: Path) -> None:
    link = ldap(slapd.url, directory)
    with pytest.raises(LinkFailedError, match="more than 1"):
        await link.decide(asked("twice"))
    await link.close()


async def test_a_server_with_a_certificate_of_another_root_is_not_told_passwords(
    slapd: SlapdServer, directory: Path, tmp_path: Path
) -> None:
    other = make_root(tmp_path, "other")
    for url in (slapd.url, slapd.tls_url):
        link = ldap(url, directory, ca_file=other.certificate)
        with pytest.raises(LinkFailedError, match="directory"):
            await link.decide(asked())
        await link.close()


async def test_who_searches_has_a_wrong_password(slapd: SlapdServer, directory: Path) -> None:
    """An error, and not the device's."""
    link = ldap(slapd.url, directory, bind_password="wrong")
    with pytest.raises(LinkFailedError, match="directory"):
        await link.decide(asked())
    await link.close()


async def test_a_directory_that_was_started_again_costs_no_device_its_connection(
    slapd: SlapdServer, directory: Path
) -> None:
    link = ldap(slapd.url, directory, timeout_s=1.0)
    assert isinstance(await link.decide(asked()), Accepted)
    slapd.kill()
    with pytest.raises(LinkFailedError, match="directory"):
        await link.decide(asked())
    slapd.start()
    assert isinstance(await link.decide(asked()), Accepted)
    slapd.pause()
    try:
        with pytest.raises(LinkFailedError, match="directory"):
            await link.decide(asked())
    finally:
        slapd.go_on()
    assert isinstance(await link.decide(asked()), Accepted)
    await link.close()


async def test_a_device_that_goes_away_leaves_no_question_behind(slapd: SlapdServer, directory: Path) -> None:
    link = ldap(slapd.url, directory, connections_max=1)
    for _ in range(20):
        question = asyncio.ensure_future(link.decide(asked()))
        await asyncio.sleep(0)
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question
    assert isinstance(await link.decide(asked()), Accepted)
    await link.close()


async def test_many_devices_share_a_few_connections_to_a_directory(
    slapd: SlapdServer, directory: Path
) -> None:
    link = ldap(slapd.url, directory, connections_max=2)
    verdicts = await asyncio.gather(*(link.decide(asked()) for _ in range(20)))
    assert all(isinstance(verdict, Accepted) for verdict in verdicts)
    await link.close()


# All of them

LINKS: dict[str, Callable[[int, Path], Link]] = {
    "sql": lambda port, _: sql(f"postgresql+asyncpg://u:p@127.0.0.1:{port}/d", timeout_s=0.5),
    "redis": lambda port, _: cache(f"redis://127.0.0.1:{port}", timeout_s=0.5),
    "ldap": lambda port, path: ldap(f"ldap://127.0.0.1:{port}", path, start_tls=False, timeout_s=0.5),
}


def made(kind: str, port: int, directory: Path) -> Link:
    if kind == "ldap":
        pytest.importorskip("bonsai", reason="needs the headers of OpenLDAP: tools/setup.sh")
    return LINKS[kind](port, directory)


@pytest.mark.parametrize("kind", LINKS)
async def test_a_service_that_is_down_denies(kind: str, directory: Path) -> None:
    link = made(kind, free_port(), directory)
    with pytest.raises(LinkFailedError):
        await link.decide(asked())
    await link.close()


@pytest.mark.parametrize("kind", LINKS)
@pytest.mark.parametrize("server", [Silent, Lying])
async def test_a_service_that_says_nothing_or_nonsense_denies(
    kind: str, server: type[SocketServer], directory: Path
) -> None:
    """And the loop turns meanwhile: other links are on it."""
    with server() as running:
        link = made(kind, running.port, directory)
        question = asyncio.ensure_future(link.decide(asked()))
        turns = 0
        while not question.done():
            turns += 1
            await asyncio.sleep(0.01)
        with pytest.raises(LinkFailedError):
            question.result()
        assert turns < 300
        assert server is Lying or turns > 10
        await link.close()


def test_a_driver_that_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigError, match=r"db\.url"):
        sql("mysql+asyncmy://u:p@127.0.0.1/d")
