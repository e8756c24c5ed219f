"""Answers to requests that changed something: given once registries know it, and operators' once it is kept.

A client that was answered asks a registry next: a consumer for the route of the topic just made, a member
of a group for its retry topic. RocketMQ's brokers register before they answer, and clients count on it.

What an operator changes (topics, groups, settings) holds from the moment it is asked for, and is answered
when it is on the disk; a disk that refuses it makes the answer an error that says so. RocketMQ's brokers
answer before they write, and a power cut may take what they have answered. Where the broker is
replicated, the members in sync have it, too, so that it holds at the next master; a remark says if they have
not in time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.tables.config_saver import Saved
from iotmq.broker.tables.topics import TopicTable
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import RequestHandler, ServerConnection

WhenTold: TypeAlias = Callable[[Callable[[], None]], None]
"""Calls what it is given once every registry has been told what holds now."""

WhenCopied: TypeAlias = Callable[[Callable[[bool], None]], None]
"""Calls what it is given once all members in sync have what holds now; with False when not in time."""

_OPERATORS: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP,
        RequestCode.DELETE_SUBSCRIPTION_GROUP,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.ADD_QUEUES,
        RequestCode.FREEZE_QUEUES,
        RequestCode.THAW_QUEUES,
        RequestCode.REMOVE_QUEUES,
    }
)


class RepliesAfterRegistration:
    """Hands requests on; implements remoting's RequestHandler."""

    def __init__(
        self,
        handler: RequestHandler,
        topics: TopicTable,
        *,
        when_told: WhenTold,
        when_saved: Callable[[Saved], None],
        when_copied: WhenCopied = lambda call: call(True),
    ) -> None:
        self._handler = handler
        self._topics = topics
        self._when_told = when_told
        self._when_saved = when_saved
        self._when_copied = when_copied

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        before = self._topics.version
        response = self._handler.handle(connection, request)
        if response is None or request.is_oneway:
            return response
        is_told = self._topics.version is before
        is_kept = request.code not in _OPERATORS or response.code != ResponseCode.SUCCESS
        if is_told and is_kept:
            return response
        answer = DeferredReply(connection, request)
        give: Callable[[], None] = partial(answer.answer, response)
        if not is_kept:
            give = partial(self._when_saved, partial(self._answer_kept, answer, request, response))
        if is_told:
            give()
        else:
            self._when_told(give)
        return answer.now_or_later()

    def connection_lost(self, connection: ServerConnection) -> None:
        self._handler.connection_lost(connection)

    def _answer_kept(
        self, answer: DeferredReply, request: Command, response: Command, error: OSError | None
    ) -> None:
        if error is not None:
            remark = f"changed, but a crash may undo it until the disk takes it: {error.strerror or error}"
            answer.answer(request.reply(ResponseCode.SYSTEM_ERROR, remark=remark))
            return
        self._when_copied(partial(_answer_copied, answer, response))


def _answer_copied(answer: DeferredReply, response: Command, is_copied: bool) -> None:
    if not is_copied:
        response.remark = "changed, but not all members in sync have said that they have it"
    answer.answer(response)
