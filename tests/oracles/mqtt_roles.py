"""A registry, a broker and two front ends as processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crash_load import SMALL_FILES
from gateway_process import GatewayProcess


@contextmanager
def mqtt_roles(directory: Path) -> Iterator[dict[str, GatewayProcess]]:
    """`broker`, and the front ends `one` and `two`; each can be killed and started again."""
    registry = GatewayProcess(directory / "registry", role="registry")
    broker = GatewayProcess(
        directory / "broker", f"broker.registries={registry.registry}", "broker.registration_interval_s=0.3",
        *SMALL_FILES, role="broker",
    )  # fmt: skip
    one, two = (
        GatewayProcess(
            directory / name,
            f"mqtt.registries={registry.registry}",
            "mqtt.retry_interval_s=0.1",
            f"mqtt.name={name}",
            role="mqtt",
        )
        for name in ("one", "two")
    )
    with registry, broker, one, two:
        yield {"broker": broker, "one": one, "two": two}
