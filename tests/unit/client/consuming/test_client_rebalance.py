"""Division of queues among members."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.client.consuming.rebalance import allocate_averagely
from iotmq.client.transport.routes import MessageQueue


def queues(count: int, brokers: int = 1) -> list[MessageQueue]:
    return [MessageQueue("T", f"b{broker}", number) for broker in range(brokers) for number in range(count)]


def test_blocks_are_contiguous_and_the_first_members_take_the_remainder() -> None:
    mine = [allocate_averagely(queues(8), ["c", "a", "b"], name) for name in "abc"]
    assert [[queue.queue_id for queue in share] for share in mine] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_client_that_is_not_a_member_gets_nothing() -> None:
    assert allocate_averagely(queues(4), ["a"], "b") == []


def test_members_beyond_the_queues_get_nothing() -> None:
    assert allocate_averagely(queues(2), ["a", "b", "c"], "c") == []


@pytest.mark.slow
@given(
    queue_count=st.integers(0, 40),
    brokers=st.integers(1, 3),
    members=st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=20, unique=True),
    seed=st.randoms(use_true_random=False),
)
def test_every_queue_has_one_owner_whatever_the_order_asked_in(queue_count, brokers, members, seed) -> None:
    given_queues = queues(queue_count, brokers)
    shares = []
    for member in members:
        shuffled_queues, shuffled_members = given_queues[:], members[:]
        seed.shuffle(shuffled_queues)
        seed.shuffle(shuffled_members)
        shares.append(allocate_averagely(shuffled_queues, shuffled_members, member))
    assert sorted(queue for share in shares for queue in share) == sorted(given_queues)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
