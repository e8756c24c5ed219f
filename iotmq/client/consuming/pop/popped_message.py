"""A message that its consumer holds for a time, and its receipt."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from iotmq.client.transport.message import StoredMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.message.records.record import Record


class Receipt(NamedTuple):
    """Name a pop to its broker: one for all messages that it has given of one queue."""

    start_offset: int
    popped_ms: int
    invisible_ms: int
    revive_queue: int
    kind: str

    def text(self, queue: MessageQueue, offset: int) -> str:
        """Encode it for one message, as requests have it."""
        return (
            f"{self.start_offset} {self.popped_ms} {self.invisible_ms} {self.revive_queue} {self.kind} "
            f"{queue.broker_name} {queue.queue_id} {offset}"
        )


class Settler(Protocol):
    """Define what a message needs of its consumer."""

    async def ack(self, message: PoppedMessage) -> None:
        """End a message."""

    async def nak(self, message: PoppedMessage, delay_ms: int) -> None:
        """Give a message back."""

    async def in_progress(self, message: PoppedMessage) -> None:
        """Hold a message longer."""

    async def term(self, message: PoppedMessage) -> None:
        """Have a message dead."""


class PoppedMessage(StoredMessage):
    """A message that nobody else of the group gets while its time lasts (`invisible_ms`).

    Each of its four calls returns when the broker has stored the decision, and is tried again while the
    broker is away and the time lasts. ReceiptExpiredError when the message is somebody else's already.
    """

    __slots__ = ("_settler", "due_s", "receipt")

    def __init__(self, queue: MessageQueue, record: Record, receipt: Receipt, settler: Settler) -> None:
        super().__init__(queue, record)
        self.receipt = receipt
        """The name of its pop; another one after `in_progress`."""
        self.due_s: float = 0.0
        """When its time is over, by the event loop's clock."""
        self._settler = settler

    @property
    def attempt(self) -> int:
        """Return how often the group has got it, this time included: 1 at first."""
        return self.record.reconsume_times + 1

    async def ack(self) -> None:
        """End the message: it is consumed. A second time changes nothing."""
        await self._settler.ack(self)

    async def nak(self, delay_ms: int = 0) -> None:
        """Give the message back. The group gets it again after the delay, or it is a dead letter when that
        was its last attempt."""
        await self._settler.nak(self, delay_ms)

    async def in_progress(self) -> None:
        """Hold the message for `invisible_ms` from now on."""
        await self._settler.in_progress(self)

    async def term(self) -> None:
        """Fail the message for good: it goes to the dead letters of the group now."""
        await self._settler.term(self)
