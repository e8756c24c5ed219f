"""Check the passwords of people: in threads, a bounded number at a time, slower for who guesses."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from iotmq import limits
from iotmq.clock import Clock
from iotmq.console.access.console_users import ConsoleUser, Users, password_bytes
from iotmq.console.settings import SignInSettings
from iotmq.credentials import argon2
from iotmq.credentials.failed_attempts import FailedAttempts
from iotmq.credentials.pace import Pace
from iotmq.credentials.window_counts import WindowCounts
from iotmq.errors import IotmqError

_USER_WINDOW_S: Final = 900.0
_WAIT_S: Final = 5.0


class SignInFailedError(IotmqError):
    """The name or the password is wrong; the text does not tell which."""


class TooManyAttemptsError(IotmqError):
    """The right password would not be looked at now, either."""


class Passwords:
    """Decides by the password of a user."""

    def __init__(self, settings: SignInSettings, clock: Clock) -> None:
        self._clock = clock
        self._of_user_max = settings.failures_of_user_max
        self._of_addresses = FailedAttempts(settings.failures_per_minute_max)
        self._of_users: WindowCounts[str] = WindowCounts(
            window_s=_USER_WINDOW_S, names_max=limits.CONSOLE_FAILING_USERS_MAX
        )
        self._pace = Pace(
            at_once_max=limits.CONSOLE_HASHES_AT_ONCE,
            per_s_max=0,
            waiting_max=limits.CONSOLE_HASHES_WAITING_MAX,
        )
        # Somebody who is not there takes as long as somebody who is.
        self._pretended = argon2.pretended()

    async def check(self, users: Users, name: str, password: str, address: str) -> ConsoleUser:
        """Return the user whose password this is. SignInFailedError or TooManyAttemptsError."""
        name = name[: limits.CONSOLE_USER_NAME_CHARACTERS_MAX + 1]
        self._check_may_try(name, address)
        user = users.get(name)
        is_right = False
        with contextlib.suppress(ValueError):
            data = password_bytes(password)
            await self._turn()
            try:
                # Those that were asked about at the same time may have been wrong.
                self._check_may_try(name, address)
                kept = self._pretended if user is None else user.kept
                is_right = await asyncio.to_thread(argon2.is_password_of, kept, data)
            finally:
                self._pace.done()
        if user is None or not is_right:
            now_s = self._clock.monotonic_s()
            self._of_addresses.add(address, name, now_s)
            self._of_users.add(name, now_s)
            raise SignInFailedError("the name or the password is wrong")
        self._of_addresses.prove(address, name)
        return user

    async def hash(self, password: bytes) -> str:
        """Return what is kept of a new password. TooManyAttemptsError when too many wait."""
        await self._turn()
        try:
            return await asyncio.to_thread(argon2.make, password)
        finally:
            self._pace.done()

    @property
    def failing_addresses_total(self) -> int:
        """Return how often an address had failed so often that it was refused."""
        return self._of_addresses.exceeded_total

    def close(self) -> None:
        """Wake nobody any more."""
        self._pace.close()

    def _check_may_try(self, name: str, address: str) -> None:
        """Raise TooManyAttemptsError for an address or a user with too many wrong passwords."""
        now_s = self._clock.monotonic_s()
        if self._of_addresses.is_exceeded(address, name, now_s):
            raise TooManyAttemptsError("too many wrong passwords; wait for a minute")
        is_locked = self._of_users.count_of(name, now_s) >= self._of_user_max
        if is_locked and not self._of_addresses.is_proven(address, name):
            raise TooManyAttemptsError("too many wrong passwords for this user; wait a quarter of an hour")

    async def _turn(self) -> None:
        try:
            await self._pace.turn(lambda: True, wait_s=_WAIT_S)
        except TimeoutError:
            raise TooManyAttemptsError("too many passwords are being checked; try again") from None
