"""What a broker has for MQTT front ends, put together: delivery, durable sessions, retained messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from iotmq.broker.delivery.delivery import Delivery
from iotmq.broker.delivery.delivery_catch_up import DeliveryCatchUp
from iotmq.broker.delivery.retained import RetainedProjection
from iotmq.broker.delivery.retained_reads import RetainedReads
from iotmq.broker.exactly_once.stored_once import StoredOnce
from iotmq.broker.handlers.mqtt.exclusives import ExclusiveHandler
from iotmq.broker.handlers.mqtt.front_ends import FrontEndHandler
from iotmq.broker.handlers.mqtt.gateway import GatewayHandler, LocalGateway
from iotmq.broker.handlers.mqtt.local_sessions import LocalSessions, WillPublisher
from iotmq.broker.handlers.mqtt.session_views import SessionViewsHandler
from iotmq.broker.handlers.mqtt.sessions import SessionHandler
from iotmq.broker.handlers.mqtt.shares import ShareHandler
from iotmq.broker.questions.device_replies import DeviceReplies
from iotmq.broker.replies.cold_reads import ColdReads
from iotmq.broker.replies.request_table import RequestProcessor
from iotmq.broker.scheduled.delayed_batches import DelayedBatches
from iotmq.broker.scheduled.timers import Timers
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.session_store.queue_reader import QueueReader
from iotmq.broker.sessions.sessions import Sessions
from iotmq.broker.settings import BrokerSettings, QueueLimits
from iotmq.broker.shares.shares import ShareSettings
from iotmq.broker.tables.topics import TopicTable
from iotmq.broker.writing.message_writer import MessageWriter
from iotmq.clock import Clock
from iotmq.metrics import Metric
from iotmq.store.store import Store


class MqttParts:
    """`processors` are for the request table; the projections are the store's from here on."""

    def __init__(
        self,
        store: Store,
        writer: MessageWriter,
        topics: TopicTable,
        timers: Timers,
        device_replies: DeviceReplies,
        stored_once: StoredOnce,
        cold_reads: ColdReads,
        clock: Clock,
        *,
        host: bytes,
        retained_messages_max: int,
        retained_bytes_max: int,
        is_writable: bool,
        share_settings: ShareSettings,
        session_limits: QueueLimits,
        exclusives_max: int,
        wide_percent: int,
        wide_window_records: int,
    ) -> None:
        """`host` is what records carry as the host they were stored at."""
        self._writer = writer
        self._topics = topics
        self._device_replies = device_replies
        self._stored_once = stored_once
        self._clock = clock
        self._host = host
        self._record_bytes_max = store.settings.record_bytes_max
        self._delayed_batches = DelayedBatches(timers, writer, clock)
        self.delivery = Delivery(
            applied_position=store.confirmed_position,
            call_soon=lambda callback: asyncio.get_running_loop().call_soon(callback),
        )
        store.add_projection(self.delivery)
        self.retained = RetainedProjection(
            store.key_values(),
            clock,
            messages_max=retained_messages_max,
            bytes_max=retained_bytes_max,
        )
        store.add_projection(self.retained)
        self._retained_reads = RetainedReads(self.retained)
        session_projection = SessionProjection(
            store.key_values(),
            # What waits for a session is counted by entries.
            wide_percent=0 if session_limits.has_any else wide_percent,
            wide_window_records=wide_window_records,
        )
        store.add_projection(session_projection)
        self.sessions = Sessions(
            session_projection,
            QueueReader(session_projection, store, cold_reads),
            store,
            writer,
            clock,
            host=host,
            publish=WillPublisher(writer, self._delayed_batches, self.delivery, clock, host=host).publish,
            forget_packet_ids=lambda client_id: stored_once.forget(client_id, now_ms=clock.now_ms()),
            share_settings=share_settings,
            limits=session_limits,
            exclusives_max=exclusives_max,
        )
        self._gateway = GatewayHandler(
            writer,
            self._delayed_batches,
            stored_once,
            self.delivery,
            DeliveryCatchUp(self.delivery, store.recent_records),
            host=host,
            record_bytes_max=self._record_bytes_max,
            clock=clock,
            is_writable=is_writable,
        )
        self.session_requests = SessionHandler(self.sessions, self._retained_reads, writer)
        self.processors: list[RequestProcessor] = [
            self._gateway,
            self.session_requests,
            SessionViewsHandler(self.sessions),
            ShareHandler(self.sessions, self.session_requests.channel_of),
            FrontEndHandler(self.sessions),
            ExclusiveHandler(self.sessions, self.session_requests.channel_of),
        ]

    def local_gateway(self) -> LocalGateway:
        """The way to this broker for an MQTT front end in the same process."""
        return LocalGateway(
            self._writer,
            self._delayed_batches,
            self._stored_once,
            self._device_replies,
            self._topics,
            self.delivery,
            host=self._host,
            record_bytes_max=self._record_bytes_max,
            clock=self._clock,
            is_writable=lambda: self._gateway.is_writable,
        )

    def local_sessions(self, name: str) -> LocalSessions:
        """Sessions for an MQTT front end in the same process, which other front ends know as `name`."""
        return LocalSessions(self.sessions, self._retained_reads, name=name)

    def apply_settings(self, settings: BrokerSettings) -> None:
        """Take the values that may change while the broker runs."""
        self._gateway.is_writable = settings.is_writable

    def finish(self) -> None:
        """The log is about to take nothing more: it is told what only memory knows."""
        self.sessions.shares.finish()

    def expire(self) -> None:
        """Do what is due; called about once a second."""
        self.sessions.expire()
        self.retained.sweep()

    def stop(self) -> None:
        """Nothing more is done by itself."""
        self.sessions.stop()

    def metrics(self) -> Iterable[Metric]:
        yield from self._gateway.metrics()
        yield from self._stored_once.metrics()
        yield from self.session_requests.metrics()
        yield from self.sessions.metrics()
        yield from self.retained.metrics()
