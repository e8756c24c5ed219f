"""Pull messages of a queue: one request and its answer, and one after the other with pauses between."""

from __future__ import annotations

import asyncio
import enum
from typing import Final

import msgspec

from iotmq.backoff import Backoff
from iotmq.client.transport.calls import asking, broker_address
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.routes import MASTER_ID, MessageQueue
from iotmq.client.transport.settings import PullConsumerSettings, PushConsumerSettings
from iotmq.client.transport.subscriptions import Subscription
from iotmq.errors import BrokerError
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

_MAY_HOLD: Final = 2
_HAS_SUBSCRIPTION: Final = 4


class PullStatus(enum.Enum):
    """The result of a pull; the values are the response codes."""

    FOUND = 0
    NOTHING_NEW = 19
    """The queue has nothing at this offset yet."""
    NOTHING_WANTED = 20
    """Messages were looked at and none passed the filter: go on at the next offset."""
    OFFSET_MOVED = 21
    """The offset is outside of the queue; `next_offset` is the nearest inside."""


_STATUSES: Final = {status.value: status for status in PullStatus}


class Pulled(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The answer to one pull."""

    status: PullStatus
    next_offset: int
    """Where to go on: behind everything looked at, filtered messages included."""
    min_offset: int
    max_offset: int
    """The queue's next offset to be written, when the pull was answered."""
    preferred_broker_id: int
    """The broker (0 master, else a slave) that the next pull should go to."""
    records: bytes | memoryview
    """Records one after another; empty unless FOUND."""


def pull_command(
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    records_max: int,
    bytes_max: int,
    hold_ms: int,
    subscription: Subscription,
) -> Command:
    """Build a pull. It carries the subscription, so it works before the broker has seen a heartbeat."""
    return Command.request(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(records_max),
            "sysFlag": str(_HAS_SUBSCRIPTION | _MAY_HOLD if hold_ms else _HAS_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(hold_ms),
            "subscription": subscription.expression,
            "subVersion": str(subscription.version_ms),
            "expressionType": subscription.expression_type,
            # Unknown to brokers before 5.0, which give at most 32 messages and 256 KiB.
            "maxMsgBytes": str(bytes_max),
            "bname": queue.broker_name,
        },
    )


def read_pulled(response: Command, queue: MessageQueue) -> Pulled:
    """Read the answer to a pull; BrokerError when the broker refused it or a field is missing or wrong."""
    status = _STATUSES.get(response.code)
    if status is None:
        raise BrokerError(
            response.code,
            f"broker {queue.broker_name} refuses to give messages of {queue.topic} queue {queue.queue_id}: "
            f"{response.remark or 'no reason given'}",
        )
    body = response.body
    with asking(f"pull from {queue}"):
        return Pulled(
            status=status,
            next_offset=response.integer("nextBeginOffset"),
            min_offset=response.integer("minOffset", 0),
            max_offset=response.integer("maxOffset", 0),
            preferred_broker_id=response.integer("suggestWhichBrokerId", 0),
            records=b"".join(body) if isinstance(body, list) else body,
        )


class PollBackoff:
    """Pauses after pulls that bring nothing, for brokers that answer them at once instead of holding them."""

    __slots__ = ("_last_empty_s", "_longest_s", "_pauses")

    def __init__(self, *, shortest_s: float, longest_s: float) -> None:
        self._longest_s = longest_s
        self._pauses = Backoff(min_s=shortest_s, max_s=longest_s)
        self._last_empty_s = 0.0

    def reset(self) -> None:
        """Make the next pause the shortest again, because messages came."""
        self._pauses.reset()

    async def after_empty(self) -> None:
        """Pause after an empty answer, unless the broker held the pull as long as the longest pause."""
        now_s = asyncio.get_running_loop().time()
        last_s, self._last_empty_s = self._last_empty_s, now_s
        if now_s - last_s < self._longest_s:
            await asyncio.sleep(self._pauses.next_s())
        else:
            self._pauses.reset()


class QueuePulls:
    """Pull one queue again and again, at the broker it names; pause where pulls fail or bring nothing."""

    def __init__(
        self,
        client: ClientTransport,
        group: str,
        queue: MessageQueue,
        subscription: Subscription,
        settings: PushConsumerSettings | PullConsumerSettings,
        poll_backoff: PollBackoff,
    ) -> None:
        self.client = client
        self.queue = queue
        self.subscription = subscription
        self.poll_backoff = poll_backoff
        self.failures = reconnect_backoff(client)
        """Pauses after pulls that fail."""
        self.pulled_ms = 0
        """When the broker was last asked; 0 for never."""
        self.broker_id = MASTER_ID
        """The broker to pull from, as the last answer told."""
        self.group = group
        self._settings = settings
        self._master: str | None = None
        """The address of the queue's master when the broker was last asked."""

    async def rest(self) -> None:
        """Pause after a pull that failed, unless or until the queue's master is another one."""
        pause_s = self.failures.next_s()
        before, self._master = self._master, self._present_master()
        if before is None or before == self._master:
            await self.client.masters.moved_within(pause_s)

    def _present_master(self) -> str | None:
        route = self.client.routes.known(self.queue.topic)
        return None if route is None else route.master(self.queue.broker_name)

    async def pull(self, offset: int) -> Pulled:
        """Ask for messages from `offset` on; raises as a request does, and BrokerError for a refusal."""
        settings = self._settings
        address = await broker_address(self.client, self.queue, self.broker_id)
        self._master = self._present_master()
        command = pull_command(
            self.group,
            self.queue,
            offset,
            records_max=settings.pull_records_max,
            bytes_max=settings.pull_bytes_max,
            hold_ms=settings.hold_ms,
            subscription=self.subscription,
        )
        self.pulled_ms = self.client.clock.now_ms()
        response = await self.client.request(address, command, timeout_s=settings.pull_timeout_ms / 1000)
        pulled = read_pulled(response, self.queue)
        if pulled.status is PullStatus.FOUND and pulled.next_offset <= offset:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR,
                f"{self.queue}: the broker's answer at offset {offset} leads to offset {pulled.next_offset}",
            )
        self.broker_id = pulled.preferred_broker_id
        return pulled


def reconnect_backoff(client: ClientTransport) -> Backoff:
    """Make pauses as long as those between tries to connect."""
    return Backoff(
        min_s=client.settings.reconnect_ms_min / 1000, max_s=client.settings.reconnect_ms_max / 1000
    )
