"""Contexts of listeners: certificates chosen by name, client certificates, revocation lists.

A device names the host it wants in its ClientHello (SNI, RFC 6066 section 3), and gets the certificate that
is for this name; without a name, or with one that no certificate has, it gets the first.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

# X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which the standard library has no name for.
_IGNORES_TIME: Final = 0x200000
_HANDSHAKE_TURNS_MAX: Final = 8
# A device keeps one ticket. Each costs the handshake two messages and some 20 microseconds.
_TICKETS: Final = 1


class CertificateFiles(NamedTuple):
    """A certificate and its key, both PEM."""

    certificate_file: str
    key_file: str = ""
    """Empty when the certificate's file has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Hold the TLS settings of a listener."""

    certificates: tuple[CertificateFiles, ...]
    """The first one is for whoever asks for none of the others."""
    client_ca_file: str = ""
    """Roots of client certificates; empty when none are asked for."""
    is_client_certificate_required: bool = True
    revocation_files: tuple[str, ...] = ()
    """Lists of client certificates that do not count any more, one of every root that signs them."""
    is_chain_checked: bool = False
    """Whether the certificates between a client's and its root are looked up in such lists too."""
    version_min: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    ciphers: str = ""
    """Those of TLS 1.2 in the words of OpenSSL; empty for what Python chooses."""
    application_protocols: tuple[str, ...] = ()
    """Names for ALPN; a client that asks for none of them is served all the same."""

    @property
    def files(self) -> Iterator[str]:
        """Yield every file, as far as it is set."""
        for certificate in self.certificates:
            yield from filter(None, certificate)
        yield from filter(None, (self.client_ca_file, *self.revocation_files))


class CertificateFacts(NamedTuple):
    """Hold facts of a certificate."""

    names: tuple[str, ...]
    """Hosts in small letters, perhaps with "*" for the first label."""
    expires_s: float
    """In seconds since 1970."""


def server_context(settings: ContextSettings) -> ssl.SSLContext:
    """Make the context for a listener's next connections. OSError or ValueError for an unusable file."""
    contexts = [_context(certificate, settings) for certificate in settings.certificates]
    first = contexts[0]
    if len(contexts) > 1:
        by_name: dict[str, ssl.SSLContext] = {}
        for certificate, context in zip(settings.certificates, contexts, strict=True):
            facts = certificate_facts(certificate)
            for name in facts.names if facts is not None else ():
                by_name.setdefault(name, context)
        first.sni_callback = _chooser(by_name)
    return first


def certificate_facts(files: CertificateFiles) -> CertificateFacts | None:
    """Read facts of a certificate; None when that is not possible.

    The standard library shows a certificate only to a client it was shown to: here to one in memory.
    """
    try:
        found = _shown_in_memory(files)
    except (OSError, ValueError):
        return None
    if not found:
        return None
    names = [value for kind, value in found.get("subjectAltName", ()) if kind == "DNS"]
    if not names:
        # The common name is for certificates without others [RFC 6125 section 6.4.4].
        names = [value for part in found["subject"] for kind, value in part if kind == "commonName"]
    return CertificateFacts(
        tuple(name.lower() for name in names), float(ssl.cert_time_to_seconds(found["notAfter"]))
    )


def no_password() -> str:
    """Instead of asking for the password of a key at the terminal."""
    raise ValueError("the key has a password; store it without one, readable for its owner only")


def _context(certificate: CertificateFiles, settings: ContextSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = settings.version_min
    context.num_tickets = _TICKETS
    # To begin a handshake anew costs its asker nothing.
    context.options |= ssl.OP_NO_RENEGOTIATION
    if settings.ciphers:
        try:
            context.set_ciphers(settings.ciphers)
        except ssl.SSLError as error:
            raise ValueError(f"no cipher of TLS 1.2 is called {settings.ciphers!r}") from error
    if settings.application_protocols:
        context.set_alpn_protocols(list(settings.application_protocols))
    _named(certificate.certificate_file, lambda: _load_certificate(context, certificate))
    if settings.client_ca_file:
        _named(settings.client_ca_file, lambda: context.load_verify_locations(settings.client_ca_file))
        is_required = settings.is_client_certificate_required
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    for file in settings.revocation_files:
        _named(file, lambda file=file: context.load_verify_locations(file))  # type: ignore[misc]
        context.verify_flags |= (
            ssl.VERIFY_CRL_CHECK_CHAIN if settings.is_chain_checked else ssl.VERIFY_CRL_CHECK_LEAF
        )
    return context


def _load_certificate(context: ssl.SSLContext, files: CertificateFiles) -> None:
    # A key with a password would ask for it at the terminal.
    context.load_cert_chain(files.certificate_file, files.key_file or None, password=no_password)


def _named(file: str, load: Callable[[], None]) -> None:
    """Load a file; the error of OpenSSL says neither which it was nor what was wrong with it."""
    try:
        load()
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error


def _chooser(
    by_name: dict[str, ssl.SSLContext],
) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]:
    """Make the callback that switches to the context of the name a client asks for (SNI)."""

    def choose(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if name is None:
            return
        name = name.lower()
        chosen = by_name.get(name)
        if chosen is None:
            # "*" stands for one label, and only the first [RFC 6125 section 6.4.3].
            chosen = by_name.get(f"*.{name.partition('.')[2]}", context)
        if chosen is not context:
            connection.context = chosen

    return choose


def _shown_in_memory(files: CertificateFiles) -> dict[str, Any]:
    """Try a handshake in memory with a client that trusts the certificate; empty when it fails."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_certificate(server, files)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(files.certificate_file)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _IGNORES_TIME
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
