"""Check the signatures of tokens (JWT, RFC 7519) with the keys of their issuer.

PyJWT checks a signature with one key and its one algorithm. What the claims have to be is the caller's
business.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from jwt import PyJWS
from jwt.exceptions import InvalidSignatureError, PyJWTError

from iotmq.credentials.service_client import ServiceFailedError
from iotmq.credentials.token_keys import KeySet, TokenKeys

# Headers are the same for all tokens of a key.
_HEADERS_KEPT_MAX: Final = 256
_HEADER_BYTES_MAX: Final = 2_048
# Keys that are tried for a token that names none.
_TRIED_MAX: Final = 8
# After so much work the front end's thread gets the interpreter, which Python would keep here for five
# milliseconds.
_WORK_S: Final = 0.001
_PAUSE_S: Final = 0.000_1


class TokenError(Exception):
    """The token does not count; the text is for the operator."""


class _Header(NamedTuple):
    algorithm: str
    kid: str | None


class SignedTokens:
    """Tokens that are signed with some keys."""

    def __init__(self, keys: TokenKeys, algorithms: Collection[str], *, bytes_max: int) -> None:
        self._keys = keys
        self._algorithms = algorithms
        self._bytes_max = bytes_max
        self._jws = PyJWS()
        self._headers: dict[bytes, _Header] = {}
        self._work_s = 0.0

    async def verified(self, token: bytes) -> Mapping[str, Any]:
        """Return the claims of a token. TokenError; ServiceFailedError while there are no keys."""
        if len(token) > self._bytes_max:
            raise TokenError(f"a token of {len(token)} bytes")
        header = self._header(token.partition(b".")[0])
        keys = self._keys.current
        if not keys.find(header.algorithm, header.kid) and await self._keys.refresh_for_unknown():
            keys = self._keys.current
        if not keys.keys:
            raise ServiceFailedError("there are no keys yet")
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
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
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


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim of this name, or in the objects that its dots lead through; None without it."""
    if not name or name in claims:
        return claims.get(name)
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found
