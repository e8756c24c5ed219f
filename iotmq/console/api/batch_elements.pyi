from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from iotmq.client.transport.routes import MessageQueue
from iotmq.message.message_ids import UniqueKeys

ALONE_BYTES: Final[int]
"""Larger messages are sent by themselves."""

class Item(Protocol):
    @property
    def mqtt_topic(self) -> str: ...
    @property
    def payload(self) -> str: ...
    @property
    def payload_base64(self) -> str: ...
    @property
    def payload_json(self) -> msgspec.Raw | msgspec.UnsetType: ...
    @property
    def qos(self) -> int: ...
    @property
    def retain(self) -> bool: ...
    @property
    def expiry_s(self) -> float: ...
    @property
    def topic(self) -> str | None: ...

class Lane:
    def __init__(self, topic: str, key: str, heads: Iterable[bytes]) -> None: ...
    @property
    def topic(self) -> str: ...
    def queue_of(self, queues: Sequence[MessageQueue]) -> MessageQueue: ...
    def element(self, payload: bytes, qos: int, is_retained: bool, unique_key: bytes) -> bytes: ...

class QueueBatch:
    @property
    def queue(self) -> MessageQueue: ...
    @property
    def places(self) -> list[int]: ...
    @property
    def elements(self) -> bytes: ...
    def write_stored(self, outcomes: list[bytes], middle: bytes, offset: int, end: bytes) -> None: ...

class BatchElements:
    def __init__(
        self,
        lanes: Mapping[str, Lane | None],
        queues: Mapping[str, Sequence[MessageQueue]],
        unique_keys: UniqueKeys,
        count: int,
        tail: bytes,
    ) -> None: ...
    @property
    def batches(self) -> list[QueueBatch]: ...
    def take(self, items: tuple[Item, ...], place: int) -> int: ...
    def add(
        self,
        place: int,
        lane: Lane,
        queues: Sequence[MessageQueue],
        payload: bytes,
        qos: int,
        *,
        is_retained: bool,
    ) -> None: ...
