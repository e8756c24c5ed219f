"""One request of a producer from the call to its result."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from iotmq.client.sending.queue_choice import QueueChoice
from iotmq.client.sending.send_numbers import SendNumbers
from iotmq.client.transport.message import SendResult
from iotmq.client.transport.routes import MessageQueue
from iotmq.remoting.command import Body, Command

PREPARED_FLAG: Final = 4
"""In the sys flag of a message that waits for the end of its transaction."""


class PendingSend(msgspec.Struct, eq=False, kw_only=True):
    """A message, or a batch, over all its tries. A cancelled `future` wants no answer."""

    topic: str
    code: int
    body: Body
    size: int
    count: int = 1
    sends: int = 1
    """Calls that it is counted as while it is in flight."""
    key: str = ""
    fixed_queue: QueueChoice | None
    properties: str = ""
    sys_flag: int = 0
    user_flag: int = 0
    message_id: str
    timeout_s: float
    future: asyncio.Future[SendResult]
    is_movable: bool = False
    """True when its messages may go to another queue, once theirs is gone for good."""
    numbers: SendNumbers | None = None
    """Set when it starts: the numbers of its queue."""
    mark: str = ""
    """The number of this request, as a property."""
    is_repeat: bool = False
    """A broker may have stored it already."""
    is_timed: bool = False
    """The message waits for a time of its own, which brokers of RocketMQ 4 do not know."""
    has_packet_ids: bool = False
    """Messages of the batch have MQTT_PACKET_ID."""
    deadline_s: float = 0.0
    """Set when it starts: waiting for room does not count."""
    tries: int = 0
    queue: MessageQueue | None = None
    """The queue of the last try."""
    broker_by_turn: str = ""
    """The broker that a turn has given it to, until it is done."""
    address: str = ""
    """HOST:PORT that the last try went to."""
    sent_s: float = 0.0
    """When the last try was written, in loop time."""
    reply: asyncio.Future[Command] | None = None
    """The answer of the last try while it is waited for; None between tries."""
