from iotmq.store.projections.key_index.index_file import IndexFile
from iotmq.store.queues.residency import ColdRead

class Lookup:
    def __init__(
        self, files: list[IndexFile], key: str, *, begin_ms: int, end_ms: int, is_patient: bool
    ) -> None: ...
    @property
    def absent(self) -> ColdRead | None: ...
    def next_position(self) -> int: ...
