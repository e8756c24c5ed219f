"""The life of alarms: not met, pending, firing, ended. Given numbers and times; does nothing by itself.

A condition that is met is pending until it has been so for `for_s`, and then fires. Between the marks nothing
changes. At the mark where it clears it waits for `clear_for_s` before it ends. One that has fired
`flapping_count` times within `flapping_s` ends only after it has been clear for `flapping_s`: it comes and
goes, and that is told once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from iotmq import limits
from iotmq.alarms.alarm import Acknowledgement, Alarm, Event, Reading, alarm_id
from iotmq.alarms.condition import Condition

_CLEARED_BY_ITSELF: Final = ""
# Clients make as many groups as they like: there is room left for what is wrong with the process.
_OF_CLUSTER_MAX: Final = limits.ALARMS_MAX * 3 // 4


class Engine:
    """Alarms of one process. Times are wall times in ms that are never set back."""

    def __init__(
        self,
        conditions: Iterable[Condition],
        *,
        flapping_count: int,
        flapping_s: float,
        firing: Iterable[Alarm] = (),
        ended: Iterable[Alarm] = (),
    ) -> None:
        """`firing` and `ended` are those of before a restart."""
        self._conditions: Mapping[str, Condition] = {each.name: each for each in conditions}
        self._flapping_count = flapping_count
        self._flapping_ms = round(flapping_s * 1000)
        self.current: dict[str, Alarm] = {alarm.id: alarm for alarm in firing}
        """Those that are pending or firing, by id."""
        self.ended: deque[Alarm] = deque(ended, maxlen=limits.ALARMS_ENDED_MAX)
        """The last ones, oldest first."""
        # When alarms have fired lately, the one that did last at the end.
        self._fires: OrderedDict[str, deque[int]] = OrderedDict()
        # Those of the cluster, as of the last look.
        self._of_cluster_count = 0
        self.refused_count = 0
        self.fired_count = 0

    @property
    def firing(self) -> list[Alarm]:
        """Return those that fire, the latest last."""
        return sorted(
            (alarm for alarm in self.current.values() if alarm.state == "firing"),
            key=lambda alarm: (alarm.fired_ms, alarm.id),
        )

    def observe(self, readings: Iterable[Reading], looked_at: Collection[str], now_ms: int) -> list[Event]:
        """Take the numbers of the conditions that were looked at; the others stay as they are.

        What has no number any more where its condition was looked at is over.
        """
        events: list[Event] = []
        seen: set[str] = set()
        self._of_cluster_count = sum(alarm.is_of_cluster for alarm in self.current.values())
        for reading in readings:
            condition = self._conditions[reading.condition]
            identity = alarm_id(reading.condition, reading.labels)
            seen.add(identity)
            alarm = self.current.get(identity)
            if alarm is None:
                if condition.is_met(reading.value):
                    self._begin(identity, condition, reading, now_ms, events)
            elif condition.is_met(reading.value):
                self._met(alarm, condition, reading, now_ms, events)
            elif alarm.state == "pending":
                del self.current[identity]
            elif condition.is_over(reading.value):
                self._over(replace(alarm, value=reading.value), condition, now_ms, events)
            else:
                says = condition.text(reading.value, reading.labels)
                self.current[identity] = replace(alarm, value=reading.value, says=says, clear_since_ms=0)
        for alarm in list(self.current.values()):
            known = self._conditions.get(alarm.name)
            if known is None:
                # Its condition is not in the settings any more.
                self._end(alarm, now_ms, _CLEARED_BY_ITSELF, events)
            elif alarm.name in looked_at and alarm.id not in seen:
                if alarm.state == "pending":
                    del self.current[alarm.id]
                else:
                    self._over(alarm, known, now_ms, events)
        return events

    def acknowledge(self, identity: str, acknowledgement: Acknowledgement) -> Alarm:
        """Note that somebody looks after a firing alarm. KeyError when it does not fire."""
        alarm = self._firing_one(identity)
        changed = self.current[identity] = replace(alarm, acknowledged=acknowledgement)
        return changed

    def end(self, identity: str, *, by: str, now_ms: int) -> Event:
        """End an alarm by hand. KeyError when it does not fire. It begins anew when its condition is met."""
        events: list[Event] = []
        self._end(self._firing_one(identity), now_ms, by, events)
        return events[0]

    def check_invariants(self) -> None:
        assert len(self.current) <= limits.ALARMS_MAX
        assert len(self._fires) <= limits.ALARMS_MAX
        for identity, alarm in self.current.items():
            assert identity == alarm.id == alarm_id(alarm.name, alarm.labels)
            assert alarm.state == ("firing" if alarm.fired_ms else "pending")
            assert alarm.since_ms <= (alarm.fired_ms or alarm.since_ms)
            assert not (alarm.state == "pending" and alarm.clear_since_ms)
        assert all(alarm.state == "ended" and alarm.ended_ms >= alarm.fired_ms > 0 for alarm in self.ended)

    def _firing_one(self, identity: str) -> Alarm:
        alarm = self.current[identity]
        if alarm.state != "firing":
            raise KeyError(identity)
        return alarm

    def _begin(
        self, identity: str, condition: Condition, reading: Reading, now_ms: int, events: list[Event]
    ) -> None:
        is_full = condition.is_of_cluster and self._of_cluster_count >= _OF_CLUSTER_MAX
        if is_full or len(self.current) >= limits.ALARMS_MAX:
            self.refused_count += 1
            return
        self._of_cluster_count += condition.is_of_cluster
        alarm = Alarm(
            id=identity,
            name=condition.name,
            labels=reading.labels,
            level=condition.level,
            owner=condition.owner,
            says="",
            what_to_do=condition.what_to_do,
            state="pending",
            value=reading.value,
            since_ms=now_ms,
            is_of_cluster=condition.is_of_cluster,
        )
        self._met(alarm, condition, reading, now_ms, events)

    def _met(
        self, alarm: Alarm, condition: Condition, reading: Reading, now_ms: int, events: list[Event]
    ) -> None:
        says = condition.text(reading.value, reading.labels)
        alarm = replace(alarm, value=reading.value, says=says, clear_since_ms=0)
        if alarm.state == "pending" and now_ms - alarm.since_ms >= condition.for_s * 1000:
            alarm = replace(
                alarm, state="firing", fired_ms=now_ms, is_flapping=self._note_fire(alarm.id, now_ms)
            )
            self.fired_count += 1
            events.append(Event("fired", alarm))
        self.current[alarm.id] = alarm

    def _note_fire(self, identity: str, now_ms: int) -> bool:
        """Return whether it has fired too often lately."""
        fires = self._fires.setdefault(identity, deque(maxlen=self._flapping_count))
        self._fires.move_to_end(identity)
        if len(self._fires) > limits.ALARMS_MAX:
            self._fires.popitem(last=False)
        fires.append(now_ms)
        return len(fires) == self._flapping_count and now_ms - fires[0] <= self._flapping_ms

    def _over(self, alarm: Alarm, condition: Condition, now_ms: int, events: list[Event]) -> None:
        if not alarm.clear_since_ms:
            alarm = replace(alarm, clear_since_ms=now_ms)
        rest_ms = self._flapping_ms if alarm.is_flapping else condition.clear_for_s * 1000
        if now_ms - alarm.clear_since_ms >= rest_ms:
            self._end(alarm, now_ms, _CLEARED_BY_ITSELF, events)
        else:
            self.current[alarm.id] = alarm

    def _end(self, alarm: Alarm, now_ms: int, by: str, events: list[Event]) -> None:
        del self.current[alarm.id]
        if alarm.state == "firing":
            ended = replace(alarm, state="ended", ended_ms=now_ms, ended_by=by)
            self.ended.append(ended)
            events.append(Event("ended", ended))
