"""Encode a pull, the request for messages of a queue from an offset on, and read its answer."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.subscriptions import Subscription
from iotmq.errors import BrokerError
from iotmq.remoting.codes import RequestCode
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
    """Read the answer to a pull; BrokerError when the broker refused it or a field is missing."""
    status = _STATUSES.get(response.code)
    if status is None:
        raise BrokerError(
            response.code,
            f"broker {queue.broker_name} refuses to give messages of {queue.topic} queue {queue.queue_id}: "
            f"{response.remark or 'no reason given'}",
        )
    body = response.body
    return Pulled(
        status=status,
        next_offset=response.integer("nextBeginOffset"),
        min_offset=response.integer("minOffset", 0),
        max_offset=response.integer("maxOffset", 0),
        preferred_broker_id=response.integer("suggestWhichBrokerId", 0),
        records=b"".join(body) if isinstance(body, list) else body,
    )
