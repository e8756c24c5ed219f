"""Ways to a front end's listeners, for tests that hold for each: one line of TRANSPORTS per transport."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from certificates import Certificate, make_certificate, make_root
from fake_gateway import RawClient, ScriptedGateway
from websocket_peer import WebSocketPeer

from iotmq.mqtt_front.server import MqttFront
from iotmq.mqtt_front.settings.listeners import ENCRYPTED_TRANSPORTS, CertificateSettings, ListenerSettings
from iotmq.mqtt_front.settings.mqtt import MqttSettings


class Files(NamedTuple):
    """What encrypted listeners show, and what clients trust."""

    server: Certificate
    context: ssl.SSLContext


def make_files(factory: pytest.TempPathFactory) -> Files | None:
    """By the openssl command, if that is there."""
    if shutil.which("openssl") is None:
        return None
    directory: Path = factory.mktemp("certificates")
    root = make_root(directory)
    return Files(make_certificate(directory, root), ssl.create_default_context(cafile=root.certificate))


class Transport(NamedTuple):
    """A kind of listener, and how a client gets through it."""

    name: str
    connect: Callable[[int, Any], Awaitable[RawClient]]
    files: Files | None = None

    @property
    def is_encrypted(self) -> bool:
        return self.name in ENCRYPTED_TRANSPORTS

    @asynccontextmanager
    async def front(self, gateway: ScriptedGateway, **settings: Any) -> AsyncIterator[MqttFront]:
        """A front end that has such a listener."""
        front = MqttFront(MqttSettings(listen_port=0, listeners=self._listeners(), **settings), gateway)
        await front.start()
        try:
            yield front
        finally:
            await front.stop()

    def _listeners(self) -> tuple[ListenerSettings, ...]:
        if self.name == "tcp":
            return ()
        certificates: tuple[CertificateSettings, ...] = ()
        if self.is_encrypted:
            assert self.files is not None
            shown = self.files.server
            certificates = (CertificateSettings(certificate_file=shown.certificate, key_file=shown.key),)
        return (ListenerSettings(name="other", transport=self.name, certificates=certificates),)  # type: ignore[arg-type]

    async def dial(self, front: MqttFront) -> RawClient:
        """A new connection to that listener."""
        port = front.port if self.name == "tcp" else int(front.addresses["other"].rpartition(":")[2])
        return await self.connect(port, self.files)


async def _websocket(port: int, tls: ssl.SSLContext | None = None) -> RawClient:
    return (await WebSocketPeer.connect(port, tls=tls)).mqtt()


TRANSPORTS = (
    Transport("tcp", lambda port, _: RawClient.dial(port)),
    Transport("tls", lambda port, files: RawClient.dial(port, ssl=files.context)),
    Transport("ws", lambda port, _: _websocket(port)),
    Transport("wss", lambda port, files: _websocket(port, files.context)),
)
