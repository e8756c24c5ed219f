"""The link of the log with which the first administrator signs in, where nobody else could."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

from iotmq.clock import Clock

LIFE_S: Final = 86_400.0
_BYTES: Final = 32


class FirstLink:
    """A token that counts once, and for a day at most. There is none before `make`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._digest = b""
        self._ends_s = 0.0

    @property
    def is_open(self) -> bool:
        """Return whether the link would still be taken."""
        return bool(self._digest) and self._clock.monotonic_s() < self._ends_s

    def make(self) -> str:
        """Return a new token, which takes the place of a former one."""
        token = secrets.token_urlsafe(_BYTES)
        self._digest = _digest(token)
        self._ends_s = self._clock.monotonic_s() + LIFE_S
        return token

    def take(self, token: str) -> bool:
        """Return whether this is the token, which counts no more then."""
        if not self.is_open or not hmac.compare_digest(self._digest, _digest(token)):
            return False
        self.close()
        return True

    def close(self) -> None:
        """Take nothing any more."""
        self._digest = b""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
