"""Know since when the offsets of a topic mean the records they mean now, for readers that keep their own.

A reader that stores offsets elsewhere (Spark's checkpoint) stores a *generation* with them: where the log and
the topic were when it read. Later it asks from which offset on a queue has other records than it has seen.
Two things can give offsets to other records:

- The log has lost its end: a power cut, a copy that was put back, an empty disk. Every start of a master
  begins a generation of the log at the position where the log ended then (`logGenerations.json`). Below that
  position nothing is new to a reader of a former one. A replicated broker has this already: its epochs.
- The topic was deleted and made anew: its configuration has the position of the log at which it was made.

So a generation is two numbers, written ``NUMBER-POSITION``. Readers need not understand it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from iotmq import limits
from iotmq.broker.tables.config_files import ConfigFile
from iotmq.broker.tables.topics import TopicConfig
from iotmq.clock import Clock
from iotmq.errors import RefusedError, RequestError
from iotmq.remoting.codes import ResponseCode
from iotmq.store.log.queue import Queue

logger = logging.getLogger(__name__)

#: (number, position) of every beginning, oldest first; numbers and positions rise.
Beginnings = Sequence[tuple[int, int]]


class Change(NamedTuple):
    """From `offset` on a queue has other records than it had in a generation."""

    offset: int
    reason: Literal["cut", "anew"]


class LogGenerationTable(msgspec.Struct, kw_only=True, rename="camel"):
    """The shape of logGenerations.json."""

    log_generations: list[tuple[int, int]] = []


class LogGenerations:
    """The starts of a broker whose log is its own, with what each found to be the log's end."""

    def __init__(
        self, path: Path, clock: Clock, *, generations_max: int = limits.LOG_GENERATIONS_MAX
    ) -> None:
        self._file = ConfigFile(path)
        self._clock = clock
        self._generations_max = generations_max
        self._beginnings = (self._file.read(LogGenerationTable) or LogGenerationTable()).log_generations

    def __call__(self) -> Beginnings:
        return self._beginnings

    def begin(self, *, min_position: int, end_position: int) -> None:
        """Begin a generation at the log's end, on the disk by the return; before anything is appended.

        Numbers are times, so that a copy of the directory that is put back, or an empty one, does not give
        one that a reader knows already. A disk that takes nothing is no reason not to start: the next
        start's generation is later, too.
        """
        last = self._beginnings[-1][0] if self._beginnings else 0
        kept = [begun for begun in self._beginnings if begun[1] < end_position]
        # Of those in front of the log one is enough: nobody reads there.
        passed = sum(position < min_position for _, position in kept)
        kept = [*kept[max(0, passed - 1) :], (max(last + 1, self._clock.now_ms()), end_position)]
        while len(kept) > self._generations_max:
            # Readers older than both are told of more than was lost, never of less.
            kept[:2] = [(kept[1][0], kept[0][1])]
        self._beginnings = kept
        table = LogGenerationTable(log_generations=kept)
        try:
            self._file.write(msgspec.json.encode(table), is_synced=True)
        except OSError as error:
            logger.warning("cannot write %s: %s", self._file.path, error)


class Generations:
    """Gives readers the generation of a topic, and says what has changed since an older one."""

    def __init__(self, beginnings: Callable[[], Beginnings], *, is_replicated: bool) -> None:
        self._beginnings = beginnings
        self._is_replicated = is_replicated

    def current(self, topic: TopicConfig) -> str:
        """Return the generation of a topic; "" where nobody can say, as at a slave."""
        beginnings = self._beginnings()
        return f"{beginnings[-1][0]}-{topic.made_at}" if beginnings else ""

    def change(self, topic: TopicConfig, queue: Queue | None, since: str) -> Change | None:
        """Return from where on a queue of `topic` differs from what it was; None when it does not.

        `queue` is None when there is none of that number. RequestError for a generation that cannot have
        been this broker's, and (15) for one of a newer master.
        """
        if not since or not self._beginnings():
            return None
        number, made_at = _parsed(since)
        cut_position = self._cut_since(number)
        positions: list[tuple[int, Literal["cut", "anew"]]] = []
        if cut_position is not None:
            positions.append((cut_position, "cut"))
        if made_at != topic.made_at:
            positions.append((topic.made_at, "anew"))
        if not positions:
            return None
        position, reason = min(positions)
        return Change(0 if queue is None else queue.first_from(position), reason)

    def _cut_since(self, number: int) -> int | None:
        beginnings = self._beginnings()
        if number > beginnings[-1][0]:
            if self._is_replicated:
                raise RequestError(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"this broker knows no generation {number}: there is a newer master",
                )
            # The directory is another one, of a machine whose clock is behind.
            return 0
        return next((position for begun, position in beginnings if begun > number), None)


def _parsed(text: str) -> tuple[int, int]:
    number, _, made_at = text.partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (number, made_at)):
        raise RefusedError(f"the field generation is not like 1700000000000-4096: {text[:40]!r}")
    return int(number), int(made_at)
