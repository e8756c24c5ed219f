"""Map MQTT topics to broker topics, keys and tags."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from iotmq.errors import ConfigError
from iotmq.message.properties import NAME_END, PROPERTY_END
from iotmq.mqtt.topics import topics
from iotmq.mqtt_front.settings.mqtt import RouteSettings

_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
# Topics brokers keep messages in on their way to another one, or write themselves: nobody may send to them.
_RESERVED_PREFIXES: Final = ("%", "RMQ_SYS_", "rmq_sys_", "iotmq_sys_")
_RESERVED: Final = frozenset(
    {
        "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
_SEPARATORS: Final = frozenset((NAME_END, PROPERTY_END))


class Target(NamedTuple):
    """Where the messages of one MQTT topic go."""

    topic: str
    key: str
    tags: str
    is_stored: bool


class Router:
    """Resolves topics by the first matching route; without a match everything goes to `default_topic`.

    Raises ConfigError when a route's filter, topic or template is not legal. Front ends cache what `resolve`
    says.
    """

    def __init__(self, routes: Iterable[RouteSettings], *, default_topic: str) -> None:
        self._routes = tuple(routes)
        self._fallback = RouteSettings(filter="#", topic=default_topic)
        for number, route in enumerate(self._routes):
            _check_route(route, f"mqtt.routes[{number}]")
            _check_broker_topic(route.topic, f"mqtt.routes[{number}].topic")
        _check_broker_topic(default_topic, "mqtt.default_topic")

    @property
    def broker_topics(self) -> tuple[str, ...]:
        """Every broker topic a message can go to, the default one last; no device can add to them."""
        return tuple(dict.fromkeys(route.topic for route in (*self._routes, self._fallback)))

    def resolve(self, topic: str) -> Target:
        """The target of a valid topic name. A key template that comes out empty falls back to the topic."""
        route = next((route for route in self._routes if topics.matches(route.filter, topic)), self._fallback)
        levels = topic.split("/")
        key = _expand(route.key, topic, levels) or topic
        return Target(route.topic, key, _expand(route.tags, topic, levels), route.store)

    def route_of(self, topic: str) -> tuple[str, str]:
        """Return the broker topic and the key (ports.gateway.RouteOf)."""
        target = self.resolve(topic)
        return target.topic, target.key


def _expand(template: str, topic: str, levels: list[str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name == "topic":
            return topic
        level = int(name)
        return levels[level] if level < len(levels) else ""

    return _PLACEHOLDER.sub(value, template)


def _check_broker_topic(topic: str, where: str) -> None:
    if topic in _RESERVED or topic.startswith(_RESERVED_PREFIXES):
        raise ConfigError(f"{where} = {topic!r}: a topic that brokers keep for themselves")


def _check_route(route: RouteSettings, where: str) -> None:
    if not topics.is_valid_filter(route.filter):
        raise ConfigError(
            f"{where}.filter = {route.filter!r}: not an MQTT topic filter (+ and # stand alone, # last)"
        )
    for field, template in (("key", route.key), ("tags", route.tags)):
        if not _SEPARATORS.isdisjoint(template):
            raise ConfigError(
                f"{where}.{field} = {template!r}: \\x01 and \\x02 separate the properties of a record"
            )
        for name in _PLACEHOLDER.findall(template):
            if name != "topic" and not (name.isdecimal() and int(name) < 128):
                raise ConfigError(
                    f"{where}.{field} = {template!r}: {{{name}}} is not known; "
                    "use {topic} or a level such as {1}"
                )
