"""Sessions for an MQTT front end in the same process, and the way of a will into the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from iotmq.broker.delivery.delivery import LiveDelivery
from iotmq.broker.delivery.retained_reads import RetainedReads
from iotmq.broker.parts import BrokerParts
from iotmq.broker.scheduled.delayed_batches import DelayedBatches
from iotmq.broker.session_store.channel import SessionChannel
from iotmq.broker.sessions.sessions import Sessions
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.message.errors import MessageFormatError
from iotmq.ports.sessions import (
    ClientCounts,
    CloseRequest,
    ExclusiveClaim,
    OpenedSession,
    OpenRequest,
    QueueRead,
    QueueRecords,
    Refused,
    RetainedRead,
    RetainedRecords,
    SessionProgress,
    SessionReceiver,
    SessionSubscription,
    ShareJoin,
    ShareReceiver,
    ShareReport,
    SubscribeRequest,
    UnsubscribeRequest,
    Will,
)

logger = logging.getLogger(__name__)


class LocalSessions:
    """`ports.sessions.SessionPort` as method calls on the broker of the same process."""

    def __init__(self, sessions: Sessions, retained: RetainedReads, *, name: str) -> None:
        self._sessions = sessions
        self._retained = retained
        self._name = name
        self._members = _LocalMembers()
        # Set by start().
        self._channel: SessionChannel | None = None

    def serve_shares(self, receiver: ShareReceiver) -> None:
        self._members.receiver = receiver

    async def start(self, receiver: SessionReceiver) -> None:
        """Tell `receiver` about the sessions opened from now on."""
        self._channel = self._sessions.open_channel(self._name, receiver, self._members)

    async def stop(self) -> None:
        """Give the sessions up that were not closed."""
        if self._channel is not None:
            self._sessions.close_channel(self._channel)
            self._channel = None

    @property
    def channel(self) -> SessionChannel:
        """Return the connection to the sessions, which there is from `start` to `stop`."""
        assert self._channel is not None, "start() was not called"
        return self._channel

    def open_session(self, request: OpenRequest, done: Callable[[OpenedSession | Refused], None]) -> None:
        self._sessions.open_session(self.channel, request, done)

    def subscribe(
        self, request: SubscribeRequest, done: Callable[[list[SessionSubscription] | Refused], None]
    ) -> None:
        self._sessions.subscribe(self.channel, request, done)

    def unsubscribe(self, request: UnsubscribeRequest, done: Callable[[Refused | None], None]) -> None:
        self._sessions.unsubscribe(self.channel, request, done)

    def claim_exclusive(self, request: ExclusiveClaim, done: Callable[[list[Refused | None]], None]) -> None:
        self._sessions.claim_exclusive(self.channel, request, done)

    def report_draining(self, *, is_draining: bool) -> None:
        self.channel.is_draining = is_draining

    def report_clients(self, counts: Sequence[ClientCounts], done: Callable[[Refused | None], None]) -> None:
        self._sessions.count_clients(counts)
        done(None)

    def progress(self, changes: Sequence[SessionProgress], done: Callable[[Refused | None], None]) -> None:
        self._sessions.progress(self.channel, changes, done)

    def close_session(self, request: CloseRequest) -> None:
        self._sessions.close_session(self.channel, request)

    def read_queue(self, request: QueueRead, done: Callable[[QueueRecords | Refused], None]) -> None:
        self._sessions.read_queue(request, done)

    def join_shares(
        self, source: int | None, joins: Sequence[ShareJoin], done: Callable[[list[Refused | None]], None]
    ) -> None:
        self._sessions.join_shares(self.channel, joins, done)

    def report_shares(
        self, source: int, reports: Sequence[ShareReport], done: Callable[[Refused | None], None]
    ) -> None:
        done(self._sessions.report_shares(self.channel, reports))

    def read_retained(self, request: RetainedRead, done: Callable[[RetainedRecords | Refused], None]) -> None:
        self._retained.read(request, done)


class _LocalMembers:
    """The members of shared subscriptions at the front end of this process (ports.sessions.ShareOutlet)."""

    is_congested = False

    def __init__(self) -> None:
        # Set by serve_shares(), before anybody can join.
        self.receiver: ShareReceiver | None = None

    def call_when_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def hand_out(self, handouts: Sequence[tuple[int, int]], records: Sequence[memoryview]) -> None:
        if self.receiver is not None:
            self.receiver.hand_out(0, handouts, records)

    def withdraw(self, positions: Sequence[tuple[int, int]]) -> None:
        if self.receiver is not None:
            self.receiver.withdraw(0, positions)


class WillPublisher:
    """Stores the wills of clients that vanished, or delivers those whose route does not store."""

    def __init__(self, parts: BrokerParts, delayed: DelayedBatches, delivery: LiveDelivery) -> None:
        self._writer = parts.writer
        self._delayed = delayed
        self._delivery = delivery
        self._clock = parts.clock
        self._host = parts.host

    def publish(self, will: Will) -> None:
        """Publish a will, or write a log line that it cannot be published."""
        now_ms = self._clock.now_ms()
        if will.is_delayed:
            self._delayed.append(
                will.topic, will.queue_id, will.elements, born_host=self._host, done=_look_at
            )
            return
        if not will.is_stored:
            try:
                self._delivery.publish_transient(
                    will.elements, will.topic.encode(), will.queue_id, now_ms=now_ms, host=self._host
                )
            except MessageFormatError as error:
                logger.warning("a will is not published: %s", error)
            return
        self._writer.append(
            will.topic,
            will.queue_id,
            will.elements,
            born_timestamp_ms=now_ms,
            born_host=self._host,
            done=_look_at,
            is_patient=True,
        )


def _look_at(result: StoredBatch | RefusedBatch) -> None:
    if isinstance(result, RefusedBatch):
        logger.warning("a will is not published: %s", result.remark)
