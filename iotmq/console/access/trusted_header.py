"""People whom a proxy has signed in, and names in a header of each request."""

from __future__ import annotations

import hmac
from typing import Final

from iotmq import limits
from iotmq.console.access.named_roles import Person, person_of
from iotmq.console.server.messages import Request
from iotmq.console.settings import HeaderSettings

SECRET_HEADER: Final = "x-iotmq-proxy-secret"


class HeaderRefusedError(Exception):
    """The proxy names somebody who may not be here; the text says why."""


class TrustedHeader:
    """Finds the person whom a named proxy names."""

    def __init__(self, settings: HeaderSettings) -> None:
        self._settings = settings
        self._user = settings.user.lower()
        self._roles = settings.roles.lower()
        self._secret = settings.secret.encode()

    def find(self, request: Request) -> Person | None:
        """Return the person; None without the header, and for requests that no named proxy has sent.

        HeaderRefusedError for somebody without a role here, and for a proxy without the secret.
        """
        if not self._user or not request.proxy or self._user not in request.headers:
            return None
        shown = request.headers.get(SECRET_HEADER, "").encode("latin-1", "replace")
        if not hmac.compare_digest(shown, self._secret):
            raise HeaderRefusedError("the proxy does not send its secret: see http.sign_in.header.secret")
        try:
            name, roles = (
                # Fields of a head are taken as Latin-1, and proxies write UTF-8.
                request.headers.get(header, "").encode("latin-1").decode()
                for header in (self._user, self._roles)
            )
            names = [each.strip() for each in roles.split(",")]
            if len(names) > limits.CONSOLE_FOREIGN_ROLES_MAX:
                raise ValueError(f"it has {len(names)} roles")
            person = person_of(name.strip(), names, self._settings)
        except ValueError as error:
            raise HeaderRefusedError(f"the proxy names nobody: {error}") from None
        if person is None:
            raise HeaderRefusedError("you have no role here: see http.sign_in.header")
        return person
