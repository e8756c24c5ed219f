"""Settings of the registry role (section `[registry]` of the configuration)."""

from __future__ import annotations

from typing import Annotated, Literal

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
from iotmq.setting_types import FileName, ListenHost, NativePort


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
    access: Literal["open", "registrations", "everything"] = "open"
    """Choose who has to prove who they are, by a certificate of tls_client_ca_file or the signature of an
    account of acl_file: nobody; whoever registers a broker or changes something; or whoever asks anything.
    Open, a stranger who reaches the port can register as a broker and get its traffic."""
    acl_file: FileName = ""
    """The file of accounts, as the brokers' own (broker.acl_file), and often the same one. Administrators may
    register and change, every account may look up. It is read again when it changes. Empty: no account is a
    proof."""
    certificate_names: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=255)], ...], Meta(max_length=256)
    ] = ()
    """Names of certificates (DNS or common name) that may register and change; empty: every certificate of
    these roots may. Set it where clients have certificates of the same roots."""
    tls_mode: TlsMode = "permissive"
    tls_certificate_file: TlsCertificateFile = ""
    tls_key_file: TlsKeyFile = ""
    tls_client_ca_file: TlsClientCaFile = ""
    tls_handshake_timeout_s: TlsHandshakeTimeout = TLS_HANDSHAKE_S
    tls_handshakes_max: TlsHandshakesMax = limits.TLS_HANDSHAKES_MAX

    @property
    def is_client_certificate_required(self) -> bool:
        """Return whether encrypted connections need a client certificate, where some are asked for."""
        return self.access == "open" or (self.access == "everything" and not self.acl_file)

    def problems(self) -> list[str]:
        """Return what is wrong with settings that do not fit each other, a sentence for each."""
        if self.access == "open":
            return [
                f"registry.{name} means nothing while registry.access is open"
                for name in ("acl_file", "certificate_names")
                if getattr(self, name)
            ]
        if not self.acl_file and not self.tls_client_ca_file:
            return [
                f"registry.access = {self.access} is refused: nobody could prove anything\n"
                "    allowed: with registry.acl_file, registry.tls_client_ca_file, or both"
            ]
        if self.tls_client_ca_file and not self.tls_certificate_file:
            return ["registry.tls_client_ca_file is refused: without a certificate nothing is encrypted"]
        return []
