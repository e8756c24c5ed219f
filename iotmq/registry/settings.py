"""Settings of the registry role (section `[registry]` of the configuration)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.limits import NATIVE_CONNECTIONS_MAX, NATIVE_IDLE_S
from iotmq.remoting.tls.files import (
    TLS_HANDSHAKE_S,
    TlsCertificateFile,
    TlsClientCaFile,
    TlsHandshakesMax,
    TlsHandshakeTimeout,
    TlsKeyFile,
    TlsMode,
)
from iotmq.setting_types import ListenHost, NativePort


class RegistrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a registry: its listener, and the time until a silent broker is dropped."""

    listen_host: ListenHost = "127.0.0.1"
    listen_port: NativePort = 9_876
    broker_timeout_s: Annotated[float, Meta(ge=1.0, le=86_400.0)] = 120.0
    """Seconds without a registration after which a broker is taken out of all routes. Brokers register every
    30 s; below 60 s one lost registration makes topics vanish."""
    scan_interval_s: Annotated[float, Meta(ge=0.1, le=3_600.0)] = 10.0
    """Seconds between looks for silent brokers; a silent one is seen this much later."""
    broker_memory_s: Annotated[float, Meta(ge=0.0, le=604_800.0)] = 3_600.0
    """Seconds a broker that has left is still named to readers that ask for it, as Spark's source does: a
    read waits for it, or fails, instead of leaving out its queues. Lower it when a broker is taken away for
    good."""
    idle_timeout_s: Annotated[float, Meta(ge=1.0, le=86_400.0)] = NATIVE_IDLE_S
    """Seconds without traffic after which a connection is closed. Clients ask every 30 s, and a broker whose
    connection is closed leaves the routes at once."""
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = NATIVE_CONNECTIONS_MAX
    """Open connections, brokers and clients together; more are refused."""
    tls_mode: TlsMode = "permissive"
    tls_certificate_file: TlsCertificateFile = ""
    tls_key_file: TlsKeyFile = ""
    tls_client_ca_file: TlsClientCaFile = ""
    tls_handshake_timeout_s: TlsHandshakeTimeout = TLS_HANDSHAKE_S
    tls_handshakes_max: TlsHandshakesMax = limits.TLS_HANDSHAKES_MAX
