"""The tokens of the settings."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

from iotmq.console.server.messages import Request
from iotmq.console.settings import HttpTokenSettings

KNOWN_MAX: Final = 64
"""Spellings of headers that are known; all are forgotten when there are more."""


class Tokens:
    """Finds the token that a request shows."""

    def __init__(self, tokens: Iterable[HttpTokenSettings]) -> None:
        # Compared as digests, which take as long whatever is wrong.
        self._tokens = tuple((_digest(each.token), each) for each in tokens)
        # The headers that were found right: one that is not even begins with the same hash.
        self._known: dict[str, HttpTokenSettings] = {}

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def find(self, request: Request) -> HttpTokenSettings | None:
        """Return the token in the header Authorization; None without one, and for one that is none."""
        known = self.known(request)
        if known is not None:
            return known
        token = bearer_token(request)
        if token is None:
            return None
        digest = _digest(token)
        # All of them are looked at, so that the time does not tell which is nearly right.
        found = [each for known, each in self._tokens if hmac.compare_digest(digest, known)]
        if not found:
            return None
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[request.headers["authorization"]] = found[0]
        return found[0]

    def known(self, request: Request) -> HttpTokenSettings | None:
        """Return the token in a header that was found right before; None for any other."""
        return self._known.get(request.headers.get("authorization", ""))


def bearer_token(request: Request) -> str | None:
    """Return what stands in the header Authorization, if that is a token."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
