"""What becomes of requests to a consensus store that does not answer, and of the first state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from iotmq.errors import ConsensusUnavailableError
from iotmq.member.consensus_requests import Beats, ConsensusRequests
from iotmq.replication.cluster_state import ClusterState, Identity
from iotmq.replication.consensus.port import SignOfLife, Versioned
from iotmq.replication.messages import ReplaceState

STATE = ClusterState(epoch=1, master=1, in_sync=(Identity(1, "a"),))


class Store:
    """A consensus store that answers until it is away."""

    def __init__(self) -> None:
        self.value: Versioned | None = None
        self.is_away = False

    def _answer(self) -> None:
        if self.is_away:
            raise ConsensusUnavailableError("away")

    async def read(self) -> Versioned | None:
        self._answer()
        return self.value

    async def create(self, value: bytes) -> int | None:
        self._answer()
        if self.value is not None:
            return None
        self.value = Versioned(1, value)
        return 1

    async def replace(self, version: int, value: bytes) -> int | None:
        self._answer()
        self.value = Versioned(version + 1, value)
        return version + 1

    async def watch(self, changed: Callable[[], None]) -> None:
        raise AssertionError

    async def beat(self, member: int, value: bytes) -> None:
        raise AssertionError

    async def beats(self) -> Mapping[int, SignOfLife]:
        raise AssertionError

    async def withdraw(self, member: int) -> None:
        self._answer()

    async def label_pod(self, *, is_master: bool) -> None:
        self._answer()

    async def close(self) -> None:
        """Nothing is open."""


class Answers:
    """Take down what is heard."""

    def __init__(self, first: ClusterState | None = None) -> None:
        self.first = first
        self.heard: list[object] = []

    def state_read(self, number: int, version: int, state: ClusterState) -> None:
        self.heard.append((number, version, state))

    def state_missing(self) -> ClusterState | None:
        return self.first

    def state_replaced(self, number: int, version: int | None) -> None:
        self.heard.append((number, version))

    def poked(self) -> None:
        self.heard.append("poked")

    def beaten(self, beats: Beats) -> None:
        raise AssertionError

    def alarm(self, text: str) -> None:
        self.heard.append(text)


@pytest.mark.parametrize("first", [None, STATE])
async def test_a_store_that_is_away_is_counted_and_nobody_hears_anything(first: ClusterState | None) -> None:
    store, answers = Store(), Answers(first)
    requests = ConsensusRequests(store, 1, answers)
    store.is_away = True
    await requests.read(1)
    await requests.replace(ReplaceState(2, 1, STATE))
    await requests.label_pod(is_master=True)
    await requests.withdraw()
    assert answers.heard == []
    assert requests.failures_count == 3


async def test_the_first_state_is_made_once_and_looked_at() -> None:
    store, answers = Store(), Answers(STATE)
    requests = ConsensusRequests(store, 1, answers)
    await requests.read(1)
    assert answers.heard == ["poked"]
    await requests.read(2)
    assert answers.heard[1:] == [(2, 1, STATE)]


async def test_nothing_is_made_by_who_is_not_to_make_it() -> None:
    store, answers = Store(), Answers()
    await ConsensusRequests(store, 1, answers).read(1)
    assert answers.heard == []
    assert store.value is None


async def test_a_state_that_cannot_be_read_is_an_alarm() -> None:
    store, answers = Store(), Answers()
    store.value = Versioned(1, b"{")
    await ConsensusRequests(store, 1, answers).read(1)
    (text,) = answers.heard
    assert "invalid replication state" in str(text)
