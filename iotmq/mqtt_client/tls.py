"""TLS of a client: the certificates it trusts, and its own."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from iotmq.errors import ClientError


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """TLS options of a client; files are PEM. Without `ca_file` the machine's authorities are trusted.

    `is_unverified` accepts any certificate.
    """

    ca_file: str | None = None
    """Authorities to trust, one or several in a file."""
    ca_directory: str | None = None
    """A directory of authorities to trust, named by their hashes as OpenSSL does."""
    certificate_file: str | None = None
    """The client's certificate, for servers that ask for one."""
    key_file: str | None = None
    """The key of the client's certificate; None if it is in the same file."""
    is_unverified: bool = False
    """Accept any certificate: for tests only."""
    alpn: tuple[str, ...] = ()
    """Application protocols to offer."""
    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    """The oldest version of TLS."""


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    """Make the TLS context; ClientError names the file that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=options.ca_file, capath=options.ca_directory)
    except (OSError, ssl.SSLError) as error:
        raise ClientError(
            f"{options.ca_file or options.ca_directory}: no certificates to trust: {error}"
        ) from None
    context.minimum_version = options.minimum
    if options.is_unverified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if options.certificate_file is not None:
        try:
            context.load_cert_chain(options.certificate_file, options.key_file)
        except (OSError, ssl.SSLError) as error:
            files = " and ".join(filter(None, (options.certificate_file, options.key_file)))
            raise ClientError(f"{files}: no certificate with its key: {error}") from None
    elif options.key_file is not None:
        raise ClientError(f"{options.key_file}: a key needs its certificate")
    if options.alpn:
        context.set_alpn_protocols(list(options.alpn))
    return context
