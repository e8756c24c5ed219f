"""A shared subscription against a model: members join, are lost, acknowledge, are slow; brokers start again.

Every message is handed out at least once, never to a second member while the first has it, unless that one
was lost or too slow, and never after it was acknowledged; strategies with an order keep it for each key.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iotmq.broker.shares.share_group import Holder, ShareGroup, Strategy

TIMEOUT_S = 10.0
IN_FLIGHT_MAX = 12
CLIENTS = ("a", "b", "c", "d")
KEYS = ("k0", "k1", "k2")
PLACES = ("one", "two")


class ShareGroupModel(RuleBasedStateMachine):
    """`log` is the queue; `holder` says which client has a message as far as the model knows."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.log: list[tuple[int, str]] = []
        self.member_id = 0
        # Client -> member id of those that are joined, and credit they gave and used in this membership.
        self.joined: dict[str, int] = {}
        self.credit: dict[str, int] = {}
        self.used: dict[str, int] = {}
        self.away: set[str] = set()
        self.holder: dict[int, str] = {}
        # What the group has read since it began, and who says to hold what it has not.
        self.offered: set[int] = set()
        self.claims: dict[int, list[str]] = {}
        # What each client has, the group's opinion aside: a late acknowledgement names one of these.
        self.has: dict[str, set[int]] = {client: set() for client in CLIENTS}
        self.acknowledged: set[int] = set()
        # As a broker finds them after a start.
        self.saved: tuple[int, list[int]] = (0, [])
        self.saved_acknowledged: set[int] = set()
        self.has_started_again = False

    @initialize(strategy=st.sampled_from(list(Strategy)))
    def begin(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.open()

    def open(self) -> None:
        next_position, undone = self.saved
        self.group = ShareGroup(
            self.strategy,
            next_position=next_position,
            undone=undone,
            in_flight_max=IN_FLIGHT_MAX,
            timeout_s=TIMEOUT_S,
        )
        # Their limit is out of reach here; `unit/broker/shares/test_shares.py` has it.
        self.holders = {client: Holder(client, lambda: None) for client in CLIENTS}

    def key_of(self, position: int) -> str:
        if self.strategy is Strategy.STICKY or self.strategy is Strategy.ROUND_ROBIN:
            return ""
        return next(key for place, key in self.log if place == position)

    # What happens

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8), gap=st.integers(1, 3))
    def publish(self, keys: list[str], gap: int) -> None:
        for key in keys:
            position = (self.log[-1][0] if self.log else 0) + gap
            self.log.append((position, PLACES[int(key[1]) % 2] if self.is_local else key))
        self.pump()

    @property
    def is_local(self) -> bool:
        return self.strategy is Strategy.LOCAL_FIRST

    @rule(client=st.sampled_from(CLIENTS), credit=st.integers(0, 6))
    def join(self, client: str, credit: int) -> None:
        if client in self.joined:
            return
        self.has[client].clear()
        self.member_id += 1
        self.enter(client, credit, [])
        self.pump()

    def enter(self, client: str, credit: int, held: list[int]) -> None:
        self.joined.setdefault(client, self.member_id)
        self.credit[client], self.used[client] = credit, 0
        self.away.discard(client)
        place = PLACES[CLIENTS.index(client) % 2]
        holder = self.holders[client]
        self.group.join(self.joined[client], holder, place, limit=credit, held=held, now_s=self.now_s)
        # The others of what it held are for everybody.
        for position in [place for place, name in self.holder.items() if name == client]:
            if position not in held:
                del self.holder[position]
        self.forget_claims(client)
        for position in held:
            if position in self.acknowledged:
                continue
            if position in self.offered:
                self.holder.setdefault(position, client)
            else:
                self.claims.setdefault(position, []).append(client)

    def forget_claims(self, client: str) -> None:
        for claims in self.claims.values():
            if client in claims:
                claims.remove(client)

    def offer(self, position: int) -> None:
        self.group.offer(position, 100, self.key_of(position), now_s=self.now_s)
        self.offered.add(position)
        claims = self.claims.pop(position, [])
        if claims and position not in self.acknowledged:
            self.holder[position] = claims[0]

    @rule(client=st.sampled_from(CLIENTS))
    def leave(self, client: str) -> None:
        if client in self.joined:
            self.group.leave(self.joined.pop(client))
            self.away.discard(client)
            self.holder = {place: holder for place, holder in self.holder.items() if holder != client}
            self.forget_claims(client)
            self.pump()

    @rule(client=st.sampled_from(CLIENTS))
    def go_away(self, client: str) -> None:
        """Its front end's connection is lost."""
        if client in self.joined:
            self.away.add(client)
            self.group.away(self.joined[client])
            self.pump()

    @rule(client=st.sampled_from(CLIENTS), credit=st.integers(0, 6), data=st.data())
    def come_back(self, client: str, credit: int, data: st.DataObject) -> None:
        """Its front end is back: some of what was under way never came."""
        if client in self.away:
            lost = data.draw(
                st.sets(st.sampled_from(sorted(self.has[client]))) if self.has[client] else st.just(set())
            )
            self.has[client] -= lost
            self.enter(client, credit, sorted(self.has[client]))
            self.pump()

    @rule(client=st.sampled_from(CLIENTS), more=st.integers(1, 4))
    def grant(self, client: str, more: int) -> None:
        if client in self.joined:
            self.credit[client] += more
            self.group.grant(self.joined[client], self.credit[client])
            self.pump()

    @rule(client=st.sampled_from(CLIENTS), data=st.data())
    def acknowledge(self, client: str, data: st.DataObject) -> None:
        """Also what the group has taken back: that is done, too."""
        if client in self.joined and self.has[client]:
            position = data.draw(st.sampled_from(sorted(self.has[client])))
            self.has[client].discard(position)
            self.group.acknowledge(self.joined[client], position)
            self.acknowledged.add(position)
            self.holder.pop(position, None)
            assert not self.group.acknowledge(self.joined[client], position), "done twice"
            self.pump()

    @rule(seconds=st.sampled_from((0.5, 4.0, 11.0)))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for member_id, position in self.group.expire(self.now_s):
            client = next(name for name, number in self.joined.items() if number == member_id)
            assert self.holder.pop(position) == client
            assert len(self.joined) > 1, "taken from the only member"
        due_s = self.group.next_deadline()
        assert due_s is None or due_s > self.now_s
        self.pump()

    @rule(data=st.data())
    def lose_message(self, data: st.DataObject) -> None:
        """The log's retention has passed a message."""
        _, undone = self.group.state()
        if undone:
            position = data.draw(st.sampled_from(undone))
            self.group.gone(position)
            self.acknowledged.add(position)
            self.holder.pop(position, None)

    @rule()
    def save(self) -> None:
        self.saved = self.group.state()
        # What members are done with before it was read again is not among what outlives the process.
        self.saved_acknowledged = {place for place in self.acknowledged if place < self.saved[0]}

    @precondition(lambda self: self.log)
    @rule(returning=st.sets(st.sampled_from(CLIENTS)))
    def start_again(self, returning: set[str]) -> None:
        """The broker is killed: what it knows is what was saved, and what front ends tell it."""
        self.has_started_again = True
        self.acknowledged = set(self.saved_acknowledged)
        self.open()
        self.holder.clear()
        self.offered.clear()
        self.claims.clear()
        self.away.clear()
        was_joined = list(self.joined)
        self.joined.clear()
        for client in was_joined:
            if client in returning:
                self.member_id += 1
                held = sorted(self.has[client])
                self.enter(client, 3, held)
        self.pump()

    # What the broker does

    def pump(self) -> None:
        while wanted := self.group.wanted():
            unread = self.group.unread(wanted)
            for position in unread:
                self.offer(position)
            if not unread:
                fresh = [place for place, _ in self.log if place >= self.group.next_position][:wanted]
                for position in fresh:
                    self.offer(position)
                if fresh:
                    self.group.advance(fresh[-1] + 1)
                if not self.hand_out() and not fresh:
                    break
        self.hand_out()

    def hand_out(self) -> int:
        handed = self.group.hand_out(self.now_s)
        names = {number: client for client, number in self.joined.items()}
        for member_id, position, _, _ in handed:
            client = names[member_id]
            assert client not in self.away, "handed to a member that is away"
            assert position not in self.acknowledged, "handed out again after its acknowledgement"
            assert position not in self.holder, "two members have it"
            if self.strategy.is_ordered:
                self.check_order(client, position)
            self.holder[position] = client
            self.has[client].add(position)
            self.used[client] += 1
            assert self.used[client] <= self.credit[client], "past the credit"
        return len(handed)

    def check_order(self, client: str, position: int) -> None:
        key = self.key_of(position)
        _, undone = self.group.state()
        before = [place for place in undone if place < position and self.key_of(place) == key]
        unread = set(self.group.unread(10_000))
        assert all(place in self.holder or place in unread for place in before), "an older one waits"
        others = {self.holder[place] for place in before if place in self.holder} - {client}
        # Front ends may come back with messages of one key at two members, from before a start.
        assert not others or self.has_started_again, f"{key} is at {others}, too"

    @invariant()
    def is_sound(self) -> None:
        self.group.check_invariants()
        for client, member_id in self.joined.items():
            assert self.group.held_bytes(member_id) == self.holders[client].held_bytes
        undone_count = len(self.group._undone) + len(self.group._unread_set)
        assert undone_count <= IN_FLIGHT_MAX + len(self.saved[1])

    def teardown(self) -> None:
        """One member that takes everything gets everything that is not done."""
        if not hasattr(self, "group"):
            return
        for client in list(self.joined):
            self.leave(client)
        self.join("a", 0)
        for _ in range(2 * len(self.log) + 2):
            self.grant("a", IN_FLIGHT_MAX)
            for position in sorted(self.has["a"]):
                self.has["a"].discard(position)
                self.group.acknowledge(self.joined["a"], position)
                self.acknowledged.add(position)
                self.holder.pop(position, None)
        assert {place for place, _ in self.log} <= self.acknowledged
        assert self.group.state() == (self.group.next_position, [])


TestShareGroup = ShareGroupModel.TestCase
TestShareGroup.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
