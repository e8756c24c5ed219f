from collections.abc import Callable

from iotmq.store.log.commit_log import CommitLog
from iotmq.store.projections.catch_up import CatchUpProgress
from iotmq.store.projections.projection import Projection
from iotmq.store.queues.consume_queue import ConsumeQueue

class Dispatch:
    @property
    def confirmed_position(self) -> int: ...
    @property
    def projections(self) -> list[Projection]: ...
    @property
    def failed_count(self) -> int: ...
    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueue,
        projections: list[Projection],
        confirmed_position: int,
        verify: Callable[[int], int],
    ) -> None: ...
    def start_at(self, position: int) -> None: ...
    def run(self, end_position: int, progress: CatchUpProgress | None = None) -> int: ...
