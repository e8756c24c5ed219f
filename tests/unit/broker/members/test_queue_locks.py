"""Queue locks: exclusive, renewable, and free again when nobody renews."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import Mock

from loop_turns import turn_s_max
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.handlers.native.locks import LockHandler
from iotmq.broker.members.queue_locks import MessageQueue, QueueLocks
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(broker_name="b", topic=topic, queue_id=queue_id)


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
    locks.check_invariants()
    assert locks.lock("g", "c1", [queue(0), queue(1)]) == [queue(0), queue(1)], "a renewal takes no room"
    locks.unlock("g", "c1", [queue(1)])
    assert locks.lock("none", "c3", [queue(0), queue(1)]) == [queue(0)]
    locks.check_invariants()
    clock.advance(61)
    locks.expire()
    locks.check_invariants()
    assert locks.lock("none", "c3", [queue(0), queue(1), queue(2), queue(3)]) == [
        queue(0),
        queue(1),
        queue(2),
    ]
    locks.check_invariants()


def test_very_many_locks_that_end_together_are_forgotten_some_at_a_time() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    count = limits.QUEUE_LOCKS_MAX
    locks.lock("g", "c1", [queue(number, f"T{number // 1_000}") for number in range(count)])
    longest_s = []
    for late in (False, True):
        clock.advance(61 if late else 0)
        began_s = time.thread_time()
        locks.expire()
        longest_s.append(time.thread_time() - began_s)
        locks.check_invariants()
    assert max(longest_s) < turn_s_max()
    while locks.count:
        before = locks.count
        locks.expire()
        assert locks.count < before
    locks.check_invariants()


def test_as_many_queues_as_a_request_may_name_hold_nobody_up() -> None:
    topics = Mock(**{"find.return_value": SimpleNamespace(queue_count=limits.QUEUES_PER_TOPIC_MAX)})
    handler = LockHandler(
        QueueLocks(ManualClock()), topics, when_copied=lambda call: call(True), is_current=lambda: True
    )
    names = [
        {"brokerName": "b", "topic": f"T{number % 8}", "queueId": number // 8}
        for number in range(limits.LOCKED_QUEUES_PER_REQUEST_MAX)
    ]
    body = json.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": names}).encode()
    took_s = []
    for _ in range(3):
        for code in (RequestCode.LOCK_BATCH_QUEUES, RequestCode.UNLOCK_BATCH_QUEUES):
            began_s = time.thread_time()
            handler.handlers()[code](Mock(), Command.request(code, body=body))
            took_s.append(time.thread_time() - began_s)
    assert min(took_s[::2]) < turn_s_max()
    assert min(took_s[1::2]) < turn_s_max()


class Site:
    """A handler whose followers say that they know the locks when a test says so."""

    def __init__(self) -> None:
        topics = Mock(**{"find.return_value": SimpleNamespace(queue_count=4)})
        self.waiting: list[Callable[[bool], None]] = []
        self.connection = Mock()
        self.clock = ManualClock()
        self._handlers = LockHandler(
            QueueLocks(self.clock), topics, when_copied=self.waiting.append, is_current=lambda: True
        ).handlers()

    def ask(self, code: int, client_id: str) -> Command | None:
        """Return what is answered at once about a queue."""
        queues = [{"brokerName": "b", "topic": "T", "queueId": 0}]
        body = json.dumps({"clientId": client_id, "consumerGroup": "g", "mqSet": queues}).encode()
        return self._handlers[code](self.connection, Command.request(code, body=body))

    def copied(self, is_copied: bool) -> Command:
        """Answer the oldest wait; returns what the client is told then."""
        self.connection.reset_mock()
        self.waiting.pop(0)(is_copied)
        ((answer,), _words) = self.connection.reply.call_args
        assert isinstance(answer, Command)
        return answer


LOCK, UNLOCK = RequestCode.LOCK_BATCH_QUEUES, RequestCode.UNLOCK_BATCH_QUEUES


def is_locked(answer: Command | None) -> bool:
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    return bool(json.loads(answer.body_bytes())["lockOKMQSet"])


def test_a_new_holder_is_told_when_the_members_in_sync_know_it() -> None:
    site = Site()
    assert site.ask(LOCK, "c1") is None
    assert is_locked(site.copied(True))
    assert is_locked(site.ask(LOCK, "c1")), "a renewal does not wait"
    assert not is_locked(site.ask(LOCK, "c2"))
    assert site.waiting == []


def test_a_holder_whose_time_was_over_is_a_new_one() -> None:
    site = Site()
    site.ask(LOCK, "c1")
    site.copied(True)
    site.clock.advance(60)
    assert is_locked(site.ask(LOCK, "c1"))
    site.clock.advance(60.1)
    assert site.ask(LOCK, "c1") is None


def test_a_queue_is_given_back_when_the_members_in_sync_know_it() -> None:
    site = Site()
    site.ask(LOCK, "c1")
    site.copied(True)
    assert site.ask(UNLOCK, "c1") is None
    assert site.copied(True).code == ResponseCode.SUCCESS
    assert site.ask(LOCK, "c2") is None


def test_a_holder_that_not_all_members_know_is_not_told_so_however_often_it_asks() -> None:
    site = Site()
    assert site.ask(LOCK, "c1") is None
    assert site.copied(False).code == ResponseCode.SYSTEM_ERROR
    assert site.ask(LOCK, "c1") is None
    assert site.ask(LOCK, "c1") is None
    assert site.copied(False).code == ResponseCode.SYSTEM_ERROR
    assert is_locked(site.copied(True))
    assert is_locked(site.ask(LOCK, "c1"))


def test_what_a_former_master_has_told_some_members_only_is_not_answered_before_all_know_it() -> None:
    site = Site()
    assert site.ask(UNLOCK, "c1") is None, "nothing has changed here"
    assert site.copied(True).code == ResponseCode.SUCCESS
    answer = site.ask(UNLOCK, "c1")
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def test_a_change_while_members_are_told_of_an_earlier_one_is_waited_for_by_itself() -> None:
    site = Site()
    assert site.ask(LOCK, "c1") is None
    assert site.ask(UNLOCK, "c1") is None
    assert is_locked(site.copied(True))
    assert site.ask(LOCK, "c2") is None
    assert site.copied(True).code == ResponseCode.SUCCESS
    assert is_locked(site.copied(True))
    assert site.waiting == []
