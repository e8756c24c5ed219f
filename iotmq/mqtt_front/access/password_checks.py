"""Comparing passwords with what is kept of them, without holding up the event loop.

Operations: thousands of CONNECTs when a fleet comes back, each of which costs milliseconds of hashing when
its password is seen for the first time. Goals: the loop never hashes; what waits is bounded; a device that
was here before costs microseconds. Plan: a few threads (the hash lets other threads run), a queue in front of
them out of which connections that have gone are dropped, and the last right password of each user as a keyed
digest of a few bytes, which is worth nothing outside of this process.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from iotmq.mqtt_front.access.scram import Verifier, is_password_of

_DIGEST_BYTES: Final = 16


class _Check(NamedTuple):
    name: str
    password: bytes
    verifier: Verifier
    is_wanted: Callable[[], bool]
    done: Callable[[bool], None]


class PasswordChecks:
    """The threads, the queue in front of them, and what was right before."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, threads: int, waiting_max: int, verified_max: int
    ) -> None:
        self._loop = loop
        self._threads = threads
        self._waiting_max = waiting_max
        self._verified_max = verified_max
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="iotmq-password")
        self._waiting: deque[_Check] = deque()
        self._running_count = 0
        self._key = secrets.token_bytes(32)
        # User -> digest of the right password; the one that was seen first comes first.
        self._verified: dict[str, bytes] = {}
        self.checked_total = 0
        """Passwords that were hashed."""

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def verified_count(self) -> int:
        return len(self._verified)

    def is_known(self, name: str, password: bytes, verifier: Verifier) -> bool:
        """Return whether the password was right before, and its verifier has not changed since."""
        found = self._verified.get(name)
        return found is not None and hmac.compare_digest(found, self._digest(password, verifier))

    def check(
        self,
        name: str,
        password: bytes,
        verifier: Verifier,
        *,
        is_wanted: Callable[[], bool],
        done: Callable[[bool], None],
    ) -> bool:
        """Have `done` told whether it is the password, unless it is not wanted any more when its turn comes.

        False, and nothing happens, when too many wait.
        """
        if len(self._waiting) >= self._waiting_max:
            return False
        self._waiting.append(_Check(name, password, verifier, is_wanted, done))
        self._begin()
        return True

    def close(self) -> None:
        """Stop answering."""
        self._waiting.clear()
        self._threads = 0
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while self._waiting and self._running_count < self._threads:
            check = self._waiting.popleft()
            if not check.is_wanted():
                continue
            self._running_count += 1
            future = self._loop.run_in_executor(self._pool, is_password_of, check.verifier, check.password)
            future.add_done_callback(partial(self._ended, check))

    def _ended(self, check: _Check, future: asyncio.Future[bool]) -> None:
        self._running_count -= 1
        self.checked_total += 1
        if not self._threads or future.cancelled():
            return
        self._begin()
        is_right = future.result()
        if is_right:
            self._remember(check)
        check.done(is_right)

    def _remember(self, check: _Check) -> None:
        if not self._verified_max:
            return
        self._verified.pop(check.name, None)
        if len(self._verified) >= self._verified_max:
            del self._verified[next(iter(self._verified))]
        self._verified[check.name] = self._digest(check.password, check.verifier)

    def _digest(self, password: bytes, verifier: Verifier) -> bytes:
        """Of this process alone; what is kept of the password is in it, so a change makes it another one."""
        return hashlib.blake2b(
            verifier.stored_key + verifier.salt + password, digest_size=_DIGEST_BYTES, key=self._key
        ).digest()
