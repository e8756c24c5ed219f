"""Retained messages for those who subscribe: page by page, no faster than a device takes them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Final

from iotmq.backoff import Backoff
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.connection.replay_pace import Pace, PaceLimits
from iotmq.ports.sessions import Refused, RetainedRead, RetainedRecords, SessionPort

_log = logging.getLogger("iotmq.mqtt")

_PAGE_RECORDS_MAX: Final = 64
_PAGE_BYTES_MAX: Final = 256 * 1024
# Between two tries to read what a broker does not give now.
_RETRY_MIN_S: Final = 0.5
_RETRY_MAX_S: Final = 10.0


_UNLIMITED: Final = PaceLimits()


class _Job:
    """Hold what a device still has to get: retained messages of one filter, and the filters behind it."""

    __slots__ = (
        "after", "backoff", "current", "is_dropped", "is_last_page", "is_reading", "pace", "records",
        "waiting",
    )  # fmt: skip

    def __init__(self, pace: Pace | None) -> None:
        self.pace = pace
        # Between tries that were refused.
        self.backoff = Backoff(min_s=_RETRY_MIN_S, max_s=_RETRY_MAX_S)
        self.current: tuple[str, int] | None = None
        # Each once, however often it was subscribed meanwhile: a device that subscribes and acknowledges
        # nothing would make it ever longer.
        self.waiting: dict[str, int] = {}
        self.records: deque[object] = deque()
        self.after: str | None = None
        self.is_last_page = False
        self.is_reading = False
        # The filter was unsubscribed meanwhile.
        self.is_dropped = False


class RetainedEgress:
    """The retained messages of one front end."""

    def __init__(
        self, port: SessionPort, loop: asyncio.AbstractEventLoop, *, pace: PaceLimits = _UNLIMITED
    ) -> None:
        self._port = port
        self._pace = pace
        self._loop = loop
        self._jobs: dict[Device, _Job] = {}
        self.delivered = 0

    def send(self, device: Device, subscriptions: Iterable[tuple[str, int]]) -> None:
        """Write what is retained for filters, with the options granted, to a device that subscribed them."""
        wanted = list(subscriptions)
        if not wanted:
            return
        job = self._jobs.get(device)
        if job is None:
            job = self._jobs[device] = _Job(self._pace.begin())
            job.waiting.update(wanted)
            self._go_on(device, job)
        else:
            job.waiting.update(wanted)

    def unsubscribe(self, device: Device, filters: Iterable[str]) -> None:
        """Send nothing more for these filters [MQTT-3.10.4-2]."""
        job = self._jobs.get(device)
        if job is None:
            return
        for topic_filter in filters:
            job.waiting.pop(topic_filter, None)
            if job.current is not None and job.current[0] == topic_filter:
                job.records.clear()
                job.is_dropped = True

    def forget(self, device: Device) -> None:
        """Drop what a device that is gone has still to get."""
        self._jobs.pop(device, None)

    def _go_on(self, device: Device, job: _Job) -> None:
        if self._jobs.get(device) is not job or device.close_reason is not None:
            self._jobs.pop(device, None)
            return
        while job.current is not None or job.waiting:
            if job.current is None:
                name = next(iter(job.waiting))
                job.current = (name, job.waiting.pop(name))
            topic_filter, options = job.current
            while job.records:
                pause_s = 0.0 if job.pace is None else job.pace.pause_s(self._loop.time())
                if pause_s > 0:
                    self._loop.call_later(pause_s, self._go_on, device, job)
                    return
                is_sent = device.send_record(job.records[0], options, is_retained=True)  # type: ignore[arg-type]
                if is_sent is False:
                    device.call_when_room(partial(self._go_on, device, job))
                    return
                self.delivered += is_sent is True
                record = job.records.popleft()
                if is_sent and job.pace is not None:
                    job.pace.count(len(memoryview(record)), self._loop.time())  # type: ignore[arg-type]
            if job.is_last_page or (job.is_dropped and not job.is_reading):
                job.current, job.after = None, None
                job.is_last_page = job.is_dropped = False
                continue
            if not job.is_reading:
                job.is_reading = True
                self._port.read_retained(
                    RetainedRead(
                        topic_filter=topic_filter,
                        after=job.after,
                        records_max=_PAGE_RECORDS_MAX,
                        bytes_max=_PAGE_BYTES_MAX,
                    ),
                    partial(self._read, device, job),
                )
            return
        self._jobs.pop(device, None)

    def _read(self, device: Device, job: _Job, found: RetainedRecords | Refused) -> None:
        job.is_reading = False
        if isinstance(found, Refused):
            # Its broker is away, or reads a part of its log again: what is retained there is not gone.
            if not job.backoff.failures:
                _log.warning(
                    "retained messages cannot be read for now",
                    extra={"client": device.client_id, "detail": found.remark},
                )
            self._loop.call_later(job.backoff.next_s(), self._go_on, device, job)
            return
        job.backoff.reset()
        if not job.is_dropped:
            job.records.extend(found.records)
            job.after = found.after
            job.is_last_page = found.after is None
        # In the next turn: one wide filter leaves room for others.
        self._loop.call_soon(self._go_on, device, job)
