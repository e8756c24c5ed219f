from typing import Protocol

from iotmq.mqtt.server.connection import ServerConnection

class Tracer(Protocol):
    """Told of what happens on connections that are traced."""

    def packet(
        self,
        connection: TracedConnection,
        is_sent: bool,
        first: int,
        body: bytes,
        size: int,
        topic: str | None,
    ) -> None: ...
    def ended(self, connection: TracedConnection) -> None: ...
    def wants(self, topic: str) -> bool: ...
    def decided(
        self, connection: TracedConnection, kind: str, topic: str | None, fields: dict[str, str | int | None]
    ) -> None: ...

class TraceBudget:
    left: int
    def __init__(self, left: int) -> None: ...
    @property
    def skipped(self) -> int: ...

class Tap:
    def __init__(self, tracer: Tracer, budget: TraceBudget, *, takes_all: bool) -> None: ...

class TracedConnection(ServerConnection):
    @property
    def tap(self) -> Tap | None: ...
    def trace(self, tap: Tap | None) -> None: ...
    def note(self, kind: str, topic: str | None = None, **fields: str | int | None) -> None: ...
