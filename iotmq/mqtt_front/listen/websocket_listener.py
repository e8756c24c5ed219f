"""A listener whose connections carry MQTT in WebSockets: what it makes of them, and their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from iotmq.metrics import Metric, samples_by
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.connection.peer import Peer
from iotmq.mqtt_front.listen.websocket import WebSocketCounts, WebSocketProtocol
from iotmq.mqtt_front.listen.websocket_upgrade import UpgradeRules
from iotmq.mqtt_front.settings.listeners import ListenerSettings


class WebSocketListener:
    """The rules of one listener, whatever is below the WebSocket."""

    def __init__(self, settings: ListenerSettings, make_device: Callable[[Peer], Device]) -> None:
        self._make_device = make_device
        self._name = settings.name
        self._counts = WebSocketCounts()
        self._rules = UpgradeRules(
            settings.websocket_path,
            settings.origins,
            settings.websocket_subprotocol_required,
        )

    def protocol(self, peer: Peer) -> WebSocketProtocol:
        """Return the asyncio protocol of a new connection, with a device of its own."""
        return WebSocketProtocol(self._make_device(peer), self._rules, self._counts)

    def metrics(self) -> Iterable[Metric]:
        """Report refusals and closures for breaking the rules of WebSocket."""
        yield from samples_by(
            "status",
            "iotmq_mqtt_websocket_refused_total",
            "Requests for a WebSocket that were refused, by HTTP status.",
            self._counts.refused,
            labels=(("listener", self._name),),
        )
        yield from samples_by(
            "code",
            "iotmq_mqtt_websocket_errors_total",
            "WebSockets closed for breaking their rules, by close code.",
            self._counts.errors,
            labels=(("listener", self._name),),
        )
