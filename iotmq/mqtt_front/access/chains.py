"""Make the links of the settings, the chain of each listener, and the loop on which they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain as chained
from typing import Final

import msgspec

from iotmq.clock import Clock
from iotmq.metrics import Metric
from iotmq.mqtt_front.access.access_loop import AccessLoop
from iotmq.mqtt_front.access.chain import Chain, Decision
from iotmq.mqtt_front.access.chain_link import ChainLink
from iotmq.mqtt_front.access.links.link import Link
from iotmq.mqtt_front.settings.authentication import NOBODY, AnyLinkSettings, AuthenticationSettings
from iotmq.mqtt_front.settings.links import (
    CertificateLinkSettings,
    HttpLinkSettings,
    JwtLinkSettings,
    UsersLinkSettings,
)
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.settings.plugins import AmqttLinkSettings
from iotmq.mqtt_front.settings.service_links import LdapLinkSettings, RedisLinkSettings, SqlLinkSettings

PluginLink = Callable[[AmqttLinkSettings], Link]
"""Makes the links that ask plug-ins, which stand above this room."""

# Longer than any process lives: what is remembered of users is forgotten when the file says something else.
_ALWAYS_S: Final = 1e9
_SOON_S: Final = 60.0


class Chains:
    """All chains of a front end. Methods are for its thread."""

    def __init__(
        self,
        settings: MqttSettings,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        plugin_link: PluginLink | None = None,
    ) -> None:
        """ConfigError when a link cannot be used as it is set."""
        common = settings.authentication
        self.places: Mapping[str, ChainLink] = {
            link.name: _place(link, common, clock, plugin_link)
            for link in common.chain or (_only_users(common),)
        }
        self._loop = AccessLoop(list(self.places.values()), loop)
        self._default = self._chain(list(self.places), common)
        self._of_listener: dict[str, Chain | None] = {
            listener.name: None if listener.chain == (NOBODY,) else self._chain(listener.chain, common)
            for listener in settings.all_listeners
            if listener.chain is not None
        }

    def _chain(self, names: Sequence[str], common: AuthenticationSettings) -> Chain:
        links = [self.places[name] for name in names]
        return Chain(links, allow_anonymous=common.allow_anonymous)

    def of(self, listener: str) -> Chain | None:
        """Return the chain of a listener; None where nobody is asked."""
        return self._of_listener.get(listener, self._default)

    def ask(self, decision: Decision) -> None:
        """Have a decision made; its `done` is called later."""
        self._loop.ask(decision)

    def start(self) -> None:
        """Begin; once."""
        self._loop.start()

    def close(self) -> None:
        """Stop; nothing is decided any more. May be called twice."""
        self._loop.close()

    async def wait_closed(self) -> None:
        """Wait until everything has stopped, but not for long."""
        await self._loop.wait_closed()

    def metrics(self) -> Iterable[Metric]:
        yield from chained.from_iterable(place.metrics() for place in self.places.values())


def _only_users(common: AuthenticationSettings) -> UsersLinkSettings:
    """Return the link that a users_file is without a chain."""
    return UsersLinkSettings(
        name="users",
        unknown_users="deny",
        timeout_s=_SOON_S,
        wait_s=_SOON_S,
        waiting_max=common.waiting_max,
        cache_s=_ALWAYS_S,
        refusal_cache_s=0.0,
        cached_max=common.verified_max,
    )


def _place(
    settings: AnyLinkSettings, common: AuthenticationSettings, clock: Clock, plugin_link: PluginLink | None
) -> ChainLink:
    how = settings.__struct_config__.tag
    if isinstance(settings, UsersLinkSettings):
        how = "password"
        settings = msgspec.structs.replace(settings, at_once_max=common.threads)
    return ChainLink(settings, _link(settings, common, clock, plugin_link), clock, how=str(how))


def _link(
    settings: AnyLinkSettings, common: AuthenticationSettings, clock: Clock, plugin_link: PluginLink | None
) -> Link:
    """Make a link; what it needs is loaded only where there is one."""
    match settings:
        case UsersLinkSettings():
            from iotmq.mqtt_front.access.links.users import UsersLink

            return UsersLink(settings, common)
        case CertificateLinkSettings():
            from iotmq.mqtt_front.access.links.certificate import CertificateLink

            return CertificateLink(settings)
        case JwtLinkSettings():
            from iotmq.mqtt_front.access.links.jwt import JwtLink

            return JwtLink(settings, clock)
        case HttpLinkSettings():
            from iotmq.mqtt_front.access.links.http import HttpLink

            return HttpLink(settings)
        case SqlLinkSettings():
            from iotmq.mqtt_front.access.links.sql import SqlLink

            return SqlLink(settings)
        case LdapLinkSettings():
            from iotmq.mqtt_front.access.links.ldap import LdapLink

            return LdapLink(settings)
        case RedisLinkSettings():
            from iotmq.mqtt_front.access.links.redis import RedisLink

            return RedisLink(settings)
        case AmqttLinkSettings():
            assert plugin_link is not None, "config._chain_contradictions sees to it"
            return plugin_link(settings)
