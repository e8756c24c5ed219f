"""Connections of a worker process, kept from one task to the next.

Spark's workers do task after task in one process, and connecting costs more than a small task's reading. One
task takes what another has put back, and puts it back itself when it ended well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from iotmq.bridge.cluster import Cluster
from iotmq.clock import Clock, SystemClock

#: Kept by a process: as many as tasks with different options that take turns in it.
KEPT_MAX: Final = 8
# Brokers close connections that were silent for two minutes.
_IDLE_S_MAX: Final = 30.0


class _Kept(NamedTuple):
    key: Hashable
    cluster: Cluster
    since_s: float


class Pool:
    """Clusters that nobody uses at the moment, by what they were made with; the oldest go first."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._lock = threading.Lock()
        self._kept: list[_Kept] = []

    def take(self, key: Hashable, make: Callable[[], Cluster]) -> Cluster:
        """Return a cluster made with the same, or a new one; until it is put back it is only the caller's."""
        with self._lock:
            self._close_idle()
            for at in range(len(self._kept) - 1, -1, -1):
                if self._kept[at].key == key:
                    return self._kept.pop(at).cluster
        return make()

    def put_back(self, key: Hashable, cluster: Cluster) -> None:
        """Keep a cluster that has no answers under way."""
        with self._lock:
            self._kept.append(_Kept(key, cluster, self._clock.monotonic_s()))
            self._close_idle()
            while len(self._kept) > KEPT_MAX:
                self._kept.pop(0).cluster.close()

    def _close_idle(self) -> None:
        """Close those kept for too long; they stand at the front."""
        oldest_s = self._clock.monotonic_s() - _IDLE_S_MAX
        while self._kept and self._kept[0].since_s < oldest_s:
            self._kept.pop(0).cluster.close()


#: That of this process. A process forked from it would share its connections: Spark forks only workers that
#: have done no task yet.
connections: Final = Pool()
