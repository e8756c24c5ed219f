from collections.abc import Callable, Sequence

from iotmq.mqtt.server.connection_settings import ConnectionSettings

class OutboundHalf:
    is_write_paused: bool
    last_received_s: float
    @property
    def settings(self) -> ConnectionSettings: ...
    @property
    def state(self) -> int: ...
    @property
    def protocol_level(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...
    @property
    def in_flight_count(self) -> int: ...
    @property
    def queued_bytes(self) -> int: ...
    def data_to_send(self) -> bytes: ...
    def withdraw_queued(self, is_unwanted: Callable[[bytes], bool]) -> int: ...
    def deliver_message(
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        *,
        properties: bytes = ...,
        is_retained: bool = ...,
        identifiers: Sequence[int] = ...,
        expires_s: float | None = ...,
    ) -> bool: ...
