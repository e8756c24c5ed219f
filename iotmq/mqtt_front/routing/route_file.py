"""The routes of a front end: those of its settings, or of a file that is read again when it changes."""

from __future__ import annotations

import asyncio
import logging
import re
import tomllib
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from iotmq import limits
from iotmq.errors import ConfigError, IotmqError
from iotmq.metrics import Metric, samples
from iotmq.mqtt_front.routing.routes import RouteBook, Router
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.settings.routes import ChecksumSettings, RouteSettings, RoutesFile
from iotmq.spelling import did_you_mean
from iotmq.supervised import supervise
from iotmq.watched_file import WatchedFiles

_log: Final = logging.getLogger("iotmq.mqtt")

_HEADER: Final = re.compile(r"\s*\[\[\s*routes\s*\]\]")
_UNKNOWN: Final = re.compile(r"unknown field `(.+)`")
_NAMES: Final = {"routes": "routes"}
_KEYS: Final = {
    name: name for name in (*RouteSettings.__struct_fields__, *ChecksumSettings.__struct_fields__)
}

AddTopics: TypeAlias = Callable[[Collection[str]], Coroutine[None, None, None]]


def read_routes(path: Path) -> tuple[RouteSettings, ...]:
    """Read a file of routes; ConfigError for one that is none, OSError when it cannot be read."""
    with path.open("rb") as file:
        content = file.read(limits.MQTT_ROUTES_FILE_BYTES_MAX + 1)
    if len(content) > limits.MQTT_ROUTES_FILE_BYTES_MAX:
        raise ConfigError(f"{path} has more than {limits.MQTT_ROUTES_FILE_BYTES_MAX} bytes")
    try:
        text = content.decode()
        table = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    try:
        return msgspec.convert(table, RoutesFile).routes
    except msgspec.ValidationError as error:
        problems = "\n".join(_problems(table, text, path))
        raise ConfigError(problems or f"{path}: {error}") from None


def _problems(table: dict[str, Any], text: str, path: Path) -> Iterable[str]:
    """Say what is wrong in each route, with the line it begins at, and in names beside them."""
    for key in table.keys() - {"routes"}:
        yield f"{path}: {key} is unknown{did_you_mean(key, _NAMES)}; a file of routes has [[routes]] only"
    routes = table.get("routes")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if _HEADER.match(line)]
    for place, route in enumerate(routes if isinstance(routes, list) else ()):
        try:
            msgspec.convert(route, RouteSettings)
        except msgspec.ValidationError as error:
            at = f" line {lines[place]}" if place < len(lines) else ""
            what, _, where = str(error).partition(" - at `$")
            unknown = _UNKNOWN.search(what)
            hint = did_you_mean(unknown[1], _KEYS) if unknown else ""
            yield f"routes[{place}]{where.rstrip('`')} ({path}{at}): {what}{hint}"


def open_router(settings: MqttSettings) -> Router:
    """Make the router that the settings describe; ConfigError when there can be none."""
    routes = settings.routes
    if settings.routes_file:
        if routes:
            raise ConfigError("mqtt.routes and mqtt.routes_file are both given: routes stand in one place")
        try:
            routes = read_routes(Path(settings.routes_file))
        except OSError as error:
            raise ConfigError(
                f"mqtt.routes_file = {settings.routes_file!r} cannot be read: {error.strerror}"
            ) from None
    return Router(
        routes,
        default_topic=settings.default_topic,
        quarantine_topic=settings.quarantine_topic,
        json_bytes_max=settings.json_bytes_max,
        place=f"{settings.routes_file}: routes" if settings.routes_file else "mqtt.routes",
    )


class RouteReloads:
    """The router of a front end, and the changes of mqtt.routes_file. ConfigError when there can be none."""

    def __init__(self, settings: MqttSettings) -> None:
        self._path = Path(settings.routes_file) if settings.routes_file else None
        self._interval_s = settings.routes_reload_interval_s
        self._watched = WatchedFiles(*([] if self._path is None else [self._path]))
        self.router = open_router(settings)
        self._reloading: asyncio.Task[None] | None = None
        self.reloads_count = 0
        self.failed_reloads_count = 0

    def start(self, add_topics: AddTopics, forget_routes: Callable[[], None]) -> None:
        """Begin to look for changes.

        `add_topics` has brokers know topics; `forget_routes` drops what is cached of former routes.
        """
        if self._path is not None:
            repeat = partial(self._reload_repeatedly, add_topics, forget_routes)
            self._reloading = supervise("reading of routes", repeat)

    def stop(self) -> None:
        """Look no more."""
        if self._reloading is not None:
            self._reloading.cancel()

    async def _reload_repeatedly(self, add_topics: AddTopics, forget_routes: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.reload(add_topics, forget_routes)

    async def reload(self, add_topics: AddTopics, forget_routes: Callable[[], None]) -> None:
        """Read the file if it has changed; routes that cannot be used change nothing and are counted."""
        if self._path is None:
            return
        try:
            book = await self._watched.read_changed(partial(self._read, self._path))
            if book is None:
                return
            await add_topics(self.router.topics_of(book))
        except (OSError, IotmqError) as error:
            self.failed_reloads_count += 1
            if not isinstance(error, (ConfigError, FileNotFoundError)):
                # A broker did not answer, or the file could not be opened: not the file has to change.
                self._watched.forget()
            _log.error(
                "the changed routes are not used", extra={"file": str(self._path), "detail": str(error)}
            )
            return
        self.router.replace(book)
        forget_routes()
        self.reloads_count += 1
        _log.info("routes read", extra={"file": str(self._path), "count": self.router.count})

    def _read(self, path: Path) -> RouteBook:
        return self.router.prepared(read_routes(path))

    def metrics(self) -> Iterable[Metric]:
        """Report how many routes there are, and how often they were read."""
        yield from samples(
            ("iotmq_mqtt_routes", "Routes, without the default one.", self.router.count),
            ("iotmq_mqtt_route_reloads_total", "Times changed routes were read.", self.reloads_count),
            (
                "iotmq_mqtt_route_failed_reloads_total",
                "Times changed routes could not be used; the former ones stay.",
                self.failed_reloads_count,
            ),
        )
