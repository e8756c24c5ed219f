"""Signed tokens (JWT, RFC 7519): who a device is, what it may do and until when, as its token says.

The signature is checked by `credentials.signed_tokens`; what the claims have to be is checked here, against
the clock of the gateway and what else the device says of itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from iotmq import limits
from iotmq.clock import Clock
from iotmq.credentials.signed_tokens import SignedTokens, TokenError, claim_of
from iotmq.credentials.token_keys import TokenKeys
from iotmq.errors import ConfigError
from iotmq.metrics import Metric
from iotmq.mqtt.auth.method_names import TOKEN_METHOD
from iotmq.mqtt.reason_codes import BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED
from iotmq.mqtt_front.access.exchanges import TokenExchange
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.verdicts import NEVER_MINE, Accepted, Credentials, Denied, NotMine
from iotmq.mqtt_front.settings.links import JwtLinkSettings

_FORM: Final = re.compile(rb"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")
_LIMITS_MAX: Final = 64


class JwtLink:
    """Decides by a signed token."""

    def __init__(self, settings: JwtLinkSettings, clock: Clock) -> None:
        """ConfigError when a key cannot be used."""
        self.name = settings.name
        self._settings = settings
        self._clock = clock
        try:
            self._keys = TokenKeys(settings, clock)
        except (OSError, ValueError) as error:
            raise ConfigError(f"link {settings.name}: {error}") from error
        self._tokens = SignedTokens(
            self._keys, settings.algorithms, bytes_max=limits.MQTT_PASSWORD_BYTES_MAX
        )

    async def start(self) -> None:
        """Fetch keys that have to be fetched."""
        await self._keys.start()

    async def close(self) -> None:
        """Stop looking for other keys."""
        await self._keys.close()

    def metrics(self) -> Iterable[Metric]:
        return self._keys.metrics()

    def exchange(self, method: str) -> TokenExchange | None:
        """Begin an exchange; None for a method other than iotmq-jwt."""
        return TokenExchange() if method == TOKEN_METHOD else None

    def told(self, asked: Credentials) -> bytes | None:
        """Return the token, what it is compared with, and the keys: without one of them it is asked again."""
        token = self._token(asked)
        if token is None:
            return b""
        names = f"{asked.client_id}\0{asked.user_name or ''}".encode()
        return b"".join((self._keys.current.digest, len(names).to_bytes(4, "big"), names, token))

    async def decide(self, asked: Credentials) -> Accepted | Denied | NotMine:
        """Decide by the token; what is none in form is for the next link."""
        token = self._token(asked)
        if token is None:
            return NEVER_MINE
        try:
            claims = await self._tokens.verified(token)
            return self._accepted(claims, asked)
        except TokenError as error:
            reason = BAD_USER_NAME_OR_PASSWORD if asked.token is None else NOT_AUTHORIZED
            return Denied(reason, "token", str(error)[:512])

    def _token(self, asked: Credentials) -> bytes | None:
        if asked.token is not None:
            return asked.token
        if self._settings.token_from == "password":
            token = asked.password
        else:
            token = None if asked.user_name is None else asked.user_name.encode()
        return token if token is not None and _FORM.fullmatch(token) else None

    # The claims

    def _accepted(self, claims: Mapping[str, Any], asked: Credentials) -> Accepted:
        settings = self._settings
        expires_at_s = self._checked_times(claims)
        self._check_parties(claims)
        user = claim_of(claims, settings.user_claim)
        if not isinstance(user, str) or not _is_name(user):
            raise TokenError(f"its claim {settings.user_claim} is no user name")
        if (
            settings.token_from == "password"
            and settings.user_has_to_match
            and asked.user_name
            and asked.user_name != user
        ):
            raise TokenError(f"it is for {user[:64]!a}, and not for the user name of the device")
        identity = Identity(
            user=user,
            roles=_names(claims, settings.roles_claim),
            groups=_names(claims, settings.groups_claim),
            attributes=_attributes(claims, settings.attribute_claims),
            permissions=_permissions(claims, settings.permissions_claim),
            limits=_limits(claims, settings.limits_claim),
            expires_at_s=expires_at_s,
            decided_by=self.name,
        )
        return Accepted(identity, client_id=self._client_id(claims, asked))

    def _checked_times(self, claims: Mapping[str, Any]) -> float:
        """Return when the token ends, in seconds since 1970."""
        settings, now_s = self._settings, self._clock.now_ms() / 1000
        expires_s, begins_s, issued_s = (_seconds(claims, name) for name in ("exp", "nbf", "iat"))
        if expires_s is None:
            raise TokenError("it has no exp")
        if expires_s + settings.leeway_s <= now_s:
            raise TokenError("it has expired")
        if expires_s - now_s > settings.lifetime_s_max:
            raise TokenError("its exp is further ahead than lifetime_s_max")
        if begins_s is not None and begins_s - settings.leeway_s > now_s:
            raise TokenError("its nbf is ahead")
        if issued_s is not None and issued_s - settings.leeway_s > now_s:
            raise TokenError("its iat is ahead")
        return expires_s + settings.leeway_s

    def _check_parties(self, claims: Mapping[str, Any]) -> None:
        settings = self._settings
        audience = claims.get("aud")
        named = audience if isinstance(audience, list) else [] if audience is None else [audience]
        if settings.audience:
            if not any(isinstance(one, str) and one in settings.audience for one in named):
                raise TokenError("its aud names none of audience")
        elif named:
            raise TokenError("it has an aud, and there is no audience in the settings")
        if settings.issuer and claims.get("iss") != settings.issuer:
            raise TokenError("its iss is not issuer")

    def _client_id(self, claims: Mapping[str, Any], asked: Credentials) -> str | None:
        name = self._settings.client_id_claim
        if not name:
            return None
        client_id = claim_of(claims, name)
        if not isinstance(client_id, str) or not _is_name(client_id):
            raise TokenError(f"its claim {name} is no client id")
        if asked.client_id not in ("", client_id):
            raise TokenError(f"it is for the client id {client_id[:64]!a}")
        return client_id


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TokenError(f"its {name} is no number of seconds")
    return float(value)


def _names(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = claim_of(claims, name)
    if value is None:
        return ()
    listed = value if isinstance(value, list) else [value]
    if len(listed) > limits.MQTT_IDENTITY_NAMES_MAX:
        raise TokenError(f"its claim {name} has {len(listed)} names")
    if not all(isinstance(one, str) and _is_name(one) for one in listed):
        raise TokenError(f"its claim {name} is no list of names")
    return tuple(listed)


def _attributes(claims: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    found = ((name, claim_of(claims, name)) for name in names)
    return {name: _text(name, value) for name, value in found if value is not None}


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float)):
        raise TokenError(f"its claim {name} is neither text nor a number")
    return str(value)


def _permissions(claims: Mapping[str, Any], name: str) -> tuple[Mapping[str, object], ...] | None:
    value = claim_of(claims, name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(rule, dict) for rule in value):
        raise TokenError(f"its claim {name} is no list of permissions")
    return tuple(value)


def _limits(claims: Mapping[str, Any], name: str) -> Mapping[str, int] | None:
    value = claim_of(claims, name)
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _LIMITS_MAX or not all(map(_is_limit, value.values())):
        raise TokenError(f"its claim {name} is no object of limits")
    return dict(value)


def _is_limit(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_name(text: str) -> bool:
    return text != "" and text.isprintable() and len(text.encode()) <= limits.MQTT_USER_NAME_BYTES_MAX
