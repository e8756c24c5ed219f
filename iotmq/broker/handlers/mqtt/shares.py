"""Shared subscriptions of front ends elsewhere (codes 30062-30065, docs/reference/wire-protocol.md)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.session_store.channel import SessionChannel
from iotmq.broker.session_store.shares import is_share
from iotmq.broker.sessions.requests import Answer, decode_body
from iotmq.broker.sessions.sessions import Sessions
from iotmq.errors import ConnectionClosedError, RefusedError
from iotmq.ports.sessions import ShareJoin, ShareReport
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

# Records in one push; a frame takes twice as much.
_PUSH_BYTES_MAX: Final = 8 * 1024 * 1024
_HANDOUT: Final = struct.Struct(">II")
_WITHDRAWN: Final = struct.Struct(">IQ")

_Joins: TypeAlias = Annotated[list[ShareJoin], Meta(max_length=limits.SHARE_REPORT_MEMBERS_MAX)]
_Reports: TypeAlias = Annotated[list[ShareReport], Meta(max_length=limits.SHARE_REPORT_MEMBERS_MAX)]
_joins = msgspec.msgpack.Decoder(_Joins)
_reports = msgspec.msgpack.Decoder(_Reports)


class RemoteMembers:
    """The members at the front end of a connection (ports.sessions.ShareOutlet)."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._waiting: asyncio.Task[None] | None = None

    @property
    def is_congested(self) -> bool:
        return self._connection.is_congested

    def call_when_drained(self, callback: Callable[[], None]) -> None:
        if self._waiting is None:
            self._waiting = asyncio.ensure_future(self._wait_for_room(callback))

    def hand_out(self, handouts: Sequence[tuple[int, int]], records: Sequence[memoryview]) -> None:
        start = size = 0
        for place, record in enumerate(records):
            if size and size + len(record) > _PUSH_BYTES_MAX:
                self._push(handouts[start:place], records[start:place])
                start, size = place, 0
            size += len(record)
        self._push(handouts[start:], records[start:])

    def withdraw(self, positions: Sequence[tuple[int, int]]) -> None:
        body = b"".join(_WITHDRAWN.pack(member, position) for member, position in positions)
        self._connection.send_oneway(Command.request(RequestCode.WITHDRAW_SHARES, body=body, oneway=True))

    def close(self) -> None:
        """The connection is over."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _push(self, handouts: Sequence[tuple[int, int]], records: Sequence[memoryview]) -> None:
        head = b"".join(_HANDOUT.pack(member, flags) for member, flags in handouts)
        self._connection.send_oneway(
            Command.request(
                RequestCode.HAND_OUT_SHARES,
                {"handoutsBytes": str(len(head))},
                [memoryview(head), *records],
                oneway=True,
            )
        )

    async def _wait_for_room(self, callback: Callable[[], None]) -> None:
        try:
            await self._connection.drain()
        except ConnectionClosedError:
            return
        finally:
            self._waiting = None
        callback()


class ShareHandler(RequestProcessor):
    """Joins and reports. `channel_of(connection)` is the front end's; RequestError without one."""

    def __init__(self, sessions: Sessions, channel_of: Callable[[ServerConnection], SessionChannel]) -> None:
        self._sessions = sessions
        self._channel_of = channel_of

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.JOIN_SHARES: self._join,
            RequestCode.REPORT_SHARES: self._report,
        }

    def _join(self, connection: ServerConnection, request: Command) -> Command | None:
        channel = self._channel_of(connection)
        joins = decode_body(_joins, request)
        for wanted in joins:
            if not is_share(wanted.topic_filter):
                raise RefusedError(f"{wanted.topic_filter[:40]!r} is not $share/GROUP/FILTER")
        answer = Answer(connection, request)
        self._sessions.join_shares(channel, joins, answer.give_encoded)
        return answer.take()

    def _report(self, connection: ServerConnection, request: Command) -> Command:
        reports = decode_body(_reports, request)
        refused = self._sessions.report_shares(self._channel_of(connection), reports)
        if refused is not None:
            return request.reply(refused.code, remark=refused.remark)
        return request.reply(ResponseCode.SUCCESS)
