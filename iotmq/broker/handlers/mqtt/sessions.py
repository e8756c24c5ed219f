"""Sessions of MQTT front ends in other processes (codes 30050-30061, docs/reference/wire-protocol.md)."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from typing_extensions import Buffer

from iotmq import limits
from iotmq.broker.delivery.retained_reads import RetainedReads
from iotmq.broker.handlers.mqtt.shares import RemoteMembers
from iotmq.broker.light_queues.queued_push import gather_queued
from iotmq.broker.replies.request_table import Handler
from iotmq.broker.session_store.channel import SessionChannel
from iotmq.broker.session_store.shares import is_share
from iotmq.broker.sessions.requests import Answer, decode_body
from iotmq.broker.sessions.sessions import Sessions
from iotmq.broker.writing.message_writer import MessageWriter
from iotmq.errors import ConnectionClosedError, RefusedError, RequestError
from iotmq.metrics import Metric, samples
from iotmq.mqtt.topics.topics import is_shared, is_valid_filter
from iotmq.ports import bodies
from iotmq.ports.sessions import (
    CloseRequest,
    DrainOrder,
    OpenRequest,
    QueueRead,
    QueueRecords,
    Refused,
    RetainedRead,
    RetainedRecords,
    SubscribeRequest,
    UnsubscribeRequest,
    Will,
)
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

logger = logging.getLogger(__name__)

# Records in one push; a frame takes twice as much.
_PUSH_BYTES_MAX: Final = 8 * 1024 * 1024

_open = msgspec.msgpack.Decoder(OpenRequest)
_subscribe = msgspec.msgpack.Decoder(SubscribeRequest)
_unsubscribe = msgspec.msgpack.Decoder(UnsubscribeRequest)
_progress = msgspec.msgpack.Decoder(bodies.ProgressBody)
_close = msgspec.msgpack.Decoder(CloseRequest)
_claims = msgspec.msgpack.Decoder(bodies.ClaimsBody)


class _FrontEnd:
    """The connection of one front end (ports.sessions.SessionReceiver).

    While the front end does not take what it is sent, nothing is pushed, but the queues are remembered whose
    records it misses; it is told of them before anything else is pushed.
    """

    def __init__(self, connection: ServerConnection, handler: SessionHandler, name: str, token: str) -> None:
        self.connection = connection
        self.name = name
        self.token = token
        # Set right after this was made.
        self.channel: SessionChannel | None = None
        self._handler = handler
        self._missed: set[int] = set()
        self._has_missed_all = False
        self._waiting: asyncio.Task[None] | None = None
        self.members = RemoteMembers(connection)

    def close(self) -> None:
        """The connection is over."""
        self.members.close()
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def deliver_queued(self, records: Buffer, pushes: Buffer) -> None:
        if self.connection.is_congested:
            self._remember(pushes)
            return
        self._tell_missed()
        at, end = 0, len(memoryview(pushes))
        while at < end:
            wanted, places, at = gather_queued(records, pushes, at, _PUSH_BYTES_MAX)
            self._handler.pushed_bytes += len(wanted)
            self.connection.send_oneway(
                Command.request(
                    RequestCode.DELIVER_QUEUED,
                    {"pushesBytes": str(len(places))},
                    [memoryview(places), memoryview(wanted)],
                    oneway=True,
                )
            )

    def missed(self, queue_ids: Sequence[int]) -> None:
        self._missed.update(queue_ids)
        self._tell_missed()

    def fenced(self, client_id: str, epoch: int, reason: str) -> None:
        body = bodies.encode(bodies.FencedBody(client_id, epoch, reason))
        self.connection.send_oneway(Command.request(RequestCode.FENCE_SESSION, body=body, oneway=True))

    def drain(self, order: DrainOrder) -> None:
        body = bodies.encode(order)
        self.connection.send_oneway(Command.request(RequestCode.ORDER_DRAIN, body=body, oneway=True))

    def _remember(self, pushes: Buffer) -> None:
        self._handler.missed_pushes += 1
        if not self._has_missed_all:
            view = memoryview(pushes)
            for at in range(4, len(view), 8):
                self._missed.add(int.from_bytes(view[at : at + 4], "big"))
            if len(self._missed) > limits.MISSED_QUEUES_MAX:
                self._missed.clear()
                self._has_missed_all = True
        if self._waiting is None:
            self._waiting = asyncio.ensure_future(self._wait_for_room())

    async def _wait_for_room(self) -> None:
        try:
            await self.connection.drain()
        except ConnectionClosedError:
            return
        finally:
            self._waiting = None
        self._tell_missed()

    def _tell_missed(self) -> None:
        if not self._missed and not self._has_missed_all:
            return
        body = b"".join(queue_id.to_bytes(4, "big") for queue_id in sorted(self._missed))
        self.connection.send_oneway(
            Command.request(
                RequestCode.MISSED_QUEUES,
                {"isAll": "true" if self._has_missed_all else "false"},
                body,
                oneway=True,
            )
        )
        self._missed.clear()
        self._has_missed_all = False


class SessionHandler:
    """Serves front ends in other processes what `session_gateway.LocalSessions` serves the one in this.

    A connection is a front end's once it has introduced itself, and for as long as it lives.
    """

    def __init__(self, sessions: Sessions, retained: RetainedReads, writer: MessageWriter) -> None:
        self._sessions = sessions
        self._retained = retained
        self._writer = writer
        self._front_ends: dict[ServerConnection, _FrontEnd] = {}
        self._by_name: dict[str, _FrontEnd] = {}
        self.pushed_bytes = 0
        # Pushes not sent because the front end did not take the ones before.
        self.missed_pushes = 0

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.INTRODUCE_FRONT_END: self._introduce,
            RequestCode.OPEN_SESSION: self._open_session,
            RequestCode.SUBSCRIBE_SESSION: self._subscribe,
            RequestCode.UNSUBSCRIBE_SESSION: self._unsubscribe,
            RequestCode.REPORT_PROGRESS: self._report_progress,
            RequestCode.CLOSE_SESSION: self._close_session,
            RequestCode.READ_LIGHT_QUEUE: self._read_queue,
            RequestCode.READ_RETAINED: self._read_retained,
            RequestCode.CLAIM_SESSIONS: self._claim,
        }

    def connection_lost(self, connection: ServerConnection) -> None:
        front_end = self._front_ends.pop(connection, None)
        if front_end is not None:
            self._drop(front_end)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            (
                "iotmq_broker_session_front_ends",
                "Front ends in other processes that have sessions here.",
                len(self._front_ends),
            ),
            (
                "iotmq_broker_queued_pushed_bytes_total",
                "Bytes of records of light queues pushed to front ends in other processes.",
                self.pushed_bytes,
            ),
            (
                "iotmq_broker_missed_pushes_total",
                "Pushes of light queues not sent because a front end did not take those before; it reads "
                "them.",
                self.missed_pushes,
            ),
        )

    # Front ends

    def _introduce(self, connection: ServerConnection, request: Command) -> Command:
        name = request.text("name")
        token = request.text("token")
        for field, value in (("name", name), ("token", token)):
            if not 0 < len(value.encode("utf-8", "surrogatepass")) <= limits.FRONT_END_NAME_BYTES_MAX:
                raise RefusedError(
                    f"the field {field} must have 1 to {limits.FRONT_END_NAME_BYTES_MAX} bytes"
                )
        is_draining = request.boolean("isDraining", False)
        known = self._front_ends.get(connection)
        if known is not None:
            if (known.name, known.token) != (name, token):
                raise RefusedError(f"this connection is the front end {known.name} already")
            assert known.channel is not None
            known.channel.is_draining = is_draining
            return request.reply(ResponseCode.SUCCESS)
        former = self._by_name.get(name)
        if former is not None:
            if former.token != token:
                raise RequestError(
                    ResponseCode.NO_PERMISSION,
                    f"another front end named {name} is connected from {former.connection.peer[0]}; "
                    "give each its own mqtt.name",
                )
            # It came back before this side saw the end of its connection.
            del self._front_ends[former.connection]
            self._drop(former)
            former.connection.abort("replaced")
        front_end = _FrontEnd(connection, self, name, token)
        front_end.channel = self._sessions.open_channel(name, front_end, front_end.members)
        front_end.channel.is_draining = is_draining
        self._front_ends[connection] = self._by_name[name] = front_end
        return request.reply(ResponseCode.SUCCESS)

    def _drop(self, front_end: _FrontEnd) -> None:
        del self._by_name[front_end.name]
        front_end.close()
        # They refer to each other.
        channel, front_end.channel = front_end.channel, None
        assert channel is not None
        self._sessions.close_channel(channel)

    def channel_of(self, connection: ServerConnection) -> SessionChannel:
        """Return the front end's; RequestError when the connection has introduced none."""
        front_end = self._front_ends.get(connection)
        if front_end is None or front_end.channel is None:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"sessions are for front ends, which send {RequestCode.INTRODUCE_FRONT_END} first",
            )
        return front_end.channel

    def _claim(self, connection: ServerConnection, request: Command) -> Command:
        channel = self.channel_of(connection)
        claims = decode_body(_claims, request)
        wills = [self._own_will(claim.will) for claim in claims]
        lost = []
        for claim, will in zip(claims, wills, strict=True):
            if not self._sessions.claim(channel, claim.client_id, claim.epoch, will):
                lost.append(claim.client_id)
            elif claim.epoch >= 0 and claim.queues != bodies.queues_checksum(
                self._sessions.queues_of(claim.client_id)
            ):
                # An answer got lost, or the queues were made again: the client comes anew and learns of it.
                channel.receiver.fenced(claim.client_id, claim.epoch, "its queues have changed")
        return request.reply(ResponseCode.SUCCESS, body=bodies.encode(lost))

    # Sessions

    def _open_session(self, connection: ServerConnection, request: Command) -> Command | None:
        channel = self.channel_of(connection)
        body = decode_body(_open, request)
        answer = Answer(connection, request)
        self._sessions.open_session(
            channel, msgspec.structs.replace(body, will=self._own_will(body.will)), answer.give_encoded
        )
        return answer.take()

    def _subscribe(self, connection: ServerConnection, request: Command) -> Command | None:
        channel = self.channel_of(connection)
        body = decode_body(_subscribe, request)
        for topic_filter, _ in body.subscriptions:
            _check_filter(topic_filter)
        answer = Answer(connection, request)
        self._sessions.subscribe(channel, body, answer.give_encoded)
        return answer.take()

    def _unsubscribe(self, connection: ServerConnection, request: Command) -> Command | None:
        channel = self.channel_of(connection)
        body = decode_body(_unsubscribe, request)
        answer = Answer(connection, request)
        self._sessions.unsubscribe(channel, body, answer.give_done)
        return answer.take()

    def _report_progress(self, connection: ServerConnection, request: Command) -> Command | None:
        channel = self.channel_of(connection)
        changes = decode_body(_progress, request)
        unsound = next((change for change in changes if not bodies.is_sound_progress(change)), None)
        if unsound is None:
            answer = Answer(connection, request)
            self._sessions.progress(channel, changes, answer.give_done)
            return answer.take()
        # What the others say is stored; the front end tells each alone when it hears of a refusal.
        sound = [change for change in changes if bodies.is_sound_progress(change)]
        self._sessions.progress(channel, sound, lambda refused: None)
        raise RefusedError(f"the progress of the client {unsound.client_id[:40]!r} has impossible numbers")

    def _close_session(self, connection: ServerConnection, request: Command) -> Command:
        channel = self.channel_of(connection)
        self._sessions.close_session(channel, decode_body(_close, request))
        return request.reply(ResponseCode.SUCCESS)

    # What they have to get

    def _read_queue(self, connection: ServerConnection, request: Command) -> Command | None:
        self.channel_of(connection)
        queue_id = request.integer("queueId", minimum=0, maximum=(1 << 32) - 1)
        answer = Answer(connection, request)

        def found(result: QueueRecords | Refused) -> None:
            if isinstance(result, Refused):
                answer.give(result)
            else:
                answer.give_records(result)

        self._sessions.read_queue(
            QueueRead(
                queue_id=queue_id,
                position=request.integer("position", minimum=0),
                records_max=_records_max(request),
                bytes_max=_bytes_max(request),
                client_id=request.text("clientId", ""),
            ),
            found,
        )
        return answer.take()

    def _read_retained(self, connection: ServerConnection, request: Command) -> Command | None:
        self.channel_of(connection)
        topic_filter = request.text("filter")
        _check_filter(topic_filter)
        after = request.text("after", "")
        answer = Answer(connection, request)

        def found(page: RetainedRecords | Refused) -> None:
            if isinstance(page, Refused):
                answer.give(page)
                return
            ext = {} if page.after is None else {"after": _encode_place(page.after)}
            response = request.reply(
                ResponseCode.SUCCESS, ext=ext, body=[memoryview(record) for record in page.records]
            )
            answer.answer(response)

        self._retained.read(
            RetainedRead(
                topic_filter=topic_filter,
                after=_decode_place(after) if after else None,
                records_max=_records_max(request),
                bytes_max=_bytes_max(request),
            ),
            found,
        )
        return answer.take()

    def _own_will(self, will: Will | None) -> Will | None:
        """With a queue of this broker: a front end counts those of all brokers."""
        if will is None:
            return None
        if will.queue_id < 0 or will.delay_s < 0 or len(will.elements) > limits.RECORD_BYTES_MAX:
            raise RefusedError("the will has impossible numbers")
        count = self._writer.queue_count(will.topic, create=will.is_stored)
        return msgspec.structs.replace(will, queue_id=will.queue_id % (count or 1))


def _check_filter(topic_filter: str) -> None:
    size = len(topic_filter.encode("utf-8", "surrogatepass"))
    if not 0 < size <= limits.MQTT_TOPIC_BYTES_MAX or not is_valid_filter(topic_filter):
        raise RefusedError(f"{topic_filter[:40]!r} is not a topic filter")
    if is_shared(topic_filter) and not is_share(topic_filter):
        raise RefusedError(f"{topic_filter[:40]!r} is not $share/GROUP/FILTER")


def _records_max(request: Command) -> int:
    return request.integer("maxNums", minimum=1, maximum=limits.QUEUE_READ_RECORDS_MAX)


def _bytes_max(request: Command) -> int:
    return request.integer("maxMsgBytes", minimum=1, maximum=limits.PULL_BYTES_MAX)


def _encode_place(topic: str) -> str:
    return base64.b64encode(topic.encode("utf-8", "surrogateescape")).decode()


def _decode_place(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "surrogateescape")
    except (binascii.Error, ValueError):
        raise RefusedError("the field after is not that of the answer to a former request") from None
