"""Give the swarms of all processes numbers of their own, so that no two devices have one client id.

The master tells each worker its place before it spawns users. Numbers are given back, and the lowest free
one is next: a swarm that comes back has the devices of the one that left, and finds their kept sessions.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, ClassVar, Final

from locust.runners import MasterRunner, WorkerRunner

if TYPE_CHECKING:
    from locust.env import Environment

_PLACE: Final = "iotmq_place"
# Where a worker begins that came when the others had their places.
_LATE: Final = 10_000


class Numbers:
    """The numbers that this process gives out, for one kind of swarm each."""

    _known: ClassVar[dict[int, Numbers]] = {}

    @classmethod
    def get(cls, environment: Environment) -> Numbers:
        """Return those of an environment."""
        return cls._known.setdefault(id(environment), cls(environment))

    def __init__(self, environment: Environment) -> None:
        self._runner = environment.runner
        # Index among the workers and their count; None until the master has said so.
        self.place: tuple[int, int] | None = None
        self._free: dict[str, list[int]] = {}
        self._next: dict[str, int] = {}

    def take(self, kind: str) -> int:
        """Return the lowest free number."""
        free = self._free.setdefault(kind, [])
        slot = heapq.heappop(free) if free else self._next.get(kind, 0)
        if slot == self._next.get(kind, 0):
            self._next[kind] = slot + 1
        index, count = self.place or self._late_place()
        return slot * count + index

    def give_back(self, kind: str, number: int) -> None:
        """Let the next swarm have a number."""
        _index, count = self.place or self._late_place()
        heapq.heappush(self._free.setdefault(kind, []), number // count)

    def _late_place(self) -> tuple[int, int]:
        if isinstance(self._runner, WorkerRunner):
            return _LATE + max(0, self._runner.worker_index), 2 * _LATE
        return 0, 1


def install(environment: Environment) -> None:
    """Tell workers their places, as a master; take ours, as a worker."""
    runner = environment.runner
    if isinstance(runner, MasterRunner):

        def tell_places(**_: Any) -> None:
            clients = sorted(client.id for client in runner.clients.ready + runner.clients.running)
            for index, client_id in enumerate(clients):
                runner.send_message(_PLACE, {"index": index, "count": len(clients)}, client_id)

        environment.events.test_start.add_listener(tell_places)
    elif isinstance(runner, WorkerRunner):

        def take_place(environment: Environment, msg: Any, **_: Any) -> None:
            Numbers.get(environment).place = (int(msg.data["index"]), int(msg.data["count"]))

        runner.register_message(_PLACE, take_place)
