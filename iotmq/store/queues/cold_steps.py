"""Reads of what may be on the disk, as generators: each step says what has to be in memory for the next.

What a step yields is a ColdRead, to be brought in by `Store.load` in a thread, or None where it has taken a
while and somebody else may go first. It touches nothing that is on the disk itself, so it belongs on the
owner's thread, between whatever else runs there. What it returns is the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from iotmq.store.queues.residency import plan_records

if TYPE_CHECKING:
    from iotmq.store.log.commit_log import CommitLog
    from iotmq.store.queues.residency import ColdRead

T = TypeVar("T")
Steps: TypeAlias = "Generator[ColdRead | None, None, T]"

# Most records are no longer; of the others the size is known then.
_FIRST_BYTES: Final = 4096


def finish(steps: Steps[T], load: Callable[[ColdRead], None]) -> T:
    """Return the answer, with everything loaded in the thread that asks."""
    while True:
        try:
            plan = next(steps)
        except StopIteration as finished:
            answer: T = finished.value
            return answer
        if plan is not None:
            load(plan)


def record_steps(
    log: CommitLog, position: int, *, end_position: int, hot_position: int
) -> Steps[memoryview | None]:
    """`CommitLog.read_record`; what stands from `hot_position` on counts as in memory."""
    if log.min_position <= position < min(hot_position, end_position):
        for size in (_FIRST_BYTES, None):
            places = [(position, size_at(log, position) if size is None else size)]
            plan = plan_records(log, places, hot_position=hot_position)
            if plan is not None:
                yield plan
    return log.read_record(position, end_position)


def size_at(log: CommitLog, position: int) -> int:
    """Read the size of the record there, 0 where the log has nothing; touches its first page."""
    try:
        return int.from_bytes(log.view(position, position + 4), "big")
    except ValueError:
        return 0
