"""Exclusive subscriptions of front ends in other processes (code 30066, docs/reference/wire-protocol.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.session_store.channel import SessionChannel
from iotmq.broker.sessions.requests import Answer, decode_body
from iotmq.broker.sessions.sessions import Sessions
from iotmq.errors import RefusedError
from iotmq.mqtt.topics.topics import is_shared, is_valid_filter
from iotmq.ports.sessions import ExclusiveClaim
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

_claim = msgspec.msgpack.Decoder(ExclusiveClaim)


class ExclusiveHandler(RequestProcessor):
    """A request processor. `channel_of(connection)` is the front end's, or raises RequestError."""

    def __init__(self, sessions: Sessions, channel_of: Callable[[ServerConnection], SessionChannel]) -> None:
        self._sessions = sessions
        self._channel_of = channel_of

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.CLAIM_EXCLUSIVE: self._take}

    def _take(self, connection: ServerConnection, request: Command) -> Command | None:
        channel = self._channel_of(connection)
        wanted = decode_body(_claim, request)
        for topic_filter in wanted.filters:
            if not is_valid_filter(topic_filter) or is_shared(topic_filter):
                raise RefusedError(f"{topic_filter[:40]!r} is not a topic filter")
        answer = Answer(connection, request)
        self._sessions.claim_exclusive(channel, wanted, answer.give_encoded)
        return answer.take()
