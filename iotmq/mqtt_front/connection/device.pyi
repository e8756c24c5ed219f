import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from typing_extensions import Buffer

from iotmq.clock import Clock
from iotmq.hooks import Message
from iotmq.mqtt.codec.packets import Event, Subscribe, Will
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt.server.connection_settings import ConnectionSettings
from iotmq.mqtt.server.publish_sink import PublishSink
from iotmq.mqtt_front.connection.bridge_role import BridgeRole
from iotmq.mqtt_front.connection.limited import LimitedConnection
from iotmq.mqtt_front.connection.peer import Peer

class DeviceHandler(Protocol):
    def device_connected(self, device: Device) -> None: ...
    def device_events(self, device: Device, events: Sequence[Event]) -> None: ...
    def device_lost(self, device: Device) -> None: ...

class SessionEvents(Protocol):
    def opened(self, device: Device, is_resumed: bool) -> None: ...
    def subscribed(self, device: Device, event: Subscribe, codes: Sequence[int]) -> None: ...

class DeviceGroup:
    now_s: float
    hooks: SessionEvents | None
    may_deliver: Callable[[Message], bool] | None
    delivered: list[Message] | None
    dropped: int
    expired: int
    too_large: int
    unfinished_bytes_max: int
    packet_timeout_s: float
    packet_bytes_per_s_min: float
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sink: PublishSink,
        handler: DeviceHandler,
        *,
        now_s: float,
        clock: Clock = ...,
    ) -> None: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def paused_count(self) -> int: ...
    @property
    def unopened_bytes(self) -> int: ...
    @property
    def unfinished_bytes(self) -> int: ...
    def slow_packets(self, now_s: float) -> list[Device]: ...
    @property
    def received_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int: ...
    @property
    def is_congested(self) -> bool: ...
    def end_turn(self) -> None: ...
    def congest(self, cause: int) -> int: ...
    def relieve(self, cause: int) -> int: ...
    def read_no_more(self) -> None: ...

# For the type checker; at run time it has the methods, which is what uvloop looks at, and not the base.
class DeviceSession: ...

class Device(LimitedConnection, asyncio.BufferedProtocol):
    client_id: str | None
    names: bytes | None
    properties: bytes | None
    subscriptions: dict[str, int] | None
    user: str | None
    bridge: BridgeRole | None
    identity: Any
    rights: Any
    expires_s: float
    watched_s: int
    will: Will | None
    has_session: bool
    epoch: int
    expiry_s: int
    is_resumed: bool
    session: DeviceSession | None
    shares: DeviceSession | None
    peer: Peer
    def __init__(
        self, group: DeviceGroup, settings: ConnectionSettings, peer: Peer | None = None
    ) -> None: ...
    @property
    def is_held(self) -> bool: ...
    @property
    def address(self) -> str | None: ...
    @property
    def group(self) -> DeviceGroup: ...
    @property
    def transport(self) -> asyncio.Transport | None: ...
    def open(self, *, session_present: bool, properties: Properties = ...) -> None: ...
    def send_record(self, record: Buffer, options: int, *, is_retained: bool) -> bool | None: ...
    def call_when_room(self, callback: Callable[[], None]) -> None: ...
    def after_answer(self) -> None: ...
    def answer_came(self) -> None: ...
    def finish(self) -> None: ...
    def abort(self) -> None: ...
