"""Parked pulls: found by queue, dropped by connection, overdue in order, bounded."""

from __future__ import annotations

import random

from iotmq.broker.handlers.native.parked_pulls import ParkedPulls, Pull
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command


class FakeQueue:
    def __init__(self) -> None:
        self.watched = False


class FakeConnection:
    pass


def hold(queue: FakeQueue, connection: FakeConnection, *, deadline_s: float = 15.0) -> Pull:
    return Pull(
        connection,  # type: ignore[arg-type]
        Command.request(RequestCode.PULL_MESSAGE),
        queue,  # type: ignore[arg-type]
        group="g",
        offset=0,
        tags=None,
        records_max=32,
        bytes_max=1000,
        deadline_s=deadline_s,
    )


def test_a_queue_is_watched_while_a_pull_waits_for_it() -> None:
    parked_pulls, queue, connection = ParkedPulls(lambda: 10), FakeQueue(), FakeConnection()
    first, second = hold(queue, connection), hold(queue, connection)
    assert parked_pulls.park(first)
    assert parked_pulls.park(second)
    assert queue.watched
    assert parked_pulls.waiting_for(queue) == [first, second]  # type: ignore[arg-type]
    parked_pulls.remove(first)
    assert queue.watched
    parked_pulls.remove(second)
    assert not queue.watched
    assert len(parked_pulls) == 0


def test_pulls_of_other_queues_are_not_found() -> None:
    parked_pulls, queue, other = ParkedPulls(lambda: 10), FakeQueue(), FakeQueue()
    parked_pulls.park(hold(queue, FakeConnection()))
    assert parked_pulls.waiting_for(other) == []  # type: ignore[arg-type]


def test_a_lost_connection_takes_its_pulls_along() -> None:
    parked_pulls, queue = ParkedPulls(lambda: 10), FakeQueue()
    gone, alive = FakeConnection(), FakeConnection()
    kept = hold(queue, alive)
    for parked in (hold(queue, gone), kept, hold(FakeQueue(), gone)):
        parked_pulls.park(parked)
    parked_pulls.drop_connection(gone)  # type: ignore[arg-type]
    parked_pulls.drop_connection(gone)  # type: ignore[arg-type]
    assert parked_pulls.waiting_for(queue) == [kept]  # type: ignore[arg-type]
    assert len(parked_pulls) == 1


def test_all_pulls_are_taken_once() -> None:
    parked_pulls, queue = ParkedPulls(lambda: 10), FakeQueue()
    pulls = [hold(each, FakeConnection()) for each in (queue, FakeQueue(), queue)]
    for parked in pulls:
        parked_pulls.park(parked)
    assert set(parked_pulls.take_all()) == set(pulls)
    assert parked_pulls.take_all() == []
    assert len(parked_pulls) == 0
    assert parked_pulls.waiting_for(queue) == []  # type: ignore[arg-type]
    assert list(parked_pulls.take_overdue(1e6)) == []


def test_overdue_pulls_are_taken_once_and_never_early() -> None:
    parked_pulls, queue, connection = ParkedPulls(lambda: 10), FakeQueue(), FakeConnection()
    soon, late = hold(queue, connection, deadline_s=10.01), hold(queue, connection, deadline_s=20.0)
    parked_pulls.park(late)
    parked_pulls.park(soon)
    assert parked_pulls.next_deadline_s == 10.1
    assert list(parked_pulls.take_overdue(10.05)) == []
    assert list(parked_pulls.take_overdue(10.1)) == [soon]
    assert list(parked_pulls.take_overdue(10.1)) == []
    assert parked_pulls.next_deadline_s == 20.0
    assert list(parked_pulls.take_overdue(100.0)) == [late]
    assert parked_pulls.next_deadline_s is None
    assert not queue.watched


def test_overdue_pulls_that_nobody_takes_stay_parked() -> None:
    parked_pulls, queue, connection = ParkedPulls(lambda: 10), FakeQueue(), FakeConnection()
    parked = [hold(queue, connection, deadline_s=10.0) for _ in range(3)]
    for pull in parked:
        parked_pulls.park(pull)
    taken = next(parked_pulls.take_overdue(10.0))
    left = [pull for pull in parked if pull is not taken]
    assert taken not in parked_pulls
    assert parked_pulls.waiting_for(queue) == left  # type: ignore[arg-type]
    assert parked_pulls.next_deadline_s == 10.0
    assert parked_pulls.expired_count == 1
    assert set(parked_pulls.take_overdue(10.0)) == set(left)


def test_past_the_maximum_nothing_is_parked() -> None:
    parked_pulls, queue, connection = ParkedPulls(lambda: 2), FakeQueue(), FakeConnection()
    first = hold(queue, connection)
    assert parked_pulls.park(first)
    assert parked_pulls.park(hold(queue, connection))
    assert not parked_pulls.park(hold(FakeQueue(), connection))
    assert parked_pulls.refused_count == 1
    parked_pulls.remove(first)
    assert parked_pulls.park(hold(queue, connection))


def test_any_order_of_operations_keeps_the_tables_in_step() -> None:
    """Compared with a plain list of what is parked."""
    chance = random.Random(7)
    parked_pulls = ParkedPulls(lambda: 30)
    queues = [FakeQueue() for _ in range(5)]
    connections = [FakeConnection() for _ in range(4)]
    model: list[Pull] = []
    now_s = 0.0
    for _ in range(5_000):
        action = chance.random()
        if action < 0.5:
            parked = hold(
                chance.choice(queues), chance.choice(connections), deadline_s=now_s + chance.random() * 9
            )
            assert parked_pulls.park(parked) == (len(model) < 30)
            if len(model) < 30:
                model.append(parked)
        elif action < 0.8 and model:
            parked_pulls.remove(model.pop(chance.randrange(len(model))))
        elif action < 0.83:
            gone = chance.choice(connections)
            parked_pulls.drop_connection(gone)  # type: ignore[arg-type]
            model = [entry for entry in model if entry.connection is not gone]
        else:
            now_s += chance.random()
            tick = int(now_s * 10)
            overdue = list(parked_pulls.take_overdue(now_s))
            assert set(overdue) == {entry for entry in model if entry.tick <= tick}
            model = [entry for entry in model if entry.tick > tick]
        assert len(parked_pulls) == len(model)
        for queue in queues:
            expected = [entry for entry in model if entry.queue is queue]
            assert all(entry in parked_pulls for entry in expected)
            assert parked_pulls.waiting_for(queue) == expected  # type: ignore[arg-type]
            assert queue.watched == bool(expected)
