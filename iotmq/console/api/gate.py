"""The gate of the API: who asks, by a token or key, a cookie, or the header of a proxy."""

from __future__ import annotations

from typing import Final

from iotmq.console.access.access import Access
from iotmq.console.access.api_keys import PREFIX
from iotmq.console.access.browser import is_of_other_site
from iotmq.console.access.console_users import RoleName
from iotmq.console.access.tokens import bearer_token
from iotmq.console.access.trusted_header import HeaderRefusedError
from iotmq.console.api.problems import FORBIDDEN, UNAUTHENTICATED, ProblemError
from iotmq.console.api.route import Caller, Role
from iotmq.console.server.messages import Request

ROLES: Final[dict[RoleName, Role]] = {
    "viewer": Role.VIEWER,
    "operator": Role.OPERATOR,
    "administrator": Role.ADMINISTRATOR,
}


class Gate:
    """Knows callers by what they show, in this order: a token or key, which is the end when it is wrong, the
    cookie of a session, and the header of a named proxy."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def caller(self, request: Request) -> Caller:
        """Return who asks. ProblemError for who shows nothing that counts."""
        if "authorization" in request.headers:
            return self._by_token(request)
        found = self._by_cookie(request) or self._by_header(request)
        if found is None:
            raise ProblemError(
                UNAUTHENTICATED, "sign in, or show a token with a role: Authorization: Bearer TOKEN"
            )
        # What a browser adds by itself counts only where it says that a page of ours has asked.
        if is_of_other_site(request, may_be_silent=False):
            raise ProblemError(FORBIDDEN, "a page of another site has asked, or a program without an Origin")
        return found

    def anybody(self, request: Request) -> Caller:
        """Return who asks for what is open. ProblemError when a page of another site asks."""
        if request.method != "GET" and is_of_other_site(request, may_be_silent=True):
            raise ProblemError(FORBIDDEN, "a page of another site has asked")
        return Caller("nobody", Role.VIEWER, request.peer, None)

    def _by_token(self, request: Request) -> Caller:
        tokens = self._access.tokens
        token = tokens.known(request)
        if token is None:
            shown = bearer_token(request)
            if shown is not None and shown.startswith(PREFIX):
                return self._by_key(shown, request)
            token = tokens.find(request)
        if token is None:
            raise ProblemError(
                UNAUTHENTICATED, "the header Authorization has neither a token of http.tokens nor a key"
            )
        if token.role == "metrics":
            raise ProblemError(
                FORBIDDEN, f"the token {token.name} is for metrics: set the role of it in http.tokens"
            )
        return Caller(token.name, ROLES[token.role], request.peer)

    def _by_key(self, shown: str, request: Request) -> Caller:
        key = self._access.key_of(shown)
        if key is None:
            raise ProblemError(UNAUTHENTICATED, "there is no such key, or it has expired")
        return Caller(key.name, ROLES[key.role], request.peer, "key", scopes=key.areas)

    def _by_header(self, request: Request) -> Caller | None:
        if not self._access.settings.enabled:
            return None
        try:
            person = self._access.header.find(request)
        except HeaderRefusedError as error:
            raise ProblemError(FORBIDDEN, str(error)) from None
        return None if person is None else Caller(person.name, ROLES[person.role], request.peer, "header")

    def _by_cookie(self, request: Request) -> Caller | None:
        token = self._access.cookie.token(request)
        session = None if token is None else self._access.sessions.find(token)
        if session is None:
            return None
        return Caller(session.name, ROLES[session.role], request.peer, session.way, session)
