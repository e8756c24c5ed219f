"""Other names for topics and filters (`[[mqtt.rewrites]]`).

Of the rules for what a device does (publish, subscribe) the last one whose filter matches is chosen. When its
pattern is found in the topic, the template takes the topic's place, once; else the topic stays as it is. What
comes out is remembered by who publishes: per topic, and where a template has names of devices, per device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import TOPIC_FILTER_INVALID, TOPIC_NAME_INVALID
from iotmq.mqtt.topics import topics
from iotmq.mqtt_front.patterns import Pattern, compile_pattern
from iotmq.mqtt_front.routing.device_names import DeviceNames, has_names, with_names
from iotmq.mqtt_front.routing.refused_filters import refused_filter
from iotmq.mqtt_front.settings.topics import RewriteSettings

_GROUP: Final = re.compile(r"\$(\d{1,2})")
_REFUSED: Final = refused_filter(TOPIC_FILTER_INVALID)


class _Rule(NamedTuple):
    filter: str
    pattern: Pattern
    # Text of the template and numbers of groups, one after the other.
    parts: list[str]
    has_names: bool

    def name(self, topic: str, names: DeviceNames | None) -> str | None:
        """Return the new name; None when the topic keeps its own. ValueError when there can be none."""
        size = len(topic.encode())
        if size > limits.MQTT_REWRITE_TOPIC_BYTES_MAX:
            raise ValueError(
                f"{size} bytes; what is to be rewritten has at most {limits.MQTT_REWRITE_TOPIC_BYTES_MAX}"
            )
        found = self.pattern.search(topic)
        if found is None:
            return None
        parts = [
            part if number % 2 == 0 else found[int(part)] or "" for number, part in enumerate(self.parts)
        ]
        if self.has_names:
            assert names is not None, "a rule with names is asked with a device's"
            parts[::2] = [with_names(text, names) for text in parts[::2]]
        return "".join(parts)


class TopicRewrites:
    """The rules of a front end. Raises ConfigError for one that cannot be used, which it names."""

    def __init__(self, rewrites: Iterable[RewriteSettings] = ()) -> None:
        publish, subscribe = [], []
        for number, settings in enumerate(rewrites):
            rule = _compiled(settings, f"mqtt.rewrites[{number}]")
            if settings.action != "subscribe":
                publish.append(rule)
            if settings.action != "publish":
                subscribe.append(rule)
        # The last one decides.
        self._publish = tuple(reversed(publish))
        self._subscribe = tuple(reversed(subscribe))
        self.has_names = any(rule.has_names for rule in (*publish, *subscribe))
        """Some rule needs to know the device."""
        self.has_filters = bool(subscribe)
        """Some rule is for filters."""
        self.filters_refused = 0
        """Filters whose new name is none."""

    def is_personal(self, topic: str) -> bool:
        """Return whether what is published to the topic gets a name that depends on the device."""
        rule = _chosen(self._publish, topic)
        return rule is not None and rule.has_names

    def published(self, topic: str, names: DeviceNames | None) -> str:
        """The topic that what is published to `topic` is for; `names` may be None unless `is_personal`.

        Raises MqttProtocolError when the new name is no topic name.
        """
        rule = _chosen(self._publish, topic)
        if rule is None:
            return topic
        try:
            name = rule.name(topic, names)
        except ValueError as error:
            raise MqttProtocolError(TOPIC_NAME_INVALID, f"the topic cannot be rewritten: {error}") from None
        return topic if name is None else topics.decode_topic_name(name.encode())

    def subscribed(self, topic_filter: str, names: DeviceNames | None) -> str | None:
        """Return the filter that is meant by `topic_filter`, with prefixes left alone; None for none."""
        if not self._subscribe or topic_filter[0] == "\0":
            # Or refused already (refused_filters).
            return topic_filter
        prefix, plain = split_prefix(topic_filter)
        rule = _chosen(self._subscribe, plain)
        if rule is None:
            return topic_filter
        try:
            name = rule.name(plain, names)
            return topic_filter if name is None else prefix + topics.decode_topic_filter(name.encode())
        except (ValueError, MqttProtocolError):
            self.filters_refused += 1
            return None

    def subscriptions(
        self, wanted: Iterable[tuple[str, int]], names: DeviceNames | None
    ) -> tuple[tuple[str, int], ...]:
        """Filters and options of a SUBSCRIBE under their new names; those that have none are refused."""
        if not self._subscribe:
            return tuple(wanted)
        return tuple((self.subscribed(name, names) or _REFUSED, options) for name, options in wanted)

    def unsubscriptions(
        self, filters: Iterable[str], names: DeviceNames | None, known: Mapping[str, int]
    ) -> tuple[str, ...]:
        """Filters of an UNSUBSCRIBE with their new names; a session may be older than the rules."""
        if not self._subscribe:
            return tuple(filters)
        new = [(name, self.subscribed(name, names)) for name in filters]
        return tuple(
            found if found is not None and (found in known or name not in known) else name
            for name, found in new
        )


def _chosen(rules: Iterable[_Rule], topic: str) -> _Rule | None:
    return next((rule for rule in rules if topics.matches(rule.filter, topic)), None)


def split_prefix(topic_filter: str) -> tuple[str, str]:
    """Split a shared or exclusive subscription into its prefix and its filter."""
    if topics.is_exclusive(topic_filter):
        plain = topic_filter.partition("/")[2]
        return topic_filter.removesuffix(plain), plain
    if topics.is_shared(topic_filter):
        try:
            _, plain = topics.split_shared(topic_filter)
        except ValueError:
            # Refused as it is.
            return topic_filter, ""
        return topic_filter.removesuffix(plain), plain
    return "", topic_filter


def _compiled(settings: RewriteSettings, where: str) -> _Rule:
    if not topics.is_valid_filter(settings.filter):
        raise ConfigError(
            f"{where}.filter = {settings.filter!r}: not an MQTT topic filter (+ and # stand alone, # last)"
        )
    try:
        pattern = compile_pattern(settings.pattern)
    except ValueError as error:
        raise ConfigError(f"{where}.pattern = {settings.pattern!r}: {error}") from None
    for number in _GROUP.findall(settings.template):
        if not 1 <= int(number) <= pattern.groups:
            raise ConfigError(
                f"{where}.template = {settings.template!r}: the pattern has no group ${number}, only "
                f"{pattern.groups}"
            )
    if not settings.template.isprintable():
        raise ConfigError(f"{where}.template = {settings.template!r}: a topic has no control characters")
    if settings.action != "subscribe" and ("+" in settings.template or "#" in settings.template):
        raise ConfigError(
            f"{where}.template = {settings.template!r}: nothing is published to a topic with wildcards; with "
            'action = "subscribe" it may have them'
        )
    return _Rule(settings.filter, pattern, _GROUP.split(settings.template), has_names(settings.template))
