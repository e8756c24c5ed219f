"""Settings of the HTTP port."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.addresses import is_loopback
from iotmq.remoting.tls.files import TlsCertificateFile, TlsClientCaFile, TlsKeyFile
from iotmq.secret_text import hide
from iotmq.setting_types import Port, SecretText

HTTP_PATHS = Literal["/metrics", "/metrics/topics", "/healthz", "/readyz", "/api/v1/health"]
"""The paths that the port may serve to everybody."""


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


RoleNames = Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=64)]
ServiceUrl = Annotated[str, Meta(max_length=2_048, pattern=r"^(https?://[^\s/?#@]+[^\s?#]*)?$")]
ScopeText = Annotated[str, Meta(pattern=r"^\S+$", max_length=128)]
HeaderName = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9-]*$")]


class RoleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The roles of people whom another system names."""

    administrators: RoleNames = ()
    """Roles or groups there whose people are administrators here; "*" is everybody."""
    operators: RoleNames = ()
    """Those whose people are operators here."""
    viewers: RoleNames = ()
    """Those whose people are viewers here. Who is in none of these may not sign in."""


class HeaderSettings(RoleSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [http.sign_in.header]: people whom a proxy has signed in."""

    user: HeaderName = ""
    """The header with the name, such as X-Forwarded-User; empty: no header counts. It does in requests of
    http.proxies alone, and each of these has to take it away from what browsers send."""
    roles: HeaderName = ""
    """The header with roles or groups, with commas between them."""
    secret: Annotated[SecretText, Meta(max_length=256)] = ""
    """The text the proxy has to send in X-Iotmq-Proxy-Secret, at least 16 characters. Needed with a proxy on
    this machine, where other programs and pages in browsers reach the port from the same address."""

    def __post_init__(self) -> None:
        hide(self, "secret")
        if self.user and not (self.administrators or self.operators or self.viewers):
            raise ValueError("with user there has to be one of administrators, operators and viewers")
        if self.user and 0 < len(self.secret) < limits.HTTP_TOKEN_CHARACTERS_MIN:
            raise ValueError(f"secret has at least {limits.HTTP_TOKEN_CHARACTERS_MIN} characters")


class OidcSettings(RoleSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [http.sign_in.oidc]: people of an OpenID Connect provider."""

    issuer: ServiceUrl = ""
    """The provider, as it calls itself; empty: none. By https, or on this machine."""
    client_id: Annotated[str, Meta(max_length=512)] = ""
    """The name of this gateway there. The address to come back to is BASE/api/v1/sign-in/oidc/return."""
    client_secret: Annotated[SecretText, Meta(max_length=512)] = ""
    """The secret of this gateway there; empty for a public client. PKCE is used in any case."""
    label: Annotated[str, Meta(max_length=64)] = "Single sign-on"
    """The text of the button on the sign-in page."""
    scopes: Annotated[tuple[ScopeText, ...], Meta(max_length=32)] = ("openid", "profile", "email")
    """Scopes that are asked for; one of them has to bring roles_claim."""
    name_claim: Annotated[str, Meta(min_length=1, max_length=256)] = "preferred_username"
    """Claim with the name that stands in audit records: one that people cannot choose for themselves. Claims
    in objects have dots."""
    roles_claim: Annotated[str, Meta(min_length=1, max_length=256)] = "roles"
    """Claim with a list of roles or groups, or one; of Keycloak realm_access.roles."""
    algorithms: Annotated[
        tuple[Literal["RS256", "PS256", "ES256", "ES384", "EdDSA"], ...], Meta(min_length=1, max_length=5)
    ] = ("RS256", "PS256", "ES256", "ES384", "EdDSA")
    """Algorithms with which identities may be signed."""
    other_hosts: Annotated[tuple[Annotated[str, Meta(max_length=255)], ...], Meta(max_length=16)] = ()
    """Hosts beside that of the issuer that this gateway may ask, where the provider names such (for Google
    oauth2.googleapis.com, www.googleapis.com and openidconnect.googleapis.com). No others are asked."""
    signs_out: bool = True
    """Whether who signs out is sent to the provider to sign out there, too (its end_session_endpoint).
    Without it the next one at this browser is signed in again with a click."""
    ca_file: Annotated[str, Meta(max_length=limits.FILE_NAME_BYTES_MAX)] = ""
    """PEM file with the roots of the provider's certificate; empty for the machine's own."""
    timeout_s: Annotated[float, Meta(ge=0.05, le=60)] = 10.0
    """Seconds the provider has for an answer."""
    refresh_s: Annotated[float, Meta(ge=1, le=86_400)] = 3_600.0
    """How often its keys and addresses are read again, in seconds."""

    def __post_init__(self) -> None:
        hide(self, "client_secret")
        if not self.issuer:
            return
        if not self.client_id:
            raise ValueError("with issuer there has to be a client_id")
        if self.issuer.startswith("http:") and not is_loopback(urlsplit(self.issuer).hostname or ""):
            raise ValueError("issuer has to be https, beyond this machine")
        if not (self.administrators or self.operators or self.viewers):
            raise ValueError("with issuer there has to be one of administrators, operators and viewers")


class SignInSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [http.sign_in]: how people sign in at the console."""

    enabled: bool = True
    """Whether people may sign in, in processes that have users or another way for it. Without it, and without
    tokens that have a role, there is neither a console nor an HTTP API."""
    users_file: Annotated[str, Meta(max_length=limits.FILE_NAME_BYTES_MAX)] = ""
    """The file of the people who may sign in, which `iotmq console user` writes: a line NAME:ROLE:HASH each.
    Changes are noticed within two seconds. Empty: `console/users` in the data directory; a front end has none
    then."""
    api_keys_file: Annotated[str, Meta(max_length=limits.FILE_NAME_BYTES_MAX)] = ""
    """The file of API keys, which administrators make by the API; empty: `console/api-keys` in the data
    directory."""
    idle_s: Annotated[int, Meta(ge=60, le=604_800)] = 3_600
    """Seconds after which a session ends that nothing asks for. Pages that show live numbers ask."""
    session_s: Annotated[int, Meta(ge=60, le=2_592_000)] = 43_200
    """Seconds after which a session ends in any case; twelve hours are a working day."""
    failures_per_minute_max: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Wrong passwords within a minute, after which an address has to wait for the next one."""
    failures_of_user_max: Annotated[int, Meta(ge=1, le=10_000)] = 50
    """Wrong passwords for one user within a quarter of an hour, from all addresses; then only addresses from
    which that user has signed in before may try, until it is over. A small number lets strangers lock people
    out."""
    header: HeaderSettings = HeaderSettings()
    """People whom a proxy has signed in."""
    oidc: OidcSettings = OidcSettings()
    """People of an OpenID Connect provider."""

    @property
    def has_ways(self) -> bool:
        """Return whether there is a way to sign in, whatever process it is."""
        return bool(self.users_file or self.api_keys_file or self.header.user or self.oidc.issuer)

    def users_path(self, directory: Path | None) -> Path | None:
        """Return the file of the users in a data directory, or elsewhere; None where there is none."""
        return self._path(self.users_file, directory, "console/users")

    def keys_path(self, directory: Path | None) -> Path | None:
        """Return the file of the API keys; None where there is none."""
        return self._path(self.api_keys_file, directory, "console/api-keys")

    def _path(self, named: str, directory: Path | None, usual: str) -> Path | None:
        if not self.enabled:
            return None
        if named:
            return Path(named)
        return None if directory is None else directory / usual


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
    sign_in: SignInSettings = SignInSettings()
    """How people sign in at the console."""
    proxies: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=32)] = ()
    """Addresses and networks of the proxies in front of this port, such as 10.0.0.5 or 10.1.0.0/24. From
    them, and from nobody else, X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Host count; each proxy has
    to set them and not to let through what a browser sends."""
    base_path: Annotated[str, Meta(pattern=r"^(/[A-Za-z0-9._~-]+)*$", max_length=128)] = ""
    """The path below which a proxy shows this port, such as /iotmq; empty: /. Paths are served with it and
    without it, so the proxy may take it away or leave it."""
    tls_certificate_file: TlsCertificateFile = ""
    tls_key_file: TlsKeyFile = ""
    tls_client_ca_file: TlsClientCaFile = ""

    def has_callers(self, *, has_data: bool) -> bool:
        """Return whether anybody may use the API of a process, one with a data directory or without."""
        is_for_people = self.sign_in.enabled and (has_data or self.sign_in.has_ways)
        return is_for_people or any(token.role != "metrics" for token in self.tokens)

    def __post_init__(self) -> None:
        networks = [ip_network(text) for text in self.proxies]
        header = self.sign_in.header
        if header.user and not networks:
            raise ValueError("sign_in.header.user needs proxies: the addresses that may send it")
        if header.user and not header.secret and any(each.is_loopback for each in networks):
            raise ValueError("sign_in.header needs a secret with proxies on this machine")

    @property
    def has_to_be_proved(self) -> bool:
        """Return whether who asks has to show a token or a certificate."""
        return bool(self.tokens or self.tls_client_ca_file)
