class ConnectionSettings:
    @property
    def packet_bytes_max(self) -> int: ...
    @property
    def in_flight_max(self) -> int: ...
    @property
    def queued_bytes_max(self) -> int: ...
    @property
    def connect_timeout_s(self) -> float: ...
    def __init__(
        self,
        *,
        packet_bytes_max: int = ...,
        in_flight_max: int = ...,
        queued_bytes_max: int = ...,
        connect_timeout_s: float = ...,
    ) -> None: ...
