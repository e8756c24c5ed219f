"""Settings of the HTTP port."""

from __future__ import annotations

from typing import Annotated

import msgspec

from iotmq.setting_types import Port


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [http]: where metrics and health are served."""

    listen_host: Annotated[str, msgspec.Meta(min_length=1)] = "127.0.0.1"
    """Address of the HTTP port. It has no authentication: beyond loopback, every host that reaches it can
    read the metrics."""
    listen_port: Port = 8080
    """TCP port of /metrics, /healthz and /readyz; 0 takes a free one."""
    header_bytes_max: Annotated[int, msgspec.Meta(ge=1024, le=65_536)] = 8192
    """Bytes the request line and header fields may have, all together; past it the answer is 431."""
    request_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 90.0
    """Seconds after which a connection that sends no whole request is closed, its first or a further one.
    Make it larger than the interval of metric collection, or each collection makes a new connection."""
