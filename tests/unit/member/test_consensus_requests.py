"""Requests to the consensus store of one run of a member, and what is said when there is no answer."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock, Mock

import pytest

from iotmq.errors import ConsensusUnavailableError
from iotmq.member.consensus_requests import ConsensusRequests
from iotmq.replication.cluster_state import ClusterState, Identity
from iotmq.replication.consensus.port import Versioned

STATE = ClusterState(epoch=1, master=1, in_sync=(Identity(1, "a"),))


@pytest.fixture
def store() -> AsyncMock:
    return AsyncMock()


@pytest.fixture
def answers() -> Mock:
    return Mock()


@pytest.fixture
def requests(store: AsyncMock, answers: Mock) -> ConsensusRequests:
    return ConsensusRequests(store, 1, answers)


def test_a_state_is_handed_over_with_the_number_of_its_request(
    requests: ConsensusRequests, store: AsyncMock, answers: Mock
) -> None:
    store.read.return_value = Versioned(7, STATE.encode())
    asyncio.run(requests.read(3))
    answers.state_read.assert_called_once_with(3, 7, STATE)
    answers.poked.assert_not_called()


def test_a_read_without_an_answer_is_counted_and_ends_nothing(
    requests: ConsensusRequests, store: AsyncMock, answers: Mock
) -> None:
    store.read.side_effect = ConsensusUnavailableError("nobody answers")
    asyncio.run(requests.read(1))
    assert requests.failures_count == 1
    assert answers.mock_calls == []


@pytest.mark.parametrize("answer", [1, None, ConsensusUnavailableError("nobody answers")])
def test_the_state_is_read_after_the_first_one_was_made(
    requests: ConsensusRequests, store: AsyncMock, answers: Mock, answer: object
) -> None:
    """Also when somebody else made it, and when it is not known whether it was made."""
    store.read.return_value = None
    store.create.side_effect = [answer]
    answers.state_missing.return_value = STATE
    asyncio.run(requests.read(1))
    store.create.assert_awaited_once_with(STATE.encode())
    answers.poked.assert_called_once_with()


def test_a_state_that_another_member_has_to_make_is_waited_for(
    requests: ConsensusRequests, store: AsyncMock, answers: Mock
) -> None:
    store.read.return_value = None
    answers.state_missing.return_value = None
    asyncio.run(requests.read(1))
    store.create.assert_not_awaited()
    answers.poked.assert_not_called()
