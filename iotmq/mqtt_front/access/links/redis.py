"""Look users up in Redis: a hash for each, under a key that has the device's name in it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from iotmq.errors import ConfigError
from iotmq.metrics import Metric, samples
from iotmq.mqtt_front.access.links.link import LinkFailedError
from iotmq.mqtt_front.access.links.looked_up import (
    FIELDS,
    PARAMETERS,
    LookedUp,
    looked_at,
    parameters_of,
)
from iotmq.mqtt_front.access.verdicts import NOT_MINE, Accepted, Credentials, Denied, NotMine
from iotmq.mqtt_front.settings.service_links import RedisLinkSettings

if TYPE_CHECKING:
    from redis.asyncio import Redis

_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
# What a name may have that becomes a part of a key: none of the characters that part one from the next.
_MARKS: Final = frozenset("-_.@+=~")


class RedisLink:
    """A link of the authentication chain."""

    def __init__(self, settings: RedisLinkSettings) -> None:
        """ConfigError when the key names no device, or the library is missing."""
        self.name = settings.name
        self._settings = settings
        _check_key(f"{self.name}.key", settings.key)
        self._looked_up = LookedUp(settings)
        self._client: Redis = _client(settings)
        self._look_ups_total = 0

    async def start(self) -> None:
        """Connections are made when they are needed: a Redis that is down stops no start."""

    async def close(self) -> None:
        """Give up the connections."""
        self._looked_up.close()
        await self._client.aclose()

    def told(self, asked: Credentials) -> bytes:
        """Return what the answer depends on (links.link.Link)."""
        return self._looked_up.told(asked, set(_PLACEHOLDER.findall(self._settings.key)))

    async def decide(self, asked: Credentials) -> Accepted | Denied | NotMine:
        """LinkFailedError when Redis does not answer, or has something else there."""
        from redis.exceptions import RedisError

        if not self._looked_up.is_question(asked):
            return NOT_MINE
        key = key_of(self._settings.key, asked)
        if key is None:
            return NOT_MINE
        self._look_ups_total += 1
        try:
            # The fields by name: whoever may write into Redis may make a hash of any size.
            values: list[Any] = await self._client.hmget(key, list(FIELDS))
        except (RedisError, OSError, TimeoutError) as error:
            raise LinkFailedError(f"Redis: {type(error).__name__}: {error}"[:200]) from error
        fields = {name: _text(name, value) for name, value in zip(FIELDS, values, strict=True) if value}
        found = looked_at(asked, _PLACEHOLDER.findall(self._settings.key))
        return await self._looked_up.verdict(found, fields or None)

    def metrics(self) -> Iterable[Metric]:
        """Report look-ups."""
        yield from samples(
            ("iotmq_mqtt_redis_look_ups_total", "Devices that were looked up.", self._look_ups_total),
            labels=(("link", self.name),),
        )


def key_of(template: str, asked: Credentials) -> str | None:
    """Return the key of a device; None for one whose name cannot be a part of a key."""
    parameters = parameters_of(asked)
    for name in _PLACEHOLDER.findall(template):
        value = parameters[name]
        if not value or not all(each.isalnum() or each in _MARKS for each in value):
            return None
    return _PLACEHOLDER.sub(lambda found: parameters[found[1]] or "", template)


def _check_key(setting: str, template: str) -> None:
    names = _PLACEHOLDER.findall(template)
    if unknown := sorted(set(names).difference(PARAMETERS)):
        raise ConfigError(
            f"{setting} has {{{unknown[0]}}}, which is none of "
            f"{', '.join(f'{{{name}}}' for name in PARAMETERS)}"
        )
    if not set(names) & {"user_name", "client_id", "certificate_identity"}:
        raise ConfigError(
            f"{setting} names no device: it has none of "
            "{user_name}, {client_id} and {certificate_identity}"
        )


def _text(field: str, value: object) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise LinkFailedError(f"{field} is not UTF-8") from None


def _client(settings: RedisLinkSettings) -> Redis:
    try:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import ConnectionError as LostError
    except ImportError:
        raise ConfigError(f"{settings.name} needs redis: pip install iotmq[redis]") from None
    try:
        pool = BlockingConnectionPool.from_url(
            settings.url,
            max_connections=settings.connections_max,
            timeout=settings.timeout_s,
            socket_timeout=settings.timeout_s,
            socket_connect_timeout=settings.timeout_s,
            # A Redis that was started again: the connection of before is found to be gone, and asked anew.
            retry=Retry(NoBackoff(), 1),
            retry_on_error=[LostError],
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{settings.name}.url: {error}") from error
    return Redis.from_pool(pool)
