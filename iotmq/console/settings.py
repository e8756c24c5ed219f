"""Settings of the HTTP port."""

from __future__ import annotations

from typing import Annotated

import msgspec


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [http]: where metrics and health are served."""

    listen_host: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            description="Address of the HTTP port. It has no authentication: beyond loopback everybody who "
            "reaches it reads the metrics.",
        ),
    ] = "127.0.0.1"
    listen_port: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=65_535,
            description="TCP port of /metrics, /healthz and /readyz; 0 takes a free one.",
        ),
    ] = 8080
    header_bytes_max: Annotated[
        int,
        msgspec.Meta(
            ge=1024,
            le=65_536,
            description="Bytes one request line or header field may have; past it the answer is 400.",
        ),
    ] = 8192
