"""Look at the files that settings name, as a start would: `iotmq config check`.

Faults of the console's users and keys do not stop a start, but then these let nobody in.
Nothing listens, nothing is connected, and of users' programs only plug-ins are loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from iotmq.clock import SystemClock
from iotmq.errors import IotmqError

if TYPE_CHECKING:
    from iotmq.config.config import Config
    from iotmq.mqtt_front.settings.mqtt import MqttSettings

_Look = tuple[str, Callable[[], object]]


def problems_of(config: Config, *, with_files: bool) -> Iterator[str]:
    """Yield what would stop a start beside the settings themselves, a text for each section."""
    looks = [*_looks_at_settings(config), *(_looks_at_files(config) if with_files else ())]
    for section, look in looks:
        try:
            look()
        except (IotmqError, OSError) as error:
            yield f"{section}: {error}" if section else str(error)


def _looks_at_settings(config: Config) -> Iterator[_Look]:
    if config.mqtt.routes or config.mqtt.routes_file:
        from iotmq.mqtt_front.routing.route_file import open_router

        yield "", lambda: open_router(config.mqtt)
    if config.bridges:
        from iotmq.mqtt_bridge.checks import check_bridge

        for bridge in config.bridges:
            yield "", partial(check_bridge, bridge)


def _looks_at_files(config: Config) -> Iterator[_Look]:
    mqtt = config.mqtt
    if mqtt.authentication.is_asked or mqtt.plugins.amqtt:
        yield "mqtt.authentication", lambda: _look_at_access(mqtt)
    if mqtt.permissions.permissions_file:
        from iotmq.mqtt_front.permissions.policies import Policies

        yield "mqtt.permissions", lambda: Policies(mqtt.permissions)
    for listener in mqtt.listeners:
        if listener.is_encrypted:
            from iotmq.mqtt_front.listen.tls import listener_tls

            yield f"mqtt.listeners {listener.name}", partial(listener_tls, listener)
    if mqtt.broker_tls_enabled:
        from iotmq.remoting.tls.files import client_tls

        yield (
            "mqtt.broker_tls",
            partial(
                client_tls,
                ca_file=mqtt.broker_tls_ca_file,
                certificate_file=mqtt.broker_tls_certificate_file,
                key_file=mqtt.broker_tls_key_file,
            ),
        )
    yield from _looks_at_ports(config)


def _looks_at_ports(config: Config) -> Iterator[_Look]:
    for section, settings in (("broker", config.broker), ("registry", config.registry)):
        if settings.tls_certificate_file:
            from iotmq.remoting.tls.files import server_tls

            yield section, partial(server_tls, settings)
        if settings.acl_file:
            from iotmq.broker.access.acl import AccessControl

            path = Path(settings.acl_file)
            yield section, partial(AccessControl, path, asked_by=f"{section}.acl_file is set")
    if config.http.tls_certificate_file:
        from iotmq.console.server.port import http_tls

        yield "http", partial(http_tls, config.http)
    from iotmq.console.access.api_keys import keys_file
    from iotmq.console.access.console_users import users_file

    sign_in, directory = config.http.sign_in, Path(config.data)
    if users := sign_in.users_path(directory):
        yield f"http.sign_in {users}", users_file(users).read
    if keys := sign_in.keys_path(directory):
        yield f"http.sign_in {keys}", keys_file(keys).read


def _look_at_access(mqtt: MqttSettings) -> None:
    """Make the authentication chain with its plug-ins, and start neither."""
    loop = asyncio.new_event_loop()
    try:
        plugin_link = None
        if mqtt.plugins.amqtt:
            from iotmq.mqtt_front.plugins.front_plugins import FrontPlugins

            plugin_link = FrontPlugins(mqtt, loop, lambda _message: None, SystemClock()).link
        if mqtt.authentication.is_asked:
            from iotmq.mqtt_front.access.chains import Chains

            Chains(mqtt, loop, SystemClock(), plugin_link).close()
    finally:
        loop.close()
