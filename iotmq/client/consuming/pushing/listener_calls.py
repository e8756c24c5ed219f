"""Call a listener with batches, again when it fails, and send failed messages back to their broker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeAlias

from iotmq.backoff import Backoff
from iotmq.client.consuming.consumption import Consumption
from iotmq.client.consuming.pushing.delivery import Delivery, delay_level
from iotmq.client.consuming.pushing.probing import Probing
from iotmq.client.consuming.pushing.queue_reader import Batch
from iotmq.client.consuming.pushing.send_to_retry_topic import send_to_retry_topic
from iotmq.client.transport.application_calls import call_application
from iotmq.client.transport.calls import ask, broker_address
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.message import ReceivedMessage, Settlement
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import PushConsumerSettings
from iotmq.errors import IotmqError, ListenerError, ListenerResultError, ListenerTimeoutError
from iotmq.message.hosts import decode_host
from iotmq.message.message_ids import offset_message_id
from iotmq.message.records.columns import Columns
from iotmq.remoting.codes import RequestCode

_log = logging.getLogger(__name__)

Failed: TypeAlias = Iterable[ReceivedMessage] | None
Listener: TypeAlias = Callable[[list[ReceivedMessage]], Failed | Awaitable[Failed]]
"""Gets a batch of one queue. Returns None when all are consumed, or those that failed; raising fails all."""
ColumnsListener: TypeAlias = Callable[[MessageQueue, Columns], Awaitable[None] | None]
"""Gets the messages of one pull as columns. Raising fails all of them."""

_LOCAL_RETRY_FACTOR_MAX: Final = 30
_BROADCAST_TRIES_MAX: Final = 16


class ListenerCalls:
    """Call one consumer's listener, of either kind, and count the results in `consumption`."""

    def __init__(
        self,
        client: ClientTransport,
        group: str,
        consumption: Consumption,
        *,
        listener: Listener | None,
        columns_listener: ColumnsListener | None,
        settings: PushConsumerSettings,
    ) -> None:
        self.group = group
        """The consumer group's name."""
        self._client = client
        self._consumption = consumption
        self._listener = listener
        self._columns_listener = columns_listener
        self._settings = settings
        self._is_clustering = settings.model == "clustering"
        first_s = settings.local_retry_ms / 1000
        self._probing = Probing(client.clock, rest_s_min=first_s, rest_s_max=settings.probe_ms_max / 1000)
        self._interceptors = client.interceptors.for_consumer(group)
        self._columns_interceptors = client.interceptors.for_columns(group)
        self._last_failure_log_s = 0.0
        self.on_failure: Callable[[ListenerError], Awaitable[None] | None] | None = None
        """Told about each failed call."""
        self.until_allowed: Callable[[MessageQueue], Awaitable[None]] | None = None
        """Waits, before a call, until no other member can have the queue."""
        self.consumed_total = 0
        self.failed_total = 0
        self.given_back_total = 0
        self.dropped_total = 0
        self.left_total = 0
        """Calls that went on after their cancellation, and were left behind."""

    @property
    def wants_columns(self) -> bool:
        """Return whether the listener takes columns."""
        return self._columns_listener is not None

    async def handle(self, batch: Batch) -> None:
        """Handle a batch; returns when all its messages are consumed, sent back, or given up."""
        if isinstance(batch.payload, Columns):
            await self._handle_columns(batch.queue, batch.payload)
            return
        rest = batch.payload
        while rest:
            is_probe = await self._probing.turn()
            part, rest = (rest[:1], rest[1:]) if is_probe else (rest, [])
            await self._handle_messages(batch.queue, part, is_probe=is_probe)

    async def _handle_messages(
        self, queue: MessageQueue, messages: list[ReceivedMessage], *, is_probe: bool
    ) -> None:
        pauses = self._local_rest()
        tries = 0
        while True:
            has_failed = None
            try:
                failed, wishes = await self._call_listener(queue, messages)
                has_failed = bool(failed)
            finally:
                self._probing.ended(is_probe=is_probe, has_failed=has_failed)
            is_probe = False
            tries += 1
            self.consumed_total += len(messages) - len(failed)
            if not failed:
                return
            self.failed_total += len(failed)
            if self._settings.orderly:
                failed = await self._bury(queue, failed, wishes, tries)
            elif self._is_clustering:
                failed = await self._give_back(queue, failed, wishes)
            else:
                failed = self._drop(queue, failed, wishes, tries)
            if not failed:
                return
            messages = failed
            delays = [
                settlement.delay_ms for settlement in wishes.values() if settlement.delay_ms is not None
            ]
            await asyncio.sleep(max(delays) / 1000 if delays else pauses.next_s())
            if self._probing.is_resting:
                is_probe = await self._probing.turn()

    async def _call_listener(
        self, queue: MessageQueue, messages: list[ReceivedMessage]
    ) -> tuple[list[ReceivedMessage], Mapping[ReceivedMessage, Settlement]]:
        """Call the listener; returns the messages that failed, and what was decided about single ones."""
        assert self._listener is not None
        if self.until_allowed is not None:
            await self.until_allowed(queue)
        begun_s = time.perf_counter()
        delivery = Delivery(messages, self._settings.listener_timeout_ms / 1000)
        failed = messages
        interceptors = self._interceptors
        consuming = None if interceptors is None else interceptors.begin(queue, messages)
        cause: BaseException | None = None
        try:
            async with delivery:
                outcome = await call_application(self._listener, messages)
            failed = [] if outcome is None else _failed_of(outcome, messages)
        except Exception as error:
            cause = error
            await self._note_failure(queue, len(messages), error, has_timed_out=delivery.has_timed_out)
        except asyncio.CancelledError as error:
            if interceptors is not None and consuming is not None:
                interceptors.end(consuming, messages, error)
            raise
        wishes = delivery.settled
        if wishes:
            unsettled = {message for message in failed if message not in wishes}
            failed = [
                message
                for message in messages
                if message in unsettled or (message in wishes and wishes[message].kind != "ack")
            ]
        if interceptors is not None and consuming is not None:
            interceptors.end(consuming, failed, cause)
        self._consumption.count(
            queue.topic,
            consumed=len(messages) - len(failed),
            failed=len(failed),
            seconds=time.perf_counter() - begun_s,
        )
        return failed, wishes

    async def consume_one(self, message: ReceivedMessage) -> bool:
        """Consume a message that an operator sent here; offsets do not change."""
        assert self._listener is not None
        delivery = Delivery([message], self._settings.listener_timeout_ms / 1000)
        interceptors = self._interceptors
        consuming = None if interceptors is None else interceptors.begin(message.queue, [message])
        is_consumed = False
        cause: BaseException | None = None
        try:
            async with delivery:
                outcome = await call_application(self._listener, [message])
            failed = [] if outcome is None else _failed_of(outcome, [message])
            settlement = delivery.settled.get(message)
            is_consumed = not failed if settlement is None else settlement.kind == "ack"
        except BaseException as error:
            cause = error
            raise
        finally:
            if interceptors is not None and consuming is not None:
                interceptors.end(consuming, () if is_consumed else [message], cause)
        return is_consumed

    async def _handle_columns(self, queue: MessageQueue, columns: Columns) -> None:
        assert self._columns_listener is not None
        rest = self._local_rest()
        tries = 0
        while tries < self._settings.columns_tries_max:
            begun_s = time.perf_counter()
            delivery = Delivery([], self._settings.listener_timeout_ms / 1000)
            interceptors = self._columns_interceptors
            consuming = None if interceptors is None else interceptors.begin(queue, columns)
            cause: BaseException | None = None
            try:
                async with delivery:
                    outcome: object = await call_application(self._columns_listener, queue, columns)
                if outcome is not None:
                    raise _ForeignResultError(f"it returned {type(outcome).__name__} instead of None")
            except BaseException as error:
                cause = error
                if not isinstance(error, Exception):
                    raise
                tries += 1
                self._count_columns(queue, failed=len(columns), begun_s=begun_s)
                self.failed_total += len(columns)
                await self._note_failure(queue, len(columns), error, has_timed_out=delivery.has_timed_out)
            else:
                self._count_columns(queue, consumed=len(columns), begun_s=begun_s)
                self.consumed_total += len(columns)
                return
            finally:
                if interceptors is not None and consuming is not None:
                    interceptors.end(consuming, cause)
            await asyncio.sleep(rest.next_s())
        if not self._is_clustering:
            _log.error(
                "%d broadcast messages of %s failed %d times and are skipped", len(columns), queue, tries
            )
            self.dropped_total += len(columns)
            return
        positions = [int(position) for position in columns.numpy("position")]
        while positions:
            positions = [
                position
                for position in positions
                if not await self._give_back_one(queue, position, queue.topic, "")
            ]
            if positions:
                await asyncio.sleep(rest.next_s())

    async def _bury(
        self,
        queue: MessageQueue,
        failed: list[ReceivedMessage],
        wishes: Mapping[ReceivedMessage, Settlement],
        tries: int,
    ) -> list[ReceivedMessage]:
        """Send what is given up to the dead letters; returns the others, and those that nobody took."""
        is_over = 0 <= self._settings.redeliveries_max < tries
        kept = []
        for message in failed:
            settlement = wishes.get(message)
            if is_over or (settlement is not None and settlement.kind == "term"):
                kept += await self._give_back(queue, [message], {message: Settlement("term")})
            else:
                kept.append(message)
        return kept

    def _drop(
        self,
        queue: MessageQueue,
        failed: list[ReceivedMessage],
        wishes: Mapping[ReceivedMessage, Settlement],
        tries: int,
    ) -> list[ReceivedMessage]:
        """Give up broadcast messages, for which there are no dead letters; returns those to try again."""
        kept = [
            message
            for message in failed
            if tries < _BROADCAST_TRIES_MAX and (message not in wishes or wishes[message].kind != "term")
        ]
        dropped = len(failed) - len(kept)
        if dropped:
            _log.error("%d broadcast messages of %s failed %d times and are skipped", dropped, queue, tries)
            self.dropped_total += dropped
        return kept

    async def _give_back(
        self,
        queue: MessageQueue,
        messages: list[ReceivedMessage],
        wishes: Mapping[ReceivedMessage, Settlement],
    ) -> list[ReceivedMessage]:
        """Send messages back to their broker, or another one, for later; returns those nobody took."""
        kept = []
        for message in messages:
            host, port = decode_host(message.record.store_host)
            origin = offset_message_id(host, port, message.record.position)
            level = delay_level(wishes.get(message))
            position = message.record.position
            if await self._give_back_one(queue, position, message.topic, origin, level):
                continue
            if await send_to_retry_topic(
                self._client,
                self.group,
                message,
                redeliveries_max=0 if level < 0 else self._settings.redeliveries_max,
                level=max(level, 0),
            ):
                self.given_back_total += 1
            else:
                kept.append(message)
        return kept

    async def _give_back_one(
        self, queue: MessageQueue, position: int, topic: str, message_id: str, level: int = 0
    ) -> bool:
        ext = {
            "offset": str(position),
            "group": self.group,
            "delayLevel": str(level),
            "originMsgId": message_id,
            "originTopic": topic,
            "unitMode": "false",
            "bname": queue.broker_name,
        }
        if self._settings.redeliveries_max >= 0:
            ext["maxReconsumeTimes"] = str(self._settings.redeliveries_max)
        try:
            address = await broker_address(self._client, queue)
            doing = f"giving back a message of {queue}"
            await ask(self._client, address, RequestCode.CONSUMER_SEND_MESSAGE_BACK, ext, doing=doing)
        except IotmqError as error:
            _log.info("a failed message stays here for another try: %s", error)
            return False
        self.given_back_total += 1
        return True

    def _count_columns(
        self, queue: MessageQueue, *, begun_s: float, consumed: int = 0, failed: int = 0
    ) -> None:
        self._consumption.count(
            queue.topic, consumed=consumed, failed=failed, seconds=time.perf_counter() - begun_s
        )

    def _local_rest(self) -> Backoff:
        first_s = self._settings.local_retry_ms / 1000
        return Backoff(min_s=first_s, max_s=first_s * _LOCAL_RETRY_FACTOR_MAX)

    async def _note_failure(
        self, queue: MessageQueue, count: int, cause: Exception, *, has_timed_out: bool = False
    ) -> None:
        text = f"the listener of group {self.group} failed {count} messages"
        if has_timed_out:
            error: ListenerError = ListenerTimeoutError(
                f"{text}: not done after {self._settings.listener_timeout_ms} ms", **queue._asdict()
            )
        elif isinstance(cause, _ForeignResultError):
            error = ListenerResultError(f"{text}: {cause}", **queue._asdict())
        else:
            error = ListenerError(f"{text}: {type(cause).__name__}: {cause}", **queue._asdict())
        error.__cause__ = cause
        # A listener that fails on everything must not fill the disk with tracebacks.
        now_s = asyncio.get_running_loop().time()
        if now_s - self._last_failure_log_s >= 1.0:
            self._last_failure_log_s = now_s
            _log.warning("%s", error, exc_info=cause)
        if self.on_failure is not None:
            try:
                await call_application(self.on_failure, error)
            except Exception:
                _log.exception("the function told about failures of group %s failed", self.group)


class _ForeignResultError(Exception):
    """A listener returned what it was not given."""


def _failed_of(outcome: object, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
    """Return the messages that a listener says have failed, in their order."""
    if not isinstance(outcome, Iterable):
        raise _ForeignResultError(f"it returned {type(outcome).__name__}, neither None nor messages")
    failed = {id(message) for message in outcome}
    found = [message for message in messages if id(message) in failed]
    if len(found) != len(failed):
        raise _ForeignResultError("it returned something that is none of its messages")
    return found
