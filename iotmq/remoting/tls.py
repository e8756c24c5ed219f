"""TLS for native connections: contexts from files, renewed while a server runs.

Certificates are read again when their files change; connections that are open keep what they began with.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol, TypeAlias

from msgspec import Meta

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.metrics import Metric

logger = logging.getLogger("iotmq.remoting")

# The settings of a listener, under the same names in every role's section.
TlsMode: TypeAlias = Annotated[
    Literal["disabled", "permissive", "enforcing"],
    Meta(
        description="Which native connections are taken: plain ones only, plain and encrypted ones on the "
        "same port (as RocketMQ does), or encrypted ones only. Without a certificate only plain ones are."
    ),
]
TlsCertificateFile: TypeAlias = Annotated[
    str,
    Meta(
        max_length=4_096,
        description="PEM file with the certificate and those between it and its root; empty for no TLS. It "
        "is read again when it changes.",
    ),
]
TlsKeyFile: TypeAlias = Annotated[
    str,
    Meta(max_length=4_096, description="PEM file with the key; empty when the certificate's file has it."),
]
TlsClientCaFile: TypeAlias = Annotated[
    str,
    Meta(
        max_length=4_096,
        description="PEM file with the roots of client certificates. When it is set, encrypted connections "
        "without such a certificate are refused.",
    ),
]
TlsHandshakeTimeout: TypeAlias = Annotated[
    float,
    Meta(
        ge=0.1,
        le=600.0,
        description="Seconds a peer has for its first byte and for its handshake. A peer that says nothing "
        "in the permissive mode counts as a plain one after that.",
    ),
]
TlsHandshakesMax: TypeAlias = Annotated[
    int,
    Meta(
        ge=1,
        le=100_000,
        description="Handshakes at one time; more connections by TLS are closed at once. A handshake costs "
        "about a millisecond of a core.",
    ),
]
TLS_HANDSHAKE_S: Final = limits.TLS_HANDSHAKE_S
_RELOAD_INTERVAL_S: Final = 5.0
_EXPIRES_SOON_S: Final = 14 * 86_400.0
_HANDSHAKE_TURNS_MAX: Final = 8
# X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL.
_HAS_EXPIRED: Final = 10


class ServerTls:
    """What a listener encrypts with. `context` is the one for the next connection."""

    def __init__(
        self,
        *,
        certificate_file: str,
        key_file: str = "",
        client_ca_file: str = "",
        is_enforced: bool = False,
        handshake_timeout_s: float = TLS_HANDSHAKE_S,
        handshakes_max: int = limits.TLS_HANDSHAKES_MAX,
    ) -> None:
        """ConfigError naming the file that cannot be used."""
        self._certificate_file = certificate_file
        self._key_file = key_file
        self._client_ca_file = client_ca_file
        self.is_enforced = is_enforced
        self.handshake_timeout_s = handshake_timeout_s
        self.handshakes_max = handshakes_max
        try:
            self.context = self._load()
        except (OSError, ValueError) as error:
            raise ConfigError(f"the certificate in {certificate_file} cannot be used: {error}") from error
        self._seen = self._identity()
        # Seconds since 1970; None when it cannot be told.
        self.expires_s = _expires_s(certificate_file, key_file)
        self._warn_of_expiry()
        self.reloads_count = 0
        self.failed_reloads_count = 0

    async def reload_repeatedly(self) -> None:
        """Use changed files for the connections to come; files that cannot be used change nothing."""
        while True:
            await asyncio.sleep(_RELOAD_INTERVAL_S)
            await self.reload()

    async def reload(self) -> None:
        """Look at the files once, off the loop."""
        seen = await asyncio.to_thread(self._identity)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.context = await asyncio.to_thread(self._load)
        except (OSError, ValueError) as error:
            # A certificate and its key are two files: they may be half changed. The next look sees the rest.
            self.failed_reloads_count += 1
            logger.error(
                "the changed certificate is not used",
                extra={"file": self._certificate_file, "detail": str(error)},
            )
            return
        self.expires_s = await asyncio.to_thread(_expires_s, self._certificate_file, self._key_file)
        self.reloads_count += 1
        logger.info("certificate read", extra={"file": self._certificate_file})
        self._warn_of_expiry()

    def metrics(self, labels: tuple[tuple[str, str], ...]) -> Iterable[Metric]:
        if self.expires_s is not None:
            yield Metric(
                "iotmq_remoting_tls_certificate_expires_seconds", "gauge",
                "When the certificate expires, in seconds since 1970.", self.expires_s, labels,
            )  # fmt: skip
        yield Metric(
            "iotmq_remoting_tls_reloads_total", "counter", "Times a changed certificate was read.",
            self.reloads_count, labels,
        )  # fmt: skip
        yield Metric(
            "iotmq_remoting_tls_failed_reloads_total", "counter", "Times a changed certificate was no use.",
            self.failed_reloads_count, labels,
        )  # fmt: skip

    def _warn_of_expiry(self) -> None:
        if self.expires_s is not None and self.expires_s - time.time() < _EXPIRES_SOON_S:
            logger.warning(
                "the certificate expires soon, or has expired",
                extra={
                    "file": self._certificate_file,
                    "days": round((self.expires_s - time.time()) / 86_400, 1),
                },
            )

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A key with a password would ask for it at the terminal.
        context.load_cert_chain(self._certificate_file, self._key_file or None, password=_no_password)
        if self._client_ca_file:
            context.load_verify_locations(self._client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _identity(self) -> list[tuple[int, int, int] | None]:
        return [
            _identity(Path(name)) for name in (self._certificate_file, self._key_file, self._client_ca_file)
        ]


class TlsSettings(Protocol):
    """The settings of a listener, as every role's section has them."""

    @property
    def tls_mode(self) -> str: ...

    @property
    def tls_certificate_file(self) -> str: ...

    @property
    def tls_key_file(self) -> str: ...

    @property
    def tls_client_ca_file(self) -> str: ...

    @property
    def tls_handshake_timeout_s(self) -> float: ...

    @property
    def tls_handshakes_max(self) -> int: ...


def server_tls(settings: TlsSettings) -> ServerTls | None:
    """What the settings of a listener come to; None for plain connections only.

    ConfigError when a file is no use, or when encrypted connections are demanded without a certificate.
    """
    if settings.tls_mode == "disabled":
        return None
    if not settings.tls_certificate_file:
        if settings.tls_mode == "enforcing":
            raise ConfigError("tls_mode is enforcing and tls_certificate_file is empty: nobody could connect")
        return None
    return ServerTls(
        certificate_file=settings.tls_certificate_file,
        key_file=settings.tls_key_file,
        client_ca_file=settings.tls_client_ca_file,
        is_enforced=settings.tls_mode == "enforcing",
        handshake_timeout_s=settings.tls_handshake_timeout_s,
        handshakes_max=settings.tls_handshakes_max,
    )


def client_tls(
    *, ca_file: str = "", is_verified: bool = True, certificate_file: str = "", key_file: str = ""
) -> ssl.SSLContext:
    """The context of a client. Without `ca_file` the machine's roots count. ConfigError for useless files."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not is_verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate_file:
            context.load_cert_chain(certificate_file, key_file or None, password=_no_password)
    except (OSError, ValueError) as error:
        files = ", ".join(name for name in (ca_file, certificate_file, key_file) if name)
        raise ConfigError(f"the TLS files {files or 'of this machine'} cannot be used: {error}") from error
    return context


def _expires_s(certificate_file: str, key_file: str) -> float | None:
    """When a certificate expires, in seconds since 1970; None when it cannot be told.

    The standard library shows a certificate only to a client it was shown to: here to one in memory.
    """
    try:
        found = _shown_in_memory(certificate_file, key_file)
    except ssl.SSLCertVerificationError as error:
        # One that has expired is told by its refusal.
        return 0.0 if error.verify_code == _HAS_EXPIRED else None
    except (OSError, ValueError):
        return None
    return float(ssl.cert_time_to_seconds(str(found["notAfter"]))) if found else None


def _shown_in_memory(certificate_file: str, key_file: str) -> dict[str, object]:
    """What a client that trusts the certificate itself sees of it; empty when the two do not agree."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate_file, key_file or None, password=_no_password)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(certificate_file)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    shown = client.wrap_bio(to_client, to_server)
    showing = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(_HANDSHAKE_TURNS_MAX):
        for end in (shown, showing):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
        if shown.version() is not None and (found := shown.getpeercert()):
            return dict(found)
    return {}


def _no_password() -> str:
    raise ValueError("the key has a password; store it without one, readable for its owner only")


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
