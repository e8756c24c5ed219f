"""iotmq: an MQTT-first IoT gateway with a RocketMQ-compatible queue backend.

`iotmq.connect` is the way into its client, `iotmq.connect_sync` without asyncio; both load at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iotmq.client.blocking.connecting import connect_sync
    from iotmq.client.connecting import connect

__version__ = "0.1.0"
__all__ = ["__version__", "connect", "connect_sync"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import iotmq.client

    value: object = getattr(iotmq.client, name)
    globals()[name] = value
    return value
