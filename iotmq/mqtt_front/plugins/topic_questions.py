"""Answer for topics, out of what plug-ins say.

`may` can be awaited on any loop, but on one only: what it remembers is not locked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Final

from iotmq.clock import Clock
from iotmq.metrics import Metric, samples
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.plugins.combination import Combined, combined
from iotmq.mqtt_front.plugins.guards import is_ldap_name, is_unguarded_name
from iotmq.mqtt_front.plugins.host import PluginHost
from iotmq.mqtt_front.plugins.light_session import LightSession
from iotmq.mqtt_front.plugins.sessions import PluginSessions, proof_of
from iotmq.mqtt_front.plugins.topic_answers import Asked, TopicAnswers
from iotmq.mqtt_front.plugins.wildcards import has_wildcards, is_contained, matches_any, probes_of

_SHARE_LEVELS: Final = 2


class PluginTopics:
    """Asks the plug-ins that filter topics."""

    name: Final = "plug-ins"

    def __init__(
        self,
        hosts: Sequence[PluginHost],
        sessions: PluginSessions,
        clock: Clock,
        actions: Mapping[str, Any],
    ) -> None:
        """`actions` are amqtt's own, by their name."""
        self._hosts = hosts
        self._sessions = sessions
        self._clock = clock
        self._actions = actions
        self._answers = TopicAnswers()
        self._cache_s = min(host.plugin.settings.cache_s for host in hosts)
        # Questions under way, so that the same one is not asked twice at a time.
        self._asking: dict[Asked, asyncio.Future[Combined]] = {}
        self._remembered_total = 0

    def remembered(
        self, identity: Identity | None, client_id: str, action: str, topic: str
    ) -> tuple[bool | None] | None:
        """Return the answer in a tuple, if it was given lately; for those who cannot wait."""
        session = self._sessions.shown(identity, client_id)
        return self._answers.find(_asked(session, identity, action, topic), self._clock.monotonic_s())

    async def may(self, identity: Identity | None, client_id: str, action: str, topic: str) -> bool | None:
        """Return whether the device may "publish", "subscribe" or "receive"; None: there is no opinion.

        `topic` is a filter for "subscribe", where `$share/GROUP/` does not count.
        """
        if action == "subscribe" and topic.startswith("$share/"):
            topic = topic.split("/", _SHARE_LEVELS)[-1]
        session = self._sessions.shown(identity, client_id)
        asked = _asked(session, identity, action, topic)
        found = self._answers.find(asked, self._clock.monotonic_s())
        if found is not None:
            self._remembered_total += 1
            return found[0]
        asking = self._asking.get(asked)
        if asking is None:
            asking = self._asking[asked] = asyncio.ensure_future(self._ask(session, asked))
            asking.add_done_callback(lambda _: self._asking.pop(asked, None))
        # Who gives up leaves the question to others who wait for the same.
        return (await asyncio.shield(asking)).answer

    def forget(self) -> None:
        """Have everything asked again."""
        self._answers.clear()

    def metrics(self) -> Iterable[Metric]:
        """Report what is remembered."""
        yield from samples(
            (
                "iotmq_mqtt_plugin_topics_remembered",
                "Answers of plug-ins about topics that are remembered.",
                len(self._answers),
            ),
            (
                "iotmq_mqtt_plugin_topics_remembered_bytes",
                "About how many bytes these take.",
                self._answers.size,
            ),
            (
                "iotmq_mqtt_plugin_topics_remembered_total",
                "Questions about topics that were answered out of these.",
                self._remembered_total,
            ),
        )

    async def _ask(self, session: LightSession, asked: Asked) -> Combined:
        result = await combined([(host.name, self._ask_one(host, session, asked)) for host in self._hosts])
        if result.is_final and self._cache_s:
            self._answers.keep(asked, result.answer, self._clock.monotonic_s() + self._cache_s)
        return result

    async def _ask_one(self, host: PluginHost, session: LightSession, asked: Asked) -> bool | None:
        plugin = host.plugin
        if not is_unguarded_name(asked.user) or (plugin.known.is_ldap and not is_ldap_name(asked.user)):
            return False
        if asked.action != "subscribe":
            return await self._said(host, session, asked.action, asked.topic)
        if not has_wildcards(asked.topic):
            return await self._subscribed(host, session, asked.topic)
        if plugin.settings.wildcards == "refuse":
            return False
        if plugin.known.filters_by_user:
            by_user: Mapping[str, Sequence[str]] = getattr(plugin.options, plugin.known.filters_by_user)
            return is_contained(asked.topic, by_user.get(asked.user or "anonymous", ()))
        if plugin.known.denied_topics and asked.user != "admin":
            return not matches_any(asked.topic, plugin.known.denied_topics)
        if plugin.settings.wildcards == "as-asked":
            return await self._subscribed(host, session, asked.topic)
        answer = await self._said(host, session, "subscribe", asked.topic)
        if answer is not True:
            return answer
        for probe in probes_of(asked.topic):
            if await self._subscribed(host, session, probe) is not True:
                return False
        return True

    async def _subscribed(self, host: PluginHost, session: LightSession, topic: str) -> bool | None:
        """Ask about a subscription: who may not receive a topic, which amqtt asks later, does not get it."""
        answer = await self._said(host, session, "subscribe", topic)
        if answer is False or await self._said(host, session, "receive", topic) is not False:
            return answer
        return False

    def _said(
        self, host: PluginHost, session: LightSession, action: str, topic: str
    ) -> Awaitable[bool | None]:
        return host.ask(
            "topic_filtering", {"session": session, "topic": topic, "action": self._actions[action]}
        )


def _asked(session: LightSession, identity: Identity | None, action: str, topic: str) -> Asked:
    return Asked(session.client_id, session.username, action, topic, proof_of(session, identity))
