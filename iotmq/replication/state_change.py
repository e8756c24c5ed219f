"""One change of the replication state at a time, until it is known whether the consensus store has made it.

An answer that does not come leaves it open: the request may still be on its way, and be carried out after any
later read. So a change is asked for again, with the same version to replace, until there is an answer; a
refusal says that the version is another one now, and a read then shows whether this change was the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from iotmq.replication.cluster_state import ClusterState
from iotmq.replication.messages import Action, ReadState, ReplaceState


class StateChange:
    """The state as it was last known, and the change that is asked for."""

    def __init__(
        self,
        state: ClusterState,
        version: int,
        do: Callable[[Action], None],
        *,
        numbers: Iterator[int],
        retry_s: float,
    ) -> None:
        """`numbers` counts all requests of the member."""
        self.state = state
        self.version = version
        self._do = do
        self._numbers = numbers
        self._retry_s = retry_s
        self._proposed: ClusterState | None = None
        self._asked_s = 0.0
        # The consensus store has refused it; a read will say why.
        self._is_refused = False
        # Of the first request of the change: answers to earlier ones are of no interest.
        self._number_first = 0

    @property
    def is_pending(self) -> bool:
        """Return whether a change may or may not have been made."""
        return self._proposed is not None

    @property
    def pending(self) -> tuple[ClusterState, ...]:
        """Return the state asked for, if any."""
        return () if self._proposed is None else (self._proposed,)

    def propose(self, state: ClusterState, now_s: float) -> None:
        """Ask for a change. There must be none under way."""
        assert self._proposed is None
        self._proposed = state
        self._is_refused = False
        self._number_first = self._ask(now_s)

    def tick(self, now_s: float) -> None:
        """Ask again for what was not answered."""
        if self._proposed is not None and now_s - self._asked_s >= self._retry_s:
            self._ask(now_s)

    def replaced(self, number: int, version: int | None, now_s: float) -> bool:
        """Take the answer to a request, None for a refusal; return whether the change is made."""
        if self._proposed is None or number < self._number_first:
            return False
        if version is None:
            self._is_refused = True
            self._ask(now_s)
            return False
        self.state, self.version, self._proposed = self._proposed, version, None
        return True

    def seen(self, state: ClusterState, version: int) -> bool:
        """Take a state that was read; return whether it is news."""
        if version <= self.version:
            return False
        self.state, self.version = state, version
        # What was asked for replaces an earlier version: it was made before this one, or never will be.
        self._proposed = None
        return True

    def _ask(self, now_s: float) -> int:
        assert self._proposed is not None
        self._asked_s = now_s
        number = next(self._numbers)
        if self._is_refused:
            self._do(ReadState(number))
        else:
            self._do(ReplaceState(number, self.version, self._proposed))
        return number
