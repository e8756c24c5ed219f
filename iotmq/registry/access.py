"""Decide who may ask a registry what: brokers prove who they are, and clients where that is asked for.

A proof is a certificate of the listener's roots, or the signature of an account as brokers ask for
(broker/access). Unmodified clients of the RocketMQ family sign what they ask registries, too, when they have
an account; their brokers do where they are given one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from iotmq.errors import RequestError
from iotmq.metrics import Metric, samples, samples_by
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.codes import RequestCode, ResponseCode, request_name
from iotmq.remoting.command import Command
from iotmq.remoting.server import RequestHandler, ServerConnection

logger = logging.getLogger("iotmq.registry")

LOOKUPS: Final = frozenset(
    {
        RequestCode.GET_ROUTE_INFO_BY_TOPIC,
        RequestCode.WATCH_MASTERS,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_REGISTRY,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KV_LIST_BY_NAMESPACE,
    }
)
"""Requests of clients, which change nothing. All others are a broker's or an operator's."""


class Account(Protocol):
    """The account that signed a request."""

    @property
    def access_key(self) -> str: ...

    @property
    def is_admin(self) -> bool: ...


class RegistryAccounts(Protocol):
    """The accounts of a registry; those of brokers' access control."""

    def authenticated(self, request: Command, address: str) -> Account | None:
        """Return who signed the request; None when its address alone is enough. RequestError (16)."""

    async def reload_repeatedly(self, interval_s: float) -> None:
        """Read them again whenever they change."""

    @property
    def refused(self) -> Mapping[str, int]:
        """Return the requests refused, by reason."""

    @property
    def accounts_count(self) -> int:
        """Return the accounts there are."""

    @property
    def reloads_count(self) -> int:
        """Return the times a changed file was read."""

    @property
    def failed_reloads_count(self) -> int:
        """Return the times a changed file could not be used."""


class RegistryAccess:
    """Hands on what its sender may ask; a RequestHandler."""

    def __init__(
        self, handler: RequestHandler, settings: RegistrySettings, accounts: RegistryAccounts | None
    ) -> None:
        self._handler = handler
        self._asks_everybody = settings.access == "everything"
        self._has_certificates = bool(settings.tls_client_ca_file)
        self._certificate_names = frozenset(settings.certificate_names)
        self._accounts = accounts
        self._refused = {"no_proof": 0, "certificate": 0, "admin": 0}

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        is_lookup = request.code in LOOKUPS
        if self._asks_everybody or not is_lookup:
            self._check(connection, request, is_lookup=is_lookup)
        return self._handler.handle(connection, request)

    def connection_lost(self, connection: ServerConnection) -> None:
        self._handler.connection_lost(connection)

    def metrics(self) -> Iterable[Metric]:
        text = "Requests to the registry without a proof that their sender may ask them."
        accounts = self._accounts
        refused = Counter(self._refused)
        if accounts is not None:
            refused.update(accounts.refused)
        yield from samples_by("reason", "iotmq_registry_refused_total", text, refused)
        if accounts is not None:
            yield from samples(
                ("iotmq_registry_accounts", "Accounts of the registry.", accounts.accounts_count),
                (
                    "iotmq_registry_accounts_reloads_total",
                    "Times changed accounts were read.",
                    accounts.reloads_count,
                ),
                (
                    "iotmq_registry_accounts_failed_reloads_total",
                    "Times changed accounts could not be used.",
                    accounts.failed_reloads_count,
                ),
            )

    def _check(self, connection: ServerConnection, request: Command, *, is_lookup: bool) -> None:
        certificate = connection.peer_certificate if self._has_certificates else None
        if certificate and (is_lookup or self._is_named(certificate)):
            return
        if self._accounts is None:
            if certificate:
                raise self._refusal(
                    connection, request, "certificate", "registry.certificate_names has none of its names"
                )
            raise self._refusal(connection, request, "no_proof", "it came without a client certificate")
        account = self._accounts.authenticated(request, connection.peer[0])
        if account is not None and not is_lookup and not account.is_admin:
            raise self._refusal(
                connection, request, "admin", f"account {account.access_key} is not an administrator"
            )

    def _is_named(self, certificate: dict[str, Any]) -> bool:
        """Return whether a verified certificate is one of those that may register and change."""
        if not self._certificate_names:
            return True
        names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
        names += [
            value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"
        ]
        return not self._certificate_names.isdisjoint(names)

    def _refusal(
        self, connection: ServerConnection, request: Command, reason: str, detail: str
    ) -> RequestError:
        self._refused[reason] += 1
        name = request_name(request.code)
        logger.warning(
            "request refused",
            extra={"request": name, "peer": connection.peer[0], "reason": reason, "detail": detail},
        )
        return RequestError(ResponseCode.NO_PERMISSION, f"this registry refuses {name}: {detail}")
