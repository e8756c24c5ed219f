"""Settings of the links of the authentication chain (`[[mqtt.authentication.chain]]`)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.setting_types import FileName

ClaimName = Annotated[str, Meta(max_length=limits.MQTT_CLAIM_NAME_CHARACTERS_MAX)]
Template = Annotated[str, Meta(max_length=1_024)]
ServiceUrl = Annotated[str, Meta(max_length=2_048, pattern=r"^(https?://[^\s/]+[^\s]*)?$")]


class LinkSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="any"
):
    """Hold what every link of the chain has."""

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]*$", max_length=limits.MQTT_LISTENER_NAME_BYTES_MAX)]
    """Name of the link, in logs, in metrics and in the chain of a listener."""
    when_user: Annotated[str, Meta(max_length=limits.MQTT_REWRITE_PATTERN_CHARACTERS_MAX)] = ""
    """Ask the link only about devices whose whole user name matches this regular expression (RE2). Empty:
    about all, also those without a user name."""
    when_certificate: bool | None = None
    """Ask it only about devices with a client certificate that was verified (true), or without (false)."""
    when_protocols: Annotated[tuple[Literal["3.1", "3.1.1", "5"], ...], Meta(max_length=3)] = ()
    """Ask it only about devices that speak these versions of MQTT. Empty: all."""
    timeout_s: Annotated[float, Meta(ge=0.01, le=60)] = 5.0
    """Seconds the link has for an answer; later the device is denied (0x88, before MQTT 5 return code 3)."""
    wait_s: Annotated[float, Meta(ge=0.01, le=60)] = 5.0
    """Seconds a device may wait for its turn at the link; then it is refused as busy (0x89, before MQTT 5
    return code 3)."""
    waiting_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 4_096
    """Devices that may wait for their turn; more are refused as busy."""
    at_once_max: Annotated[int, Meta(ge=1, le=10_000)] = 64
    """Questions under way at one time."""
    questions_per_s_max: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0
    """Questions a second, so that a fleet that comes back does not overrun a service. 0 = no limit."""
    cache_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 60.0
    """How long a yes is remembered for a device that says exactly the same again, at most until its token
    ends. Who loses the right to connect may do so for as long."""
    refusal_cache_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 5.0
    """How long a no, or that the link knows nothing of the device, is remembered."""
    cached_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 100_000
    """Answers of each kind that are remembered, as keyed digests of a few bytes."""


class UsersLinkSettings(LinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="users"):
    """Users and passwords in a file."""

    file: FileName = ""
    """The file of users, which iotmq users writes. Empty: mqtt.authentication.users_file."""
    unknown_users: Literal["deny", "not-mine"] = "not-mine"
    """A name that is not in the file is denied, after as long as a wrong password takes, or is for the next
    link."""


class CertificateLinkSettings(
    LinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="certificate"
):
    """Client certificates that the listener has verified. Devices without one are for the next link.

    In templates {cn}, {ou}, {o}, {c}, {l}, {st}, {serial}, {email}, {dn}, {san-dns}, {san-uri}, {san-email}
    and {san-ip} are fields of the certificate, and {identity} is the listener's client_identity.
    """

    user: Template = "{cn}"
    """The device's user name, such as {cn} or {ou}/{cn}. A certificate without the fields is denied."""
    client_id: Template = ""
    """The device's client id, whatever it asks for. Empty: the one it asks for."""
    roles: tuple[Template, ...] = ()
    """Roles of the device. A field that a certificate has several times gives several, one it lacks none."""
    groups: tuple[Template, ...] = ()
    """Groups of the device, in the same way."""
    attributes: dict[str, Template] = {}
    """Further facts for rules and placeholders, by name, such as { site = "{l}" }."""


Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512",
    "ES256", "ES384", "ES512", "EdDSA",
]  # fmt: skip


class JwtLinkSettings(LinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="jwt"):
    """Signed tokens (JWT) in the password, in the user name, or in an exchange of the method iotmq-jwt.

    What is no token in form is for the next link.
    """

    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)]
    """Algorithms that are taken. A key is used with those of its own type only: a public key is never the
    secret of HS256."""
    secret_file: FileName = ""
    """File with the secret of HS256, HS384 and HS512: at least 32, 48 or 64 bytes. A line break at its end is
    no part of it."""
    key_files: Annotated[tuple[FileName, ...], Meta(max_length=limits.MQTT_TOKEN_KEYS_MAX)] = ()
    """PEM files with a public key or a certificate each."""
    jwks_file: FileName = ""
    """File with a set of keys (JWKS, RFC 7517)."""
    jwks_url: ServiceUrl = ""
    """Where the set of keys is fetched from. While that fails the last good one counts; without one all
    tokens are denied."""
    jwks_copy_file: FileName = ""
    """Where the last good set of jwks_url is kept, for a start while that cannot be reached. Who can write
    the file can make tokens: it is written for its owner alone, and not used when others may write it. Empty:
    token-keys/NAME.json in the data directory of iotmq serve; nowhere for a front end of its own."""
    jwks_ca_file: FileName = ""
    """PEM file with the roots of that service's certificate; empty for the machine's own."""
    refresh_s: Annotated[float, Meta(ge=0.05, le=86_400.0)] = 300.0
    """How often key files and the set of keys are read again, in seconds. A token with an unknown key has the
    set fetched sooner, at most every refresh_s / 10."""
    token_from: Literal["password", "user-name"] = "password"
    """Where in the CONNECT the token is."""
    audience: Annotated[tuple[str, ...], Meta(max_length=32)] = ()
    """The token's aud has to name one of these. Empty: tokens with an aud are for others, and denied."""
    issuer: Annotated[str, Meta(max_length=1_024)] = ""
    """The token's iss has to be this. Empty: any."""
    leeway_s: Annotated[float, Meta(ge=0, le=600)] = 10.0
    """How far the clocks of the issuer and of this machine may differ, in seconds."""
    lifetime_s_max: Annotated[float, Meta(ge=1, le=3_660 * 86_400)] = 366 * 86_400.0
    """Tokens whose exp is further ahead are denied, and so are those without an exp."""
    user_claim: ClaimName = "sub"
    """Claim with the user name. Claims in objects have dots: realm.name."""
    user_has_to_match: bool = True
    """A user name in the CONNECT has to be that of the token (with token_from = "password")."""
    client_id_claim: ClaimName = ""
    """Claim with the client id that the device has to have. Empty: none."""
    roles_claim: ClaimName = "roles"
    """Claim with a list of roles, or one."""
    groups_claim: ClaimName = "groups"
    """Claim with a list of groups, or one."""
    attribute_claims: Annotated[tuple[ClaimName, ...], Meta(max_length=64)] = ()
    """Claims that become attributes, for rules and placeholders: texts, numbers, true and false."""
    permissions_claim: ClaimName = "acl"
    """Claim with a list of permissions."""
    limits_claim: ClaimName = "limits"
    """Claim with an object of limits, whole numbers by name."""

    def __post_init__(self) -> None:
        if not (self.secret_file or self.key_files or self.jwks_file or self.jwks_url):
            raise ValueError("it needs secret_file, key_files, jwks_file or jwks_url")
        if self.jwks_copy_file and not self.jwks_url:
            raise ValueError("jwks_copy_file means nothing without jwks_url")
        is_secret = [name.startswith("HS") for name in self.algorithms]
        if any(is_secret) and not all(is_secret):
            raise ValueError(
                "algorithms with a secret (HS...) and with keys do not go together: make two links"
            )
        if bool(self.secret_file) != any(is_secret):
            raise ValueError("secret_file is for the algorithms HS256, HS384 and HS512, which need it")
        if any(is_secret) and (self.key_files or self.jwks_file or self.jwks_url):
            raise ValueError("secret_file goes with no other keys: make two links")


class HttpLinkSettings(LinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="http"):
    """A service of yours that is asked by HTTP."""

    url: Annotated[ServiceUrl, Meta(min_length=1)]
    """Where the questions are sent by POST."""
    ca_file: FileName = ""
    """PEM file with the roots of its certificate; empty for the machine's own."""
    headers: Annotated[dict[str, str], Meta(max_length=16, extra={"is_secret": True})] = {}
    """Headers of a question, such as { authorization = "Bearer ..." }."""
    honours_cache_control: bool = True
    """Remember an answer as long as its header Cache-Control says, at most a day; without one as long as
    cache_s and refusal_cache_s say."""
