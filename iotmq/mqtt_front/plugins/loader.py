"""Make a plug-in's class and its options of the settings.

amqtt's own loader refuses what its documentation shows: words for options that are enumerations, names with
dashes, files as text. Here they are taken, and what is wrong is named.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from iotmq.errors import ConfigError
from iotmq.mqtt_front.plugins.known_classes import KnownClass, known
from iotmq.mqtt_front.settings.plugins import AmqttPluginSettings

_EVENTS: Final = (
    "broker_pre_start",
    "broker_post_start",
    "broker_pre_shutdown",
    "broker_post_shutdown",
)
FORWARDED_EVENTS: Final = (
    "broker_client_connected",
    "broker_client_disconnected",
    "broker_client_subscribed",
    "broker_client_unsubscribed",
)
"""Events of devices that plug-ins are told."""
UNHEARD_EVENTS: Final = (
    "broker_message_received",
    "broker_message_broadcast",
    "broker_retained_message",
    "mqtt_packet_sent",
    "mqtt_packet_received",
)
"""Events that plug-ins are never told: there is one for each message."""


class LoadedPlugin(NamedTuple):
    """A plug-in that can be made."""

    settings: AmqttPluginSettings
    plugin_class: type
    options: object
    """The `Config` of the class."""
    known: KnownClass
    authenticates: bool
    filters_topics: bool
    events: tuple[str, ...]
    """Those of FORWARDED_EVENTS it has a method for."""
    unheard: tuple[str, ...]
    """Those of UNHEARD_EVENTS it has a method for."""


def load(settings: AmqttPluginSettings) -> LoadedPlugin:
    """Return the plug-in. ConfigError names what is wrong."""
    setting = f"the plug-in {settings.shown_name}"
    try:
        from amqtt.plugins.base import (  # type: ignore[import-untyped]
            BaseAuthPlugin,
            BasePlugin,
            BaseTopicPlugin,
        )
    except ImportError:
        raise ConfigError(f"{setting} needs amqtt: pip install iotmq[amqtt]") from None
    plugin_class = _imported(setting, settings.class_path)
    if not isinstance(plugin_class, type) or not issubclass(plugin_class, BasePlugin):
        raise ConfigError(
            f"{setting}: {settings.class_path} is no class that derives from amqtt's BasePlugin"
        )
    authenticates = issubclass(plugin_class, BaseAuthPlugin)
    filters_topics = issubclass(plugin_class, BaseTopicPlugin)
    asked = [*(["authenticate"] if authenticates else []), *(["topic_filtering"] if filters_topics else [])]
    asked += [
        f"on_{event}" for event in (*_EVENTS, *FORWARDED_EVENTS) if hasattr(plugin_class, f"on_{event}")
    ]
    for method in (*asked, "close"):
        if not inspect.iscoroutinefunction(getattr(plugin_class, method)):
            raise ConfigError(f"{setting}: its method {method} is no coroutine (async def)")
    return LoadedPlugin(
        settings,
        plugin_class,
        options_of(plugin_class, [*settings.options.items(), *settings.secret_options.items()], setting),
        known(plugin_class),
        authenticates=authenticates,
        filters_topics=filters_topics,
        events=tuple(event for event in FORWARDED_EVENTS if hasattr(plugin_class, f"on_{event}")),
        unheard=tuple(event for event in UNHEARD_EVENTS if hasattr(plugin_class, f"on_{event}")),
    )


def options_of(plugin_class: type, options: Iterable[tuple[str, Any]], setting: str) -> object:
    """Return the `Config` of a class. ConfigError names the option that is not as it has to be."""
    from dacite import Config, DaciteError, MissingValueError, WrongTypeError, from_dict

    config_class = getattr(plugin_class, "Config", None)
    if not isinstance(config_class, type) or not dataclasses.is_dataclass(config_class):
        raise ConfigError(f"{setting}: {plugin_class.__name__} has no dataclass Config")
    names = {field.name for field in dataclasses.fields(config_class) if field.init}
    given: dict[str, Any] = {}
    for key, value in options:
        name = key.replace("-", "_")
        if name not in names:
            there = ", ".join(sorted(names)) or "none"
            raise ConfigError(f"{setting} has no option {key}; there are: {there}")
        if name in given:
            raise ConfigError(f"{setting} has the option {name} twice")
        given[name] = value
    try:
        return from_dict(config_class, given, Config(cast=[enum.Enum, Path], strict=True))
    except MissingValueError as error:
        raise ConfigError(f"{setting} needs the option {error.field_path}") from error
    except WrongTypeError as error:
        # Without the value, which may be a secret.
        raise ConfigError(f"{setting}: the option {error.field_path} is not of its type") from error
    except (DaciteError, ValueError, TypeError) as error:
        # An enumeration names the value it does not have; no secret is one.
        raise ConfigError(f"{setting}: an option is wrong: {error}") from error


def _imported(setting: str, class_path: str) -> object:
    module, _, name = class_path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f"{setting}: {class_path} cannot be imported: {error}") from error
    except AttributeError:
        raise ConfigError(f"{setting}: the module {module} has no {name}") from None
