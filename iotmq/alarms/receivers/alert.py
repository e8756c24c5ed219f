"""Alarms as Prometheus' Alertmanager writes them: to its API, and in the bodies of its webhooks."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any, Final

from iotmq.alarms.alarm import Alarm
from iotmq.alarms.notification import Notification

ALERTS_MAX: Final = 200
"""Alerts of one notification; the others are counted."""
_NEVER: Final = "0001-01-01T00:00:00Z"


def time_text(time_ms: int) -> str:
    """Write a time as RFC 3339; none is the year 1, as in Go."""
    if not time_ms:
        return _NEVER
    at = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def labels_of(alarm: Alarm) -> dict[str, str]:
    """Return the labels that identify an alarm, and its level, as others name it."""
    return {**dict(alarm.labels), "alertname": alarm.name, "severity": alarm.level, "source": "iotmq"}


def annotations_of(alarm: Alarm) -> dict[str, str]:
    """Return what is said of an alarm."""
    said = {
        "summary": alarm.says,
        "description": alarm.what_to_do,
        "owner": alarm.owner,
        "value": f"{alarm.value:g}",
    }
    if alarm.acknowledged is not None:
        said["acknowledged_by"] = alarm.acknowledged.by
    if alarm.is_flapping:
        said["flapping"] = "comes and goes"
    return said


def alerts_of(alarms: Iterable[Alarm]) -> list[dict[str, Any]]:
    """Return alarms as alerts of a notification."""
    return [
        {
            "status": "resolved" if alarm.state == "ended" else "firing",
            "labels": labels_of(alarm),
            "annotations": annotations_of(alarm),
            "startsAt": time_text(alarm.fired_ms),
            "endsAt": time_text(alarm.ended_ms),
            "generatorURL": "",
            "fingerprint": alarm.id,
        }
        for alarm in alarms
    ]


def notification_body(receiver: str, notification: Notification) -> dict[str, Any]:
    """Return the body of a webhook, version 4."""
    alarms = (*notification.ended, *notification.firing)
    shown = alarms[-ALERTS_MAX:]
    alerts = alerts_of(shown)
    return {
        "version": "4",
        "groupKey": "{}:{" + ", ".join(f'{name}="{value}"' for name, value in notification.group) + "}",
        "truncatedAlerts": len(alarms) - len(shown),
        "status": "firing" if notification.firing else "resolved",
        "receiver": receiver,
        "groupLabels": dict(notification.group),
        "commonLabels": _common([alert["labels"] for alert in alerts]),
        "commonAnnotations": _common([alert["annotations"] for alert in alerts]),
        "externalURL": "",
        "alerts": alerts,
        "notificationReason": notification.why,
    }


def _common(tables: list[dict[str, str]]) -> dict[str, str]:
    if not tables:
        return {}
    items = set(tables[0].items()).intersection(*(table.items() for table in tables))
    return dict(sorted(items))
