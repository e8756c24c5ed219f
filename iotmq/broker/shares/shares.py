"""Serve the shared subscriptions that have members: read queues, hand messages out, log the progress.

`share_group.ShareGroup` decides which member gets a message. Here are the light queues that the messages come
from, the front ends that the members are at, and the records that say how far each group has come.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from typing_extensions import Buffer

from iotmq.broker.parts import BrokerParts
from iotmq.broker.session_store.channel import SessionChannel
from iotmq.broker.session_store.log import SessionLog
from iotmq.broker.session_store.projection import QueueEntries, SessionProjection
from iotmq.broker.session_store.queue_reader import LightQueueReader
from iotmq.broker.session_store.records import EndShare, OpenShare, ProgressShare
from iotmq.broker.session_store.shares import StoredShare, is_share
from iotmq.broker.shares.share_group import Handout, Holder, ShareGroup, Strategy
from iotmq.errors import RequestError, StoreError
from iotmq.event_loop import LoopSlice, NextTurn
from iotmq.message.properties import MQTT_CLIENT_ID, MQTT_TOPIC
from iotmq.message.records.record import decode_record, property_value
from iotmq.metrics import Metric, samples
from iotmq.ports.sessions import HANDOUT_REPEATED, Refused, ShareJoin, ShareReport
from iotmq.remoting.codes import ResponseCode
from iotmq.store.queues.cold_steps import Steps
from iotmq.store.queues.residency import ColdRead

logger = logging.getLogger(__name__)

# The log is told so seldom how far groups have come: what a crash of the broker repeats at most.
PROGRESS_INTERVAL_S: Final = 0.2
# Groups that nobody takes part in since the start end after so long: front ends come back by and by.
START_GRACE_S: Final = 10.0
# So often groups are looked for that nobody has any more; one whose last member leaves ends at once.
SWEEP_INTERVAL_S: Final = 5.0
# Groups of before a start hand out nothing for so long, so that members can say first what they hold.
REJOIN_GRACE_S: Final = 2.0
# Messages looked at in one step of a group, and steps of one group in one turn of the loop.
_PAGE: Final = 256
_STEPS_PER_TURN: Final = 8
# Messages that came while a group could not take them are remembered up to here; past it they are read.
_FRESH_MAX: Final = 4_096
# So often what is next is brought in when it has left the memory each time; after that a second is waited.
_LOADS_MAX: Final = 4
# Most records are no longer, where only their place is known.
_FIRST_BYTES: Final = 4_096
_PUSH: Final = struct.Struct(">II")
_SIZE_AND_POSITION: Final = struct.Struct(">i24xq")


class ShareView(NamedTuple):
    """One group, for operators. `members` as `ShareGroup.members`."""

    share: str
    strategy: Strategy
    kept_count: int
    in_flight: int
    undone: int
    behind: int
    cursor: int
    members: list[tuple[str, str, int, int, bool]]


class _Member:
    __slots__ = ("channel", "live", "member_id", "number")

    def __init__(self, live: _Live, channel: SessionChannel, *, number: int, member_id: int) -> None:
        self.live = live
        self.channel = channel
        # The front end's, and the group's.
        self.number = number
        self.member_id = member_id


class _Client:
    """Hold the memberships of one client by share, and the bytes it holds in all of them."""

    __slots__ = ("_wake", "holder", "members")

    def __init__(self, client_id: str, wake: Callable[[_Live], None]) -> None:
        self.members: dict[str, _Member] = {}
        self.holder = Holder(client_id, self._room_again)
        self._wake = wake

    def _room_again(self) -> None:
        """Let the client's groups go on, another one first each time, so that none takes all of the room."""
        for member in self.members.values():
            member.live.group.room_again(member.member_id)
            self._wake(member.live)
        share = next(iter(self.members), None)
        if share is not None:
            self.members[share] = self.members.pop(share)


class _Live:
    """A group with members, now or since the start, and how far its queue was read."""

    __slots__ = ("fresh", "generation", "group", "handouts", "is_current", "is_loading", "loads", "members",
                 "queue_id", "search", "share", "since")  # fmt: skip

    def __init__(self, share: str, stored: StoredShare, group: ShareGroup) -> None:
        self.share = share
        self.since = stored.since
        self.queue_id = stored.queue_id
        # That of the queues in which its queue has this number and is attached.
        self.generation = -1
        self.group = group
        self.members: dict[int, _Member] = {}
        # Everything past the group's next position is in `fresh`: (position, size).
        self.is_current = False
        self.fresh: list[tuple[int, int]] = []
        # True while the disk is waited for, for the messages that come next; and how often it was for those.
        self.is_loading = False
        self.loads = 0
        # What looks for them, where that needs the disk.
        self.search: Steps[QueueEntries] | None = None
        # Messages members have by the group's books, whose records have to come from the disk first.
        self.handouts: list[Handout] = []


class Shares:
    """The shared subscriptions of one broker. On the loop's thread.

    `front_end_of(client id)` names the front end of a publisher, None when it is not known here.
    """

    def __init__(
        self,
        parts: BrokerParts,
        projection: SessionProjection,
        reader: LightQueueReader,
        log: SessionLog,
        *,
        front_end_of: Callable[[str], str | None],
    ) -> None:
        self._projection = projection
        self._reader = reader
        self._store = parts.store
        self._log = log
        clock = self._clock = parts.clock
        self._settings = parts.settings
        self._strategy = Strategy(parts.settings.shared_strategy)
        self._front_end_of = front_end_of
        self._light = projection.queues.open_channel(self._pushed)
        self._live: dict[str, _Live] = {}
        self._by_queue: dict[int, list[_Live]] = {}
        self._by_number: dict[tuple[SessionChannel, int], _Member] = {}
        self._clients: dict[str, _Client] = {}
        # Joins that wait for the log, by share; and groups whose end is on its way there.
        self._joining: dict[str, int] = {}
        self._ending: set[str] = set()
        self._last_member_id = 0
        self._busy: dict[str, _Live] = {}
        self._next_turn = NextTurn(self._pump)
        # Groups whose queue could not be read.
        self._stalled: list[_Live] = []
        self._unsaved: dict[str, _Live] = {}
        self._save_timer: asyncio.TimerHandle | None = None
        self._started_s = clock.monotonic_s()
        self._started_position = projection.applied_position
        self._is_settled = False
        self._sweep_due_s = self._started_s + START_GRACE_S
        self._is_finished = False
        self._is_stopped = False
        # Of groups that are over.
        self._past = [0, 0, 0, 0]
        self.refused_joins_total = 0
        self.unknown_reports_total = 0
        self.lost_records_total = 0

    def start(self) -> None:
        """Give members their time to come back, from now on; before the first of them."""
        self._started_s = self._clock.monotonic_s()
        self._started_position = self._projection.applied_position
        self._sweep_due_s = self._started_s + START_GRACE_S

    # Members

    def check(self, filters: Iterable[str]) -> Refused | None:
        """Return why a kept session cannot subscribe these filters."""
        new = {name for name in filters if is_share(name) and self._projection.shares.get(name) is None}
        if (
            len(self._projection.shares) + len(self._joining) + len(new) <= self._settings.shared_groups_max
            or not new
        ):
            return None
        self.refused_joins_total += 1
        return Refused(
            ResponseCode.NO_PERMISSION,
            f"no more shared subscriptions: broker.shared_groups_max is {self._settings.shared_groups_max}",
        )

    def join(
        self,
        channel: SessionChannel,
        wanted: ShareJoin,
        *,
        is_kept: bool,
        is_there: Callable[[], bool],
        done: Callable[[Refused | None], None],
    ) -> None:
        """Make a client a member; `is_kept`: its session is kept, and has subscribed already.

        `is_there()` tells whether the client is still the channel's.
        """
        share = wanted.topic_filter
        live = self._live.get(share)
        client = self._clients.get(wanted.client_id)
        is_new = client is None or share not in client.members
        if live is not None and is_new and len(live.members) >= self._settings.shared_members_max:
            self.refused_joins_total += 1
            text = f"the group has {len(live.members)} members: broker.shared_members_max"
            done(Refused(ResponseCode.NO_PERMISSION, text))
            return
        if is_kept or (live is not None and share not in self._ending):
            done(self._enter(channel, wanted))
            return
        refused = self.check([share])
        if refused is not None:
            done(refused)
            return

        def logged(position: int | Refused) -> None:
            if isinstance(position, Refused):
                done(position)
            elif is_there():
                done(self._enter(channel, wanted))
            else:
                self._end_when_unused(share)
                done(Refused(ResponseCode.SESSION_LOST, "the client has gone"))

        self._open(share, logged)

    def _open(self, share: str, logged: Callable[[int | Refused], None]) -> None:
        """Write that there is a group; nobody ends it before the log has that."""

        def written(position: int | Refused) -> None:
            self._joining[share] -= 1
            if not self._joining[share]:
                del self._joining[share]
            logged(position)

        self._joining[share] = self._joining.get(share, 0) + 1
        self._log.write([OpenShare(share)], written)

    def report(self, channel: SessionChannel, reports: Sequence[ShareReport]) -> Refused | None:
        """Take what members acknowledge and their new credit; refused once the log takes nothing more."""
        if self._is_finished:
            return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker stops")
        for report in reports:
            member = self._by_number.get((channel, report.member))
            if member is None:
                self.unknown_reports_total += 1
                continue
            group = member.live.group
            for position in report.done:
                group.acknowledge(member.member_id, position)
            group.grant(member.member_id, report.limit)
            self._note_progress(member.live)
            self._wake(member.live)
        return None

    def leave(self, client_id: str, filters: Iterable[str] | None = None) -> None:
        """Remove a client from these groups, or from all; what it held is for others."""
        client = self._clients.get(client_id)
        if client is None:
            return
        members = client.members
        for share in list(members) if filters is None else [name for name in filters if name in members]:
            self._drop(members.pop(share))
        if not members:
            self._clients.pop(client_id, None)

    def channel_closed(self, channel: SessionChannel) -> None:
        """Pass over the members of a lost front end, which may be back soon with what they hold."""
        for live, member_ids in self._members_at(channel).items():
            live.group.away(*member_ids)
            self._wake(live)
        for key in [key for key in self._by_number if key[0] is channel]:
            del self._by_number[key]

    def _drained(self, channel: SessionChannel) -> None:
        """Hand out to a front end again that takes what it is sent."""
        for live, member_ids in self._members_at(channel).items():
            live.group.back(*member_ids)
            self._wake(live)

    def _members_at(self, channel: SessionChannel) -> dict[_Live, list[int]]:
        """Return the members at a front end by group: one change for all costs as much as one for each."""
        found: dict[_Live, list[int]] = {}
        for (place, _), member in self._by_number.items():
            if place is channel:
                found.setdefault(member.live, []).append(member.member_id)
        return found

    def _enter(self, channel: SessionChannel, wanted: ShareJoin) -> Refused | None:
        share = wanted.topic_filter
        stored = self._projection.shares.get(share)
        if stored is None:
            return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "sessions are behind the log")
        live = self._live.get(share)
        if live is not None and live.since != stored.since and not live.members:
            self._forget(live)
            live = None
        if live is None:
            live = self._begin(share, stored)
        client = self._clients.get(wanted.client_id)
        if client is None:
            client = self._clients[wanted.client_id] = _Client(wanted.client_id, self._wake)
        member = client.members.get(share)
        if member is None:
            self._last_member_id += 1
            member = client.members[share] = _Member(
                live, channel, number=wanted.member, member_id=self._last_member_id
            )
            live.members[member.member_id] = member
        else:
            self._by_number.pop((member.channel, member.number), None)
            member.channel, member.number = channel, wanted.member
        self._by_number[channel, wanted.member] = member
        live.group.join(
            member.member_id,
            client.holder,
            channel.name,
            limit=wanted.credit,
            held=wanted.held,
            now_s=self._clock.monotonic_s(),
        )
        self._wake(live)
        return None

    def _begin(self, share: str, stored: StoredShare) -> _Live:
        group = ShareGroup(
            self._strategy,
            next_position=stored.next_position,
            undone=stored.undone,
            in_flight_max=self._settings.shared_in_flight_max,
            timeout_s=self._settings.shared_timeout_s,
        )
        live = self._live[share] = _Live(share, stored, group)
        self._attach(live)
        return live

    def _attach(self, live: _Live) -> None:
        self._projection.queues.attach(self._light, live.queue_id)
        live.generation = self._projection.queues.generation
        self._by_queue.setdefault(live.queue_id, []).append(live)
        live.is_current = False
        live.fresh.clear()
        live.search = None

    def _detach(self, live: _Live) -> None:
        others = self._by_queue[live.queue_id]
        others.remove(live)
        if not others:
            del self._by_queue[live.queue_id]
        if live.generation == self._projection.queues.generation:
            self._projection.queues.detach(self._light, live.queue_id)

    def _drop(self, member: _Member) -> None:
        live = member.live
        if self._by_number.get((member.channel, member.number)) is member:
            del self._by_number[member.channel, member.number]
        del live.members[member.member_id]
        live.group.leave(member.member_id)
        self._wake(live)
        if not live.members:
            self._note_progress(live)
            self.save()
            self._end_when_unused(live.share)

    def _end_when_unused(self, share: str) -> None:
        """End a group that has no members, connected or kept."""
        stored = self._projection.shares.get(share)
        live = self._live.get(share)
        is_used = stored is None or stored.kept_count or (live is not None and live.members)
        if is_used or share in self._joining or share in self._ending or self._is_stopped:
            return
        assert stored is not None
        self._ending.add(share)

        def logged(position: int | Refused) -> None:
            self._ending.discard(share)
            found = self._live.get(share)
            if found is not None and not found.members and self._projection.shares.get(share) is None:
                self._forget(found)

        self._log.write([EndShare(share, stored.since)], logged)

    def _forget(self, live: _Live) -> None:
        del self._live[live.share]
        self._busy.pop(live.share, None)
        self._unsaved.pop(live.share, None)
        self._detach(live)
        for place, count in enumerate(_totals(live.group)):
            self._past[place] += count

    # Messages

    def _pushed(self, records: Buffer, pushes: bytes) -> None:
        """Records of queues that groups have (light_queues.LightChannel)."""
        view = memoryview(records)
        for place, queue_id in _PUSH.iter_unpack(pushes):
            size, position = _SIZE_AND_POSITION.unpack_from(view, place)
            for live in self._by_queue.get(queue_id, ()):
                if live.is_current:
                    live.fresh.append((position, size))
                    if len(live.fresh) > _FRESH_MAX:
                        live.is_current = False
                        live.fresh.clear()
                self._wake(live)

    def _wake(self, live: _Live) -> None:
        self._busy[live.share] = live
        if not self._is_stopped:
            self._next_turn.schedule()

    def _pump(self) -> None:
        """Serve groups until the turn's share is used up; one message may be for ten thousand of them."""
        busy, self._busy = self._busy, {}
        turn = LoopSlice()
        for number, live in enumerate(busy.values()):
            if not turn.take():
                # Those that have waited come first.
                self._busy = dict(islice(busy.items(), number, None)) | self._busy
                self._wake(live)
                return
            if self._live.get(live.share) is live and live.members and not self._is_stopped:
                try:
                    self._serve(live)
                except StoreError as error:
                    # A full disk: `expire` has it looked at again.
                    if not self._stalled:
                        logger.warning("shared subscriptions wait for the key-value database: %s", error)
                    self._stalled.append(live)

    def _serve(self, live: _Live) -> None:
        group = live.group
        if not self._is_settled and live.since < self._started_position:
            # `expire` has it looked at again.
            return
        if live.is_loading:
            return
        # Meanwhile some may be for others.
        live.handouts = [handout for handout in live.handouts if group.holds(handout)]
        for _ in range(_STEPS_PER_TURN):
            if not self._hand(live):
                return
            now_s = self._clock.monotonic_s()
            wanted = min(group.wanted(), _PAGE)
            has_more = wanted > 0 and self._offer(live, wanted, now_s)
            if live.is_loading:
                return
            live.handouts = group.hand_out(now_s)
            if not self._hand(live) or not has_more:
                return
        # Others first.
        self._wake(live)

    def _offer(self, live: _Live, wanted: int, now_s: float) -> bool:
        """Bring messages of the queue to a group; False when there are no more, or not in memory yet."""
        group = live.group
        unread = group.unread(wanted)
        if unread:
            return self._offer_unread(live, unread, now_s)
        found = self._next_entries(live, wanted)
        if found is None:
            return False
        # Also where only their entries are needed now: they are handed out next.
        entries = self._in_memory(live, found.entries)
        if len(entries) < len(found.entries):
            found = QueueEntries(entries, found.entries[len(entries)][0], is_end=False)
            if not entries:
                return False
        live.loads = 0
        if live.is_current:
            del live.fresh[: len(entries)]
        is_keyed = group.strategy not in (Strategy.ROUND_ROBIN, Strategy.STICKY)
        for position, size in entries:
            record = self._store.read_record(position) if is_keyed else None
            if is_keyed and record is None:
                self.lost_records_total += 1
            else:
                group.offer(position, size, "" if record is None else self._key_of(record), now_s=now_s)
        live.is_current = live.is_current or found.is_end
        group.advance(max(found.next_position, group.next_position))
        # A wide filter's messages may be far from each other.
        return bool(entries) or not found.is_end

    def _offer_unread(self, live: _Live, unread: list[int], now_s: float) -> bool:
        """`_offer` of what was read before the start; only the positions are known."""
        first = self._in_memory(live, [(position, _FIRST_BYTES) for position in unread])
        # The first pages say how many there are.
        entries = self._in_memory(live, [(position, self._store.size_at(position)) for position, _ in first])
        for position, _ in entries:
            live.loads = 0
            record = self._store.read_record(position)
            if record is None:
                self.lost_records_total += 1
                live.group.gone(position)
            else:
                live.group.offer(position, len(record), self._key_of(record), now_s=now_s)
        return bool(entries)

    def _next_entries(self, live: _Live, wanted: int) -> QueueEntries | None:
        """Return where the next messages stand; None when that cannot be said now."""
        group = live.group
        if live.is_current:
            taken = live.fresh[:wanted]
            return QueueEntries(taken, taken[-1][0] + 1 if taken else group.next_position, is_end=True)
        search, live.search = live.search, None
        if search is None:
            search = self._reader.entry_steps(live.queue_id, group.next_position, entries_max=wanted)
        try:
            plan = next(search)
        except StopIteration as finished:
            found: QueueEntries = finished.value
            return found
        except KeyError:
            # The database was opened again, and `expire` sees to it.
            return None
        assert plan is not None, "a read of a queue only waits for the disk"
        live.search = search
        self._load(live, plan)
        return None

    def _in_memory(self, live: _Live, entries: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the first of some entries, as many as are in memory; if none is, they are brought in.

        The group is served again then.
        """
        plan = self._store.plan_records(entries)
        if plan is None:
            return entries
        if live.loads:
            # They may be more than are brought in, or stay, at one time.
            is_absent = (self._store.plan_records([place]) is not None for place in entries)
            count = next((number for number, absent in enumerate(is_absent) if absent), len(entries))
            if count:
                return entries[:count]
        if live.loads < _LOADS_MAX:
            live.loads += 1
            self._load(live, plan)
        else:
            live.loads = 0
            self._stalled.append(live)
        return []

    def _load(self, live: _Live, plan: ColdRead) -> None:
        """Wait for the disk off the loop; then, or when `expire` looks at it again, the group is served."""

        def ready(error: OSError | None) -> None:
            live.is_loading = False
            if self._live.get(live.share) is not live:
                return
            if error is None:
                self._wake(live)
            else:
                logger.warning("shared subscriptions wait for the disk: %s", error)
                live.search = None
                self._stalled.append(live)

        try:
            self._reader.load(plan, ready)
        except RequestError:
            # Too many wait for the disk.
            live.search = None
            self._stalled.append(live)
        else:
            live.is_loading = True

    def _key_of(self, record: memoryview) -> str:
        strategy = self._strategy
        if strategy in (Strategy.ROUND_ROBIN, Strategy.STICKY):
            return ""
        name = MQTT_TOPIC if strategy is Strategy.HASH_TOPIC else MQTT_CLIENT_ID
        value = property_value(decode_record(record).properties, name.encode())
        key = (value or b"").decode("utf-8", "replace")
        return self._front_end_of(key) or "" if strategy is Strategy.LOCAL_FIRST else key

    def _hand(self, live: _Live) -> bool:
        """Send members what they are to have; False while some of it is not in memory.

        What was handed out before, or has waited for a member, may have left it.
        """
        while live.handouts:
            entries = [(handout.position, handout.size) for handout in live.handouts]
            count = len(self._in_memory(live, entries))
            if not count:
                return False
            live.loads = 0
            handed, live.handouts = live.handouts[:count], live.handouts[count:]
            self._send(live, handed)
        return True

    def _send(self, live: _Live, handed: Sequence[Handout]) -> None:
        by_channel: dict[SessionChannel, tuple[list[tuple[int, int]], list[memoryview]]] = {}
        for member_id, position, _, is_repeated in handed:
            record = self._store.read_record(position)
            if record is None:
                self.lost_records_total += 1
                live.group.gone(position)
                continue
            member = live.members[member_id]
            handouts, records = by_channel.setdefault(member.channel, ([], []))
            handouts.append((member.number, HANDOUT_REPEATED if is_repeated else 0))
            records.append(record)
        for channel, (handouts, records) in by_channel.items():
            if not channel.is_open:
                # It went while the disk was waited for, and says what it has when it is back.
                continue
            channel.shares.hand_out(handouts, records)
            if channel.shares.is_congested:
                self._congested(channel)

    def _congested(self, channel: SessionChannel) -> None:
        """Pass over the members of a front end that does not take what it is sent, until it does."""
        for live, member_ids in self._members_at(channel).items():
            live.group.away(*member_ids)
        channel.shares.call_when_drained(lambda: self._drained(channel))

    # Time and the log

    def expire(self) -> None:
        """Take back what was held too long, end what nobody has; called about once a second."""
        now_s = self._clock.monotonic_s()
        if not self._is_settled and now_s - self._started_s >= REJOIN_GRACE_S:
            self._is_settled = True
            for live in self._live.values():
                self._wake(live)
        stalled, self._stalled = self._stalled, []
        for live in stalled:
            self._wake(live)
        for live in list(self._live.values()):
            self._follow_projection(live)
            due_s = live.group.next_deadline()
            if due_s is not None and due_s <= now_s:
                self._withdraw(live, live.group.expire(now_s))
        if now_s >= self._sweep_due_s:
            self._sweep_due_s = now_s + SWEEP_INTERVAL_S
            for share in list(self._projection.shares.names()):
                self._end_when_unused(share)

    def _follow_projection(self, live: _Live) -> None:
        """Attach all queues again after the database was reopened: they may have other numbers."""
        stored = self._projection.shares.get(live.share)
        if stored is None:
            if live.members and live.share not in self._joining:
                # Its record was lost with the database's last writes: it comes again.
                self._open(live.share, lambda position: None)
            return
        is_attached = live.generation == self._projection.queues.generation
        if not is_attached or (stored.queue_id, stored.since) != (live.queue_id, live.since):
            self._detach(live)
            live.queue_id, live.since = stored.queue_id, stored.since
            self._attach(live)
            self._wake(live)

    def _withdraw(self, live: _Live, taken: Sequence[tuple[int, int]]) -> None:
        by_channel: dict[SessionChannel, list[tuple[int, int]]] = {}
        for member_id, position in taken:
            member = live.members[member_id]
            if member.channel.is_open:
                by_channel.setdefault(member.channel, []).append((member.number, position))
        for channel, positions in by_channel.items():
            channel.shares.withdraw(positions)
        self._wake(live)

    def _note_progress(self, live: _Live) -> None:
        self._unsaved[live.share] = live
        if self._save_timer is None and not self._is_stopped:
            self._save_timer = asyncio.get_running_loop().call_later(PROGRESS_INTERVAL_S, self.save)

    def save(self) -> None:
        """Write to the log how far groups have come; a timer does it anyway."""
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None
        unsaved, self._unsaved = self._unsaved, {}
        for live in unsaved.values():
            if live.group.take_dirty():
                next_position, undone = live.group.state()
                self._log.write(
                    [ProgressShare(live.share, live.since, next_position, undone)],
                    partial(self._saved, live),
                )

    def save_now(self) -> None:
        """Write the progress of all groups before anything else is written."""
        self.save()
        self._log.flush()

    def finish(self) -> None:
        """Write the progress of all groups; the log takes nothing after this."""
        self.save_now()
        self._is_finished = True

    def _saved(self, live: _Live, result: int | Refused) -> None:
        if isinstance(result, Refused):
            logger.warning("the progress of %s is not stored: %s", live.share, result.remark)
            live.group.mark_dirty()
            self._note_progress(live)

    def check_invariants(self) -> None:
        """Assert what must always be true; for tests."""
        for share, live in self._live.items():
            live.group.check_invariants()
            assert live.share == share
            assert live in self._by_queue[live.queue_id]
        assert {member for live in self._live.values() for member in live.members.values()} == {
            member for client in self._clients.values() for member in client.members.values()
        }
        for client in self._clients.values():
            held = [member.live.group.held_bytes(member.member_id) for member in client.members.values()]
            assert held, "a client in no group"
            assert client.holder.held_bytes == sum(held)
        for (channel, number), member in self._by_number.items():
            assert (member.channel, member.number) == (channel, number)
            assert member.live.members[member.member_id] is member

    def stop(self) -> None:
        """Stop the timers: nothing more is done by itself."""
        self._is_stopped = True
        if self._save_timer is not None:
            self._save_timer.cancel()
            self._save_timer = None

    # Operators

    def views(self, *, after: str = "") -> Iterator[ShareView]:
        """Yield all groups in the order of their names, from behind `after` on."""
        for share in sorted(name for name in self._projection.shares.names() if name > after):
            yield self.view(share)

    def view(self, share: str) -> ShareView:
        """Return one group. KeyError when there is none."""
        stored = self._projection.shares.get(share)
        if stored is None:
            raise KeyError(share)
        live = self._live.get(share)
        if live is None:
            next_position, undone, in_flight = stored.next_position, stored.undone, 0
        else:
            next_position, undone = live.group.state()
            in_flight = live.group.in_flight_count
        return ShareView(
            share=share,
            strategy=self._strategy,
            kept_count=stored.kept_count,
            in_flight=in_flight,
            undone=len(undone),
            behind=len(undone) + self._reader.backlog(stored.queue_id, next_position),
            cursor=min(undone, default=next_position),
            members=[] if live is None else list(live.group.members()),
        )

    def metrics(self) -> Iterable[Metric]:
        """Report groups, members, and what was handed to them."""
        groups = [live.group for live in self._live.values()]
        totals = list(self._past)
        for group in groups:
            totals = [total + count for total, count in zip(totals, _totals(group), strict=True)]
        handed, repeated, timed_out, done = totals
        members = sum(len(live.members) for live in self._live.values())
        in_flight = sum(group.in_flight_count for group in groups)
        yield from samples(
            ("shares", "Groups of shared subscriptions.", len(self._projection.shares)),
            ("share_members", "Connected members of groups.", members),
            ("share_in_flight", "Messages that members of groups hold.", in_flight),
            ("share_handed_total", "Messages handed to members of groups.", handed),
            ("share_repeated_total", "Messages of groups handed out again.", repeated),
            ("share_timed_out_total", "Messages taken from members that held them too long.", timed_out),
            ("share_done_total", "Messages that members of groups are done with.", done),
            ("share_refused_joins_total", "Members and groups past a limit.", self.refused_joins_total),
            ("share_unknown_reports_total", "Reports of members that are gone.", self.unknown_reports_total),
            (
                "share_lost_records_total",
                "Messages the log lost before it was their turn.",
                self.lost_records_total,
            ),
            prefix="iotmq_broker_",
        )


def _totals(group: ShareGroup) -> tuple[int, int, int, int]:
    return group.handed_total, group.repeated_total, group.timed_out_total, group.done_total
