from typing import Final

import numpy as np
import numpy.typing as npt

TEXT: Final[int]
MQTT_NAME: Final[int]
ENCODED: Final[int]
BASE64: Final[int]
ALONE: Final[int]

class TextColumn:
    def __init__(
        self,
        name: str,
        buffers: tuple[object, object, object],
        *,
        first: int,
        count: int,
        prefix: bytes = b"",
        kind: int = ...,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def prefix(self) -> bytes: ...

class Encoded:
    @property
    def lane(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def first_row(self) -> int: ...
    @property
    def is_alone(self) -> bool: ...
    @property
    def size(self) -> int: ...
    @property
    def checksum(self) -> int: ...
    def marked(self, mark: bytes) -> memoryview: ...
    def parts(self) -> tuple[bytes, bytes]: ...

class RowEncoder:
    def __init__(self, *, batch_bytes: int, batch_rows: int, room: int, buffered_bytes_max: int) -> None: ...
    @property
    def buffered_bytes(self) -> int: ...
    @property
    def row_count(self) -> int: ...
    def add_topic(self, queue_count: int) -> int: ...
    def encode(
        self,
        body: TextColumn,
        columns: list[TextColumn],
        keys: TextColumn | None,
        topics: npt.NDArray[np.int32],
        queues: npt.NDArray[np.int32] | None,
    ) -> list[Encoded]: ...
    def finish(self) -> list[Encoded]: ...
