"""The answer to a request that put something into the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from iotmq.broker.intake import IntakeError, StoredBatch
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

Respond: TypeAlias = Callable[[Command, StoredBatch | IntakeError], Command]


class IntakeAnswer:
    """Pass it to the intake as `done` and return `take()` from the handler.

    The answer is then returned when the intake is done at once, and sent when it is done later.
    """

    __slots__ = ("_connection", "_is_late", "_request", "_respond", "_response")

    def __init__(self, connection: ServerConnection, request: Command, respond: Respond) -> None:
        self._connection = connection
        self._request = request
        self._respond = respond
        self._response: Command | None = None
        # True once the handler has returned.
        self._is_late = False

    def __call__(self, result: StoredBatch | IntakeError) -> None:
        request = self._request
        if request.is_oneway:
            return
        response = self._respond(request, result)
        if self._is_late:
            self._connection.reply(response)
        else:
            self._response = response

    def take(self) -> Command | None:
        """The answer if there is one already, otherwise None: it will be sent."""
        self._is_late = True
        if self._response is None:
            # What waits for a flush must not keep what was received alive.
            self._request.body = b""
        return self._response
