"""A lease among the processes that watch a cluster: who has it tells people of the cluster's alarms.

The lease is the lock of a queue, which brokers give to one client at a time and take back from one that does
not renew it for a minute; that of the live broker whose name is the first. Where no broker answers nobody can
know who has it, and everybody tells: an alarm twice is better than none.
"""

from __future__ import annotations

import logging
from typing import Final

from iotmq.audit_log import AUDIT_TOPIC
from iotmq.client.consuming.members.held_locks import HeldLocks
from iotmq.client.transport.calls import master_addresses
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MessageQueue
from iotmq.clock import Clock
from iotmq.errors import BrokerError, IotmqError, QueueLockedError
from iotmq.remoting.codes import ResponseCode

logger = logging.getLogger("iotmq.alarms")

GROUP: Final = "iotmq_alarms"
LEASE_S: Final = 60.0
"""So long a lease outlives who had it."""
RENEWAL_S: Final = 10.0
FORBIDDEN_S: Final = 600.0
"""After so long one that has refused the account is asked again: each refusal is an audit record there."""


class Lease:
    """The lease of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # In monotonic seconds; set when the account may not have it.
        self._forbidden_until_s = clock.monotonic_s()
        self._locks: HeldLocks | None = None
        self._queue: MessageQueue | None = None
        # Whether another process has it for sure.
        self._is_elsewhere = False

    @property
    def tells(self) -> bool:
        """Return whether this process is to tell people."""
        return not self._is_elsewhere

    async def renew(self, client: ClientTransport) -> None:
        """Get the lease, or renew it, every RENEWAL_S."""
        now_s = self._clock.monotonic_s()
        if now_s < self._forbidden_until_s:
            return
        try:
            await self._hold(client)
            self._is_elsewhere = False
        except QueueLockedError:
            self._is_elsewhere = True
        except (IotmqError, ConnectionError) as error:
            logger.debug("nobody says who has the lease of alarms: %s", error)
            if is_forbidden(error):
                self._forbidden_until_s = now_s + FORBIDDEN_S
            self._is_elsewhere = False

    async def release(self) -> None:
        """Give it back, so that the next one need not wait for it."""
        locks, queue = self._locks, self._queue
        self._locks = self._queue = None
        if locks is not None and queue is not None:
            await locks.release(queue)

    async def _hold(self, client: ClientTransport) -> None:
        """Get the lease, or renew it. QueueLockedError while somebody else has it."""
        first = min(await master_addresses(client))
        queue = MessageQueue(AUDIT_TOPIC, first, 0)
        if self._locks is not None and queue == self._queue:
            await self._locks.renew()
            if self._locks.is_held(queue):
                return
        await self.release()
        locks = HeldLocks(client, GROUP, lambda _queue: None)
        await locks.hold(queue)
        self._locks, self._queue = locks, queue


def is_forbidden(error: Exception) -> bool:
    """Return whether a broker or registry has refused the account of the process."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION
