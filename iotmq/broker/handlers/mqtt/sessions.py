"""Sessions of MQTT front ends in other processes (codes 30050-30066, docs/reference/wire-protocol.md)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta
from msgspec.msgpack import Decoder

from iotmq import limits
from iotmq.broker.delivery.retained_reads import RetainedReads
from iotmq.broker.handlers.mqtt.front_end_link import FrontEndLink
from iotmq.broker.replies.request_table import Handler
from iotmq.broker.session_store.channel import SessionChannel
from iotmq.broker.session_store.shares import is_share
from iotmq.broker.sessions.requests import Answer, decode_body
from iotmq.broker.sessions.sessions import Sessions
from iotmq.broker.writing.message_writer import MessageWriter
from iotmq.errors import RefusedError, RequestError
from iotmq.metrics import Metric, samples
from iotmq.mqtt.topics.topics import is_shared, is_valid_filter
from iotmq.ports import bodies
from iotmq.ports.sessions import (
    ClientCounts,
    CloseRequest,
    ExclusiveClaim,
    OpenRequest,
    QueueRead,
    Refused,
    RetainedRead,
    RetainedRecords,
    SessionProgress,
    ShareJoin,
    ShareReport,
    SubscribeRequest,
    UnsubscribeRequest,
    Will,
)
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

_Joins: TypeAlias = Annotated[list[ShareJoin], Meta(max_length=limits.SHARE_REPORT_MEMBERS_MAX)]
_Reports: TypeAlias = Annotated[list[ShareReport], Meta(max_length=limits.SHARE_REPORT_MEMBERS_MAX)]
_Counts: TypeAlias = Annotated[list[ClientCounts], Meta(max_length=limits.CLIENT_PREFIXES_MAX + 1)]
_Body = TypeVar("_Body")


class SessionHandler:
    """Serves front ends in other processes what `local_sessions.LocalSessions` serves the one in this.

    A connection is a front end's once it has introduced itself, and for as long as it lives.
    """

    def __init__(self, sessions: Sessions, retained: RetainedReads, writer: MessageWriter) -> None:
        self._sessions = sessions
        self._retained = retained
        self._writer = writer
        self._front_ends: dict[ServerConnection, FrontEndLink] = {}
        self._by_name: dict[str, FrontEndLink] = {}
        self.pushed_bytes = 0
        # Pushes not sent because the front end did not take the ones before.
        self.missed_pushes = 0

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.INTRODUCE_FRONT_END: self._introduce,
            RequestCode.OPEN_SESSION: self._answering(Decoder(OpenRequest), self._open_session),
            RequestCode.SUBSCRIBE_SESSION: self._answering(Decoder(SubscribeRequest), self._subscribe),
            RequestCode.UNSUBSCRIBE_SESSION: self._answering(Decoder(UnsubscribeRequest), self._unsubscribe),
            RequestCode.REPORT_PROGRESS: self._answering(Decoder(bodies.ProgressBody), self._report_progress),
            RequestCode.CLOSE_SESSION: self._answering(Decoder(CloseRequest), self._close_session),
            RequestCode.READ_LIGHT_QUEUE: self._read_queue,
            RequestCode.READ_RETAINED: self._read_retained,
            RequestCode.CLAIM_SESSIONS: self._answering(Decoder(bodies.ClaimsBody), self._claim),
            RequestCode.JOIN_SHARES: self._answering(Decoder(_Joins), self._join_shares),
            RequestCode.REPORT_SHARES: self._answering(Decoder(_Reports), self._report_shares),
            RequestCode.REPORT_CLIENTS: self._answering(Decoder(_Counts), self._report_clients),
            RequestCode.CLAIM_EXCLUSIVE: self._answering(Decoder(ExclusiveClaim), self._claim_exclusive),
        }

    def _answering(
        self, decoder: Decoder[_Body], answer_to: Callable[[SessionChannel, _Body, Answer], None]
    ) -> Handler:
        """Make the handler of a front end's request: `answer_to` gives the answer, at once or later."""

        def handle(connection: ServerConnection, request: Command) -> Command | None:
            channel = self.channel_of(connection)
            answer = Answer(connection, request)
            answer_to(channel, decode_body(decoder, request), answer)
            return answer.now_or_later()

        return handle

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
        front_end = FrontEndLink(connection, self, name, token)
        front_end.channel = self._sessions.open_channel(name, front_end, front_end.members)
        front_end.channel.is_draining = is_draining
        self._front_ends[connection] = self._by_name[name] = front_end
        return request.reply(ResponseCode.SUCCESS)

    def _drop(self, front_end: FrontEndLink) -> None:
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

    def _claim(self, channel: SessionChannel, claims: list[bodies.ClaimBody], answer: Answer) -> None:
        wills = [self._own_will(claim.will) for claim in claims]
        lost = []
        for claim, will in zip(claims, wills, strict=True):
            if not self._sessions.owners.claim(channel, claim.client_id, claim.epoch, will):
                lost.append(claim.client_id)
            elif claim.epoch >= 0 and claim.queues != bodies.queues_checksum(
                self._sessions.queues_of(claim.client_id)
            ):
                # An answer got lost, or the queues were made again: the client comes anew and learns of it.
                channel.receiver.fenced(claim.client_id, claim.epoch, "its queues have changed")
        answer.give_encoded(lost)

    # Sessions

    def _open_session(self, channel: SessionChannel, wanted: OpenRequest, answer: Answer) -> None:
        wanted = msgspec.structs.replace(wanted, will=self._own_will(wanted.will))
        self._sessions.open_session(channel, wanted, answer.give_encoded)

    def _subscribe(self, channel: SessionChannel, wanted: SubscribeRequest, answer: Answer) -> None:
        for topic_filter, _ in wanted.subscriptions:
            _check_filter(topic_filter)
        self._sessions.subscribe(channel, wanted, answer.give_encoded)

    def _unsubscribe(self, channel: SessionChannel, unwanted: UnsubscribeRequest, answer: Answer) -> None:
        self._sessions.unsubscribe(channel, unwanted, answer.give_done)

    def _report_progress(
        self, channel: SessionChannel, changes: list[SessionProgress], answer: Answer
    ) -> None:
        sound = [change for change in changes if bodies.is_sound_progress(change)]
        unsound = next((change for change in changes if not bodies.is_sound_progress(change)), None)
        if unsound is None:
            self._sessions.progress(channel, sound, answer.give_done)
            return
        # What the others say is stored; the front end tells each alone when it hears of a refusal.
        self._sessions.progress(channel, sound, lambda refused: None)
        raise RefusedError(f"the progress of the client {unsound.client_id[:40]!r} has impossible numbers")

    def _close_session(self, channel: SessionChannel, gone: CloseRequest, answer: Answer) -> None:
        self._sessions.close_session(channel, gone)
        answer.give_done(None)

    def _join_shares(self, channel: SessionChannel, joins: list[ShareJoin], answer: Answer) -> None:
        for wanted in joins:
            _check_share(wanted.topic_filter)
        self._sessions.join_shares(channel, joins, answer.give_encoded)

    def _report_shares(self, channel: SessionChannel, reports: list[ShareReport], answer: Answer) -> None:
        answer.give_done(self._sessions.report_shares(channel, reports))

    def _report_clients(self, channel: SessionChannel, counts: list[ClientCounts], answer: Answer) -> None:
        self._sessions.count_clients(counts)
        answer.give_done(None)

    def _claim_exclusive(self, channel: SessionChannel, wanted: ExclusiveClaim, answer: Answer) -> None:
        for topic_filter in wanted.filters:
            if not is_valid_filter(topic_filter) or is_shared(topic_filter):
                raise RefusedError(f"{topic_filter[:40]!r} is not a topic filter")
        self._sessions.claim_exclusive(channel, wanted, answer.give_encoded)

    # What they have to get

    def _read_queue(self, connection: ServerConnection, request: Command) -> Command | None:
        self.channel_of(connection)
        queue_id = request.integer("queueId", minimum=0, maximum=(1 << 32) - 1)
        answer = Answer(connection, request)
        self._sessions.read_queue(
            QueueRead(
                queue_id=queue_id,
                position=request.integer("position", minimum=0),
                records_max=_records_max(request),
                bytes_max=_bytes_max(request),
                client_id=request.text("clientId", ""),
            ),
            answer.give_records,
        )
        return answer.now_or_later()

    def _read_retained(self, connection: ServerConnection, request: Command) -> Command | None:
        # Also for operators, who are no front end (`iotmq bans list`).
        topic_filter = request.text("filter")
        _check_filter(topic_filter)
        after = request.text("after", "")
        answer = Answer(connection, request)
        self._retained.read(
            RetainedRead(
                topic_filter=topic_filter,
                after=_decode_place(after) if after else None,
                records_max=_records_max(request),
                bytes_max=_bytes_max(request),
            ),
            partial(_give_page, answer),
        )
        return answer.now_or_later()

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
    if is_shared(topic_filter):
        _check_share(topic_filter)


def _check_share(topic_filter: str) -> None:
    if not is_share(topic_filter):
        raise RefusedError(f"{topic_filter[:40]!r} is not $share/GROUP/FILTER")


def _give_page(answer: Answer, page: RetainedRecords | Refused) -> None:
    if isinstance(page, Refused):
        answer.give(page)
    else:
        answer.give(page.records, {} if page.after is None else {"after": _encode_place(page.after)})


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
