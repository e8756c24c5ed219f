"""The broker role: its parts, how they are wired, and what happens when it starts and stops."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from iotmq.broker.acl import AccessControl, Guard
from iotmq.broker.acl_handler import AclHandler
from iotmq.broker.admin_handler import AdminHandler
from iotmq.broker.advertised import AdvertisedAddress
from iotmq.broker.changed_settings import ChangedSettings
from iotmq.broker.client_handler import ClientHandler
from iotmq.broker.cold_reads import ColdReads
from iotmq.broker.consumed import lowest_consumed_position
from iotmq.broker.consumer_filters import ConsumerFilters
from iotmq.broker.consumer_offsets import ConsumerOffsets
from iotmq.broker.delayed_batches import DelayedBatches
from iotmq.broker.delays import DelayDelivery, DelayLevels
from iotmq.broker.delivery import Delivery
from iotmq.broker.device_replies import DeviceReplies
from iotmq.broker.filter_handler import FilterHandler
from iotmq.broker.gateway import GatewayHandler, LocalGateway
from iotmq.broker.group_changes_handler import GroupChangesHandler
from iotmq.broker.groups import Groups
from iotmq.broker.holds import Holds
from iotmq.broker.intake import Intake
from iotmq.broker.lock_handler import LockHandler
from iotmq.broker.offset_handler import OffsetHandler
from iotmq.broker.offset_ids import OffsetMessageIds
from iotmq.broker.offset_moved import OffsetMovedEvents
from iotmq.broker.pull_handler import PullHandler
from iotmq.broker.queue_locks import QueueLocks
from iotmq.broker.queue_scaling_handler import QueueScalingHandler
from iotmq.broker.rates import SAMPLE_INTERVAL_S
from iotmq.broker.registration import Registration, parse_address
from iotmq.broker.reply_handler import ReplyHandler
from iotmq.broker.request_table import Area, RequestTable
from iotmq.broker.retained import RetainedProjection
from iotmq.broker.retention_handler import RetentionHandler
from iotmq.broker.runtime_info import RuntimeInfo
from iotmq.broker.send_back_handler import SendBackHandler
from iotmq.broker.send_handler import SendHandler
from iotmq.broker.session_gateway import LocalSessions, WillPublisher
from iotmq.broker.session_handler import SessionHandler
from iotmq.broker.session_projection import SessionProjection
from iotmq.broker.session_views_handler import SessionViewsHandler
from iotmq.broker.sessions import Sessions
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.settings_handler import SettingsHandler
from iotmq.broker.statistics import Statistics
from iotmq.broker.subscription_groups import SubscriptionGroups
from iotmq.broker.timer_handler import TimerHandler
from iotmq.broker.timers import Timers
from iotmq.broker.topic_removal import TopicRemoval
from iotmq.broker.topic_removal_handler import TopicRemovalHandler
from iotmq.broker.topics import (
    DLQ_PREFIX,
    HALF_TOPIC,
    PERMISSION_READ,
    PERMISSION_WRITE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TEMPLATE_TOPIC,
    TopicTable,
    is_legal_name,
    system_topics,
)
from iotmq.broker.transaction_checks import TransactionChecks
from iotmq.broker.transaction_handler import TransactionHandler
from iotmq.broker.transactions import Transactions
from iotmq.broker.views import Views
from iotmq.clock import Clock, SystemClock
from iotmq.errors import ConfigError
from iotmq.message.hosts import encode_host
from iotmq.message.record import decode_record
from iotmq.metrics import Metric
from iotmq.remoting.server import RemotingServer
from iotmq.remoting.tls import client_tls, server_tls
from iotmq.store.queue import Queue
from iotmq.store.store import Store

logger = logging.getLogger(__name__)

_EXPIRY_SCAN_S = 10.0
# How often the store may see to its retention; it knows itself when a pass is due.
_RETENTION_SCAN_S = 1.0
# How often sessions are looked at that may have expired.
_SESSION_SCAN_S = 1.0
# How long stop() waits for batches whose group commit is under way.
_LAST_FLUSH_S = 1.0
# A queue whose first record is within this share of the memory counts as young (wire document 9.3).
_YOUNG_MEMORY_SHARE = 0.4


class _SavedTable(Protocol):
    """A table whose file is written every few seconds, off the loop."""

    is_dirty: bool

    def take_unsaved(self) -> bytes | None: ...

    def write(self, data: bytes) -> None: ...


class Broker:
    """Serves one store to native clients, and through `intake` to front ends in the same process.

    The store is opened and closed by who composes the process; everything else of the broker starts
    with `start` and ends with `stop`. Parts other modules build on: `intake`, `topics`, `groups`,
    `offsets`, and `requests`, to which further areas of request codes may be added before `start`.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        *,
        directory: Path,
        store_host: bytes | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`directory` is the data directory (files go to its `config/`); `store_host` is what the store
        was opened with, by default the advertised address of the settings."""
        clock = clock or SystemClock()
        self._changed_settings = ChangedSettings(
            directory / "config" / "brokerSettings.json", settings, store.settings
        )
        settings = self._changed_settings.broker
        self._settings = settings
        self._store = store
        self._clock = clock
        self._directory = directory
        self._store_host = store_host or resolve_store_host(settings)
        config = directory / "config"
        self.topics = TopicTable(config / "topics.json", clock)
        self.subscription_groups = SubscriptionGroups(
            config / "subscriptionGroup.json", clock, may_create=settings.auto_create_groups
        )
        self.offsets = ConsumerOffsets(config / "consumerOffset.json")
        self.access = _access_control(settings, config, store)
        self._accounts = AclHandler(
            self.access,
            clock,
            broker_name=settings.name,
            cluster=settings.cluster,
            broker_address=lambda: self.address,
        )
        self.consumer_filters = ConsumerFilters(
            config / "consumerFilter.json", clock, is_enabled=settings.property_filter_enabled
        )
        self.groups = Groups(clock, expiry_s=settings.client_expiry_s)
        self.locks = QueueLocks(clock)
        self.holds = Holds(held_max=settings.held_pulls_max)
        self.statistics = Statistics(clock)
        self.intake = Intake(
            store,
            self.topics,
            clock,
            directory=directory,
            default_topic_queues=settings.default_topic_queues,
            flush_timeout_s=store.settings.sync_flush_timeout_ms / 1000,
            statistics=self.statistics,
        )
        message_ids = OffsetMessageIds(self._store_host)
        delay_levels = DelayLevels(settings.delay_levels, clock)
        self._delays = DelayDelivery(
            store,
            self.intake,
            delay_levels,
            config / "delayOffset.json",
            clock,
            host=self._store_host,
            broker_name=settings.name,
            pending_max=settings.timers_pending_max,
        )
        self._transactions = Transactions(
            store,
            self.intake,
            self.offsets,
            clock,
            host=self._store_host,
            divert=self._divert,
            pending_max=settings.transactions_pending_max,
        )
        self._transaction_checks = TransactionChecks(
            store,
            self._transactions,
            self.groups,
            message_ids,
            clock,
            timeout_s=settings.transaction_timeout_s,
            interval_s=settings.transaction_check_interval_s,
            checks_max=settings.transaction_checks_max,
            age_max_s=store.settings.retention_hours * 3600,
        )
        self._transaction_ends = TransactionHandler(
            store, self._transactions, is_slave=settings.broker_id != 0
        )
        self._replies = ReplyHandler(
            self.intake,
            self.topics,
            self.groups,
            message_ids,
            clock,
            host=self._store_host,
            cluster=settings.cluster,
            region=settings.region,
            is_tracing_allowed=settings.is_tracing_allowed,
            is_writable=settings.is_writable,
            stores_replies=settings.store_replies,
        )
        self._device_replies = DeviceReplies(
            self._replies,
            self.intake,
            clock,
            host=self._store_host,
            cluster=settings.cluster,
            stores_replies=settings.store_replies,
        )
        self._sends = SendHandler(
            self.intake,
            self.topics,
            self.subscription_groups,
            message_ids,
            self._delays,
            broker_name=settings.name,
            cluster=settings.cluster,
            region=settings.region,
            is_tracing_allowed=settings.is_tracing_allowed,
            is_writable=settings.is_writable,
            transactions=self._transactions,
        )
        self._cold_reads = ColdReads(
            store, threads_max=settings.cold_read_threads, waiting_max=settings.cold_reads_max
        )
        self._offset_moved = OffsetMovedEvents(
            self.intake, clock, broker_name=settings.name, host=self._store_host
        )
        self._pulls = PullHandler(
            store,
            self.topics,
            self.groups,
            self.subscription_groups,
            self.offsets,
            self.holds,
            self._cold_reads,
            clock,
            filters=self.consumer_filters,
            is_readable=settings.is_readable,
            statistics=self.statistics,
            # A slave's log is its master's.
            offset_moved=self._offset_moved.moved if settings.broker_id == 0 else None,
        )
        self._runtime_info = RuntimeInfo(
            store,
            self.intake,
            self._pulls,
            self._cold_reads,
            self.statistics,
            clock,
            directory=directory,
            cold_reads_max=settings.cold_reads_max,
            delay_progress=self._delays.progress,
        )
        self._clients = ClientHandler(
            self.groups, self.subscription_groups, self.topics, self.consumer_filters
        )
        self._send_backs = SendBackHandler(
            store,
            self.intake,
            self.topics,
            self.subscription_groups,
            message_ids,
            delay_levels,
            self._delays,
            statistics=self.statistics,
            is_writable=settings.is_writable,
        )
        areas: list[Area] = [
            self._sends,
            self._send_backs,
            self._pulls,
            self._transaction_ends,
            self._replies,
            self._device_replies,
            self._clients,
            LockHandler(self.locks, self.topics),
            TimerHandler(self._delays.timers, self.topics, broker_name=settings.name),
            FilterHandler(self.consumer_filters),
            self._accounts,
            RetentionHandler(store),
            AdminHandler(
                self.topics,
                self.subscription_groups,
                self.offsets,
                self._delays,
                broker_name=settings.name,
                cluster=settings.cluster,
                runtime_info=self._runtime_info.table,
            ),
        ]
        system_names = frozenset(
            topic.topic_name
            for topic in system_topics(
                cluster=settings.cluster, broker=settings.name, template_queues=1, may_inherit=False
            )
        )
        self._views = Views(
            store,
            self.topics,
            self.groups,
            self.offsets,
            self.statistics,
            self._cold_reads,
            clock,
            broker_name=settings.name,
            cluster=settings.cluster,
            system_topics=system_names,
            relay_timeout_s=settings.relay_timeout_s,
            address=lambda: self.address,
        )
        areas += self._views.areas
        self._removal = TopicRemoval(store, self.topics, self.offsets)
        self._removals = TopicRemovalHandler(self._removal, self.topics, own_topics=system_names)
        areas += [
            OffsetHandler(
                store,
                self.topics,
                self.offsets,
                self._views.long_answers,
                young_bytes_max=_young_bytes_max(),
            ),
            self._removals,
            GroupChangesHandler(
                store,
                self.topics,
                self.groups,
                self.subscription_groups,
                self.offsets,
                self._views.long_answers,
                broker_name=settings.name,
            ),
            QueueScalingHandler(store, self.topics, self.groups, self.offsets, own_topics=system_names),
        ]
        areas.append(SettingsHandler(self._changed_settings, clock, apply=self._apply_settings))
        self.delivery = Delivery(applied_position=store.confirmed_position)
        store.add_projection(self.delivery)
        self._retained = RetainedProjection(
            store.key_values(),
            messages_max=settings.retained_messages_max,
            bytes_max=settings.retained_bytes_max,
        )
        store.add_projection(self._retained)
        session_projection = SessionProjection(store.key_values())
        store.add_projection(session_projection)
        self._delayed_batches = DelayedBatches(self._delays.timers, self.intake, clock)
        self.sessions = Sessions(
            session_projection,
            store,
            self.intake,
            clock,
            host=self._store_host,
            publish=WillPublisher(
                self.intake, self._delayed_batches, self.delivery, clock, host=self._store_host
            ).publish,
        )
        self._gateway = GatewayHandler(
            self.intake,
            self._delayed_batches,
            self.delivery,
            host=self._store_host,
            record_bytes_max=store.settings.record_bytes_max,
            clock=clock,
        )
        areas.append(self._gateway)
        self._session_requests = SessionHandler(self.sessions, self._retained, self.intake)
        areas += [self._session_requests, SessionViewsHandler(self.sessions)]
        self.requests = RequestTable(areas, take_run=self._sends.take_run, take_pull=self._pulls.take_pull)
        self._server = RemotingServer(
            self.requests if self.access is None else Guard(self.requests, self.access),
            host=settings.listen_host,
            port=settings.listen_port,
            idle_s=settings.idle_s,
            connections_max=settings.connections_max,
            clock=clock,
            name="broker",
            # Access control looks at every request.
            handle_run=self.requests.handle_run if self.access is None else None,
            tls=server_tls(settings),
        )
        # Nobody consumes what the broker writes there.
        self._own_topics = system_names - {SCHEDULE_TOPIC, HALF_TOPIC}
        # Both are set by start(); they need the port that is really listened on.
        self._advertised: AdvertisedAddress | None = None
        self._registration: Registration | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # Tables that changed in this turn of the loop and are saved at its end.
        self._unsaved: set[TopicTable | SubscriptionGroups] = set()
        self.intake.add_dispatch_listener(self._pulls.wake)
        store.consumed_position = self._consumed_position

    def local_gateway(self) -> LocalGateway:
        """The way to this broker for an MQTT front end in the same process."""
        return LocalGateway(
            self.intake,
            self._delayed_batches,
            self._device_replies,
            self.topics,
            self.delivery,
            host=self._store_host,
            record_bytes_max=self._store.settings.record_bytes_max,
            clock=self._clock,
        )

    def local_sessions(self, name: str) -> LocalSessions:
        """Sessions for an MQTT front end in the same process, which other front ends know as `name`."""
        return LocalSessions(self.sessions, self._retained, name=name)

    @property
    def timers(self) -> Timers:
        """Messages that wait for a time: scheduling, cancelling and listing them."""
        return self._delays.timers

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._server.port

    @property
    def address(self) -> str:
        """host:port that registries and clients are told."""
        port = self._settings.advertised_port or self.port
        host = self._settings.advertised_host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def not_ready_reason(self) -> str | None:
        """None while clients can find this broker, else why they cannot."""
        if self._registration is None:
            return "the broker has not started"
        return self._registration.not_ready_reason

    async def wait_registered(self, timeout_s: float) -> None:
        """Return once clients can find this broker; TimeoutError when no registry answers in time."""
        assert self._registration is not None, "start() was not called"
        await self._registration.wait_registered(timeout_s)

    async def start(self) -> None:
        """Listen and register. OSError when the port is taken, StoreError when a config file is broken."""
        settings = self._settings
        if self._changed_settings.store != self._store.settings:
            self._store.change_retention(self._changed_settings.store)
        self._removal.resume()
        self._make_system_topics()
        if not self._store.recovery.was_clean:
            self._recall_topics()
        clamped = self.offsets.clamp(self._end_of)
        if clamped:
            logger.warning("%d consumer offsets were past the end of their queues and were set back", clamped)
        _save_config(self.topics, is_synced=True)
        self.topics.add_listener(self._on_topic_changed)
        self.subscription_groups.add_listener(self._on_group_changed)
        self._transactions.start()
        await self._server.start()
        self.intake.open()
        if settings.broker_id == 0:
            # Each question is a record, and a slave's log is its master's.
            self._transaction_checks.start()
        self._delays.start()
        self._registration = Registration(
            map(parse_address, settings.registries),
            cluster=settings.cluster,
            broker_name=settings.name,
            broker_id=settings.broker_id,
            broker_address=self.address,
            ha_address=_with_port(self.address, 1),
            encode_topics=self._encode_registration,
            interval_s=settings.registration_interval_s,
            timeout_s=settings.registration_timeout_s,
            tls=client_tls(ca_file=settings.registry_tls_ca_file) if settings.registry_tls_enabled else None,
        )
        self._registration.start()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._save_repeatedly(self.offsets)),
            loop.create_task(self._save_repeatedly(self.consumer_filters)),
            *self._access_tasks(loop),
            loop.create_task(self._check_address()),
            loop.create_task(self._save_repeatedly(self._delays)),
            loop.create_task(_repeat(_EXPIRY_SCAN_S, self._expire)),
            loop.create_task(_repeat(SAMPLE_INTERVAL_S, self.sample)),
            loop.create_task(_repeat(_RETENTION_SCAN_S, self._store.retain)),
            loop.create_task(_repeat(_SESSION_SCAN_S, self.sessions.expire)),
            loop.create_task(_repeat(_RETENTION_SCAN_S, self._delays.roll)),
        ]
        logger.info(
            "broker %s of cluster %s listens on %s:%d and is advertised as %s",
            settings.name,
            settings.cluster,
            settings.listen_host,
            self.port,
            self.address,
        )

    async def stop(self) -> None:
        """Take nothing more, finish what was taken, save everything; well under two seconds."""
        self.intake.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._removals.stop()
        if self._registration is not None:
            await self._registration.stop()
        await self._finish_flushes()
        self.intake.finish()
        self._views.stop()
        self.sessions.stop()
        self._pulls.stop()
        self._delays.stop()
        self._transaction_checks.stop()
        self._transactions.stop()
        await self._server.stop()
        _save_config(self.topics, is_synced=True)
        _save_config(self.subscription_groups, is_synced=True)
        self._save(self.offsets)
        self._save(self.consumer_filters)
        await self._accounts.stop()
        self._save(self._delays)

    def expire(self) -> None:
        """Do everything whose time has come by the clock; timers do it anyway, tests move the clock."""
        self._pulls.expire()
        self._delays.deliver()
        self._transaction_checks.expire()
        self.sessions.expire()
        self.intake.expire()
        self._expire()

    def _apply_settings(self) -> None:
        """Let every part have the values that changed while the broker runs."""
        before = self._settings
        settings = self._settings = self._changed_settings.broker
        self._sends.is_writable = self._send_backs.is_writable = settings.is_writable
        self._sends.trace_on = "true" if settings.is_tracing_allowed else "false"
        self._pulls.is_readable = settings.is_readable
        self.subscription_groups.may_create = settings.auto_create_groups
        self.groups.expiry_s = settings.client_expiry_s
        self.holds.held_max = settings.held_pulls_max
        self.intake.default_topic_queues = settings.default_topic_queues
        if self._changed_settings.store != self._store.settings:
            self._store.change_retention(self._changed_settings.store)
        self._make_system_topics()
        if (before.is_writable, before.is_readable) != (settings.is_writable, settings.is_readable):
            # Registries take topics again only with another version.
            self.topics.count_up()

    def _make_system_topics(self) -> None:
        settings = self._settings
        for topic in system_topics(
            cluster=settings.cluster,
            broker=settings.name,
            template_queues=settings.default_topic_queues,
            may_inherit=settings.auto_create_topics,
        ):
            if self.topics.find(topic.topic_name) is None or topic.topic_name == TEMPLATE_TOPIC:
                self.topics.put(topic)

    def _encode_registration(self) -> bytes:
        """The topics as registries are told them: none allows what the broker does not."""
        mask = -1
        if not self._settings.is_readable:
            mask &= ~PERMISSION_READ
        if not self._settings.is_writable:
            mask &= ~PERMISSION_WRITE
        return self.topics.encode(perm_mask=mask)

    def _recall_topics(self) -> None:
        """After a crash: have a topic for every queue of the log, which is on the disk before topics.json."""
        counts: dict[str, int] = {}
        for queue in self._store.queues():
            has_records = queue.max_offset > queue.first_offset
            if has_records and self.topics.find(queue.topic) is None and is_legal_name(queue.topic):
                counts[queue.topic] = max(counts.get(queue.topic, 0), queue.queue_id + 1)
        for name, count in counts.items():
            # How many it had is not known; one too many is an empty queue, one too few hides messages.
            if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                count = max(count, self._settings.default_topic_queues)
            self.topics.ensure(name, queues=count)
            logger.warning("topic %s was not in topics.json and is made again for its messages", name)

    def metrics(self) -> Iterable[Metric]:
        for part in (
            self._server,
            self.requests,
            self.intake,
            self._sends,
            self._pulls,
            self.holds,
            self._cold_reads,
            self.topics,
            self.subscription_groups,
            self.groups,
            self.offsets,
            self.consumer_filters,
            self._delays,
            self._transactions,
            self._transaction_checks,
            self._transaction_ends,
            self._replies,
            self._gateway,
            self._session_requests,
            self.sessions,
            self._retained,
            self.statistics,
            self._offset_moved,
            self._views,
        ):
            yield from part.metrics()
        if self.access is not None:
            yield from self.access.metrics()
        if self._advertised is not None:
            yield from self._advertised.metrics()
        if self._registration is not None:
            yield from self._registration.metrics()

    def _end_of(self, topic: str, queue_id: int) -> int | None:
        queue = self._store.find_queue(topic, queue_id)
        return None if queue is None else queue.max_offset

    def _consumed_position(self) -> int | None:
        return lowest_consumed_position(
            self._store,
            self.offsets,
            delivered=self._delays.delivered(),
            ignored_topics=self._own_topics,
            is_read=self._is_read,
        )

    def _is_read(self, queue: Queue) -> bool:
        topic = self.topics.find(queue.topic)
        return topic is None or queue.queue_id < topic.read_queue_nums

    def _divert(self, topic: str, queue_id: int, properties: bytes) -> tuple[str, int, bytes]:
        """Where a committed message goes: to its queue, or to wait for its time first."""
        wish = self._delays.timers.read_wish(properties)
        if not wish.level and not wish.due_ms:
            return topic, queue_id, properties
        return self._delays.timers.divert(topic, queue_id, properties, wish, is_counted=False)[:3]

    def _on_topic_changed(self, name: str) -> None:
        self._save_soon(self.topics)
        if self.topics.find(name) is None:
            self.statistics.forget_topic(name)
        if self._registration is not None:
            self._registration.wake()

    def _on_group_changed(self, name: str) -> None:
        self._save_soon(self.subscription_groups)
        if self.subscription_groups.find(name) is None:
            self.statistics.forget_group(name)

    @property
    def _takes_strangers(self) -> bool:
        """Whether unsigned requests over plain connections are answered."""
        return self.access is None and self._settings.tls_mode != "enforcing"

    async def _check_address(self) -> None:
        settings = self._settings
        self._advertised = AdvertisedAddress(
            settings.advertised_host,
            settings.advertised_port or self.port,
            listen_host=settings.listen_host,
            listen_port=self.port,
            runtime_info=self._runtime_info.table if self._takes_strangers else None,
        )
        await self._advertised.check()

    def _access_tasks(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[None]]:
        if self.access is None:
            return []
        return [loop.create_task(self.access.reload_repeatedly(self._settings.acl_reload_interval_s))]

    def _save_soon(self, table: TopicTable | SubscriptionGroups) -> None:
        """Many changes in one turn of the loop make one write at its end."""
        if not self._unsaved:
            asyncio.get_running_loop().call_soon(self._save_changed)
        self._unsaved.add(table)

    def _save_changed(self) -> None:
        unsaved, self._unsaved = self._unsaved, set()
        for table in unsaved:
            _save_config(table, is_synced=False)

    def _save(self, table: _SavedTable) -> None:
        data = table.take_unsaved()
        if data is not None:
            try:
                table.write(data)
            except OSError as error:
                table.is_dirty = True
                logger.error("offsets could not be written: %s", error)

    async def _save_repeatedly(self, table: _SavedTable) -> None:
        while True:
            await asyncio.sleep(self._settings.offsets_interval_s)
            data = table.take_unsaved()
            if data is None:
                continue
            writing = asyncio.get_running_loop().run_in_executor(None, table.write, data)
            try:
                await asyncio.shield(writing)
            except OSError as error:
                table.is_dirty = True
                logger.error("offsets could not be written: %s", error)
            except asyncio.CancelledError:
                # stop() writes the file itself, after this one is done.
                await asyncio.wait([writing])
                table.is_dirty = True
                raise

    async def _finish_flushes(self) -> None:
        """Wait until the group commits under way have answered their senders."""
        if not self.intake.waiting_count:
            return
        self._store.request_flush()
        finished = asyncio.Event()

        def look() -> None:
            if not self.intake.waiting_count:
                finished.set()

        self.intake.add_confirmed_listener(look)
        try:
            async with asyncio.timeout(_LAST_FLUSH_S):
                await finished.wait()
        except TimeoutError:
            pass

    def _expire(self) -> None:
        self._clients.expire()
        self.consumer_filters.expire()
        self.locks.expire()
        self._removal.clean()

    def sample(self) -> None:
        """Take the copies that statistics and rates compare with; a timer does it, tests move the clock."""
        self.statistics.sample()
        self._runtime_info.sample()


def resolve_store_host(settings: BrokerSettings) -> bytes:
    """The advertised address as records carry it, for opening the store. ConfigError for an unknown name."""
    port = settings.advertised_port or settings.listen_port
    try:
        return encode_host(settings.advertised_host, port)
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(settings.advertised_host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"broker.advertised_host {settings.advertised_host!r} cannot be resolved: {error}"
        ) from error
    addresses = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return encode_host(str(addresses[0][4][0]), port)


def _access_control(settings: BrokerSettings, config: Path, store: Store) -> AccessControl | None:
    """None where it is off. ConfigError when there are no accounts to go by."""
    if not settings.acl_enabled:
        return None

    def topic_at(position: int) -> str | None:
        record = store.read_record(position)
        return None if record is None else decode_record(record).topic

    path = Path(settings.acl_file) if settings.acl_file else config / "plain_acl.yml"
    return AccessControl(path, topic_at=topic_at)


def _with_port(address: str, step: int) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + step}"


def _young_bytes_max() -> int:
    return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _YOUNG_MEMORY_SHARE)


def _save_config(table: TopicTable | SubscriptionGroups, *, is_synced: bool) -> None:
    """A disk that takes nothing does not stop a broker from serving what it has."""
    try:
        table.save(is_synced=is_synced)
    except OSError as error:
        logger.error("a configuration file could not be written: %s", error)


async def _repeat(interval_s: float, action: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(interval_s)
        try:
            action()
        except Exception:
            # The broker goes on; the next round may succeed.
            logger.exception("a periodic task of the broker failed")
