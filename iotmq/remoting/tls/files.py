"""TLS for connections: contexts from files, renewed while a server runs.

Certificates are read again when their files change; connections that are open keep what they began with.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Literal, Protocol, TypeAlias

from msgspec import Meta

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.metrics import Metric, samples
from iotmq.remoting.tls.context import (
    CertificateFiles,
    ContextSettings,
    certificate_facts,
    no_password,
    server_context,
)
from iotmq.remoting.tls.revocation import lists_expire_s
from iotmq.setting_types import FileName
from iotmq.watched_file import WatchedFiles

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
    FileName,
    Meta(
        description="PEM file with the certificate and those between it and its root; empty for no TLS. It "
        "is read again when it changes.",
    ),
]
TlsKeyFile: TypeAlias = Annotated[
    FileName, Meta(description="PEM file with the key; empty when the certificate's file has it.")
]
TlsClientCaFile: TypeAlias = Annotated[
    FileName,
    Meta(
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


class ServerTls:
    """Keep the TLS context of a listener. `context` is the one for the next connection."""

    def __init__(
        self,
        settings: ContextSettings,
        *,
        is_enforced: bool = False,
        handshake_timeout_s: float = TLS_HANDSHAKE_S,
        handshakes_max: int = limits.TLS_HANDSHAKES_MAX,
        ticket_secret: str = "",
    ) -> None:
        """Load the files; ConfigError names one that cannot be used.

        Listeners with the same `ticket_secret`, settings and files resume each other's sessions.
        """
        self._settings = settings
        self._ticket_secret = ticket_secret
        self.is_enforced = is_enforced
        self.handshake_timeout_s = handshake_timeout_s
        self.handshakes_max = handshakes_max
        self._watched = WatchedFiles(*map(Path, settings.files))
        try:
            self.context = self._load()
        except (OSError, ValueError) as error:
            raise ConfigError(f"the certificate cannot be used: {error}") from error
        # Seconds since 1970 when the first of the certificates expires; None when it cannot be told.
        self.expires_s = self._look_at_expiry()
        # The same of the lists of revoked certificates.
        self.lists_expire_s = self._look_at_lists()
        self.reloads_count = 0
        self.failed_reloads_count = 0

    async def reload_repeatedly(self) -> None:
        """Use changed files for the connections to come; files that cannot be used change nothing."""
        while True:
            await asyncio.sleep(_RELOAD_INTERVAL_S)
            await self.reload()

    async def reload(self) -> None:
        """Look at the files once, off the loop."""
        if not await self._watched.have_changed():
            return
        try:
            self.context = await asyncio.to_thread(self._load)
        except (OSError, ValueError) as error:
            # A certificate and its key are two files: they may be half changed. The next look sees the rest.
            self.failed_reloads_count += 1
            if isinstance(error, OSError) and not isinstance(error, (ssl.SSLError, FileNotFoundError)):
                # No open file was left, or the machine has to be told who may read it: not the files change.
                self._watched.forget()
            logger.error("the changed certificate is not used", extra={"detail": str(error)})
            return
        self.expires_s = await asyncio.to_thread(self._look_at_expiry)
        self.lists_expire_s = await asyncio.to_thread(self._look_at_lists)
        self.reloads_count += 1
        logger.info("certificates read", extra={"files": ", ".join(self._settings.files)})

    def metrics(
        self, labels: tuple[tuple[str, str], ...], *, prefix: str = "iotmq_remoting_tls"
    ) -> Iterable[Metric]:
        if self.expires_s is not None:
            text = "When the certificate expires, in seconds since 1970."
            yield from samples(
                ("_certificate_expires_seconds", text, self.expires_s), prefix=prefix, labels=labels
            )
        yield from samples(
            ("_reloads_total", "Times a changed certificate was read.", self.reloads_count),
            (
                "_failed_reloads_total",
                "Changed certificates that could not be loaded.",
                self.failed_reloads_count,
            ),
            prefix=prefix,
            labels=labels,
        )

    def _load(self) -> ssl.SSLContext:
        context = server_context(self._settings)
        if self._ticket_secret:
            # ctypes is for those who need it.
            from iotmq.remoting.tls.tickets import share_tickets

            share_tickets(context, self._settings, self._ticket_secret)
        return context

    def _look_at_expiry(self) -> float | None:
        expires: list[float] = []
        for certificate in self._settings.certificates:
            facts = certificate_facts(certificate)
            if facts is None:
                continue
            expires.append(facts.expires_s)
            if facts.expires_s - time.time() < _EXPIRES_SOON_S:
                days = round((facts.expires_s - time.time()) / 86_400, 1)
                logger.warning(
                    "the certificate expires soon, or has expired",
                    extra={"file": certificate.certificate_file, "days": days},
                )
        return min(expires, default=None)

    def _look_at_lists(self) -> float | None:
        expires: list[float] = []
        for file in self._settings.revocation_files:
            # One that has just gone keeps what was read of it.
            with suppress(OSError):
                expires += filter(None, [lists_expire_s(file)])
        return min(expires, default=None)


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


def server_tls(settings: TlsSettings, *, requires_client_certificate: bool = True) -> ServerTls | None:
    """Load TLS from the settings of a listener; None for plain connections only.

    ConfigError when a file is no use, or when encrypted connections are demanded without a certificate.
    """
    if settings.tls_mode == "disabled":
        return None
    if not settings.tls_certificate_file:
        if settings.tls_mode == "enforcing":
            raise ConfigError("tls_mode is enforcing and tls_certificate_file is empty: nobody could connect")
        return None
    return ServerTls(
        ContextSettings(
            certificates=(CertificateFiles(settings.tls_certificate_file, settings.tls_key_file),),
            client_ca_file=settings.tls_client_ca_file,
            is_client_certificate_required=requires_client_certificate,
        ),
        is_enforced=settings.tls_mode == "enforcing",
        handshake_timeout_s=settings.tls_handshake_timeout_s,
        handshakes_max=settings.tls_handshakes_max,
    )


def client_tls(
    *, ca_file: str = "", is_verified: bool = True, certificate_file: str = "", key_file: str = ""
) -> ssl.SSLContext:
    """Make a client's TLS context. Without `ca_file` the machine's roots count. ConfigError for bad files."""
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if not is_verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate_file:
            context.load_cert_chain(certificate_file, key_file or None, password=no_password)
    except (OSError, ValueError) as error:
        files = ", ".join(name for name in (ca_file, certificate_file, key_file) if name)
        raise ConfigError(f"the TLS files {files or 'of this machine'} cannot be used: {error}") from error
    return context
