"""How messages that wait find their member: in turn, or in lanes that keep the order of a key.

Both have the same methods, and are told of everything that changes whom a message may go to. Without an order
the waiting messages are one heap. With one they are a *lane* per key, and all of a lane's messages under way
are at one member, its owner; a lane that waits for its owner's credit stands at that owner, so that no grant
looks at more lanes than it can serve.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Final

from iotmq.broker.shares.members import Member, Members, Message

# Gives a message to a member, which holds it from then on.
Hand = Callable[[Member, Message], None]

# Which member a key belongs to is remembered for so many keys.
_CHOICES_MAX: Final = 65_536


class Strategy(StrEnum):
    """How a member is chosen among those that can take a message."""

    # One after the other.
    ROUND_ROBIN = "round_robin"
    # One member gets everything until it goes or is too slow.
    STICKY = "sticky"
    # All messages of an MQTT topic, or of a publisher's client id, go to the same member, in order.
    HASH_TOPIC = "hash_topic"
    HASH_CLIENT = "hash_client"
    # One after the other at the publisher's front end; elsewhere when nobody there can take it.
    LOCAL_FIRST = "local_first"

    @property
    def is_ordered(self) -> bool:
        """Return whether messages of one key keep their order."""
        return self in (Strategy.STICKY, Strategy.HASH_TOPIC, Strategy.HASH_CLIENT)


class Turns:
    """Messages without an order: each goes to the next member that has credit."""

    def __init__(self, strategy: Strategy, members: Members) -> None:
        self._is_local = strategy is Strategy.LOCAL_FIRST
        self._members = members
        self._waiting: dict[int, Message] = {}
        # Their positions, and some that do not wait any more.
        self._heap: list[int] = []
        # Members by place (None: all) in the order of their turns; those that cannot take are passed over.
        self._turns: dict[str | None, deque[Member]] = {}
        self._in_turn: set[tuple[str | None, int]] = set()

    def wanted(self, room: int) -> int:
        """Return how many messages more members can take, `room` at most."""
        credit = -len(self._waiting)
        for member in self._members.candidates():
            if member.has_credit:
                credit += member.limit - member.handed
                if credit >= room:
                    return room
        return max(0, credit)

    def wait(self, message: Message) -> None:
        """Take in a message for a member that can take it."""
        self._waiting[message.position] = message
        heappush(self._heap, message.position)

    def end_wait(self, message: Message) -> None:
        """Pass over a message from now on: a member has it after all, or it is done."""
        del self._waiting[message.position]

    def serve(self, hand: Hand) -> None:
        """Hand out what waits, oldest first, as long as there is somebody who can take it."""
        heap = self._heap
        while heap:
            message = self._waiting.get(heap[0])
            if message is None:
                heappop(heap)
                continue
            member = self._next_in_turn(message.key) if self._is_local and message.key else None
            if member is None:
                member = self._next_in_turn(None)
            if member is None:
                return
            heappop(heap)
            del self._waiting[message.position]
            hand(member, message)

    def found_at(self, member: Member, message: Message) -> None:
        """Note that a member has a message which it was not handed here."""

    def let_go(self, message: Message) -> None:
        """Note that a member has a message no longer."""

    def finished(self, message: Message) -> None:
        """Forget a message that no member has and that does not wait."""

    def late_together(self, member: Member, message: Message) -> list[Message]:
        """List the messages to take from a member with one that is late."""
        return [message]

    def can_take(self, member: Member) -> None:
        """Look again at a member that may be able to take more than before."""
        for place in (None, member.place) if self._is_local else (None,):
            if (place, member.member_id) not in self._in_turn:
                self._in_turn.add((place, member.member_id))
                self._turns.setdefault(place, deque()).append(member)

    def members_changed(self) -> None:
        """Look anew which members messages go to."""
        for member in self._members.candidates():
            self.can_take(member)

    def member_left(self, member: Member, held: Iterable[Message]) -> None:
        """Forget a member. `held` are the messages that the others have."""

    def _next_in_turn(self, place: str | None) -> Member | None:
        turns = self._turns.get(place)
        while turns:
            member = turns.popleft()
            is_here = self._members.get(member.member_id) is member and place in (None, member.place)
            if is_here and member.has_credit and self._members.is_candidate(member):
                turns.append(member)
                return member
            self._in_turn.discard((place, member.member_id))
        if turns is not None:
            del self._turns[place]
        return None

    def check_invariants(self, undone: Iterable[Message]) -> None:
        """Assert what must always be true; for tests."""
        assert {message.position: message for message in undone if message.member is None} == self._waiting
        assert self._waiting.keys() <= set(self._heap)


class _Lane:
    """The messages of one key.

    A lane in which messages wait is queued, to be looked at, or stands at its owner until that has credit.
    """

    __slots__ = ("held_count", "is_queued", "key", "owner", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        # By their position; a heap.
        self.waiting: list[tuple[int, Message]] = []
        self.held_count = 0
        self.owner: Member | None = None
        self.is_queued = False


class Lanes:
    """Messages with an order: a lane for each key, whose messages under way are all at one member."""

    def __init__(self, strategy: Strategy, members: Members) -> None:
        self._is_sticky = strategy is Strategy.STICKY
        self._members = members
        self._lanes: dict[str, _Lane] = {}
        self._queued: deque[_Lane] = deque()
        # Lanes that wait for their owner's credit.
        self._blocked: dict[Member, dict[str, _Lane]] = {}
        # Owners of keys, as far as they were looked for since the members changed.
        self._choices: dict[str, Member] = {}
        self._sticky: Member | None = None

    def wanted(self, room: int) -> int:
        """Return how many messages more members can take: whose they are is not known yet."""
        return room if any(member.has_credit for member in self._members.candidates()) else 0

    def wait(self, message: Message) -> None:
        """Take in a message for the owner of its lane."""
        lane = self._lane_of(message)
        heappush(lane.waiting, (message.position, message))
        if lane.owner is None or lane.key not in self._blocked.get(lane.owner, ()):
            self._queue(lane)

    def end_wait(self, message: Message) -> None:
        """Remove a message: a member has it after all, or it is done."""
        waiting = self._lanes[message.key].waiting
        waiting.remove((message.position, message))
        heapify(waiting)

    def serve(self, hand: Hand) -> None:
        """Hand out what waits in the lanes that are queued."""
        for _ in range(len(self._queued)):
            lane = self._queued.popleft()
            lane.is_queued = False
            self._serve_lane(lane, hand)

    def found_at(self, member: Member, message: Message) -> None:
        """Note that a member has a message which it was not handed here."""
        lane = self._lane_of(message)
        if not lane.held_count:
            if self._unblock(lane):
                self._queue(lane)
            lane.owner = member
        lane.held_count += 1

    def let_go(self, message: Message) -> None:
        """Note that a member has a message no longer."""
        lane = self._lanes[message.key]
        lane.held_count -= 1
        if not lane.held_count:
            # The next one goes to whom the key belongs to then.
            if self._unblock(lane):
                self._queue(lane)
            lane.owner = None

    def finished(self, message: Message) -> None:
        """Forget a message that no member has and that does not wait."""
        lane = self._lanes[message.key]
        if lane.waiting or lane.held_count:
            return
        self._unblock(lane)
        if lane.is_queued:
            self._queued.remove(lane)
        del self._lanes[lane.key]

    def late_together(self, member: Member, message: Message) -> list[Message]:
        """List the messages to take from a member with one that is late, so that the key's order is kept."""
        return [held for held in member.held.values() if held.key == message.key]

    def can_take(self, member: Member) -> None:
        """Look again at the lanes that wait for a member."""
        for lane in self._blocked.pop(member, {}).values():
            self._queue(lane)

    def members_changed(self) -> None:
        """Look anew which members messages go to."""
        self._choices.clear()
        for member in self._members.values():
            self.can_take(member)

    def member_left(self, member: Member, held: Iterable[Message]) -> None:
        """Forget a member. `held` are the messages that the others have."""
        self.can_take(member)
        if self._sticky is member:
            self._sticky = None
        for message in held:
            # Of before a start others may have messages of its lanes, too.
            lane = self._lanes[message.key]
            if lane.owner is member:
                lane.owner = message.member

    def _serve_lane(self, lane: _Lane, hand: Hand) -> None:
        while lane.waiting:
            owner = lane.owner
            if owner is None or not lane.held_count:
                owner = lane.owner = self._owner_of(lane.key)
            if owner is None:
                self._queue(lane)
                return
            if not owner.has_credit or not self._members.is_candidate(owner):
                self._blocked.setdefault(owner, {})[lane.key] = lane
                return
            lane.held_count += 1
            hand(owner, heappop(lane.waiting)[1])

    def _owner_of(self, key: str) -> Member | None:
        """Return the member a key belongs to now; None without members."""
        if self._is_sticky:
            if self._sticky is None or not self._members.is_candidate(self._sticky):
                self._sticky = next(iter(self._members.candidates()), None)
            return self._sticky
        member = self._choices.get(key)
        if member is None:
            candidates = self._members.candidates()
            if not candidates:
                return None
            member = max(candidates, key=lambda candidate: _weight(key, candidate.client_id))
            if len(self._choices) >= _CHOICES_MAX:
                self._choices.clear()
            self._choices[key] = member
        return member

    def _lane_of(self, message: Message) -> _Lane:
        lane = self._lanes.get(message.key)
        if lane is None:
            lane = self._lanes[message.key] = _Lane(message.key)
        return lane

    def _queue(self, lane: _Lane) -> None:
        if not lane.is_queued:
            lane.is_queued = True
            self._queued.append(lane)

    def _unblock(self, lane: _Lane) -> bool:
        """Let a lane wait for its owner's credit no longer; False when it does not."""
        return lane.owner is not None and self._blocked.get(lane.owner, {}).pop(lane.key, None) is not None

    def check_invariants(self, undone: Iterable[Message]) -> None:
        """Assert what must always be true; for tests."""
        messages_of: dict[str, list[Message]] = {}
        for message in undone:
            messages_of.setdefault(message.key, []).append(message)
        assert messages_of.keys() == self._lanes.keys()
        queued = {lane.key for lane in self._queued}
        for key, lane in self._lanes.items():
            waiting = {message.position for message in messages_of[key] if message.member is None}
            assert waiting == {position for position, _ in lane.waiting}
            assert len(messages_of[key]) - len(waiting) == lane.held_count
            assert lane.is_queued == (key in queued)
            assert lane.owner is None or lane.owner in self._members.values()
            is_blocked = lane.owner is not None and key in self._blocked.get(lane.owner, ())
            assert not waiting or lane.is_queued or is_blocked


def _weight(key: str, client_id: str) -> bytes:
    name = f"{client_id}\0{key}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(name, digest_size=8).digest()
