import asyncio
from collections import Counter

from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.listen.websocket_upgrade import UpgradeRules

CLOSE_TIMEOUT_S: float

class WebSocketCounts:
    @property
    def refused(self) -> Counter[int]: ...
    @property
    def errors(self) -> Counter[int]: ...

class WebSocketProtocol(asyncio.BufferedProtocol):
    def __init__(self, device: Device, rules: UpgradeRules, counts: WebSocketCounts) -> None: ...
