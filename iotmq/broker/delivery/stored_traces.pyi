from collections.abc import Callable

from iotmq.telemetry.tracing import Tracing

class StoredTraces:
    is_leading: bool
    def __init__(
        self, tracing: Tracing, note: Callable[[int, str, str], None], *, applied_position: int
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def applied_position(self) -> int: ...
    def apply(self, view: memoryview, start_position: int, end_position: int) -> None: ...
