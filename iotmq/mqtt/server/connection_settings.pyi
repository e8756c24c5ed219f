from collections.abc import Iterable

class ConnectionSettings:
    @property
    def packet_bytes_max(self) -> int: ...
    @property
    def in_flight_max(self) -> int: ...
    @property
    def queued_bytes_max(self) -> int: ...
    @property
    def queued_messages_max(self) -> int: ...
    @property
    def drops_oldest(self) -> bool: ...
    @property
    def receive_max(self) -> int: ...
    @property
    def topic_aliases_max(self) -> int: ...
    @property
    def checks_payload_format(self) -> bool: ...
    @property
    def connect_timeout_s(self) -> float: ...
    @property
    def authentication_methods(self) -> frozenset[str]: ...
    def __init__(
        self,
        *,
        packet_bytes_max: int = ...,
        in_flight_max: int = ...,
        queued_bytes_max: int = ...,
        queued_messages_max: int = ...,
        drops_oldest: bool = ...,
        receive_max: int = ...,
        topic_aliases_max: int = ...,
        checks_payload_format: bool = ...,
        connect_timeout_s: float = ...,
        authentication_methods: Iterable[str] = ...,
    ) -> None: ...
