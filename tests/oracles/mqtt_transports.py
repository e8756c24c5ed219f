"""Ways to a front end's listeners, for tests that hold for each: one line of TRANSPORTS per transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_gateway import RawClient

from iotmq.mqtt_front.server import MqttFront


@dataclass(frozen=True)
class Transport:
    """A kind of listener: the settings that open one, and how a client gets to it."""

    name: str
    dial: Callable[[MqttFront], Awaitable[RawClient]]
    # Settings of the front end, given a directory for files.
    settings: Callable[[Path], dict[str, Any]] = field(default=lambda _directory: {})


TRANSPORTS = (Transport("tcp", lambda front: RawClient.dial(front.port)),)
