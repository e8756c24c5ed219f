"""Write what becomes of messages to RocketMQ's trace topic, in the background."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from iotmq import limits
from iotmq.client.observing.trace_data import (
    TRACE_TOPIC,
    Entry,
    call_id,
    consumed_entries,
    is_of_topic,
    sent_entries,
    taken_entries,
    trace_messages,
)
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.interceptors import UNSEEN_GROUP, Consuming, Interceptor, Sending
from iotmq.client.transport.lifetime import Lifetime
from iotmq.client.transport.message import Message
from iotmq.client.transport.settings import ProducerSettings
from iotmq.clock import Clock, SystemClock
from iotmq.errors import ClientError, IotmqError
from iotmq.metrics import Metric, samples
from iotmq.supervised import end, supervise

_log = logging.getLogger(__name__)

_SETTINGS: Final = ProducerSettings(send_timeout_ms=5_000)
_LOG_PAUSE_S: Final = 1.0


class MessageTrace(Interceptor):
    """Traces all messages of one client that are sent singly or in batches, or consumed.

    mqadmin's queryMsgTraceById shows the trace of a message. Traces are written after `linger_ms`, many at a
    time, and nobody waits for them: what cannot be written is dropped and counted.
    """

    def __init__(
        self,
        topic: str = TRACE_TOPIC,
        *,
        linger_ms: int = 500,
        entries_max: int = limits.TRACE_ENTRIES_MAX,
        bytes_max: int = limits.TRACE_BYTES_MAX,
    ) -> None:
        """At most `entries_max`, and `bytes_max` of them, wait to be written."""
        self.topic = topic
        """The topic that is written to."""
        self._linger_s = linger_ms / 1000
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._clock: Clock = SystemClock()
        self._producer: Producer | None = None
        """Set between `start` and `stop`."""
        self._tasks: list[asyncio.Task[None]] = []
        self._entries: list[Entry] = []
        self._bytes = 0
        self._has_entries = asyncio.Event()
        self._last_log_s = -_LOG_PAUSE_S
        self.written_total = 0
        """Entries that are stored."""
        self.dropped_total = 0
        """Entries that are not: too many waited, or sending them failed."""

    async def start(self, client: Lifetime) -> None:
        """Begin to write through the client."""
        if self._producer is not None or not isinstance(client, ClientTransport):
            raise ClientError("a MessageTrace belongs to one client: make another one for another client")
        self._clock = client.clock
        # The loop may be another one than that of a client before.
        self._has_entries = asyncio.Event()
        self._producer = Producer(client, UNSEEN_GROUP, _SETTINGS)
        await self._producer.start()
        self._tasks = [supervise("message trace", self._write_forever)]

    async def stop(self) -> None:
        """Write what is left."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        await end(self._tasks)
        await self._write(producer)
        await producer.stop()

    def after_send(self, sending: Sending) -> None:
        """Note what was sent. What has failed has no id that anybody could look for."""
        if not is_of_topic(sending.messages, self.topic):
            cost_ms = _cost_ms(sending.begun_s)
            self._add(sent_entries(sending, cost_ms=cost_ms, now_ms=self._clock.now_ms()))

    def before_consume(self, consuming: Consuming) -> None:
        """Note what a listener, or a program that asks, gets."""
        if not is_of_topic(consuming.messages, self.topic):
            call = consuming.notes[self] = call_id()
            self._add(taken_entries(consuming, call, now_ms=self._clock.now_ms()))

    def after_consume(self, consuming: Consuming) -> None:
        """Note what it did."""
        call = consuming.notes.get(self)
        if call is not None:
            cost_ms, now_ms = _cost_ms(consuming.begun_s), self._clock.now_ms()
            self._add(consumed_entries(consuming, call, cost_ms=cost_ms, now_ms=now_ms))

    def metrics(self) -> Iterable[Metric]:
        """Report the counters."""
        prefix = "iotmq_client_trace_entries"
        yield from samples(
            (f"{prefix}_written_total", "Trace entries stored", self.written_total),
            (f"{prefix}_dropped_total", "Trace entries lost: no room, or not sent", self.dropped_total),
            (f"{prefix}_waiting", "Trace entries that wait to be written", len(self._entries)),
        )

    def _add(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if len(self._entries) >= self._entries_max or self._bytes + entry.size > self._bytes_max:
                self.dropped_total += 1
                continue
            self._entries.append(entry)
            self._bytes += entry.size
        if self._entries:
            self._has_entries.set()

    async def _write_forever(self) -> None:
        while True:
            await self._has_entries.wait()
            await asyncio.sleep(self._linger_s)
            assert self._producer is not None
            await self._write(self._producer)

    async def _write(self, producer: Producer) -> None:
        entries, self._entries, self._bytes = self._entries, [], 0
        self._has_entries.clear()
        sends = [
            self._write_one(producer, message, count)
            for message, count in trace_messages(entries, self.topic)
        ]
        # They go on when the writing ends: the end of the producer waits for them.
        await asyncio.shield(asyncio.gather(*sends))

    async def _write_one(self, producer: Producer, message: Message, count: int) -> None:
        try:
            await producer.send(message)
        except IotmqError as error:
            self.dropped_total += count
            now_s = time.monotonic()
            if now_s - self._last_log_s >= _LOG_PAUSE_S:
                self._last_log_s = now_s
                _log.warning("%d trace entries are lost: %s", count, error)
        else:
            self.written_total += count


def _cost_ms(begun_s: float) -> int:
    return round((time.perf_counter() - begun_s) * 1_000)
