"""All plug-ins of a front end: started, asked, told and stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from iotmq.clock import Clock
from iotmq.errors import ConfigError
from iotmq.metrics import Metric, samples
from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.plugins.context import Publish
from iotmq.mqtt_front.plugins.host import PluginHost
from iotmq.mqtt_front.plugins.light_session import LightSession
from iotmq.mqtt_front.plugins.loader import LoadedPlugin, load
from iotmq.mqtt_front.plugins.sessions import PluginSessions
from iotmq.mqtt_front.plugins.topic_questions import PluginTopics
from iotmq.mqtt_front.settings.plugins import PluginsSettings

_ACTIONS: Final = ("publish", "subscribe", "receive")


class Plugins:
    """The plug-ins of the settings. On the loop of the front end, but for `host` and what it returns."""

    def __init__(self, settings: PluginsSettings, publish: Publish, clock: Clock) -> None:
        """ConfigError when a plug-in is not there, or its options are wrong."""
        loaded = [load(each) for each in settings.amqtt]
        names = [plugin.settings.shown_name for plugin in loaded]
        for name in sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"two plug-ins have the name {name}: give one a name")
        self._settings = settings
        self._sessions = PluginSessions(keeps_passwords=any(each.known.keeps_password for each in loaded))
        self._needs_sessions = any(map(_needs_sessions, loaded))
        self._hosts = {
            plugin.settings.shown_name: PluginHost(plugin, self._sessions.by_client_id, publish, clock)
            for plugin in loaded
        }
        deciding = [host for host in self._hosts.values() if host.plugin.filters_topics]
        self.topics = PluginTopics(deciding, self._sessions, clock, _actions()) if deciding else None
        """Answers for topics; None without a plug-in that does."""

    @property
    def needs_sessions(self) -> bool:
        """Return whether it has to be told which devices connect."""
        return self._needs_sessions

    @property
    def authenticating_names(self) -> set[str]:
        """Return the names of all that authenticate."""
        return {name for name, host in self._hosts.items() if host.plugin.authenticates}

    def authenticating(self, names: Sequence[str], setting: str) -> list[PluginHost]:
        """Return the plug-ins of these names that authenticate, or all. ConfigError: there is none."""
        for name in names:
            if name not in self._hosts or not self._hosts[name].plugin.authenticates:
                raise ConfigError(f"{setting} names {name}, which is no plug-in that authenticates")
        found = [
            host
            for name, host in self._hosts.items()
            if host.plugin.authenticates and (not names or name in names)
        ]
        if not found:
            raise ConfigError(f"{setting} asks plug-ins, and mqtt.plugins.amqtt has none that authenticates")
        return found

    async def start(self) -> None:
        """Start all, one after the other. PluginStartError when one does not."""
        for host in self._hosts.values():
            await host.start(self._settings.start_timeout_s)

    async def started(self) -> None:
        """Tell all that devices may connect."""
        for host in self._hosts.values():
            await host.started(self._settings.start_timeout_s)

    async def stop(self) -> None:
        """End all. May be called twice, and without a start."""
        await asyncio.gather(*(host.stop() for host in self._hosts.values()))

    def opening(self, identity: Identity | None, client_id: str, connect: Connect) -> LightSession:
        """A device is about to connect, of which nobody is told yet."""
        return self._sessions.opening(identity, client_id, connect)

    def opened(self, session: LightSession) -> None:
        """A device has connected."""
        self._sessions.opened(session)
        words = {"client_id": session.client_id, "client_session": session}
        self._tell("broker_client_connected", words)

    def closed(self, session: LightSession) -> None:
        """A connection is over, or was refused."""
        if self._sessions.closed(session):
            words = {"client_id": session.client_id, "client_session": session}
            self._tell("broker_client_disconnected", words)

    def subscribed(self, client_id: str, topic_filter: str, qos: int) -> None:
        """A device has a subscription."""
        self._tell("broker_client_subscribed", {"client_id": client_id, "topic": topic_filter, "qos": qos})

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """A device has given one up."""
        self._tell("broker_client_unsubscribed", {"client_id": client_id, "topic": topic_filter})

    def _tell(self, event: str, words: Mapping[str, Any]) -> None:
        for host in self._hosts.values():
            host.tell(event, words)

    def metrics(self) -> Iterable[Metric]:
        """Report each plug-in, and what is remembered."""
        for host in self._hosts.values():
            yield from host.metrics()
        if self.topics is not None:
            yield from self.topics.metrics()
        if self._needs_sessions:
            text = "Devices that plug-ins are shown."
            yield from samples(("iotmq_mqtt_plugin_sessions", text, len(self._sessions)))


def _needs_sessions(plugin: LoadedPlugin) -> bool:
    return plugin.filters_topics or bool(plugin.events)


def _actions() -> Mapping[str, Any]:
    from amqtt.contexts import Action  # type: ignore[import-untyped]

    return {name: Action(name) for name in _ACTIONS}
