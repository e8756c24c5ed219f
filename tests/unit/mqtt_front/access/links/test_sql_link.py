"""Users in an SQL database, here a file of SQLite; PostgreSQL is in tests/integration."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.mqtt_front.access.links.link import LinkFailedError
from iotmq.mqtt_front.access.links.sql import SqlLink
from iotmq.mqtt_front.access.scram import make_verifier
from iotmq.mqtt_front.access.verdicts import NOT_MINE, Accepted, Credentials, Denied
from iotmq.mqtt_front.settings.service_links import SqlLinkSettings

STATEMENT = "SELECT password_hash, roles FROM users WHERE name = :user_name"
RULES = 'SELECT permission, action, topic, qos, "retain" FROM rules WHERE name = :user_name ORDER BY place'


def asked(user: str | None = "pump", password: bytes | None = b"secret") -> Credentials:
    return Credentials("c1", user, password, "192.0.2.1", "tcp")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "users.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE users (name TEXT PRIMARY KEY, password_hash TEXT, roles TEXT)")
        database.execute(
            "CREATE TABLE rules (place INTEGER PRIMARY KEY, name TEXT, permission TEXT, action TEXT, "
            'topic TEXT, qos TEXT, "retain" INTEGER)'
        )
        kept = str(make_verifier(b"secret", iterations=4_096))
        database.execute("INSERT INTO users VALUES ('pump', ?, 'meter,valve')", (kept,))
        database.execute("INSERT INTO rules VALUES (1, 'pump', 'deny', 'publish', 'a/b', '0', 1)")
        database.execute("INSERT INTO rules VALUES (2, 'pump', 'allow', 'all', 'a/#', NULL, NULL)")
    database.close()
    return path


@asynccontextmanager
async def linked(file: Path, **settings: Any) -> AsyncIterator[SqlLink]:
    given = {"statement": STATEMENT, **settings}
    link = SqlLink(SqlLinkSettings(name="db", url=f"sqlite+aiosqlite:///{file}", **given))
    await link.start()
    try:
        yield link
    finally:
        await link.close()


def said(file: Path, **settings: Any) -> str:
    given = {"url": f"sqlite+aiosqlite:///{file}", "statement": STATEMENT, **settings}
    with pytest.raises(ConfigError) as caught:
        SqlLink(SqlLinkSettings(name="db", **given))
    return str(caught.value)


async def test_a_row_says_who_a_device_is_and_rows_what_it_may_do(file: Path) -> None:
    async with linked(file, permissions_statement=RULES) as link:
        verdict = await link.decide(asked())
    assert isinstance(verdict, Accepted)
    assert verdict.identity.user == "pump"
    assert verdict.identity.roles == ("meter", "valve")
    assert verdict.identity.decided_by == "db"
    assert verdict.identity.permissions == (
        {"permission": "deny", "action": "publish", "topic": "a/b", "qos": [0], "retain": True},
        {"permission": "allow", "action": "all", "topic": "a/#"},
    )


async def test_wrong_passwords_unknown_names_and_none_at_all(file: Path) -> None:
    async with linked(file) as link:
        assert isinstance(await link.decide(asked(password=b"wrong")), Denied)
        assert await link.decide(asked("nobody")) is NOT_MINE
        assert await link.decide(asked(None, None)) is NOT_MINE
        assert await link.decide(asked("pump", b"")) is NOT_MINE
    async with linked(file, unknown_users="deny") as link:
        assert isinstance(await link.decide(asked("nobody")), Denied)


@pytest.mark.parametrize(
    "name",
    [
        "' OR '1'='1",
        "pump' --",
        "pump'; DROP TABLE users; --",
        "x' UNION SELECT password_hash, 'admin' FROM users --",
        ":user_name",
        "%",
        "\\'; SELECT 1",
    ],
)
async def test_a_name_is_no_part_of_the_statement(file: Path, name: str) -> None:
    async with linked(file) as link:
        assert await link.decide(asked(name)) is NOT_MINE
        assert isinstance(await link.decide(asked()), Accepted)


async def test_what_a_statement_changes_is_rolled_back(file: Path) -> None:
    statement = "INSERT INTO users VALUES (:user_name, 'x', 'admin') RETURNING name AS \"user\", roles"
    async with linked(file, statement=statement, password_required=False) as link:
        assert isinstance(await link.decide(asked("new")), Accepted)
        assert isinstance(await link.decide(asked("new")), Accepted)
    with sqlite3.connect(file) as database:
        assert database.execute("SELECT count(*) FROM users").fetchone() == (1,)
    database.close()


async def test_two_rows_are_nobody(file: Path) -> None:
    async with linked(
        file, statement="SELECT * FROM rules WHERE name = :user_name", password_required=False
    ) as link:
        with pytest.raises(LinkFailedError, match="more than 1 rows"):
            await link.decide(asked())


async def test_permissions_are_read_up_to_their_maximum(file: Path) -> None:
    with sqlite3.connect(file) as database:
        for place in range(3, limits.LOOKED_UP_PERMISSIONS_MAX + 1):
            database.execute(
                "INSERT INTO rules VALUES (?, 'pump', 'allow', 'all', 'b', NULL, NULL)", (place,)
            )
    async with linked(file, permissions_statement=RULES) as link:
        verdict = await link.decide(asked())
        assert isinstance(verdict, Accepted)
        assert len(verdict.identity.permissions or ()) == limits.LOOKED_UP_PERMISSIONS_MAX
        with database:
            database.execute("INSERT INTO rules VALUES (9999, 'pump', 'allow', 'all', 'b', NULL, NULL)")
        with pytest.raises(LinkFailedError, match="permissions_statement has more than"):
            await link.decide(asked())
    database.close()


async def test_columns_that_are_missing_are_named(file: Path) -> None:
    async with linked(file, statement="SELECT roles FROM users WHERE name = :user_name") as link:
        with pytest.raises(LinkFailedError, match="no column password_hash"):
            await link.decide(asked())
    wrong = "SELECT name FROM users WHERE name = :user_name"
    async with linked(file, statement=wrong, password_required=False) as link:
        with pytest.raises(LinkFailedError, match="none of the columns"):
            await link.decide(asked())


async def test_a_database_without_the_table_is_named_without_what_the_device_said(tmp_path: Path) -> None:
    async with linked(tmp_path / "empty.db") as link:
        with pytest.raises(LinkFailedError, match="no such table") as caught:
            await link.decide(asked("a-secret-name"))
    assert "a-secret-name" not in str(caught.value)


def test_statements_are_looked_at_when_it_starts(file: Path) -> None:
    assert ":username" in said(file, statement="SELECT 1 FROM users WHERE name = :username")
    assert "permissions_statement" in said(file, permissions_statement="SELECT 1 WHERE 1 = :x")
    assert "asks for no device" in said(file, statement="SELECT 'x' AS password_hash")
    assert "asks for no device" in said(file, statement="SELECT * FROM users WHERE :address = ''")


def test_urls_are_looked_at_when_it_starts(file: Path) -> None:
    for url in ("nonsense", "sqlite:///users.db", "nosuch+driver://host/db", "mysql+nosuch://host/db"):
        assert "db.url" in said(file, url=url)


async def test_it_counts(file: Path) -> None:
    async with linked(file, permissions_statement=RULES) as link:
        await link.decide(asked())
        found = {metric.name: (metric.value, metric.labels) for metric in link.metrics()}
    assert found["iotmq_mqtt_sql_statements_total"] == (2, (("link", "db"),))
    assert found["iotmq_mqtt_sql_connections_used"] == (0, (("link", "db"),))


def test_a_cached_answer_depends_on_what_the_statement_asks(file: Path) -> None:
    link = SqlLink(SqlLinkSettings(name="db", url=f"sqlite+aiosqlite:///{file}", statement=STATEMENT))
    other = asked()._replace(client_id="c2", address=None)
    assert link.told(asked()) == link.told(other)
    assert link.told(asked()) != link.told(asked(password=b"x"))
