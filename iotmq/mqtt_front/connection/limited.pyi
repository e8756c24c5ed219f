from iotmq.mqtt.server.connection import ServerConnection
from iotmq.mqtt_front.connection.client_traffic import ClientTraffic
from iotmq.mqtt_front.limiting.buckets import DeviceLimits

class LimitedConnection(ServerConnection):
    traffic: ClientTraffic
    @property
    def limits(self) -> DeviceLimits | None: ...
    def limit(self, new: DeviceLimits | None) -> None: ...
    def tokens_came(self, is_output: bool) -> None: ...
