"""What MQTT promises a session: the messages it has to get, and those it may get, in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from iotmq.mqtt.topics.topics import matches

# No record of the programs is larger: so many fit in a limit of bytes.
RECORD_BYTES_MOST = 600


@dataclass(frozen=True)
class Bounds:
    """Limits of what waits for one session at one broker; 0 is none."""

    messages_max: int = 0
    bytes_max: int = 0
    age_s_max: int = 0
    drops_oldest: bool = True

    def settings(self) -> dict[str, int | str]:
        """As settings of a broker."""
        return {
            "session_queue_messages_max": self.messages_max,
            "session_queue_bytes_max": self.bytes_max,
            "session_queue_age_s_max": self.age_s_max,
            "session_queue_policy": "drop-oldest" if self.drops_oldest else "refuse-new",
        }

    @property
    def is_any(self) -> bool:
        return bool(self.messages_max or self.bytes_max or self.age_s_max)

    @property
    def sure_count(self) -> float:
        """So many messages there is room for."""
        return min(
            self.messages_max or float("inf"),
            self.bytes_max // RECORD_BYTES_MOST if self.bytes_max else float("inf"),
        )


class Entry(NamedTuple):
    """A message for one filter of a session."""

    topic: str
    body: bytes
    # How many the session had before this message.
    before: int
    # How many up to this message since the session was last known to wait for nothing.
    waiting: int
    at_ms: int

    @property
    def message(self) -> tuple[str, bytes]:
        return self.topic, self.body


class Expected:
    """One device's session: what has to come of each filter, and what else may."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.qos: dict[str, int] = {}
        self.wanted: dict[str, list[Entry]] = {}
        # Subscribed at some time: may come, need not.
        self.allowed: set[tuple[str, bytes]] = set()
        # Published with QoS 2 for one filter, which was subscribed with it.
        self.once: dict[tuple[str, bytes], str] = {}
        # Filters that were ever subscribed with QoS 1.
        self.loose: set[str] = set()
        self._entries = 0
        self._entries_done = 0

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.wanted.setdefault(topic_filter, [])
        self.qos[topic_filter] = qos
        if qos == 1:
            self.loose.add(topic_filter)

    def unsubscribe(self, topic_filter: str) -> None:
        self.wanted.pop(topic_filter, None)
        self.qos.pop(topic_filter, None)

    def publish(self, topic: str, body: bytes, qos: int, now_ms: int) -> None:
        matching = [topic_filter for topic_filter in self.wanted if matches(topic_filter, topic)]
        before = self._entries
        self._entries += len(matching)
        for topic_filter in matching:
            entry = Entry(topic, body, before, self._entries - self._entries_done, now_ms)
            self.wanted[topic_filter].append(entry)
            self.allowed.add(entry.message)
        if qos == 2 and len(matching) == 1:
            self.once[topic, body] = matching[0]

    def waits_for_nothing(self) -> None:
        """All of it has been sent, and the brokers know."""
        self._entries_done = self._entries

    def messages(self) -> set[tuple[str, bytes]]:
        """What comes if no limit is in the way."""
        return {entry.message for entry in self._of_filters()}

    def promised(self, now_ms: int) -> set[tuple[str, bytes]]:
        """What comes whatever the limits: nobody may have dropped it until now.

        Of what is too much the oldest goes, so the newest are safe; or what comes when there is no room, so
        the first are. A message of several filters is kept, or not, as a whole.
        """
        bounds = self._bounds
        return {
            entry.message
            for entry in self._of_filters()
            if not (bounds.age_s_max and now_ms - entry.at_ms >= bounds.age_s_max * 1000)
            and (self._entries - entry.before if bounds.drops_oldest else entry.waiting) <= bounds.sure_count
        }

    def _of_filters(self) -> Iterator[Entry]:
        for entries in self.wanted.values():
            yield from entries
