"""Have interceptors see the messages that a pop consumer returns, and what becomes of them."""

from __future__ import annotations

import msgspec

from iotmq.client.consuming.pop.popped_message import PoppedMessage
from iotmq.client.transport.interceptors import ConsumeCalls, Consuming
from iotmq.errors import ClientClosedError


class _Returned(msgspec.Struct, eq=False):
    """Messages that were returned together."""

    consuming: Consuming
    left: int
    """How many of them are neither settled nor over."""
    failed: list[PoppedMessage]


class PoppedCalls:
    """The calls of interceptors around what one consumer returns: those of a call end together."""

    def __init__(self, calls: ConsumeCalls) -> None:
        self._calls = calls
        # No more than are held.
        self._open: dict[PoppedMessage, _Returned] = {}

    def returned(self, messages: list[PoppedMessage]) -> None:
        """Tell of messages that the program gets."""
        consuming = self._calls.begin(messages[0].queue, messages, is_asked=True)
        self._open |= dict.fromkeys(messages, _Returned(consuming, len(messages), []))

    def ended(self, message: PoppedMessage, *, is_consumed: bool) -> None:
        """Note what has become of a message; what follows that is not looked at."""
        returned = self._open.pop(message, None)
        if returned is None:
            return
        if not is_consumed:
            returned.failed.append(message)
        returned.left -= 1
        if not returned.left:
            self._calls.end(returned.consuming, returned.failed)

    def stopped(self) -> None:
        """Note that the consumer has ended: what becomes of its messages is not looked at any more."""
        left, self._open = self._open, {}
        for message, returned in left.items():
            returned.failed.append(message)
            returned.left -= 1
            if not returned.left:
                error = ClientClosedError("the consumer was stopped before all of them were settled")
                self._calls.end(returned.consuming, returned.failed, error)
