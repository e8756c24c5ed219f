"""Prometheus' Alertmanager by its API, version 2.

It wants to be told again and again: what fires ends there three minutes after it was told of it last, so
that nothing fires for ever when this process is gone. An end is told for five minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from iotmq.alarms.alarm import Alarm
from iotmq.alarms.notification import Notification
from iotmq.alarms.receivers.alert import annotations_of, labels_of, time_text
from iotmq.alarms.receivers.http_post import HttpPost
from iotmq.alarms.settings import AlertmanagerSettings
from iotmq.clock import Clock

REPEAT_S: Final = 60.0
_FIRES_FOR_MS: Final = 180_000
ENDED_FOR_MS: Final = 300_000


class Alertmanager:
    """A Sender of all that fires and has just ended."""

    def __init__(self, settings: AlertmanagerSettings, clock: Clock) -> None:
        """ConfigError when the roots of its certificate cannot be used."""
        self._clock = clock
        url = f"{settings.url.rstrip('/')}/api/v2/alerts"
        self._http = HttpPost(url, settings.headers, ca_file=settings.ca_file)

    async def send(self, notification: Notification) -> None:
        alarms = (*notification.ended, *notification.firing)
        await self._http.post(msgspec.json.encode(posted_alerts(alarms, self._clock.now_ms())))

    async def close(self) -> None:
        await self._http.close()


def posted_alerts(alarms: Iterable[Alarm], now_ms: int) -> list[dict[str, Any]]:
    """Return the body of a request: what has ended did so at its time, what fires does for a while yet."""
    return [
        {
            "labels": labels_of(alarm),
            "annotations": annotations_of(alarm),
            "startsAt": time_text(alarm.fired_ms),
            "endsAt": time_text(alarm.ended_ms or now_ms + _FIRES_FOR_MS),
        }
        for alarm in alarms
    ]
