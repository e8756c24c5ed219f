"""Subscriptions that every session has without asking (`[[mqtt.auto_subscriptions]]`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from iotmq import limits
from iotmq.errors import ConfigError
from iotmq.mqtt.codec.subscription_options import NO_LOCAL, SubscriptionOptions
from iotmq.mqtt.topics import topics
from iotmq.mqtt_front.routing.device_names import CLIENT_ID, USER_NAME, DeviceNames, has_names, with_names
from iotmq.mqtt_front.settings.topics import AutoSubscriptionSettings

_log: Final = logging.getLogger("iotmq.mqtt")


class AutoSubscriptions:
    """Subscribe sessions when they open. Raises ConfigError for an invalid filter."""

    def __init__(self, subscriptions: Iterable[AutoSubscriptionSettings] = ()) -> None:
        self._subscriptions = tuple((settings.filter, _options(settings)) for settings in subscriptions)
        for number, (topic_filter, options) in enumerate(self._subscriptions):
            _check(topic_filter, options, f"mqtt.auto_subscriptions[{number}]")
        self.has_names = any(has_names(topic_filter) for topic_filter, _ in self._subscriptions)
        """Some filter needs to know the device."""
        self.refused = 0
        """Filters that are none with the names of a device."""

    def __bool__(self) -> bool:
        return bool(self._subscriptions)

    def of(self, names: DeviceNames | None) -> list[tuple[str, int]]:
        """Filters and options, as in a SUBSCRIBE, for a device; `names` may be None unless `has_names`.

        A filter that is none with its names is left out, and counted.
        """
        found = []
        for topic_filter, options in self._subscriptions:
            try:
                if has_names(topic_filter):
                    assert names is not None, "filters with names are asked with a device's"
                    topic_filter = with_names(topic_filter, names)
                    if len(topic_filter.encode()) > limits.MQTT_TOPIC_BYTES_MAX:
                        raise ValueError(f"more than {limits.MQTT_TOPIC_BYTES_MAX} bytes")
            except ValueError as error:
                self.refused += 1
                client_id = None if names is None else names.client_id
                _log.debug("no auto-subscription", extra={"client": client_id, "detail": str(error)})
            else:
                found.append((topic_filter, options))
        return found


def _options(settings: AutoSubscriptionSettings) -> int:
    return SubscriptionOptions(
        settings.qos, settings.no_local, settings.retain_as_published, settings.retain_handling
    ).encode()


def _check(topic_filter: str, options: int, where: str) -> None:
    plain = topic_filter.replace(CLIENT_ID, "c").replace(USER_NAME, "u")
    try:
        if topics.is_shared(plain):
            topics.split_shared(plain)
            if options & NO_LOCAL:
                raise ValueError("no_local is not for shared subscriptions")
        if topics.is_exclusive(plain):
            topics.split_exclusive(plain)
        if not topics.is_valid_filter(plain) or not plain.isprintable():
            raise ValueError("not an MQTT topic filter (+ and # stand alone, # last)")
        if plain.count("/") >= limits.MQTT_TOPIC_LEVELS_MAX:
            raise ValueError(f"more than {limits.MQTT_TOPIC_LEVELS_MAX} levels")
    except ValueError as error:
        raise ConfigError(f"{where}.filter = {topic_filter!r}: {error}") from None
