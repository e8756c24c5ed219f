"""The broker role: its parts, how they are wired, and what happens when it starts and stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from iotmq.broker.access.acl import Guard, open_access_control
from iotmq.broker.access.audit import AuditedRequests, BrokerAudit
from iotmq.broker.assemble.admin import AdminProcessors
from iotmq.broker.assemble.mqtt import MqttProcessors
from iotmq.broker.assemble.native import NativeProcessors
from iotmq.broker.broker_role import BrokerRole, Serving
from iotmq.broker.delivery.delivery import LiveDelivery
from iotmq.broker.handlers.mqtt.gateway import LocalGateway
from iotmq.broker.handlers.mqtt.local_sessions import LocalSessions
from iotmq.broker.members.groups import Groups
from iotmq.broker.parts import make_parts
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.registration.service import RegistrationService
from iotmq.broker.replies.reply_after_registration import RepliesAfterRegistration
from iotmq.broker.replies.request_table import RequestTable
from iotmq.broker.replies.slave_refusals import SlaveRefusals
from iotmq.broker.scheduled.delay_offsets import DelayOffsets
from iotmq.broker.scheduled.timers import Timers
from iotmq.broker.sessions.sessions import Sessions
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.statistics.lasting import LastingStatistics
from iotmq.broker.statistics.rates import SAMPLE_INTERVAL_S
from iotmq.broker.statistics.statistics import Statistics
from iotmq.broker.tables.consumed import ConsumedPosition
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets, OffsetsOfPair
from iotmq.broker.tables.copied_table import CopiedByKey
from iotmq.broker.tables.subscription_groups import SubscriptionGroups
from iotmq.broker.tables.system_topics import make_system_topics
from iotmq.broker.tables.table_copies import TableCopies
from iotmq.broker.tables.table_files import TableFiles
from iotmq.broker.tables.topic_recovery import recall_topics
from iotmq.broker.tables.topics import HALF_TOPIC, SCHEDULE_TOPIC, TopicTable
from iotmq.broker.writing.message_writer import MessageWriter
from iotmq.clock import Clock
from iotmq.errors import StoreError
from iotmq.history.questions import STATISTICS
from iotmq.metrics import Metric
from iotmq.ports.inspections import Inspection
from iotmq.ports.replication_state import REPLICATION, ReplicationAnswer
from iotmq.remoting.server import Listening, RemotingServer, RequestHandler, RunHandler
from iotmq.remoting.tls.files import server_tls
from iotmq.store.log.queue import Queue
from iotmq.store.store import Store
from iotmq.supervised import end, repeat, supervise

logger = logging.getLogger(__name__)

_EXPIRY_SCAN_S: Final = 10.0
# How often the store may see to its retention; it knows itself when a pass is due.
_RETENTION_SCAN_S: Final = 1.0
# How often sessions are looked at that may have expired.
_SESSION_SCAN_S: Final = 1.0


class Broker:
    """Serves one store to native clients, and through `writer` to front ends in the same process.

    The store is opened and closed by who composes the process; everything else of the broker starts
    with `start` and ends with `stop`. Further request processors may be added to `requests` before that.

    Before `start` it is passive: what is derived from the log follows the store, and nothing else happens. A
    follower of another broker calls `follow`, and gives `table_copies` what the master says of its tables; it
    calls `start` when it is the master, and everything in its log is confirmed.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        *,
        directory: Path,
        store_host: bytes | None = None,
        clock: Clock | None = None,
        role: BrokerRole | None = None,
    ) -> None:
        """`directory` is the data directory (files go to its `config/`); `store_host` is what the store
        was opened with, by default the advertised address of the settings. `role` is by default that of a
        master without slaves."""
        parts = self.parts = make_parts(
            settings,
            store,
            directory=directory,
            host=store_host or resolve_store_host(settings),
            clock=clock,
            role=role,
        )
        self._role = parts.role
        self._store = store
        self._files = TableFiles(parts.topics, parts.subscription_groups, parts.changed_settings)
        self.native = NativeProcessors(
            parts,
            self._files,
            when_told=self._when_told,
            when_copied=lambda call: self.table_copies.when_copied(call),
            find_queues=lambda topic, found: self._registration.find_queues(topic, found),
        )
        self._files.add([parts.offsets, self.native.filters])
        if not self._role.is_slave:
            # A slave's is its master's.
            self._files.add([self.native.delays.offsets])
        self.access = open_access_control(parts.settings, store, default_file=parts.config / "plain_acl.yml")
        # What the log does not have, for followers, or from the master.
        self.table_copies = TableCopies(
            [
                *self._files.copied(),
                *self.native.copied(),
                CopiedByKey("consumer offsets", parts.offsets, OffsetsOfPair),
            ]
        )
        parts.topics.add_listener(lambda name: self.table_copies.note_urgent())
        parts.subscription_groups.add_listener(lambda name: self.table_copies.note_urgent())
        parts.changed_settings.add_listener(self.table_copies.note_urgent)
        self.native.locks.add_given_listener(self.table_copies.note_urgent)
        self._is_started = False
        self._admin = AdminProcessors(parts, self.native, self.access, address=lambda: self.address)
        self.mqtt = MqttProcessors(parts, self.timers, self.native.device_replies)
        self.requests = RequestTable(
            [*self.native.processors, *self._admin.processors, *self.mqtt.processors],
            serve_run=self.native.sends.serve_run,
            serve_pull=self.native.pulls.serve_pull,
            write_out=parts.writer.write_out,
        )
        self._slave_refusals: SlaveRefusals | None = None
        self._audit = BrokerAudit(parts)
        self._server = self._make_server()
        self._registration = RegistrationService(
            parts,
            port=lambda: self.port,
            takes_strangers=self.access is None and parts.settings.tls_mode != "enforcing",
            runtime_info=self._admin.runtime_info.table,
        )
        parts.changed_settings.add_listener(self._settings_changed)
        self._work: list[asyncio.Task[None]] = []
        self.lasting = LastingStatistics(
            parts.statistics.counters, parts.clock, parts.settings, directory=directory / "statistics"
        )
        parts.inspections.add(STATISTICS, self.lasting.answer)
        parts.inspections.add(REPLICATION, self._tell_replication)
        self.consumed = ConsumedPosition(
            store,
            parts.offsets,
            delivered=self.native.delays.offsets.delivered,
            # Nobody consumes what the broker writes there.
            ignored_topics=parts.system_topics - {SCHEDULE_TOPIC, HALF_TOPIC},
            is_read=self._is_read,
        )
        store.consumed_position = lambda: self.consumed.position

    def _make_server(self) -> Serving:
        settings = self.parts.settings
        announced = RepliesAfterRegistration(
            AuditedRequests(self.requests, self._audit.record, has_accounts=self.access is not None),
            self.topics,
            when_told=self._when_told,
            when_saved=self._files.when_saved,
            when_copied=self.table_copies.when_copied,
        )
        handler: RequestHandler = announced
        handle_run: RunHandler = self.requests.handle_run
        if self._role.is_slave:
            handler = refusals = self._slave_refusals = SlaveRefusals(announced, handle_run)
            handle_run = refusals.handle_run
        if self.access is not None:
            handler = guard = Guard(
                handler,
                handle_run,
                self.access,
                self._store,
                self.parts.cold_reads,
                record=self._audit.record,
            )
            handle_run = guard.handle_run
            self.native.transaction_checks.may_be_asked = self.access.may_be_asked
        if self._role.make_server is not None:
            return self._role.make_server(handler, handle_run)
        return RemotingServer(
            handler,
            Listening(
                host=settings.listen_host,
                port=settings.listen_port,
                idle_s=settings.idle_s,
                connections_max=settings.connections_max,
                name="broker",
            ),
            clock=self.parts.clock,
            handle_run=handle_run,
            tls=server_tls(settings),
        )

    @property
    def topics(self) -> TopicTable:
        return self.parts.topics

    @property
    def subscription_groups(self) -> SubscriptionGroups:
        return self.parts.subscription_groups

    @property
    def offsets(self) -> ConsumerOffsets:
        return self.parts.offsets

    @property
    def groups(self) -> Groups:
        return self.parts.groups

    @property
    def statistics(self) -> Statistics:
        return self.parts.statistics

    @property
    def writer(self) -> MessageWriter:
        return self.parts.writer

    @property
    def sessions(self) -> Sessions:
        return self.mqtt.sessions

    @property
    def delivery(self) -> LiveDelivery:
        return self.mqtt.delivery

    def add_inspection(self, name: str, answer: Inspection) -> None:
        """Have operators' questions about something else of this process answered."""
        self.parts.inspections.add(name, answer)

    def local_gateway(self) -> LocalGateway:
        """Return the way to this broker for an MQTT front end in the same process."""
        return self.mqtt.local_gateway()

    def local_sessions(self, name: str) -> LocalSessions:
        """Sessions for an MQTT front end in the same process, which other front ends know as `name`."""
        return self.mqtt.local_sessions(name)

    @property
    def timers(self) -> Timers:
        """Messages that wait for a time: scheduling, cancelling and listing them."""
        return self.native.delays.timers

    @property
    def delay_offsets(self) -> DelayOffsets:
        """Return the offsets up to which delay levels were delivered."""
        return self.native.delays.offsets

    @property
    def port(self) -> int:
        """Return the port listened on."""
        return self._server.port

    @property
    def address(self) -> str:
        """host:port that registries and clients are told."""
        return self._registration.address

    @property
    def not_ready_reason(self) -> str | None:
        """Return None while clients can find this broker, else why they cannot."""
        return self._registration.not_ready_reason

    async def wait_registered(self, timeout_s: float) -> None:
        """Return once clients can find this broker; TimeoutError when no registry answers in time."""
        await self._registration.wait_registered(timeout_s)

    def follow(self) -> None:
        """Have what `table_copies` takes written to the files, and what is outdated dropped, until `start` or
        `stop`."""
        self._work = [
            *(supervise("saving of tables", save) for save in self._files.follower_savers()),
            supervise("removal of topics", partial(repeat, _EXPIRY_SCAN_S, self._admin.clean)),
            supervise("tidying of sessions", partial(repeat, _SESSION_SCAN_S, self.mqtt.tidy)),
        ]
        if self.access is not None:
            self._work.append(supervise("accounts", self._reload_accounts))

    async def start(self, *, epoch: int = 0) -> None:
        """Listen and register. OSError when the port is taken, StoreError when a config file is broken.

        `epoch` is that of the master of a replicated broker name: registries refuse lower ones. A broker
        that is not replicated has 0. StoreError also while the log of a replicated store has something that
        is not confirmed: what is read from the log now would go without it.
        """
        if self._store.is_replicated and self._store.confirmed_position < self._store.appended_position:
            raise StoreError(
                f"the broker cannot start: its log is confirmed up to {self._store.confirmed_position} "
                f"of {self._store.appended_position}"
            )
        await end(self._work)
        self._work = []
        self._is_started = True
        self.table_copies.lead()
        settings = self.parts.settings
        self._apply_settings()
        if not self._role.is_slave:
            self._prepare()
        self.topics.add_listener(self._on_topic_changed)
        self.subscription_groups.add_listener(self._on_group_changed)
        if self._role.is_slave:
            await self._server.start()
            self.writer.open(refusal="this broker is a slave")
        else:
            self.native.restore()
            self.mqtt.start()
            await self._server.start()
            self.writer.open()
            self.native.start()
        self._registration.start(epoch=epoch)
        self._work = [supervise(name, work) for name, work in self._repeated_work()]
        logger.info(
            "broker %s of cluster %s listens on %s:%d and is advertised as %s",
            settings.name,
            settings.cluster,
            settings.listen_host,
            self.port,
            self.address,
        )

    def _prepare(self) -> None:
        """Bring the tables into agreement with the log; a slave's are its master's."""
        settings = self.parts.settings
        if self.parts.log_generations is not None:
            self.parts.log_generations.begin(
                min_position=self._store.min_position, end_position=self._store.appended_position
            )
        self._admin.resume()
        if self._store.is_replicated:
            # What registries and tools know of a former master is older, whatever it had in its tables last.
            self.topics.count_up_to(self.topics.version.counter + 1)
            self.subscription_groups.count_up()
            self._files.groups_changed()
        make_system_topics(self.topics, settings)
        if self._store.is_replicated or not self._store.recovery.was_clean:
            recall_topics(self._store, self.topics, default_topic_queues=settings.default_topic_queues)
        clamped = self.offsets.clamp(self._end_of)
        if clamped:
            logger.warning("%d consumer offsets were past the end of their queues and were set back", clamped)
        self._files.save_topics()

    def save_progress(self) -> None:
        """Write to the log at once what clients have acknowledged: another master is about to go on there."""
        self.mqtt.save_progress()

    async def stop(self) -> None:
        """Take nothing more, finish what was taken, save everything; well under two seconds."""
        if not self._is_started:
            await end(self._work)
            self._files.save_all()
            return
        if not self._role.is_slave:
            self.mqtt.finish()
        self._audit.close()
        self.writer.close()
        await end(self._work)
        await self._admin.finish_removals()
        await self._registration.stop()
        await self.writer.drain()
        self.writer.finish()
        self._admin.stop()
        self.mqtt.stop()
        self.native.stop()
        await self._server.stop()
        self._files.save_all()
        self.lasting.finish()
        await self._admin.finish_account_changes()

    def expire(self) -> None:
        """Do everything whose time has come by the clock; timers do it anyway, tests move the clock."""
        self.native.expire()
        self.mqtt.expire()
        self.writer.time_out()
        self._expire()

    def sample(self) -> None:
        """Take the copies that statistics and rates compare with; a timer does it, tests move the clock."""
        self.statistics.sample()
        self._admin.runtime_info.sample()

    def metrics(self) -> Iterable[Metric]:
        for part in (
            self._server,
            self.requests,
            self.writer,
            self.native,
            self.topics,
            self.subscription_groups,
            self.groups,
            self.offsets,
            self.mqtt,
            self.statistics,
            self.lasting,
            self._admin,
            self._registration,
            self._files,
            self._audit,
        ):
            yield from part.metrics()
        if self.access is not None:
            yield from self.access.metrics()
        if self._slave_refusals is not None:
            yield self._slave_refusals.metric()

    def topic_metrics(self, pattern: str) -> Iterable[Metric]:
        """Report the traffic of topics, which are too many for `metrics`."""
        return self.statistics.topic_metrics(pattern)

    def _repeated_work(self) -> Iterable[tuple[str, Callable[[], Awaitable[None]]]]:
        """List the background work of a running broker, with its names in metrics."""
        for save in self._files.savers():
            yield "saving of tables", save
        yield "check of the address", self._registration.check_address
        yield "expiry of clients", partial(repeat, _EXPIRY_SCAN_S, self._expire)
        yield "statistics", partial(repeat, SAMPLE_INTERVAL_S, self.sample)
        yield "lasting statistics", self.lasting.run
        yield "consumed positions", self.consumed.look_repeatedly
        yield "retention", partial(repeat, _RETENTION_SCAN_S, self._store.retain)
        if not self._role.is_slave:
            yield "lag of groups", self._admin.group_lag.look_repeatedly
            yield "expiry of sessions", partial(repeat, _SESSION_SCAN_S, self.mqtt.expire)
            yield "delayed messages", partial(repeat, _RETENTION_SCAN_S, self.native.delays.roll)
        if self.access is not None:
            yield "accounts", self._reload_accounts

    async def _reload_accounts(self) -> None:
        assert self.access is not None
        await self.access.reload_repeatedly(self.parts.settings.acl_reload_interval_s)

    def _expire(self) -> None:
        self.native.expire_members()
        self._admin.clean()

    def _settings_changed(self) -> None:
        """Give the values that changed while the broker runs to those that do not ask for them each time."""
        self._apply_settings()
        make_system_topics(self.topics, self.parts.settings)

    def _apply_settings(self) -> None:
        settings = self.parts.settings
        self.subscription_groups.may_create = settings.auto_create_groups
        self.groups.expiry_s = settings.client_expiry_s
        self._change_retention()

    def _change_retention(self) -> None:
        store_settings = self.parts.changed_settings.store
        if store_settings != self._store.settings:
            self._store.change_retention(store_settings)

    def _end_of(self, topic: str, queue_id: int) -> int:
        queue = self._store.find_queue(topic, queue_id)
        # The first record of a queue that does not exist will be its number 0.
        return 0 if queue is None else queue.max_offset

    def _is_read(self, queue: Queue) -> bool:
        topic = self.topics.find(queue.topic)
        return topic is None or queue.queue_id < topic.read_queue_nums

    def _on_topic_changed(self, name: str) -> None:
        if self.topics.find(name) is None:
            self.statistics.forget_topic(name)
        self._registration.topics_changed()

    async def _tell_replication(self, _question: bytes) -> bytes:
        return msgspec.json.encode(ReplicationAnswer(replication=self._role.replication()))

    def _when_told(self, call: Callable[[], None]) -> None:
        self._registration.when_told(call)

    def _on_group_changed(self, name: str) -> None:
        if self.subscription_groups.find(name) is None:
            self.statistics.forget_group(name)
