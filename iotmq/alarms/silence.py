"""Silences: alarms that nobody is told of until a time, for a reason."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.alarms.alarm import Alarm
from iotmq.alarms.condition import Labels

LabelText = Annotated[str, Meta(max_length=limits.ALARM_TEXT_CHARACTERS_MAX)]


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """A silence."""

    name: str
    alarm: str
    """The name of the alarms; `*` in it stands for anything."""
    labels: Labels = ()
    """Labels that the alarms must have."""
    until_ms: int
    reason: str
    by: str
    made_ms: int

    def covers(self, alarm: Alarm, now_ms: int) -> bool:
        """Return whether nobody is told of an alarm now."""
        return (
            now_ms < self.until_ms
            and fnmatchcase(alarm.name, self.alarm)
            and set(self.labels) <= set(alarm.labels)
        )
