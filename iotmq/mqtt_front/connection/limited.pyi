from iotmq.mqtt_front.connection.client_traffic import ClientTraffic
from iotmq.mqtt_front.connection.traced import TracedConnection
from iotmq.mqtt_front.limiting.buckets import DeviceLimits

class LimitedConnection(TracedConnection):
    traffic: ClientTraffic
    @property
    def limits(self) -> DeviceLimits | None: ...
    def limit(self, new: DeviceLimits | None) -> None: ...
    def tokens_came(self, is_output: bool) -> None: ...
