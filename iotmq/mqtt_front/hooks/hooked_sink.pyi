from collections.abc import Callable

from iotmq.mqtt.server.publish_sink import PublishSink
from iotmq.mqtt_front.connection.device import Device, DeviceGroup
from iotmq.mqtt_front.hooks.hook_calls import HookCalls

class HookedSink(PublishSink):
    group: DeviceGroup
    def __init__(self, sink: PublishSink, calls: HookCalls) -> None: ...
    @property
    def held_bytes(self) -> int: ...
    @property
    def denied(self) -> int: ...
    def when_passed(self, device: Device, callback: Callable[[], None]) -> bool: ...
