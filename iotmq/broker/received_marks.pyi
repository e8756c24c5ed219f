from collections.abc import Callable

from typing_extensions import Buffer

def marked_elements(elements: Buffer) -> list[tuple[bytes, bool, int, int]]: ...
def collect_received(
    view: Buffer, on_received: Callable[[bytes, int], None], on_released: Callable[[bytes], None]
) -> None: ...
