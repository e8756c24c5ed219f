"""Make a client from a URL, keyword arguments and the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypedDict, Unpack
from urllib.parse import unquote

import msgspec

from iotmq.addresses import address_text, parse_address
from iotmq.client.client import IotmqClient
from iotmq.client.transport.interceptors import Interceptor
from iotmq.client.transport.settings import ClientSettings
from iotmq.errors import ConfigError
from iotmq.secret_text import hidden
from iotmq.spelling import did_you_mean

REGISTRY_PORT: Final = 9876
_FORM: Final = "iotmq://[ACCOUNT:SECRET@]HOST[:PORT][,HOST[:PORT]...][?NAME=VALUE&...]"
_SCHEMES: Final = {"iotmq": False, "iotmqs": True}
"""Scheme -> whether connections are made by TLS."""
# In front of the hosts, because URLs of databases have them there, and people would put them anywhere.
_NOT_IN_QUERY: Final = frozenset({"registries", "access_key", "secret_key"})
_ESCAPE: Final = re.compile(r"%(?![0-9a-fA-F]{2})")


class ConnectOptions(TypedDict, total=False):
    """The keyword arguments of `connect`: the fields of `ClientSettings`, which says what they mean."""

    registries: tuple[str, ...]
    """HOST:PORT of each registry, in place of those of a URL."""
    client_id: str
    """Name of this client inside its consumer groups."""
    access_key: str
    """Account at brokers with access control."""
    secret_key: str
    """Secret of the account."""
    tls_enabled: bool
    """Connect by TLS, as `iotmqs://` does."""
    tls_ca_file: str
    """PEM file with the roots of the servers' certificates."""
    tls_is_verified: bool
    """Whether a server has to show a certificate of these roots for its name."""
    tls_certificate_file: str
    """PEM file with this client's certificate."""
    tls_key_file: str
    """PEM file with its key."""
    connect_timeout_ms: int
    """Milliseconds for making one connection."""
    request_timeout_ms: int
    """Milliseconds for route, heartbeat, offset and admin requests."""
    route_refresh_ms: int
    """Milliseconds between two looks at the routes of used topics."""
    missing_route_refresh_ms: int
    """Milliseconds between two looks for a topic that has no route yet."""
    heartbeat_ms: int
    """Milliseconds between heartbeats."""
    reconnect_ms_min: int
    """Milliseconds before the first new try of a lost connection."""
    reconnect_ms_max: int
    """Longest pause between tries, in milliseconds."""


def connect(
    url: str = "", *, interceptors: Iterable[Interceptor] = (), **options: Unpack[ConnectOptions]
) -> IotmqClient:
    """Make a client: `async with iotmq.connect("iotmq://10.0.0.5,10.0.0.6:9876") as client`.

    The URL names the registries and any field of `ClientSettings`; keyword arguments win over it. Without a
    URL or `registries` the environment variable IOTMQ_URL is one, and then the registry of this machine.
    IOTMQ_ACCESS_KEY and IOTMQ_SECRET_KEY are the account where none is given. ConfigError says what is wrong.
    """
    return IotmqClient(client_settings(url, options, os.environ), interceptors=interceptors)


def client_settings(url: str, options: ConnectOptions, environment: Mapping[str, str]) -> ClientSettings:
    """Read the settings of a client. ConfigError names the part that is wrong, and shows no secret."""
    where = "the URL"
    if not url and "registries" not in options:
        url, where = environment.get("IOTMQ_URL", ""), "IOTMQ_URL"
    if url is not None and not isinstance(url, str):
        raise ConfigError(f"the URL is {type(url).__name__}, and has to be a text: the form is {_FORM}")
    fields: dict[str, Any] = {}
    if url:
        fields = _checked(_read_url(url, where), where, is_text=True)
    fields |= _checked(dict(options), "connect()", is_text=False)
    if "access_key" not in fields and environment.get("IOTMQ_ACCESS_KEY"):
        fields |= _checked(
            {
                "access_key": environment["IOTMQ_ACCESS_KEY"],
                "secret_key": environment.get("IOTMQ_SECRET_KEY", ""),
            },
            "IOTMQ_ACCESS_KEY",
            is_text=False,
        )
    if fields.get("access_key") and not fields.get("secret_key"):
        raise ConfigError(f"account {fields['access_key']!r} has no secret: secret_key is missing")
    return ClientSettings(**fields)


def _checked(fields: dict[str, Any], where: str, *, is_text: bool) -> dict[str, Any]:
    """Return the fields as `ClientSettings` has them; in a text all values are text."""
    known = {name: name for name in ClientSettings.__struct_fields__}
    for name in fields:
        if name not in known:
            raise ConfigError(f"{where}: there is no setting {name!r}{did_you_mean(name, known)}")
    try:
        settings = msgspec.convert(fields, ClientSettings, strict=not is_text)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {str(error).replace('$.', '')}") from None
    return {name: getattr(settings, name) for name in fields}


def _read_url(url: str, where: str) -> dict[str, Any]:
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        # What stands there may be a secret at the wrong place.
        raise ConfigError(f"{where} does not begin with iotmq:// or iotmqs://: the form is {_FORM}")
    authority, has_query, query = rest.partition("?")
    account, has_account, hosts = authority.rpartition("@")
    hosts = hosts.removesuffix("/")
    if "@" in query or "/" in hosts or "#" in rest or "@" in account or "/" in account:
        # One of them in a secret would make the rest of it look like something that may be shown.
        raise ConfigError(
            f"{where} has one of / ? # @ where none may be: in accounts, secrets and values they are written "
            "%2F %3F %23 %40, and nothing but a query follows the hosts"
        )
    fields: dict[str, Any] = {"registries": _read_hosts(hosts, where)}
    if _SCHEMES[scheme]:
        fields["tls_enabled"] = True
    if has_account:
        access_key, _, secret_key = account.partition(":")
        fields["access_key"] = _unquoted(access_key, "the account", where)
        fields["secret_key"] = hidden(_unquoted(secret_key, "the secret", where))
        if not access_key or not secret_key:
            raise ConfigError(f"{where} has an @, and not ACCOUNT:SECRET in front of it")
    for pair in query.split("&") if has_query and query else ():
        name, is_given, value = pair.partition("=")
        if name in _NOT_IN_QUERY:
            raise ConfigError(f"{where}: {name} has its place in front of the query: the form is {_FORM}")
        if not is_given:
            raise ConfigError(f"{where}: {name!r} in the query has no value: write NAME=VALUE")
        if name in fields:
            raise ConfigError(f"{where} says {name} twice")
        fields[name] = _unquoted(value, name, where)
    return fields


def _read_hosts(text: str, where: str) -> list[str]:
    hosts = []
    for each in text.split(","):
        try:
            hosts.append(address_text(*parse_address(each, default_port=REGISTRY_PORT)))
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from None
    return hosts


def _unquoted(text: str, what: str, where: str) -> str:
    if _ESCAPE.search(text) is not None:
        raise ConfigError(f"{where}: {what} has a % that no two hexadecimal digits follow: write %25")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: {what} is not UTF-8") from None
