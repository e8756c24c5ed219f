"""Set up TLS for a listener, and read a device's identity from its certificate."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

from iotmq.mqtt_front.settings.listeners import ListenerSettings
from iotmq.remoting.tls.context import CertificateFiles, ContextSettings
from iotmq.remoting.tls.files import ServerTls

# Names for ALPN, by the transport.
_APPLICATION_PROTOCOLS: Final = {"tls": ("mqtt",), "wss": ("http/1.1",)}
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
# Kinds of alternative names, as the standard library calls them.
_ALTERNATIVE_NAMES: Final = {"san-dns": "DNS", "san-uri": "URI", "san-email": "email"}


def listener_tls(settings: ListenerSettings, *, ticket_secret: str = "") -> ServerTls | None:
    """Load the TLS of an encrypted listener; None for others. ConfigError names an unusable file.

    Front ends with the same `ticket_secret` resume each other's sessions.
    """
    if not settings.is_encrypted:
        return None
    return ServerTls(
        ContextSettings(
            certificates=tuple(
                CertificateFiles(files.certificate_file, files.key_file) for files in settings.certificates
            ),
            client_ca_file=settings.client_ca_file,
            is_client_certificate_required=settings.client_certificates == "required",
            revocation_files=settings.client_crl_files,
            is_chain_checked=settings.client_crl_depth == "chain",
            version_min=_VERSIONS[settings.tls_version_min],
            ciphers=settings.tls_ciphers,
            application_protocols=_APPLICATION_PROTOCOLS[settings.transport],
        ),
        is_enforced=True,
        handshake_timeout_s=settings.handshake_timeout_s,
        handshakes_max=settings.handshakes_max,
        ticket_secret=ticket_secret,
    )


def has_expired(certificate: Mapping[str, Any], now_s: float) -> bool:
    """Return whether a client certificate, as ssl.SSLSocket.getpeercert() gives it, does not count any more.

    A session that is resumed has the certificate it began with, and OpenSSL does not look at it again.
    """
    return ssl.cert_time_to_seconds(certificate["notAfter"]) < now_s


def certificate_identity(certificate: Mapping[str, Any], kind: str) -> str | None:
    """Return a device's identity: the field of its certificate that `client_identity` names; None without it.

    `certificate` is as ssl.SSLSocket.getpeercert() gives it.
    """
    if kind == "cn":
        names = [
            value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"
        ]
    else:
        wanted = _ALTERNATIVE_NAMES[kind]
        names = [value for key, value in certificate.get("subjectAltName", ()) if key == wanted]
    return str(names[0]) if names and names[0] else None
