"""Deleting by hand what is past its age: codes 27, 306 and 329."""

from __future__ import annotations

from collections.abc import Mapping

from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.store.store import Store


class RetentionHandler(RequestProcessor):
    """One answer to all three: queue files go with the log, there is nothing to clean in them alone."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.TRIGGER_DELETE_FILES: self._delete,
            RequestCode.CLEAN_EXPIRED_CONSUME_QUEUE: self._delete,
            RequestCode.DELETE_EXPIRED_COMMIT_LOG: self._delete,
        }

    def _delete(self, connection: ServerConnection, request: Command) -> Command | None:
        self._store.delete_expired()
        return request.reply(ResponseCode.SUCCESS)
