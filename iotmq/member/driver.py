"""Carry out what the state machine of a member asks: connections, the consensus store, the log, the clock.

Everything happens on the event loop. Whatever goes wrong in here and is no trouble of a peer ends the run of
this member, which then begins anew from its disk: no state is repaired in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from iotmq.addresses import address_text
from iotmq.broker.tables.table_copies import TableCopies
from iotmq.broker.tables.table_pieces import decode_piece
from iotmq.clock import Clock
from iotmq.errors import (
    ConnectionClosedError,
    ConsensusUnavailableError,
    IotmqError,
    RequestError,
    TableCopyError,
)
from iotmq.event_loop import NextTurn
from iotmq.member.log_checksums import LogChecksums
from iotmq.member.peers import PeerConnector
from iotmq.member.wire import (
    Introduction,
    decode,
    decode_open,
    decode_tables_taken,
    encode,
    encode_open,
    encode_refusal,
    encode_table,
    encode_tables_taken,
)
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.server import ServerConnection
from iotmq.replicated.member_store import MemberStore
from iotmq.replication.cluster_state import ClusterState, Identity, decode_state
from iotmq.replication.consensus.port import ConsensusStore, SignOfLife
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
    Lead,
    LoadLog,
    Message,
    Open,
    ReadState,
    ReplaceState,
    Resign,
    Send,
)
from iotmq.replication.ports import MemberSettings
from iotmq.supervised import end, supervise

logger = logging.getLogger("iotmq.replication")

_TICK_S: Final = 0.05
_BEAT_S: Final = 0.5
_SAVE_S: Final = 1.0
_CONNECT_S: Final = 1.0
_ASK_S: Final = 0.5
_PROBES: Final = 5
_PROBE_S: Final = 0.02
# Members that begin together are all there before one of them makes the first state.
_FRESH_S: Final = 1.5
# Requests to the consensus store that have not been answered yet.
_REQUESTS_MAX: Final = 16
# What is loaded for a follower at a time; some records are longer, which the first load tells.
_LOAD_BYTES: Final = 1 << 20
_LOADS_MAX: Final = 3
# A change of an operator is answered when the members in sync have it, or after so long.
_TABLES_S: Final = 1.0
_ALARMS_KEPT: Final = 16
# So often it is looked for bytes that were cut off and kept: operators remove them.
_DIVERGED_S: Final = 5.0
# What still holds is said again before.
_ALARM_S: Final = 10.0
_REFUSAL_CHARACTERS_KEPT: Final = 1_000


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


class BeatValue(msgspec.Struct, frozen=True, kw_only=True):
    """A member's sign of life, as JSON in the consensus store."""

    incarnation: str
    address: str
    leads: int
    """The epoch it can acknowledge something in; 0 for none."""
    end: int
    confirmed: int
    promised: int
    takes_records: bool = True
    """False while its disk is full or broken."""


class _TablesWait:
    """Wait until followers have taken so many pieces of tables, each on its connection."""

    def __init__(self, targets: dict[ServerConnection, int], call: Callable[[bool], None]) -> None:
        self._targets = targets
        self._call: Callable[[bool], None] | None = call
        self.timer: asyncio.TimerHandle | None = None

    def taken(self, link: ServerConnection, count: int) -> bool:
        """Note what a follower has; return whether nobody is waited for any more."""
        if count >= self._targets.get(link, count + 1):
            del self._targets[link]
            if not self._targets:
                self.end(is_copied=True)
        return self._call is None

    def end(self, *, is_copied: bool) -> None:
        """Call back, once."""
        call, self._call = self._call, None
        if self.timer is not None:
            self.timer.cancel()
        if call is not None:
            call(is_copied)


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
        self._consensus = consensus
        self._introduction = connector.introduction
        self._events = events
        self._clock = clock
        self.member = Member(settings, opened.log, opened.file, self._do)
        self._own = opened.file.identity
        self._is_running = False
        self.has_failed = False
        """True when the run has ended because something failed, and not because of another master."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._work: list[asyncio.Task[None]] = []
        # Reads of the log from the disk, in threads.
        self._loads: set[asyncio.Future[None]] = set()
        self._requests_count = 0
        # The connection to the master, and those of followers by their number.
        self._master_link: ClientConnection | None = None
        self._master_number = 0
        self._connects_count = 0
        # The member that a connection is being made to; 0 for none.
        self._connecting = 0
        self._follower_links: dict[int, ServerConnection] = {}
        # Those that were sent the tables, or are just now.
        self._with_tables: set[ServerConnection] = set()
        # Pieces of tables sent on each of these connections, those taken, and who waits for that.
        self._pieces_sent: dict[ServerConnection, int] = {}
        self._pieces_taken: dict[ServerConnection, int] = {}
        self._table_waits: list[_TablesWait] = []
        # Pieces taken from the master that is followed now.
        self._pieces_taken_count = 0
        self._log_grew = NextTurn(self._report_growth)
        self._hold_reason: str | None = None
        self._others: Mapping[int, tuple[SignOfLife, BeatValue]] = {}
        # Sentences for the operator, with the time they were said last.
        self._alarms: dict[str, float] = {}
        # What was asked to be recorded last, for the log.
        self._asked_for = ""
        self.consensus_failures_count = 0
        self._is_consensus_away = False
        # Bytes and files of `commitlog.diverged`, when they were looked for last.
        self._diverged = (0, 0)
        self._checksums = LogChecksums(opened.log, clock)

    async def start(self) -> None:
        """Begin; the loop runs."""
        loop = asyncio.get_running_loop()
        self._is_running = True
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
        self._spawn(self._label_pod(is_master=False))
        with self._ending():
            self.member.start(self._now_s())
        self._work = [
            supervise("replication", self._tick_repeatedly),
            supervise("signs of life", self._beat_repeatedly),
            supervise("watch of the consensus store", self._watch),
            supervise("bytes that were cut off", self._look_for_diverged),
        ]

    async def stop(self) -> None:
        """End all connections and tasks; a master tells its followers that it goes."""
        if self._is_running:
            with self._ending():
                self.member.release()
        self._is_running = False
        self._opened.store.on_appended = None
        for wait in self._table_waits:
            wait.end(is_copied=False)
        await self._checksums.stop()
        await end([*self._work, *self._tasks])
        if self._loads:
            await asyncio.wait(self._loads)
        if self._master_link is not None:
            self._master_link.abort("stopped")
        for link in list(self._follower_links.values()):
            link.close("stopped")
        try:
            async with asyncio.timeout(_ASK_S):
                await self._consensus.withdraw(self._own.member)
        except (ConsensusUnavailableError, TimeoutError) as error:
            logger.debug("the sign of life stays until it is too old: %s", error)

    @property
    def hold_reason(self) -> str | None:
        """Return why a master takes no messages just now; None while it does."""
        leading = self.member.leading
        if leading is None or leading.takes_appends:
            return None
        if leading.has_few:
            return (
                f"{leading.in_sync_count} members are in sync, and replication.in_sync_min is "
                f"{self._settings.in_sync_min}"
            )
        return "another member is about to be master"

    @property
    def is_alone(self) -> bool:
        """Return whether a master confirms what no other member has."""
        leading = self.member.leading
        return (
            leading is not None
            and len(self._connector.members) > 1
            and len(leading.state.in_sync) == 1
            and len(leading.effective) == 1
        )

    @property
    def is_handing_over(self) -> bool:
        """Return whether another member is about to be made master."""
        leading = self.member.leading
        return leading is not None and leading.is_handing_over

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
        return self._master_link is not None and self.member.hears_master(self._now_s())

    @property
    def alarms(self) -> list[str]:
        """Return what the operator should know now, the latest last."""
        size, count = self._diverged
        if not count:
            return self._said_alarms()
        text = (
            f"commitlog.diverged of member {self._own.member} has {size:,} bytes in {count} files, which it "
            "had as master and nobody acknowledged: see `iotmq store salvage`, and remove the files"
        )
        return [text, *self._said_alarms()]

    def _said_alarms(self) -> list[str]:
        now_s = self._now_s()
        is_held = self.member.role is Role.HELD
        return [text for text, said_s in self._alarms.items() if is_held or now_s - said_s < _ALARM_S]

    def hand_over(self, number: int = 0, *, must_take_records: bool = False) -> bool:
        """Begin to make a follower master, the best one for 0; return whether there is such a follower.

        With `must_take_records` only one that has said of late that its disk is well.
        """
        leading = self.member.leading
        if leading is None:
            return False
        in_sync = {identity.member for identity in leading.state.in_sync}
        fit = [
            follower
            for member, follower in leading.followers.items()
            if follower.is_connected and member in in_sync and number in (0, member)
        ]
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
            self.member.hand_over(best.identity.member, self._now_s())
        self._tick()
        return self.is_handing_over or self.member.leading is None

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
        if not self._is_running:
            return
        if request.ext.get("kind") == "open":
            introduction, message = decode_open(request)
            self._opened_by(connection, introduction, message)
            return
        number = next((n for n, link in self._follower_links.items() if link is connection), None)
        if number is None:
            return
        if request.ext.get("kind") == "tables":
            count = self._pieces_taken[connection] = decode_tables_taken(request)
            self._table_waits = [wait for wait in self._table_waits if not wait.taken(connection, count)]
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
        if not self._is_running:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, "this member begins anew")
        self._checksums.handle(connection, request, confirmed=self._opened.file.confirmed)

    def connection_lost(self, connection: ServerConnection) -> None:
        """A connection that was accepted has ended; perhaps it was a follower's."""
        self._checksums.connection_lost(connection)
        for number, link in list(self._follower_links.items()):
            if link is connection:
                del self._follower_links[number]
                self._link_closed(number, is_outgoing=False)
                if self._is_running:
                    self._spawn(self._probe(number, is_outgoing=False))

    def status(self) -> dict[str, Any]:
        """Return what operators and other members are told, as JSON."""
        member, log, file = self.member, self._opened.log, self._opened.file
        leading = member.leading
        followers = {}
        if leading is not None:
            followers = {
                str(number): {
                    "incarnation": follower.identity.incarnation,
                    "isConnected": follower.is_connected,
                    "sent": follower.sent,
                    "acknowledged": follower.acked,
                    "isInSync": follower.identity in leading.state.in_sync,
                }
                for number, follower in leading.followers.items()
            }
        state = member.state
        return {
            "member": self._own.member,
            "incarnation": self._own.incarnation,
            "role": member.role.value,
            "hearsMaster": member.hears_master(self._now_s()),
            "promisedEpoch": file.promised_epoch,
            "lastEpoch": log.epochs[-1].epoch if log.epochs else 0,
            "oldest": log.oldest,
            "end": log.end,
            "confirmed": file.confirmed,
            "flushed": log.flushed,
            "state": None if state is None else msgspec.to_builtins(state),
            "followers": followers,
            "notReady": self.not_ready_reason,
            "holds": self.hold_reason,
            "divergedBytes": self._diverged[0],
            "alarms": [*self._events.standing_alarms(), *self.alarms],
        }

    def metrics(self) -> Iterator[Metric]:
        member, log = self.member, self._opened.log
        state = member.state
        for role in Role:
            yield Metric(
                "iotmq_replication_role",
                "gauge",
                "1 for the role this member has.",
                float(member.role is role),
                (("role", role.value),),
            )
        yield from samples(
            ("iotmq_replication_epoch", "The epoch of the recorded master.", state.epoch if state else 0),
            (
                "iotmq_replication_in_sync",
                "Members recorded as in sync.",
                len(state.in_sync) if state else 0,
            ),
            ("iotmq_replication_end", "Position behind the last byte of the log.", log.end),
            ("iotmq_replication_confirmed", "The confirmed position.", self._opened.file.confirmed),
            (
                "iotmq_replication_consensus_failures_total",
                "Requests to the consensus store without an answer.",
                self.consensus_failures_count,
            ),
            (
                "iotmq_replication_diverged_bytes",
                "Bytes cut off the log that nobody acknowledged, kept for `iotmq store salvage`.",
                self._diverged[0],
            ),
            (
                "iotmq_replication_alarms",
                "Sentences for the operator now.",
                len(self.alarms) + len(self._events.standing_alarms()),
            ),
        )
        leading = member.leading
        for number, follower in () if leading is None else leading.followers.items():
            yield Metric(
                "iotmq_replication_lag_bytes",
                "gauge",
                "Bytes of the master's log that a follower has not acknowledged.",
                log.end - (follower.acked or 0),
                (("member", str(number)),),
            )

    # The state machine.

    def _now_s(self) -> float:
        return self._clock.monotonic_s()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """End the run where the block fails, and look whether messages are taken now."""
        try:
            yield
        except Exception as error:
            self._fail(error)
        reason = self.hold_reason
        if reason != self._hold_reason:
            self._hold_reason = reason
            self._events.appends_changed()

    def _fail(self, error: Exception) -> None:
        if not self._is_running:
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
        self._is_running = False
        self._events.ended(reason)

    def _do(self, action: Action) -> None:
        if isinstance(action, Send):
            self._send(action.member, action.message)
        elif isinstance(action, Confirmed):
            self._events.confirmed(action.position)
        elif isinstance(action, Connect):
            # One that takes its time is not begun anew: far away, none would ever come about.
            if self._connecting != action.member:
                self._connecting = action.member
                self._connects_count += 1
                self._spawn(self._connect(action.member, self._connects_count))
        elif isinstance(action, Disconnect):
            self._disconnect(action)
        elif isinstance(action, ReadState):
            self._spawn(self._read(action.number))
        elif isinstance(action, ReplaceState):
            state = action.state
            in_sync = ", ".join(str(identity.member) for identity in state.in_sync)
            # Asked for again until it is answered, so not with each request.
            if (text := f"{state.reason}: in sync are {in_sync}") != self._asked_for:
                self._asked_for = text
                logger.info("%s", text, extra={"epoch": state.epoch, "master": state.master})
            self._spawn(self._replace(action))
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
            self._spawn(self._label_pod(is_master=True))
            self._events.lead(action.epoch)
        elif isinstance(action, Resign):
            logger.warning("this member is master no more", extra={"epoch": action.epoch})
            self._end_run("another member is master")
        else:
            assert isinstance(action, Alarm)
            self._alarm(action.text)

    def _alarm(self, text: str) -> None:
        if text not in self._alarms:
            logger.error("%s", text)
        self._alarms.pop(text, None)
        while len(self._alarms) >= _ALARMS_KEPT:
            del self._alarms[next(iter(self._alarms))]
        self._alarms[text] = self._now_s()

    def _send(self, number: int, message: Message) -> None:
        if isinstance(message, Open):
            if self._master_link is not None:
                self._master_link.send_oneway(encode_open(message, self._introduction))
        elif isinstance(message, Ack):
            if self._master_link is not None:
                self._master_link.send_oneway(encode(message))
        elif (link := self._follower_links.get(number)) is not None:
            if isinstance(message, Data) and message.end > message.position:
                content = self._opened.log.read_piece(message.position, message.end)
                link.send_oneway(encode(message, content))
            else:
                link.send_oneway(encode(message))

    async def _load(self, action: LoadLog) -> None:
        """Bring in what a follower that is far behind gets next; the loop goes on meanwhile."""
        log, loads = self._opened.log, 0
        while loads < _LOADS_MAX and self._is_running:
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
                self._alarm(f"the log cannot be read for member {action.member}: {error}")
                if (link := self._follower_links.get(action.member)) is not None:
                    link.close("the log cannot be read")
                return
            loads += 1
        if self._is_running:
            with self._ending():
                self.member.log_loaded(action.member, action.position, self._now_s())

    def _report_growth(self) -> None:
        if self._is_running and self.member.leading is not None:
            with self._ending():
                self.member.log_grew(self._now_s())

    def _tables_changed(self) -> None:
        if self._is_running:
            with self._ending():
                self._send_table_changes()

    def _flushed(self) -> None:
        if self._is_running:
            with self._ending():
                self.member.flushed(self._now_s())

    def _tick(self) -> None:
        if self._is_running:
            with self._ending():
                self.member.tick(self._now_s())

    async def _tick_repeatedly(self) -> None:
        save_s = self._now_s()
        while self._is_running:
            self._tick()
            if self._now_s() - save_s >= _SAVE_S:
                save_s = self._now_s()
                with self._ending():
                    self._opened.file.save()
                    self._send_table_changes()
                self._look_at_disk()
            await asyncio.sleep(_TICK_S)

    async def _look_for_diverged(self) -> None:
        while self._is_running:
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
        refusal = None
        if introduction != self._introduction:
            refusal = (
                f"member {number} has {_text(introduction)}, and member {self._own.member} has "
                f"{_text(self._introduction)}: they cannot be copies of each other"
            )
        elif number == self._own.member:
            refusal = f"two members have the number {number}: correct replication.member of one of them"
        elif number not in self._connector.members:
            refusal = f"replication.members of member {self._own.member} does not name member {number}"
        elif self._is_heard(number, other_than=connection):
            # Or the two would take the place of each other again and again.
            refusal = (
                f"member {number} follows already, by another connection: does a second process have that "
                "number? Correct replication.member of one of them"
            )
        if refusal is not None:
            self._alarm(refusal)
            connection.send_oneway(encode_refusal(refusal))
            connection.close("refused")
            return
        old = self._follower_links.get(number)
        if old is not None and old is not connection:
            old.close("replaced")
        self._follower_links[number] = connection
        leading = self.member.leading
        if leading is not None and message.identity not in leading.effective:
            # What it has of the tables is there before it counts as in sync.
            then = partial(self._follow, connection, number, message)
            self._spawn(self._send_tables(connection, then=then))
        else:
            # Nothing is confirmed without it.
            self._follow(connection, number, message)
            self._spawn(self._send_tables(connection))

    def _is_heard(self, number: int, *, other_than: ServerConnection) -> bool:
        """Return whether a follower was heard just now on a connection that stands."""
        link, leading = self._follower_links.get(number), self.member.leading
        if link is None or link is other_than or leading is None or number not in leading.followers:
            return False
        follower = leading.followers[number]
        return follower.is_connected and self._now_s() - follower.heard_s < self._settings.beat_stale_s

    def _follow(self, connection: ServerConnection, number: int, message: Open) -> None:
        if self._is_running and self._follower_links.get(number) is connection:
            with self._ending():
                self.member.received(number, message, self._now_s())
            self._tick()

    async def _send_tables(
        self, connection: ServerConnection, then: Callable[[], None] = lambda: None
    ) -> None:
        """Send a follower all tables, as fast as it takes them; changes come in between."""
        if self.member.leading is not None:
            self._with_tables.add(connection)
            try:
                for piece in self._events.tables.snapshot():
                    self._send_piece(connection, encode_table(piece.encode()))
                    await connection.drain()
                    await asyncio.sleep(0)
            except ConnectionClosedError:
                return
        then()

    def _send_table_changes(self) -> None:
        """Send all followers what has changed in the tables."""
        self._with_tables = {link for link in self._with_tables if not link.is_closed}
        for counts in (self._pieces_sent, self._pieces_taken):
            for link in [link for link in counts if link not in self._with_tables]:
                del counts[link]
        if not self._with_tables:
            self._events.tables.stop_tracking()
            return
        for piece in self._events.tables.changes():
            command = encode_table(piece.encode())
            for link in self._with_tables:
                self._send_piece(link, command)

    def _send_piece(self, link: ServerConnection, command: Command) -> None:
        self._pieces_sent[link] = self._pieces_sent.get(link, 0) + 1
        link.send_oneway(command)

    def _copy_tables(self, call: Callable[[bool], None]) -> None:
        """Send what has changed in the tables; call back when the followers in sync have it."""
        leading = self.member.leading
        if leading is None or not self._is_running:
            call(False)
            return
        self._tables_changed()
        in_sync = {identity.member for identity in leading.state.in_sync}
        targets = {
            link: sent
            for number, link in self._follower_links.items()
            if number in in_sync
            and self._pieces_taken.get(link, -1) < (sent := self._pieces_sent.get(link, 0))
        }
        if not targets:
            call(True)
            return
        wait = _TablesWait(targets, call)
        loop = asyncio.get_running_loop()
        wait.timer = loop.call_later(_TABLES_S, self._give_up, wait)
        self._table_waits.append(wait)

    def _give_up(self, wait: _TablesWait) -> None:
        self._table_waits = [each for each in self._table_waits if each is not wait]
        wait.end(is_copied=False)

    def _link_closed(self, number: int, *, is_outgoing: bool, is_refused: bool = False) -> None:
        if self._is_running:
            with self._ending():
                self.member.link_closed(number, self._now_s(), is_outgoing=is_outgoing, is_refused=is_refused)
            if is_refused:
                self._tick()

    async def _probe(self, number: int, *, is_outgoing: bool) -> None:
        """See whether a member whose connection has ended is gone: then nothing listens any more."""
        for _ in range(_PROBES):
            if not self._is_running:
                return
            is_refused = await self._connector.is_refused(number, timeout_s=_CONNECT_S)
            if self._master_link is not None if is_outgoing else number in self._follower_links:
                return
            if is_refused:
                self._link_closed(number, is_outgoing=is_outgoing, is_refused=True)
                return
            # The end of a process takes its connections first, and what it listens with a moment later.
            await asyncio.sleep(_PROBE_S)

    # The master.

    async def _connect(self, number: int, count: int) -> None:
        try:
            link = await self._connector.connect(
                number, on_request=self._from_master, on_lost=self._master_lost, timeout_s=_CONNECT_S
            )
        except ConnectionClosedError as error:
            if count == self._connects_count:
                self._connecting = 0
                is_refused = isinstance(error.__cause__, ConnectionRefusedError)
                self._link_closed(number, is_outgoing=True, is_refused=is_refused)
            return
        if count != self._connects_count or not self._is_running:
            link.abort("not wanted any more")
            return
        self._connecting = 0
        self._drop_master()
        self._master_link, self._master_number = link, number
        self._events.tables.begin()
        self._pieces_taken_count = 0
        with self._ending():
            self.member.link_opened(number, self._now_s())

    def _from_master(self, connection: ClientConnection, request: Command) -> None:
        if connection is not self._master_link or not self._is_running:
            return
        if request.code != RequestCode.MEMBER_MESSAGE:
            return
        if request.ext.get("kind") == "refused":
            self._alarm(request.text("text", "")[:_REFUSAL_CHARACTERS_KEPT])
            return
        try:
            if request.ext.get("kind") == "table":
                self._events.tables.take(decode_piece(request.body_bytes()))
                self._pieces_taken_count += 1
                if self._events.tables.is_complete:
                    connection.send_oneway(encode_tables_taken(self._pieces_taken_count))
                return
            message = decode(request)
        except (RequestError, TableCopyError) as error:
            self._alarm(f"member {self._master_number} sends what no master sends: {error}")
            connection.abort("malformed")
            return
        with self._ending():
            self.member.received(self._master_number, message, self._now_s())

    def _master_lost(self, connection: ClientConnection) -> None:
        if connection is self._master_link:
            self._master_link = None
            self._link_closed(self._master_number, is_outgoing=True)
            if self._is_running:
                self._spawn(self._probe(self._master_number, is_outgoing=True))

    def _drop_master(self) -> None:
        link, self._master_link = self._master_link, None
        if link is not None:
            link.abort("followed no more")

    def _disconnect(self, action: Disconnect) -> None:
        if action.is_outgoing:
            # A connection that is being made is for nobody any more.
            self._connects_count += 1
            self._connecting = 0
            self._drop_master()
        elif (link := self._follower_links.pop(action.member, None)) is not None:
            link.close("no follower any more")

    async def _ask(self, number: int) -> None:
        """Ask another member whether it hears the master."""
        try:
            status = await self._connector.status(number, timeout_s=_ASK_S)
        except IotmqError as error:
            logger.debug("member %d does not say whether it hears the master: %s", number, error)
            return
        if self._is_running:
            with self._ending():
                self.member.hearing_told(status.get("hearsMaster") is True, self._now_s())

    # The consensus store.

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self._requests_count += 1
        try:
            yield
            if self._is_consensus_away:
                self._is_consensus_away = False
                logger.warning("the consensus store answers again")
        except ConsensusUnavailableError as error:
            self.consensus_failures_count += 1
            if not self._is_consensus_away:
                self._is_consensus_away = True
                logger.warning("the consensus store does not answer, so nobody else can be master: %s", error)
        finally:
            self._requests_count -= 1

    async def _read(self, number: int) -> None:
        if self._requests_count >= _REQUESTS_MAX:
            return
        with self._asking():
            found = await self._consensus.read()
            if not self._is_running:
                return
            if found is None:
                await self._create()
                return
            state = decode_state(found.value)
            with self._ending():
                self.member.state_read(number, found.version, state, self._now_s())
            self._tick()

    async def _replace(self, action: ReplaceState) -> None:
        with self._asking():
            version = await self._consensus.replace(action.version, action.state.encode())
            if self._is_running:
                with self._ending():
                    self.member.state_replaced(action.number, version, self._now_s())
                self._tick()

    async def _label_pod(self, *, is_master: bool) -> None:
        with self._asking():
            await self._consensus.label_pod(is_master=is_master)

    async def _watch(self) -> None:
        await self._consensus.watch(self._poked)

    def _poked(self) -> None:
        if self._is_running:
            with self._ending():
                self.member.poked(self._now_s())

    async def _beat_repeatedly(self) -> None:
        while self._is_running:
            with self._asking():
                await self._consensus.beat(self._own.member, msgspec.json.encode(self._beat_value()))
                beats = await self._consensus.beats()
                if self._is_running:
                    self._beaten(beats)
            await asyncio.sleep(_BEAT_S)

    def _beat_value(self) -> BeatValue:
        file = self._opened.file
        return BeatValue(
            incarnation=self._own.incarnation,
            address=address_text(*self._connector.members[self._own.member]),
            leads=self.member.leads,
            end=self._opened.log.end,
            confirmed=file.confirmed,
            promised=file.promised_epoch,
            takes_records=self._opened.store.append_refusal is None,
        )

    def _beaten(self, beats: Mapping[int, SignOfLife]) -> None:
        others: dict[int, tuple[SignOfLife, BeatValue]] = {}
        for number, beat in beats.items():
            try:
                others[number] = (beat, msgspec.json.decode(beat.value, type=BeatValue))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                logger.debug("invalid sign of life of member %d: %s", number, error)
        self._others = others
        with self._ending():
            self.member.beaten(
                {
                    Identity(number, value.incarnation): Beat(
                        beat.age_s, value.end, value.leads, value.confirmed
                    )
                    for number, (beat, value) in others.items()
                },
                self._now_s(),
            )

    async def _create(self) -> None:
        """Make the first state, if this is the member to do it: see docs/explanation/replication.md."""
        file = self._opened.file
        if file.promised_epoch or self._opened.log.epochs:
            self._alarm(
                f"the consensus store has no state of this broker, and member {self._own.member} has taken "
                f"part in epoch {file.promised_epoch}: were its data lost, or is its address or prefix "
                "another one? See `iotmq replication adopt`"
            )
            return
        state = first_state(self._connector.members, self._others)
        if state is None or state.master != self._own.member:
            return
        if await self._consensus.create(state.encode()) is not None:
            logger.warning("the first state of this broker is made: member %d is master", state.master)
        self._poked()


def first_state(
    members: Mapping[int, object], beats: Mapping[int, tuple[SignOfLife, BeatValue]]
) -> ClusterState | None:
    """Return the state for members that have never been replicated; None while it is not clear.

    All members must be there. One of them may have a log already, of a broker that was not replicated: it
    becomes master, and the others get its log.
    """
    fresh = {number: value for number, (beat, value) in beats.items() if beat.age_s < _FRESH_S}
    if set(fresh) != set(members) or any(value.promised for value in fresh.values()):
        return None
    with_log = [number for number, value in fresh.items() if value.end]
    if len(with_log) > 1:
        return None
    master = with_log[0] if with_log else min(fresh)
    in_sync = with_log or sorted(fresh)
    return ClusterState(
        epoch=1,
        master=master,
        in_sync=tuple(Identity(number, fresh[number].incarnation) for number in in_sync),
        reason="first start",
    )


def _text(introduction: Introduction) -> str:
    return (
        f"broker {introduction.broker} of cluster {introduction.cluster}, store.segment_bytes "
        f"{introduction.segment_bytes} and format {introduction.format}"
    )
