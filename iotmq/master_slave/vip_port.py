"""Serve the same requests at two ports: the native one, and the one two before it.

Java brokers and older Java clients call the second one VIP channel. A Java slave asks for topics there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from iotmq.broker.settings import BrokerSettings
from iotmq.clock import Clock
from iotmq.metrics import Metric
from iotmq.remoting.server import Listening, RemotingServer, RequestHandler, RunHandler
from iotmq.remoting.tls.files import server_tls

VIP_PORT_BEFORE: Final = 2


class TwoPorts:
    """Listens for a broker at both."""

    def __init__(
        self, settings: BrokerSettings, clock: Clock, handler: RequestHandler, handle_run: RunHandler
    ) -> None:
        main = Listening(
            host=settings.listen_host,
            port=settings.listen_port,
            idle_s=settings.idle_s,
            connections_max=settings.connections_max,
            name="broker",
        )
        vip = msgspec.structs.replace(main, port=main.port - VIP_PORT_BEFORE, name="broker-vip")
        tls = server_tls(settings)
        self._main, self._vip = (
            RemotingServer(handler, listening, clock=clock, handle_run=handle_run, tls=tls)
            for listening in (main, vip)
        )

    @property
    def port(self) -> int:
        """Return the native port."""
        return self._main.port

    async def start(self) -> None:
        """Listen. OSError when one of the ports is taken."""
        await self._vip.start()
        try:
            await self._main.start()
        except OSError:
            await self._vip.stop()
            raise

    async def stop(self) -> None:
        """End the connections of both."""
        await self._vip.stop()
        await self._main.stop()

    def metrics(self) -> Iterable[Metric]:
        yield from self._main.metrics()
        yield from self._vip.metrics()


def two_ports(settings: BrokerSettings, clock: Clock) -> Callable[[RequestHandler, RunHandler], TwoPorts]:
    """Return what makes the ports of a broker by its settings."""
    return lambda handler, handle_run: TwoPorts(settings, clock, handler, handle_run)
