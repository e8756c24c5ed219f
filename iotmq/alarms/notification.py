"""Decide what a receiver is told and when: groups, waits, repeats and ends. Given alarms and times only.

A receiver is told what is so when it is told: nothing queues up for one that is dead, but what it does not
know yet. `Inbox.next` says what that is now; it counts as told once `told` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Literal, NamedTuple

import msgspec

from iotmq import limits
from iotmq.alarms.alarm import Alarm
from iotmq.alarms.condition import Labels
from iotmq.alarms.settings import GroupedSettings, gets

IsSilenced = Callable[[Alarm], bool]


class Notification(NamedTuple):
    """Alarms of one group."""

    group: Labels
    firing: tuple[Alarm, ...]
    ended: tuple[Alarm, ...]
    why: Literal["changed", "repeated", "tested"] = "changed"


class Told(msgspec.Struct, frozen=True, array_like=True):
    """A receiver knows that an alarm fires."""

    fired_ms: int
    told_ms: int


class InboxState(msgspec.Struct, kw_only=True):
    """The part of an inbox that is kept over a restart."""

    told: dict[str, Told] = {}
    ended: list[Alarm] = []


class Inbox:
    """A receiver's view of alarms."""

    def __init__(self, settings: GroupedSettings, state: InboxState | None = None) -> None:
        self._settings = settings
        self._wait_ms = round(settings.group_wait_s * 1000)
        self._repeat_ms = round(settings.repeat_s * 1000)
        state = state or InboxState()
        # By id: what it was told of last, and ends it has to be told of.
        self._told = dict(state.told)
        self._ended = {alarm.id: alarm for alarm in state.ended}

    @property
    def state(self) -> InboxState:
        """Return what is to be kept."""
        return InboxState(told=dict(self._told), ended=list(self._ended.values()))

    def ended(self, alarm: Alarm, *, is_silenced: bool) -> None:
        """Take note of an end. It is told, unless nobody was told and it was silenced."""
        if not gets(self._settings, alarm.level):
            return
        if alarm.id in self._told or not is_silenced:
            self._ended[alarm.id] = alarm
            if len(self._ended) > limits.ALARMS_MAX:
                del self._ended[next(iter(self._ended))]

    def hand_over(self, alarms: Iterable[Alarm], before_ms: int, now_ms: int) -> None:
        """Leave to another process what has fired or ended before a time: it tells the same receiver."""
        for alarm in alarms:
            if alarm.fired_ms < before_ms:
                self._told[alarm.id] = Told(alarm.fired_ms, now_ms)
        for alarm in [each for each in self._ended.values() if each.is_of_cluster]:
            if alarm.ended_ms < before_ms:
                del self._ended[alarm.id]
                self._told.pop(alarm.id, None)

    def next(
        self, firing: Collection[Alarm], is_silenced: IsSilenced, now_ms: int, *, tells_cluster: bool = True
    ) -> tuple[Notification | None, int | None]:
        """Return what the receiver is to be told now, and when to ask again; None: with the next change.

        Without `tells_cluster` another process tells it of the alarms of the cluster.
        """
        present = {alarm.id for alarm in firing}
        for identity in [each for each in self._told if each not in present and each not in self._ended]:
            # It went while nobody looked.
            del self._told[identity]
        for identity in present & self._ended.keys():
            # It fires again, which is all that has to be told.
            del self._ended[identity]
        heard = [
            alarm
            for alarm in firing
            if gets(self._settings, alarm.level) and (tells_cluster or not alarm.is_of_cluster)
        ]
        gone = [alarm for alarm in self._ended.values() if tells_cluster or not alarm.is_of_cluster]
        # There may be a group for each alarm, so each is looked at once.
        firing_in, gone_in = self._by_group(heard), self._by_group(gone)
        dues: list[int] = []
        for group in sorted(firing_in.keys() | gone_in.keys()):
            members = [alarm for alarm in firing_in.get(group, ()) if not is_silenced(alarm)]
            ends = tuple(gone_in.get(group, ()))
            due_ms, why = self._due(members, ends)
            if due_ms is None:
                continue
            if due_ms <= now_ms:
                return Notification(group, tuple(members), ends, why), now_ms
            dues.append(due_ms)
        return None, min(dues, default=None)

    def told(self, notification: Notification, now_ms: int) -> None:
        """Take note that the receiver has taken a notification."""
        for alarm in notification.firing:
            self._told[alarm.id] = Told(alarm.fired_ms, now_ms)
        for alarm in notification.ended:
            if self._ended.get(alarm.id) == alarm:
                del self._ended[alarm.id]
            told = self._told.get(alarm.id)
            if told is not None and told.fired_ms == alarm.fired_ms:
                del self._told[alarm.id]

    def check_invariants(self) -> None:
        assert len(self._ended) <= limits.ALARMS_MAX
        assert all(alarm.state == "ended" for alarm in self._ended.values())

    def _due(
        self, members: list[Alarm], ends: tuple[Alarm, ...]
    ) -> tuple[int | None, Literal["changed", "repeated"]]:
        """Return when the receiver is to be told of a group."""
        told = {alarm.id: self._told.get(alarm.id) for alarm in members}
        news = [
            *(alarm.fired_ms for alarm in members if _is_new(alarm, told[alarm.id])),
            *(alarm.ended_ms for alarm in ends),
        ]
        if news:
            return min(news) + self._wait_ms, "changed"
        last = [
            known.told_ms
            for alarm in members
            if (known := told[alarm.id]) is not None and alarm.acknowledged is None
        ]
        return (min(last) + self._repeat_ms, "repeated") if last else (None, "repeated")

    def _by_group(self, alarms: Iterable[Alarm]) -> dict[Labels, list[Alarm]]:
        found: dict[Labels, list[Alarm]] = {}
        for alarm in alarms:
            found.setdefault(self._group(alarm), []).append(alarm)
        return found

    def _group(self, alarm: Alarm) -> Labels:
        labels = {"alertname": alarm.name, "level": alarm.level, **dict(alarm.labels)}
        return tuple((name, labels.get(name, "")) for name in self._settings.group_by)


def _is_new(alarm: Alarm, told: Told | None) -> bool:
    return told is None or told.fired_ms != alarm.fired_ms
