"""Tell an Alertmanager all that fires and has just ended, with each change and each minute."""

from __future__ import annotations

from iotmq.alarms.book import AlarmBook
from iotmq.alarms.notification import Notification
from iotmq.alarms.receivers.alertmanager import ENDED_FOR_MS, REPEAT_S
from iotmq.alarms.settings import AlertmanagerSettings, gets


class Feed:
    """An Alertmanager's view of alarms."""

    def __init__(self, settings: AlertmanagerSettings, book: AlarmBook) -> None:
        self._settings = settings
        self._book = book
        # What it was told last, and when; unknown after a start.
        self._told: frozenset[tuple[str, int, bool]] = frozenset()
        self._told_ms = 0

    def next(self) -> tuple[Notification | None, int | None]:
        """Return what it is to be told now, and when to ask again at the latest."""
        book = self._book
        now_ms = book.now_ms
        firing = tuple(
            alarm
            for alarm in book.engine.firing
            if gets(self._settings, alarm.level) and not book.is_silenced(alarm)
        )
        present = {alarm.id for alarm in firing}
        ended = tuple(
            alarm
            for alarm in book.engine.ended
            if alarm.ended_ms > now_ms - ENDED_FOR_MS
            and alarm.id not in present
            and gets(self._settings, alarm.level)
        )
        if not firing and not ended:
            self._told = frozenset()
            return None, None
        notification = Notification((), firing, ended)
        due_ms = self._told_ms + round(REPEAT_S * 1000)
        if _facts(notification) != self._told or due_ms <= now_ms:
            return notification, now_ms
        return None, due_ms

    def told(self, notification: Notification) -> None:
        """Take note that it has taken this."""
        self._told = _facts(notification)
        self._told_ms = self._book.now_ms


def _facts(notification: Notification) -> frozenset[tuple[str, int, bool]]:
    alarms = (*notification.firing, *notification.ended)
    return frozenset((alarm.id, alarm.fired_ms, bool(alarm.ended_ms)) for alarm in alarms)
