"""Run a whole gateway inside the process of a test, on free ports, with its data in memory."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from iotmq.addresses import parse_address
from iotmq.assembly import Process
from iotmq.client.blocking.classes import SyncClient
from iotmq.client.blocking.connecting import connect_sync
from iotmq.client.blocking.loop_thread import LoopThread
from iotmq.client.client import IotmqClient
from iotmq.client.connecting import connect
from iotmq.config.config import load_config

_MEMORY: Final = Path("/dev/shm")
# Files that cost little to make; any free ports of this machine only.
_SETTINGS: Final = (
    *(f"{role}.listen_port=0" for role in ("registry", "broker", "mqtt", "http")),
    "http.sign_in.enabled=false",
    "store.segment_bytes=16777216",
    "store.allocation_step_bytes=65536",
)


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """Say where a gateway of a test listens, and connect to it."""

    url: str
    """The URL for `iotmq.connect`."""
    mqtt_host: str
    """Where devices connect by MQTT: the host."""
    mqtt_port: int
    """Where devices connect by MQTT: the port."""
    http_url: str
    """The URL in front of `/metrics` and `/readyz`."""

    def connect(self) -> IotmqClient:
        """Make a client of this gateway, as `iotmq.connect` does."""
        return connect(self.url)

    def connect_sync(self) -> SyncClient:
        """Make a blocking client of this gateway, as `iotmq.connect_sync` does."""
        return connect_sync(self.url)


@contextlib.contextmanager
def gateway(*assignments: str) -> Iterator[Gateway]:
    """Run a gateway with an empty log until the block ends; nothing of it is left then.

    `assignments` are settings as for `iotmq serve --set`: `"broker.auto_create_topics=false"`. It runs on a
    thread of its own, so tests with and without asyncio can use it. ConfigError for a wrong setting.
    """
    where = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="iotmq-testing-", dir=where) as data:
        process = Process(load_config(assignments=[*_SETTINGS, *assignments], data=data), "serve")
        thread = LoopThread()
        thread.start()
        try:
            thread.run(process.start())
            try:
                host, port = parse_address(process.addresses["mqtt"])
                yield Gateway(
                    url=f"iotmq://{process.addresses['registry']}",
                    mqtt_host=host,
                    mqtt_port=port,
                    http_url=f"http://{process.addresses['http']}",
                )
            finally:
                thread.run(process.stop())
        finally:
            thread.stop()
