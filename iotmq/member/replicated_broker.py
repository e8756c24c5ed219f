"""A broker that is a member of a replicated one: it follows, or it is master, and changes between the two.

Each run begins with the opening of the log and ends when this member is master no more, or when something has
failed. What a master has in memory ends with it: the next run starts from the disk, like a process that was
restarted, while the port stays open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from iotmq import limits
from iotmq.broker.broker import Broker
from iotmq.broker.broker_role import BrokerRole
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.clock import Clock
from iotmq.errors import IotmqError, MemberChangeError, RequestError
from iotmq.event_loop import happens_within
from iotmq.member import report
from iotmq.member.copy_download import CopyDownload
from iotmq.member.copying import COPY_CODES, Copies
from iotmq.member.copying_member import Copying
from iotmq.member.driver import MemberDriver
from iotmq.member.listener import MemberListener
from iotmq.member.peers import PeerConnector
from iotmq.member.table_stream import reaches_next_master
from iotmq.member.wire import Introduction, decode_begin_copy
from iotmq.metrics import Metric
from iotmq.ports.inspections import Inspection
from iotmq.ports.replication_state import ReplicationState
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import Listening, ServerConnection
from iotmq.remoting.tls.files import server_tls
from iotmq.replicated.hot_copy import remove_copies
from iotmq.replicated.incoming_copy import finish_copy, kept_directories
from iotmq.replicated.member_store import MemberStore, open_member_store
from iotmq.replication.consensus.opening import open_consensus_store
from iotmq.replication.next_state import MemberChange
from iotmq.supervised import end, repeat, supervise

if TYPE_CHECKING:
    from iotmq.broker.settings import BrokerSettings
    from iotmq.broker.tables.table_copies import Copier, TableCopies
    from iotmq.replication.consensus.port import ConsensusStore
    from iotmq.replication.settings import ReplicationSettings
    from iotmq.store.settings import StoreSettings

logger = logging.getLogger("iotmq.replication")

# What cannot be opened, or fails at once, is tried again.
_AGAIN_S: Final = 1.0
# A planned stop of a master waits so long for another one.
_HAND_OVER_S: Final = 1.2
_RETENTION_SCAN_S: Final = 1.0


class ReplicatedBroker:
    """One member, from `start` to `stop`."""

    def __init__(
        self,
        settings: BrokerSettings,
        store_settings: StoreSettings,
        replication: ReplicationSettings,
        *,
        directory: Path,
        clock: Clock,
    ) -> None:
        """Raise ConfigError for settings that cannot be used."""
        self._settings = settings
        self._store_settings = store_settings
        self._replication = replication
        self._directory = directory
        self._clock = clock
        self._connector = PeerConnector(
            replication,
            Introduction(
                cluster=settings.cluster,
                broker=settings.name,
                segment_bytes=store_settings.segment_bytes,
            ),
        )
        self._listener = MemberListener(
            Listening(
                host=settings.listen_host,
                port=settings.listen_port,
                idle_s=settings.idle_s,
                connections_max=settings.connections_max,
                name="broker",
            ),
            tls=server_tls(settings),
            connector=self._connector,
        )
        self._consensus: ConsensusStore | None = None
        self._work: asyncio.Task[None] | None = None
        self._stop_asked = asyncio.Event()
        self._run: _Run | None = None
        self._inspections: dict[str, Inspection] = {}
        self._runs_count = 0
        # Set while this member takes a copy of the master's data, between two runs.
        self._copying: Copying | None = None

    @property
    def port(self) -> int:
        """Return the port listened on."""
        return self._listener.port

    @property
    def broker(self) -> Broker | None:
        """Return the broker while this member is master and serves."""
        run = self._run
        return run.broker if run is not None and run.is_serving else None

    @property
    def not_ready_reason(self) -> str | None:
        """Return None for a master that clients find and for a follower that its master feeds."""
        run = self._run
        if self._copying is not None:
            return self._copying.text
        if run is None:
            return "the log is being opened"
        return run.not_ready_reason

    def add_inspection(self, name: str, answer: Inspection) -> None:
        """Have operators' questions answered by the broker of each run; before `start`."""
        self._inspections[name] = answer

    async def start(self) -> None:
        """Open the log, listen, and begin.

        OSError when the port is taken, StoreError when the log cannot be opened, ConfigError.
        """
        self._consensus = open_consensus_store(
            self._replication.etcd if self._replication.consensus == "etcd" else self._replication.kubernetes,
            cluster=self._settings.cluster,
            broker=self._settings.name,
            clock=self._clock,
        )
        try:
            self._run = await self._make_run()
            await self._listener.start()
        except BaseException:
            await self._close_run()
            await self._consensus.close()
            raise
        self._work = supervise("a member's runs", self._run_repeatedly)

    async def stop(self) -> None:
        """Hand over if this is the master and another one is fit for it; then end like any broker."""
        run = self._run
        if run is not None and run.is_serving and run.driver.hand_over():
            await happens_within(run.is_over, _HAND_OVER_S)
        self._stop_asked.set()
        # A run that is made just now sees it for itself.
        if self._run is not None:
            self._run.is_over.set()
        if self._work is not None:
            await asyncio.wait([self._work])
        await self._listener.stop()
        if self._consensus is not None:
            await self._consensus.close()

    def metrics(self) -> Iterable[Metric]:
        yield from self._listener.metrics()
        yield Metric(
            "iotmq_replication_runs_total",
            "counter",
            "Times this member has begun, anew after each time it was master.",
            self._runs_count,
        )
        run = self._run
        if self._copying is not None:
            yield from self._copying.metrics()
        if run is not None:
            yield from run.copies.metrics()
            yield from run.opened.store.metrics()
            yield from run.driver.metrics()
            yield from run.broker.metrics()

    def topic_metrics(self, pattern: str) -> Iterable[Metric]:
        return () if self._run is None else self._run.broker.topic_metrics(pattern)

    async def _run_repeatedly(self) -> None:
        while not self._stop_asked.is_set():
            try:
                if self._run is None:
                    self._run = await self._make_run()
                run = self._run
                self._runs_count += 1
                try:
                    if not self._stop_asked.is_set():
                        await run.run()
                finally:
                    await self._close_run()
                if run.copy_from and not self._stop_asked.is_set():
                    await self._copy(run)
                elif run.driver.has_failed:
                    # A full disk, say, fails again at once.
                    await happens_within(self._stop_asked, _AGAIN_S)
            except IotmqError as error:
                logger.error("this member cannot run: %s", error)
                await happens_within(self._stop_asked, _AGAIN_S)

    async def _make_run(self) -> _Run:
        assert self._consensus is not None
        self._listener.refusal = lambda: "this member opens its log"
        opened = await asyncio.to_thread(self._open)
        try:
            return _Run(self, opened, self._consensus)
        except BaseException:
            await asyncio.to_thread(opened.close)
            raise

    async def _close_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            await asyncio.to_thread(run.opened.close)

    async def _copy(self, run: _Run) -> None:
        """Take a copy of the master's data. What comes of it is seen by the next run."""
        download = CopyDownload(
            self._connector,
            self._directory,
            run.copy_from,
            run.opened.file.identity,
            bytes_per_s=self._replication.copy_bytes_per_s,
            clock=self._clock,
        )
        copying = self._copying = Copying(download, run.last_status, check_member=run.check_member)
        self._listener.members = copying
        self._listener.refusal = lambda: copying.text
        try:
            await copying.run(self._stop_asked)
        finally:
            self._listener.members = self._copying = None

    def _open(self) -> MemberStore:
        kept = finish_copy(self._directory)
        if kept is not None:
            logger.warning(
                "a copy of the master's data was put in place; what was there before is in %s", kept
            )
        opened = open_member_store(
            self._directory,
            self._store_settings,
            cluster=self._settings.cluster,
            broker=self._settings.name,
            member=self._replication.member,
            acknowledge_flushed=self._store_settings.flush == "sync",
            store_host=resolve_store_host(self._settings),
            clock=self._clock,
        )
        try:
            remove_copies(self._directory)
        except OSError as error:
            logger.warning("what copies of a former run have left cannot be deleted: %s", error)
        return opened

    def standing_alarms(self) -> list[str]:
        """Return what operators should know as long as it holds: what copies have replaced takes room."""
        return [
            f"{path} has what this member's log was before it was replaced by a copy of the master's: delete "
            "it when nobody needs it"
            for path in kept_directories(self._directory)
        ]

    # What a run needs of it.

    def make_broker(self, opened: MemberStore, run: _Run) -> Broker:
        """Make the broker of a run; it serves once it is started."""
        broker = Broker(
            self._settings,
            opened.store,
            directory=self._directory,
            clock=self._clock,
            role=BrokerRole(
                make_server=self._listener.seat,
                is_member=True,
                is_current=lambda: run.driver.is_current,
                replication=run.replication_state,
                epochs=lambda: opened.log.epochs,
            ),
        )
        for name, answer in self._inspections.items():
            broker.add_inspection(name, answer)
        return broker

    def make_driver(self, opened: MemberStore, consensus: ConsensusStore, run: _Run) -> MemberDriver:
        """Make what carries out the state machine of a run."""
        is_flushed = self._store_settings.flush == "sync"
        return MemberDriver(
            opened,
            self._replication.member_settings(acknowledge_flushed=is_flushed),
            self._connector,
            consensus,
            events=run,
            clock=self._clock,
        )

    @property
    def listener(self) -> MemberListener:
        """Return the port."""
        return self._listener

    @property
    def clock(self) -> Clock:
        """Return the clock."""
        return self._clock

    @property
    def introduction(self) -> Introduction:
        """Return what other members of this broker have to be the same in."""
        return self._connector.introduction

    @property
    def number(self) -> int:
        """Return this member's number."""
        return self._replication.member

    def master_address(self, number: int) -> str:
        """Return HOST:PORT of a member, or why it is not known."""
        return self._connector.address(number)


class _Run:
    """One run: the opened log, the state machine over it, and the broker that may come to serve."""

    def __init__(self, owner: ReplicatedBroker, opened: MemberStore, consensus: ConsensusStore) -> None:
        self._owner = owner
        self.opened = opened
        self.broker = owner.make_broker(opened, self)
        self.driver = owner.make_driver(opened, consensus, self)
        self.is_over = asyncio.Event()
        self.is_serving = False
        self._leads: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.copies = Copies(opened, clock=owner.clock)
        self.copy_from = 0
        """The member whose data this one has to copy when the run has ended; 0 for none."""
        self.last_status: dict[str, Any] = {}
        """The status of this member at that time."""
        # A broker that does not serve does not retain either.
        self._broker_retains = False
        store = opened.store
        self._waiting_position, self._consumed_position = store.held_position, store.consumed_position
        store.held_position = self._held_position
        store.kept_position = self._kept_position
        store.consumed_position = self._consumed

    async def run(self) -> None:
        """Follow, and serve once this member is master, until the run ends."""
        listener = self._owner.listener
        listener.members = self
        listener.refusal = self._refusal
        listener.master = self._master
        broker, driver = self.broker, self.driver
        try:
            broker.follow()
            await driver.start()
            broker.table_copies.copier = partial(self._copy_tables, broker.table_copies.copier)
            ending = asyncio.ensure_future(self.is_over.wait())
            retaining = supervise("retention of a member", partial(repeat, _RETENTION_SCAN_S, self._retain))
            try:
                await asyncio.wait((ending, self._leads), return_when=asyncio.FIRST_COMPLETED)
                if self._leads.done() and not self.is_over.is_set():
                    self._broker_retains = True
                    await broker.start(epoch=self._leads.result())
                    self.is_serving = True
                    self.appends_changed()
                    await ending
            finally:
                await end([ending, retaining])
        finally:
            self.is_serving = False
            await self.copies.stop()
            await broker.stop()
            listener.members = None
            await driver.stop()

    @property
    def not_ready_reason(self) -> str | None:
        """Return why clients or the master cannot use this member yet."""
        return self.broker.not_ready_reason if self.is_serving else self.driver.not_ready_reason

    def _master(self) -> int | None:
        state = self.driver.member.state
        return None if state is None or state.master == self._owner.number else state.master

    def _refusal(self) -> str:
        state = self.driver.member.state
        if state is None:
            return "no master is known yet"
        return f"the master is member {state.master}, {self._owner.master_address(state.master)}"

    def _copy_tables(self, copier: Copier | None, call: Callable[[bool], None]) -> None:
        """Have followers told what has changed; False where the next master may not be among them."""
        if copier is not None and reaches_next_master(self.driver.member.leading):
            copier(call)
        else:
            call(False)

    # What the driver tells.

    @property
    def tables(self) -> TableCopies:
        """Return the broker's tables."""
        return self.broker.table_copies

    def confirmed(self, position: int) -> None:
        """Show and acknowledge what is before `position`."""
        self.opened.store.raise_confirmed_limit(position)
        self.broker.writer.confirmed_status = (
            ResponseCode.SLAVE_NOT_AVAILABLE if self.driver.is_alone else ResponseCode.SUCCESS
        )
        self.broker.writer.confirm()

    def copy_needed(self, master: int) -> None:
        """Take a copy of a member's data once this run has ended."""
        self.copy_from, self.last_status = master, self.driver.status()

    def standing_alarms(self) -> list[str]:
        """Return the sentences for the operator that do not come from this run."""
        return self._owner.standing_alarms()

    def lead(self, epoch: int) -> None:
        """Start the broker."""
        if not self._leads.done():
            self._leads.set_result(epoch)

    def ended(self, reason: str) -> None:
        """Begin anew."""
        logger.info("the run of this member is over: %s", reason)
        # Nobody else is told that something was stored.
        self.broker.writer.depose(reason)
        self.is_over.set()

    def appends_changed(self) -> None:
        """Take messages or not: clients wait through a hand-over, and are refused with too few members."""
        if not self.is_serving or self.is_over.is_set():
            return
        reason, writer = self.driver.hold_reason, self.broker.writer
        is_paused = reason is not None and self.driver.is_handing_over
        for connection in self._owner.listener.clients():
            connection.pause() if is_paused else connection.resume()
        if is_paused and not self.driver.is_fenced:
            # The next master has to have it, or it does again what is done.
            self.broker.save_progress()
        if reason is None:
            writer.open()
        elif not is_paused:
            writer.close(reason)

    # Requests of other members and operators.

    def replication_state(self) -> ReplicationState | None:
        """Return what operators are told of the followers; None while this member is not master."""
        return report.replication_state(self.driver.member, self.opened, self.driver.status())

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        """Answer a request about the replication. RequestError, also where access control refuses it."""
        access = self.broker.access
        # What comes on a connection that was opened as a follower's is from the same member.
        if access is not None and (
            request.code != RequestCode.MEMBER_MESSAGE or request.ext.get("kind") == "open"
        ):
            account = access.authenticated(request, connection.peer[0])
            if account is not None:
                access.check_permitted(account, request)
        if request.code == RequestCode.MEMBER_MESSAGE:
            try:
                self.driver.handle_message(connection, request)
            except RequestError:
                # Nobody reads an answer to a oneway request.
                connection.close("malformed")
                raise
            return None
        if request.code == RequestCode.GET_MEMBER_STATUS:
            body = msgspec.json.encode({**self.driver.status(), "isServing": self.is_serving})
            return request.reply(ResponseCode.SUCCESS, body=body)
        if request.code in COPY_CODES:
            return self._handle_copy(connection, request)
        if request.code == RequestCode.GET_LOG_CHECKSUM:
            self.driver.handle_checksum(connection, request)
            return None
        if request.code in (RequestCode.ADD_MEMBER, RequestCode.REMOVE_MEMBER):
            return self._change_members(request)
        number = request.integer("member", 0, minimum=0, maximum=limits.REPLICATION_MEMBER_MAX)
        if not self.driver.hand_over(number):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{self.driver.hand_over_refusal(number)}: see `iotmq replication status`",
            )
        return request.reply(ResponseCode.SUCCESS)

    def _change_members(self, request: Command) -> Command:
        change = MemberChange(
            request.integer("member", minimum=1, maximum=limits.REPLICATION_MEMBER_MAX),
            request.text("address") if request.code == RequestCode.ADD_MEMBER else "",
            request.boolean("confirmed"),
        )
        if request.code == RequestCode.ADD_MEMBER and not change.address:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the address of the member is empty")
        try:
            self.driver.change_members(change)
        except MemberChangeError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        return request.reply(ResponseCode.SUCCESS)

    def check_member(self, connection: ServerConnection, request: Command) -> None:
        """Return when the request comes from an account, or an address, that access control lets do this."""
        access = self.broker.access
        if access is not None:
            account = access.authenticated(request, connection.peer[0])
            if account is not None:
                access.check_permitted(account, request)

    def connection_lost(self, connection: ServerConnection) -> None:
        """A connection has ended."""
        self.driver.connection_lost(connection)
        self.copies.connection_lost(connection)

    def _handle_copy(self, connection: ServerConnection, request: Command) -> Command | None:
        # Perhaps it does not serve yet, because too few are in sync: a copy is what it waits for then.
        if self.driver.member.leading is None:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, self._refusal())
        access = self.broker.access
        if access is not None and (account := access.authenticated(request, connection.peer[0])) is not None:
            access.check_permitted(account, request)
        member = 0
        if request.code == RequestCode.BEGIN_COPY:
            introduction, identity = decode_begin_copy(request)
            member = identity.member
            is_other = member != self._owner.number and self.driver.member.is_member(member)
            if introduction != self._owner.introduction or not is_other:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"member {member} of {introduction} is no other member of this broker",
                )
        return self.copies.handle(connection, request, member=member)

    # Retention.

    def _retain(self) -> None:
        self.copies.expire()
        if not self._broker_retains:
            self.opened.store.retain()

    def _held_position(self) -> int | None:
        """Return from where on messages that wait, or copies, need the log."""
        waiting = None if self._waiting_position is None else self._waiting_position()
        return min((each for each in (waiting, self.copies.held_position) if each is not None), default=None)

    def _kept_position(self) -> int | None:
        """Return where the master's log begins: what it has deleted a follower may delete, too."""
        member = self.driver.member
        return member.master_oldest if member.leading is None else None

    def _consumed(self) -> int | None:
        """Return what groups have consumed, which only a master knows."""
        is_known = self._consumed_position is not None and self.driver.member.leading is not None
        return self._consumed_position() if is_known and self._consumed_position is not None else None
