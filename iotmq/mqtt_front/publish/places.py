"""The places of what is published without a device: rewrites and routes as a front end has them.

Without the client id and the user name, for which there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from iotmq.errors import MessageRefusedError
from iotmq.message.properties import (
    MQTT_QUARANTINE_REASON,
    MQTT_QUARANTINE_ROUTE,
    MQTT_QUARANTINED_TOPIC,
    MQTT_TOPIC,
)
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import TOPIC_NAME_INVALID
from iotmq.mqtt.topics.delayed import split_delayed
from iotmq.mqtt.topics.topics import decode_topic_name
from iotmq.mqtt_front.publish.publishable import check_publishable
from iotmq.mqtt_front.routing.device_names import DeviceNames
from iotmq.mqtt_front.routing.route_file import RouteReloads
from iotmq.mqtt_front.routing.routes import Target
from iotmq.mqtt_front.routing.topic_rewrite import TopicRewrites
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.ports.publishing import Placed

_NOBODY: Final = DeviceNames("", None)


async def _no_topics(_topics: Collection[str]) -> None:
    """Topics are made when something is sent to them."""


class Places:
    """Says where messages go (ports.publishing.PublishPlaces). ConfigError for routes that cannot be used."""

    def __init__(self, settings: MqttSettings) -> None:
        self._rewrites = TopicRewrites(settings.rewrites)
        self._reloads = RouteReloads(settings)

    def start(self, changed: Callable[[], None]) -> None:
        """Follow `mqtt.routes_file`."""
        self._reloads.start(_no_topics, changed)

    def stop(self) -> None:
        """Follow it no more."""
        self._reloads.stop()

    def fixed(self, mqtt_topic: str) -> Placed | None:
        """Return the place of all messages of a topic; None where a route asks something of each."""
        delay_s, name = self._named(mqtt_topic)
        target = self._reloads.router.plan(name, _NOBODY)
        if not isinstance(target, Target) or target.rules is not None:
            return None
        return _placed(name, target, delay_s)

    def place(self, mqtt_topic: str, payload: bytes, *, expiry_s: int | None, is_retained: bool) -> Placed:
        """Return the place of a message, which counts in the sample of its route."""
        delay_s, name = self._named(mqtt_topic)
        plan = self._reloads.router.plan(name, _NOBODY)
        target = plan if isinstance(plan, Target) else plan.decide(payload, {})
        placed = _placed(name, target, delay_s)._replace(expiry_s=expiry_s)
        rules = target.rules
        if rules is None:
            return placed
        if rules.is_dropped:
            return placed._replace(topic="", why=f"the route {rules.route} drops its messages")
        wrong = ""
        if payload or not is_retained:
            # An empty retained message ends the one before, and has no content that could be wrong.
            wrong = target.put_aside or ("" if rules.checksum is None else rules.checksum.wrong_in(payload))
        if wrong:
            properties = {
                MQTT_QUARANTINED_TOPIC: name,
                MQTT_QUARANTINE_REASON: wrong,
                MQTT_QUARANTINE_ROUTE: rules.route,
            }
            return Placed(rules.quarantine_topic, target.key, "", properties, why=wrong)
        if target.is_left_out or not rules.takes_another():
            return placed._replace(topic="", why=f"it is not in the sample of the route {rules.route}")
        return placed._replace(qos_max=rules.qos_max, expiry_s=rules.expiry_of(expiry_s))

    def _named(self, mqtt_topic: str) -> tuple[int, str]:
        """Return the seconds that messages of a topic wait, and the name that they get."""
        try:
            delay_s, name = split_delayed(decode_topic_name(mqtt_topic.encode()))
            check_publishable(name)
            if self._rewrites.is_personal(name):
                raise MqttProtocolError(TOPIC_NAME_INVALID, "it is rewritten by the names of a device")
            own = self._rewrites.published(name, None)
            if own != name:
                if not delay_s:
                    delay_s, own = split_delayed(own)
                check_publishable(own)
        except (MqttProtocolError, UnicodeEncodeError) as error:
            raise MessageRefusedError(f"invalid MQTT topic {mqtt_topic[:100]!r}: {error}") from None
        return delay_s, own


def _placed(name: str, target: Target, delay_s: int) -> Placed:
    return Placed(
        target.topic,
        target.key,
        target.tags,
        {MQTT_TOPIC: name, **dict(target.properties)},
        delay_s=delay_s,
        # To wait is to be in the log, whatever the route says.
        is_stored=target.is_stored or delay_s > 0,
    )
