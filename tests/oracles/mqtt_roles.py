"""A registry, a broker and two front ends as processes of their own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from crash_load import SMALL_FILES
from gateway_process import GatewayProcess, free_port

from iotmq.config.setting_text import toml_value


@contextmanager
def mqtt_roles(
    directory: Path, *, broker_settings: Sequence[str] = SMALL_FILES
) -> Iterator[dict[str, GatewayProcess]]:
    """`registry`, `broker`, and the front ends `one` and `two`; each can be killed and started again.

    Front ends have MQTT in WebSockets, too, at their port `websocket`.
    """
    registry = GatewayProcess(directory / "registry", role="registry")
    broker = GatewayProcess(
        directory / "broker", f"broker.registries={registry.registry}", "broker.registration_interval_s=0.3",
        *broker_settings, role="broker",
    )  # fmt: skip
    one, two = (_front_end(directory / name, name, registry.registry) for name in ("one", "two"))
    with registry, broker, one, two:
        yield {"registry": registry, "broker": broker, "one": one, "two": two}


def _front_end(directory: Path, name: str, registry: str) -> GatewayProcess:
    port = free_port()
    listener = {"name": "web", "transport": "ws", "listen_port": port, "allowed_origins": ["*"]}
    front_end = GatewayProcess(
        directory,
        f"mqtt.registries={registry}",
        "mqtt.retry_interval_s=0.1",
        f"mqtt.name={name}",
        f"mqtt.listeners={toml_value([listener])}",
        role="mqtt",
    )
    front_end.ports["websocket"] = port
    return front_end


class TwoFrontEnds:
    """What tests need of a gateway, where clients connect to the one front end and the other in turn."""

    def __init__(self, roles: dict[str, GatewayProcess]) -> None:
        self._roles = roles
        self._doors = itertools.cycle([roles["one"].mqtt_port, roles["two"].mqtt_port])

    @property
    def mqtt_port(self) -> int:
        """Another one each time."""
        return next(self._doors)

    @property
    def registry(self) -> str:
        return self._roles["registry"].registry

    def kill(self) -> None:
        """The broker and both front ends."""
        for name in ("one", "two", "broker"):
            self._roles[name].kill()

    def start(self) -> None:
        for name in ("broker", "one", "two"):
            self._roles[name].start()
