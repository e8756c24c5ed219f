"""The broker's settings: all of them as text (26), and changing those that may change (25)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.properties_text import parse_properties, properties_text
from iotmq.remoting.server import ServerConnection


class SettingsHandler(RequestProcessor):
    """A change is in effect at once, and answered when it is on the disk
    (replies/reply_after_registration.py)."""

    def __init__(self, parts: BrokerParts) -> None:
        self._settings = parts.changed_settings
        self._clock = parts.clock

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self._update,
            RequestCode.GET_BROKER_CONFIG: self._get,
        }

    def _get(self, connection: ServerConnection, request: Command) -> Command | None:
        version = msgspec.json.encode(self._settings.version).decode()
        return request.reply(
            ResponseCode.SUCCESS, ext={"version": version}, body=properties_text(self._settings.as_texts())
        )

    def _update(self, connection: ServerConnection, request: Command) -> Command | None:
        values = parse_properties(request.body_bytes())
        self._settings.change(values, self._clock.now_ms())
        return request.reply(ResponseCode.SUCCESS)
