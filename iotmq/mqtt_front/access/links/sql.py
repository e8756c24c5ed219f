"""Look users up in an SQL database, by a statement of the operator's.

What a device says goes into the statement as bound parameters only, never as text, and all happens in a
transaction that is rolled back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.metrics import Metric, samples
from iotmq.mqtt_front.access.links.link import LinkFailedError
from iotmq.mqtt_front.access.links.looked_up import (
    FIELDS,
    PARAMETERS,
    LookedUp,
    looked_at,
    parameters_of,
)
from iotmq.mqtt_front.access.verdicts import NOT_MINE, Accepted, Credentials, Denied, NotMine
from iotmq.mqtt_front.settings.service_links import SqlLinkSettings

if TYPE_CHECKING:
    from sqlalchemy import TextClause
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

# Who is found twice is nobody.
_ROWS_MAX: Final = 1


class SqlLink:
    """A link of the authentication chain: one row says who a device is, others what it may do."""

    def __init__(self, settings: SqlLinkSettings) -> None:
        """ConfigError when the statements cannot be right, or a library is missing."""
        self.name = settings.name
        self._settings = settings
        self._statement = _parsed(f"{self.name}.statement", settings.statement)
        self._permissions = (
            _parsed(f"{self.name}.permissions_statement", settings.permissions_statement)
            if settings.permissions_statement
            else None
        )
        self._names = {
            name
            for each in (self._statement, self._permissions)
            if each is not None
            for name in _names_in(each)
        }
        self._looked_up = LookedUp(settings)
        self._engine: AsyncEngine = _engine(settings)
        # Who waits in the pool is not told when a connection cannot be made, and waits for all of its time.
        self._turns = asyncio.Semaphore(settings.connections_max)
        self._statements_total = 0

    async def start(self) -> None:
        """Connections are made when they are needed: a database that is down stops no start."""

    async def close(self) -> None:
        """Give up the connections."""
        self._looked_up.close()
        await self._engine.dispose()

    def told(self, asked: Credentials) -> bytes:
        """Return what the answer depends on (links.link.Link)."""
        return self._looked_up.told(asked, self._names)

    async def decide(self, asked: Credentials) -> Accepted | Denied | NotMine:
        """LinkFailedError when the database does not answer, or says what cannot be."""
        from sqlalchemy.exc import SQLAlchemyError

        if not self._looked_up.is_question(asked):
            return NOT_MINE
        try:
            fields, rows = await self._ask(parameters_of(asked))
        except (SQLAlchemyError, OSError, TimeoutError) as error:
            # The text of the error has the statement and its parameters.
            raise LinkFailedError(f"the database: {_said(error)}") from error
        return await self._looked_up.verdict(looked_at(asked, _names_in(self._statement)), fields, rows)

    def metrics(self) -> Iterable[Metric]:
        """Report statements and connections."""
        pool: Any = self._engine.pool
        yield from samples(
            ("iotmq_mqtt_sql_statements_total", "Statements that looked devices up.", self._statements_total),
            ("iotmq_mqtt_sql_connections_used", "Connections to the database in use.", pool.checkedout()),
            labels=(("link", self.name),),
        )

    async def _ask(
        self, parameters: Mapping[str, str | None]
    ) -> tuple[Mapping[str, object] | None, Sequence[Mapping[str, object]] | None]:
        async with self._turns, self._engine.connect() as connection:
            found = await self._rows(connection, self._statement, parameters, _ROWS_MAX, "statement")
            if not found:
                return None, None
            if self._settings.password_required and "password_hash" not in found[0]:
                raise LinkFailedError("statement has no column password_hash")
            if not found[0].keys() & set(FIELDS):
                raise LinkFailedError(f"statement has none of the columns {', '.join(FIELDS)}")
            if self._permissions is None:
                return found[0], None
            rows = await self._rows(
                connection,
                self._permissions,
                parameters,
                limits.LOOKED_UP_PERMISSIONS_MAX,
                "permissions_statement",
            )
            return found[0], rows

    async def _rows(
        self,
        connection: AsyncConnection,
        statement: TextClause,
        parameters: Mapping[str, str | None],
        rows_max: int,
        which: str,
    ) -> list[Mapping[str, object]]:
        self._statements_total += 1
        named = {name: parameters[name] for name in _names_in(statement)}
        # Row by row: no more is read than there may be.
        async with connection.stream(statement, named) as result:
            rows = await result.mappings().fetchmany(rows_max + 1)
        if len(rows) > rows_max:
            raise LinkFailedError(f"{which} has more than {rows_max} rows")
        return [dict(row) for row in rows]


def _names_in(statement: TextClause) -> list[str]:
    return list(statement.compile().params)


def _parsed(setting: str, statement: str) -> TextClause:
    try:
        from sqlalchemy import text
    except ImportError:
        raise ConfigError(f"{setting} needs SQLAlchemy: pip install iotmq[sql]") from None
    parsed = text(statement)
    names = set(_names_in(parsed))
    if unknown := sorted(names.difference(PARAMETERS)):
        raise ConfigError(
            f"{setting} has :{unknown[0]}, which is none of {', '.join(f':{name}' for name in PARAMETERS)}"
        )
    if not names.intersection({"user_name", "client_id", "certificate_identity"}):
        raise ConfigError(
            f"{setting} asks for no device: it has none of :user_name, :client_id and :certificate_identity"
        )
    return parsed


def _engine(settings: SqlLinkSettings) -> AsyncEngine:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, InvalidRequestError
    from sqlalchemy.ext.asyncio import create_async_engine

    options: dict[str, Any] = {}
    try:
        url = make_url(settings.url)
        if url.get_driver_name() == "asyncpg":
            # Its own limits, so that a server that says nothing keeps no connection of the pool.
            options["connect_args"] = {"timeout": settings.timeout_s, "command_timeout": settings.timeout_s}
        return create_async_engine(
            url,
            pool_size=settings.connections_max,
            max_overflow=0,
            pool_timeout=settings.timeout_s,
            # A database that was started again costs no device its connection.
            pool_pre_ping=True,
            hide_parameters=True,
            **options,
        )
    except (ArgumentError, InvalidRequestError, ImportError, TypeError) as error:
        raise ConfigError(f"{settings.name}.url: {error}") from error


def _said(error: BaseException) -> str:
    """Return the driver's own words, without the statement."""
    original = getattr(error, "orig", None)
    return f"{type(original or error).__name__}: {original or error}".splitlines()[0][:200]
