"""Counts what should be gone with a connection: a test fails when rough ends leave some of it behind."""

from __future__ import annotations

import gc
from collections import Counter

from eventually import soon

from iotmq.broker.light_queues import LightChannel
from iotmq.broker.session_channel import SessionChannel
from iotmq.mqtt_front.device import Device
from iotmq.mqtt_front.durable import DurableSession
from iotmq.mqtt_front.ingress import Batch
from iotmq.mqtt_front.kept_session import QueueSubscription
from iotmq.mqtt_front.shared import SharedSession, SharedSubscription, Source

KINDS = (
    Batch,
    Device,
    DurableSession,
    LightChannel,
    QueueSubscription,
    SessionChannel,
    SharedSession,
    SharedSubscription,
    Source,
)


def live_objects() -> Counter[str]:
    """How many there are of each kind, once everything that nobody refers to is gone."""
    gc.collect()
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, KINDS))


class LiveObjects:
    """What is alive now is what may be alive later; batches are kept for the next use, a few of them."""

    def __init__(self) -> None:
        self.before = live_objects()

    def growth(self) -> Counter[str]:
        return live_objects() - self.before - Counter({"Batch": 2})

    async def check(self, what: str) -> None:
        """Nothing more is alive, as soon as what is under way has ended."""
        grown: Counter[str] = Counter()

        def is_gone() -> bool:
            grown.clear()
            grown.update(self.growth())
            return not grown

        try:
            await soon(is_gone, what, step_s=0.05)
        except AssertionError:
            raise AssertionError(f"alive after {what}: {dict(grown)}") from None
