"""Subscriptions of kept sessions whose clients are away: what no front end can show of its connections."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from iotmq import limits
from iotmq.broker.session_store.sessions import StoredSession
from iotmq.broker.sessions.sessions import Sessions
from iotmq.errors import RefusedError
from iotmq.event_loop import LoopSlice
from iotmq.mqtt.topics.topics import matches_subscription
from iotmq.ports import client_pages
from iotmq.ports.client_pages import SubscriptionPage, SubscriptionsQuestion
from iotmq.ports.inspections import Inspections

_ROWS_BYTES_MAX: Final = limits.INSPECTION_ANSWER_BYTES_MAX - 16 * 1024
# A turn of the loop is for operators for so long. Each looks anew, which costs something beside the sessions.
_SLICE_S: Final = 0.002
# Subscriptions between two turns: a session may have ten thousand.
_STEP: Final = 128


class InspectedSessions:
    """Answers with the subscriptions of clients that are not connected."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def add_to(self, inspections: Inspections) -> None:
        """Answer questions about subscriptions."""
        inspections.add(client_pages.SUBSCRIPTIONS, self.list_subscriptions)

    async def list_subscriptions(self, body: bytes) -> bytes:
        """Answer a SubscriptionsQuestion."""
        try:
            asked = msgspec.msgpack.decode(body, type=SubscriptionsQuestion)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RefusedError(f"the question cannot be read: {error}") from None
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

    async def _offer(self, page: SubscriptionPage, client_id: str, session: StoredSession | None) -> None:
        if session is None or not session.subscriptions or not page.may_have(client_id):
            return
        if self._sessions.owners.front_end_of(client_id):
            return
        for number, (topic_filter, subscription) in enumerate(list(session.subscriptions.items()), 1):
            page.offer(client_id, topic_filter, subscription.options)
            if number % _STEP == 0:
                await asyncio.sleep(0)
