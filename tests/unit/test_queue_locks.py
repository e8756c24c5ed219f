"""Queue locks: exclusive, renewable, and free again when nobody renews."""

from __future__ import annotations

from iotmq.broker.queue_locks import MessageQueue, QueueLocks
from iotmq.clock import ManualClock


def queue(queue_id: int) -> MessageQueue:
    return MessageQueue(broker_name="b", topic="T", queue_id=queue_id)


def test_a_queue_is_held_by_one_client_of_a_group() -> None:
    locks = QueueLocks(ManualClock())
    assert locks.lock("g", "c1", [queue(0), queue(1)]) == [queue(0), queue(1)]
    assert locks.lock("g", "c2", [queue(1), queue(2)]) == [queue(2)]
    assert locks.lock("other", "c2", [queue(1)]) == [queue(1)]


def test_unlocking_frees_only_what_the_client_holds() -> None:
    locks = QueueLocks(ManualClock())
    locks.lock("g", "c1", [queue(0)])
    locks.unlock("g", "c2", [queue(0)])
    assert locks.holder("g", queue(0)) == "c1"
    locks.unlock("g", "c1", [queue(0)])
    assert locks.lock("g", "c2", [queue(0)]) == [queue(0)]


def test_a_lock_not_renewed_for_sixty_seconds_can_be_taken() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", "c1", [queue(0)])
    clock.advance(60)
    assert locks.lock("g", "c2", [queue(0)]) == []
    clock.advance(0.1)
    assert locks.holder("g", queue(0)) is None
    assert locks.lock("g", "c2", [queue(0)]) == [queue(0)]
    assert locks.lock("g", "c1", [queue(0)]) == []


def test_abandoned_locks_are_forgotten() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", "c1", [queue(0)])
    clock.advance(61)
    locks.expire()
    assert locks.lock("g", "c2", [queue(0)]) == [queue(0)]


def test_so_many_queues_may_be_locked_and_no_more() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock, locks_max=3)
    assert locks.lock("g", "c1", [queue(0), queue(1)]) == [queue(0), queue(1)]
    assert locks.lock("other", "c2", [queue(0), queue(1)]) == [queue(0)]
    assert locks.lock("none", "c3", [queue(0)]) == []
    locks._invariants()
    assert locks.lock("g", "c1", [queue(0), queue(1)]) == [queue(0), queue(1)], "a renewal takes no room"
    locks.unlock("g", "c1", [queue(1)])
    assert locks.lock("none", "c3", [queue(0), queue(1)]) == [queue(0)]
    locks._invariants()
    clock.advance(61)
    locks.expire()
    locks._invariants()
    assert locks.lock("none", "c3", [queue(0), queue(1), queue(2), queue(3)]) == [
        queue(0),
        queue(1),
        queue(2),
    ]
    locks._invariants()
