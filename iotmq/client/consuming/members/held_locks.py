"""Hold locks of queues at their brokers, so that one member of a group at most consumes each in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from iotmq.client.transport.calls import ask, broker_address
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import IotmqError, QueueLockedError
from iotmq.limits import LOCKED_QUEUES_PER_REQUEST_MAX
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode

_log = logging.getLogger(__name__)

# Brokers give a lock to somebody else when it was not renewed for 60 s.
_RENEWAL_S: Final = 20.0
_TRUSTED_S: Final = 30.0
_GIVEN_AWAY_S: Final = 55.0


class _WireQueue(msgspec.Struct, rename="camel"):
    topic: str
    broker_name: str
    queue_id: int


class _LockRequest(msgspec.Struct, rename="camel"):
    client_id: str
    consumer_group: str
    mq_set: list[_WireQueue]


class _Locked(msgspec.Struct):
    locked: list[_WireQueue] = msgspec.field(name="lockOKMQSet", default_factory=list)


class HeldLocks:
    """The locks of one member of a group.

    A lock is trusted for 30 s after the request that got or renewed it. Not renewed in that time it is kept,
    and nothing is consumed under it until it is renewed; `lost` is called when another member may have had
    the queue meanwhile.
    """

    def __init__(self, client: ClientTransport, group: str, lost: Callable[[MessageQueue], None]) -> None:
        self._client = client
        self._group = group
        self._lost = lost
        self._renewed_s: dict[MessageQueue, float] = {}
        self._renewals = asyncio.Event()
        self.on_renewed: Callable[[], None] | None = None
        """Called when locks were renewed, which may have been too old before."""

    async def hold(self, queue: MessageQueue) -> None:
        """Lock a queue; QueueLockedError while another member has it."""
        asked_s = self._client.clock.monotonic_s()
        if queue not in await self._ask(RequestCode.LOCK_BATCH_QUEUES, [queue]):
            raise QueueLockedError("another member of the group has its lock", **queue._asdict())
        self._renewed_s[queue] = asked_s

    def is_held(self, queue: MessageQueue) -> bool:
        """Return whether nobody else can have the queue now."""
        renewed_s = self._renewed_s.get(queue)
        return renewed_s is not None and self._client.clock.monotonic_s() - renewed_s < _TRUSTED_S

    async def until_held(self, queue: MessageQueue) -> None:
        """Return when the queue is held; for one that is lost only the end of the calling task helps."""
        while not self.is_held(queue):
            self._renewals.clear()
            await self._renewals.wait()

    async def release(self, queue: MessageQueue) -> None:
        """Unlock a queue, so that the next member need not wait for a minute."""
        # Also one that was asked for and not answered yet.
        self._renewed_s.pop(queue, None)
        try:
            await self._ask(RequestCode.UNLOCK_BATCH_QUEUES, [queue])
        except IotmqError as error:
            _log.info("the lock of %s is not released: %s", queue, error)

    async def renew_forever(self) -> None:
        """Renew all locks every 20 s: work for `supervise`."""
        while True:
            await asyncio.sleep(_RENEWAL_S)
            await self.renew()

    async def renew(self) -> None:
        """Renew all locks; those that are lost are told."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in self._renewed_s:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        await asyncio.gather(
            *(
                self._renew(queues[at : at + LOCKED_QUEUES_PER_REQUEST_MAX])
                for queues in by_broker.values()
                for at in range(0, len(queues), LOCKED_QUEUES_PER_REQUEST_MAX)
            )
        )
        self._renewals.set()
        if self.on_renewed is not None:
            self.on_renewed()

    async def _renew(self, queues: list[MessageQueue]) -> None:
        asked_s = self._client.clock.monotonic_s()
        try:
            locked = set(await self._ask(RequestCode.LOCK_BATCH_QUEUES, queues))
        except IotmqError as error:
            _log.warning("%d locks of group %s are not renewed now: %s", len(queues), self._group, error)
            return
        for queue in queues:
            before_s = self._renewed_s.get(queue)
            if before_s is None:
                continue  # released meanwhile
            if queue in locked and asked_s - before_s < _GIVEN_AWAY_S:
                self._renewed_s[queue] = asked_s
            else:
                del self._renewed_s[queue]
                _log.warning("group %s has lost the lock of %s", self._group, queue)
                self._lost(queue)

    async def _ask(self, code: int, queues: Collection[MessageQueue]) -> list[MessageQueue]:
        """Ask the broker that has all `queues`; returns those that are locked for this member."""
        first = next(iter(queues))
        body = msgspec.json.encode(
            _LockRequest(
                self._client.client_id,
                self._group,
                [_WireQueue(queue.topic, queue.broker_name, queue.queue_id) for queue in queues],
            )
        )
        address = await broker_address(self._client, first)
        doing = f"locks of group {self._group} at broker {first.broker_name}"
        response = await ask(self._client, address, code, body=body, doing=doing)
        if code == RequestCode.UNLOCK_BATCH_QUEUES:
            return []
        locked = lenient_json.decode(response.body, _Locked).locked
        return [MessageQueue(queue.topic, queue.broker_name, queue.queue_id) for queue in locked]
