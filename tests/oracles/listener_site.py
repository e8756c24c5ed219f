"""A front end with listeners from a table of settings, over a scripted broker."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from fake_gateway import ScriptedGateway

from iotmq.config.config import Config, config_from_table
from iotmq.mqtt_front.server import MqttFront


def config(*listeners: dict[str, Any], **mqtt: Any) -> Config:
    """ConfigError for settings that are refused."""
    return config_from_table({"mqtt": {"listen_port": 0, "listeners": list(listeners), **mqtt}})


@asynccontextmanager
async def running(*listeners: dict[str, Any], **mqtt: Any) -> AsyncIterator[MqttFront]:
    front = MqttFront(config(*listeners, **mqtt).mqtt, ScriptedGateway())
    await front.start()
    try:
        yield front
    finally:
        await front.stop()


@contextmanager
def directory_for_sockets() -> Iterator[Path]:
    """One with a short path: that of a socket has a limit."""
    with tempfile.TemporaryDirectory(prefix="iotmq-") as made:
        yield Path(made)
