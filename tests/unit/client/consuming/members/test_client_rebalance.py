"""Division of queues among members."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.client.consuming.members.rebalance import (
    Allocation,
    allocate_averagely,
    allocate_in_circle,
    allocate_stickily,
)
from iotmq.client.transport.routes import MessageQueue

ALLOCATIONS = (allocate_averagely, allocate_in_circle, allocate_stickily)


def queues(count: int, brokers: int = 1) -> list[MessageQueue]:
    return [MessageQueue("T", f"b{broker}", number) for broker in range(brokers) for number in range(count)]


def test_blocks_are_contiguous_and_the_first_members_take_the_remainder() -> None:
    mine = [allocate_averagely(queues(8), ["c", "a", "b"], name) for name in "abc"]
    assert [[queue.queue_id for queue in share] for share in mine] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_circle_gives_each_member_queues_of_all_brokers() -> None:
    mine = [allocate_in_circle(queues(2, brokers=2), ["b", "a"], name) for name in "ab"]
    assert mine[0] == [MessageQueue("T", "b0", 0), MessageQueue("T", "b1", 0)]
    assert mine[1] == [MessageQueue("T", "b0", 1), MessageQueue("T", "b1", 1)]


def moved(allocate: Allocation, before: list[str], after: list[str]) -> int:
    """Queues of those whose members stay that have another owner afterwards."""
    owners = [
        {queue: member for member in members for queue in allocate(queues(64), members, member)}
        for members in (before, after)
    ]
    return sum(owners[0][queue] != owners[1][queue] for queue in owners[0] if owners[0][queue] in after)


def test_few_queues_move_when_members_come_and_go() -> None:
    members = [f"consumer-{number}" for number in range(8)]
    # With 64 queues and 8 or 9 members at least 7 have to move to the one that comes.
    for at in range(8):
        others = members[:at] + members[at + 1 :]
        assert moved(allocate_stickily, members, others) <= 8
    assert moved(allocate_stickily, members, [*members, "new"]) <= 16
    assert moved(allocate_averagely, members, ["a", *members]) > 32


@pytest.mark.parametrize("allocate", ALLOCATIONS)
def test_a_client_that_is_not_a_member_gets_nothing(allocate: Allocation) -> None:
    assert allocate(queues(4), ["a"], "b") == []


def test_members_beyond_the_queues_get_nothing() -> None:
    assert allocate_averagely(queues(2), ["a", "b", "c"], "c") == []
    assert allocate_in_circle(queues(2), ["a", "b", "c"], "c") == []


@pytest.mark.slow
@pytest.mark.parametrize("allocate", ALLOCATIONS)
@given(
    queue_count=st.integers(0, 40),
    brokers=st.integers(1, 3),
    members=st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=20, unique=True),
    seed=st.randoms(use_true_random=False),
)
def test_every_queue_has_one_owner_whatever_the_order_asked_in(
    allocate, queue_count, brokers, members, seed
) -> None:
    given_queues = queues(queue_count, brokers)
    shares = []
    for member in members:
        shuffled_queues, shuffled_members = given_queues[:], members[:]
        seed.shuffle(shuffled_queues)
        seed.shuffle(shuffled_members)
        shares.append(allocate(shuffled_queues, shuffled_members, member))
    assert sorted(queue for share in shares for queue in share) == sorted(given_queues)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
