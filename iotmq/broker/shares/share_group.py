"""Hand the messages of a shared subscription out to its members. No I/O, no clock of its own.

Operations: take messages of a light queue in their order, hand each to one member that has credit, forget it
once a member has acknowledged it, hand it out again when its member is lost or too slow. Goals: a message is
at one member at a time; what is acknowledged is never handed out again; strategies that promise an order keep
it per key; a member that does not take its messages delays no other. Plan: `undone` messages are those read
and not acknowledged, each held by a member or waiting; which member a waiting one goes to is found by
`strategies`.

What has to outlive the process is `next_position` (what is before was read) and the undone positions.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from iotmq.broker.shares.members import Holder, Member, Members, Message
from iotmq.broker.shares.strategies import Lanes, Strategy, Turns


class Handout(NamedTuple):
    """A message for a member. `is_repeated`: it was handed to the same client before."""

    member_id: int
    position: int
    size: int
    is_repeated: bool


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
        self._members = Members()
        self._order = (Lanes if strategy.is_ordered else Turns)(strategy, self._members)
        self._undone: dict[int, Message] = {}
        # Messages not read yet that members say they hold, or (None) one is done with, from before a start.
        self._early: dict[int, list[int] | None] = {}
        # Held messages in the order of their hand-out.
        self._held: OrderedDict[int, Message] = OrderedDict()
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
            member = self._members[member_id] = Member(member_id, holder, place, limit)
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
                self._order.end_wait(message)
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
        self._order.member_left(member, self._held.values())
        self._members_changed()

    def away(self, *member_ids: int) -> None:
        """Pass over members whose front end is away; they keep what they hold until `back` or `leave`."""
        found = [self._members[member_id] for member_id in member_ids if member_id in self._members]
        for member in found:
            member.is_away = True
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
        return self._order.wanted(room) if room > 0 else 0

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
        message = self._undone[position] = Message(position, size, key)
        if claims:
            self._give(self._members[claims[0]], message, now_s)
        else:
            self._order.wait(message)

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
        self._order.serve(partial(self._hand, handed, now_s))
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
        active_count = len(self._members.active())
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
            if active_count:
                for late in self._order.late_together(member, message):
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
        assert self._members.has_active == bool(self._members.active())
        self._order.check_invariants(self._undone.values())

    def _members_changed(self) -> None:
        """Look anew which members messages go to."""
        self._members.has_active = bool(self._members.active())
        self._order.members_changed()

    def _can_take(self, member: Member) -> None:
        """Look again at a member that may be able to take more than before."""
        if member.has_credit:
            self._order.can_take(member)

    # One message

    def _hand(self, handed: list[Handout], now_s: float, member: Member, message: Message) -> None:
        is_repeated = message.last_client_id == member.client_id
        self.handed_total += 1
        self.repeated_total += message.last_client_id is not None
        member.handed += 1
        self._hold(member, message, now_s)
        handed.append(Handout(member.member_id, message.position, message.size, is_repeated))

    def _give(self, member: Member, message: Message, now_s: float) -> None:
        """Note a message that a member has, and that this broker did not hand it."""
        self._order.found_at(member, message)
        self._hold(member, message, now_s)

    def _hold(self, member: Member, message: Message, now_s: float) -> None:
        message.member = member
        message.last_client_id = member.client_id
        message.due_s = now_s + self._timeout_s
        member.held[message.position] = message
        member.holder.hold(message.size)
        self._held[message.position] = message

    def _let_go(self, message: Message) -> None:
        """Take a message from the member that holds it."""
        member = message.member
        assert member is not None
        del member.held[message.position]
        del self._held[message.position]
        message.member = None
        self._order.let_go(message)
        member.holder.release(message.size)

    def _take_back(self, message: Message) -> None:
        member = message.member
        assert member is not None
        self._let_go(message)
        self._order.wait(message)
        if self._members.get(member.member_id) is member:
            self._can_take(member)

    def _finish(self, message: Message) -> None:
        if message.member is not None:
            holder = message.member
            self._let_go(message)
            self._can_take(holder)
        else:
            self._order.end_wait(message)
        del self._undone[message.position]
        self.done_total += 1
        self._is_dirty = True
        self._order.finished(message)

    def _forget_claims(self, member: Member) -> None:
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
