from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow
from typing_extensions import Buffer

NUMBER_COLUMNS: Final[tuple[str, ...]]
BYTES_COLUMNS: Final[tuple[str, ...]]
COLUMNS: Final[tuple[str, ...]]
MESSAGE_ID_COLUMN: Final[str]

class ColumnBuffer(Buffer):
    @property
    def size(self) -> int: ...
    def __len__(self) -> int: ...

class Columns:
    @property
    def count(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def bad_body_count(self) -> int: ...
    @property
    def timestamp_unit(self) -> Literal["ms", "us"]: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...
    def buffers(self, name: str) -> tuple[ColumnBuffer | None, ColumnBuffer | None, ColumnBuffer]: ...
    def numpy(self, name: str) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]: ...
    def value(self, name: str, index: int) -> int | bytes | str | None: ...
    def to_arrow(self, fields: Mapping[str, str] | None = None) -> pyarrow.RecordBatch: ...

def decode_columns(
    buffer: Buffer,
    *,
    columns: Sequence[str] = ...,
    keys: Sequence[str] = (),
    timestamp_unit: Literal["ms", "us"] = "ms",
    check_crc: bool = False,
    inflate: bool = True,
    inflated_bytes_max: int = ...,
    bad_bodies: Literal["raise", "null"] = "raise",
    bytes_max: int = ...,
    records_max: int | None = None,
) -> Columns: ...
def iter_columns(
    buffer: Buffer,
    *,
    columns: Sequence[str] = ...,
    keys: Sequence[str] = (),
    timestamp_unit: Literal["ms", "us"] = "ms",
    check_crc: bool = False,
    inflate: bool = True,
    inflated_bytes_max: int = ...,
    bad_bodies: Literal["raise", "null"] = "raise",
    bytes_max: int = ...,
    records_max: int | None = None,
) -> Iterator[Columns]: ...
