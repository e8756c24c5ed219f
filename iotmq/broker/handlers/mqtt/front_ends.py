"""Front ends, for operators: which are connected, and draining them (codes 30067 and 30068)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from iotmq import limits
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.sessions.sessions import Sessions
from iotmq.client.admin.front_ends import FrontEndsPage, FrontEndSummary
from iotmq.errors import RefusedError, RequestError
from iotmq.ports.sessions import DrainOrder
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection


class FrontEndHandler(RequestProcessor):
    """A processor of the request table."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.LIST_FRONT_ENDS: self._list,
            RequestCode.DRAIN_FRONT_END: self._drain,
        }

    def _list(self, connection: ServerConnection, request: Command) -> Command:
        page = FrontEndsPage(
            front_ends=[
                FrontEndSummary(name=view.name, clients=view.clients, is_draining=view.is_draining)
                for view in self._sessions.front_end_views()
            ]
        )
        return request.reply(ResponseCode.SUCCESS, body=msgspec.json.encode(page))

    def _drain(self, connection: ServerConnection, request: Command) -> Command:
        name = request.text("frontEnd")
        reference = request.text("serverReference", "")
        if len(reference) > limits.MQTT_SERVER_REFERENCE_CHARACTERS_MAX or not reference.isprintable():
            raise RefusedError("invalid server reference in serverReference")
        order = DrainOrder(
            is_draining=request.boolean("isDraining"),
            per_second=request.integer("perSecond", 1, minimum=1, maximum=limits.DRAINED_PER_SECOND_MAX),
            server_reference=reference,
            has_moved=request.boolean("hasMoved", False),
        )
        if not self._sessions.front_ends.drain(name, order):
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"no front end {name[:80]!r} is connected")
        return request.reply(ResponseCode.SUCCESS)
