"""Choose the route of a message: the first one whose filter and conditions match.

Operations: plan per new topic, decide per message, in Python. Goals: a topic whose route asks for nothing of
its messages is decided once; a new topic costs microseconds with a thousand routes. Plan: the filters are in
a `FilterIndex`; of the routes that it finds, those whose conditions are known to fail are left out, and what
comes behind the first that is known to match. When that one is the first, it is the target of the topic; else
the routes that are left are asked for each message.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.message import properties as record_properties
from iotmq.message.properties import MQTT_USER_PREFIX, NAME_END, PROPERTY_END
from iotmq.mqtt.topics import topics
from iotmq.mqtt.topics.filters import FilterIndex
from iotmq.mqtt_front.permissions.containment import all_allowed
from iotmq.mqtt_front.routing.checksum_names import checksum_of
from iotmq.mqtt_front.routing.device_names import DeviceNames
from iotmq.mqtt_front.routing.route_conditions import Condition, condition, contradiction
from iotmq.mqtt_front.routing.route_fields import Placeholder, RoutedMessage, Template
from iotmq.mqtt_front.routing.route_rules import RouteRules
from iotmq.mqtt_front.settings.routes import RouteSettings

_log = logging.getLogger("iotmq.mqtt")

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
# Names of properties that mean something to brokers and clients.
_RESERVED_NAMES: Final = frozenset(
    value for name, value in vars(record_properties).items() if name.isupper() and isinstance(value, str)
)
_NO_PROPERTIES: Final[tuple[tuple[str, str], ...]] = ()


class Target(NamedTuple):
    """Where the messages of one MQTT topic go, or one message."""

    topic: str
    key: str
    tags: str
    is_stored: bool
    properties: tuple[tuple[str, str], ...] = _NO_PROPERTIES
    rules: RouteRules | None = None
    """None: there is nothing to ask of a message."""
    is_left_out: bool = False
    """Whether it is not in the sample of its route."""
    put_aside: str = ""
    """Why the message goes into quarantine; empty: it does not."""


class Route:
    """One route that is ready to be used. ConfigError, which begins with `where`, for one that cannot be."""

    __slots__ = (
        "asks_json", "asks_names", "asks_properties", "conditions", "filter", "json_conditions", "key",
        "label", "properties", "property_conditions", "rules", "settings", "tags", "topic_conditions",
        "unfilled",
    )  # fmt: skip

    def __init__(self, settings: RouteSettings, where: str, *, quarantine_topic: str = "") -> None:
        self.settings = settings
        self.filter = settings.filter
        self.label = settings.name or where
        _check_filter(settings.filter, where)
        self.key = Template(settings.key, f"{where}.key")
        self.tags = Template(settings.tags, f"{where}.tags")
        self.properties = tuple(
            (name, Template(template, f"{where}.properties.{name}"))
            for name, template in settings.properties.items()
        )
        for name in settings.properties:
            _check_property(name, where)
        self.conditions = tuple(
            condition(text, f"{where}.when[{number}]") for number, text in enumerate(settings.when)
        )
        # Those that the topic and the device tell, those of properties, and those of the payload.
        self.topic_conditions = tuple(each for each in self.conditions if not each.source.asks_message)
        self.property_conditions = tuple(each for each in self.conditions if each.source.asks_properties)
        self.json_conditions = tuple(each for each in self.conditions if each.source.asks_json)
        excluded = contradiction(self.conditions)
        if excluded is not None:
            raise ConfigError(f"{where}.when: {excluded}")
        named = [(f"when[{number}]", [each.source]) for number, each in enumerate(self.conditions)]
        named += [("key", self.key.placeholders), ("tags", self.tags.placeholders)]
        named += [(f"properties.{name}", template.placeholders) for name, template in self.properties]
        sources = [source for _, placeholders in named for source in placeholders]
        self.unfilled = _unfilled(settings.filter, where, named)
        self.asks_names = any(source.asks_names for source in sources)
        self.asks_json = any(source.asks_json for source in sources) or settings.invalid_json == "quarantine"
        self.asks_properties = any(source.asks_properties for source in sources)
        checksum = None
        if settings.checksum.is_wanted:
            checksum = checksum_of(settings.checksum, f"{where}.checksum")
        is_plain = (
            checksum is None
            and not settings.drop
            and settings.qos_max == 2
            and settings.sample_one_in == 1
            and not settings.expiry_s
            and not settings.expiry_s_max
            and settings.invalid_json == "absent"
        )
        self.rules = (
            None
            if is_plain
            else RouteRules(settings, self.label, checksum, settings.quarantine_topic or quarantine_topic)
        )

    @property
    def asks_message(self) -> bool:
        """Return whether each message has to be looked at."""
        return self.asks_json or self.asks_properties

    def put_aside(self, message: RoutedMessage) -> str:
        """Return why a message goes into quarantine for its payload; empty when it does not."""
        if self.settings.invalid_json == "absent" or message.json is not None:
            return ""
        return message.invalid_json

    @property
    def has_quarantine(self) -> bool:
        """Return whether messages of it may be put aside."""
        return self.settings.checksum.is_wanted or self.settings.invalid_json == "quarantine"

    def target(self, message: RoutedMessage, *, put_aside: str = "") -> Target:
        """Return the target of a message. A key template that comes out empty falls back to the topic."""
        settings = self.settings
        key = self.key.expand(message) or message.topic
        properties = _NO_PROPERTIES
        if self.properties:
            expanded = [(name, template.expand(message)) for name, template in self.properties]
            properties = tuple([(name, value) for name, value in expanded if value])
        is_left_out = (
            settings.sample_by == "key"
            and settings.sample_one_in > 1
            and not is_in_sample(key, settings.sample_one_in)
        )
        return Target(
            settings.topic, key, self.tags.expand(message), settings.store, properties, self.rules,
            is_left_out, put_aside,
        )  # fmt: skip


def is_in_sample(key: str, one_in: int) -> bool:
    """Return whether the messages of a key are taken: for one key in so many, the same ones everywhere."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest) % one_in == 0


class MessageRoutes:
    """The routes that the messages of one topic may have, in order; the last one takes all that is left."""

    __slots__ = ("_message", "_routes", "asks_json", "asks_properties")

    def __init__(self, message: RoutedMessage, routes: Sequence[Route]) -> None:
        self._message = message
        self._routes = routes
        self.asks_json = any(route.asks_json for route in routes)
        self.asks_properties = any(route.asks_properties for route in routes)

    def decide(self, payload: bytes, properties: Mapping[str, object]) -> Target:
        """Return the target of a message; what it is not asked for may be left out."""
        message = self._message.with_content(payload, properties)
        for route in self._routes:
            if route.property_conditions and not _all_met(route.property_conditions, message):
                continue
            put_aside = route.put_aside(message)
            if put_aside or _all_met(route.json_conditions, message):
                return route.target(message, put_aside=put_aside)
        raise AssertionError("the last route has no conditions")


def _all_met(conditions: Iterable[Condition], message: RoutedMessage) -> bool:
    for each in conditions:  # noqa: SIM110 - half the time of all()
        if not each.is_met(message):
            return False
    return True


class Router:
    """Choose routes; without a match everything goes to `default_topic`.

    Raises ConfigError when a route cannot be used. Front ends cache what `plan` says, until `replace`.
    """

    def __init__(
        self,
        routes: Iterable[RouteSettings],
        *,
        default_topic: str,
        quarantine_topic: str = "mqtt-quarantine",
        json_bytes_max: int = limits.MQTT_ROUTE_JSON_BYTES_MAX,
        place: str = "mqtt.routes",
    ) -> None:
        """`place` is where the routes stand, for errors."""
        self._quarantine_topic = quarantine_topic
        self._json_bytes_max = json_bytes_max
        self._place = place
        _check_broker_topic(default_topic, "mqtt.default_topic")
        _check_broker_topic(quarantine_topic, "mqtt.quarantine_topic")
        self._fallback = Route(
            RouteSettings(filter="#", topic=default_topic, name="default"), "mqtt.default_topic"
        )
        self._book = RouteBook((), place)
        self.replace(self.prepared(routes))

    def prepared(self, routes: Iterable[RouteSettings]) -> RouteBook:
        """Make routes ready for `replace`; ConfigError when one cannot be used."""
        made = []
        for number, settings in enumerate(routes):
            where = f"{self._place}[{number}]"
            made.append(Route(settings, where, quarantine_topic=self._quarantine_topic))
            for key, topic in (("topic", settings.topic), ("quarantine_topic", settings.quarantine_topic)):
                _check_broker_topic(topic, f"{where}.{key}")
        return RouteBook(made, self._place)

    def replace(self, book: RouteBook) -> None:
        """Use other routes from now on. What was cached of the former ones is out of date."""
        self._book = book
        for warning in book.warnings:
            _log.warning("route never used", extra={"detail": warning})
        for warning in book.unfilled:
            _log.warning("route with a placeholder that stands for nothing", extra={"detail": warning})

    @property
    def warnings(self) -> list[str]:
        """Return which routes are never used, in words."""
        return self._book.warnings

    @property
    def unfilled(self) -> list[str]:
        """Return which placeholders stand for nothing, whatever the topic, in words."""
        return self._book.unfilled

    @property
    def count(self) -> int:
        """Return how many routes there are."""
        return len(self._book.routes)

    @property
    def has_names(self) -> bool:
        """Return whether some route needs to know the device."""
        return self._book.has_names

    @property
    def broker_topics(self) -> tuple[str, ...]:
        """Every broker topic a message can go to, the default one last; no device can add to them."""
        return self.topics_of(self._book)

    def topics_of(self, book: RouteBook) -> tuple[str, ...]:
        """Return the broker topics that these routes need."""
        wanted = [route.settings.topic for route in book.routes if route.settings.topic]
        wanted += [
            route.settings.quarantine_topic or self._quarantine_topic
            for route in book.routes
            if route.has_quarantine
        ]
        return tuple(dict.fromkeys((*wanted, self._fallback.settings.topic)))

    def is_personal(self, topic: str) -> bool:
        """Return whether what is published to the topic may go elsewhere by the device's names."""
        return self._book.has_names and any(route.asks_names for route in self._book.matching(topic))

    def plan(self, topic: str, names: DeviceNames | None = None) -> Target | MessageRoutes:
        """The target of all messages of a valid topic name, or the routes each of them may have.

        `names` may be None unless `is_personal`.
        """
        message = RoutedMessage(topic, names, json_bytes_max=self._json_bytes_max)
        left: list[Route] = []
        for route in self.matching(topic):
            if not _all_met(route.topic_conditions, message):
                continue
            if not left and not route.asks_message:
                return route.target(message)
            left.append(route)
            if not route.property_conditions and not route.json_conditions:
                break
        return MessageRoutes(message, left)

    def resolve(self, topic: str) -> Target:
        """Return the target of a message that has nothing but its topic."""
        plan = self.plan(topic)
        return plan if isinstance(plan, Target) else plan.decide(b"", {})

    def route_of(self, topic: str) -> tuple[str, str]:
        """Return the broker topic and the key (ports.gateway.RouteOf)."""
        target = self.resolve(topic)
        return target.topic, target.key

    def matching(self, topic: str) -> Iterator[Route]:
        """Yield the routes whose filter matches, in order, and then the default one."""
        yield from self._book.matching(topic)
        yield self._fallback


class RouteBook:
    """Routes in their order, found by topic.

    `warnings` says which of them no message can reach, `unfilled` which placeholders stand for nothing.
    """

    def __init__(self, routes: Sequence[Route], place: str) -> None:
        self.routes = tuple(routes)
        self.has_names = any(route.asks_names for route in routes)
        self.warnings: list[str] = []
        self.unfilled = [warning for route in routes for warning in route.unfilled]
        # Topics are remembered by those who ask.
        self._index = FilterIndex(cached_topics_max=1, cached_bytes_max=0)
        # By the id of a filter: the places of its routes, ascending.
        self._places: dict[int, list[int]] = {}
        for number, route in enumerate(routes):
            covering = self._covering(route.filter)
            if covering is not None:
                self.warnings.append(
                    f"{place}[{number}] ({route.filter}) is never used: {place}[{covering}] "
                    f"({self.routes[covering].filter}) takes all of its messages"
                )
            filter_id = self._index.add(route.filter)
            self._places.setdefault(filter_id, []).append(number)

    def matching(self, topic: str) -> list[Route]:
        """Return the routes whose filter matches, in order."""
        found = self._index.match(topic)
        if not found:
            return []
        if len(found) == 1:
            return [self.routes[place] for place in self._places[found[0]]]
        return [self.routes[place] for place in sorted([p for each in found for p in self._places[each]])]

    def _covering(self, topic_filter: str) -> int | None:
        """Return the first route before that takes every topic of a filter, whatever the message."""
        # A topic of the filter like no other: who takes all takes this one.
        levels = topic_filter.split("/")
        sample = "/".join("\ufffd" if level in ("+", "#") else level for level in levels)
        places = [
            place
            for filter_id in self._index.match(sample)
            for place in self._places[filter_id]
            if not self.routes[place].conditions
            and self.routes[place].settings.invalid_json == "absent"
            and all_allowed(levels, [(self.routes[place].filter.split("/"), True)]).is_allowed
        ]
        return min(places, default=None)


def _check_broker_topic(topic: str, where: str) -> None:
    if topic in _RESERVED or topic.startswith(_RESERVED_PREFIXES):
        raise ConfigError(f"{where} = {topic!r}: a topic that brokers keep for themselves")


def _check_filter(topic_filter: str, where: str) -> None:
    if not topics.is_valid_filter(topic_filter):
        raise ConfigError(
            f"{where}.filter = {topic_filter!r}: not an MQTT topic filter (+ and # stand alone, # last)"
        )
    if topic_filter.count("/") >= limits.MQTT_TOPIC_LEVELS_MAX:
        raise ConfigError(
            f"{where}.filter: more than {limits.MQTT_TOPIC_LEVELS_MAX} levels, which no topic has"
        )


def _unfilled(topic_filter: str, where: str, named: Sequence[tuple[str, Sequence[Placeholder]]]) -> list[str]:
    """Say which levels no topic of the filter has."""
    levels = topic_filter.split("/")
    if levels[-1] == "#":
        return []
    return [
        f"{where}.{name} has {{{each.text}}}, but the last level of {topic_filter} is {{{len(levels) - 1}}}"
        for name, placeholders in named
        for each in placeholders
        if each.text.isdecimal() and int(each.text) >= len(levels)
    ]


def _check_property(name: str, where: str) -> None:
    is_users = name.startswith(MQTT_USER_PREFIX) and len(name) > len(MQTT_USER_PREFIX)
    if (
        not name.isprintable()
        or not name
        or NAME_END in name
        or PROPERTY_END in name
        or name in _RESERVED_NAMES
        or (name.startswith("MQTT_") and not is_users)
    ):
        raise ConfigError(
            f"{where}.properties: {name!r} cannot be the name of a property: iotmq uses it, or it begins "
            f"with MQTT_ ({MQTT_USER_PREFIX}NAME is a user property of MQTT 5), or it has control characters"
        )
