"""`$SYS/...`: what a front end tells MQTT clients about itself.

Values are made once an interval, whoever listens; a subscriber gets all that match when it comes, as retained
messages, and then those that changed. Nothing of it is stored, and nobody but the server publishes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import iotmq
from iotmq.message.properties import MQTT_QOS, MQTT_TOPIC, encode_properties
from iotmq.message.records.record import encode_record
from iotmq.mqtt.codec.subscription_options import QOS
from iotmq.mqtt.topics import topics
from iotmq.mqtt.topics.filters import FilterIndex
from iotmq.mqtt_front.connection.device import Device

_ROOT: Final = f"{topics.SYS_PREFIX}broker/"
_LOAD_MINUTES: Final = (1, 5, 15)


class FrontEndTotals(NamedTuple):
    """Count the traffic of a front end since its start, and its present connections."""

    connections_accepted: int
    connections: int
    sessions: int
    subscriptions: int
    messages_received: int
    messages_sent: int
    messages_dropped: int
    payload_bytes_received: int
    bytes_received: int
    bytes_sent: int
    overload_level: int = 0
    messages_shed: int = 0


# Topic below $SYS/broker/load/ -> what it is the rate of.
_LOADS: Final[Mapping[str, Callable[[FrontEndTotals], int]]] = {
    "connections": lambda totals: totals.connections_accepted,
    "publish/received": lambda totals: totals.messages_received,
    "publish/sent": lambda totals: totals.messages_sent,
    "publish/dropped": lambda totals: totals.messages_dropped,
    "bytes/received": lambda totals: totals.bytes_received,
    "bytes/sent": lambda totals: totals.bytes_sent,
}


class SysTopics:
    """The `$SYS` tree of one front end.

    `totals` is asked once per interval. The names are those that other servers use, so that dashboards find
    them; the loads are averages per minute that decay over 1, 5 and 15 minutes.
    """

    def __init__(self, totals: Callable[[], FrontEndTotals], *, interval_s: float, now_s: float) -> None:
        self._totals = totals
        self._interval_s = interval_s
        self._started_s = now_s
        self._next_s = now_s
        self._last_s = now_s
        self._last = FrontEndTotals(*(0 for _ in FrontEndTotals._fields))
        self._connections_most = 0
        self._loads: dict[str, float] = {}
        self._texts: dict[str, str] = {}
        self._records: dict[str, bytes] = {}
        # Filters below $SYS/ of connected devices, each with its number in the index, because a device may
        # have ten thousand of them; and by that number who has it, with options as in ports.sessions.
        self._index = _new_index()
        self._subscribers: dict[Device, dict[str, int]] = {}
        self._options: dict[int, dict[Device, int]] = {}
        self.sent = 0
        """Messages written to subscribers."""

    def tick(self, now_s: float) -> None:
        """Make new values when it is time, and send what changed."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._interval_s
        self._tell(self._renew(now_s))

    def put(self, topic: str, text: str) -> None:
        """Keep a value that others make, below $SYS/ as well, and send it to who subscribes it."""
        self._records[topic] = _record(topic, text)
        self._tell((topic,))

    def drop(self, topic: str) -> None:
        """Forget a value of `put`."""
        self._records.pop(topic, None)

    def _tell(self, changed: Iterable[str]) -> None:
        wanted: dict[Device, dict[str, int]] = {}
        for topic in changed:
            for number in self._index.match(topic):
                for device, options in self._options[number].items():
                    found = wanted.setdefault(device, {})
                    found[topic] = max(options, found.get(topic, 0), key=_qos)
        for device, found in wanted.items():
            self._send(device, found, is_retained=False)

    def subscribe(self, device: Device, subscriptions: Iterable[tuple[str, int]]) -> None:
        """A device subscribed filters, with options as granted; those of other topics are passed over."""
        wanted = self.resume(device, subscriptions)
        if wanted:
            self._send(device, self._matching(wanted), is_retained=True)

    def resume(self, device: Device, subscriptions: Iterable[tuple[str, int]]) -> Mapping[str, int]:
        """As `subscribe`, of filters that a session had before: it gets what changes from now on."""
        wanted = {name: options for name, options in subscriptions if name.startswith(topics.SYS_PREFIX)}
        for name, options in wanted.items():
            number = self._index.add(name)
            self._subscribers.setdefault(device, {})[name] = number
            self._options.setdefault(number, {})[device] = options
        return wanted

    def unsubscribe(self, device: Device, filters: Iterable[str]) -> None:
        """A device gave filters back; unknown ones are passed over."""
        known = self._subscribers.get(device)
        if known is None:
            return
        for topic_filter in filters:
            number = known.pop(topic_filter, None)
            if number is not None:
                self._remove(device, topic_filter, number)
        if not known:
            del self._subscribers[device]

    def forget(self, device: Device) -> None:
        """The connection is over."""
        for topic_filter, number in self._subscribers.pop(device, {}).items():
            self._remove(device, topic_filter, number)

    def _remove(self, device: Device, topic_filter: str, number: int) -> None:
        having = self._options[number]
        del having[device]
        if not having:
            del self._options[number]
            self._index.remove(topic_filter)

    def check_invariants(self) -> None:
        """AssertionError when a device is kept that has gone, or has no such filter."""
        found: dict[int, set[Device]] = {}
        for device, filters in self._subscribers.items():
            assert filters, device.client_id
            assert device.close_reason is None, device.client_id
            for topic_filter, number in filters.items():
                assert self._index.id_of(topic_filter) == number
                found.setdefault(number, set()).add(device)
        assert found == {number: set(having) for number, having in self._options.items()}
        assert len(self._index) == len(found)

    def _matching(self, filters: Mapping[str, int]) -> dict[str, int]:
        """Return the topics that some filters match, each with the options of the best of them."""
        index = _new_index()
        options = {index.add(name): asked for name, asked in filters.items()}
        return {
            topic: max((options[number] for number in numbers), key=_qos)
            for topic in self._records
            if (numbers := index.match(topic))
        }

    def _send(self, device: Device, wanted: Mapping[str, int], *, is_retained: bool) -> None:
        """Send a value to a device; without room it is left out, for newer values follow."""
        for topic, options in wanted.items():
            self.sent += device.send_record(self._records[topic], options, is_retained=is_retained) is True

    def _renew(self, now_s: float) -> Iterable[str]:
        """Make all values; returns the topics of those that changed."""
        totals = self._totals()
        self._connections_most = max(self._connections_most, totals.connections)
        texts = self._counted(totals, now_s)
        texts.update(self._averaged(totals, now_s))
        self._last, self._last_s = totals, now_s
        changed = {
            topic: _record(topic, text) for topic, text in texts.items() if self._texts.get(topic) != text
        }
        self._texts = texts
        self._records.update(changed)
        return changed

    def _counted(self, totals: FrontEndTotals, now_s: float) -> dict[str, str]:
        values = {
            "version": f"iotmq version {iotmq.__version__}",
            "uptime": f"{math.floor(now_s - self._started_s)} seconds",
            "clients/connected": totals.sessions,
            "clients/maximum": self._connections_most,
            "clients/total": totals.connections,
            "subscriptions/count": totals.subscriptions,
            "publish/messages/received": totals.messages_received,
            "publish/messages/sent": totals.messages_sent,
            "publish/messages/dropped": totals.messages_dropped,
            "publish/bytes/received": totals.payload_bytes_received,
            "bytes/received": totals.bytes_received,
            "bytes/sent": totals.bytes_sent,
            "overload/level": totals.overload_level,
            "overload/messages/dropped": totals.messages_shed,
        }
        return {_ROOT + name: str(value) for name, value in values.items()}

    def _averaged(self, totals: FrontEndTotals, now_s: float) -> dict[str, str]:
        elapsed_s = now_s - self._last_s
        texts: dict[str, str] = {}
        for name, counted in _LOADS.items():
            rate = (counted(totals) - counted(self._last)) * 60 / elapsed_s if elapsed_s > 0 else 0.0
            for minutes in _LOAD_MINUTES:
                topic = f"{_ROOT}load/{name}/{minutes}min"
                kept = math.exp(-elapsed_s / (60 * minutes))
                self._loads[topic] = self._loads.get(topic, 0.0) * kept + rate * (1 - kept)
                texts[topic] = f"{self._loads[topic]:.2f}"
        return texts


def _new_index() -> FilterIndex:
    # There are some thirty topics.
    return FilterIndex(cached_topics_max=64)


def _qos(options: int) -> int:
    return options & QOS


def _record(topic: str, text: str) -> bytes:
    """A record as brokers push them, of QoS 2 at most as granted."""
    return encode_record(
        topic="SYS", body=text.encode(), properties=encode_properties({MQTT_TOPIC: topic, MQTT_QOS: "2"})
    )
