"""Replays of dead letters: jobs of this process, one for a group, that go on while brokers come and go."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Literal, TypeAlias

from iotmq import limits
from iotmq.backoff import Backoff
from iotmq.client.admin.dead_letters import Replay, Selection
from iotmq.clock import Clock
from iotmq.console.api.problems import (
    CONFLICT,
    FORBIDDEN,
    INTERNAL,
    INVALID,
    NOT_SUPPORTED,
    TOO_MANY,
    ProblemError,
    from_error,
)
from iotmq.errors import IotmqError
from iotmq.event_loop import happens_within
from iotmq.supervised import FAILURES, end

logger = logging.getLogger("iotmq.http.api")

State: TypeAlias = Literal["running", "waiting", "done", "stopped", "failed"]

# What does not change by itself; all else is tried again so many times, with these pauses: some 15 minutes.
_LASTING: Final = (FORBIDDEN, INVALID, NOT_SUPPORTED)
_TRIES_MAX: Final = 40
_PAUSE_S_MIN: Final = 0.5
_PAUSE_S_MAX: Final = 30.0
# A piece that is being sent when a replay is stopped has so long to arrive.
_STOP_S: Final = 5.0


class ReplayJob:
    """A replay, and how far it is."""

    def __init__(
        self, replay: Replay, selection: Selection, clock: Clock, *, group: str, by: str, per_second: float
    ) -> None:
        self.replay = replay
        self.selection = selection
        self.group = group
        self.by = by
        self.per_second = per_second
        self.started_ms = clock.now_ms()
        self.ended_ms: int | None = None
        self.state: State = "running"
        self.problem = ""
        """The last one, while it waits for brokers and when it has failed."""
        self._clock = clock
        self._task = asyncio.ensure_future(self._run())

    @property
    def is_over(self) -> bool:
        """Return whether nothing more is sent."""
        return self.ended_ms is not None

    async def stop(self) -> None:
        """End behind what is being sent, or without its progress when that takes long."""
        self.replay.stopping.set()
        await asyncio.wait([self._task], timeout=_STOP_S)
        await end([self._task])
        if not self.is_over:
            self._end("stopped")

    async def _run(self) -> None:
        backoff = Backoff(min_s=_PAUSE_S_MIN, max_s=_PAUSE_S_MAX)
        stopping = self.replay.stopping
        while not stopping.is_set():
            try:
                async for _ in self.replay.run():
                    self.state, self.problem = "running", ""
                    backoff.reset()
            except (IotmqError, ConnectionError) as error:
                self.problem = str(error)
                if from_error(error).kind in _LASTING or backoff.failures == _TRIES_MAX:
                    self._end("failed")
                    return
            except Exception:
                FAILURES.note("replay of dead letters")
                self.problem = INTERNAL.title
                self._end("failed")
                return
            else:
                break
            self.state = "waiting"
            await happens_within(stopping, backoff.next_s())
        self._end("stopped" if stopping.is_set() else "done")

    def _end(self, state: State) -> None:
        self.state = state
        self.ended_ms = self._clock.now_ms()
        resent = self.replay.resent
        logger.warning(
            "dead letters were sent again",
            extra={
                "group": self.group,
                "by": self.by,
                "state": state,
                "sent": resent.sent_count,
                "left": resent.left_count,
                "detail": self.problem,
            },
        )


class Replays:
    """The replays of this process: one for each group, and the last one of those that are over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By group, those that began first in front.
        self._jobs: dict[str, ReplayJob] = {}

    def start(
        self, replay: Replay, selection: Selection, *, group: str, by: str, per_second: float
    ) -> ReplayJob:
        """Begin a replay. ProblemError when one of the group goes on, or too many do."""
        self.check(group)
        self._jobs.pop(group, None)
        while len(self._jobs) >= limits.HTTP_REPLAYS_KEPT_MAX:
            del self._jobs[next(name for name, each in self._jobs.items() if each.is_over)]
        job = ReplayJob(replay, selection, self._clock, group=group, by=by, per_second=per_second)
        self._jobs[group] = job
        return job

    def check(self, group: str) -> None:
        """Raise the problem of a replay that cannot begin now."""
        job = self._jobs.get(group)
        if job is not None and not job.is_over:
            raise ProblemError(
                CONFLICT, f"dead letters of {group} are being sent by {job.by}: stop that first"
            )
        if sum(not each.is_over for each in self._jobs.values()) >= limits.HTTP_REPLAYS_MAX:
            raise ProblemError(TOO_MANY, f"{limits.HTTP_REPLAYS_MAX} replays go on already")

    def find(self, group: str) -> ReplayJob | None:
        """Return the replay of a group, or its last one; None when nothing is known of any."""
        return self._jobs.get(group)

    async def stop(self) -> None:
        """End all."""
        await asyncio.gather(*(each.stop() for each in self._jobs.values() if not each.is_over))
