"""The way of notifications to one receiver: tries until it takes what it is to be told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from iotmq.alarms.alarm import Alarm, alarm_id
from iotmq.alarms.notification import Notification
from iotmq.alarms.receivers.sender import DeliveryError, Sender
from iotmq.alarms.settings import ReceiverSettings
from iotmq.backoff import Backoff
from iotmq.clock import Clock

logger = logging.getLogger("iotmq.alarms")

_RETRY_S_MIN: Final = 1.0
_RETRY_S_MAX: Final = 300.0
TEST_ALARM: Final = "test"

Next = Callable[[], tuple[Notification | None, int | None]]
"""Returns what the receiver is to be told now, and when to ask again at the latest, in ms."""
Told = Callable[[Notification], None]


class Delivery:
    """One receiver. `run` is work for `supervise`."""

    def __init__(
        self, settings: ReceiverSettings, sender: Sender, find_next: Next, told: Told, clock: Clock
    ) -> None:
        self.name = settings.name
        self.kind = str(settings.__struct_config__.tag)
        self.level = settings.level
        self._timeout_s = settings.timeout_s
        self._sender = sender
        self._next = find_next
        self._told = told
        self._clock = clock
        self._changed = asyncio.Event()
        self._backoff = Backoff(min_s=_RETRY_S_MIN, max_s=_RETRY_S_MAX)
        # Since when every try has failed; None: the last one has not.
        self._failing_since_s: float | None = None
        self.failed_reason: str | None = None
        """Why the last try failed; None: it did not."""
        self.delivered_count = 0
        self.failed_count = 0
        self.delivered_ms = 0

    @property
    def failing_s(self) -> float:
        """Return for how long every try has failed; 0: the last one has not, or there was nothing to tell."""
        since_s = self._failing_since_s
        return 0.0 if since_s is None else max(0.0, self._clock.monotonic_s() - since_s)

    def changed(self) -> None:
        """There may be something to tell."""
        self._changed.set()

    async def run(self) -> None:
        """Tell the receiver what it is to be told, for ever."""
        while True:
            self._changed.clear()
            notification, due_ms = self._next()
            if notification is None:
                if due_ms is None:
                    # What was not delivered has gone, or nobody wants it told any more.
                    self._failing_since_s, self.failed_reason = None, None
                await self._wait(due_ms)
                continue
            try:
                await self._send(notification)
            except DeliveryError as error:
                self._failed(str(error))
                await asyncio.sleep(self._backoff.next_s())
            else:
                self._told(notification)

    async def test(self) -> None:
        """Send a marked notification. DeliveryError says why it was not taken."""
        await self._send(notification_of_test(self._clock.now_ms()))

    async def close(self) -> None:
        """End the connections."""
        await self._sender.close()

    async def _wait(self, due_ms: int | None) -> None:
        """Wait for a change, or until it is time."""
        wait_s = None if due_ms is None else max(0.0, (due_ms - self._clock.now_ms()) / 1000)
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _send(self, notification: Notification) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._sender.send(notification)
        except TimeoutError:
            raise DeliveryError(f"not taken within {self._timeout_s:g} s") from None
        if self._failing_since_s is not None:
            logger.info("alarms are delivered again", extra={"receiver": self.name})
        self._failing_since_s, self.failed_reason = None, None
        self._backoff.reset()
        self.delivered_count += 1
        self.delivered_ms = self._clock.now_ms()

    def _failed(self, reason: str) -> None:
        self.failed_count += 1
        self.failed_reason = reason
        if self._failing_since_s is None:
            self._failing_since_s = self._clock.monotonic_s()
            logger.warning(
                "alarms are not delivered, and tried again",
                extra={"receiver": self.name, "detail": reason},
            )


def notification_of_test(now_ms: int) -> Notification:
    """Return a notification that says it is a test."""
    alarm = Alarm(
        id=alarm_id(TEST_ALARM, ()),
        name=TEST_ALARM,
        labels=(("test", "yes"),),
        level="info",
        owner="whoever tries it",
        says="a test of this receiver: nothing is wrong",
        what_to_do="Nothing.",
        state="firing",
        value=0,
        since_ms=now_ms,
        fired_ms=now_ms,
    )
    return Notification((("alertname", TEST_ALARM),), (alarm,), (), "tested")
