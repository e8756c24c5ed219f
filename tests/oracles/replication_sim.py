"""A cluster of members in simulated time: network, disks, consensus store, crashes, and invariants.

Everything random comes from one seed. Logs are lists of records, and a position is a record's number. After
each event that may break one, the promises of docs/explanation/replication.md are checked (I1 to I8 below).
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable

from msgspec.structs import replace

from iotmq.errors import MemberChangeError
from iotmq.replication.cluster_state import ClusterState, Identity, MemberAddress
from iotmq.replication.epochs import EpochStart
from iotmq.replication.member import Beat, Member, Role
from iotmq.replication.messages import (
    Ack,
    Action,
    Alarm,
    AskOthers,
    Confirmed,
    Connect,
    CopyLog,
    Data,
    Disconnect,
    KnowMembers,
    Lead,
    Message,
    Open,
    ReadState,
    ReplaceState,
    Resign,
    Send,
)
from iotmq.replication.next_state import MemberChange
from iotmq.replication.ports import MemberSettings

TICK_S = 0.05
BEAT_S = 0.5
LOAD_S = 0.03
NUMBERS = range(1, 8)
# So long a former master may be current beside the next one: what it has heard is as old, and what has waited
# in a stop of the process that is no longer than a pause.
CURRENT_S = 1.5

Record = tuple[str, int, int]


class BrokenPromiseError(AssertionError):
    """One of the invariants does not hold."""


class SimLog:
    """A log with a page cache: what is not flushed goes with the power."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.digests = [b""]
        self.oldest = 0
        self.flushed = 0
        self.epochs: list[EpochStart] = []

    @property
    def end(self) -> int:
        return len(self.records)

    def append(self, record: Record) -> None:
        if record[0] == "epoch":
            self.epochs.append(EpochStart(record[1], self.end))
        self.records.append(record)
        self.digests.append(hashlib.blake2b(self.digests[-1] + repr(record).encode(), digest_size=8).digest())

    def append_epoch(self, epoch: int, identity: Identity) -> None:
        self.append(("epoch", epoch, identity.member))

    def piece_end(self, position: int, bytes_max: int) -> int:
        return min(position + bytes_max, self.end)

    def is_at_hand(self, position: int, bytes_max: int) -> bool:
        return True

    def append_copy(self, position: int, end: int, content: object) -> None:
        assert position == self.end
        assert isinstance(content, list)
        assert len(content) == end - position
        for record in content:
            self.append(record)

    def cut(self, position: int) -> None:
        del self.records[position:]
        del self.digests[position + 1 :]
        self.flushed = min(self.flushed, position)
        self.epochs = [start for start in self.epochs if start.position < position]

    def copy_of(self, other: SimLog, end: int) -> None:
        self.cut(0)
        for record in other.records[:end]:
            self.append(record)
        self.oldest, self.flushed = other.oldest, end


class SimFile:
    """A member's file: promises are on the disk at once, the confirmed position some time later."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.promised_epoch = 0
        self.confirmed = 0
        self.kept_confirmed = 0

    def promise(self, epoch: int) -> None:
        assert epoch > self.promised_epoch
        self.promised_epoch = epoch

    def note_confirmed(self, position: int) -> None:
        assert position > self.confirmed
        self.confirmed = position


class Link:
    """A connection of a follower (`ends[0]`) with a master, as each of the two processes sees it."""

    def __init__(self, first: Node, second: Node) -> None:
        self.ends = (first, second)
        self.lives = (first.life, second.life)
        self.is_open = True
        # When the last message in each direction arrives: they do not overtake each other.
        self.arrival_s = [0.0, 0.0]
        self.held: list[tuple[int, Message]] = []


class Node:
    """A machine with a disk, and the member that runs on it, or does not."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.log = SimLog()
        self.file = SimFile(Identity(number, f"{number}.0"))
        self.incarnations = 0
        self.member: Member | None = None
        self.life = 0
        self.is_host_down = False
        self.paused_until_s = 0.0
        self.links_in: dict[int, Link] = {}
        self.link_out: Link | None = None
        self.connects = 0
        # Where it may connect to.
        self.known: set[int] = set()
        self.leads: int | None = None
        self.leads_s = 0.0
        # (position behind it, number) of records whose sender waits.
        self.waiting: list[tuple[int, int]] = []

    def start(self) -> None:
        self.life += 1
        self.is_host_down = False
        settings = self.cluster.settings_of_one()
        self.known = set(dict(settings.members))
        self.member = Member(settings, self.log, self.file, self.do)
        self.member.start(self.cluster.now_s)
        self.every(TICK_S, self._tick)
        self.every(BEAT_S, self._beat)
        self.every(0.1, self._flush)
        self.every(LOAD_S, self._load)

    def new_incarnation(self) -> None:
        self.incarnations += 1
        self.file.identity = Identity(self.number, f"{self.number}.{self.incarnations}")

    def every(self, interval_s: float, call: Callable[[], None]) -> None:
        life = self.life

        def again() -> None:
            if self.life == life and self.member is not None:
                self.cluster.later(interval_s * self.cluster.random.uniform(0.8, 1.2), again)
                self.when_awake(call)

        self.cluster.later(self.cluster.random.uniform(0, interval_s), again)

    def when_awake(self, call: Callable[[], None]) -> None:
        """Call in this life of the process, later if it is stopped now."""
        life = self.life
        if self.paused_until_s > self.cluster.now_s:
            self.cluster.at(self.paused_until_s, lambda: self.when_awake_of(life, call))
        else:
            self.when_awake_of(life, call)

    def when_awake_of(self, life: int, call: Callable[[], None]) -> None:
        if self.life == life and self.member is not None:
            call()
            self.cluster.check_node(self)

    def stop(self, *, is_power_cut: bool) -> None:
        """End the process; without power the disk keeps what it was told to, and maybe some more."""
        cluster = self.cluster
        self.life += 1
        self.member = None
        self.leads = None
        self.waiting = []
        self.paused_until_s = 0.0
        self.file.confirmed = self.file.kept_confirmed
        if is_power_cut:
            self.is_host_down = True
            kept = cluster.random.randint(self.log.flushed, self.log.end)
            if kept < self.log.end or not cluster.settings.acknowledge_flushed:
                self.log.cut(kept)
            if not cluster.settings.acknowledge_flushed:
                self.new_incarnation()
            self.file.confirmed = self.file.kept_confirmed = min(self.file.confirmed, self.log.end)
        for link in [*self.links_in.values(), *([self.link_out] if self.link_out else [])]:
            cluster.break_link(link, of=self)
        self.links_in, self.link_out = {}, None

    def replace_disk(self) -> None:
        self.log = SimLog()
        self.new_incarnation()
        file = SimFile(self.file.identity)
        self.file = file

    def _tick(self) -> None:
        assert self.member is not None
        self.member.tick(self.cluster.now_s)

    def _beat(self) -> None:
        self.cluster.engine.beat(self)

    def _flush(self) -> None:
        assert self.member is not None
        self.file.kept_confirmed = self.file.confirmed
        if self.log.flushed < self.log.end:
            self.log.flushed = self.log.end
            self.member.flushed()

    def _load(self) -> None:
        member = self.member
        assert member is not None
        if self.leads is None or member.leading is None or not member.leading.takes_appends:
            return
        for _ in range(self.cluster.random.randint(0, 2)):
            self.cluster.sent += 1
            self.log.append(("message", self.leads, self.cluster.sent))
            self.waiting.append((self.log.end, self.cluster.sent))
        member.log_grew(self.cluster.now_s)

    def do(self, action: Action) -> None:
        """Carry out what the member wants; whatever comes back comes later."""
        cluster = self.cluster
        if isinstance(action, Send):
            message = action.message
            if isinstance(message, Open | Ack):
                link = self.link_out
                if isinstance(message, Ack) and message.epoch < self.file.promised_epoch:
                    raise BrokenPromiseError("I6: acknowledged in an epoch that is past")
            else:
                link = self.links_in.get(action.member)
                if isinstance(message, Data) and message.end > message.position:
                    content = self.log.records[message.position : message.end]
                    message = message._replace(content=content)
            if link is not None:
                cluster.send(link, 0 if link is self.link_out else 1, message)
        elif isinstance(action, KnowMembers):
            self.known = set(dict(action.members))
        elif isinstance(action, Connect):
            if action.member not in self.known:
                raise BrokenPromiseError(f"I9: member {self.number} follows {action.member}, no member")
            cluster.connect(self, cluster.nodes[action.member])
        elif isinstance(action, Disconnect):
            link = self.link_out if action.is_outgoing else self.links_in.get(action.member)
            if link is not None:
                cluster.close(link, by=self)
        elif isinstance(action, ReadState):
            cluster.engine.read(self, action.number)
        elif isinstance(action, ReplaceState):
            cluster.engine.replace(self, action)
        elif isinstance(action, AskOthers):
            for member in action.members:
                cluster.ask(self, cluster.nodes[member])
        elif isinstance(action, CopyLog):
            cluster.copy(self, cluster.nodes[action.member])
        elif isinstance(action, Confirmed):
            cluster.confirmed(self, action.position)
        elif isinstance(action, Lead):
            self.leads, self.leads_s = action.epoch, cluster.now_s
        elif isinstance(action, Resign):
            self.leads = None
            self.waiting = []
        else:
            assert isinstance(action, Alarm)
            cluster.alarms.append(action.text)


class Engine:
    """A linearizable register that may be away, late, or silent about what it did; and signs of life."""

    def __init__(self, cluster: Cluster, state: ClusterState) -> None:
        self.cluster = cluster
        self.state = state
        self.version = 1
        self.away_until_s = 0.0
        self.cut_off: set[int] = set()
        self.is_flaky = False
        self.beats: dict[Identity, tuple[float, int, int, int]] = {}

    def _reaches(self, node: Node) -> bool:
        return self.cluster.now_s >= self.away_until_s and node.number not in self.cut_off

    def _request(self, node: Node, apply: Callable[[], Callable[[], None]]) -> None:
        """`apply` is done at the engine, and what it returns at the node, each some time later or never."""
        cluster, life = self.cluster, node.life
        draw = cluster.random.random

        def arrive() -> None:
            if not self._reaches(node):
                return
            answer = apply()
            if not (self.is_flaky and draw() < 0.3):
                cluster.later(cluster.delay_s(), lambda: self._answer(node, life, answer))

        if self.is_flaky and draw() < 0.2:
            return
        delay_s = cluster.random.uniform(0.5, 4.0) if self.is_flaky and draw() < 0.2 else cluster.delay_s()
        cluster.later(delay_s, arrive)

    def _answer(self, node: Node, life: int, answer: Callable[[], None]) -> None:
        if node.life == life and self._reaches(node):
            node.when_awake(answer)

    def read(self, node: Node, number: int) -> None:
        def apply() -> Callable[[], None]:
            version, state = self.version, self.state
            return lambda: node.member.state_read(number, version, state, self.cluster.now_s)  # type: ignore[union-attr]

        self._request(node, apply)

    def replace(self, node: Node, action: ReplaceState) -> None:
        def apply() -> Callable[[], None]:
            version: int | None = None
            if action.version == self.version:
                self.version += 1
                self.state = action.state
                version = self.version
                self.cluster.state_changed()
                for other in self.cluster.nodes.values():
                    self._poke(other)
            return lambda: node.member.state_replaced(action.number, version, self.cluster.now_s)  # type: ignore[union-attr]

        self._request(node, apply)

    def _poke(self, node: Node) -> None:
        life = node.life
        if self.cluster.random.random() < 0.8:
            self.cluster.later(
                self.cluster.delay_s(),
                lambda: self._answer(node, life, lambda: node.member.poked(self.cluster.now_s)),  # type: ignore[union-attr]
            )

    def beat(self, node: Node) -> None:
        def apply() -> Callable[[], None]:
            now_s = self.cluster.now_s
            leads = 0 if node.member is None else node.member.leads
            self.beats[node.file.identity] = (now_s, node.log.end, leads, node.file.confirmed)
            beats = {
                identity: Beat(now_s - at_s, end, leads, confirmed)
                for identity, (at_s, end, leads, confirmed) in self.beats.items()
            }
            return lambda: node.member.beaten(beats, self.cluster.now_s)  # type: ignore[union-attr]

        self._request(node, apply)


class Cluster:
    """Members, the network between them, and what was confirmed so far."""

    def __init__(
        self, seed: int, *, members: int, settings: MemberSettings, other_settings: MemberSettings | None
    ) -> None:
        """`other_settings` are those of some members, because an operator changes them one by one."""
        self.random = random.Random(seed)
        addresses = tuple(map(address_of, range(1, members + 1)))
        self.settings = replace(settings, members=addresses)
        self._other_settings = None if other_settings is None else replace(other_settings, members=addresses)
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self.nodes = {number: Node(self, number) for number in range(1, members + 1)}
        identities = tuple(node.file.identity for node in self.nodes.values())
        # An earlier version has recorded no members.
        recorded = addresses if self.random.random() < 0.7 else ()
        self.engine = Engine(self, ClusterState(epoch=1, master=1, in_sync=identities, members=recorded))
        self.blocked: set[tuple[int, int]] = set()
        self.links: set[Link] = set()
        self.sent = 0
        self.acknowledged = 0
        """The position below which everything was acknowledged to somebody."""
        self.acknowledged_count = 0
        self.truth: list[bytes] = [b""]
        """The digest of the confirmed log at each position."""
        self.epoch_writers: dict[int, tuple[int, int]] = {}
        self.alarms: list[str] = []
        # Changes of who is a member that operators asked for.
        self.changes = 0
        self.refused_changes = 0
        # Looks at a master that was current, and those with another one that leads a later epoch.
        self.current = 0
        self.current_twice = 0
        self.last_confirmed_s = 0.0
        for node in self.nodes.values():
            node.start()

    def settings_of_one(self) -> MemberSettings:
        """Settings of a member that starts."""
        other = self._other_settings
        return other if other is not None and self.random.random() < 0.5 else self.settings

    @property
    def members(self) -> set[int]:
        """The numbers of all members."""
        return set(dict(self.settings.members_of(self.engine.state)))

    # Time.

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), self._sequence, call))

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, call)

    def run_until(self, end_s: float) -> None:
        while self._heap and self._heap[0][0] <= end_s:
            self.now_s, _, call = heapq.heappop(self._heap)
            call()
        self.now_s = end_s

    def delay_s(self) -> float:
        return self.random.choice((0.0002, 0.001, 0.001, 0.02))

    # The network.

    def connect(self, node: Node, other: Node) -> None:
        node.connects += 1
        number, life = node.connects, node.life

        def failed(*, is_refused: bool) -> None:
            if node.connects == number:
                node.when_awake_of(
                    life,
                    lambda: node.member.link_closed(  # type: ignore[union-attr]
                        other.number, self.now_s, is_outgoing=True, is_refused=is_refused
                    ),
                )

        def arrive() -> None:
            if node.life != life or node.connects != number:
                return
            pairs = {(node.number, other.number), (other.number, node.number)}
            if pairs & self.blocked or other.is_host_down:
                self.later(1.0, lambda: failed(is_refused=False))
            elif other.member is None:
                failed(is_refused=True)
            else:
                old = other.links_in.get(node.number)
                if old is not None:
                    self.close(old, by=other)
                link = Link(node, other)
                self.links.add(link)
                node.link_out = other.links_in[node.number] = link
                node.when_awake(lambda: node.member.link_opened(other.number, self.now_s))  # type: ignore[union-attr]

        self.later(self.delay_s(), arrive)

    def send(self, link: Link, sender: int, message: Message) -> None:
        if not link.is_open:
            return
        first, second = link.ends[sender], link.ends[1 - sender]
        if (first.number, second.number) in self.blocked:
            link.held.append((sender, message))
            return
        arrival_s = max(link.arrival_s[sender], self.now_s + self.delay_s())
        link.arrival_s[sender] = arrival_s
        self.at(arrival_s, lambda: self._deliver(link, sender, message))

    def _deliver(self, link: Link, sender: int, message: Message) -> None:
        first, second = link.ends[sender], link.ends[1 - sender]
        if link.is_open and second.life == link.lives[1 - sender]:

            def receive() -> None:
                if link.is_open:
                    second.member.received(first.number, message, self.now_s)  # type: ignore[union-attr]

            second.when_awake(receive)

    def heal(self) -> None:
        self.blocked.clear()
        for link in list(self.links):
            held, link.held = link.held, []
            for sender, message in held:
                self.send(link, sender, message)

    def close(self, link: Link, *, by: Node) -> None:
        """One side closes; the other hears of it, if the network lets it."""
        self.break_link(link, of=by)
        self._forget(link, by)

    def _forget(self, link: Link, node: Node) -> None:
        if node.link_out is link:
            node.link_out = None
        for number, other in list(node.links_in.items()):
            if other is link:
                del node.links_in[number]

    def break_link(self, link: Link, *, of: Node) -> None:
        """The connection is over; the end that did not close it notices."""
        if not link.is_open:
            return
        link.is_open = False
        self.links.discard(link)
        index = 1 if link.ends[0] is of else 0
        other = link.ends[index]
        is_cut = (of.number, other.number) in self.blocked or of.is_host_down

        def notice() -> None:
            if other.life != link.lives[index]:
                return
            is_current = other.link_out is link or other.links_in.get(of.number) is link
            self._forget(link, other)
            if is_current:
                is_refused = of.member is None and not of.is_host_down
                other.when_awake(
                    lambda: other.member.link_closed(  # type: ignore[union-attr]
                        of.number, self.now_s, is_outgoing=index == 0, is_refused=is_refused
                    )
                )

        # Who is cut off notices when TCP gives up.
        self.later(self.random.uniform(3.0, 8.0) if is_cut else self.delay_s(), notice)

    def ask(self, node: Node, other: Node) -> None:
        life = node.life

        def ask() -> None:
            pairs = {(node.number, other.number), (other.number, node.number)}
            if pairs & self.blocked or other.member is None or other.paused_until_s > self.now_s:
                return
            is_heard = other.member.hears_master(self.now_s)
            self.later(
                self.delay_s(),
                lambda: node.when_awake_of(life, lambda: node.member.hearing_told(is_heard, self.now_s)),  # type: ignore[union-attr]
            )

        self.later(self.delay_s(), ask)

    def copy(self, node: Node, master: Node) -> None:
        life = node.life

        def copied() -> None:
            if node.life != life or node.member is None or master.member is None:
                return
            node.log.copy_of(master.log, master.file.confirmed)
            node.member.log_copied(self.now_s)

        self.later(0.5, copied)

    # What must always hold.

    def confirmed(self, node: Node, position: int) -> None:
        log = node.log
        self.last_confirmed_s = self.now_s
        known = min(position, len(self.truth) - 1)
        if position > log.end or log.digests[known] != self.truth[known]:
            raise BrokenPromiseError(f"I3/I4: member {node.number} shows another history below {position}")
        self.truth += log.digests[len(self.truth) : position + 1]
        leading = None if node.member is None else node.member.leading
        if leading is not None:
            self.check_promise(node)
            while node.waiting and node.waiting[0][0] <= position:
                end, _ = node.waiting.pop(0)
                if node.leads is not None:
                    self.acknowledged = max(self.acknowledged, end)
                    self.acknowledged_count += 1
            self.state_changed()

    def check_promise(self, node: Node) -> None:
        """I6: nothing is confirmed in an epoch that is past."""
        assert node.member is not None
        leading = node.member.leading
        if leading is not None and node.file.promised_epoch > leading.epoch:
            raise BrokenPromiseError("I6: confirmed in an epoch that is past")

    def state_changed(self) -> None:
        """I1: every member of the recorded set has everything that was acknowledged. I9: it is a member."""
        state = self.engine.state
        known = {state.master, *(identity.member for identity in (*state.in_sync, *state.eligible))}
        if not known <= self.members:
            raise BrokenPromiseError(f"I9: {state} names who is no member")
        for identity in (*state.in_sync, *state.eligible):
            node = self.nodes[identity.member]
            if node.file.identity != identity:
                continue
            end = self.acknowledged
            if node.log.end < end or node.log.digests[end] != self.truth[end]:
                raise BrokenPromiseError(
                    f"I1: member {identity.member} in sync lacks acknowledged records below {end}"
                )

    def check_node(self, node: Node) -> None:
        """I2: an epoch has one writer, in one life of its process."""
        leading = None if node.member is None else node.member.leading
        if leading is not None:
            writer = self.epoch_writers.setdefault(leading.epoch, (node.number, node.life))
            if writer != (node.number, node.life):
                raise BrokenPromiseError(f"I2: epoch {leading.epoch} has two writers")
            if leading.is_current(self.now_s):
                self.check_current(node, leading.epoch)

    def check_current(self, node: Node, epoch: int) -> None:
        """I10: who is not master any more gives soon nothing that only one may give."""
        later = [other for other in self.nodes.values() if other.leads is not None and other.leads > epoch]
        self.current += 1
        self.current_twice += bool(later)
        for other in later:
            if self.now_s - other.leads_s > CURRENT_S:
                raise BrokenPromiseError(
                    f"I10: member {node.number} is current in epoch {epoch}, and member {other.number} leads "
                    f"{other.leads} since {self.now_s - other.leads_s:.2f} s"
                )

    def check_live(self) -> None:
        """I8: with all faults over a master confirms, and all members are in sync."""
        leaders = [node for node in self.nodes.values() if node.leads is not None]
        roles = {node.number: node.member.role for node in self.nodes.values() if node.member}
        if len(leaders) != 1 or self.now_s - self.last_confirmed_s > 1.0:
            raise BrokenPromiseError(
                f"I8: no master confirms: {roles}, {self.engine.state}, {self.alarms[-3:]}"
            )
        identities = {self.nodes[number].file.identity for number in self.members}
        if any(roles[number] is not Role.HELD for number in roles.keys() - self.members):
            raise BrokenPromiseError(f"I9: one that is no member takes part: {roles}, {self.engine.state}")
        if set(self.engine.state.in_sync) != identities:
            raise BrokenPromiseError(f"I8: not all in sync: {self.engine.state}, {roles}, {self.alarms[-3:]}")

    @property
    def is_recoverable(self) -> bool:
        """Some member of the recorded set, or an eligible one, has its log still.

        And there are as many members as have to be in sync: one with other settings may have removed more.
        """
        state = self.engine.state
        kinds = [each for each in (self.settings, self._other_settings) if each is not None]
        return max(each.in_sync_min for each in kinds) <= len(self.members) and any(
            self.nodes[identity.member].file.identity == identity
            for identity in (*state.in_sync, *state.eligible)
        )


def simulate(seed: int, *, fault_s: float = 20.0, calm_s: float = 25.0) -> Cluster:
    """Run one cluster through random faults, then let it recover; raises BrokenPromiseError."""
    source = random.Random(f"plan {seed}")
    members = source.choice((2, 3, 3, 3, 5))
    settings = MemberSettings(
        acknowledge_flushed=source.random() < 0.3,
        chunk_bytes=source.choice((3, 50)),
        window_bytes=source.choice((20, 1_000)),
    )
    # What happens with few members: by their number, never, always.
    choices = (
        settings,
        replace(settings, in_sync_min=1, refuses_when_few=False),
        replace(settings, in_sync_min=min(source.choice((2, 2, 3)), members), refuses_when_few=True),
    )
    settings = source.choice(choices)
    other_settings = source.choice(choices) if source.random() < 0.2 else None
    cluster = Cluster(seed, members=members, settings=settings, other_settings=other_settings)
    faults = Faults(cluster, source)
    at_s = 1.0
    while at_s < fault_s:
        cluster.run_until(at_s)
        faults.one()
        at_s += source.expovariate(1.0)
    cluster.run_until(fault_s)
    faults.end()
    cluster.run_until(fault_s + calm_s)
    if cluster.is_recoverable:
        cluster.check_live()
    return cluster


def address_of(number: int) -> MemberAddress:
    """Where a member is."""
    return MemberAddress(number, f"m{number}:1")


class Faults:
    """One after the other, and several at a time."""

    def __init__(self, cluster: Cluster, source: random.Random) -> None:
        self.cluster = cluster
        self.random = source

    def one(self) -> None:
        cluster, draw = self.cluster, self.random
        node = draw.choice(list(cluster.nodes.values()))
        if draw.random() < 0.4:
            # Masters are where it hurts.
            node = cluster.nodes[cluster.engine.state.master]
        kind = draw.choice(
            (
                *("kill", "kill", "power", "pause", "partition", "one way", "heal", "engine away"),
                *("engine flaky", "cut off", "hand over", "hand over", "replace", "restart all", "links"),
                *("nerves", "nerves", "add", "remove"),
            )
        )
        if kind in ("kill", "power") and node.member is not None:
            node.stop(is_power_cut=kind == "power")
            self._start_later(node)
        elif kind == "replace" and draw.random() < 0.5 and node.member is not None:
            node.stop(is_power_cut=False)
            node.replace_disk()
            self._start_later(node)
        elif kind == "pause" and node.member is not None:
            node.paused_until_s = cluster.now_s + draw.choice((0.3, 1.5, 4.0))
        elif kind == "partition":
            for other in cluster.nodes:
                cluster.blocked |= {(node.number, other), (other, node.number)}
        elif kind == "one way":
            other = draw.choice(list(cluster.nodes))
            cluster.blocked.add((node.number, other))
        elif kind == "heal":
            cluster.heal()
            cluster.engine.cut_off.clear()
            cluster.engine.is_flaky = False
        elif kind == "engine away":
            cluster.engine.away_until_s = cluster.now_s + draw.choice((0.5, 3.0))
        elif kind == "engine flaky":
            cluster.engine.is_flaky = True
        elif kind == "cut off":
            cluster.engine.cut_off.add(node.number)
        elif kind == "hand over":
            master = cluster.nodes[cluster.engine.state.master]
            if master.member is not None and master.paused_until_s <= cluster.now_s:
                master.member.hand_over(node.number, cluster.now_s)
        elif kind == "add":
            self._add()
        elif kind == "remove":
            self._change_members(MemberChange(node.number, "", draw.random() < 0.5))
        elif kind == "restart all" and draw.random() < 0.3:
            for each in cluster.nodes.values():
                if each.member is not None:
                    each.stop(is_power_cut=False)
                    self._start_later(each)
        elif kind == "nerves":
            # A wrong suspicion must be harmless.
            nervous = draw.choice(list(cluster.nodes.values()))
            member = nervous.member
            is_awake = member is not None and nervous.paused_until_s <= cluster.now_s
            if is_awake and member is not None and member.role is Role.FOLLOWING:
                member.stand(cluster.now_s)
        elif kind == "links" and cluster.links:
            link = draw.choice(sorted(cluster.links, key=lambda link: tuple(end.number for end in link.ends)))
            cluster.close(link, by=link.ends[0])
            first = link.ends[0]
            if first.member is not None:
                first.member.link_closed(link.ends[1].number, cluster.now_s, is_outgoing=True)

    def _add(self) -> None:
        """Have a member added: a new one, or one that was removed with the disk it had, or another."""
        cluster, draw = self.cluster, self.random
        free = [number for number in NUMBERS if number not in cluster.members]
        if not free:
            return
        number = draw.choice(free)
        node = cluster.nodes.get(number)
        if node is None:
            node = cluster.nodes[number] = Node(cluster, number)
            self._start_later(node)
        elif draw.random() < 0.5 and node.member is not None:
            node.stop(is_power_cut=False)
            node.replace_disk()
            self._start_later(node)
        self._change_members(MemberChange(*address_of(number), draw.random() < 0.5))

    def _change_members(self, change: MemberChange) -> None:
        cluster = self.cluster
        master = cluster.nodes[cluster.engine.state.master]
        if master.member is not None and master.paused_until_s <= cluster.now_s:
            try:
                master.member.change_members(change, cluster.now_s)
            except MemberChangeError:
                cluster.refused_changes += 1
            else:
                cluster.changes += 1

    def _start_later(self, node: Node) -> None:
        life = node.life

        def start() -> None:
            if node.life == life and node.member is None:
                node.start()

        self.cluster.later(self.random.choice((0.2, 1.0, 5.0)), start)

    def end(self) -> None:
        """Mend everything."""
        cluster = self.cluster
        cluster.heal()
        cluster.engine.away_until_s = 0.0
        cluster.engine.cut_off.clear()
        cluster.engine.is_flaky = False
        for node in cluster.nodes.values():
            node.paused_until_s = min(node.paused_until_s, cluster.now_s)
            if node.member is None:
                node.start()
