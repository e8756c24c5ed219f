"""A connection to a broker that is made again whenever it ends, and at once where the broker is elsewhere."""

from __future__ import annotations

import asyncio
import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable

from iotmq.addresses import parse_address
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.remoting.signature import Credentials

_log = logging.getLogger("iotmq.mqtt")


class KeptConnection(ABC):
    """Keep a connection to one broker: `_keep_open` is work for a task. Subclasses say what is told on it."""

    def __init__(self, address: str, *, credentials: Credentials | None, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self._credentials = credentials
        self._tls = tls
        # Set while the broker knows all that it has to.
        self._connection: ClientConnection | None = None
        # Ends the present connection, or the try to make one, when the broker is elsewhere.
        self._stay: asyncio.Timeout | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether the broker answers, and knows all that it has to."""
        return self._connection is not None

    def move(self, address: str) -> None:
        """Connect to HOST:PORT from now on; at once when that is another address than before."""
        if address != self.address:
            self.address = address
            self.retry(is_renewed=True)

    def retry(self, *, is_renewed: bool) -> None:
        """Connect at once where there is no connection; `is_renewed`: and instead of one that is there."""
        if (is_renewed or not self.is_ready) and self._stay is not None and not self._stay.expired():
            self._stay.reschedule(asyncio.get_running_loop().time())

    async def _keep_open(self) -> None:
        while True:
            try:
                async with asyncio.timeout(None) as self._stay:
                    await self._keep_open_here(self._stay)
            except TimeoutError:
                _log.info("connecting to the new address of a broker", extra={"address": self.address})
            finally:
                # Nothing to end any more, also when the work was ended or has failed.
                self._stay = None

    @abstractmethod
    async def _keep_open_here(self, stay: asyncio.Timeout) -> None:
        """Connect again and again, until `stay` is over."""

    async def _connect(self, on_lost: Callable[[ClientConnection], None]) -> ClientConnection:
        host, port = parse_address(self.address)
        return await ClientConnection.connect(
            host,
            port,
            on_request=self._requested,
            on_lost=on_lost,
            credentials=self._credentials,
            tls=self._tls,
        )

    @abstractmethod
    def _requested(self, connection: ClientConnection, request: Command) -> Command | None:
        """Take what the broker says by itself."""
