"""One request of a producer from the call to its result."""

from __future__ import annotations

import asyncio

from iotmq.client.transport.message import SendResult
from iotmq.client.transport.routes import MessageQueue
from iotmq.remoting.command import Body, Command


class PendingSend:
    """A message, or a batch, over all its tries. A cancelled `future` wants no answer."""

    __slots__ = (
        "body",
        "code",
        "count",
        "deadline_s",
        "fixed_queue",
        "future",
        "has_packet_ids",
        "is_repeat",
        "key",
        "message_id",
        "properties",
        "queue",
        "reply",
        "sent_s",
        "size",
        "sys_flag",
        "timeout_s",
        "topic",
        "tries",
        "user_flag",
    )

    def __init__(
        self,
        topic: str,
        *,
        code: int,
        body: Body,
        size: int,
        count: int,
        key: str,
        fixed_queue: MessageQueue | None,
        properties: str,
        sys_flag: int,
        user_flag: int,
        message_id: str,
        timeout_s: float,
        future: asyncio.Future[SendResult],
        is_repeat: bool = False,
        has_packet_ids: bool = False,
    ) -> None:
        """`is_repeat`: a broker may have it already. `has_packet_ids`: messages have MQTT_PACKET_ID."""
        self.is_repeat = is_repeat
        self.has_packet_ids = has_packet_ids
        self.topic = topic
        self.code = code
        self.body = body
        self.size = size
        self.count = count
        self.key = key
        self.fixed_queue = fixed_queue
        self.properties = properties
        self.sys_flag = sys_flag
        self.user_flag = user_flag
        self.message_id = message_id
        self.timeout_s = timeout_s
        self.deadline_s = 0.0
        """Set when it starts: waiting for room does not count."""
        self.future = future
        self.tries = 0
        self.queue: MessageQueue | None = None
        """The queue of the last try."""
        self.sent_s = 0.0
        """When the last try was written, in loop time."""
        self.reply: asyncio.Future[Command] | None = None
        """The answer being waited for; None between tries."""
