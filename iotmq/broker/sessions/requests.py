"""Requests about sessions: their bodies, and answers that are there at once or come later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from typing_extensions import Buffer

from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.errors import RefusedError
from iotmq.ports import bodies
from iotmq.ports.sessions import QueueRecords, Refused
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Body, Command

_Body = TypeVar("_Body")


class Answer(DeferredReply):
    """Of what is found or refused."""

    __slots__ = ()

    def give(self, outcome: Refused | Sequence[Buffer], ext: dict[str, str] | None = None) -> None:
        """Answer with the pieces of a body, or refuse."""
        if isinstance(outcome, Refused):
            self.answer(self._request.reply(outcome.code, remark=outcome.remark))
        else:
            body: Body = [memoryview(piece) for piece in outcome]
            self.answer(self._request.reply(ResponseCode.SUCCESS, ext=ext, body=body))

    def give_records(self, found: QueueRecords | Refused) -> None:
        """Answer a read of a light queue."""
        if isinstance(found, Refused):
            self.give(found)
        else:
            is_end = "true" if found.is_end else "false"
            self.give(found.records, {"nextPosition": str(found.next_position), "isEnd": is_end})

    def give_encoded(self, found: object) -> None:
        """Answer with what was found as a body (ports.bodies), or refuse."""
        self.give(found if isinstance(found, Refused) else [bodies.encode(found)])

    def give_done(self, refused: Refused | None) -> None:
        """Answer that it is done, or refuse."""
        self.give(() if refused is None else refused)


def decode_body(decoder: msgspec.msgpack.Decoder[_Body], request: Command) -> _Body:
    """RequestError (1) for a body that is something else."""
    try:
        return decoder.decode(request.body_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(f"the body cannot be read: {error}") from None
