"""Sessions for an MQTT front end in the same process, and the way of a will into the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from iotmq.broker.delivery import Delivery
from iotmq.broker.intake import Intake, IntakeError, StoredBatch
from iotmq.broker.retained import RetainedProjection
from iotmq.broker.sessions import SessionChannel, Sessions
from iotmq.client.session_ports import (
    OpenedSession,
    QueueRecords,
    Refused,
    RetainedRecords,
    SessionProgress,
    SessionReceiver,
    SessionSubscription,
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

    def open_session(
        self,
        client_id: str,
        *,
        is_clean: bool,
        expiry_s: int,
        will: Will | None,
        done: Callable[[OpenedSession | Refused], None],
    ) -> None:
        self._sessions.open_session(
            self._open_channel, client_id, is_clean=is_clean, expiry_s=expiry_s, will=will, done=done
        )

    def subscribe(
        self,
        client_id: str,
        epoch: int,
        subscriptions: Sequence[tuple[str, int]],
        done: Callable[[list[SessionSubscription] | Refused], None],
    ) -> None:
        self._sessions.subscribe(self._open_channel, client_id, epoch, subscriptions, done)

    def unsubscribe(
        self, client_id: str, epoch: int, filters: Sequence[str], done: Callable[[Refused | None], None]
    ) -> None:
        self._sessions.unsubscribe(self._open_channel, client_id, epoch, filters, done)

    def progress(self, changes: Sequence[SessionProgress], done: Callable[[Refused | None], None]) -> None:
        self._sessions.progress(self._open_channel, changes, done)

    def close_session(self, client_id: str, epoch: int, *, expiry_s: int, drops_will: bool) -> None:
        self._sessions.close_session(
            self._open_channel, client_id, epoch, expiry_s=expiry_s, drops_will=drops_will
        )

    def read_queue(
        self,
        queue_id: int,
        position: int,
        *,
        records_max: int,
        bytes_max: int,
        done: Callable[[QueueRecords | Refused], None],
    ) -> None:
        try:
            found: QueueRecords | Refused = self._sessions.read_queue(
                queue_id, position, records_max=records_max, bytes_max=bytes_max
            )
        except KeyError:
            found = _NO_QUEUE
        done(found)

    def read_retained(
        self,
        topic_filter: str,
        *,
        after: str | None,
        records_max: int,
        bytes_max: int,
        done: Callable[[RetainedRecords | Refused], None],
    ) -> None:
        page = self._retained.find(topic_filter, after=after, records_max=records_max, bytes_max=bytes_max)
        done(RetainedRecords(page.records, page.after))


class WillPublisher:
    """Stores the wills of clients that vanished, or delivers those whose route does not store."""

    def __init__(self, intake: Intake, delivery: Delivery, clock: Clock, *, host: bytes) -> None:
        self._intake = intake
        self._delivery = delivery
        self._clock = clock
        self._host = host

    def publish(self, will: Will) -> None:
        """Publish a will; one that cannot be is in the log of this process."""
        now_ms = self._clock.now_ms()
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
