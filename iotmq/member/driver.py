"""Carry out what the state machine of a member asks: connections, the consensus store, the log, the clock.

Everything happens on the event loop. Whatever goes wrong in here and is no trouble of a peer ends the run of
this member, which then begins anew from its disk: no state is repaired in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol

from iotmq.broker.tables.table_copies import TableCopies
from iotmq.clock import Clock
from iotmq.errors import IotmqError, MemberChangeError, RequestError
from iotmq.event_loop import NextTurn
from iotmq.member import report
from iotmq.member.consensus_requests import Beats, BeatValue, ConsensusRequests, first_state
from iotmq.member.follower_links import FollowerLinks
from iotmq.member.log_checksums import LogChecksums
from iotmq.member.master_link import MasterLink
from iotmq.member.peers import CONNECT_S, PeerConnector
from iotmq.member.report import Alarms, diverged_alarms
from iotmq.member.table_stream import TableStream
from iotmq.member.wire import (
    Introduction,
    decode,
    decode_open,
    encode,
    encode_open,
    encode_refusal,
)
from iotmq.metrics import Metric
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Body, Command
from iotmq.remoting.server import ServerConnection
from iotmq.replicated.member_store import MemberStore
from iotmq.replication.cluster_state import ClusterState, Identity
from iotmq.replication.consensus.port import ConsensusStore
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
    FollowFrom,
    KnowMembers,
    Lead,
    LoadLog,
    Message,
    Open,
    ReadState,
    ReplaceState,
    Resign,
    Send,
)
from iotmq.replication.next_state import MemberChange
from iotmq.replication.ports import MemberSettings
from iotmq.supervised import end, supervise

logger = logging.getLogger("iotmq.replication")

_TICK_S: Final = 0.05
_SAVE_S: Final = 1.0
_ASK_S: Final = 0.5
_PROBES: Final = 5
_PROBE_S: Final = 0.02
# What is loaded for a follower at a time; some records are longer, which the first load tells.
_LOAD_BYTES: Final = 1 << 20
_LOADS_MAX: Final = 3
# So often it is looked for bytes that were cut off and kept: operators remove them.
_DIVERGED_S: Final = 5.0


class MemberEvents(Protocol):
    """Hear what becomes of a member: the broker that it is does."""

    @property
    def tables(self) -> TableCopies:
        """Return the tables of the broker, which are sent to followers or taken from the master."""

    def confirmed(self, position: int) -> None:
        """Everything before `position` may be shown and acknowledged."""

    def lead(self, epoch: int) -> None:
        """This member is master."""

    def ended(self, reason: str) -> None:
        """The run is over: the member is master no more, or something failed. It has to begin anew."""

    def copy_needed(self, master: int) -> None:
        """The log has to be replaced by a copy of the master's; `ended` follows."""

    def standing_alarms(self) -> list[str]:
        """Return sentences for the operator that do not come from this run."""

    def appends_changed(self) -> None:
        """Whether the master takes messages has changed: see `MemberDriver.hold_reason`."""


class MemberDriver:
    """One run of a member, from the opened log until it is closed or has to begin anew."""

    def __init__(
        self,
        opened: MemberStore,
        settings: MemberSettings,
        connector: PeerConnector,
        consensus: ConsensusStore,
        *,
        events: MemberEvents,
        clock: Clock,
    ) -> None:
        """`connector` knows where the other members are, and how this one introduces itself."""
        self._opened = opened
        self._settings = settings
        self._connector = connector
        self._introduction = connector.introduction
        self._events = events
        self._clock = clock
        self.member = Member(settings, opened.log, opened.file, self._do)
        self._own = opened.file.identity
        self.is_running = False
        """True from the start until the run is over."""
        self.has_failed = False
        """True when the run has ended because something failed, and not because of another master."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._work: list[asyncio.Task[None]] = []
        # Reads of the log from the disk, in threads.
        self._loads: set[asyncio.Future[None]] = set()
        self._tables = TableStream(events.tables)
        self._master = MasterLink(connector, self._tables, self, spawn=self._spawn)
        self._followers = FollowerLinks(self.member, connector.introduction)
        self._log_grew = NextTurn(self._report_growth)
        self._hold_reason: str | None = None
        self._others: Beats = {}
        self._alarms = Alarms()
        self._requests = ConsensusRequests(consensus, self._own.member, self)
        # Bytes and files of `commitlog.diverged`, when they were looked for last.
        self._diverged = (0, 0)
        self._checksums = LogChecksums(opened.log, clock)

    async def start(self) -> None:
        """Begin; the loop runs."""
        loop = asyncio.get_running_loop()
        self.is_running = True
        store = self._opened.store
        store.on_appended = self._log_grew.schedule
        before = store.on_flushed

        def flushed() -> None:
            if before is not None:
                before()
            loop.call_soon_threadsafe(self._flushed)

        store.on_flushed = flushed
        self._events.tables.add_listener(self._tables_changed)
        self._events.tables.copier = self._copy_tables
        self._spawn(self._requests.label_pod(is_master=False))
        with self._ending():
            self.member.start(self._now_s())
        self._work = [
            supervise("replication", self._tick_repeatedly),
            supervise("signs of life", partial(self._requests.beat_repeatedly, self._beat_value)),
            supervise("watch of the consensus store", self._requests.watch),
            supervise("bytes that were cut off", self._look_for_diverged),
        ]

    async def stop(self) -> None:
        """End all connections and tasks; a master tells its followers that it goes."""
        if self.is_running:
            with self._ending():
                self.member.release()
        self.is_running = False
        self._opened.store.on_appended = None
        self._tables.stop()
        await self._checksums.stop()
        await end([*self._work, *self._tasks])
        if self._loads:
            await asyncio.wait(self._loads)
        self._master.disconnect()
        self._followers.close_all("stopped")
        await self._requests.withdraw()

    @property
    def hold_reason(self) -> str | None:
        """Return why a master takes no messages just now; None while it does."""
        return report.hold_reason(self.member)

    @property
    def is_alone(self) -> bool:
        """Return whether a master confirms what no other member has."""
        leading = self.member.leading
        return (
            leading is not None
            and len(self._settings.members_of(leading.state)) > 1
            and len(leading.state.in_sync) == 1
            and len(leading.effective) == 1
        )

    @property
    def is_handing_over(self) -> bool:
        """Return whether another member is about to be made master."""
        leading = self.member.leading
        return leading is not None and leading.is_handing_over

    @property
    def is_current(self) -> bool:
        """Return whether this is the master, and may give what only one master may give."""
        return self.is_running and self.member.is_current(self._now_s())

    @property
    def is_fenced(self) -> bool:
        """Return whether nothing of this member's epoch is confirmed any more."""
        leading = self.member.leading
        return leading is not None and leading.is_fenced

    @property
    def not_ready_reason(self) -> str | None:
        """Return None for a master and for a follower that its master feeds, else what is missing."""
        member = self.member
        if member.role is Role.LEADING or (member.role is Role.FOLLOWING and self._is_fed):
            return None
        if alarms := self._said_alarms():
            return alarms[-1]
        if (reason := self.hold_reason) is not None:
            return reason
        if member.state is None:
            return "the consensus store has not told yet who is master"
        return f"{member.role.value}; the master is member {member.state.master}"

    @property
    def _is_fed(self) -> bool:
        return self._master.is_open and self.member.hears_master(self._now_s())

    @property
    def alarms(self) -> list[str]:
        """Return what the operator should know now, the latest last."""
        return [*diverged_alarms(self._own.member, *self._diverged), *self._said_alarms()]

    def _said_alarms(self) -> list[str]:
        return self._alarms.said(self._now_s())

    def hand_over(self, number: int = 0, *, must_take_records: bool = False) -> bool:
        """Begin to make a follower master, the best one for 0; return whether there is such a follower.

        With `must_take_records` only one that has said of late that its disk is well.
        """
        leading = self.member.leading
        if leading is None:
            return False
        fit = leading.successors(number)
        if must_take_records:
            well = {
                Identity(member, value.incarnation)
                for member, (beat, value) in self._others.items()
                if value.takes_records and beat.age_s < self._settings.beat_stale_s
            }
            fit = [follower for follower in fit if follower.identity in well]
        if not fit:
            return False
        best = max(fit, key=lambda follower: follower.acked or 0)
        with self._ending():
            is_broken = self._opened.store.failure is not None
            self.member.hand_over(best.identity.member, self._now_s(), is_broken=is_broken)
        self._tick()
        return self.is_handing_over or self.member.leading is None

    def hand_over_refusal(self, number: int) -> str:
        """Return why `hand_over` is not possible now."""
        if not self.is_running:
            return "this member begins anew"
        return report.hand_over_refusal(self.member, number, self._requests.problem)

    def change_members(self, change: MemberChange) -> None:
        """Add a member or remove one, soon: the state tells. MemberChangeError says why it cannot be done."""
        if not self.is_running:
            raise MemberChangeError("this member begins anew")
        self.member.change_members(change, self._now_s())
        self._tick()

    def _look_at_disk(self) -> None:
        """Have a member whose disk is well made master where this one's is full or broken."""
        reason = self._opened.store.append_refusal
        if reason is None or self.member.role is not Role.LEADING or self.is_handing_over:
            return
        if self.hand_over(must_take_records=True):
            logger.error("another member is to be master, because no records are taken here: %s", reason)

    # Requests of other members, from the listener.

    def handle_message(self, connection: ServerConnection, request: Command) -> None:
        """Take a message of a follower. RequestError for one that is invalid."""
        if not self.is_running:
            return
        if request.ext.get("kind") == "open":
            introduction, message = decode_open(request)
            self._opened_by(connection, introduction, message)
            return
        number = self._followers.number_of(connection)
        if number is None:
            return
        if request.ext.get("kind") == "tables":
            self._tables.note_taken(connection, request)
            return
        acked = decode(request)
        if not isinstance(acked, Ack):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "a follower only acknowledges")
        with self._ending():
            self.member.received(number, acked, self._now_s())
        if self.is_handing_over:
            # It may have everything now.
            self._tick()

    def handle_checksum(self, connection: ServerConnection, request: Command) -> None:
        """Answer a request about the bytes of the log, later. RequestError."""
        if not self.is_running:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "this member begins anew")
        self._checksums.handle(connection, request, confirmed=self._opened.file.confirmed)

    def connection_lost(self, connection: ServerConnection) -> None:
        """A connection that was accepted has ended; perhaps it was a follower's."""
        self._checksums.connection_lost(connection)
        number = self._followers.number_of(connection)
        if number is not None:
            self._followers.forget(number)
            self._link_closed(number, is_outgoing=False)
            if self.is_running:
                self._spawn(self._probe(number, is_outgoing=False))

    def status(self) -> dict[str, Any]:
        """Return what operators and other members are told, as JSON."""
        return {
            **report.status(self.member, self._opened, self._now_s()),
            "notReady": self.not_ready_reason,
            "holds": self.hold_reason,
            "consensusProblem": self._requests.problem,
            "divergedBytes": self._diverged[0],
            "alarms": [*self._events.standing_alarms(), *self.alarms],
        }

    def metrics(self) -> Iterator[Metric]:
        yield from report.metrics(
            self.member,
            self._opened,
            consensus_failures=self._requests.failures_count,
            diverged_bytes=self._diverged[0],
            alarms=len(self.alarms) + len(self._events.standing_alarms()),
        )

    # The state machine.

    def _now_s(self) -> float:
        return self._clock.monotonic_s()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the run where the block fails, and look what has become of the member."""
        try:
            yield
        except Exception as error:
            self._fail(error)
        self._alarms.note_held(is_held=self.member.role is Role.HELD)
        reason = self.hold_reason
        if reason != self._hold_reason:
            self._hold_reason = reason
            self._events.appends_changed()

    def _fail(self, error: Exception) -> None:
        if not self.is_running:
            return
        is_expected = isinstance(error, IotmqError)
        logger.error(
            "this member begins anew: %s",
            error or type(error).__name__,
            exc_info=None if is_expected else error,
        )
        self.has_failed = True
        # Followers need not wait until they miss this master.
        self.member.release()
        self._end_run(str(error) or type(error).__name__)

    def _end_run(self, reason: str) -> None:
        self.is_running = False
        self._events.ended(reason)

    def _do(self, action: Action) -> None:
        if isinstance(action, Send):
            self._send(action.member, action.message)
        elif isinstance(action, Confirmed):
            self._events.confirmed(action.position)
        elif isinstance(action, Connect):
            self._master.connect(action.member)
        elif isinstance(action, Disconnect):
            self._disconnect(action)
        elif isinstance(action, ReadState):
            self._spawn(self._requests.read(action.number))
        elif isinstance(action, ReplaceState):
            self._spawn(self._requests.replace(action))
        elif isinstance(action, KnowMembers):
            self._connector.know(action.members)
            assert self.member.state is not None
            self._opened.note_members(action.members, self.member.state.epoch)
            if action.members != self._settings.members:
                logger.warning(
                    "the members are %s, as recorded; replication.members of member %d names others",
                    ", ".join(f"{member}={address}" for member, address in action.members),
                    self._own.member,
                )
        elif isinstance(action, AskOthers):
            for number in action.members:
                self._spawn(self._ask(number))
        elif isinstance(action, LoadLog):
            self._spawn(self._load(action))
        elif isinstance(action, CopyLog):
            self._events.copy_needed(action.member)
            self._end_run(f"member {action.member} does not have what follows this log any more")
        elif isinstance(action, Lead):
            logger.warning("this member is master", extra={"epoch": action.epoch})
            self._spawn(self._requests.label_pod(is_master=True))
            self._events.lead(action.epoch)
        elif isinstance(action, Resign):
            logger.warning("this member is master no more", extra={"epoch": action.epoch})
            self._end_run("another member is master")
        else:
            assert isinstance(action, Alarm)
            self.alarm(action.text)

    def alarm(self, text: str) -> None:
        """Tell the operator."""
        if self._alarms.say(text, self._now_s()):
            logger.error("%s", text)

    def _send(self, number: int, message: Message) -> None:
        if isinstance(message, Open):
            self._master.send(encode_open(message, self._introduction))
        elif isinstance(message, Ack):
            self._master.send(encode(message))
        elif number in self._followers:
            content: Body = b""
            if isinstance(message, Data) and message.end > message.position:
                content = self._opened.log.read_piece(message.position, message.end)
            self._followers.send(number, encode(message, content))

    async def _load(self, action: LoadLog) -> None:
        """Bring in what a follower that is far behind gets next; the loop goes on meanwhile."""
        log, loads = self._opened.log, 0
        while loads < _LOADS_MAX and self.is_running:
            plan = log.cold_read(action.position, _LOAD_BYTES)
            if plan is None:
                break
            # Not to be cancelled: the store is closed after it.
            loading = asyncio.ensure_future(asyncio.to_thread(self._opened.store.load, plan))
            self._loads.add(loading)
            loading.add_done_callback(self._loads.discard)
            try:
                await asyncio.shield(loading)
            except OSError as error:
                # Of no concern to others: they go on with what is in memory.
                self.alarm(f"the log cannot be read for member {action.member}: {error}")
                for link in self._followers.links_of([action.member]):
                    link.close("the log cannot be read")
                return
            loads += 1
        if self.is_running:
            with self._ending():
                self.member.log_loaded(action.member, action.position, self._now_s())

    def _report_growth(self) -> None:
        if self.is_running and self.member.leading is not None:
            with self._ending():
                self.member.log_grew(self._now_s())

    def _tables_changed(self) -> None:
        if self.is_running:
            with self._ending():
                self._tables.send_changes()

    def _flushed(self) -> None:
        if self.is_running:
            with self._ending():
                self.member.flushed()

    def _tick(self) -> None:
        if self.is_running:
            with self._ending():
                self.member.tick(self._now_s())

    async def _tick_repeatedly(self) -> None:
        save_s = self._now_s()
        while self.is_running:
            self._tick()
            if self._now_s() - save_s >= _SAVE_S:
                save_s = self._now_s()
                with self._ending():
                    self._opened.file.save()
                    self._tables.send_changes()
                self._look_at_disk()
            await asyncio.sleep(_TICK_S)

    async def _look_for_diverged(self) -> None:
        while self.is_running:
            self._diverged = await asyncio.to_thread(self._opened.log.diverged)
            await asyncio.sleep(_DIVERGED_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self._fail(error)

    # Followers.

    def _opened_by(self, connection: ServerConnection, introduction: Introduction, message: Open) -> None:
        number = message.identity.member
        if self.member.state is None:
            # It cannot be told yet whether that is a member. The other one tries again.
            connection.close("the state is not known yet")
            return
        refusal = self._followers.refusal(connection, introduction, number, self._now_s())
        if refusal is not None:
            self.alarm(refusal)
            connection.send_oneway(encode_refusal(refusal))
            connection.close("refused")
            return
        self._followers.take(number, connection)
        leading = self.member.leading
        if leading is not None and message.identity not in leading.effective:
            # What it has of the tables is there before it counts as in sync.
            self._spawn(self._follow_with_tables(connection, number, message))
        else:
            # Nothing is confirmed without it.
            self._follow(connection, number, message)
            if self.member.leading is not None:
                self._spawn(self._send_tables(connection))

    def _follow(self, connection: ServerConnection, number: int, message: Open) -> None:
        if self.is_running and self._followers.is_of(number, connection):
            with self._ending():
                self.member.received(number, message, self._now_s())
            self._tick()

    async def _follow_with_tables(self, connection: ServerConnection, number: int, message: Open) -> None:
        if await self._tables.send_all(connection):
            self._follow(connection, number, message)

    async def _send_tables(self, connection: ServerConnection) -> None:
        await self._tables.send_all(connection)

    def _copy_tables(self, call: Callable[[bool], None]) -> None:
        """Send what has changed in the tables; call back when all have it who may be master next."""
        leading = self.member.leading
        if leading is None or not self.is_running:
            call(False)
            return
        self._tables_changed()
        # One that is being recorded as in sync is among them.
        members = {identity.member for identity in leading.effective}
        self._tables.when_copied(self._followers.links_of(members), call)

    def _link_closed(self, number: int, *, is_outgoing: bool, is_refused: bool = False) -> None:
        if self.is_running:
            with self._ending():
                self.member.link_closed(number, self._now_s(), is_outgoing=is_outgoing, is_refused=is_refused)
            if is_refused:
                self._tick()

    async def _probe(self, number: int, *, is_outgoing: bool) -> None:
        """See whether a member whose connection has ended is gone: then nothing listens any more."""
        for _ in range(_PROBES):
            if not self.is_running:
                return
            is_refused = await self._connector.is_refused(number, timeout_s=CONNECT_S)
            if self._master.is_open if is_outgoing else number in self._followers:
                return
            if is_refused:
                self._link_closed(number, is_outgoing=is_outgoing, is_refused=True)
                return
            # The end of a process takes its connections first, and what it listens with a moment later.
            await asyncio.sleep(_PROBE_S)

    # The master.

    def master_connected(self, number: int) -> None:
        """Follow the master on the connection that is there."""
        with self._ending():
            self.member.link_opened(number, self._now_s())

    def master_unreachable(self, number: int, *, is_refused: bool) -> None:
        """Take note that no connection could be made."""
        self._link_closed(number, is_outgoing=True, is_refused=is_refused)

    def master_lost(self, number: int) -> None:
        """Take note that the connection has ended, and see whether the master has."""
        self._link_closed(number, is_outgoing=True)
        if self.is_running:
            self._spawn(self._probe(number, is_outgoing=True))

    def master_says(self, number: int, message: Message) -> None:
        """Take a message of the master."""
        if isinstance(message, FollowFrom):
            logger.info(
                "member %d is the master: its log is followed from position %d", number, message.position
            )
        with self._ending():
            self.member.received(number, message, self._now_s())

    def _disconnect(self, action: Disconnect) -> None:
        if action.is_outgoing:
            self._master.disconnect()
        else:
            self._followers.close(action.member, "no follower any more")

    async def _ask(self, number: int) -> None:
        """Ask another member whether it hears the master."""
        try:
            status = await self._connector.status(number, timeout_s=_ASK_S)
        except IotmqError as error:
            logger.debug("member %d does not say whether it hears the master: %s", number, error)
            return
        if self.is_running:
            with self._ending():
                self.member.hearing_told(status.get("hearsMaster") is True, self._now_s())

    # The consensus store: what it answers.

    def state_read(self, number: int, version: int, state: ClusterState) -> None:
        """Take the state."""
        if self.is_running:
            with self._ending():
                self.member.state_read(number, version, state, self._now_s())
            self._tick()

    def state_missing(self) -> ClusterState | None:
        """Return the first state if this is the member to make it: see docs/explanation/replication.md."""
        file = self._opened.file
        if not self.is_running:
            return None
        if file.promised_epoch or self._opened.log.epochs:
            self.alarm(
                f"the consensus store has no state of this broker, and member {self._own.member} has taken "
                f"part in epoch {file.promised_epoch}: were its data lost, or is its address or prefix "
                "another one? See `iotmq replication adopt`"
            )
            return None
        state = first_state(self._settings.members, self._others)
        return state if state is not None and state.master == self._own.member else None

    def state_replaced(self, number: int, version: int | None) -> None:
        """Take the answer to a change."""
        if self.is_running:
            with self._ending():
                self.member.state_replaced(number, version, self._now_s())
            self._tick()

    def poked(self) -> None:
        """Look at the state: it may have changed."""
        if self.is_running:
            with self._ending():
                self.member.poked(self._now_s())

    def beaten(self, beats: Beats) -> None:
        """Take the signs of life of all members."""
        if self.is_running:
            self._others = beats
            with self._ending():
                self.member.beaten(
                    {
                        Identity(number, value.incarnation): Beat(
                            beat.age_s, value.end, value.leads, value.confirmed
                        )
                        for number, (beat, value) in beats.items()
                    },
                    self._now_s(),
                )

    def _beat_value(self) -> BeatValue:
        file = self._opened.file
        return BeatValue(
            incarnation=self._own.incarnation,
            address=dict(self._settings.members)[self._own.member],
            leads=self.member.leads,
            end=self._opened.log.end,
            confirmed=file.confirmed,
            promised=file.promised_epoch,
            takes_records=self._opened.store.append_refusal is None,
        )
