"""The gate of the API: a token with a role."""

from __future__ import annotations

from typing import Final

from iotmq.console.access.tokens import Tokens
from iotmq.console.api.problems import FORBIDDEN, UNAUTHENTICATED, ProblemError
from iotmq.console.api.route import Caller, Role
from iotmq.console.server.messages import Request

_ROLES: Final = {"viewer": Role.VIEWER, "operator": Role.OPERATOR, "administrator": Role.ADMINISTRATOR}


class TokenGate:
    """Knows callers by the tokens of the settings. A page of another site has none to show."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def caller(self, request: Request) -> Caller:
        """Return who asks. ProblemError for who shows no token, or one that is for metrics only."""
        token = self._tokens.find(request)
        if token is None:
            raise ProblemError(
                UNAUTHENTICATED,
                "show a token of the settings (http.tokens, with a role): Authorization: Bearer TOKEN",
            )
        role = _ROLES.get(token.role)
        if role is None:
            raise ProblemError(
                FORBIDDEN, f"the token {token.name} is for metrics: set the role of it in http.tokens"
            )
        return Caller(token.name, role, request.peer)
