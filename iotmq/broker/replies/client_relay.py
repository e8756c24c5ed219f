"""Questions that only a client can answer, passed on over its own connection: what it is doing (307), what
becomes of one message (309), and how far it has consumed (223, which asks clients with 221)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import msgspec

from iotmq import limits
from iotmq.broker.members.groups import Groups, Member
from iotmq.broker.members.queue_locks import MessageQueue
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.errors import ConnectionClosedError, RefusedError, RequestError, RequestTimeoutError
from iotmq.message.errors import MessageFormatError
from iotmq.message.hosts import encode_host
from iotmq.message.message_ids import parse_offset_message_id
from iotmq.message.records.record import decode_record
from iotmq.metrics import Metric, samples
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode, ResponseCode, Version
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.remoting.signature import ACCESS_KEY, SIGNATURE
from iotmq.store.queues.cold_steps import Steps
from iotmq.store.store import Store

# What a client answered, or why it did not.
_Outcome = Command | RequestError


class ConsumerStatus(msgspec.Struct, kw_only=True, rename="camel"):
    """A client's answer to code 221: the offset of each of its queues, which are keys in JSON."""

    message_queue_table: dict[str, int] = {}


class RelayHandler(RequestProcessor):
    """Keeps a bounded number of questions under way, each with a time limit."""

    def __init__(
        self, store: Store, groups: Groups, cold_reads: ColdReads, *, broker_name: str, timeout_s: float
    ) -> None:
        self._store = store
        self._groups = groups
        self._cold_reads = cold_reads
        self._broker_name = broker_name
        self._timeout_s = timeout_s
        self._running = 0
        self.relays_count = 0
        self.failed_count = 0

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self._status,
        }

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_relays_total", "Questions passed on to clients.", self.relays_count),
            ("iotmq_broker_failed_relays_total", "Questions that clients did not answer.", self.failed_count),
        )

    def _running_info(self, connection: ServerConnection, request: Command) -> Command | None:
        member = self._member(request)
        command = Command.request(RequestCode.GET_CONSUMER_RUNNING_INFO, _forwarded(request))
        return self._relay(connection, request, member, command)

    def _consume_directly(self, connection: ServerConnection, request: Command) -> Command | None:
        member = self._member(request)
        ext = {**_forwarded(request), "brokerName": self._broker_name}
        message_id = request.text("msgId", "")
        answer = DeferredReply(connection, request)

        def read(body: bytes) -> None:
            command = Command.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext, body)
            self._relay(connection, request, member, command)

        if message_id:
            self._cold_reads.finish(self._record(message_id), read, answer.refuse)
        else:
            read(request.body_bytes())
        return answer.now_or_later()

    def _relay(
        self, connection: ServerConnection, request: Command, member: Member, command: Command
    ) -> Command | None:
        """Pass `command` on and the client's answer back."""
        self._take_place()

        def answered(outcomes: list[tuple[Member, _Outcome]]) -> None:
            outcome = outcomes[0][1]
            if isinstance(outcome, RequestError):
                response = request.reply(outcome.code, remark=str(outcome))
            else:
                response = request.reply(
                    outcome.code, remark=outcome.remark, ext=outcome.ext, body=outcome.body
                )
            connection.reply(response)

        self._ask([member], lambda: command, answered)
        return None

    def _status(self, connection: ServerConnection, request: Command) -> Command | None:
        topic = request.text("topic")
        name = request.text("group")
        wanted = request.text("clientAddr", "")
        group = self._groups.consumer_group(name)
        if group is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the field group names the group {name}, which has no live consumer",
            )
        members = [member for member in group.members.values() if wanted in ("", member.client_id)]
        if not members:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the field clientAddr names the client {wanted[:80]!r}, which is not in group {name}",
            )
        if len(members) > limits.RELAYED_CLIENTS_MAX:
            raise RefusedError(
                f"group {name} has {len(members)} clients, and {limits.RELAYED_CLIENTS_MAX} at most are "
                "asked at a time: name one in the field clientAddr"
            )
        for member in members:
            _check_version(member, Version.TELLS_STATUS)
        self._take_place()
        self._ask(
            members,
            lambda: Command.request(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": topic, "group": name}
            ),
            lambda outcomes: connection.reply(_merged(request, outcomes)),
        )
        return None

    def _member(self, request: Command) -> Member:
        name = request.text("consumerGroup")
        client_id = request.text("clientId")
        group = self._groups.consumer_group(name)
        member = None if group is None else group.members.get(client_id)
        if member is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the fields consumerGroup and clientId name the consumer {client_id[:80]!r} of group "
                f"{name[:80]}, which is not online",
            )
        _check_version(member, Version.TELLS_RUNNING_INFO)
        return member

    def _record(self, message_id: str) -> Steps[bytes]:
        """Yield the record an id of this broker names."""
        try:
            host, port, position = parse_offset_message_id(message_id)
        except MessageFormatError as error:
            raise RefusedError(f"the field msgId is {error}") from None
        view = yield from self._store.record_steps(position)
        if view is None or decode_record(view).store_host != encode_host(host, port):
            raise RefusedError(f"the field msgId is {message_id}, which names no message of this broker")
        return bytes(view)

    def _take_place(self) -> None:
        if self._running >= limits.RELAYS_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, f"{self._running} questions to clients wait for an answer already"
            )
        self._running += 1

    def _ask(
        self,
        members: list[Member],
        make_command: Callable[[], Command],
        answered: Callable[[list[tuple[Member, _Outcome]]], None],
    ) -> None:
        """Ask all at a time; `answered` once, when the last has answered or failed."""
        outcomes: list[tuple[Member, _Outcome]] = []

        def finished(member: Member, outcome: _Outcome) -> None:
            outcomes.append((member, outcome))
            if len(outcomes) == len(members):
                self._running -= 1
                answered(outcomes)

        def done(member: Member, future: asyncio.Future[Command]) -> None:
            finished(member, self._outcome(member, future))

        for member in members:
            self.relays_count += 1
            try:
                future = member.connection.request(make_command(), timeout_s=self._timeout_s)
            except ValueError as error:
                # What came in one frame may not fit another with our fields added.
                finished(member, RefusedError(str(error)))
            else:
                future.add_done_callback(partial(done, member))

    def _outcome(self, member: Member, future: asyncio.Future[Command]) -> _Outcome:
        try:
            return future.result()
        except RequestTimeoutError:
            self.failed_count += 1
            return RequestError(
                ResponseCode.CONSUME_MESSAGE_TIMEOUT,
                f"the client {member.client_id} did not answer within {self._timeout_s:g} s",
            )
        except (ConnectionClosedError, asyncio.CancelledError):
            self.failed_count += 1
            return RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the client {member.client_id} left before it answered"
            )


def _forwarded(request: Command) -> dict[str, str]:
    """Return the fields of a request without what proves who asked: a client could use that to ask again."""
    return {name: value for name, value in request.ext.items() if name not in _PROOFS}


_PROOFS: Final = frozenset({ACCESS_KEY, SIGNATURE, "SecurityToken", "OnsChannel"})
_VERSION_NAMES: Final = {Version.TELLS_STATUS: "3.0.7", Version.TELLS_RUNNING_INFO: "3.1.8"}


def _check_version(member: Member, version: int) -> None:
    if member.version < version:
        raise RefusedError(
            f"the client {member.client_id} has version number {member.version}, too old to be asked: "
            f"{_VERSION_NAMES[version]} is the first that answers"
        )


def _merged(request: Command, outcomes: list[tuple[Member, _Outcome]]) -> Command:
    """Return the answer to code 223 from those of the clients; an error only when nobody answered well."""
    tables: list[bytes] = []
    problem: RequestError | None = None
    for member, outcome in outcomes:
        if isinstance(outcome, RequestError):
            problem = outcome
            continue
        if outcome.code != ResponseCode.SUCCESS:
            problem = RequestError(
                outcome.code, f"the client {member.client_id} answered: {outcome.remark or 'no reason given'}"
            )
            continue
        try:
            status = lenient_json.decode(outcome.body, ConsumerStatus)
            rows = [
                (msgspec.json.encode(msgspec.json.decode(key, type=MessageQueue)), b"%d" % offset)
                for key, offset in status.message_queue_table.items()
            ]
        except (RequestError, msgspec.DecodeError) as error:
            problem = RefusedError(f"the answer of the client {member.client_id} cannot be read: {error}")
            continue
        tables.append(msgspec.json.encode(member.client_id) + b":" + lenient_json.encode_object_map(rows))
    if not tables and problem is not None:
        return request.reply(problem.code, remark=str(problem))
    body = b'{"consumerTable":{%s},"messageQueueTable":{}}' % b",".join(tables)
    return request.reply(ResponseCode.SUCCESS, body=body)
