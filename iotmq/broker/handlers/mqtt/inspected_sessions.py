"""Kept sessions as no front end can show them: subscriptions of clients that are away, and what waits."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec

from iotmq import limits
from iotmq.broker.session_store.sessions import StoredSession
from iotmq.broker.session_store.shares import is_share
from iotmq.broker.sessions.sessions import Sessions
from iotmq.errors import RefusedError, RequestError
from iotmq.event_loop import LoopSlice
from iotmq.mqtt.topics.topics import matches_subscription
from iotmq.ports import client_pages
from iotmq.ports.client_pages import QueueAnswer, QueueQuestion, SubscriptionPage, SubscriptionsQuestion
from iotmq.ports.inspections import Inspections
from iotmq.ports.sessions import QueueRead, QueueRecords, Refused
from iotmq.remoting.codes import ResponseCode

_ROWS_BYTES_MAX: Final = limits.INSPECTION_ANSWER_BYTES_MAX - 16 * 1024
# A read stops at so many, but for a first record that has more.
_QUEUE_BYTES_MAX: Final = 512 * 1024
# A turn of the loop is for operators for so long. Each looks anew, which costs something beside the sessions.
_SLICE_S: Final = 0.002
# Subscriptions between two turns: a session may have ten thousand.
_STEP: Final = 128


T = TypeVar("T")


class InspectedSessions:
    """Answers with the subscriptions of clients that are not connected, and the messages of sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def add_to(self, inspections: Inspections) -> None:
        """Answer questions about subscriptions and queues."""
        inspections.add(client_pages.SUBSCRIPTIONS, self.list_subscriptions)
        inspections.add(client_pages.SESSION_QUEUE, self.read_queue)

    async def list_subscriptions(self, body: bytes) -> bytes:
        """Answer a SubscriptionsQuestion."""
        asked = _decoded(SubscriptionsQuestion, body)
        page = SubscriptionPage(asked, matches_subscription)
        turn = LoopSlice(slice_s=_SLICE_S)
        first = "" if asked.behind is None else asked.behind[0]
        await self._offer(page, first, self._sessions.stored(first) if first else None)
        at: str | None = first or None
        while True:
            # Between two turns the database may be opened again, so no iterator is kept.
            for client_id, session in self._sessions.stored_after(at):
                at = client_id
                if page.is_behind(client_id):
                    return msgspec.msgpack.encode(page.answer(_ROWS_BYTES_MAX))
                await self._offer(page, client_id, session)
                if not turn.take():
                    break
            else:
                return msgspec.msgpack.encode(page.answer(_ROWS_BYTES_MAX))
            await asyncio.sleep(0)
            turn = LoopSlice(slice_s=_SLICE_S)

    async def read_queue(self, body: bytes) -> bytes:
        """Answer a QueueQuestion."""
        asked = _decoded(QueueQuestion, body)
        session = self._sessions.stored(asked.client_id)
        subscription = None if session is None else session.subscriptions.get(asked.topic_filter)
        if session is None or subscription is None or is_share(asked.topic_filter):
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                f"client {asked.client_id[:80]!r} has no queue of {asked.topic_filter[:80]!r} here",
            )
        cursor, behind = self._sessions.behind(asked.client_id, subscription.queue_id)
        begin = max(asked.position, cursor)
        answer: asyncio.Future[QueueAnswer] = asyncio.get_running_loop().create_future()

        def take(found: QueueRecords | Refused) -> None:
            if answer.done():
                return
            if isinstance(found, Refused):
                answer.set_exception(RequestError(found.code, found.remark))
                return
            records = [
                bytes(record) for record in found.records if len(memoryview(record)) <= _ROWS_BYTES_MAX
            ]
            in_flight, done = _sent(session, asked.topic_filter, begin, found.next_position)
            answer.set_result(
                QueueAnswer(
                    records=records,
                    left_out=len(found.records) - len(records),
                    next_position=found.next_position,
                    is_end=found.is_end,
                    behind=behind,
                    in_flight=in_flight,
                    done=done,
                )
            )

        self._sessions.read_queue(
            QueueRead(
                queue_id=subscription.queue_id,
                position=begin,
                records_max=asked.limit,
                bytes_max=_QUEUE_BYTES_MAX,
                client_id=asked.client_id,
            ),
            take,
        )
        return msgspec.msgpack.encode(await answer)

    async def _offer(self, page: SubscriptionPage, client_id: str, session: StoredSession | None) -> None:
        if session is None or not session.subscriptions or not page.may_have(client_id):
            return
        if self._sessions.owners.front_end_of(client_id):
            return
        for number, (topic_filter, subscription) in enumerate(list(session.subscriptions.items()), 1):
            page.offer(client_id, topic_filter, subscription.options)
            if number % _STEP == 0:
                await asyncio.sleep(0)


def _sent(session: StoredSession, topic_filter: str, begin: int, end: int) -> tuple[list[int], list[int]]:
    """Return positions of a filter's messages that are in flight, and of those that are done."""
    in_flight = [
        each.position
        for each in session.in_flight
        if each.topic_filter == topic_filter and begin <= each.position < end
    ]
    done = [
        position
        for name, found in session.done
        if name == topic_filter
        for position in ([found] if isinstance(found, int) else found)
        if begin <= position < end
    ]
    return in_flight, done


def _decoded(form: type[T], body: bytes) -> T:
    try:
        return msgspec.msgpack.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(f"the question cannot be read: {error}") from None
