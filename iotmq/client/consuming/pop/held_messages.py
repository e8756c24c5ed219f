"""Count the messages that a pop consumer holds, and notice whose time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from iotmq.client.consuming.pop.popped_calls import PoppedCalls
from iotmq.client.consuming.pop.popped_message import PoppedMessage


class HeldMessages:
    """The credit of a consumer: what it holds and what it has asked for are at most `count_max` messages.

    A message that nobody settles stops counting when its time is over. When it was not even returned, nothing
    more is asked for until the application asks again: each time that a message is got counts as an attempt.
    """

    def __init__(
        self,
        *,
        count_max: int,
        bytes_max: int,
        invisible_s: float,
        is_unread: Callable[[PoppedMessage], bool],
        calls: PoppedCalls | None,
    ) -> None:
        """`is_unread` says of a message whose time is over whether the application has not got it; `calls`
        are told what becomes of those that it has got."""
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._invisible_s = invisible_s
        # Whose time is over first is first: all have the same time.
        self._held: dict[PoppedMessage, int] = {}
        self.bytes = 0
        self.reserved = 0
        """Messages asked for that may still come."""
        self.expired_total = 0
        """Messages whose time was over before they were settled."""
        self._is_unread = is_unread
        self._calls = calls
        self._is_resting = False
        self._has_room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, message: PoppedMessage) -> bool:
        return message in self._held

    @property
    def free(self) -> int:
        """Return how many more may be asked for."""
        if self._is_resting or self.bytes >= self._bytes_max:
            return 0
        return max(0, self._count_max - len(self._held) - self.reserved)

    def wanted(self) -> None:
        """Note that the application asks."""
        if self._is_resting:
            self._is_resting = False
            self._has_room.set()

    async def wait_for_room(self) -> None:
        """Return when more may be asked for."""
        while not self.free:
            self._has_room.clear()
            await self._has_room.wait()

    def unreserve(self, count: int) -> None:
        """Note that so many messages that were asked for do not come any more, or are held now."""
        self.reserved -= count
        self._has_room.set()

    def hold(self, message: PoppedMessage) -> None:
        """Count a message from now on, with its whole time; again when it has more time."""
        self.bytes += message.record.size - self._held.pop(message, 0)
        loop = asyncio.get_running_loop()
        message.due_s = loop.time() + self._invisible_s
        self._held[message] = message.record.size
        if self._timer is None:
            self._timer = loop.call_at(message.due_s, self._expire)

    def release(self, message: PoppedMessage, *, is_consumed: bool = False) -> None:
        """Count a message no more: it is consumed, or has failed."""
        if self._calls is not None:
            self._calls.ended(message, is_consumed=is_consumed)
        size = self._held.pop(message, None)
        if size is not None:
            self.bytes -= size
            self._has_room.set()

    def clear(self) -> None:
        """Count nothing any more."""
        if self._calls is not None:
            self._calls.stopped()
        self._held.clear()
        self.bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        while self._held:
            message = next(iter(self._held))
            if message.due_s > now_s:
                self._timer = loop.call_at(message.due_s, self._expire)
                return
            self.expired_total += 1
            self._is_resting |= self._is_unread(message)
            self.release(message)
