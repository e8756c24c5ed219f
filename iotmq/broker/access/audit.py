"""Audit records of a broker: what operators change by requests, and what access control refuses."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from iotmq.audit_log import AUDIT_TOPIC, AuditLog, Record
from iotmq.broker.parts import BrokerParts
from iotmq.broker.writing.message_writer import MessageWriter, RefusedBatch, StoredBatch
from iotmq.clock import Clock
from iotmq.errors import RequestError
from iotmq.metrics import Metric
from iotmq.ports.client_pages import REFUSED
from iotmq.ports.gateway import AppendDone
from iotmq.ports.inspections import CHANGING_INSPECTIONS
from iotmq.remoting.codes import RequestCode, ResponseCode, request_name
from iotmq.remoting.command import Command
from iotmq.remoting.server import RequestHandler, ServerConnection
from iotmq.remoting.signature import ACCESS_KEY, SIGNATURE

ADMINISTRATION: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP,
        RequestCode.DELETE_SUBSCRIPTION_GROUP,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.ADD_QUEUES,
        RequestCode.FREEZE_QUEUES,
        RequestCode.THAW_QUEUES,
        RequestCode.REMOVE_QUEUES,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRESSES,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.TRIGGER_DELETE_FILES,
        RequestCode.CLEAN_EXPIRED_CONSUME_QUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMIT_LOG,
        RequestCode.DRAIN_FRONT_END,
        RequestCode.KICK_SESSION,
        RequestCode.PURGE_SESSION,
    }
)
"""Requests that change something for others; consumers and producers send none of them by themselves."""
_NOT_TOLD: Final = frozenset({ACCESS_KEY, SIGNATURE, "secretKey", "SecurityToken"})


class BrokerAudit:
    """The audit records of one broker, written to its own log."""

    def __init__(self, parts: BrokerParts) -> None:
        settings = parts.settings
        self._log = AuditLog(
            partial(_write, parts.writer, parts.clock, parts.host),
            parts.clock,
            source=settings.name,
            events=settings.audit_events,
            per_second_max=settings.audit_records_per_s_max,
        )
        self.record: Record = self._log.record
        parts.inspections.add(REFUSED, self._log.refusals.answer)

    def close(self) -> None:
        """Write all that waits; before the writer closes."""
        self._log.close()

    def metrics(self) -> Iterable[Metric]:
        return self._log.metrics("iotmq_broker")


class AuditedRequests:
    """Hands requests on, and records those of operators with their outcome; a RequestHandler."""

    def __init__(self, handler: RequestHandler, record: Record, *, has_accounts: bool) -> None:
        """Without `has_accounts` nobody has looked at whose account a request names."""
        self._handler = handler
        self._record = record
        self._has_accounts = has_accounts

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        if not _is_administration(request):
            return self._handler.handle(connection, request)
        try:
            response = self._handler.handle(connection, request)
        except RequestError as error:
            self._note(connection, request, error.code, str(error))
            raise
        if response is None:
            # Under way: what it comes to, its sender is told.
            self._note(connection, request, None, None)
        else:
            self._note(connection, request, response.code, response.remark)
        return response

    def connection_lost(self, connection: ServerConnection) -> None:
        self._handler.connection_lost(connection)

    def _note(
        self, connection: ServerConnection, request: Command, code: int | None, remark: str | None
    ) -> None:
        body = ""
        if request.code == RequestCode.UPDATE_BROKER_CONFIG:
            body = request.body_bytes().decode("utf-8", "replace")
        self._record(
            "administered",
            account=request.ext.get(ACCESS_KEY) if self._has_accounts else None,
            address=connection.peer[0],
            request=request_name(request.code),
            fields=" ".join(
                f"{name}={value}" for name, value in request.ext.items() if name not in _NOT_TOLD
            ),
            settings=body or None,
            result="accepted" if code is None else "done" if code == ResponseCode.SUCCESS else "refused",
            code=code,
            detail=remark or None,
        )


def _is_administration(request: Command) -> bool:
    if request.code == RequestCode.INSPECT:
        return request.ext.get("name") in CHANGING_INSPECTIONS
    return request.code in ADMINISTRATION


def record_refusal(
    record: Record, connection: ServerConnection, request: Command, *, reason: str, detail: str
) -> None:
    """Record that access control has refused a request: its sender is not known, or lacks a right."""
    record(
        "denied" if reason in ("admin", "permission") else "refused",
        account=request.ext.get(ACCESS_KEY),
        address=connection.peer[0],
        request=request_name(request.code),
        reason=reason,
        detail=detail,
    )


def _write(
    writer: MessageWriter,
    clock: Clock,
    host: bytes,
    elements: bytes,
    _count: int,
    _is_repeat: bool,
    done: AppendDone,
) -> None:
    def stored(result: StoredBatch | RefusedBatch) -> None:
        if isinstance(result, RefusedBatch):
            done(result.code, result.remark)
        else:
            # Whatever the disk or slaves are late with: it is in the log.
            done(ResponseCode.SUCCESS, "")

    writer.append(
        AUDIT_TOPIC,
        0,
        elements,
        born_timestamp_ms=clock.now_ms(),
        born_host=host,
        done=stored,
        is_internal=True,
    )
