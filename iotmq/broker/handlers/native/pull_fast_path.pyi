from collections.abc import Callable
from typing import NamedTuple

from iotmq.broker.filters.subscription import SubscriptionData
from iotmq.broker.members.groups import ConsumerGroup, Groups
from iotmq.broker.statistics.statistics import Statistics
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets
from iotmq.remoting.frames.pull_frames import PullFrame
from iotmq.remoting.server import ServerConnection
from iotmq.store.log.queue import Queue
from iotmq.store.queues.reads import Read
from iotmq.store.store import Store

class PlainPull(NamedTuple):
    queue: Queue
    tags: frozenset[int] | None
    consumers: ConsumerGroup | None
    subscription: SubscriptionData | None

class PullPath:
    def __init__(
        self,
        store: Store,
        look_up: Callable[[str, str, int, str | None], PlainPull | None],
        park: Callable[..., bool],
        *,
        offsets: ConsumerOffsets,
        groups: Groups,
        statistics: Statistics,
    ) -> None: ...
    def forget_all(self, name: str = "") -> None: ...
    def serve(self, connection: ServerConnection, frame: PullFrame) -> int: ...
    def answer_parked(
        self, connection: ServerConnection, opaque: int, is_binary: bool, read: Read
    ) -> None: ...
