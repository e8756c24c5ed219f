"""Settings of the HTTP port."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.remoting.tls.files import TlsCertificateFile, TlsClientCaFile, TlsKeyFile
from iotmq.secret_text import hide
from iotmq.setting_types import Port, SecretText

HTTP_PATHS = Literal["/metrics", "/metrics/topics", "/healthz", "/readyz"]
"""The paths that the port serves."""


class HttpTokenSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token that requests to the HTTP port may show."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]+$", max_length=64)]
    """The name of the one who has the token, for operators; it is not sent."""
    token: Annotated[SecretText, Meta(min_length=limits.HTTP_TOKEN_CHARACTERS_MIN)]
    """The secret that is sent in the header Authorization: Bearer TOKEN. Read when iotmq starts."""
    role: Literal["metrics", "viewer", "operator", "administrator"] = "metrics"
    """The requests it may be used for: `metrics` reads /metrics and /readyz. The others may do that and use
    the HTTP API: a viewer reads, messages included, an operator sends, and helps devices and groups, an
    administrator does all."""

    def __post_init__(self) -> None:
        hide(self, "token")


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [http]: where metrics and health are served."""

    listen_host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    """Address of the HTTP port. Beyond loopback it is refused unless who asks has to show a token or a
    certificate, or `allow_open_remote` is set."""
    listen_port: Port = 8080
    """TCP port of /metrics, /healthz and /readyz; 0 takes a free one."""
    header_bytes_max: Annotated[int, Meta(ge=1024, le=65_536)] = 8192
    """Bytes the request line and header fields may have, all together; past it the answer is 431."""
    request_timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 90.0
    """Seconds after which a connection that sends no whole request is closed, its first or a further one.
    Make it larger than the interval of metric collection, or each collection makes a new connection."""
    tokens: Annotated[tuple[HttpTokenSettings, ...], Meta(max_length=limits.HTTP_TOKENS_MAX)] = ()
    """Tokens, one of which a request has to have; empty: none is asked for by /metrics, /healthz and
    /readyz, and there is no HTTP API."""
    open_paths: Annotated[tuple[HTTP_PATHS, ...], Meta(max_length=8)] = ("/healthz",)
    """Paths that need no token, for probes that have none."""
    allow_open_remote: bool = False
    """Must be true when listen_host is not loopback and neither tokens nor tls_client_ca_file are set: every
    host that reaches the port may then read the metrics."""
    tls_certificate_file: TlsCertificateFile = ""
    tls_key_file: TlsKeyFile = ""
    tls_client_ca_file: TlsClientCaFile = ""

    @property
    def has_to_be_proved(self) -> bool:
        """Return whether who asks has to show a token or a certificate."""
        return bool(self.tokens or self.tls_client_ca_file)
