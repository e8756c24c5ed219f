"""Users and passwords in a file: passwords at CONNECT, and SCRAM-SHA-256 where MQTT 5 has exchanges."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.metrics import Metric, samples
from iotmq.mqtt.auth.saslprep import saslprep
from iotmq.mqtt.auth.scram import METHOD
from iotmq.mqtt.reason_codes import BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED
from iotmq.mqtt_front.access import scram, users_file
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.kept_passwords import is_password_of, pretended
from iotmq.mqtt_front.access.users_file import UsersFileError
from iotmq.mqtt_front.access.verdicts import (
    NEVER_MINE,
    NOT_MINE,
    Accepted,
    Credentials,
    Denied,
    NotMine,
    Question,
)
from iotmq.mqtt_front.settings.authentication import AuthenticationSettings
from iotmq.mqtt_front.settings.links import UsersLinkSettings
from iotmq.supervised import supervise
from iotmq.watched_file import WatchedFiles

_log: Final = logging.getLogger("iotmq.mqtt")


class UsersLink:
    """Decides by the users in a file, which is read again when it changes."""

    def __init__(self, settings: UsersLinkSettings, common: AuthenticationSettings) -> None:
        """ConfigError when the file is missing or breaks a rule: nobody would be let in, or the wrong."""
        self.name = settings.name
        self._settings = common
        self._denies_unknown = settings.unknown_users == "deny"
        self._path = Path(settings.file or common.users_file)
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
        self._unknown = scram.UnknownUsers(common.unknown_users_secret.encode())
        # The hash lets other threads run.
        self._pool = ThreadPoolExecutor(common.threads, thread_name_prefix="iotmq-password")
        self._reloading: asyncio.Task[None] | None = None
        self._checked_total = 0
        self.reloads_count = 0
        self.failed_reloads_count = 0

    async def start(self) -> None:
        """Begin to look for changes of the file."""
        self._reloading = supervise("reading of users", self._reload_repeatedly)

    async def close(self) -> None:
        """Stop; nobody needs an answer any more."""
        if self._reloading is not None:
            self._reloading.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def told(self, asked: Credentials) -> bytes | None:
        """Return name, password, and what is kept of it: a change of that makes it another question."""
        if asked.user_name is None or asked.token is not None:
            return b""
        name = self._name(asked)
        if name is None or asked.password is None:
            return None
        kept = self._users.kept(name) or ""
        return b"\0".join((name.encode(), kept.encode(), asked.password))

    async def decide(self, asked: Credentials) -> Accepted | Denied | NotMine:
        """Decide by name and password; where unknown names are denied, they take as long as known ones."""
        if asked.user_name is None or asked.token is not None:
            return NEVER_MINE
        name = self._name(asked)
        if name is None or asked.password is None:
            if not self._denies_unknown and (name is None or self._users.kept(name) is None):
                return NOT_MINE
            return Denied(BAD_USER_NAME_OR_PASSWORD, "credentials", "no name and password of a user's form")
        kept = self._users.kept(name)
        if kept is None and not self._denies_unknown:
            return NOT_MINE
        is_right = await asyncio.get_running_loop().run_in_executor(
            self._pool, is_password_of, kept or self._pretended(name), asked.password
        )
        self._checked_total += 1
        if kept is None:
            return Denied(BAD_USER_NAME_OR_PASSWORD, "user", "there is no such user")
        # The file may have changed meanwhile.
        if is_right and self._users.kept(name) == kept:
            return Accepted(Identity(user=sys.intern(name), decided_by=self.name))
        return Denied(BAD_USER_NAME_OR_PASSWORD, "password", "the password is wrong")

    def exchange(self, method: str) -> ScramStep | None:
        """Begin an exchange; None for a method other than SCRAM-SHA-256."""
        return ScramStep(self) if method == METHOD else None

    def metrics(self) -> Iterable[Metric]:
        labels = (("link", self.name),)
        yield from samples(
            ("iotmq_mqtt_users", "Users who may connect with a password.", len(self._users)),
            ("iotmq_mqtt_users_reloads_total", "Times changed users were read.", self.reloads_count),
            (
                "iotmq_mqtt_users_failed_reloads_total",
                "Times changed users could not be used.",
                self.failed_reloads_count,
            ),
            ("iotmq_mqtt_password_checks_total", "Passwords hashed.", self._checked_total),
            labels=labels,
        )

    # The file

    async def _reload_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.reload_interval_s)
            await self.reload()

    async def reload(self) -> None:
        """Read the file again if it changed; one that breaks a rule changes nothing and is counted."""
        try:
            read = partial(users_file.read_users, self._path, former=self._users)
            users = await self._watched.read_changed(read)
        except (OSError, UsersFileError) as error:
            self.failed_reloads_count += 1
            if not isinstance(error, (UsersFileError, FileNotFoundError)):
                # No open file was left, or the machine has to be told who may read it: not the file changes.
                self._watched.forget()
            _log.error(
                "the changed users are not used", extra={"file": str(self._path), "detail": str(error)}
            )
            return
        if users is None:
            return
        self._users = users
        self.reloads_count += 1
        _log.info("users read", extra={"file": str(self._path), "count": len(self._users)})
        users_file.warn_when_open(self._path)

    # What an exchange asks

    def verifier_of(self, name: str) -> scram.Verifier:
        """Return the verifier of a user's password, or a made-up one for a name that has none."""
        found = self._users.verifier(name)
        if found is not None:
            return found
        iterations = self._users.usual_iterations or self._settings.scram_iterations
        return self._unknown.verifier(name, iterations=iterations)

    def is_user(self, name: str) -> bool:
        return self._users.kept(name) is not None

    def _pretended(self, name: str) -> str:
        """Return what no password proves, of the cost that those of most users have."""
        usual = self._users.usual_cost
        return pretended(usual) if usual is not None else str(self.verifier_of(name))

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


class ScramStep:
    """One exchange by SCRAM-SHA-256. It begins with the client's message, for which it asks if it has to."""

    def __init__(self, owner: UsersLink) -> None:
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
                user = sys.intern(self._scram.user)
                return Accepted(Identity(user=user, decided_by=self._owner.name), final)
            if data is None and not self._is_asked:
                self._is_asked = True
                return Question(None)
            return Question(self._scram.first(data or b"", self._owner.verifier_of))
        except scram.ScramError as error:
            name = f" (user {self._scram.user[:64]!a})" if self._scram.user else ""
            return Denied(NOT_AUTHORIZED, "exchange", f"{error}{name}")
