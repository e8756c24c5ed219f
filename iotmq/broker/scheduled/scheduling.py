"""Messages that wait for a time, as one part of the broker: the delay levels and any other time.

They are stored in two topics of the broker's own and are in one index (store/kv/timer_index.py). timers.py
delivers and cancels, timer_rolls.py keeps them while old log files go, delay_offsets.py tells others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.scheduled.delay_levels import DelayLevels, without_properties
from iotmq.broker.scheduled.delay_offsets import DelayOffsets, DelayOffsetTable
from iotmq.broker.scheduled.timer_rolls import TimerRolls
from iotmq.broker.scheduled.timers import Timers
from iotmq.broker.scheduled.unflushed_deliveries import UnflushedDeliveries
from iotmq.metrics import Metric

__all__ = ("DelayDelivery", "DelayLevels", "DelayOffsetTable", "without_properties")

# Slices of waiting messages that are fetched from the disk at a time, and the threads that do it.
_FETCHES_MAX: Final = 256
_THREADS_MAX: Final = 2


class DelayDelivery:
    """Everything about waiting messages.

    `timers` is what other parts build on; `offsets` says how far each delay level was delivered.
    """

    def __init__(self, parts: BrokerParts) -> None:
        store = parts.store
        self.levels = DelayLevels(parts.settings.delay_levels, parts.clock)
        self._ended = ended = UnflushedDeliveries(store)
        # Its own: what is due must not wait behind consumers that read old messages.
        self._cold_reads = ColdReads(store, threads_max=_THREADS_MAX, waiting_max=_FETCHES_MAX)
        self.timers = Timers(parts, self.levels, ended, self._cold_reads)
        self.offsets = DelayOffsets(store, self.levels, ended, parts.config / "delayOffset.json")
        self._rolls = TimerRolls(store, self.timers, ended, parts.clock)
        store.held_position = self._rolls.held_position

    def start(self) -> None:
        """Deliver what fell due meanwhile, and everything else from now on."""
        self._ended.start()
        self.offsets.start()
        self.timers.start()

    def stop(self) -> None:
        self._rolls.stop()
        self.timers.stop()
        self._cold_reads.stop()

    def deliver(self) -> None:
        """Hand over what is due now; a timer does it anyway."""
        self.timers.deliver()

    def divert_committed(self, topic: str, queue_id: int, properties: bytes) -> tuple[str, int, bytes]:
        """Return where a committed transaction's message goes.

        To its queue, or to wait for its time first.
        """
        delivery_time = self.timers.read_delivery_time(properties)
        if not delivery_time.level and not delivery_time.due_ms:
            return topic, queue_id, properties
        return self.timers.divert(topic, queue_id, properties, delivery_time, is_counted=False)[:3]

    def roll(self) -> None:
        """Make way for retention; to be called about every second."""
        self._rolls.run()

    def metrics(self) -> Iterable[Metric]:
        yield from self.timers.metrics()
        yield from self._rolls.metrics()
