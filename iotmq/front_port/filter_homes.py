"""Say which broker gets what front ends publish to the topic of a filter: that one has the filter whole.

A filter without wildcards matches one MQTT topic, whose route has one key, and a key has one queue. Others
may send to that topic, too: native producers, wills, front ends with other routes, or with former queues.
So the other brokers have a mark of the filter. A home that is wrong or out of date costs no message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from iotmq.client.transport.routes import MessageQueue, queue_of_key
from iotmq.mqtt.topics.topics import wildcard_shape
from iotmq.ports.gateway import RouteOf


class PlacedFilter(NamedTuple):
    """A filter as one broker has it: whole, or (one without wildcards) as a mark."""

    number: int
    topic_filter: str
    is_whole: bool


class FilterHomes:
    """The homes of filters, by the queues of the topics; `queues` may change."""

    def __init__(self, route_of: RouteOf, queues: Mapping[str, Sequence[MessageQueue]]) -> None:
        self._route_of = route_of
        self._queues = queues

    def home_of(self, topic_filter: str) -> str | None:
        """Return the name of a broker; None for a filter that every broker has whole."""
        if wildcard_shape(topic_filter) is not None:
            return None
        topic, key = self._route_of(topic_filter)
        queues = self._queues.get(topic)
        return queues[queue_of_key(key, len(queues))].broker_name if queues else None
