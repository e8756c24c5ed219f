"""Notice that this process has too much to do, in levels: refuse connections first, then shed QoS 0.

Three things are measured: how late the event loop is, how much memory the process has, and how long a broker
has not answered a batch of messages. A level is entered when one of them has been past its limit in several
measurements, and left when all have been a fifth below for a while, so that it does not come and go.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from iotmq.clock import Clock
from iotmq.metrics import Metric, samples
from iotmq.mqtt_front.settings.limiting import OverloadSettings
from iotmq.supervised import surviving

_log: Final = logging.getLogger("iotmq.mqtt")

MEASURE_S: Final = 0.25
"""Between two measurements."""
# So many measurements, one after the other, are past a limit before it counts: a single pause is no overload.
_PATIENCE: Final = 4
# All have to be below so much of their limits before a level is left.
_CALM: Final = 0.8
# Between two requests to the allocator to give memory back, and so many times as long as one takes.
_TRIM_S: Final = 1.0
_TRIM_SHARE: Final = 20
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = resource.getpagesize()

LEVELS: Final = ("none", "refuses connections", "sheds QoS 0")


class Measured(NamedTuple):
    """Hold what a measurement found; a setting is `LEVEL_` and the name of a field."""

    loop_lag_ms: float
    memory_bytes: int
    broker_latency_ms: float


class Overload:
    """Measures by itself once started. `changed(level)` is called when the level is another one."""

    def __init__(
        self,
        settings: OverloadSettings,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        broker_latency_s: Callable[[], float],
        changed: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._broker_latency_s = broker_latency_s
        self._changed = changed
        self._calm_s = settings.calm_s
        # By level from 1 on: name of the setting -> its limit.
        self._limits = tuple(
            {
                f"{word}_{name}": float(limit)
                for name in Measured._fields
                if (limit := getattr(settings, f"{word}_{name}"))
            }
            for word in ("refuse", "shed")
        )
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._trim_due_s = 0.0
        # How many measurements in a row were past a limit of a level or of a higher one.
        self._past = [0] * len(self._limits)
        # Since when a level and all above have been well below their limits; None while they are not.
        self._calm_since_s: list[float | None] = [None] * len(self._limits)
        self.level = 0
        self.cause = ""
        """The setting whose limit was passed when the level was entered."""
        self.measured = Measured(0.0, 0, 0.0)
        self.entered_total = [0] * len(self._limits)

    def start(self) -> None:
        if any(self._limits):
            self._due_s = self._loop.time() + MEASURE_S
            self._timer = self._loop.call_at(self._due_s, self._measure)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def reason(self) -> str | None:
        """Return why devices are refused, for people; None while they are not."""
        if not self.level:
            return None
        return f"overload, it {LEVELS[self.level]} (mqtt.device_limits.overload.{self.cause})"

    def _measure(self) -> None:
        now_s = self._loop.time()
        lag_s = now_s - self._due_s
        with surviving("overload"):
            self.look(
                Measured(
                    loop_lag_ms=max(0.0, lag_s * 1000),
                    memory_bytes=memory_bytes(),
                    broker_latency_ms=self._broker_latency_s() * 1000,
                )
            )
            if self.level and "memory" in self.cause and now_s >= self._trim_due_s:
                # Else the allocator keeps what devices have used, and the overload would never be over.
                began_s = time.perf_counter()
                give_memory_back()
                took_s = time.perf_counter() - began_s
                self._trim_due_s = now_s + max(_TRIM_S, _TRIM_SHARE * took_s)
        self._due_s = self._loop.time() + MEASURE_S
        self._timer = self._loop.call_at(self._due_s, self._measure)

    def look(self, measured: Measured) -> None:
        """Take a measurement into account."""
        self.measured = measured
        now_s = self._clock.monotonic_s()
        causes = [self._passed(limits, measured, 1.0) for limits in self._limits]
        level = self.level
        for index in reversed(range(len(self._limits))):
            is_past = any(causes[index:])
            self._past[index] = self._past[index] + 1 if is_past else 0
            is_calm = not any(self._passed(limits, measured, _CALM) for limits in self._limits[index:])
            if not is_calm:
                self._calm_since_s[index] = None
            elif self._calm_since_s[index] is None:
                self._calm_since_s[index] = now_s
            if self._past[index] >= _PATIENCE and level <= index:
                level = index + 1
                self.cause = next(cause for cause in causes[index:] if cause)
            calm_since_s = self._calm_since_s[index]
            if level == index + 1 and calm_since_s is not None and now_s - calm_since_s >= self._calm_s:
                level = index
        if level != self.level:
            self._enter(level)

    def _passed(self, limits: dict[str, float], measured: Measured, part: float) -> str:
        """Return the setting whose limit, or so much of it, is passed; empty when none is."""
        for name, limit in limits.items():
            if getattr(measured, name.partition("_")[2]) > limit * part:
                return name
        return ""

    def _enter(self, level: int) -> None:
        is_worse = level > self.level
        for entered in range(self.level, level):
            self.entered_total[entered] += 1
        self.level = level
        _log.warning(
            "overload" if is_worse else "overload is less" if level else "overload is over",
            extra={
                "level": level,
                "does": LEVELS[level],
                "setting": f"mqtt.device_limits.overload.{self.cause}",
                "loop_lag_ms": round(self.measured.loop_lag_ms),
                "memory_bytes": self.measured.memory_bytes,
                "broker_latency_ms": round(self.measured.broker_latency_ms),
            },
        )
        self._changed(level)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            (
                "iotmq_mqtt_overload_level",
                "0; 1 while new connections are refused, 2 while messages of QoS 0 are dropped, too.",
                self.level,
            ),
            (
                "iotmq_mqtt_overload_refusing_total",
                "Times level 1 of overload was entered.",
                self.entered_total[0],
            ),
            (
                "iotmq_mqtt_overload_shedding_total",
                "Times level 2 of overload was entered.",
                self.entered_total[1],
            ),
            (
                "iotmq_mqtt_loop_lag_seconds",
                "How late the event loop was when it was measured last.",
                self.measured.loop_lag_ms / 1000,
            ),
            (
                "iotmq_mqtt_broker_latency_seconds",
                "How long a broker has not answered a batch of messages.",
                self.measured.broker_latency_ms / 1000,
            ),
        )


def give_memory_back() -> None:
    """Have the allocator return to the system what is free in the middle of its heap, where it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def memory_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
