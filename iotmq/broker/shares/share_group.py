"""Choose the member of a shared subscription that gets a message. No I/O, no clock of its own.

Operations: take messages of a light queue in their order, hand each to one member that has credit, forget it
once a member has acknowledged it, hand it out again when its member is lost or too slow. Goals: a message is
at one member at a time; what is acknowledged is never handed out again; strategies that promise an order keep
it per key; a member that does not take its messages delays no other. Plan: `undone` messages are those read
and not acknowledged, each held by a member or waiting. Without an order the waiting ones are one heap. With
one they are a *lane* per key, and all of a lane's messages under way are at one member, its owner; a lane
that waits for its owner's credit stands at that owner, so that no grant looks at more lanes than it can
serve.

What has to outlive the process is `next_position` (what is before was read) and the undone positions.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

from iotmq import limits

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


class Handout(NamedTuple):
    """A message for a member. `is_repeated`: it was handed to the same client before."""

    member_id: int
    position: int
    size: int
    is_repeated: bool


class Holder:
    """Limits the bytes that one client holds as a member of all its groups at a broker."""

    __slots__ = ("_room_again", "client_id", "held_bytes")

    def __init__(self, client_id: str, room_again: Callable[[], None]) -> None:
        """`room_again()` is called when it had no room and has: any of its groups may go on."""
        self.client_id = client_id
        self.held_bytes = 0
        self._room_again = room_again

    @property
    def has_room(self) -> bool:
        """Return whether it may be handed one message more, however large that is."""
        return self.held_bytes < limits.SHARE_CLIENT_BYTES_MAX

    def hold(self, size: int) -> None:
        """Count a message handed to the client."""
        self.held_bytes += size

    def release(self, size: int) -> None:
        """Count off a message that the client no longer holds."""
        had_room = self.has_room
        self.held_bytes -= size
        if not had_room and self.has_room:
            self._room_again()


class _Member:
    __slots__ = (
        "blocked", "claimed", "client_id", "handed", "held", "holder", "is_away", "is_slow", "limit",
        "member_id", "place",
    )  # fmt: skip

    def __init__(self, member_id: int, holder: Holder, place: str, limit: int) -> None:
        self.member_id = member_id
        self.holder = holder
        self.client_id = holder.client_id
        # Its front end.
        self.place = place
        # How many messages it may be handed in all since it joined, and how many it was.
        self.limit = limit
        self.handed = 0
        self.held: dict[int, _Message] = {}
        # Positions it said it holds, and that were not read then.
        self.claimed: list[int] = []
        # It let a message's time pass, and has acknowledged nothing since.
        self.is_slow = False
        # Its front end is not connected now.
        self.is_away = False
        # Lanes it owns that wait for its credit.
        self.blocked: dict[str, _Lane] = {}

    @property
    def has_credit(self) -> bool:
        return self.handed < self.limit and not self.is_away and self.holder.has_room


class _Message:
    __slots__ = ("due_s", "key", "last_client_id", "member", "position", "size")

    def __init__(self, position: int, size: int, key: str) -> None:
        self.position = position
        self.size = size
        self.key = key
        # Who holds it, and until when; None while it waits.
        self.member: _Member | None = None
        self.due_s = 0.0
        self.last_client_id: str | None = None


class _Lane:
    """The messages of one key. `is_queued` while it is in the group's list of lanes to look at."""

    __slots__ = ("held_count", "is_queued", "key", "owner", "waiting")

    def __init__(self, key: str) -> None:
        self.key = key
        self.waiting: list[int] = []
        self.held_count = 0
        self.owner: _Member | None = None
        self.is_queued = False


class ShareGroup:
    """The state of one group and filter at one broker; see the module."""

    def __init__(
        self,
        strategy: Strategy,
        *,
        next_position: int,
        undone: Iterable[int] = (),
        in_flight_max: int,
        timeout_s: float,
    ) -> None:
        """Go on behind what `next_position` and `undone` say, which is what `state` gave."""
        self.strategy = strategy
        self.next_position = next_position
        self._in_flight_max = in_flight_max
        self._timeout_s = timeout_s
        # Read before the start, and to be read again.
        self._unread = deque(sorted(undone))
        self._unread_set = set(self._unread)
        self._members: dict[int, _Member] = {}
        # Somebody is neither slow nor away, as of the last change.
        self._has_active = False
        self._undone: dict[int, _Message] = {}
        # Messages not read yet that members say they hold, or (None) one is done with, from before a start.
        self._early: dict[int, list[int] | None] = {}
        # Held messages in the order of their hand-out.
        self._held: OrderedDict[int, _Message] = OrderedDict()
        # Without an order: positions, some of which may be done or held meanwhile, and how many do wait.
        self._heap: list[int] = []
        self._waiting_count = 0
        # Members by place (None: all) in the order of their turns; those that cannot take are passed over.
        self._turns: dict[str | None, deque[_Member]] = {}
        self._in_turn: set[tuple[str | None, int]] = set()
        # With an order.
        self._lanes: dict[str, _Lane] = {}
        self._ready: deque[_Lane] = deque()
        self._choices: dict[str, _Member] = {}
        self._sticky: _Member | None = None
        # Something `state` tells has changed since `take_dirty`.
        self._is_dirty = False
        self.handed_total = 0
        self.repeated_total = 0
        self.timed_out_total = 0
        self.done_total = 0

    # Members

    @property
    def member_count(self) -> int:
        return len(self._members)

    @property
    def in_flight_count(self) -> int:
        """Return the number of messages that members hold."""
        return len(self._held)

    def members(self) -> Iterator[tuple[str, str, int, int, bool]]:
        """Yield (client id, front end, in flight, credit left, is slow) of each member."""
        for member in self._members.values():
            credit = max(0, member.limit - member.handed)
            yield member.client_id, member.place, len(member.held), credit, member.is_slow

    def join(
        self, member_id: int, holder: Holder, place: str, *, limit: int, held: Sequence[int], now_s: float
    ) -> None:
        """Add a member, or take one back: it may be handed `limit` more messages, and has those of `held`."""
        member = self._members.get(member_id)
        kept = set(held)
        if member is None:
            member = self._members[member_id] = _Member(member_id, holder, place, limit)
        else:
            member.place, member.limit, member.handed = place, limit, 0
            member.is_away = member.is_slow = False
            self._forget_claims(member)
            for position in [position for position in member.held if position not in kept]:
                self._take_back(self._undone[position])
        for position in held:
            message = self._undone.get(position)
            if message is None:
                if position >= self.next_position or position in self._unread_set:
                    claims = self._early.setdefault(position, [])
                    if claims is not None:
                        claims.append(member_id)
                        member.claimed.append(position)
            elif message.member is None:
                self._take_from_waiting(message)
                self._give(member, message, now_s)
        self._members_changed()
        self._can_take(member)

    def leave(self, member_id: int) -> None:
        """Remove a member; what it holds is for others."""
        member = self._members.pop(member_id, None)
        if member is None:
            return
        for message in list(member.held.values()):
            self._take_back(message)
        self._forget_claims(member)
        self._free_lanes(member)
        if self._sticky is member:
            self._sticky = None
        if self.strategy.is_ordered:
            # Of before a start another member may hold messages of a lane, too.
            for message in self._held.values():
                lane = self._lanes[message.key]
                lane.owner = message.member if lane.owner is member else lane.owner
        self._members_changed()

    def away(self, *member_ids: int) -> None:
        """Pass over members whose front end is away; they keep what they hold until `back` or `leave`."""
        found = [self._members[member_id] for member_id in member_ids if member_id in self._members]
        for member in found:
            member.is_away = True
            self._free_lanes(member)
        if found:
            self._members_changed()

    def back(self, *member_ids: int) -> None:
        """Hand out to members again that were `away`, and have lost nothing."""
        members = [self._members[member_id] for member_id in member_ids if member_id in self._members]
        found = [member for member in members if member.is_away]
        for member in found:
            member.is_away = False
        if found:
            self._members_changed()
        for member in found:
            self._can_take(member)

    def room_again(self, member_id: int) -> None:
        """Go on with a member whose client has room again."""
        member = self._members.get(member_id)
        if member is not None:
            self._can_take(member)

    def grant(self, member_id: int, limit: int) -> None:
        """Let a member be handed `limit` messages in all since it joined."""
        member = self._members.get(member_id)
        if member is not None and limit > member.limit:
            member.limit = limit
            self._can_take(member)

    def acknowledge(self, member_id: int, position: int) -> bool:
        """Finish a message that a member is done with; False when it was before, or is unknown."""
        member = self._members.get(member_id)
        if member is None:
            return False
        if member.is_slow:
            member.is_slow = False
            self._members_changed()
        message = self._undone.get(position)
        if message is None:
            if member_id not in (self._early.get(position) or ()):
                return False
            if position in self._unread_set:
                self._forget_unread(position)
            else:
                self._early[position] = None
            self.done_total += 1
            self._can_take(member)
            return True
        self._finish(message)
        self._can_take(member)
        return True

    # Messages

    def wanted(self) -> int:
        """Return how many messages more can be offered now."""
        room = self._in_flight_max - len(self._undone)
        if room <= 0:
            return 0
        credit = 0
        for member in self._candidates():
            if member.has_credit:
                credit += member.limit - member.handed
                if self.strategy.is_ordered or credit >= room + self._waiting_count:
                    return room
        return 0 if self.strategy.is_ordered else max(0, min(room, credit - self._waiting_count))

    def unread(self, count_max: int) -> list[int]:
        """Return positions before `next_position` to offer first, oldest first; call `gone` for lost ones."""
        while self._unread and self._unread[0] not in self._unread_set:
            self._unread.popleft()
        return [position for position in islice(self._unread, count_max) if position in self._unread_set]

    def offer(self, position: int, size: int, key: str, *, now_s: float) -> None:
        """Add a message of the queue, with the key the strategy asks for; each once, in the queue's order."""
        assert position not in self._undone
        if position in self._unread_set:
            self._forget_unread(position, is_done=False)
        claims = self._early.pop(position, [])
        if claims is None:
            # Done before it was read.
            self._is_dirty = True
            return
        message = self._undone[position] = _Message(position, size, key)
        if claims:
            self._give(self._members[claims[0]], message, now_s)
        else:
            self._wait(message)

    def advance(self, next_position: int) -> None:
        """Note that everything before a position was offered."""
        assert next_position >= self.next_position
        self.next_position = next_position
        for position in self._early and [
            position
            for position in self._early
            if position < next_position and position not in self._unread_set
        ]:
            # Nothing of that position is in the queue.
            del self._early[position]

    def gone(self, position: int) -> None:
        """Drop a message that the log has lost."""
        message = self._undone.get(position)
        if message is not None:
            self._finish(message)
        elif position in self._unread_set:
            self._forget_unread(position)

    def hand_out(self, now_s: float) -> list[Handout]:
        """Give waiting messages to members that can take them."""
        handed: list[Handout] = []
        if self.strategy.is_ordered:
            for _ in range(len(self._ready)):
                lane = self._ready.popleft()
                lane.is_queued = False
                self._serve_lane(lane, handed, now_s)
        else:
            self._serve_heap(handed, now_s)
        return handed

    def holds(self, handout: Handout) -> bool:
        """Return whether what was handed out is at its member still."""
        member = self._members.get(handout.member_id)
        return member is not None and handout.position in member.held

    # Time

    def next_deadline(self) -> float | None:
        """Return when `expire` has something to do, in monotonic seconds."""
        for message in self._held.values():
            return message.due_s
        return None

    def expire(self, now_s: float) -> list[tuple[int, int]]:
        """Take back what was held too long, if others can have it; return (member id, position) of each."""
        taken: list[tuple[int, int]] = []
        # Counted here once: a thousand members may be late together, each with several messages.
        active_count = len(self._active())
        was_active_count = active_count
        while self._held:
            message = next(iter(self._held.values()))
            if message.due_s > now_s:
                break
            member = message.member
            assert member is not None
            if not member.is_slow:
                member.is_slow = True
                active_count -= not member.is_away
                self._free_lanes(member)
            if active_count:
                for late in self._late_together(member, message):
                    self.timed_out_total += 1
                    taken.append((member.member_id, late.position))
                    self._take_back(late)
            else:
                message.due_s = now_s + self._timeout_s
                self._held.move_to_end(message.position)
        if active_count != was_active_count:
            self._members_changed()
        return taken

    # What outlives the process

    def state(self) -> tuple[int, list[int]]:
        """Return the next position and the undone ones before it, ascending."""
        return self.next_position, sorted([*self._undone, *self._unread_set])

    def mark_dirty(self) -> None:
        """Mark the state as changed again: it could not be stored."""
        self._is_dirty = True

    def take_dirty(self) -> bool:
        """Return whether messages were done since the last call."""
        is_dirty, self._is_dirty = self._is_dirty, False
        return is_dirty

    def held_bytes(self, member_id: int) -> int:
        """Add up the bytes of the messages that a member holds."""
        return sum(message.size for message in self._members[member_id].held.values())

    def check_invariants(self) -> None:
        """Assert what must always be true; for tests."""
        held = {position for member in self._members.values() for position in member.held}
        assert held == set(self._held) <= set(self._undone)
        assert sum(len(member.held) for member in self._members.values()) == len(held)
        for position, message in self._undone.items():
            assert message.position == position
            assert position not in self._unread_set
            assert (message.member is None) == (position not in held)
            assert message.member is None or message.member.held[position] is message
        due = [message.due_s for message in self._held.values()]
        assert due == sorted(due)
        assert self._has_active == bool(self._active())
        if self.strategy.is_ordered:
            self._lane_invariants()
        else:
            waiting = {position for position, message in self._undone.items() if message.member is None}
            assert waiting <= set(self._heap)
            assert len(waiting) == self._waiting_count

    def _lane_invariants(self) -> None:
        queued = {lane.key for lane in self._ready}
        for key, lane in self._lanes.items():
            messages = [message for message in self._undone.values() if message.key == key]
            waiting = {message.position for message in messages if message.member is None}
            assert waiting == set(lane.waiting)
            assert len(messages) - len(waiting) == lane.held_count
            assert messages, "a lane without messages"
            assert lane.is_queued == (key in queued)
            assert lane.owner is None or lane.owner in self._members.values()
            is_blocked = lane.owner is not None and key in lane.owner.blocked
            assert not waiting or lane.is_queued or is_blocked
        assert {message.key for message in self._undone.values()} == set(self._lanes)

    # Members that can take

    def _active(self) -> list[_Member]:
        return [member for member in self._members.values() if not member.is_slow and not member.is_away]

    def _candidates(self) -> list[_Member]:
        """Return the members messages go to: slow ones only where there are no others."""
        return self._active() or [member for member in self._members.values() if not member.is_away]

    def _is_candidate(self, member: _Member) -> bool:
        return not member.is_away and (not member.is_slow or not self._has_active)

    def _members_changed(self) -> None:
        """Look anew which members messages go to."""
        self._choices.clear()
        self._has_active = bool(self._active())
        for member in self._candidates():
            self._list_turns(member)
        for member in self._members.values():
            self._free_lanes(member)

    def _can_take(self, member: _Member) -> None:
        """Look again at a member that may be able to take more than before."""
        if not member.has_credit:
            return
        self._free_lanes(member)
        self._list_turns(member)

    def _list_turns(self, member: _Member) -> None:
        if self.strategy.is_ordered:
            return
        places = (None, member.place) if self.strategy is Strategy.LOCAL_FIRST else (None,)
        for place in places:
            if (place, member.member_id) not in self._in_turn:
                self._in_turn.add((place, member.member_id))
                self._turns.setdefault(place, deque()).append(member)

    def _next_in_turn(self, place: str | None) -> _Member | None:
        turns = self._turns.get(place)
        while turns:
            member = turns.popleft()
            is_here = self._members.get(member.member_id) is member and place in (None, member.place)
            if is_here and member.has_credit and self._is_candidate(member):
                turns.append(member)
                return member
            self._in_turn.discard((place, member.member_id))
        if turns is not None:
            del self._turns[place]
        return None

    # Without an order

    def _serve_heap(self, handed: list[Handout], now_s: float) -> None:
        heap = self._heap
        is_local = self.strategy is Strategy.LOCAL_FIRST
        while heap:
            message = self._undone.get(heap[0])
            if message is None or message.member is not None:
                heappop(heap)
                continue
            member = self._next_in_turn(message.key) if is_local and message.key else None
            if member is None:
                member = self._next_in_turn(None)
            if member is None:
                return
            heappop(heap)
            self._waiting_count -= 1
            self._hand(member, message, handed, now_s)

    # With an order

    def _serve_lane(self, lane: _Lane, handed: list[Handout], now_s: float) -> None:
        while lane.waiting:
            owner = lane.owner
            if owner is None or not lane.held_count:
                owner = lane.owner = self._owner_of(lane.key)
            if owner is None:
                self._queue_lane(lane)
                return
            if not owner.has_credit or not self._is_candidate(owner):
                owner.blocked[lane.key] = lane
                return
            lane.held_count += 1
            self._hand(owner, self._undone[heappop(lane.waiting)], handed, now_s)

    def _owner_of(self, key: str) -> _Member | None:
        """Return the member a key belongs to now; None without members."""
        if self.strategy is Strategy.STICKY:
            if self._sticky is None or not self._is_candidate(self._sticky):
                candidates = self._candidates()
                self._sticky = candidates[0] if candidates else None
            return self._sticky
        member = self._choices.get(key)
        if member is None:
            candidates = self._candidates()
            if not candidates:
                return None
            member = max(candidates, key=lambda candidate: _weight(key, candidate.client_id))
            if len(self._choices) >= _CHOICES_MAX:
                self._choices.clear()
            self._choices[key] = member
        return member

    def _lane_of(self, message: _Message) -> _Lane:
        lane = self._lanes.get(message.key)
        if lane is None:
            lane = self._lanes[message.key] = _Lane(message.key)
        return lane

    def _queue_lane(self, lane: _Lane) -> None:
        if not lane.is_queued:
            lane.is_queued = True
            self._ready.append(lane)

    def _free_lanes(self, member: _Member) -> None:
        """Look again at the lanes that wait for a member."""
        blocked, member.blocked = member.blocked, {}
        for lane in blocked.values():
            self._queue_lane(lane)

    # One message

    def _wait(self, message: _Message) -> None:
        if not self.strategy.is_ordered:
            heappush(self._heap, message.position)
            self._waiting_count += 1
            return
        lane = self._lane_of(message)
        heappush(lane.waiting, message.position)
        if lane.owner is None or lane.key not in lane.owner.blocked:
            self._queue_lane(lane)

    def _take_from_waiting(self, message: _Message) -> None:
        """Remove a message from those that wait: a member has it after all, or it is done."""
        if not self.strategy.is_ordered:
            # Its place in the heap is passed over.
            self._waiting_count -= 1
            return
        lane = self._lanes[message.key]
        lane.waiting.remove(message.position)
        heapify(lane.waiting)

    def _hand(self, member: _Member, message: _Message, handed: list[Handout], now_s: float) -> None:
        is_repeated = message.last_client_id == member.client_id
        self.handed_total += 1
        self.repeated_total += message.last_client_id is not None
        member.handed += 1
        self._hold(member, message, now_s)
        handed.append(Handout(member.member_id, message.position, message.size, is_repeated))

    def _give(self, member: _Member, message: _Message, now_s: float) -> None:
        """Note a message that a member has, and that this broker did not hand it."""
        if self.strategy.is_ordered:
            lane = self._lane_of(message)
            if not lane.held_count:
                if lane.owner is not None and lane.owner.blocked.pop(lane.key, None) is not None:
                    self._queue_lane(lane)
                lane.owner = member
            lane.held_count += 1
        self._hold(member, message, now_s)

    def _hold(self, member: _Member, message: _Message, now_s: float) -> None:
        message.member = member
        message.last_client_id = member.client_id
        message.due_s = now_s + self._timeout_s
        member.held[message.position] = message
        member.holder.hold(message.size)
        self._held[message.position] = message

    def _let_go(self, message: _Message) -> None:
        """Take a message from the member that holds it."""
        member = message.member
        assert member is not None
        del member.held[message.position]
        del self._held[message.position]
        message.member = None
        if self.strategy.is_ordered:
            lane = self._lanes[message.key]
            lane.held_count -= 1
            if not lane.held_count:
                # The next one goes to whom the key belongs to then.
                if lane.owner is not None and lane.owner.blocked.pop(lane.key, None) is not None:
                    self._queue_lane(lane)
                lane.owner = None
        member.holder.release(message.size)

    def _take_back(self, message: _Message) -> None:
        member = message.member
        assert member is not None
        self._let_go(message)
        self._wait(message)
        if self._members.get(member.member_id) is member:
            self._can_take(member)

    def _finish(self, message: _Message) -> None:
        if message.member is not None:
            holder = message.member
            self._let_go(message)
            self._can_take(holder)
        else:
            self._take_from_waiting(message)
        del self._undone[message.position]
        self.done_total += 1
        self._is_dirty = True
        if self.strategy.is_ordered:
            self._drop_lane_when_empty(message.key)

    def _drop_lane_when_empty(self, key: str) -> None:
        lane = self._lanes[key]
        if lane.waiting or lane.held_count:
            return
        del self._lanes[key]
        if lane.owner is not None:
            lane.owner.blocked.pop(key, None)
        if lane.is_queued:
            self._ready.remove(lane)

    def _late_together(self, member: _Member, message: _Message) -> list[_Message]:
        """Find the messages that move with a late one, so that the order of its key is kept."""
        if not self.strategy.is_ordered:
            return [message]
        return [held for held in member.held.values() if held.key == message.key]

    def _forget_claims(self, member: _Member) -> None:
        """Forget which messages, not read yet, a member said it holds."""
        for position in member.claimed:
            claims = self._early.get(position)
            if claims is not None and member.member_id in claims:
                claims.remove(member.member_id)
                if not claims:
                    del self._early[position]
        member.claimed.clear()

    def _forget_unread(self, position: int, *, is_done: bool = True) -> None:
        self._unread_set.discard(position)
        if is_done:
            self._early.pop(position, None)
            self._is_dirty = True


def _weight(key: str, client_id: str) -> bytes:
    name = f"{client_id}\0{key}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(name, digest_size=8).digest()
