"""Sessions for an MQTT front end in the same process, and the way of a will into the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from iotmq.broker.delayed_batches import DelayedBatches
from iotmq.broker.delivery import Delivery
from iotmq.broker.intake import Intake, IntakeError, StoredBatch
from iotmq.broker.retained import RetainedProjection
from iotmq.broker.sessions import SessionChannel, Sessions
from iotmq.client.session_ports import (
    CloseRequest,
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
    SubscribeRequest,
    UnsubscribeRequest,
    Will,
)
from iotmq.clock import Clock
from iotmq.message.errors import MessageFormatError
from iotmq.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

_NO_QUEUE = Refused(ResponseCode.QUERY_NOT_FOUND, "nobody subscribes that filter any more")


class LocalSessions:
    """`client.session_ports.SessionPort` as method calls on the broker of the same process."""

    def __init__(self, sessions: Sessions, retained: RetainedProjection, *, name: str) -> None:
        self._sessions = sessions
        self._retained = retained
        self._name = name
        # Set by start().
        self._channel: SessionChannel | None = None

    async def start(self, receiver: SessionReceiver) -> None:
        """Tell `receiver` about the sessions opened from now on."""
        self._channel = self._sessions.open_channel(self._name, receiver)

    async def stop(self) -> None:
        """Give the sessions up that were not closed."""
        if self._channel is not None:
            self._sessions.close_channel(self._channel)
            self._channel = None

    @property
    def _open_channel(self) -> SessionChannel:
        assert self._channel is not None, "start() was not called"
        return self._channel

    def open_session(self, request: OpenRequest, done: Callable[[OpenedSession | Refused], None]) -> None:
        self._sessions.open_session(self._open_channel, request, done)

    def subscribe(
        self, request: SubscribeRequest, done: Callable[[list[SessionSubscription] | Refused], None]
    ) -> None:
        self._sessions.subscribe(self._open_channel, request, done)

    def unsubscribe(self, request: UnsubscribeRequest, done: Callable[[Refused | None], None]) -> None:
        self._sessions.unsubscribe(self._open_channel, request, done)

    def progress(self, changes: Sequence[SessionProgress], done: Callable[[Refused | None], None]) -> None:
        self._sessions.progress(self._open_channel, changes, done)

    def close_session(self, request: CloseRequest) -> None:
        self._sessions.close_session(self._open_channel, request)

    def read_queue(self, request: QueueRead, done: Callable[[QueueRecords | Refused], None]) -> None:
        try:
            found: QueueRecords | Refused = self._sessions.read_queue(request)
        except KeyError:
            found = _NO_QUEUE
        done(found)

    def read_retained(self, request: RetainedRead, done: Callable[[RetainedRecords | Refused], None]) -> None:
        page = self._retained.find(
            request.topic_filter,
            after=request.after,
            records_max=request.records_max,
            bytes_max=request.bytes_max,
        )
        done(RetainedRecords(page.records, page.after))


class WillPublisher:
    """Stores the wills of clients that vanished, or delivers those whose route does not store."""

    def __init__(
        self, intake: Intake, delayed: DelayedBatches, delivery: Delivery, clock: Clock, *, host: bytes
    ) -> None:
        self._intake = intake
        self._delayed = delayed
        self._delivery = delivery
        self._clock = clock
        self._host = host

    def publish(self, will: Will) -> None:
        """Publish a will; one that cannot be is in the log of this process."""
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
        self._intake.append(
            will.topic,
            will.queue_id,
            will.elements,
            born_timestamp_ms=now_ms,
            born_host=self._host,
            done=_look_at,
            is_patient=True,
        )


def _look_at(result: StoredBatch | IntakeError) -> None:
    if isinstance(result, IntakeError):
        logger.warning("a will is not published: %s", result.remark)
