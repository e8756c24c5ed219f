"""The answer to a request that put something into the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

Respond: TypeAlias = Callable[[Command, StoredBatch | RefusedBatch], Command]


class StoredReply(DeferredReply):
    """Pass it to the writer as `done` and return `take()` from the handler."""

    __slots__ = ("_respond",)

    def __init__(self, connection: ServerConnection, request: Command, respond: Respond) -> None:
        super().__init__(connection, request)
        self._respond = respond

    def __call__(self, result: StoredBatch | RefusedBatch) -> None:
        if not self._request.is_oneway:
            self.answer(self._respond(self._request, result))

    def take(self) -> Command | None:
        """Return the answer as DeferredReply does; drop the body, which waiting must not keep alive."""
        response = super().take()
        if response is None:
            self._request.body = b""
        return response
