"""Rules of a bridge as a function from topics to topics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import TOPIC_NAME_INVALID
from iotmq.mqtt.topics import topics
from iotmq.mqtt_bridge.settings import ReceiveRuleSettings, SendRuleSettings
from iotmq.mqtt_front.routing.device_names import DeviceNames

_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_LEVEL: Final = re.compile(r"(\d{1,3})(:?)")


class _Template:
    """A template of a topic. Raises ConfigError for one that cannot be used."""

    def __init__(self, text: str, *, gateway: str, where: str) -> None:
        self._text = text
        self._gateway = gateway
        for name in _PLACEHOLDER.findall(text):
            if name not in ("topic", "gateway") and not _LEVEL.fullmatch(name):
                raise ConfigError(
                    f"{where} = {text!r}: {{{name}}} is not known; use {{topic}}, {{gateway}}, a level "
                    "such as {1}, or levels such as {1:}"
                )
        plain = _PLACEHOLDER.sub("", text)
        if "+" in plain or "#" in plain or not plain.isprintable() or "{" in plain or "}" in plain:
            raise ConfigError(f"{where} = {text!r}: not the template of an MQTT topic")

    def topic(self, topic: str) -> str:
        """Return what stands for the topic; it may be none that is legal."""
        return self._filled(topic, topic.split("/"))

    def filter(self, topic_filter: str) -> str:
        """Return what stands for the topics of a filter, with + and # where anything may stand."""
        levels = topic_filter.split("/")
        if levels[-1] == "#":
            levels += ["#"] * limits.MQTT_TOPIC_LEVELS_MAX
        return self._filled(topic_filter, levels)

    def _filled(self, topic: str, levels: list[str]) -> str:
        def value(found: re.Match[str]) -> str:
            name = found[1]
            if name == "topic":
                return topic
            if name == "gateway":
                return self._gateway
            level = _LEVEL.fullmatch(name)
            assert level is not None
            first = int(level[1])
            return "/".join(levels[first:]) if level[2] else "/".join(levels[first : first + 1])

        return _PLACEHOLDER.sub(value, self._text)


class SentTopic(NamedTuple):
    """How messages of one topic go to the other broker."""

    topic: bytes
    qos_min: int
    qos_max: int
    is_retain_kept: bool


class SendMap:
    """The topics of a bridge's send rules."""

    def __init__(self, rules: Sequence[SendRuleSettings], *, gateway: str, where: str) -> None:
        self._rules = [
            (rule, _Template(rule.topic, gateway=gateway, where=f"{where}.send[{place}].topic"))
            for place, rule in enumerate(rules)
        ]
        for place, rule in enumerate(rules):
            _check_filter(rule.filter, f"{where}.send[{place}].filter")
            if rule.qos_min > rule.qos_max:
                raise ConfigError(f"{where}.send[{place}].qos_min is above qos_max")

    def filters(self) -> list[str]:
        """Return filters of the topics there: + in a level is any text, # any levels, inside, too."""
        return [template.filter(rule.filter) for rule, template in self._rules]

    def find(self, raw: bytes) -> SentTopic | None:
        """Return where a topic goes; None for one that stays, or that has no legal name there."""
        topic = raw.decode("utf-8", "replace")
        for rule, template in self._rules:
            if topics.matches(rule.filter, topic):
                try:
                    name = topics.decode_topic_name(template.topic(topic).encode())
                except MqttProtocolError:
                    return None
                if name.startswith(topics.SYS_PREFIX):
                    return None
                return SentTopic(name.encode(), rule.qos_min, rule.qos_max, rule.retain)
        return None


class ReceiveMap:
    """The topics of a bridge's receive rules, in the place of the rewrites of a front end."""

    has_names = False
    filters_refused = 0

    def __init__(self, rules: Sequence[ReceiveRuleSettings], *, gateway: str, where: str) -> None:
        self._rules: list[tuple[str, _Template]] = []
        for place, rule in enumerate(rules):
            plain = rule.filter
            if topics.is_shared(plain):
                try:
                    plain = topics.split_shared(plain)[1]
                except ValueError as error:
                    raise ConfigError(f"{where}.receive[{place}].filter = {rule.filter!r}: {error}") from None
            _check_filter(plain, f"{where}.receive[{place}].filter")
            template = _Template(rule.topic, gateway=gateway, where=f"{where}.receive[{place}].topic")
            self._rules.append((plain, template))

    def is_personal(self, topic: str) -> bool:
        """Return whether the name depends on the device: it does not."""
        return False

    def published(self, topic: str, names: DeviceNames | None) -> str:
        """The topic here of what is published there; MqttProtocolError when it has none."""
        for topic_filter, template in self._rules:
            if topics.matches(topic_filter, topic):
                return topics.decode_topic_name(template.topic(topic).encode())
        raise MqttProtocolError(TOPIC_NAME_INVALID, f"no rule of the bridge is for {topic!r}")


def _check_filter(topic_filter: str, where: str) -> None:
    if not topics.is_valid_filter(topic_filter):
        raise ConfigError(
            f"{where} = {topic_filter!r}: not an MQTT topic filter (+ and # stand alone, # last)"
        )
