"""Signed tokens (JWT, RFC 7519): who a device is, what it may do and until when, as its token says.

The signature is checked by PyJWT with one key and its one algorithm; what the claims have to be is checked
here, against the clock of the gateway and what else the device says of itself.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from jwt import PyJWS
from jwt.exceptions import InvalidSignatureError, PyJWTError

from iotmq import limits
from iotmq.clock import Clock
from iotmq.errors import ConfigError
from iotmq.metrics import Metric
from iotmq.mqtt.auth.method_names import TOKEN_METHOD
from iotmq.mqtt.reason_codes import BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED
from iotmq.mqtt_front.access.exchanges import TokenExchange
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.links.link import LinkFailedError
from iotmq.mqtt_front.access.links.token_keys import KeySet, TokenKeys
from iotmq.mqtt_front.access.verdicts import NEVER_MINE, Accepted, Credentials, Denied, NotMine
from iotmq.mqtt_front.settings.links import JwtLinkSettings

_FORM: Final = re.compile(rb"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*")
# Headers are the same for all tokens of a key.
_HEADERS_KEPT_MAX: Final = 256
_HEADER_BYTES_MAX: Final = 2_048
# Keys that are tried for a token that names none.
_TRIED_MAX: Final = 8
_LIMITS_MAX: Final = 64
# After so much work the front end's thread gets the interpreter, which Python would keep here for five
# milliseconds.
_WORK_S: Final = 0.001
_PAUSE_S: Final = 0.000_1


class TokenError(Exception):
    """The token does not count; the text is for the operator."""


class _Header(NamedTuple):
    algorithm: str
    kid: str | None


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
        self._jws = PyJWS()
        self._headers: dict[bytes, _Header] = {}
        self._work_s = 0.0

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
            claims = await self._verified(token)
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

    # The signature

    async def _verified(self, token: bytes) -> Mapping[str, Any]:
        if len(token) > limits.MQTT_PASSWORD_BYTES_MAX:
            raise TokenError(f"a token of {len(token)} bytes")
        header = self._header(token.partition(b".")[0])
        keys = self._keys.current
        if not keys.find(header.algorithm, header.kid) and await self._keys.refresh_for_unknown():
            keys = self._keys.current
        if not keys.keys:
            raise LinkFailedError("there are no keys yet")
        began_s = time.perf_counter()
        try:
            return self._signed(token, header, keys)
        finally:
            self._rest(time.perf_counter() - began_s)

    def _signed(self, token: bytes, header: _Header, keys: KeySet) -> Mapping[str, Any]:
        found = keys.find(header.algorithm, header.kid)
        if not found:
            raise TokenError(f"there is no key {header.kid!a} for {header.algorithm}")
        for key in found[:_TRIED_MAX]:
            try:
                payload = self._jws.decode_complete(token, key.key, [key.algorithm])["payload"]
                return msgspec.json.decode(payload, type=dict[str, Any])
            except InvalidSignatureError:
                continue
            except (PyJWTError, msgspec.MsgspecError, RecursionError) as error:
                raise TokenError(f"no token: {error}") from error
        raise TokenError("its signature is wrong")

    def _header(self, segment: bytes) -> _Header:
        """Return what a token says of its signature; that it may say so is not checked yet."""
        known = self._headers.get(segment)
        if known is not None:
            return known
        if len(segment) > _HEADER_BYTES_MAX:
            raise TokenError(f"a header of {len(segment)} bytes")
        try:
            text = base64.urlsafe_b64decode(segment + b"=" * (-len(segment) % 4))
            found = msgspec.json.decode(text, type=dict[str, Any])
        except (binascii.Error, ValueError, RecursionError) as error:
            raise TokenError(f"no header of a token: {error}") from error
        algorithm, kid = found.get("alg"), found.get("kid")
        if algorithm not in self._settings.algorithms:
            raise TokenError(f"algorithm {str(algorithm)[:32]!a} is not allowed")
        if kid is not None and not isinstance(kid, str):
            raise TokenError("its key has no name that is text")
        if len(self._headers) >= _HEADERS_KEPT_MAX:
            del self._headers[next(iter(self._headers))]
        header = self._headers[segment] = _Header(algorithm, kid)
        return header

    def _rest(self, taken_s: float) -> None:
        self._work_s += taken_s
        if self._work_s >= _WORK_S:
            self._work_s = 0.0
            time.sleep(_PAUSE_S)

    # The claims

    def _accepted(self, claims: Mapping[str, Any], asked: Credentials) -> Accepted:
        settings = self._settings
        expires_at_s = self._checked_times(claims)
        self._check_parties(claims)
        user = _claim(claims, settings.user_claim)
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
        client_id = _claim(claims, name)
        if not isinstance(client_id, str) or not _is_name(client_id):
            raise TokenError(f"its claim {name} is no client id")
        if asked.client_id not in ("", client_id):
            raise TokenError(f"it is for the client id {client_id[:64]!a}")
        return client_id


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim of this name, or in the objects that its dots lead through; None without it."""
    if not name or name in claims:
        return claims.get(name)
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TokenError(f"its {name} is no number of seconds")
    return float(value)


def _names(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = _claim(claims, name)
    if value is None:
        return ()
    listed = value if isinstance(value, list) else [value]
    if len(listed) > limits.MQTT_IDENTITY_NAMES_MAX:
        raise TokenError(f"its claim {name} has {len(listed)} names")
    if not all(isinstance(one, str) and _is_name(one) for one in listed):
        raise TokenError(f"its claim {name} is no list of names")
    return tuple(listed)


def _attributes(claims: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    found = ((name, _claim(claims, name)) for name in names)
    return {name: _text(name, value) for name, value in found if value is not None}


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float)):
        raise TokenError(f"its claim {name} is neither text nor a number")
    return str(value)


def _permissions(claims: Mapping[str, Any], name: str) -> tuple[Mapping[str, object], ...] | None:
    value = _claim(claims, name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(rule, dict) for rule in value):
        raise TokenError(f"its claim {name} is no list of permissions")
    return tuple(value)


def _limits(claims: Mapping[str, Any], name: str) -> Mapping[str, int] | None:
    value = _claim(claims, name)
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > _LIMITS_MAX or not all(map(_is_limit, value.values())):
        raise TokenError(f"its claim {name} is no object of limits")
    return dict(value)


def _is_limit(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_name(text: str) -> bool:
    return text != "" and text.isprintable() and len(text.encode()) <= limits.MQTT_USER_NAME_BYTES_MAX
