import asyncio

from iotmq.client.ports import GatewayPort
from iotmq.mqtt.connection import PublishSink
from iotmq.mqtt.packets import Will
from iotmq.mqtt_front.device import Device, DeviceGroup
from iotmq.mqtt_front.routes import Router

class Ingress(PublishSink):
    group: DeviceGroup
    def __init__(
        self,
        router: Router,
        port: GatewayPort,
        loop: asyncio.AbstractEventLoop,
        *,
        batch_bytes_max: int,
        pending_bytes_max: int,
        retry_interval_s: float,
    ) -> None: ...
    @property
    def messages(self) -> int: ...
    @property
    def message_bytes(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def retries(self) -> int: ...
    @property
    def not_stored(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    @property
    def is_idle(self) -> bool: ...
    def publish_will(self, device: Device, will: Will) -> None: ...
    def forget_routes(self) -> None: ...
    def flush(self) -> None: ...
