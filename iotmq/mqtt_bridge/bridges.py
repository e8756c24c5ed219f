"""All bridges of a process. A role: `start()`, `stop()`, `metrics()`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Iterable, Sequence

from typing_extensions import Buffer

from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.settings import ClientSettings
from iotmq.clock import Clock
from iotmq.errors import ConfigError
from iotmq.metrics import Metric
from iotmq.mqtt_bridge.bridge import Bridge
from iotmq.mqtt_bridge.connection import BridgeCounts, BridgeIngress, RefusingSink
from iotmq.mqtt_bridge.settings import BridgeSettings
from iotmq.mqtt_bridge.topic_maps import ReceiveMap
from iotmq.mqtt_front.routing.route_file import RouteReloads
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.ports.gateway import GatewayPort


class _Nobody:
    """Receives what no filter is attached for (ports.gateway.DeliveryReceiver)."""

    def deliver(self, records: Buffer, matches: Buffer) -> None:
        pass


class Bridges:
    """The bridges of `[[bridges]]`, over one client to the brokers here."""

    def __init__(
        self,
        settings: Sequence[BridgeSettings],
        mqtt: MqttSettings,
        *,
        client: ClientSettings,
        port: Callable[[], GatewayPort],
        clock: Clock,
    ) -> None:
        """`port` makes the way to the brokers here for what a bridge receives. Raises ConfigError."""
        self._settings = tuple(settings)
        self._mqtt = mqtt
        self._client = ClientTransport(client, clock=clock)
        self._make_port = port
        self._clock = clock
        self._routes = RouteReloads(mqtt)
        self._ports: list[GatewayPort] = []
        self._ingresses: list[BridgeIngress] = []
        self.bridges: list[Bridge] = []

    async def start(self) -> None:
        """Begin to connect; other brokers need not be there."""
        names = [each.name for each in self._settings]
        if len(set(names)) != len(names):
            raise ConfigError("bridges: two have the same name")
        try:
            await self._client.start()
            for settings in self._settings:
                bridge = await self._made(settings)
                self.bridges.append(bridge)
                await bridge.start()
            self._routes.start(self._add_topics, self._forget_routes)
        except BaseException:
            await self.stop()
            raise

    async def _made(self, settings: BridgeSettings) -> Bridge:
        gateway = self._mqtt.gateway_name or socket.gethostname()
        counts = BridgeCounts()
        sink: BridgeIngress | RefusingSink = RefusingSink()
        if settings.receive:
            where = f"bridges[{settings.name}]"
            rules = ReceiveMap(settings.receive, gateway=gateway, where=where)
            port = self._make_port()
            loop = asyncio.get_running_loop()
            router = self._routes.router
            sink = BridgeIngress(router, port, loop, self._mqtt, rules, (gateway, counts))
            await port.start(router.broker_topics, _Nobody(), sink.forget_routes, route_of=router.route_of)
            self._ports.append(port)
            self._ingresses.append(sink)
        return Bridge(
            settings,
            self._client,
            lambda: settings.broker_topics or self._routes.router.broker_topics,
            gateway=gateway,
            sink=(sink, counts),
            clock=self._clock,
        )

    async def _add_topics(self, topics: Collection[str]) -> None:
        for port in self._ports:
            await port.add_topics(topics)

    def _forget_routes(self) -> None:
        for ingress in self._ingresses:
            ingress.forget_routes()

    async def stop(self) -> None:
        """End the connections; the offsets stand where the other brokers are."""
        self._routes.stop()
        await asyncio.gather(*(bridge.stop() for bridge in self.bridges))
        for ingress in self._ingresses:
            ingress.close()
        for port in self._ports:
            await port.stop()
        await self._client.stop()

    @property
    def not_ready_reason(self) -> str | None:
        """Return the alarms; None when there are none."""
        reasons = [reason for bridge in self.bridges if (reason := bridge.not_ready_reason) is not None]
        return "; ".join(reasons) or None

    def metrics(self) -> Iterable[Metric]:
        """The numbers of every bridge."""
        for bridge in self.bridges:
            yield from bridge.metrics()
