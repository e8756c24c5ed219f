"""Refuse the requests that a slave must not carry out, with the codes of RocketMQ 4.9.

A slave's log is a copy: what would store something belongs to the master. So do topics and groups, which a
slave takes from there. Pulls, offsets, heartbeats, locks and questions are served.
"""

from __future__ import annotations

from typing import Final

from iotmq.errors import RequestError
from iotmq.metrics import Metric
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import Run
from iotmq.remoting.frames.pull_frames import PullFrame
from iotmq.remoting.server import RequestHandler, RunHandler, ServerConnection

_STORES: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.CONSUMER_SEND_MESSAGE_BACK,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.RECALL_MESSAGE,
    RequestCode.CANCEL_TIMER,
    # MQTT front ends: publishing, delivery, sessions.
    *range(RequestCode.ATTACH_FILTERS, RequestCode.LAST_BATCH_NUMBER + 1),
    *range(RequestCode.INTRODUCE_FRONT_END, RequestCode.LIST_SHARES + 1),
)
_CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP,
    RequestCode.DELETE_SUBSCRIPTION_GROUP,
    *range(RequestCode.ADD_QUEUES, RequestCode.REMOVE_QUEUES + 1),
)
_ONLY_MASTER: Final = "this broker is a slave: ask the master"
REFUSALS: Final[dict[int, tuple[int, str]]] = {
    **dict.fromkeys(_STORES, (ResponseCode.SERVICE_NOT_AVAILABLE, _ONLY_MASTER)),
    **dict.fromkeys(_CHANGES, (ResponseCode.SYSTEM_ERROR, f"topics and groups: {_ONLY_MASTER}")),
    RequestCode.END_TRANSACTION: (ResponseCode.SLAVE_NOT_AVAILABLE, _ONLY_MASTER),
}
"""Request code -> response code and remark."""


class SlaveRefusals:
    """Stands before a slave's request table, as its handler and its run handler."""

    def __init__(self, handler: RequestHandler, handle_run: RunHandler) -> None:
        self._handler = handler
        self._handle_run = handle_run
        self.refused_count = 0

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        refusal = REFUSALS.get(request.code)
        if refusal is not None:
            self.refused_count += 1
            raise RequestError(*refusal)
        return self._handler.handle(connection, request)

    def handle_run(self, connection: ServerConnection, run: Run, at: int) -> int:
        """Hand on plain pulls; sends are left to `handle`."""
        return self._handle_run(connection, run, at) if isinstance(run, PullFrame) else at

    def connection_lost(self, connection: ServerConnection) -> None:
        self._handler.connection_lost(connection)

    def metric(self) -> Metric:
        return Metric(
            "iotmq_broker_slave_refusals_total",
            "counter",
            "Requests refused because they are a master's.",
            self.refused_count,
        )
