"""Connected clients as operators see them: a page of them, one of them, and their end.

Connections are looked at some at a time, so that whoever asks holds up no device.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from iotmq import limits
from iotmq.clock import Clock
from iotmq.errors import RefusedError, RequestError
from iotmq.event_loop import Pace
from iotmq.mqtt.topics.topics import matches_subscription
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.sessions.sessions import ConnectedSessions
from iotmq.mqtt_front.views.connection_walk import ConnectionWalk, ValueSteps
from iotmq.ports import client_pages
from iotmq.ports.client_pages import (
    PROTOCOL_LEVELS,
    ClientDetail,
    ClientRow,
    ClientsAnswer,
    ClientsQuestion,
    ClientSubscription,
    KickAnswer,
    KickQuestion,
    Order,
    SubscriptionPage,
    SubscriptionsQuestion,
    subscription_facts,
)
from iotmq.ports.inspections import KICK, Inspections

_NOT_FOUND: Final = 22
# Connections between two looks at the clock.
_STEP: Final = 128
_KICKS_PER_TURN: Final = 16
# The rest of an answer is for what stands around its rows.
_ROWS_BYTES_MAX: Final = limits.INSPECTION_ANSWER_BYTES_MAX - 16 * 1024
_SHOWN_CHARACTERS: Final = 256
_SUBSCRIPTIONS_SHOWN: Final = 1_000
_SUBSCRIPTION_BYTES_SHOWN: Final = 512 * 1024
_NAMES_SHOWN: Final = 100

_VERSIONS: Final = {level: version for version, level in PROTOCOL_LEVELS.items()}

T = TypeVar("T")


class ConnectionViews:
    """The connections of one front end; `add_to` has its inspections answered by it."""

    def __init__(self, sessions: ConnectedSessions, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock
        # However many ask, one of them at a time has its share of the turns.
        self._turns = asyncio.Lock()

    def add_to(self, inspections: Inspections) -> None:
        """Answer questions about clients."""
        inspections.add(client_pages.CONNECTIONS, self.list_page)
        inspections.add(client_pages.CONNECTION, self.show)
        inspections.add(client_pages.SUBSCRIPTIONS, self.list_subscriptions)
        inspections.add(KICK, self.kick)

    async def list_page(self, body: bytes) -> bytes:
        """Answer a ClientsQuestion."""
        asked = _decoded(ClientsQuestion, body)
        async with self._turns:
            return await self._page(asked)

    async def _page(self, asked: ClientsQuestion) -> bytes:
        walk = await self._walked(asked)
        found, has_more = walk.page()
        pace = Pace()
        rows: list[msgspec.Raw] = []
        orders: list[Order] = []
        size = 0
        for order, device in found:
            await pace.step()
            if self._sessions.by_client_id.get(device.client_id or "", device) is not device:
                # Come back meanwhile: it is on the page once more.
                continue
            row = msgspec.msgpack.encode(_row(device, walk))
            size += len(row) + len(msgspec.msgpack.encode(order))
            if size > _ROWS_BYTES_MAX:
                has_more = True
                break
            rows.append(msgspec.Raw(row))
            orders.append(order)
        answer = ClientsAnswer(
            rows=rows, orders=orders, matched=walk.matched, connected=walk.looked_at, has_more=has_more
        )
        return msgspec.msgpack.encode(answer)

    async def show(self, body: bytes) -> bytes:
        """Answer with the detail of the client whose id is the question."""
        client_id = body.decode("utf-8", "replace")
        device = self._sessions.connected(client_id)
        if device is None:
            raise RequestError(_NOT_FOUND, f"client {client_id[:80]!r} is not connected here")
        walk = self._walk(ClientsQuestion())
        peer = device.peer
        will = device.will
        detail = ClientDetail(
            row=_row(device, walk),
            idle_s=max(self._clock.monotonic_s() - device.last_received_s, 0.0),
            session_expiry_s=device.expiry_s,
            is_resumed=device.is_resumed,
            is_bridge=device.bridge is not None,
            is_write_paused=device.is_write_paused,
            server_name=_shown(None if peer is None else peer.server_name),
            will_topic="" if will is None else will.topic,
            subscriptions=list(_subscriptions(device)),
        )
        return msgspec.msgpack.encode(detail)

    async def kick(self, body: bytes) -> bytes:
        """Answer a KickQuestion, when the last of them is disconnected."""
        asked = _decoded(KickQuestion, body)
        if (asked.client_ids is None) == (asked.wanted is None):
            raise RefusedError("either client ids or a filter say who is disconnected")
        found: list[Device]
        if asked.wanted is None:
            named = map(self._sessions.connected, dict.fromkeys(asked.client_ids or ()))
            found = [device for device in named if device is not None]
            matched = len(found)
        else:
            async with self._turns:
                walk = await self._walked(ClientsQuestion(wanted=asked.wanted, limit=max(asked.limit, 1)))
            found = [device for _, device in walk.page()[0]]
            matched = walk.matched
        found = found[: asked.limit]
        # The names of those that have gone meanwhile are still those that were found.
        names = [device.client_id or "" for device in found[:_NAMES_SHOWN]]
        kicked = 0
        if not asked.is_dry_run:
            for number, device in enumerate(found):
                if number and number % _KICKS_PER_TURN == 0:
                    await asyncio.sleep(0)
                kicked += self._sessions.kick(device)
        return msgspec.msgpack.encode(KickAnswer(matched=matched, kicked=kicked, client_ids=names))

    async def list_subscriptions(self, body: bytes) -> bytes:
        """Answer a SubscriptionsQuestion."""
        asked = _decoded(SubscriptionsQuestion, body)
        async with self._turns:
            return await self._subscriptions_page(asked)

    async def _subscriptions_page(self, asked: SubscriptionsQuestion) -> bytes:
        page = SubscriptionPage(asked, matches_subscription)
        pace = Pace()
        for device in self._sessions.all_connected():
            client_id, held = device.client_id, device.subscriptions
            await pace.step()
            if client_id is None or not held or not page.may_have(client_id):
                continue
            # A session may have ten thousand.
            for number, (topic_filter, options) in enumerate(list(held.items()), 1):
                page.offer(client_id, topic_filter, options)
                if number % _STEP == 0:
                    await pace.step()
        return msgspec.msgpack.encode(page.answer(_ROWS_BYTES_MAX))

    def _walk(self, asked: ClientsQuestion) -> ConnectionWalk:
        return ConnectionWalk(asked, now_s=self._clock.monotonic_s(), now_ms=self._clock.now_ms())

    async def _walked(self, asked: ClientsQuestion) -> ConnectionWalk:
        """Look at all connections."""
        walk = self._walk(asked)
        pace = Pace()
        steps = ValueSteps(self._sessions.by_client_id)
        await pace.step()
        while devices := steps.take(_STEP):
            walk.take(devices, 0, len(devices))
            await pace.step()
        if devices is None:
            # Many come and go: all that there are now.
            walk = self._walk(asked)
            devices = self._sessions.all_connected()
            for start in range(0, len(devices), _STEP):
                await pace.step()
                walk.take(devices, start, start + _STEP)
        return walk


def _subscriptions(device: Device) -> Iterator[ClientSubscription]:
    size = 0
    for topic_filter, options in list((device.subscriptions or {}).items())[:_SUBSCRIPTIONS_SHOWN]:
        size += len(topic_filter.encode("utf-8", "surrogatepass")) + 64
        if size > _SUBSCRIPTION_BYTES_SHOWN:
            return
        yield ClientSubscription(**subscription_facts(topic_filter, options))


def _row(device: Device, walk: ConnectionWalk) -> ClientRow:
    numbers = walk.numbers(device)
    version, keep_alive_s, connected_ms, subscriptions = map(int, numbers[:4])
    in_flight, queued, queued_bytes, unsent_bytes, dropped = map(int, numbers[4:9])
    messages_received, messages_sent, bytes_received, bytes_sent = map(int, numbers[10:14])
    peer = device.peer
    return ClientRow(
        client_id=device.client_id or "",
        user=_shown(device.user),
        address=_shown(walk.address(device)),
        listener="" if peer is None else peer.listener,
        certificate=_shown(None if peer is None else peer.certificate_identity),
        version=_VERSIONS.get(version, ""),
        keep_alive_s=keep_alive_s,
        connected_ms=connected_ms,
        is_kept=device.expiry_s != 0,
        subscriptions=subscriptions,
        in_flight=in_flight,
        queued=queued,
        queued_bytes=queued_bytes,
        unsent_bytes=unsent_bytes,
        dropped=dropped,
        latency_ms=round(numbers[9], 3),
        messages_received=messages_received,
        messages_sent=messages_sent,
        bytes_received=bytes_received,
        bytes_sent=bytes_sent,
        messages_received_per_s=round(numbers[14], 3),
        messages_sent_per_s=round(numbers[15], 3),
        bytes_received_per_s=round(numbers[16], 1),
        bytes_sent_per_s=round(numbers[17], 1),
    )


def _shown(text: str | None) -> str:
    return "" if text is None else text[:_SHOWN_CHARACTERS]


def _decoded(form: type[T], body: bytes) -> T:
    try:
        return msgspec.msgpack.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(f"the question cannot be read: {error}") from None
