from collections.abc import Collection
from enum import IntEnum

from iotmq.message.records.record_filter import RecordFilter
from iotmq.store.log.commit_log import CommitLog
from iotmq.store.log.queue import Queue

class ReadStatus(IntEnum):
    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8

class Read:
    @property
    def status(self) -> ReadStatus: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def expired_count(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def views(self) -> list[memoryview]: ...
    @property
    def lost(self) -> list[tuple[int, int]]: ...

def read_queue(
    log: CommitLog,
    queue: Queue | None,
    offset: int,
    *,
    records_max: int,
    bytes_max: int,
    tags: Collection[int] | RecordFilter | None = None,
    now_ms: int = 0,
    entries_max: int = 0,
) -> Read: ...
def store_time_at(log: CommitLog, position: int, size: int) -> int: ...
