"""Requests about sessions: their bodies, and answers that are there at once or come later."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.errors import RefusedError
from iotmq.ports import bodies
from iotmq.ports.sessions import QueueRecords, Refused
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command

_Body = TypeVar("_Body")


class Answer(DeferredReply):
    """Of what is found or refused."""

    __slots__ = ()

    def give(self, outcome: Refused | bytes) -> None:
        """Answer with a body, or refuse."""
        if isinstance(outcome, Refused):
            self.answer(self._request.reply(outcome.code, remark=outcome.remark))
        else:
            self.answer(self._request.reply(ResponseCode.SUCCESS, body=outcome))

    def give_records(self, found: QueueRecords) -> None:
        """Answer a read of a light queue."""
        self.answer(
            self._request.reply(
                ResponseCode.SUCCESS,
                ext={"nextPosition": str(found.next_position), "isEnd": "true" if found.is_end else "false"},
                body=[memoryview(record) for record in found.records],
            )
        )

    def give_encoded(self, found: object) -> None:
        """Answer with what was found as a body (ports.bodies), or refuse."""
        self.give(found if isinstance(found, Refused) else bodies.encode(found))

    def give_done(self, refused: Refused | None) -> None:
        """Answer that it is done, or refuse."""
        self.give(b"" if refused is None else refused)


def decode_body(decoder: msgspec.msgpack.Decoder[_Body], request: Command) -> _Body:
    """RequestError (1) for a body that is something else."""
    try:
        return decoder.decode(request.body_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(f"the body cannot be read: {error}") from None
