from collections.abc import Callable

from typing_extensions import Buffer

class RecordPicker:
    def __init__(
        self,
        decide: Callable[[str, int], tuple[int, int, int, int, int] | None],
        *,
        queues_max: int = 1_000_000,
        expired_at_ms: int = 0,
    ) -> None: ...
    def pick(
        self,
        file: Buffer,
        at: int,
        limit: int,
        *,
        start_position: int,
        bytes_max: int,
        room: bytearray,
    ) -> tuple[memoryview, int, bool]: ...

def step_over(file: Buffer, at: int, *, start_position: int, end_position: int) -> tuple[str, int]: ...
def walk_to(file: Buffer, at: int, target: int, *, start_position: int) -> int: ...
def end_of_records(file: Buffer, *, start_position: int) -> int: ...
def first_store_ms(file: Buffer, *, start_position: int) -> int | None: ...
