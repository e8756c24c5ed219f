from typing_extensions import Buffer

from iotmq.mqtt.codec.properties import Properties

class ReceivedMessage:
    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def qos(self) -> int: ...
    @property
    def is_retained(self) -> bool: ...
    @property
    def is_duplicate(self) -> bool: ...
    @property
    def packet_id(self) -> int: ...
    @property
    def properties(self) -> Properties: ...
    def __init__(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 0,
        is_retained: bool = False,
        is_duplicate: bool = False,
        packet_id: int = 0,
        properties: Properties = ...,
    ) -> None: ...

class ClientInput:
    def __init__(self, *, protocol_level: int, packet_bytes_max: int, topic_aliases_max: int) -> None: ...
    def receive(self, data: Buffer, found: list[ReceivedMessage | tuple[int, bytes]]) -> None: ...
