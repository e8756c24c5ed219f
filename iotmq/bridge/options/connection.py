"""Say how a reader or a writer of `format("iotmq")` connects: its options, and what they make."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from iotmq.addresses import parse_address
from iotmq.bridge.cluster import Cluster, Retry
from iotmq.bridge.options.values import count, flag
from iotmq.errors import ConfigError
from iotmq.remoting.blocking import BlockingConnection
from iotmq.remoting.signature import Credentials
from iotmq.remoting.tls.files import client_tls
from iotmq.secret_text import Secret, read_secret

SERVERS: Final = "iotmq.bootstrap.servers"
CONNECTION_NAMES: Final = (
    SERVERS,
    "requestTimeoutMs",
    "retryTimeoutMs",
    "accessKey",
    "secretKey",
    "secretKeyFile",
    "secretKeyVariable",
    "tls",
    "tlsCaFile",
    "tlsCertFile",
    "tlsKeyFile",
)
DEFAULT_REGISTRY_PORT: Final = 9876


@dataclass(frozen=True)
class ConnectionOptions:
    """The options that connections are made with. What has the same ones may use the same connections."""

    registries: tuple[tuple[str, int], ...]
    request_timeout_s: float
    retry_timeout_s: float
    # The account at brokers with access control; an empty key sends requests unsigned. Spark keeps these
    # options out of what it shows, by their names.
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    is_encrypted: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""

    def open(self, *, waits_for_brokers: bool = False) -> Cluster:
        """Connections (none made yet) with these timeouts, this account and this encryption."""
        tls = None
        if self.is_encrypted:
            tls = client_tls(
                ca_file=self.ca_file, certificate_file=self.certificate_file, key_file=self.key_file
            )
        credentials = Credentials(self.access_key, self.secret_key) if self.access_key else None
        return Cluster(
            self.registries,
            request_timeout_s=self.request_timeout_s,
            retry=Retry(self.retry_timeout_s),
            waits_for_brokers=waits_for_brokers,
            connect=partial(BlockingConnection, credentials=credentials, tls=tls),
        )


def read_connection(given: Mapping[str, str], *, asks_brokers: bool = True) -> ConnectionOptions:
    """Check these options of `given`; raises ConfigError that names the option and what it takes.

    Registries are needed only by what asks brokers.
    """
    return ConnectionOptions(
        registries=_registries(given) if asks_brokers else (),
        request_timeout_s=count(given, "requestTimeoutMs", 10_000, least=1) / 1000,
        retry_timeout_s=count(given, "retryTimeoutMs", 60_000, least=0) / 1000,
        access_key=given.get("accesskey", ""),
        secret_key=_secret_key(given),
        is_encrypted=flag(given, "tls", False),
        ca_file=given.get("tlscafile", ""),
        certificate_file=_certificate_file(given),
        key_file=given.get("tlskeyfile", ""),
    )


def _registries(given: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    pieces = [piece for piece in re.split(r"[,;]", given.get(SERVERS, "")) if piece.strip()]
    if not pieces:
        raise ConfigError(f"option {SERVERS} is needed: the registries, as host:port[,host:port...]")
    try:
        return tuple(parse_address(piece.strip(), default_port=DEFAULT_REGISTRY_PORT) for piece in pieces)
    except ValueError as error:
        raise ConfigError(f"option {SERVERS}: {error}") from None


def _secret_key(given: Mapping[str, str]) -> str:
    """Return the secret, read where the query is planned; tasks get it with their work."""
    names = [name for name in ("secretKey", "secretKeyFile", "secretKeyVariable") if name.lower() in given]
    if len(names) > 1:
        raise ConfigError(f"give one of the options {' and '.join(names)}, not several")
    if not names or names[0] == "secretKey":
        return Secret(given.get("secretkey", ""))
    try:
        source = "file" if names[0] == "secretKeyFile" else "env"
        return read_secret({source: given[names[0].lower()]})
    except ConfigError as error:
        raise ConfigError(f"option {names[0]}: {error}") from None


def _certificate_file(given: Mapping[str, str]) -> str:
    name = given.get("tlscertfile", "")
    if given.get("tlskeyfile") and not name:
        raise ConfigError("option tlsKeyFile goes with tlsCertFile: the certificate that the key is for")
    if name and not flag(given, "tls", False):
        raise ConfigError("option tlsCertFile goes with tls=true: without encryption nobody asks for it")
    return name
