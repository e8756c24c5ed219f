"""Authentication by a file of users: passwords at CONNECT, and SCRAM-SHA-256 where MQTT 5 has exchanges."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.metrics import Metric, samples
from iotmq.mqtt.auth.saslprep import saslprep
from iotmq.mqtt.auth.scram import METHOD
from iotmq.mqtt.reason_codes import BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED, SERVER_BUSY
from iotmq.mqtt_front.access import scram, users_file
from iotmq.mqtt_front.access.password_checks import PasswordChecks
from iotmq.mqtt_front.access.users_file import UsersFileError
from iotmq.mqtt_front.access.verdicts import Accepted, Credentials, Denied, Question
from iotmq.mqtt_front.settings.authentication import AuthenticationSettings
from iotmq.supervised import supervise
from iotmq.watched_file import WatchedFiles

_log: Final = logging.getLogger("iotmq.mqtt")


class FileAuthenticator:
    """Decides by the users in a file, which is read again when it changes. On the loop."""

    methods: Final = (METHOD,)

    def __init__(self, settings: AuthenticationSettings, loop: asyncio.AbstractEventLoop) -> None:
        """ConfigError when the file is missing or breaks a rule: nobody would be let in, or the wrong."""
        self._settings = settings
        self._path = Path(settings.users_file)
        self._watched = WatchedFiles(self._path)
        try:
            self._users = users_file.read_users(self._path)
        except FileNotFoundError:
            raise ConfigError(
                f"mqtt.authentication.users_file is {self._path}, which is not there: "
                f"iotmq users add NAME --file {self._path} makes it"
            ) from None
        except (OSError, UsersFileError) as error:
            raise ConfigError(f"the users in {self._path} cannot be used: {error}") from error
        users_file.warn_when_open(self._path)
        self._unknown = scram.UnknownUsers(settings.unknown_users_secret.encode())
        self._checks = PasswordChecks(
            loop,
            threads=settings.threads,
            waiting_max=settings.waiting_max,
            verified_max=settings.verified_max,
        )
        self._reloading: asyncio.Task[None] | None = None
        self.reloads_count = 0
        self.failed_reloads_count = 0

    def start(self) -> None:
        """Begin to look for changes of the file."""
        self._reloading = supervise("reading of users", self._reload_repeatedly)

    def close(self) -> None:
        """Stop; nobody needs an answer any more."""
        if self._reloading is not None:
            self._reloading.cancel()
        self._checks.close()

    def known(self, asked: Credentials) -> Accepted | None:
        """Return the answer when it costs no hashing, because the same password was right before."""
        name = self._name(asked)
        verifier = None if name is None else self._users.verifier(name)
        if name is None or verifier is None or asked.password is None:
            return None
        return Accepted(sys.intern(name)) if self._checks.is_known(name, asked.password, verifier) else None

    def authenticate(
        self,
        asked: Credentials,
        *,
        is_wanted: Callable[[], bool],
        done: Callable[[Accepted | Denied], None],
    ) -> None:
        """Call `done` once, at once or later, unless `is_wanted` has become false.

        An unknown name takes as long as a known one.
        """
        name = self._name(asked)
        if name is None or asked.password is None:
            done(Denied(BAD_USER_NAME_OR_PASSWORD, "credentials", "no name and password of a user's form"))
            return
        is_begun = self._checks.check(
            name,
            asked.password,
            self.verifier_of(name),
            is_wanted=is_wanted,
            done=partial(self._checked, name, self._users.kept(name), done),
        )
        if not is_begun:
            detail = f"mqtt.authentication.waiting_max is {self._settings.waiting_max}"
            done(Denied(SERVER_BUSY, "busy", detail))

    def exchange(self) -> Exchange:
        """Begin an exchange by the one method there is."""
        return Exchange(self)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_mqtt_users", "Users who may connect with a password.", len(self._users)),
            ("iotmq_mqtt_users_reloads_total", "Times changed users were read.", self.reloads_count),
            (
                "iotmq_mqtt_users_failed_reloads_total",
                "Times changed users could not be used.",
                self.failed_reloads_count,
            ),
            ("iotmq_mqtt_password_checks_total", "Passwords hashed.", self._checks.checked_total),
            (
                "iotmq_mqtt_password_checks_waiting",
                "Devices that wait for their password to be hashed.",
                self._checks.waiting_count,
            ),
            (
                "iotmq_mqtt_passwords_remembered",
                "Users whose last right password is known without hashing.",
                self._checks.verified_count,
            ),
        )

    # The file

    async def _reload_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.reload_interval_s)
            await self.reload()

    async def reload(self) -> None:
        """Read the file again if it changed; one that breaks a rule changes nothing and is counted."""
        if not await self._watched.have_changed():
            return
        try:
            self._users = await asyncio.to_thread(users_file.read_users, self._path, former=self._users)
        except (OSError, UsersFileError) as error:
            self.failed_reloads_count += 1
            if not isinstance(error, (UsersFileError, FileNotFoundError)):
                # No open file was left, or the machine has to be told who may read it: not the file changes.
                self._watched.forget()
            _log.error(
                "the changed users are not used", extra={"file": str(self._path), "detail": str(error)}
            )
            return
        self.reloads_count += 1
        _log.info("users read", extra={"file": str(self._path), "count": len(self._users)})
        users_file.warn_when_open(self._path)

    # What an exchange asks

    def verifier_of(self, name: str) -> scram.Verifier:
        """Return the verifier of a user's password, or a made-up one for an unknown name."""
        found = self._users.verifier(name)
        if found is not None:
            return found
        iterations = self._users.usual_iterations or self._settings.scram_iterations
        return self._unknown.verifier(name, iterations=iterations)

    def is_user(self, name: str) -> bool:
        return self._users.kept(name) is not None

    def _name(self, asked: Credentials) -> str | None:
        """Return the name to look for; None when no user could have it, or nobody the password."""
        if asked.user_name is None or asked.password is None or not scram.can_be_password(asked.password):
            return None
        if not 0 < len(asked.user_name.encode()) <= limits.MQTT_USER_NAME_BYTES_MAX:
            return None
        try:
            return saslprep(asked.user_name, allows_unassigned=True)
        except ValueError:
            return None

    def _checked(
        self, name: str, kept: str | None, done: Callable[[Accepted | Denied], None], is_right: bool
    ) -> None:
        # The file may have changed meanwhile.
        if is_right and kept is not None and self._users.kept(name) == kept:
            done(Accepted(sys.intern(name)))
        elif kept is None:
            done(Denied(BAD_USER_NAME_OR_PASSWORD, "user", "there is no such user"))
        else:
            done(Denied(BAD_USER_NAME_OR_PASSWORD, "password", "the password is wrong"))


class Exchange:
    """One exchange by SCRAM-SHA-256. It begins with the client's message, for which it asks if it has to."""

    def __init__(self, owner: FileAuthenticator) -> None:
        self._owner = owner
        self._scram = scram.ScramExchange()
        self._is_asked = False

    def step(self, data: bytes | None) -> Question | Accepted | Denied:
        """Take the data of the device's CONNECT or AUTH."""
        try:
            if self._scram.user is not None:
                final = self._scram.final(data or b"")
                if not self._owner.is_user(self._scram.user):
                    raise scram.ScramError("there is no such user any more")
                return Accepted(sys.intern(self._scram.user), final)
            if data is None and not self._is_asked:
                self._is_asked = True
                return Question(None)
            return Question(self._scram.first(data or b"", self._owner.verifier_of))
        except scram.ScramError as error:
            name = f" (user {self._scram.user[:64]!a})" if self._scram.user else ""
            return Denied(NOT_AUTHORIZED, "exchange", f"{error}{name}")
