"""An answer that is returned from its handler when it is there at once, and sent when it comes later."""

from __future__ import annotations

from iotmq.errors import RequestError
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection


class DeferredReply:
    """The answer to one request: the handler returns `now_or_later()`."""

    __slots__ = ("_connection", "_is_late", "_request", "_response")

    def __init__(self, connection: ServerConnection, request: Command) -> None:
        self._connection = connection
        self._request = request
        self._response: Command | None = None
        # True once the handler has returned.
        self._is_late = False

    def answer(self, response: Command) -> None:
        """Give the answer; to be called once."""
        if self._is_late:
            self._connection.reply(response)
        else:
            self._response = response

    def succeed(self) -> None:
        """Answer that it is done, with nothing else."""
        if not self._request.is_oneway:
            self.answer(self._request.reply(ResponseCode.SUCCESS))

    def refuse(self, error: RequestError) -> None:
        """Answer with what cannot be; nobody waits for that of a oneway request."""
        if not self._request.is_oneway:
            self.answer(self._request.reply(error.code, remark=str(error)))

    def now_or_later(self) -> Command | None:
        """Return the answer if there is one already, otherwise None: it will be sent."""
        self._is_late = True
        return self._response
