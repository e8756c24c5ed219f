"""Push to front ends in other processes: records of light queues, messages of groups, and orders."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from typing_extensions import Buffer

from iotmq import limits
from iotmq.broker.light_queues.queued_push import gather_queued
from iotmq.broker.session_store.channel import SessionChannel
from iotmq.errors import ConnectionClosedError, RefusedError, RequestError, RequestTimeoutError
from iotmq.ports import bodies
from iotmq.ports.inspections import InspectionDone
from iotmq.ports.sessions import DrainOrder
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Body, Command
from iotmq.remoting.server import ServerConnection

# Records in one push; a frame takes twice as much.
_PUSH_BYTES_MAX: Final = 8 * 1024 * 1024
_HANDOUT: Final = struct.Struct(">II")
_WITHDRAWN: Final = struct.Struct(">IQ")
# A front end gives up after 5 s itself.
_INSPECTION_S: Final = 7.0


class PushCounts(Protocol):
    """Count what was pushed over all connections, and what was not."""

    pushed_bytes: int
    missed_pushes: int


class _Pusher:
    """Sends to one connection, and calls back once when it takes again what it is sent."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self._waiting: asyncio.Task[None] | None = None

    @property
    def is_congested(self) -> bool:
        return self.connection.is_congested

    def call_when_drained(self, callback: Callable[[], None]) -> None:
        if self._waiting is None:
            self._waiting = asyncio.ensure_future(self._wait_for_room(callback))

    def close(self) -> None:
        """The connection is over."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _push(self, code: int, ext: Mapping[str, str] | None = None, body: Body = b"") -> None:
        self.connection.send_oneway(Command.request(code, ext, body, oneway=True))

    async def _wait_for_room(self, callback: Callable[[], None]) -> None:
        try:
            await self.connection.drain()
        except ConnectionClosedError:
            return
        finally:
            self._waiting = None
        callback()


class RemoteMembers(_Pusher):
    """The members of shared subscriptions at the front end of a connection (ports.sessions.ShareOutlet)."""

    def hand_out(self, handouts: Sequence[tuple[int, int]], records: Sequence[memoryview]) -> None:
        start = size = 0
        for place, record in enumerate(records):
            if size and size + len(record) > _PUSH_BYTES_MAX:
                self._hand_out(handouts[start:place], records[start:place])
                start, size = place, 0
            size += len(record)
        self._hand_out(handouts[start:], records[start:])

    def withdraw(self, positions: Sequence[tuple[int, int]]) -> None:
        body = b"".join(_WITHDRAWN.pack(member, position) for member, position in positions)
        self._push(RequestCode.WITHDRAW_SHARES, body=body)

    def _hand_out(self, handouts: Sequence[tuple[int, int]], records: Sequence[memoryview]) -> None:
        head = b"".join(_HANDOUT.pack(member, flags) for member, flags in handouts)
        ext = {"handoutsBytes": str(len(head))}
        self._push(RequestCode.HAND_OUT_SHARES, ext, [memoryview(head), *records])


class FrontEndLink(_Pusher):
    """The connection of one front end (ports.sessions.SessionReceiver).

    While the front end does not take what it is sent, nothing is pushed, but the queues are remembered whose
    records it misses; it is told of them before anything else is pushed.
    """

    def __init__(self, connection: ServerConnection, counts: PushCounts, name: str, token: str) -> None:
        super().__init__(connection)
        self.name = name
        self.token = token
        # Set right after this was made.
        self.channel: SessionChannel | None = None
        self.members = RemoteMembers(connection)
        self._counts = counts
        self._missed: set[int] = set()
        self._has_missed_all = False

    def close(self) -> None:
        self.members.close()
        super().close()

    def deliver_queued(self, records: Buffer, pushes: Buffer) -> None:
        if self.is_congested:
            self._remember(pushes)
            return
        self._tell_missed()
        at, end = 0, len(memoryview(pushes))
        while at < end:
            wanted, places, at = gather_queued(records, pushes, at, _PUSH_BYTES_MAX)
            self._counts.pushed_bytes += len(wanted)
            ext = {"pushesBytes": str(len(places))}
            self._push(RequestCode.DELIVER_QUEUED, ext, [memoryview(places), memoryview(wanted)])

    def missed(self, queue_ids: Sequence[int]) -> None:
        self._missed.update(queue_ids)
        self._tell_missed()

    def fenced(self, client_id: str, epoch: int, reason: str) -> None:
        self._push(RequestCode.FENCE_SESSION, body=bodies.encode(bodies.FencedBody(client_id, epoch, reason)))

    def drain(self, order: DrainOrder) -> None:
        self._push(RequestCode.ORDER_DRAIN, body=bodies.encode(order))

    def inspect(self, name: str, body: bytes, done: InspectionDone) -> None:
        command = Command.request(RequestCode.INSPECT_FRONT_END, {"name": name}, body)
        asked = self.connection.request(command, timeout_s=_INSPECTION_S)
        asked.add_done_callback(lambda future: done(self._inspected(future)))

    def _inspected(self, answer: asyncio.Future[Command]) -> bytes | RequestError:
        try:
            response = answer.result()
        except RequestTimeoutError:
            return RequestError(
                ResponseCode.CONSUME_MESSAGE_TIMEOUT,
                f"the front end {self.name} did not answer within {_INSPECTION_S:g} s",
            )
        except (ConnectionClosedError, asyncio.CancelledError):
            return RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the front end {self.name} left before it answered"
            )
        if response.code == ResponseCode.SUCCESS:
            return response.body_bytes()
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return RefusedError(f"the front end {self.name} is of an older version, which answers nothing")
        return RequestError(response.code, response.remark or "")

    def _remember(self, pushes: Buffer) -> None:
        self._counts.missed_pushes += 1
        if not self._has_missed_all:
            view = memoryview(pushes)
            for at in range(4, len(view), 8):
                self._missed.add(int.from_bytes(view[at : at + 4], "big"))
            if len(self._missed) > limits.MISSED_QUEUES_MAX:
                self._missed.clear()
                self._has_missed_all = True
        self.call_when_drained(self._tell_missed)

    def _tell_missed(self) -> None:
        if not self._missed and not self._has_missed_all:
            return
        body = b"".join(queue_id.to_bytes(4, "big") for queue_id in sorted(self._missed))
        self._push(RequestCode.MISSED_QUEUES, {"isAll": "true" if self._has_missed_all else "false"}, body)
        self._missed.clear()
        self._has_missed_all = False
