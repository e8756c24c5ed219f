"""Assemble the request processors of MQTT front ends: delivery, kept sessions, retained messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from iotmq.broker.delivery.delivery import LiveDelivery
from iotmq.broker.delivery.delivery_catch_up import DeliveryCatchUp
from iotmq.broker.delivery.retained import RetainedProjection
from iotmq.broker.delivery.retained_reads import RetainedReads
from iotmq.broker.delivery.stored_traces import StoredTraces
from iotmq.broker.handlers.mqtt.gateway import GatewayHandler, LocalGateway
from iotmq.broker.handlers.mqtt.inspected_sessions import InspectedSessions
from iotmq.broker.handlers.mqtt.inspections import InspectionHandler
from iotmq.broker.handlers.mqtt.local_sessions import LocalSessions, WillPublisher
from iotmq.broker.handlers.mqtt.session_views import SessionViewsHandler
from iotmq.broker.handlers.mqtt.sessions import SessionHandler
from iotmq.broker.parts import BrokerParts
from iotmq.broker.questions.device_replies import DeviceReplies
from iotmq.broker.replies.request_table import RequestProcessor
from iotmq.broker.scheduled.delayed_batches import DelayedBatches
from iotmq.broker.scheduled.timers import Timers
from iotmq.broker.session_store.projection import SessionProjection
from iotmq.broker.session_store.queue_reader import LightQueueReader
from iotmq.broker.sessions.sessions import Sessions
from iotmq.metrics import Metric
from iotmq.telemetry.tracing import tracing


class MqttProcessors:
    """`processors` are for the request table; the projections are the store's from here on."""

    def __init__(self, parts: BrokerParts, timers: Timers, device_replies: DeviceReplies) -> None:
        settings, store = parts.settings, parts.store
        self._parts = parts
        self._device_replies = device_replies
        self._delayed_batches = DelayedBatches(timers, parts.writer, parts.clock)
        self.delivery = LiveDelivery(
            applied_position=store.confirmed_position,
            call_soon=lambda callback: asyncio.get_running_loop().call_soon(callback),
        )
        store.add_projection(self.delivery)
        self._traces: StoredTraces | None = None
        if (traced := tracing()) is not None:
            self._traces = StoredTraces(
                traced, parts.statistics.put_histogram.note, applied_position=store.confirmed_position
            )
            store.add_projection(self._traces)
        self.retained = RetainedProjection(
            store.key_values(),
            parts.clock,
            messages_max=settings.retained_messages_max,
            bytes_max=settings.retained_bytes_max,
        )
        store.add_projection(self.retained)
        self._retained_reads = RetainedReads(self.retained)
        session_projection = SessionProjection(
            store.key_values(),
            # What waits for a session is counted by entries.
            wide_percent=0 if settings.session_limits.has_any else settings.wide_filter_percent,
            wide_window_records=settings.wide_filter_window_records,
        )
        store.add_projection(session_projection)
        self.sessions = Sessions(
            parts,
            session_projection,
            LightQueueReader(session_projection, store, parts.cold_reads),
            publish=WillPublisher(parts, self._delayed_batches, self.delivery).publish,
        )
        catch_up = DeliveryCatchUp(self.delivery, store, parts.cold_reads)
        self._gateway = GatewayHandler(parts, self._delayed_batches, self.delivery, catch_up)
        self.session_requests = SessionHandler(self.sessions, self._retained_reads, parts.writer)
        InspectedSessions(self.sessions).add_to(parts.inspections)
        self._inspections = InspectionHandler(self.sessions.front_ends, parts.inspections)
        self.processors: list[RequestProcessor] = [
            self._gateway,
            self.session_requests,
            SessionViewsHandler(self.sessions),
            self._inspections,
        ]

    def local_gateway(self) -> LocalGateway:
        """Return the way to this broker for an MQTT front end in the same process."""
        return LocalGateway(self._parts, self._delayed_batches, self._device_replies, self.delivery)

    def local_sessions(self, name: str) -> LocalSessions:
        """Sessions for an MQTT front end in the same process, which other front ends know as `name`."""
        return LocalSessions(self.sessions, self._retained_reads, name=name)

    def start(self) -> None:
        """Wait for front ends to come back; before the first request."""
        self._parts.stored_once.start()
        if self._traces is not None:
            self._traces.is_leading = True
        self.sessions.start()

    def save_progress(self) -> None:
        """Tell the log what only memory knows."""
        self.sessions.shares.save_now()

    def finish(self) -> None:
        """The log is about to take nothing more: it is told what only memory knows."""
        self.sessions.shares.finish()

    def tidy(self) -> None:
        """Drop from memory and database what nobody needs any more; called about once a second.

        For a broker that follows: `expire` does it, too.
        """
        self.sessions.tidy()
        self.retained.sweep()

    def expire(self) -> None:
        """Do what is due; called about once a second."""
        self.sessions.expire()
        self.retained.sweep()

    def stop(self) -> None:
        """Stop the timers: nothing more is done by itself."""
        self._parts.inspections.stop()
        self.sessions.stop()

    def metrics(self) -> Iterable[Metric]:
        yield from self._gateway.metrics()
        yield from self._parts.stored_once.metrics()
        yield from self.session_requests.metrics()
        yield from self.sessions.metrics()
        yield from self._inspections.metrics()
        yield from self.retained.metrics()
