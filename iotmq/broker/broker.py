"""The broker role: its parts, how they are wired, and what happens when it starts and stops."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from iotmq.broker.access.acl import Guard, open_access_control
from iotmq.broker.administration import Administration
from iotmq.broker.consuming import Consuming
from iotmq.broker.exactly_once.received_ids import ReceivedIds
from iotmq.broker.exactly_once.stored_once import StoredOnce
from iotmq.broker.handlers.admin.runtime_info import RuntimeInfo
from iotmq.broker.handlers.mqtt.gateway import LocalGateway
from iotmq.broker.handlers.mqtt.local_sessions import LocalSessions
from iotmq.broker.handlers.native.offsets import OffsetHandler
from iotmq.broker.members.groups import Groups
from iotmq.broker.mqtt_parts import MqttParts
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.registration.service import RegistrationService
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.replies.reply_after_registration import RepliesAfterRegistration
from iotmq.broker.replies.request_table import RequestProcessor, RequestTable
from iotmq.broker.scheduled.timers import Timers
from iotmq.broker.sending import Sending
from iotmq.broker.settings import BrokerSettings, QueueLimits
from iotmq.broker.shares.share_group import Strategy
from iotmq.broker.shares.shares import ShareSettings
from iotmq.broker.statistics.rates import SAMPLE_INTERVAL_S
from iotmq.broker.statistics.statistics import Statistics
from iotmq.broker.tables.changed_settings import ChangedSettings
from iotmq.broker.tables.consumed import ConsumedPosition
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets
from iotmq.broker.tables.subscription_groups import SubscriptionGroups
from iotmq.broker.tables.system_topics import make_system_topics, system_topic_names
from iotmq.broker.tables.table_files import TableFiles
from iotmq.broker.tables.topic_recovery import recall_topics
from iotmq.broker.tables.topics import HALF_TOPIC, SCHEDULE_TOPIC, TopicTable
from iotmq.broker.views import Views
from iotmq.broker.writing.last_flushes import finish_flushes
from iotmq.broker.writing.message_writer import MessageWriter
from iotmq.clock import Clock, SystemClock
from iotmq.metrics import Metric
from iotmq.remoting.server import RemotingServer, RequestHandler
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
# A queue whose first record is within this share of the memory counts as young (wire document 9.3).
_YOUNG_MEMORY_SHARE: Final = 0.4


class Broker:
    """Serves one store to native clients, and through `writer` to front ends in the same process.

    The store is opened and closed by who composes the process; everything else of the broker starts
    with `start` and ends with `stop`. Parts other modules build on: `writer`, `topics`, `groups`,
    `offsets`, and `requests`, to which further processors of request codes may be added before `start`.
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
        config = directory / "config"
        self._changed_settings = ChangedSettings(config / "brokerSettings.json", settings, store.settings)
        settings = self._changed_settings.broker
        self._settings = settings
        self._store = store
        host = store_host or resolve_store_host(settings)
        self.topics = TopicTable(config / "topics.json", clock)
        self.subscription_groups = SubscriptionGroups(
            config / "subscriptionGroup.json", clock, may_create=settings.auto_create_groups
        )
        self.offsets = ConsumerOffsets(config / "consumerOffset.json")
        self.access = open_access_control(settings, store, default_file=config / "plain_acl.yml")
        self.groups = Groups(clock, expiry_s=settings.client_expiry_s)
        self.statistics = Statistics(clock)
        self.writer = MessageWriter(
            store,
            self.topics,
            clock,
            directory=directory,
            default_topic_queues=settings.default_topic_queues,
            flush_timeout_s=store.settings.sync_flush_timeout_ms / 1000,
            statistics=self.statistics,
        )
        received = ReceivedIds(store.key_values())
        store.add_projection(received)
        received.end_append({}, store.appended_position)
        self.stored_once = StoredOnce(self.writer, received, host=host)
        cold_reads = ColdReads(
            store, threads_max=settings.cold_read_threads, waiting_max=settings.cold_reads_max
        )
        self._sending = Sending(
            store,
            self.writer,
            self.topics,
            self.groups,
            self.subscription_groups,
            self.offsets,
            self.statistics,
            self.stored_once,
            cold_reads,
            clock,
            settings,
            host=host,
            delay_offsets=config / "delayOffset.json",
            when_told=self._when_told,
        )
        self._consuming = Consuming(
            store,
            self.writer,
            self.topics,
            self.groups,
            self.subscription_groups,
            self.offsets,
            self.statistics,
            cold_reads,
            clock,
            settings,
            host=host,
            filters_file=config / "consumerFilter.json",
        )
        self.consumer_filters = self._consuming.filters
        self.locks = self._consuming.locks
        self.holds = self._consuming.holds
        self._runtime_info = RuntimeInfo(
            store,
            self.writer,
            self._consuming.pulls,
            cold_reads,
            self.statistics,
            clock,
            directory=directory,
            cold_reads_max=settings.cold_reads_max,
            delay_progress=self._sending.delays.progress,
        )
        system_names = system_topic_names(settings)
        self._views = Views(
            store,
            self.topics,
            self.groups,
            self.offsets,
            self.statistics,
            cold_reads,
            clock,
            broker_name=settings.name,
            cluster=settings.cluster,
            system_topics=system_names,
            relay_timeout_s=settings.relay_timeout_s,
            address=lambda: self.address,
        )
        self._administration = Administration(
            store,
            self.topics,
            self.groups,
            self.subscription_groups,
            self.offsets,
            self._sending.delays,
            self.access,
            self._changed_settings,
            self._views.long_answers,
            clock,
            system_topics=system_names,
            runtime_info=self._runtime_info.table,
            address=lambda: self.address,
            apply_settings=self._apply_settings,
        )
        self._mqtt = MqttParts(
            store,
            self.writer,
            self.topics,
            self.timers,
            self._sending.device_replies,
            self.stored_once,
            cold_reads,
            clock,
            host=host,
            retained_messages_max=settings.retained_messages_max,
            retained_bytes_max=settings.retained_bytes_max,
            is_writable=settings.is_writable,
            share_settings=ShareSettings(
                strategy=Strategy(settings.shared_strategy),
                timeout_s=settings.shared_timeout_s,
                groups_max=settings.shared_groups_max,
                members_max=settings.shared_members_max,
                in_flight_max=settings.shared_in_flight_max,
            ),
            exclusives_max=settings.exclusive_subscriptions_max,
            session_limits=QueueLimits(
                messages_max=settings.session_queue_messages_max,
                bytes_max=settings.session_queue_bytes_max,
                age_s_max=settings.session_queue_age_s_max,
                policy=settings.session_queue_policy,
            ),
            wide_percent=settings.wide_filter_percent,
            wide_window_records=settings.wide_filter_window_records,
        )
        self.delivery = self._mqtt.delivery
        self.sessions = self._mqtt.sessions
        processors: list[RequestProcessor] = [
            *self._sending.processors,
            *self._consuming.processors,
            *self._views.processors,
            OffsetHandler(
                store,
                self.topics,
                self.offsets,
                self._views.long_answers,
                young_bytes_max=_young_bytes_max(),
            ),
            *self._administration.processors,
            *self._mqtt.processors,
        ]
        self.requests = RequestTable(
            processors,
            take_run=self._sending.sends.take_run,
            take_pull=self._consuming.pulls.take_pull,
            settle=self.writer.settle,
        )
        self._files = TableFiles(
            self.topics,
            self.subscription_groups,
            self._changed_settings,
            [self.offsets, self.consumer_filters, self._sending.delays],
            interval_s=settings.offsets_interval_s,
        )
        announced = RepliesAfterRegistration(
            self.requests, self.topics, when_told=self._when_told, when_saved=self._files.when_saved
        )
        handler: RequestHandler = announced
        handle_run = self.requests.handle_run
        if self.access is not None:
            handler = guard = Guard(announced, handle_run, self.access, store, cold_reads)
            handle_run = guard.handle_run
        self._server = RemotingServer(
            handler,
            host=settings.listen_host,
            port=settings.listen_port,
            idle_s=settings.idle_s,
            connections_max=settings.connections_max,
            clock=clock,
            name="broker",
            handle_run=handle_run,
            tls=server_tls(settings),
        )
        self._presence = RegistrationService(
            settings,
            self.topics,
            port=lambda: self.port,
            takes_strangers=self.access is None and settings.tls_mode != "enforcing",
            runtime_info=self._runtime_info.table,
        )
        self._work: list[asyncio.Task[None]] = []
        # Nobody consumes what the broker writes there.
        own_topics = system_names - {SCHEDULE_TOPIC, HALF_TOPIC}
        self.consumed = ConsumedPosition(
            store,
            self.offsets,
            delivered=self._sending.delays.delivered,
            ignored_topics=own_topics,
            is_read=self._is_read,
        )
        store.consumed_position = lambda: self.consumed.position

    def local_gateway(self) -> LocalGateway:
        """The way to this broker for an MQTT front end in the same process."""
        return self._mqtt.local_gateway()

    def local_sessions(self, name: str) -> LocalSessions:
        """Sessions for an MQTT front end in the same process, which other front ends know as `name`."""
        return self._mqtt.local_sessions(name)

    @property
    def timers(self) -> Timers:
        """Messages that wait for a time: scheduling, cancelling and listing them."""
        return self._sending.delays.timers

    @property
    def port(self) -> int:
        """The port listened on."""
        return self._server.port

    @property
    def address(self) -> str:
        """host:port that registries and clients are told."""
        return self._presence.address

    @property
    def not_ready_reason(self) -> str | None:
        """None while clients can find this broker, else why they cannot."""
        return self._presence.not_ready_reason

    async def wait_registered(self, timeout_s: float) -> None:
        """Return once clients can find this broker; TimeoutError when no registry answers in time."""
        await self._presence.wait_registered(timeout_s)

    async def start(self) -> None:
        """Listen and register. OSError when the port is taken, StoreError when a config file is broken."""
        settings = self._settings
        if self._changed_settings.store != self._store.settings:
            self._store.change_retention(self._changed_settings.store)
        self._administration.resume()
        make_system_topics(self.topics, settings)
        if not self._store.recovery.was_clean:
            recall_topics(self._store, self.topics, default_topic_queues=settings.default_topic_queues)
        clamped = self.offsets.clamp(self._end_of)
        if clamped:
            logger.warning("%d consumer offsets were past the end of their queues and were set back", clamped)
        self._files.save_topics()
        self.topics.add_listener(self._on_topic_changed)
        self.subscription_groups.add_listener(self._on_group_changed)
        self._sending.restore()
        await self._server.start()
        self.writer.open()
        self._sending.start()
        self._presence.start()
        self._work = [supervise(name, work) for name, work in self._repeated_work()]
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
        self._mqtt.finish()
        self.writer.close()
        await end(self._work)
        await self._administration.finish_removals()
        await self._presence.stop()
        await finish_flushes(self.writer, self._store)
        self.writer.finish()
        self._views.stop()
        self._mqtt.stop()
        self._consuming.stop()
        self._sending.stop()
        await self._server.stop()
        self._files.save_all()
        await self._administration.finish_account_changes()

    def expire(self) -> None:
        """Do everything whose time has come by the clock; timers do it anyway, tests move the clock."""
        self._consuming.pulls.expire()
        self._sending.expire()
        self._mqtt.expire()
        self.writer.expire()
        self._expire()

    def sample(self) -> None:
        """Take the copies that statistics and rates compare with; a timer does it, tests move the clock."""
        self.statistics.sample()
        self._runtime_info.sample()

    def metrics(self) -> Iterable[Metric]:
        for part in (
            self._server,
            self.requests,
            self.writer,
            self._sending,
            self._consuming,
            self.topics,
            self.subscription_groups,
            self.groups,
            self.offsets,
            self._mqtt,
            self.statistics,
            self._views,
            self._presence,
            self._files,
        ):
            yield from part.metrics()
        if self.access is not None:
            yield from self.access.metrics()

    def _repeated_work(self) -> Iterable[tuple[str, Callable[[], Awaitable[None]]]]:
        """What goes on until the broker stops, and the names it has in metrics."""
        for save in self._files.savers():
            yield "saving of tables", save
        yield "check of the address", self._presence.check_address
        yield "expiry of clients", partial(repeat, _EXPIRY_SCAN_S, self._expire)
        yield "statistics", partial(repeat, SAMPLE_INTERVAL_S, self.sample)
        yield "consumed positions", self.consumed.look_repeatedly
        yield "retention", partial(repeat, _RETENTION_SCAN_S, self._store.retain)
        yield "expiry of sessions", partial(repeat, _SESSION_SCAN_S, self._mqtt.expire)
        yield "delayed messages", partial(repeat, _RETENTION_SCAN_S, self._sending.delays.roll)
        if self.access is not None:
            interval_s = self._settings.acl_reload_interval_s
            yield "accounts", partial(self.access.reload_repeatedly, interval_s)

    def _expire(self) -> None:
        self._consuming.expire()
        self._administration.clean()

    def _apply_settings(self) -> None:
        """Let every part have the values that changed while the broker runs."""
        settings = self._settings = self._changed_settings.broker
        self._sending.apply_settings(settings)
        self._mqtt.apply_settings(settings)
        self._consuming.apply_settings(settings)
        self.subscription_groups.may_create = settings.auto_create_groups
        self.groups.expiry_s = settings.client_expiry_s
        self.writer.default_topic_queues = settings.default_topic_queues
        self._files.interval_s = settings.offsets_interval_s
        if self._changed_settings.store != self._store.settings:
            self._store.change_retention(self._changed_settings.store)
        make_system_topics(self.topics, settings)
        self._presence.apply_settings(settings)

    def _end_of(self, topic: str, queue_id: int) -> int | None:
        queue = self._store.find_queue(topic, queue_id)
        return None if queue is None else queue.max_offset

    def _is_read(self, queue: Queue) -> bool:
        topic = self.topics.find(queue.topic)
        return topic is None or queue.queue_id < topic.read_queue_nums

    def _on_topic_changed(self, name: str) -> None:
        if self.topics.find(name) is None:
            self.statistics.forget_topic(name)
        self._presence.topics_changed()

    def _when_told(self, call: Callable[[], None]) -> None:
        self._presence.when_told(call)

    def _on_group_changed(self, name: str) -> None:
        if self.subscription_groups.find(name) is None:
            self.statistics.forget_group(name)


def _young_bytes_max() -> int:
    return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * _YOUNG_MEMORY_SHARE)
