"""Call a listener with batches, again when it fails, and send failed messages back to their broker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeAlias

from iotmq.backoff import Backoff
from iotmq.client.consuming.consumption import Consumption
from iotmq.client.consuming.queue_reader import Batch
from iotmq.client.consuming.send_to_retry_topic import send_to_retry_topic
from iotmq.client.transport.application_calls import call_application
from iotmq.client.transport.calls import ask, broker_address
from iotmq.client.transport.client import IotmqClient
from iotmq.client.transport.message import ReceivedMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.settings import PushConsumerSettings
from iotmq.errors import IotmqError
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
        client: IotmqClient,
        group: str,
        consumption: Consumption,
        *,
        listener: Listener | None,
        columns_listener: ColumnsListener | None,
        settings: PushConsumerSettings,
    ) -> None:
        self._client = client
        self._group = group
        self._consumption = consumption
        self._listener = listener
        self._columns_listener = columns_listener
        self._settings = settings
        self._is_clustering = settings.model == "clustering"
        self._last_failure_log_s = 0.0
        self.consumed_total = 0
        self.failed_total = 0
        self.given_back_total = 0
        self.dropped_total = 0

    async def handle(self, batch: Batch) -> None:
        """Handle a batch; returns when all its messages are consumed, sent back, or given up."""
        if isinstance(batch.payload, Columns):
            await self._handle_columns(batch.queue, batch.payload)
        else:
            await self._handle_messages(batch.queue, batch.payload)

    async def _handle_messages(self, queue: MessageQueue, messages: list[ReceivedMessage]) -> None:
        rest = self._local_rest()
        tries = 0
        while True:
            failed = await self._call_listener(queue, messages)
            tries += 1
            self.consumed_total += len(messages) - len(failed)
            if not failed:
                return
            self.failed_total += len(failed)
            if self._is_clustering:
                failed = await self._give_back(queue, failed)
            elif tries >= _BROADCAST_TRIES_MAX:
                _log.error(
                    "%d broadcast messages of %s failed %d times and are skipped", len(failed), queue, tries
                )
                self.dropped_total += len(failed)
                failed = []
            if not failed:
                return
            messages = failed
            await asyncio.sleep(rest.next_s())

    async def _call_listener(
        self, queue: MessageQueue, messages: list[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        """Call the listener; returns the messages that failed."""
        assert self._listener is not None
        begun_s = time.perf_counter()
        failed = messages
        try:
            outcome = await call_application(self._listener, messages)
            failed = [] if outcome is None else list(outcome)
        except Exception as error:
            self._log_failure(queue, len(messages), error)
        self._consumption.count(
            queue.topic,
            consumed=len(messages) - len(failed),
            failed=len(failed),
            seconds=time.perf_counter() - begun_s,
        )
        return failed

    async def consume_one(self, message: ReceivedMessage) -> bool:
        """Consume a message that an operator sent here; offsets do not change."""
        assert self._listener is not None
        outcome = await call_application(self._listener, [message])
        return outcome is None or not list(outcome)

    async def _handle_columns(self, queue: MessageQueue, columns: Columns) -> None:
        assert self._columns_listener is not None
        rest = self._local_rest()
        tries = 0
        while tries < self._settings.columns_tries_max:
            begun_s = time.perf_counter()
            try:
                await call_application(self._columns_listener, queue, columns)
            except Exception as error:
                tries += 1
                self._count_columns(queue, failed=len(columns), begun_s=begun_s)
                self.failed_total += len(columns)
                self._log_failure(queue, len(columns), error)
            else:
                self._count_columns(queue, consumed=len(columns), begun_s=begun_s)
                self.consumed_total += len(columns)
                return
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

    async def _give_back(self, queue: MessageQueue, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Send messages back to their broker, or another one, for later; returns those nobody took."""
        kept = []
        for message in messages:
            host, port = decode_host(message.record.store_host)
            origin = offset_message_id(host, port, message.record.position)
            if await self._give_back_one(queue, message.record.position, message.topic, origin):
                continue
            if await send_to_retry_topic(
                self._client, self._group, message, redeliveries_max=self._settings.redeliveries_max
            ):
                self.given_back_total += 1
            else:
                kept.append(message)
        return kept

    async def _give_back_one(self, queue: MessageQueue, position: int, topic: str, message_id: str) -> bool:
        ext = {
            "offset": str(position),
            "group": self._group,
            "delayLevel": "0",
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

    def _log_failure(self, queue: MessageQueue, count: int, error: Exception) -> None:
        # A listener that fails on everything must not fill the disk with tracebacks.
        now_s = asyncio.get_running_loop().time()
        if now_s - self._last_failure_log_s >= 1.0:
            self._last_failure_log_s = now_s
            _log.warning(
                "the listener of group %s failed %d messages of %s", self._group, count, queue, exc_info=error
            )
