"""The answer to a request that put something into the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

Respond: TypeAlias = Callable[[Command, StoredBatch], Command]


class StoredReply(DeferredReply):
    """Pass it to the writer as `done` and return `now_or_later()` from the handler.

    `respond` makes the answer when the batch is stored. Without it the answer is a success, also after a slow
    flush: the client must not do it again. `refused()` is called before a refusal is answered.
    """

    __slots__ = ("_refused", "_respond")

    def __init__(
        self,
        connection: ServerConnection,
        request: Command,
        respond: Respond | None = None,
        *,
        refused: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(connection, request)
        self._respond = respond
        self._refused = refused

    def __call__(self, result: StoredBatch | RefusedBatch) -> None:
        if self._request.is_oneway:
            return
        if isinstance(result, RefusedBatch):
            if self._refused is not None:
                self._refused()
            self.answer(self._request.reply(result.code, remark=result.remark))
        elif self._respond is None:
            self.succeed()
        else:
            self.answer(self._respond(self._request, result))

    def now_or_later(self) -> Command | None:
        """Return the answer as DeferredReply does; drop the body, which waiting must not keep alive."""
        response = super().now_or_later()
        if response is None:
            self._request.body = b""
        return response
