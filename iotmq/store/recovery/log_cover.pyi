from iotmq.store.log.commit_log import CommitLog

def cover(
    log: CommitLog,
    start_position: int,
    end_position: int,
    losses: list[tuple[bytes, int, int, int]],
    store_timestamp_ms: int,
) -> None: ...
