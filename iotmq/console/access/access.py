"""Everything by which the HTTP port knows who asks: tokens, keys, users, sessions, and the first link."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from iotmq import limits
from iotmq.audit_log import Record, no_audit
from iotmq.clock import Clock
from iotmq.console.access.api_keys import ApiKey, find_key, keys_file
from iotmq.console.access.browser import SessionCookie
from iotmq.console.access.console_sessions import Session, Sessions, Way
from iotmq.console.access.console_users import ConsoleUser, users_file
from iotmq.console.access.first_link import FirstLink
from iotmq.console.access.kept_file import KeptFile
from iotmq.console.access.passwords import Passwords
from iotmq.console.access.tokens import Tokens
from iotmq.console.access.trusted_header import TrustedHeader
from iotmq.console.settings import HttpSettings, OidcSettings
from iotmq.credentials.addresses import network_of
from iotmq.credentials.window_counts import WindowCounts
from iotmq.metrics import Metric, samples, samples_by

if TYPE_CHECKING:
    from iotmq.console.access.oidc import Oidc

logger = logging.getLogger("iotmq.http")

CONSOLE_PATH: Final = "/console/"
_FLOW_S: Final = 600


class Access:
    """The people and programs that may ask. A role: `start` reads the files, and changes of them count."""

    def __init__(self, settings: HttpSettings, directory: Path | None, clock: Clock) -> None:
        """`directory` is the data directory of the process; None where it has none."""
        self.settings = settings.sign_in
        self.open_paths = settings.open_paths
        self._clock = clock
        self.base_path = settings.base_path
        self._has_administrator = any(token.role == "administrator" for token in settings.tokens) or bool(
            (self.settings.oidc.issuer and self.settings.oidc.administrators)
            or (self.settings.header.user and self.settings.header.administrators)
        )
        self.tokens = Tokens(settings.tokens)
        self.cookie = SessionCookie(settings.base_path)
        self.flow_cookie = SessionCookie(settings.base_path, word="iotmq-oidc", lasts_s=_FLOW_S)
        """For the time in which somebody is at the OpenID provider."""
        self.sessions = Sessions(clock, idle_s=self.settings.idle_s, absolute_s=self.settings.session_s)
        self.passwords = Passwords(self.settings, clock)
        self.link = FirstLink(clock)
        self.header = TrustedHeader(self.settings.header)
        self.oidc = _oidc(self.settings.oidc, clock) if self.settings.enabled else None
        path = settings.sign_in.users_path(directory)
        self.users: KeptFile[ConsoleUser] | None = users_file(path) if path else None
        if self.users is not None:
            self.users.on_change = self._users_changed
        path = settings.sign_in.keys_path(directory)
        self.keys: KeptFile[ApiKey] | None = keys_file(path) if path else None
        self.keys_used_ms: dict[str, int] = {}
        """When a key was used last, by its name."""
        self.record: Record = no_audit
        """Notes sign-ins in the audit log; set by what has one."""
        self._sign_ins = {"done": 0, "refused": 0}
        self._refused: WindowCounts[str] = WindowCounts(
            window_s=60.0, names_max=limits.CONSOLE_FAILING_USERS_MAX
        )

    async def start(self) -> None:
        """Read the files."""
        for file in (self.users, self.keys):
            if file is not None:
                await file.start()

    async def stop(self) -> None:
        """Look at no files any more."""
        for file in (self.users, self.keys):
            if file is not None:
                await file.stop()
        self.passwords.close()
        if self.oidc is not None:
            await self.oidc.close()

    def note_sign_in(self, name: str, way: Way, address: str, result: Literal["done", "refused"]) -> None:
        """Count a sign-in, and have it in the audit log; of one that is refused `name` is only a claim.

        Of an address that tries on and on no more is recorded: a flood would cost others their records.
        """
        self._sign_ins[result] += 1
        if result == "refused":
            tried = self._refused.add(network_of(address), self._clock.monotonic_s())
            if tried > 2 * self.settings.failures_per_minute_max:
                return
        fields = f'{{"way":"{way}"}}'
        self.record(
            "administered",
            account=name or None,
            address=address,
            request="sign_in",
            fields=fields,
            result=result,
        )

    def key_of(self, token: str) -> ApiKey | None:
        """Return the API key that a token is, and note its use; None for one that is none."""
        now_ms = self._clock.now_ms()
        key = None if self.keys is None else find_key(self.keys.items, token, now_ms)
        if key is not None:
            self.keys_used_ms[key.name] = now_ms
        return key

    def announce(self, origin: str) -> None:
        """Log the link for the first administrator, unless somebody can be one already."""
        users = self.users
        if users is None or users.items or not users.is_read or self._has_administrator:
            return
        address = f"{origin}{self.base_path}{CONSOLE_PATH}#/sign-in?link={self.link.make()}"
        logger.warning(
            "the console has no users yet: sign in once with this link, or use `iotmq console user add`",
            extra={"link": address},
        )

    def metrics(self) -> Iterable[Metric]:
        """Report sessions and sign-ins."""
        yield from samples(
            ("iotmq_http_sessions", "Browsers in which somebody is signed in.", len(self.sessions))
        )
        yield from samples_by(
            "result", "iotmq_http_sign_ins_total", "Sign-ins at the console.", self._sign_ins
        )
        yield from samples(
            (
                "iotmq_http_failing_addresses_total",
                "Addresses with so many wrong passwords within a minute that they are refused for a while.",
                self.passwords.failing_addresses_total,
            )
        )

    def _users_changed(self) -> None:
        """End the sessions of passwords that do not count any more; roles count at once."""
        assert self.users is not None, "there is a file"
        users = self.users.items
        if users:
            self.link.close()

        def is_over(session: Session) -> bool:
            if session.way != "password":
                return False
            user = users.get(session.name)
            if user is None or user.kept != session.proof:
                return True
            session.role = user.role
            return False

        self.sessions.end_where(is_over)


def _oidc(settings: OidcSettings, clock: Clock) -> Oidc | None:
    """Make the provider, if there is one: what checks its tokens takes 15 MB and 0.1 s."""
    if not settings.issuer:
        return None
    from iotmq.console.access.oidc import Oidc

    return Oidc(settings, clock)
