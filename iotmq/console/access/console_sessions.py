"""Sessions of people who are signed in: in memory, so the end of the process ends them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable
from typing import Final, Literal, TypeAlias

from iotmq import limits
from iotmq.clock import Clock
from iotmq.console.access.console_users import RoleName

Way: TypeAlias = Literal["token", "key", "password", "link", "oidc", "header"]
"""How somebody has shown who that is."""

_TOKEN_BYTES: Final = 32
_ID_BYTES: Final = 9
_AGENT_CHARACTERS_MAX: Final = 200


class Session:
    """One sign-in."""

    __slots__ = ("address", "agent", "ends_s", "id", "name", "proof", "role", "signed_in_ms", "used_s", "way")

    def __init__(self, name: str, role: RoleName, way: Way, *, ends_s: float, signed_in_ms: int) -> None:
        self.id = secrets.token_urlsafe(_ID_BYTES)
        """The name of the session in lists; it opens nothing."""
        self.name = name
        self.role = role
        self.way = way
        self.ends_s = ends_s
        self.signed_in_ms = signed_in_ms
        self.used_s = 0.0
        # Set by `open`.
        self.address = ""
        self.agent = ""
        self.proof = ""


class Sessions:
    """A bounded number of them, each found by the digest of its token, which only its browser has."""

    def __init__(self, clock: Clock, *, idle_s: float, absolute_s: float) -> None:
        self._clock = clock
        self._idle_s = idle_s
        self._absolute_s = absolute_s
        # In the order of their last use.
        self._sessions: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, name: str, role: RoleName, way: Way, *, address: str, agent: str, proof: str = ""
    ) -> tuple[str, Session]:
        """Begin a session and return its token.

        `proof` is what the session stands on: `end_where` gets it. Past the limits the one that was not used
        for longest ends.
        """
        now_s = self._clock.monotonic_s()
        self._end_old(now_s)
        own = [key for key, each in self._sessions.items() if each.name == name and each.way == way]
        if len(own) >= limits.CONSOLE_SESSIONS_OF_USER_MAX:
            del self._sessions[own[0]]
        elif len(self._sessions) >= limits.CONSOLE_SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        session = Session(name, role, way, ends_s=now_s + self._absolute_s, signed_in_ms=self._clock.now_ms())
        session.used_s = now_s
        session.address = address
        session.agent = agent[:_AGENT_CHARACTERS_MAX]
        session.proof = proof
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._sessions[_digest(token)] = session
        return token, session

    def find(self, token: str) -> Session | None:
        """Return the session of a token, and count that as its use; None when there is none, or no more."""
        key = _digest(token)
        session = self._sessions.get(key)
        if session is None:
            return None
        now_s = self._clock.monotonic_s()
        if self._is_over(session, now_s):
            del self._sessions[key]
            return None
        session.used_s = now_s
        # Behind those that were used before.
        self._sessions[key] = self._sessions.pop(key)
        return session

    def used_ms(self, session: Session) -> int:
        """Return when it was used last, in milliseconds since 1970."""
        return self._wall_ms(session.used_s)

    def expires_ms(self, session: Session) -> int:
        """Return when it ends if nobody uses it."""
        return self._wall_ms(min(session.used_s + self._idle_s, session.ends_s))

    def ends_ms(self, session: Session) -> int:
        """Return when it ends in any case."""
        return self._wall_ms(session.ends_s)

    def all(self) -> Iterable[Session]:
        """Return those that have not ended."""
        self._end_old(self._clock.monotonic_s())
        return list(self._sessions.values())

    def end_where(self, is_to_end: Callable[[Session], bool]) -> int:
        """End sessions, and return how many."""
        ended = [key for key, each in self._sessions.items() if is_to_end(each)]
        for key in ended:
            del self._sessions[key]
        return len(ended)

    def _end_old(self, now_s: float) -> None:
        self.end_where(lambda session: self._is_over(session, now_s))

    def _wall_ms(self, at_s: float) -> int:
        return self._clock.now_ms() + round((at_s - self._clock.monotonic_s()) * 1000)

    def _is_over(self, session: Session, now_s: float) -> bool:
        return now_s >= session.ends_s or now_s - session.used_s >= self._idle_s


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
