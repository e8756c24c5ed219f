"""Deleting by hand: a topic by name (215), what is left of topics that are not configured (316), and log
files that are past their age (27, 306 and 329)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.tables.system_topics import check_not_own
from iotmq.broker.topic_changes.topic_removal import TopicRemoval
from iotmq.errors import RefusedError
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.store.store import Store

logger = logging.getLogger(__name__)


class TopicRemovalHandler(RequestProcessor):
    """Answers when the deletion is on the disk. What many ask for at a time is written together.

    A deletion is carried out though nobody waits for the answer any more.
    """

    def __init__(self, parts: BrokerParts, removal: TopicRemoval) -> None:
        self._removal = removal
        self._topics = parts.topics
        # They cannot be deleted.
        self._own_topics = parts.system_topics
        # Whoever waits for the disk.
        self._waiting: list[tuple[ServerConnection, Command]] = []
        # True when something was deleted since the last write began.
        self._is_asked = False
        # Set while a write is under way; it goes on until nobody asks.
        self._saving: asyncio.Task[None] | None = None

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete,
            RequestCode.CLEAN_UNUSED_TOPIC: self._clean_unused,
        }

    def save(self) -> None:
        """Have the deletions until now written."""
        self._is_asked = True
        if self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save())

    async def stop(self) -> None:
        """Return when every deletion is on the disk and answered."""
        if self._saving is not None:
            await self._saving

    def _delete(self, connection: ServerConnection, request: Command) -> Command | None:
        name = request.text("topic")
        if not name:
            raise RefusedError("the field topic is empty")
        check_not_own(name, self._own_topics, "topic")
        # A tool asks every broker of a cluster, also those that never had the topic.
        self._removal.delete(name)
        return self._reply_when_saved(connection, request)

    def _clean_unused(self, connection: ServerConnection, request: Command) -> Command | None:
        for name in self._removal.unused():
            if name not in self._own_topics:
                self._removal.delete(name)
        return self._reply_when_saved(connection, request)

    def _reply_when_saved(self, connection: ServerConnection, request: Command) -> Command | None:
        if not self._topics.deleted.is_dirty and self._saving is None:
            return request.reply(ResponseCode.SUCCESS)
        self._waiting.append((connection, request))
        self.save()
        return None

    async def _save(self) -> None:
        while self._is_asked:
            self._is_asked = False
            waiting, self._waiting = self._waiting, []
            remark = await self._write()
            code = ResponseCode.SUCCESS if remark is None else ResponseCode.SYSTEM_ERROR
            for connection, request in waiting:
                connection.reply(request.reply(code, remark=remark))
        self._saving = None

    async def _write(self) -> str | None:
        """Write the deletions; what is wrong when that fails."""
        deleted = self._topics.deleted
        try:
            data = deleted.take_unsaved()
            if data is not None:
                await asyncio.to_thread(deleted.write, data)
        except Exception as error:
            # Whatever it is: the next deletion must not wait for a write that has ended.
            deleted.is_dirty = True
            logger.error("deletedTopics.json could not be written: %s", error)
            reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            return f"deleted, but a crash may bring it back: deletedTopics.json: {reason}"
        return None


class RetentionHandler(RequestProcessor):
    """One answer to 27, 306 and 329: queue files go with the log, there is nothing to clean in them alone."""

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
