"""All that a process knows of alarms, and what is kept of it over a restart. Does nothing by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.alarms.alarm import Acknowledgement, Alarm, Event, Reading
from iotmq.alarms.condition import Condition
from iotmq.alarms.engine import Engine
from iotmq.alarms.notification import Inbox, InboxState, Notification
from iotmq.alarms.settings import AlarmSettings, GroupedSettings
from iotmq.alarms.silence import Silence
from iotmq.clock import Clock, SteadyClock


class Missed(msgspec.Struct, kw_only=True):
    """Parts of the cluster that were there once, and are missed when they are gone."""

    brokers: set[str] = set()
    front_ends: set[str] = set()


class BookState(msgspec.Struct, kw_only=True):
    """The content of the file in which alarms are kept."""

    saved_ms: int = 0
    firing: Annotated[list[Alarm], Meta(max_length=limits.ALARMS_MAX)] = []
    ended: Annotated[list[Alarm], Meta(max_length=limits.ALARMS_ENDED_MAX)] = []
    silences: Annotated[list[Silence], Meta(max_length=limits.ALARM_SILENCES_MAX)] = []
    inboxes: dict[str, InboxState] = {}
    missed: Missed = msgspec.field(default_factory=Missed)


class TooManySilencesError(Exception):
    """There are as many silences as there may be."""


class AlarmBook:
    """The alarms of a process, what is told of them to whom, and silences."""

    def __init__(self, settings: AlarmSettings, clock: Clock, state: BookState | None = None) -> None:
        state = state or BookState()
        self._clock = SteadyClock(clock)
        # What was written down is not later than now, whatever the clock says meanwhile.
        self._clock.raise_to(state.saved_ms)
        self.conditions: tuple[Condition, ...] = settings.conditions
        self.engine = Engine(
            self.conditions,
            flapping_count=settings.flapping_count,
            flapping_s=settings.flapping_s,
            firing=state.firing,
            ended=state.ended,
        )
        self._silences = {silence.name: silence for silence in state.silences}
        self._inboxes = {
            receiver.name: Inbox(receiver, state.inboxes.get(receiver.name))
            for receiver in settings.receivers
            if isinstance(receiver, GroupedSettings)
        }
        self.missed = state.missed
        self.changes_count = 0
        """Grows with each change that is to be kept."""

    @property
    def state(self) -> BookState:
        """Return what is to be kept over a restart."""
        return BookState(
            saved_ms=self.now_ms,
            firing=self.engine.firing,
            ended=list(self.engine.ended),
            silences=list(self._silences.values()),
            inboxes={name: inbox.state for name, inbox in self._inboxes.items()},
            missed=self.missed,
        )

    @property
    def now_ms(self) -> int:
        """Return the time in ms; never less than before."""
        return self._clock.now_ms()

    @property
    def silences(self) -> list[Silence]:
        """Return those that are not over, by name."""
        now_ms = self.now_ms
        return [
            self._silences[name] for name in sorted(self._silences) if self._silences[name].until_ms > now_ms
        ]

    def observe(self, readings: Iterable[Reading], looked_at: Collection[str]) -> list[Event]:
        """Take numbers and return what has changed."""
        events = self.engine.observe(readings, looked_at, self.now_ms)
        self._note(events)
        return events

    def acknowledge(self, identity: str, *, by: str, note: str) -> Alarm:
        """Note that somebody looks after an alarm: it is not repeated. KeyError when it does not fire."""
        acknowledgement = Acknowledgement(by=by, at_ms=self.now_ms, note=note)
        alarm = self.engine.acknowledge(identity, acknowledgement)
        self.changes_count += 1
        return alarm

    def end(self, identity: str, *, by: str) -> Event:
        """End an alarm by hand. KeyError when it does not fire."""
        event = self.engine.end(identity, by=by, now_ms=self.now_ms)
        labels = dict(event.alarm.labels)
        # Who ends one of these says that it is gone for good.
        if event.alarm.name == "broker-gone":
            self.missed.brokers.discard(labels.get("broker", ""))
        elif event.alarm.name == "front-end-gone":
            self.missed.front_ends.discard(labels.get("front_end", ""))
        self._note([event])
        return event

    def silence(self, silence: Silence) -> None:
        """Make a silence, or change it. TooManySilencesError."""
        now_ms = self.now_ms
        self._silences = {name: each for name, each in self._silences.items() if each.until_ms > now_ms}
        if silence.name not in self._silences and len(self._silences) >= limits.ALARM_SILENCES_MAX:
            raise TooManySilencesError
        self._silences[silence.name] = silence
        self.changes_count += 1

    def end_silence(self, name: str) -> Silence:
        """End a silence. KeyError when there is none of this name."""
        silence = self._silences.pop(name)
        self.changes_count += 1
        if silence.until_ms <= self.now_ms:
            raise KeyError(name)
        return silence

    def take_silences(self, silences: Iterable[Silence], is_own: Callable[[str], bool]) -> bool:
        """Have the silences of all processes, and this one's own; returns whether that changes something."""
        known = {name: each for name, each in self._silences.items() if is_own(name)}
        for silence in silences:
            if len(known) < limits.ALARM_SILENCES_MAX:
                known.setdefault(silence.name, silence)
        if known == self._silences:
            return False
        self._silences = known
        self.changes_count += 1
        return True

    def take_acknowledgement(self, identity: str, acknowledgement: Acknowledgement) -> bool:
        """Note what was said to another process of an alarm; returns whether it is known and was new."""
        alarm = self.engine.current.get(identity)
        if alarm is None or alarm.state != "firing" or alarm.acknowledged is not None:
            return False
        self.engine.acknowledge(identity, acknowledgement)
        self.changes_count += 1
        return True

    def take_end(self, identity: str, word: Acknowledgement) -> Event | None:
        """End an alarm that was ended by hand at another process, unless it has begun anew since."""
        alarm = self.engine.current.get(identity)
        if alarm is None or alarm.state != "firing" or alarm.since_ms > word.at_ms:
            return None
        return self.end(identity, by=word.by)

    def is_silenced(self, alarm: Alarm) -> bool:
        """Return whether nobody is told of an alarm now."""
        now_ms = self.now_ms
        return any(silence.covers(alarm, now_ms) for silence in self._silences.values())

    def next_for(self, receiver: str, *, tells_cluster: bool) -> tuple[Notification | None, int | None]:
        """Return what a receiver is to be told now, and when to ask again at the latest."""
        return self._inboxes[receiver].next(
            self.engine.firing, self.is_silenced, self.now_ms, tells_cluster=tells_cluster
        )

    def told(self, receiver: str, notification: Notification) -> None:
        """Take note that a receiver has taken a notification."""
        self._inboxes[receiver].told(notification, self.now_ms)
        self.changes_count += 1

    def hand_over(self, before_ms: int) -> None:
        """Leave the cluster's alarms of before a time to the process that tells of them."""
        alarms = [alarm for alarm in self.engine.firing if alarm.is_of_cluster]
        for inbox in self._inboxes.values():
            inbox.hand_over(alarms, before_ms, self.now_ms)

    def check_invariants(self) -> None:
        self.engine.check_invariants()
        assert len(self._silences) <= limits.ALARM_SILENCES_MAX
        for inbox in self._inboxes.values():
            inbox.check_invariants()

    def _note(self, events: Iterable[Event]) -> None:
        for event in events:
            self.changes_count += 1
            if event.kind == "ended":
                is_silenced = self.is_silenced(event.alarm)
                for inbox in self._inboxes.values():
                    inbox.ended(event.alarm, is_silenced=is_silenced)
