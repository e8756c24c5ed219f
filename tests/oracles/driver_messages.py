"""Messages as the scripts BenchmarkClient and HiveMqClient of tests/interop/java count them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from eventually import eventually
from piped_client import PipedClient

BYTES = 1024
AGE_MS_MAX = 60_000


class Seen(NamedTuple):
    """A message that a consumer got."""

    producer: int
    number: int
    # -1 when nothing says when it was sent.
    age_ms: int
    size: int


class Subscription:
    """Consumers that share the messages of a topic."""

    def __init__(self, client: PipedClient, members: Sequence[str]) -> None:
        self._client = client
        self.members = members
        self.got: dict[str, list[Seen]] = {member: [] for member in members}
        """What each has got so far."""

    @property
    def messages(self) -> list[tuple[int, int]]:
        """The messages of all members, in order of their numbers."""
        return sorted((seen.producer, seen.number) for got in self.got.values() for seen in got)

    def wait_for(self, producers: int, first: int, count: int) -> None:
        """Wait for `count` messages of each producer from number `first` on, which may come repeatedly."""
        wanted = set(sent(producers, first, count))

        def is_there() -> bool:
            self._take()
            return wanted <= set(self.messages)

        eventually(is_there, f"{len(wanted)} messages at {self.members}")
        for got in self.got.values():
            assert {seen.size for seen in got} <= {BYTES}
            assert all(0 <= seen.age_ms < AGE_MS_MAX for seen in got)

    def forget(self) -> None:
        """Count anew, without what has come so far."""
        self._take()
        self.got = {member: [] for member in self.members}

    def _take(self) -> None:
        for member, got in self.got.items():
            got += [Seen(*each) for each in self._client.call("received", name=member)]


def sent(producers: int, first: int, count: int) -> list[tuple[int, int]]:
    """The numbers of what a call of "send" sends."""
    return [(producer, number) for producer in range(producers) for number in range(first, first + count)]
